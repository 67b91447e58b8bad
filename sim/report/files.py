"""How does a result reach a file? Whole or not at all: written beside its place, then renamed."""

from __future__ import annotations

import os
import time
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from glob import escape
from pathlib import Path
from platform import node
from tempfile import TemporaryDirectory, TemporaryFile
from typing import Final

from sim.spec.yaml import SpecError

MADE_BY: Final[ContextVar[str]] = ContextVar("made_by", default="")
"""The command that runs now, for what it writes to say; empty where no command does."""


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
    """Give a temporary file to write, which becomes *path* when the block ends well. Raise SpecError where it cannot be written.

    A device or a pipe (/dev/null, /dev/stdout) gets its content; a link stays, and what it leads to is replaced.
    """
    if _streams(path):
        with TemporaryDirectory() as folder:
            temporary = Path(folder) / "content"
            yield temporary
            try:
                path.write_bytes(temporary.read_bytes())
            except OSError as error:
                raise SpecError(f"{path}: cannot be written: {error.strerror}") from None
        return
    path = path.resolve() if path.is_symlink() else path
    _remove_leftovers(path)
    temporary = path.with_name(f".{path.name}.{_HOST}.{os.getpid()}.part")
    try:
        yield temporary
        temporary.replace(path)
    except OSError as error:
        raise SpecError(f"{path}: cannot be written: {error.strerror}") from None
    finally:
        with suppress(OSError):
            temporary.unlink()


def _streams(path: Path) -> bool:
    """Return whether *path* is there and neither a file nor a folder: a device, a pipe, a socket."""
    return path.exists() and not path.is_file() and not path.is_dir()


_HOST: Final = f"{zlib.crc32(node().encode()):08x}"
_DAY: Final = 86_400.0


def _remove_leftovers(path: Path) -> None:
    """Remove what a process that was killed while it wrote *path* left: of this host when the process is gone, of others after a day."""
    for left in path.parent.glob(f".{escape(path.name)}.*.part"):
        *_, host, process, _ = left.name.split(".")
        with suppress(OSError):
            if (host == _HOST and not _runs(process)) or time.time() - left.stat().st_mtime > _DAY:
                left.unlink()


def _runs(process: str) -> bool:
    try:
        os.kill(int(process), 0)
    except (ProcessLookupError, ValueError, OverflowError):
        return False
    except PermissionError:
        return True
    return True


def file_due(path: Path | None) -> Path | None:
    """Return *path*, where a file can be written. Raise SpecError otherwise, before anything is computed for it."""
    return _writable(path, ".html")


def _writable(path: Path | None, ending: str) -> Path | None:
    """Return *path*, where a file can be written; an example for a folder has *ending*."""
    if path is not None and path.is_dir():
        raise SpecError(f"{path}: is a folder; expected a file, such as {path / f'result{ending}'}")
    if path is not None and not _streams(path):
        _folder_of(path, path.parent)
    return path


def page_due(path: Path | None) -> Path | None:
    """Return *path*, where an HTML page can be written. Raise SpecError otherwise, before anything is computed for it."""
    return _ending(path, (".html", ".htm"), "an HTML page")


def yaml_due(path: Path | None) -> Path | None:
    """Return *path*, where a YAML file can be written. Raise SpecError otherwise, before anything is computed for it."""
    return _ending(path, (".yaml", ".yml"), "a YAML file")


def csv_due(path: Path | None) -> Path | None:
    """Return *path*, where a CSV file can be written. Raise SpecError otherwise, before anything is computed for it."""
    return _ending(path, (".csv",), "a CSV file")


def _ending(path: Path | None, endings: Sequence[str], what: str) -> Path | None:
    """Return *path*, where a file can be written whose name ends in one of *endings*, because it is *what*."""
    file = _writable(path, endings[0])
    if file is not None and file.suffix.lower() not in endings:
        raise SpecError(f"{file}: {what} is written here; expected a name that ends in {endings[0]}, such as {named(file, endings[0])}")
    return file


def named(path: Path, ending: str) -> Path:
    """Return *path* with *ending* in place of its own, or with a name where it has none."""
    return path.with_suffix(ending) if path.name else path / f"result{ending}"


_FILES: Final = (".html", ".htm", ".pdf", ".json", ".gz", ".csv", ".parquet", ".txt", ".md", ".png", ".svg", ".yaml", ".yml")
"""Endings of names that are meant as files."""


def folder_due(path: Path | None) -> Path | None:
    """Return *path*, a folder that files can be written into, or that can be made. Raise SpecError otherwise."""
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
        raise SpecError(f"{path}: cannot be written: nothing may be written into {folder}")


def _takes_files(folder: Path) -> bool:
    """Return whether a file can be made in *folder*: some, such as /proc, take none whatever their rights say."""
    try:
        TemporaryFile(dir=folder).close()
    except OSError:
        return False
    return True
