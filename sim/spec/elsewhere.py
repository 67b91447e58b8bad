"""Where are a user's files if the run is on another machine? In a copy of the files that were read, below a separate folder.

`read_files` records which files a description consists of. `from_copy` resolves names and paths to files in such a copy, in which
``/home/ada/box.yaml`` is ``COPY/home/ada/box.yaml``, as if the program ran on the user's machine.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path

_noted: ContextVar[set[Path] | None] = ContextVar("_noted", default=None)
_copy: ContextVar[tuple[Path, str] | None] = ContextVar("_copy", default=None)


def record_read(path: Path) -> None:
    """Record that *path* was read, if inside `read_files`."""
    listening = _noted.get()
    if listening is not None:
        listening.add(Path(os.path.abspath(path)))


@contextmanager
def read_files() -> Iterator[set[Path]]:
    """Collect the absolute paths of all files that are read inside the block."""
    files: set[Path] = set()
    token = _noted.set(files)
    try:
        yield files
    finally:
        _noted.reset(token)


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
