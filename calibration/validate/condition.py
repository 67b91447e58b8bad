"""When does ``validate --fail-if`` fail? If a condition such as ``overall.calibrated.median>0.1`` holds for the document.

A condition is checked before anything is computed: its key must exist in the *empty* document of a validation without rows, which has all
scores: those of data-parallel runs and of transformer runs differ.
Limits: entries of lists (``sources``, ``clusters``) have no keys.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from operator import ge, gt, le, lt
from typing import Any, Final, NamedTuple

from sim.spec.yaml import SpecError

_SIGNS: Final[Mapping[str, Callable[[float, float], bool]]] = {">=": ge, "<=": le, ">": gt, "<": lt}
"""Longer signs first, because they contain the shorter ones."""


class Condition(NamedTuple):
    """A bound on one number in the document of a validation, and the *text* from which it was parsed."""

    text: str
    key: str
    sign: str
    bound: float

    def holds(self, document: Mapping[str, Any]) -> bool:
        """Return whether *document* meets the condition. Raise SpecError if the number is blank because no row was scored."""
        value = _lookup(document, self.key, self.text)
        if value is None:
            raise SpecError(f"--fail-if {self.text}: {self.key} has no value: no row was scored")
        return _SIGNS[self.sign](value, self.bound)


def read_condition(text: str, empty: Mapping[str, Any]) -> Condition:
    """Parse the condition *text*. Raise SpecError if it is invalid or does not name a number of the *empty* document."""
    sign = next((sign for sign in _SIGNS if sign in text), None)
    if sign is None:
        raise SpecError(f"--fail-if {text}: write KEY>NUMBER or KEY<NUMBER, for example overall.calibrated.median>0.1")
    key, limit = (part.strip() for part in text.split(sign, 1))
    try:
        bound = float(limit)
    except ValueError:
        bound = math.nan
    if not math.isfinite(bound):
        raise SpecError(f"--fail-if {text}: '{limit}' is not a number; write KEY{sign}NUMBER, for example overall.calibrated.median>0.1")
    _lookup(empty, key, text)
    return Condition(text, key, sign, bound)


def _lookup(document: Mapping[str, Any], key: str, text: str) -> float | None:
    """Return the number of *document* at the path *key*. Raise SpecError if there is none."""
    value: Any = document
    for step in key.split("."):
        if not isinstance(value, Mapping) or step not in value:
            keys = ", ".join(value) if isinstance(value, Mapping) else "none"
            raise SpecError(f"--fail-if {text}: there is no '{step}'; keys here: {keys}")
        value = value[step]
    if isinstance(value, Mapping | list | str):
        further = f"; append one of {', '.join(value)}" if isinstance(value, Mapping) else ""
        raise SpecError(f"--fail-if {text}: {key} is not a number{further}")
    return None if value is None else float(value)
