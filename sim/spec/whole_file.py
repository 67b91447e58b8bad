"""How does a result reach a file? Whole or not at all: written beside its place, then renamed.

A link stays one, and the file that it leads to is replaced; a device or a pipe, such as ``/dev/null``, stays and takes the bytes.
"""

from __future__ import annotations

import os
import time
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from glob import escape
from pathlib import Path
from platform import node
from tempfile import TemporaryDirectory
from typing import Final

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


def is_device(path: Path) -> bool:
    """Tell whether *path* is a device, a pipe or a socket, which takes bytes as they come."""
    return path.exists() and not (path.is_file() or path.is_dir())


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Give a temporary file to write, which becomes *path* when the block ends well. Raise SpecError where it cannot be written."""
    try:
        with _through(path) if is_device(path) else _beside(Path(os.path.realpath(path))) as temporary:
            yield temporary
    except OSError as error:
        raise SpecError(f"{path}: cannot be written: {error.strerror}") from None


@contextmanager
def _through(device: Path) -> Iterator[Path]:
    """Give a temporary file, whose bytes *device* takes in the end."""
    with TemporaryDirectory() as folder:
        temporary = Path(folder) / device.name
        yield temporary
        device.write_bytes(temporary.read_bytes())


@contextmanager
def _beside(place: Path) -> Iterator[Path]:
    """Give a temporary file of the same folder and ending, which is *place* in the end."""
    _remove_leftovers(place)
    temporary = place.with_name(f".{place.stem}.{_HOST}.{os.getpid()}.part{place.suffix}")
    try:
        yield temporary
        temporary.replace(place)
    finally:
        with suppress(OSError):  # renamed, or its folder is none
            temporary.unlink()


_HOST: Final = f"{zlib.crc32(node().encode()):08x}"
_DAY: Final = 86_400.0


def _remove_leftovers(path: Path) -> None:
    """Remove what a process that was killed while it wrote *path* left: of this host when the process is gone, of others after a day."""
    for left in path.parent.glob(f".{escape(path.stem)}.*.part{escape(path.suffix)}"):
        *_, host, process, _ = left.name.removesuffix(path.suffix).split(".")
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
