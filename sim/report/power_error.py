"""How far off may the power of a run be? The errors of predictions for measured nodes, or GPUs, of the same kind.

``make validated`` writes ``hardware/validated_power.json`` from the measured powers that come with `calibration`: nodes of MLPerf, metered
at the wall, and single GPUs of Zeus. No constant of the power model was fitted to these rows. Energy and CO2 are power times time, so their
error is also that of the step; no energy of a whole run was compared. Other GPUs, and fewer than five rows, have no expected error.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Final

from sim.report.validated import spread_text, validated_groups

SUMMARY: Final = "hardware/validated_power.json"
_OF: Final = {"node_power_w": "node power", "gpu_power_w": "GPU power"}


def power_error(gpus: Collection[str], by_kernel: bool) -> dict[str, Any] | None:
    """Return the expected error (fractions) of the power of a run on *gpus*, or None if the power of these was not measured.

    *by_kernel*: whether the run's kernels are known, as in the measured runs.
    """
    if len(gpus) != 1 or not by_kernel:
        return None
    (gpu,) = gpus
    measured = validated_groups(SUMMARY).get(gpu)
    return None if measured is None else {"gpu": gpu, **measured}


def brief_power_error(error: Mapping[str, Any] | None) -> str:
    """Return a clause on the expected *error* of the power in a document."""
    if error is None:
        return "error unknown: no run like this one was measured"
    return f"error of {_OF[error['of']]}: {spread_text(error)}, {error['points']} runs of {', '.join(error['sources'])}"


def power_error_text(error: Mapping[str, Any] | None) -> str:
    """Return a sentence on the expected *error* of the power in a document, and on that of energy."""
    text = brief_power_error(error)
    return f"{text[0].upper()}{text[1:]}. Energy and CO2 are power times time, so the error of the step adds to theirs."
