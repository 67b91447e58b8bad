"""How long may a job be? The largest lengths that options accept; beyond them a typing error is likelier than a job."""

from __future__ import annotations

import math
from typing import Final

from sim.spec.yaml import SpecError

LARGEST: Final = {"--epochs": 1e6, "--hours": 24 * 36_500.0, "--days": 36_500.0, "--steps": 1e12}
"""Upper limits of the options for a job's length: a hundred years, or as many epochs or steps as no job trains."""
MOST_TOKENS: Final = 1e18
"""Upper limit of ``--tokens``."""


def require_length(option: str, value: float | None) -> None:
    """Raise SpecError unless *value* of *option* is None, or a finite number above 0 and at most the limit in `LARGEST`, if any."""
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise SpecError(f"{option} {value!r}: write a number above 0")
    if not value > 0:
        raise SpecError(f"{option} {value:g}: write more than 0")
    most = LARGEST.get(option, math.inf)
    if value > most:
        raise SpecError(f"{option} {value:g}: write {most:,.0f} or less")
    if math.isinf(value):
        raise SpecError(f"{option} {value:g}: write a finite number")
