"""Where are the files of a user whose run is on another machine? In a copy of those that were read, below a folder of their own.

`read_files` tells which files a description is made of. `from_copy` lets names and paths stand for files in such a copy, in which
``/home/ada/box.yaml`` is ``COPY/home/ada/box.yaml``, as if the program ran where they were written.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path

_noted: ContextVar[set[Path] | None] = ContextVar("_noted", default=None)
_copy: ContextVar[tuple[Path, str] | None] = ContextVar("_copy", default=None)


def note(path: Path) -> None:
    """Remember that *path* was read, where `read_files` listens."""
    listening = _noted.get()
    if listening is not None:
        listening.add(Path(os.path.abspath(path)))


@contextmanager
def read_files() -> Iterator[set[Path]]:
    """Collect the absolute paths of the files that are read meanwhile."""
    files: set[Path] = set()
    token = _noted.set(files)
    try:
        yield files
    finally:
        _noted.reset(token)


@contextmanager
def from_copy(folder: Path, working_directory: str) -> Iterator[None]:
    """Take what a user at *working_directory* names from the copy in *folder* meanwhile."""
    token = _copy.set((folder, working_directory))
    try:
        yield
    finally:
        _copy.reset(token)


def in_copy(folder: Path, path: str | Path) -> Path:
    """Return where the absolute *path* is in the copy in *folder*."""
    return folder / Path(path).relative_to(Path(path).anchor)


def as_written(text: str) -> str:
    """Return *text*, a message, with the paths of the copy as the user would write them."""
    copied = _copy.get()
    if copied is None:
        return text
    folder, working_directory = copied
    return text.replace(f"{in_copy(folder, working_directory)}{os.sep}", "").replace(f"{folder}{os.sep}", os.sep)


def named(name: str) -> Path:
    """Return the path that *name*, as written by the user, stands for."""
    copied = _copy.get()
    if copied is None:
        return Path(name)
    folder, working_directory = copied
    return in_copy(folder, os.path.abspath(os.path.join(working_directory, name)))
