"""Which day does a date in a description mean, and how long ago was it?"""

from __future__ import annotations

import os
import re
from datetime import UTC, date, datetime
from typing import Final

from sim.spec.yaml import SpecError

_DATE: Final = re.compile(r"(\d{4})(?:-(\d\d))?(?:-(\d\d))?")


STALE_DAYS: Final = 90
"""Days after which a price is marked as old: clouds changed their prices twice a year in 2023-26, and spot prices within weeks."""
TODAY: Final = "STALLSIM_TODAY"
"""Environment variable with the day from which ages are counted; if unset, today's date is used."""


def today() -> date:
    """Return the day from which ages are counted. Raise SpecError if `TODAY` is set to something other than a date."""
    date_text = os.environ.get(TODAY)
    return first_day(date_text) if date_text else datetime.now(UTC).date()


def is_stale(written: str) -> bool:
    """Return whether a price with the date *written* is more than `STALE_DAYS` days old; False for a price without a date."""
    return bool(written) and (today() - first_day(written)).days > STALE_DAYS


def is_future(written: str, day: date | None = None) -> bool:
    """Return whether the date *written* is after *day* (today by default) in every time zone; False without a date."""
    return bool(written) and (first_day(written) - (day or today())).days > 1


def first_day(written: str) -> date:
    """Return the first day of ``2026-05-20``, ``2026-05``, ``2026`` or ``2022-23`` (years). Raise SpecError for any other text."""
    match = _DATE.fullmatch(written)
    year, month, day = (int(part or 1) for part in match.groups()) if match else (0, 0, 0)
    try:
        return date(year, 1 if month > 12 and match and not match[3] else month, day)
    except ValueError:
        raise SpecError(f"{written} is not a date; write YYYY-MM-DD, or YYYY-MM or YYYY if the day is unknown") from None
