"""How is a new description written to a file? Only after it has loaded without errors; messages name the intended file."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Final, TypeVar

from sim.spec.whole_file import replacement_file
from sim.spec.yaml import SpecError

NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,99}")
"""Names of new descriptions: they become names of files, and stand in commands without quotes."""

Content = TypeVar("Content")


def for_editors(kind: str) -> list[str]:
    """Return comments with which editors with a YAML language server find the schema of a *kind* of description next to it."""
    folder = "schemas"
    return [
        f"# yaml-language-server: $schema={folder}/{kind}.schema.json",
        f"# (for editors: 'python -m sim schema -o {folder}' writes that file; keys are then completed and checked as you type)",
    ]


def write_new(output: Path, text: str, load: Callable[[str], Content]) -> Content:
    """Write *text* to *output* and return the result of *load* for its path. Raise SpecError, and write nothing, if it does not load."""
    with replacement_file(output) as temporary:
        output.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_text(text, encoding="utf-8")
        try:
            return load(str(temporary.absolute()))
        except SpecError as error:
            raise SpecError([problem.replace(str(temporary.absolute()), str(output)) for problem in error.problems]) from None
