"""How does a new description get into a file? Only once it has proved to load; a problem names the file it was meant for."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from sim.spec.yaml import SpecError

Made = TypeVar("Made")


def for_editors(kind: str) -> list[str]:
    """Return the comments by which editors with a YAML language server find the schema of a *kind* of description beside it."""
    folder = "schemas"
    return [
        f"# yaml-language-server: $schema={folder}/{kind}.schema.json",
        f"# (for editors: 'python -m sim schema -o {folder}' writes that file, and keys are completed and checked while you type)",
    ]


def write_new(output: Path, text: str, load: Callable[[str], Made]) -> Made:
    """Write *text* to *output* and return what *load* makes of its path. Raise SpecError, with nothing written, where it makes nothing."""
    temporary = output.with_name(f".{output.stem}.{os.getpid()}.part.yaml")
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_text(text, encoding="utf-8")
        made = load(str(temporary.absolute()))
        temporary.replace(output)
    except OSError as error:
        raise SpecError(f"{output}: cannot be written: {error.strerror}") from None
    except SpecError as error:
        raise SpecError([problem.replace(str(temporary.absolute()), str(output)) for problem in error.problems]) from None
    finally:
        with suppress(OSError):  # gone already, or its folder is none
            temporary.unlink()
    return made
