"""How far off may the peak memory of a layout be? The errors of predictions for measured runs of the same framework.

``make validated`` writes them to the part ``memory`` of ``hardware/validated_llm.json``. Frameworks without measured runs have none.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sim.report.layouts.layout_error import SUMMARY
from sim.report.validated import spread_text, validated_part


def memory_error(framework: str) -> dict[str, Any] | None:
    """Return the expected error (fractions) of the peak memory under *framework*, or None if no run of it was measured."""
    measured: Mapping[str, Any] | None = validated_part("memory", SUMMARY).get(framework)
    return None if measured is None else {"framework": framework, **measured}


def memory_error_text(error: Mapping[str, Any] | None) -> str:
    """Return a clause on the expected *error* of memory in a document."""
    if error is None:
        return "error unknown: no measured run of this framework"
    return f"expected error: {spread_text(error)}, {error['points']} measured runs of {', '.join(error['sources'])}"
