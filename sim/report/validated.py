"""How large were the errors of predictions for measured runs? By group of runs, from the summaries that come with the catalogue."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from typing import Any

from sim.spec.catalogue import roots

SUMMARY = "hardware/validated.json"


def validated_groups(summary: str = SUMMARY) -> Mapping[str, Mapping[str, Any]]:
    """Return the errors by group of runs from the file *summary* of the catalogue; empty if there is no such file."""
    return validated_part("groups", summary)


def spread_text(error: Mapping[str, Any]) -> str:
    """Return a clause on the median and the 90th percentile of *error*, which are fractions."""
    return f"median {100 * error['median']:.0f}%, one in ten above {100 * error['p90']:.0f}%"


def validated_part(part: str, summary: str = SUMMARY) -> Mapping[str, Any]:
    """Return the *part* of the file *summary* of the catalogue; empty if there is no such file or part."""
    content: Mapping[str, Any] = _document(summary).get(part, {})
    return content


@cache
def _document(summary: str) -> dict[str, Any]:
    for root in roots():
        path = root / summary
        if path.is_file():
            document: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
            return document
    return {}
