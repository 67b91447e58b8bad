"""How do many independent runs use the machines of a cluster? As tasks of a dask scheduler, with the files they need.

dask.distributed runs them: if a worker dies, its task goes to another. Results arrive as they complete, in any order. Workers need
stallsim of the same version, and nothing else: the user's own files travel with the tasks (`sim.spec.elsewhere`), and catalog files
are compared by fingerprint. dask gives up a task that kills several workers (its setting ``distributed.scheduler.allowed-failures``),
which is then reported.
"""

from __future__ import annotations

import atexit
import hashlib
import logging
import os
import re
import shutil
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache, lru_cache, partial
from pathlib import Path
from queue import Empty, Queue
from typing import Any, NamedTuple, TypeVar

from sim import __version__
from sim.spec.catalog import roots
from sim.spec.elsewhere import from_copy, path_in_copy
from sim.spec.yaml import SpecError

Item = TypeVar("Item")
Computed = TypeVar("Computed")

_ADDRESS = re.compile(r"(?:dask|tcp)://([^/:\s]+|\[[0-9a-fA-F:]+\]):(\d{1,5})/?")
_ANSWER_TIME = 10.0
"""Seconds to wait for an answer of the scheduler, and for its first worker."""
_LOOK_EVERY = 1.0
"""Seconds without a result after which to check whether any workers are left."""
_PATIENCE = 60.0
"""Seconds without any worker after which a sweep gives up; a cluster that restarts its workers has them back by then."""
_TALKATIVE = ("distributed", "distributed.client")
"""dask's loggers that write to stderr."""
_COPYING = threading.Lock()


class TaskFiles(NamedTuple):
    """What a task needs besides the program: the user's files by absolute path, and fingerprints of catalog files by name."""

    version: str
    working_directory: str
    files: tuple[tuple[str, bytes], ...]
    catalog: tuple[tuple[str, str], ...]


class VersionMismatch(SpecError):
    """Raised if a worker's program or catalog differs from the user's."""


def task_files(read: Iterable[Path]) -> TaskFiles:
    """Return what the tasks of runs that read the files *read* need besides the program."""
    own, shipped = [], []
    for path in sorted(read):
        content = path.read_bytes()
        home = next((root for root in roots() if path.resolve().is_relative_to(root)), None)
        if home is None:
            own.append((str(path), content))
        else:
            shipped.append((path.resolve().relative_to(home).as_posix(), hashlib.sha256(content).hexdigest()))
    return TaskFiles(__version__, os.getcwd(), tuple(own), tuple(shipped))


def each_on_cluster(
    address: str,
    function: Callable[[Item], Computed],
    items: Sequence[Item],
    luggage: TaskFiles,
    notice: Callable[[str], None] = lambda text: None,
) -> Iterator[Computed]:
    """Yield ``function(item)`` for each of *items* as it completes, computed by the workers of the dask scheduler at *address*.

    *notice* gets a sentence about what is being waited for. Raise SpecError if no scheduler or worker answers, if they go away, or
    if their version differs.
    """
    with on_cluster(address, luggage, notice) as (_, run):
        yield from run(function, items)


@contextmanager
def on_cluster(
    address: str, luggage: TaskFiles, notice: Callable[[str], None] = lambda text: None
) -> Iterator[tuple[int, Callable[[Callable[[Any], Any], Sequence[Any]], Iterator[Any]]]]:
    """Yield how many runs the workers at *address* can take at once, and a reusable function that does what `each_on_cluster` does."""
    client = _connect(address, notice)
    with _quietly():
        try:
            room = sum(worker["nthreads"] for worker in client.scheduler_info(n_workers=-1)["workers"].values())
            yield room, lambda function, items: _gather(client, address, function, items, luggage, notice)
        finally:
            client.close()


@contextmanager
def _quietly() -> Iterator[None]:
    """Suppress dask's own messages about dying workers and broken connections; this module reports what matters."""
    loggers = [logging.getLogger(name) for name in _TALKATIVE]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def _connect(address: str, notice: Callable[[str], None]) -> Any:
    match = _ADDRESS.fullmatch(address.strip())
    if match is None or not 0 < int(match.group(2)) < 65536:
        raise SpecError(f"--cluster {address or repr('')}: write dask://HOST:PORT, or tcp://HOST:PORT as 'dask scheduler' prints it")
    try:
        from distributed import Client
    except ImportError:
        raise SpecError("--cluster needs dask.distributed: pip install 'dask[distributed]'") from None
    host, port = match.groups()
    _check_listening(address, host.strip("[]"), int(port))
    try:
        client = Client(f"tcp://{host}:{port}", timeout=_ANSWER_TIME, set_as_default=False)
    except (OSError, TimeoutError):
        raise SpecError(
            f"--cluster {address}: the process listening there is not a dask scheduler, or its version is incompatible"
        ) from None
    if not _workers(client):
        notice(f"{address} has no workers yet; waiting {_ANSWER_TIME:g} s for the first")
    try:
        client.wait_for_workers(1, timeout=_ANSWER_TIME)
    except TimeoutError:
        client.close()
        raise SpecError(f"--cluster {address}: the scheduler has no workers; start some with 'dask worker tcp://{host}:{port}'") from None
    return client


def _check_listening(address: str, host: str, port: int) -> None:
    """Raise SpecError unless something that may be a scheduler listens at *host* and *port*; dask itself would retry silently."""
    try:
        with socket.create_connection((host, port), _ANSWER_TIME) as connection:
            greeting = _first_byte(connection)
    except socket.gaierror:
        raise SpecError(f"--cluster {address}: unknown host {host}") from None
    except TimeoutError:
        raise SpecError(
            f"--cluster {address}: {host} does not respond; check that it is running and that no firewall blocks port {port}"
        ) from None
    except OSError as error:
        raise SpecError(
            f"--cluster {address}: no scheduler responds there ({error.strerror}); start one with 'dask scheduler --port {port}'"
        ) from None
    if not greeting:
        raise SpecError(f"--cluster {address}: the process listening there is not a dask scheduler")


def _first_byte(connection: socket.socket) -> bytes:
    """Return the first byte received; a scheduler speaks first, other servers wait for a request."""
    try:
        return connection.recv(1)
    except OSError:
        return b""


def _workers(client: Any) -> int:
    """Return the number of workers that the scheduler last reported, at most a few seconds ago."""
    return len(client.scheduler_info(n_workers=-1)["workers"])


def _gather(
    client: Any,
    address: str,
    function: Callable[[Item], Computed],
    items: Sequence[Item],
    luggage: TaskFiles,
    notice: Callable[[str], None],
) -> Iterator[Computed]:
    sent_luggage = client.submit(_identity, luggage, pure=False)  # a task of its own: sent once, and recomputed if its worker dies
    tasks = {task.key: task for task in (client.submit(_task, sent_luggage, function, item, pure=False) for item in items)}
    done: Queue[str] = Queue()
    for task in tasks.values():
        task.add_done_callback(lambda task: done.put(task.key))
    while tasks:
        watch = _ClusterWatch(client, address, f"{len(items) - len(tasks)} of {len(items)} runs", notice)
        try:
            task = tasks.pop(watch.until(partial(_ended, done)))  # dropped once it has ended
            result = watch.until(partial(_result, task))
        except VersionMismatch:
            raise
        except Exception as error:
            raise _error_of(error, address, watch.progress) from None
        yield result


def _ended(done: Queue[str]) -> list[str]:
    """Return the key of a task that has ended, in a list that is empty if none ends soon."""
    try:
        return [done.get(timeout=_LOOK_EVERY)]
    except Empty:
        return []


def _result(task: Any) -> list[Any]:
    """Return the result of *task*, in a list that is empty if it does not come soon: if its worker died, it is computed again."""
    try:
        return [task.result(timeout=_LOOK_EVERY)]
    except TimeoutError:
        if task.status == "error":
            raise
        return []


class _ClusterWatch:
    """Waits for results from a cluster, and meanwhile checks whether any workers are left."""

    def __init__(self, client: Any, address: str, progress: str, notice: Callable[[str], None]) -> None:
        self._client, self._address, self.progress, self._notice = client, address, progress, notice
        self._alone_since: float | None = None

    def until(self, attempt: Callable[[], list[Any]]) -> Any:
        """Call *attempt* until it returns a result, and return that. Raise SpecError if there has been no worker for long."""
        while not (results := attempt()):
            self._look()
        return results[0]

    def _look(self) -> None:
        now = time.monotonic()
        if self._client.status != "running" or _workers(self._client):
            self._alone_since = None
        elif self._alone_since is None:
            self._alone_since = now
            self._notice(f"{self._address} has lost its workers after {self.progress}; waiting {_PATIENCE:g} s for new ones")
        elif now - self._alone_since > _PATIENCE:
            after = f"after {self.progress}; once some are back, the same command resumes from there"
            raise SpecError(f"--cluster {self._address}: no workers are left {after}")


def _error_of(error: Exception, address: str, progress: str) -> SpecError:
    """Return an error that states in a sentence what went wrong with a task."""
    from distributed import CancelledError

    if isinstance(error, SpecError):
        return error
    reason = f"a run failed on its worker: {type(error).__name__}: {error}"
    if isinstance(error, CancelledError | OSError):
        reason = f"lost the scheduler after {progress}; once it is back, the same command resumes from there"
    if isinstance(error, ImportError):
        reason = f"a worker has no stallsim ({error}): install stallsim {__version__} there"
    return SpecError(f"--cluster {address}: {reason}")


def _identity(luggage: TaskFiles) -> TaskFiles:
    return luggage


def _task(luggage: TaskFiles, function: Callable[[Item], Computed], item: Item) -> Computed:
    """Call *function* with *item* on a worker, with the user's files in place."""
    _check_same_program(luggage.version, luggage.catalog)
    with _COPYING:
        folder = _copy(luggage.files)
    with from_copy(folder, luggage.working_directory):
        return function(item)


@cache
def _copy(files: tuple[tuple[str, bytes], ...]) -> Path:
    """Return a folder with a copy of *files*; it is removed when this process ends."""
    folder = Path(tempfile.mkdtemp(prefix="stallsim-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    for path, content in files:
        place = path_in_copy(folder, path)
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(content)
    return folder


@lru_cache(maxsize=8)
def _check_same_program(version: str, catalog: tuple[tuple[str, str], ...]) -> None:
    """Raise VersionMismatch unless this process has the same program and catalog as the user."""
    if version != __version__:
        raise VersionMismatch(
            f"--cluster: a worker has stallsim {__version__}, this machine has {version}; install the same version on all"
        )
    for name, fingerprint in catalog:
        if fingerprint not in _fingerprints(name):
            raise VersionMismatch(f"--cluster: catalog file {name} differs on a worker; install the same stallsim on all")


def _fingerprints(name: str) -> Mapping[str, None]:
    there = [root / name for root in roots() if (root / name).is_file()]
    return dict.fromkeys(hashlib.sha256(path.read_bytes()).hexdigest() for path in there)
