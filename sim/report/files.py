"""How does a result reach a file? Whole or not at all: written beside its place, then renamed."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryFile

from sim.spec.yaml import SpecError


def write_files(folder: Path, contents: Mapping[str, str | bytes]) -> None:
    """Write *contents* (name to text or bytes) into *folder*, which is made if needed. Raise SpecError where that fails."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SpecError(f"{folder}: cannot be written: {error.strerror}") from None
    for name, content in contents.items():
        write_file(folder / name, content)


def write_file(path: Path, content: str | bytes) -> None:
    """Write *content* to *path*; an earlier file stays as it was until all of it is written."""
    with replacing(path) as temporary:
        temporary.write_bytes(content.encode() if isinstance(content, str) else content)


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Give a temporary file to write, which becomes *path* when the block ends well. Raise SpecError where it cannot be written."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        yield temporary
        temporary.replace(path)
    except OSError as error:
        raise SpecError(f"{path}: cannot be written: {error.strerror}") from None
    finally:
        with suppress(OSError):
            temporary.unlink()


def file_due(path: Path | None) -> Path | None:
    """Return *path*, where a file can be written. Raise SpecError otherwise, before anything is computed for it."""
    if path is not None and path.is_dir():
        raise SpecError(f"{path}: is a folder; a file is due here, such as {path / 'result.html'}")
    if path is not None:
        _folder_of(path, path.parent)
    return path


def folder_due(path: Path | None) -> Path | None:
    """Return *path*, a folder that files can be written into, or that can be made. Raise SpecError otherwise."""
    if path is not None and path.exists() and not path.is_dir():
        raise SpecError(f"{path}: is a file; a folder is due here")
    if path is not None:
        _folder_of(path, next(parent for parent in (path, *path.absolute().parents) if parent.exists()))
    return path


def _folder_of(path: Path, folder: Path) -> None:
    if not folder.exists():
        raise SpecError(f"{path}: cannot be written: there is no folder {folder}; make it first")
    if not folder.is_dir():
        raise SpecError(f"{path}: cannot be written: {folder} is a file")
    if not os.access(folder, os.W_OK | os.X_OK) or not _takes_files(folder):
        raise SpecError(f"{path}: cannot be written: nothing may be written into {folder}")


def _takes_files(folder: Path) -> bool:
    """Return whether a file can be made in *folder*: some, such as /proc, take none whatever their rights say."""
    try:
        TemporaryFile(dir=folder).close()
    except OSError:
        return False
    return True
