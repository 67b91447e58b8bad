"""How is a result written to a file? Atomically: to a temporary file in the same folder, which is then renamed.

A symbolic link is kept, and its target is replaced; a device or a pipe, such as ``/dev/null``, receives the bytes.
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
    """Write *contents* (name to text or bytes) into *folder*, which is created if needed. Raise SpecError if that fails."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SpecError(f"{folder}: cannot be written: {error.strerror}") from None
    for name, content in contents.items():
        write_file(folder / name, content)


def write_file(path: Path, content: str | bytes) -> None:
    """Write *content* to *path*; an existing file is unchanged until all of it is written."""
    with replacement_file(path) as temporary:
        temporary.write_bytes(content.encode() if isinstance(content, str) else content)


def is_device(path: Path) -> bool:
    """Return whether *path* is a device, a pipe or a socket, which cannot be replaced by renaming."""
    return path.exists() and not (path.is_file() or path.is_dir())


@contextmanager
def replacement_file(path: Path) -> Iterator[Path]:
    """Provide a temporary file that becomes *path* if the block succeeds. Raise SpecError if it cannot be written."""
    try:
        with _temporary_for_device(path) if is_device(path) else _temporary_sibling(Path(os.path.realpath(path))) as temporary:
            yield temporary
    except OSError as error:
        raise SpecError(f"{path}: cannot be written: {error.strerror}") from None


@contextmanager
def _temporary_for_device(device: Path) -> Iterator[Path]:
    """Provide a temporary file whose content is written to *device* at the end."""
    with TemporaryDirectory() as folder:
        temporary = Path(folder) / device.name
        yield temporary
        device.write_bytes(temporary.read_bytes())


@contextmanager
def _temporary_sibling(place: Path) -> Iterator[Path]:
    """Provide a temporary file in the same folder and with the same suffix, which is renamed to *place* at the end."""
    _remove_leftovers(place)
    temporary = place.with_name(f".{place.stem}.{_HOST}.{os.getpid()}.part{place.suffix}")
    try:
        yield temporary
        temporary.replace(place)
    finally:
        with suppress(OSError):  # already renamed, or its folder does not exist
            temporary.unlink()


_HOST: Final = f"{zlib.crc32(node().encode()):08x}"
_DAY: Final = 86_400.0


def _remove_leftovers(path: Path) -> None:
    """Remove temporary files of killed processes that wrote *path*: on this host if the process is gone, from other hosts after a day."""
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
