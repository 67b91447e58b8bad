"""Which options does a command line have, plain or inside a shell script? Options by name, with the script's variables substituted.

Limits: only variables that one line sets to a plain value are substituted.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final

from sim.spec.strict import whole_number
from sim.spec.yaml import SpecError

_ASSIGNMENT: Final = re.compile(r"^\s*(?:export\s+)?([A-Za-z_]\w*)=[\"']?([^\s\"'$()]+)[\"']?\s*$", re.MULTILINE)
_VARIABLE: Final = re.compile(r"\$\{?([A-Za-z_]\w*)(?::-([^}]*))?\}?")


@dataclass(frozen=True)
class Arguments:
    """Options by name, without leading dashes; *place* is the name of their file in messages."""

    values: Mapping[str, str]
    place: str

    def number(self, name: str, default: int | None = None) -> int | None:
        """Return a whole number, or *default* if the option is missing."""
        value = self.values.get(name)
        if value is None:
            return default
        number = whole_number(value)
        if number is None:
            raise SpecError(f"{self.place}: --{name} {value[:40]}: write a whole number")
        return number

    def figure(self, name: str, default: float, least: float | None = None) -> float:
        """Return a number of *least* or more (None: above zero), or *default*, which is Megatron-LM's, if the option is missing."""
        value = self.values.get(name, str(default))
        try:
            number = float(value)
        except ValueError:
            number = -1.0
        if not (number > 0.0 if least is None else number >= least) or number == float("inf"):
            what = "above zero" if least is None else f"of {least:g} or more"
            raise SpecError(f"{self.place}: --{name} {value[:40]}: write a number {what}")
        return number


def arguments(text: str, place: str, numeric: Collection[str]) -> dict[str, str]:
    """Return the options of *text* by name, with variables substituted. Raise SpecError if one of *numeric* has an unknown variable."""
    values = dict(_ASSIGNMENT.findall(text))
    plain = re.sub(r"(^|\s)#.*", r"\1", text.replace("\\\n", " "), flags=re.MULTILINE)
    plain = _VARIABLE.sub(lambda match: str(values.get(match[1], match[2] or match[0])), plain)
    try:
        words = shlex.split(plain.replace("(", " ").replace(")", " ").replace('"', " ").replace("'", " "))
    except ValueError as error:
        raise SpecError(f"{place}: cannot be parsed as arguments: {error}") from None
    options: dict[str, str] = {}
    for index, word in enumerate(words):
        if word.startswith("--"):
            name, equals, value = word[2:].partition("=")
            after = words[index + 1] if index + 1 < len(words) else ""
            options[name.replace("_", "-")] = value if equals else "" if after.startswith("--") else after
    unknown = next((f"--{name} {value}" for name, value in options.items() if value.startswith("$") and name in numeric), None)
    if unknown:
        raise SpecError(f"{place}: {unknown}: the script does not set this variable; replace it by a number")
    return options
