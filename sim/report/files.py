"""Where may a result be written, and is there a folder to read? Paths are checked before the result is computed."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextvars import ContextVar
from pathlib import Path
from tempfile import TemporaryFile
from typing import Final

from sim.spec.whole_file import is_device
from sim.spec.yaml import SpecError

MADE_BY: Final[ContextVar[str]] = ContextVar("made_by", default="")
"""The running command, which is recorded in the pages it writes; empty if there is none."""


TRACE: Final[ContextVar[str]] = ContextVar("trace", default="")
"""The trace that the running command has written, to which its pages refer; empty if there is none."""


def file_due(path: Path | None) -> Path | None:
    """Return *path* if a file can be written there. Raise SpecError otherwise, before anything is computed."""
    return _writable(path, ".html")


def _writable(path: Path | None, ending: str) -> Path | None:
    """Return *path* if a file can be written there; *ending* is that of the example in the error for a folder."""
    if path is not None and path.is_dir():
        raise SpecError(f"{path}: is a folder; expected a file, such as {path / f'result{ending}'}")
    if path is not None and not is_device(path):
        _folder_of(path, path.parent)
    return path


def table_due(path: Path | None) -> Path | None:
    """Return *path* if a table can be written there. Raise SpecError otherwise, before anything is computed."""
    return _writable(path, ".csv")


def page_due(path: Path | None) -> Path | None:
    """Return *path* if an HTML page can be written there. Raise SpecError otherwise, before anything is computed."""
    return _ending(path, (".html", ".htm"), "an HTML page")


def yaml_due(path: Path | None) -> Path | None:
    """Return *path* if a YAML file can be written there. Raise SpecError otherwise, before anything is computed."""
    return _ending(path, (".yaml", ".yml"), "a YAML file")


def csv_due(path: Path | None) -> Path | None:
    """Return *path* if a CSV file can be written there. Raise SpecError otherwise, before anything is computed."""
    return _ending(path, (".csv",), "a CSV file")


def _ending(path: Path | None, endings: Sequence[str], what: str) -> Path | None:
    """Return *path* if a file can be written there and its name has one of *endings*; *what* names the kind of file in errors."""
    file = _writable(path, endings[0])
    if file is not None and file.suffix.lower() not in endings:
        raise SpecError(
            f"{file}: {what} is written here; expected a name that ends in {endings[0]}, such as {with_ending(file, endings[0])}"
        )
    return file


def with_ending(path: Path, ending: str) -> Path:
    """Return *path* with *ending* in place of its own; if it has no file name, add one."""
    return path.with_suffix(ending) if path.name else path / f"result{ending}"


_FILES: Final = (".html", ".htm", ".pdf", ".json", ".gz", ".csv", ".parquet", ".txt", ".md", ".png", ".svg", ".yaml", ".yml")
"""Endings by which a name is taken for a file's, not a folder's."""


def folder_there(path: Path | None) -> Path | None:
    """Return *path* if it is a folder. Raise SpecError otherwise."""
    if path is not None and not path.is_dir():
        raise SpecError(f"{path}: is a file; expected a folder" if path.exists() else f"{path}: no such folder")
    return path


def folder_due(path: Path | None) -> Path | None:
    """Return *path* if it is a folder that files can be written into, or that can be created. Raise SpecError otherwise."""
    if path is not None and path.exists() and not path.is_dir():
        raise SpecError(f"{path}: is a file; expected a folder")
    if path is not None and path.suffix.lower() in _FILES and not path.exists():
        page = f"; one HTML page is written by --html {path}" if path.suffix.lower() in (".html", ".htm") else ""
        raise SpecError(f"{path}: several files are written here; expected the name of a folder, such as {path.with_suffix('')}{page}")
    if path is not None:
        _folder_of(path, next(parent for parent in (path, *path.absolute().parents) if parent.exists()))
    return path


def _folder_of(path: Path, folder: Path) -> None:
    if not folder.exists():
        raise SpecError(f"{path}: cannot be written: there is no folder {folder}; make it first")
    if not folder.is_dir():
        raise SpecError(f"{path}: cannot be written: {folder} is a file")
    if not os.access(folder, os.W_OK | os.X_OK) or not _takes_files(folder):
        raise SpecError(f"{path}: cannot be written: files cannot be created in {folder}")


def _takes_files(folder: Path) -> bool:
    """Return whether a file can be created in *folder*: some, such as /proc, accept none whatever their permissions."""
    try:
        TemporaryFile(dir=folder).close()
    except OSError:
        return False
    return True
