"""Which day does a date of a description mean?"""

from __future__ import annotations

import re
from datetime import date
from typing import Final

from sim.spec.yaml import SpecError

_DATE: Final = re.compile(r"(\d{4})(?:-(\d\d))?(?:-(\d\d))?")


def first_day(written: str) -> date:
    """Return the first day that ``2026-05-20``, ``2026-05``, ``2026`` or ``2022-23`` (years) may mean. Raise SpecError for other text."""
    match = _DATE.fullmatch(written)
    year, month, day = (int(part or 1) for part in match.groups()) if match else (0, 0, 0)
    try:
        return date(year, 1 if month > 12 and match and not match[3] else month, day)
    except ValueError:
        raise SpecError(f"{written} is not a date; write YYYY-MM-DD, or YYYY-MM or YYYY where the day is not known") from None
