"""How is a figure written on a page? As text with its unit, and with as many digits as a reader needs."""

from __future__ import annotations

import re

from sim.report.energy import kwh_text
from sim.units import dollars, rate_text, rounded_dollars, show


def unbroken(text: str) -> str:
    """Return *text* with numbers and their units, and counts of machines, kept on one line."""
    return re.sub(r"(?<=\d) x (?=\w)", "\u00a0x\u00a0", re.sub(r"(?<=\d) (?=samples|[mµu]?s\b|min\b|h\b|[KMGT]i?B)", "\u00a0", text))


def as_time(seconds: float) -> str:
    """Return *seconds* as text."""
    return show(seconds, "time")


def as_signed_time(seconds: float) -> str:
    """Return a difference of *seconds* as text with its sign."""
    return f"{'+' if seconds > 0 else '-'}{as_time(abs(seconds))}"


def as_money(usd: float) -> str:
    """Return a predicted amount of *usd* as text."""
    return f"${rounded_dollars(usd)}"


def as_price(usd_per_hour: float) -> str:
    """Return *usd_per_hour* as text."""
    return f"${dollars(usd_per_hour)}/h"


def as_rate(per_second: float) -> str:
    """Return samples per second as text."""
    return f"{rate_text(per_second)} samples/s"


def as_memory(nbytes: float) -> str:
    """Return *nbytes* as text."""
    return show(nbytes, "binary size")


def as_bandwidth(rate: float) -> str:
    """Return *rate* (bytes/s) as text."""
    return show(rate, "bandwidth")


def as_percent(share: float) -> str:
    """Return a *share* (0..1) as a percentage."""
    return f"{100 * share:.0f}%"


def as_precise_percent(share: float) -> str:
    """Return a *share* (0..1) as a percentage with one decimal."""
    return f"{100 * share:.1f}%"


def as_number(value: float) -> str:
    """Return a count as text."""
    return f"{value:,.0f}"


def as_expected(number: float) -> str:
    """Return an expected *number* of events as text; small numbers are not rounded to 0."""
    return as_number(number) if number >= 10 else f"{number:.2g}"


def as_tenths(value: float) -> str:
    """Return *value* with one decimal."""
    return f"{value:.1f}"


def as_plain(value: float) -> str:
    """Return *value* with as many digits as it needs."""
    return f"{value:,g}"


def as_energy(kwh: float) -> str:
    """Return *kwh* as text."""
    return kwh_text(kwh)


def as_carbon(kilograms: float) -> str:
    """Return *kilograms* of CO2 as text."""
    return show(kilograms, "mass")
