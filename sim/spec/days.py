"""Which day does a date of a description mean, and how long ago is that?"""

from __future__ import annotations

import os
import re
from datetime import UTC, date, datetime
from typing import Final

from sim.spec.yaml import SpecError

_DATE: Final = re.compile(r"(\d{4})(?:-(\d\d))?(?:-(\d\d))?")


STALE: Final = 90
"""Days after which a price is marked as old: clouds changed theirs twice a year in 2023-26, spot prices within weeks."""
TODAY: Final = "STALLSIM_TODAY"
"""Environment variable with the day from which ages are counted; the clock's without it."""


def today() -> date:
    """Return the day from which ages are counted. Raise SpecError where `TODAY` holds no date."""
    given = os.environ.get(TODAY)
    return first_day(given) if given else datetime.now(UTC).date()


def stale(written: str) -> bool:
    """Tell whether a price of that date is more than `STALE` days old; one without a date is not known to be."""
    return bool(written) and (today() - first_day(written)).days > STALE


def first_day(written: str) -> date:
    """Return the first day that ``2026-05-20``, ``2026-05``, ``2026`` or ``2022-23`` (years) may mean. Raise SpecError for other text."""
    match = _DATE.fullmatch(written)
    year, month, day = (int(part or 1) for part in match.groups()) if match else (0, 0, 0)
    try:
        return date(year, 1 if month > 12 and match and not match[3] else month, day)
    except ValueError:
        raise SpecError(f"{written} is not a date; write YYYY-MM-DD, or YYYY-MM or YYYY where the day is not known") from None
