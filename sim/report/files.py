"""How does a result reach a file? Whole or not at all: written beside its place, then renamed."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

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
    temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        temporary.write_bytes(content.encode() if isinstance(content, str) else content)
        temporary.replace(path)
    except OSError as error:
        with suppress(OSError):
            temporary.unlink()
        raise SpecError(f"{path}: cannot be written: {error.strerror}") from None
