"""How large were the errors of predictions for measured runs? By group of runs, from the summaries that come with the catalog."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from typing import Any, NotRequired, TypedDict

from sim.spec.catalog import roots

SUMMARY = "hardware/validated.json"


class MeasuredRange(TypedDict):
    """The central 95% of measured steps, as multiples of the predicted step."""

    low: float
    high: float


class ExpectedError(TypedDict):
    """``expected_error`` of documents: errors of predictions for similar measured runs, as fractions of the measured step."""

    median: float
    p90: float
    basis: str
    """Which runs, how many and from where, then whether this run is within what was measured."""
    extrapolates: bool
    beyond: list[str]
    """In what this run is beyond those runs, most important first; empty unless it extrapolates."""
    measured_over_predicted_95: MeasuredRange
    for_new_source: NotRequired[bool]
    """Whether the range holds for a cluster that was not measured."""
    not_validated: NotRequired[list[str]]
    """What of this run no measured run has."""


def validated_groups(summary: str = SUMMARY) -> Mapping[str, Mapping[str, Any]]:
    """Return the errors by group of runs from the file *summary* of the catalog; empty if there is no such file."""
    groups: Mapping[str, Mapping[str, Any]] = validated_part("groups", summary)
    return groups


def spread_text(error: Mapping[str, Any]) -> str:
    """Return a clause on the median and the 90th percentile of *error*, which are fractions."""
    return f"median {100 * error['median']:.0f}%, one in ten above {100 * error['p90']:.0f}%"


def validated_part(part: str, summary: str) -> Any:
    """Return the *part* of the file *summary* of the catalog; an empty mapping if there is no such file or part."""
    return _document(summary).get(part, {})


@cache
def _document(summary: str) -> dict[str, Any]:
    for root in roots():
        path = root / summary
        if path.is_file():
            document: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
            return document
    return {}
