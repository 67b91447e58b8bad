"""Which options does a command line have, plain or inside a shell script? Options by name, with the values of the script's variables."""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final

from sim.spec.foreign.launch_variables import is_unread, sets, shown, with_values
from sim.spec.strict import whole_number
from sim.spec.yaml import SpecError

_NOTHING: Final[Mapping[str, str]] = {}


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


def arguments(text: str, place: str, numeric: Collection[str], environment: Mapping[str, str] = _NOTHING) -> dict[str, str]:
    """Return the options of *text* by name, with the values of variables, its own and those of the *environment*.

    Raise SpecError if one of *numeric* has a variable or an expression that cannot be read.
    """
    plain = with_values(text, environment)
    try:
        words = shlex.split(plain.replace("(", " ").replace(")", " ").replace('"', " ").replace("'", " "))
    except ValueError as error:
        raise SpecError(f"{place}: cannot be parsed as arguments: {error}") from None
    options: dict[str, str] = {}
    for index, word in enumerate(words):
        if word.startswith("--"):
            name, equals, value = word[2:].partition("=")
            after = words[index + 1] if index + 1 < len(words) else ""
            options[name.replace("_", "-")] = shown(value if equals else "" if after.startswith("--") else after)
    for name, value in options.items():
        if name in numeric and is_unread(value):
            raise unread_number(name, value, text, place)
    return options


def unread_number(name: str, value: str, text: str, place: str) -> SpecError:
    """Return the error for the option *name* of the script *text*, whose *value* has an expansion that cannot be read."""
    variable = re.fullmatch(r"\$\{?([A-Za-z_]\w*)\}?", value)
    if variable and not sets(text, variable[1]):
        return SpecError(f"{place}: --{name} {value[:80]}: the script does not set this variable; replace it by a number")
    return SpecError(f"{place}: --{name} {value[:80]}: its value cannot be read from the script; replace it by a number")
