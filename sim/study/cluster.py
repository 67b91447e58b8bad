"""How do many independent runs use the machines of a cluster? As tasks of a dask scheduler, with the files they need.

dask.distributed carries them: a task whose worker dies is given to another, and a result is told as soon as it is there, in any
order. Workers need stallsim of the same version, nothing else: the user's own files travel with the tasks (`sim.spec.elsewhere`),
and those of the catalogue are compared. A task that brings down worker after worker is given up by dask (its setting
``distributed.scheduler.allowed-failures``), and said to have been.
"""

from __future__ import annotations

import atexit
import hashlib
import os
import re
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from sim import __version__
from sim.spec.catalogue import roots
from sim.spec.elsewhere import from_copy, in_copy
from sim.spec.yaml import SpecError

Item = TypeVar("Item")
Result = TypeVar("Result")

_ADDRESS = re.compile(r"(?:dask|tcp)://([^/:\s]+|\[[0-9a-fA-F:]+\]):(\d{1,5})/?")
_ANSWER_TIME = 10.0
"""Seconds in which a scheduler answers, and has a worker."""
_COPYING = threading.Lock()


class Luggage(NamedTuple):
    """What a task needs beside the program: the user's files by absolute path, and fingerprints of the catalogue's by their names."""

    version: str
    working_directory: str
    files: tuple[tuple[str, bytes], ...]
    catalogue: tuple[tuple[str, str], ...]


class Unlike(SpecError):
    """A worker that has another program or catalogue than the user."""


def pack(read: Iterable[Path]) -> Luggage:
    """Return the luggage of runs that *read* these files."""
    own, known = [], []
    for path in sorted(read):
        content = path.read_bytes()
        home = next((root for root in roots() if path.resolve().is_relative_to(root)), None)
        if home is None:
            own.append((str(path), content))
        else:
            known.append((path.resolve().relative_to(home).as_posix(), hashlib.sha256(content).hexdigest()))
    return Luggage(__version__, os.getcwd(), tuple(own), tuple(known))


def each_on_cluster(address: str, function: Callable[[Item], Result], items: Sequence[Item], luggage: Luggage) -> Iterator[Result]:
    """Yield ``function(item)`` for each of *items* as it comes, computed by the workers of the dask scheduler at *address*.

    Raise SpecError where no scheduler or worker answers, where they go away, or where they have another version.
    """
    client = _connect(address)
    try:
        yield from _gather(client, address, function, items, luggage)
    finally:
        client.close()


def _connect(address: str) -> Any:
    match = _ADDRESS.fullmatch(address.strip())
    if match is None or not 0 < int(match.group(2)) < 65536:
        raise SpecError(f"--cluster {address or repr('')}: write dask://HOST:PORT, as 'dask scheduler' prints its address")
    try:
        from distributed import Client
    except ImportError:
        raise SpecError("--cluster needs dask.distributed: pip install 'stallsim[cluster]'") from None
    try:
        client = Client(f"tcp://{match.group(1)}:{match.group(2)}", timeout=_ANSWER_TIME, set_as_default=False)
    except (OSError, TimeoutError):
        raise SpecError(
            f"--cluster {address}: no scheduler answers there; start one with 'dask scheduler --port {match.group(2)}'"
        ) from None
    try:
        client.wait_for_workers(1, timeout=_ANSWER_TIME)
    except TimeoutError:
        client.close()
        raise SpecError(f"--cluster {address}: the scheduler has no workers; start some with 'dask worker {address}'") from None
    return client


def _gather(client: Any, address: str, function: Callable[[Item], Result], items: Sequence[Item], luggage: Luggage) -> Iterator[Result]:
    from distributed import as_completed

    with_it = client.submit(_same, luggage, pure=False)  # a task of its own: sent once, and made again where its worker dies
    tasks = [client.submit(_task, with_it, function, item, pure=False) for item in items]
    done = as_completed(tasks, loop=client.loop)
    del tasks  # a result is forgotten once it is told
    for told, task in enumerate(done):
        try:
            result = task.result()
        except Exception as error:
            raise _said(error, address, f"{told} of {len(items)} runs") from None
        yield result


def _said(error: Exception, address: str, told: str) -> SpecError:
    """Return what went wrong with a task, as a sentence."""
    from distributed import CancelledError

    if isinstance(error, SpecError):
        return error
    what = f"a run failed on its worker: {type(error).__name__}: {error}"
    if isinstance(error, CancelledError | OSError):
        what = f"the scheduler went away after {told}; once it is back, the same command goes on from there"
    if isinstance(error, ImportError):
        what = f"a worker has no stallsim ({error}): pip install 'stallsim=={__version__}' there"
    return SpecError(f"--cluster {address}: {what}")


def _same(luggage: Luggage) -> Luggage:
    return luggage


def _task(luggage: Luggage, function: Callable[[Item], Result], item: Item) -> Result:
    """Run on a worker: *function* of *item*, with the user's files in place."""
    _check_alike(luggage.version, luggage.catalogue)
    with _COPYING:
        folder = _copy(luggage.files)
    with from_copy(folder, luggage.working_directory):
        return function(item)


@cache
def _copy(files: tuple[tuple[str, bytes], ...]) -> Path:
    """Return a folder with a copy of *files*; it goes when this process ends."""
    folder = Path(tempfile.mkdtemp(prefix="stallsim-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    for path, content in files:
        place = in_copy(folder, path)
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(content)
    return folder


@lru_cache(maxsize=8)
def _check_alike(version: str, catalogue: tuple[tuple[str, str], ...]) -> None:
    """Raise Unlike unless this process has the same program and catalogue as the user."""
    if version != __version__:
        raise Unlike(f"--cluster: a worker has stallsim {__version__}, this is {version}: install the same on all")
    for name, fingerprint in catalogue:
        if fingerprint not in _fingerprints(name):
            raise Unlike(f"--cluster: {name} of the catalogue is another file on a worker: install the same stallsim on all")


def _fingerprints(name: str) -> Mapping[str, None]:
    there = [root / name for root in roots() if (root / name).is_file()]
    return dict.fromkeys(hashlib.sha256(path.read_bytes()).hexdigest() for path in there)
