"""Where are a user's files if the run is on another machine? In a copy of the files that were read, below a separate folder.

`read_files` records which files a description consists of, `cached` also those of cached results. `from_copy` resolves names and paths
to files in such a copy, in which ``/home/ada/box.yaml`` is ``COPY/home/ada/box.yaml``, as if the program ran on the user's machine.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import TypeVar

from sim.spec import memo

T = TypeVar("T")

_noted: ContextVar[set[Path] | None] = ContextVar("_noted", default=None)
_copy: ContextVar[tuple[Path, str] | None] = ContextVar("_copy", default=None)


def record_read(path: Path) -> None:
    """Record that *path* was read, if inside `read_files`."""
    listening = _noted.get()
    if listening is not None:
        listening.add(Path(os.path.abspath(path)))


@contextmanager
def read_files() -> Iterator[set[Path]]:
    """Collect the absolute paths of all files that are read inside the block; a block around this one collects them as well."""
    files: set[Path] = set()
    token = _noted.set(files)
    try:
        yield files
    finally:
        _noted.reset(token)
        _record(files)


def cached(key: Hashable, make: Callable[[], T], should_cache: Callable[[], bool] = lambda: True) -> T:
    """Return the cached result for *key*, or else the result of *make* (`memo.get_or_make`); either way, record the files that it reads."""
    if not memo.is_open():
        return make()
    result, files = memo.get_or_make(key, lambda: _with_files(make), should_cache=should_cache)
    _record(files)
    return result


def _with_files(make: Callable[[], T]) -> tuple[T, frozenset[Path]]:
    with read_files() as files:
        result = make()
    return result, frozenset(files)


def _record(files: Iterable[Path]) -> None:
    """Record that *files*, absolute paths, were read, if inside `read_files`."""
    listening = _noted.get()
    if listening is not None:
        listening.update(files)


@contextmanager
def from_copy(folder: Path, working_directory: str) -> Iterator[None]:
    """Inside the block, resolve the names and paths of a user in *working_directory* to the copy in *folder*."""
    token = _copy.set((folder, working_directory))
    try:
        yield
    finally:
        _copy.reset(token)


def path_in_copy(folder: Path, path: str | Path) -> Path:
    """Return the place of the absolute *path* in the copy in *folder*."""
    return folder / Path(path).relative_to(Path(path).anchor)


def with_user_paths(text: str) -> str:
    """Return the message *text* with paths of the copy replaced by the user's own paths."""
    copied = _copy.get()
    if copied is None:
        return text
    folder, working_directory = copied
    return text.replace(f"{path_in_copy(folder, working_directory)}{os.sep}", "").replace(f"{folder}{os.sep}", os.sep)


def user_path(name: str) -> Path:
    """Return the path for *name* as the user wrote it, in the copy if inside `from_copy`."""
    copied = _copy.get()
    if copied is None:
        return Path(name)
    folder, working_directory = copied
    return path_in_copy(folder, os.path.abspath(os.path.join(working_directory, name)))
