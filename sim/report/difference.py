"""What changed between two runs? Step time, cost and each cause of two documents beside each other, and one sentence."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sim.events import STALLS
from sim.report.columns import Title, aligned
from sim.spec.yaml import SpecError
from sim.units import show

_SAME = ("hardware", "workload", "stack", "nodes", "gpus", "batch_per_gpu", "precision", "version")
_FIGURES = {"step_time_s": "time", "epoch_time_s": "time"}


def read_document(path: Path) -> dict[str, Any]:
    """Return the document of one run that ``sim run --json`` wrote to *path*. Raise SpecError where it is none."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SpecError(f"{path}: cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise SpecError(f"{path}: is no JSON document ({error}); write one with: sim run HW WL --json > {path.name}") from None
    if not isinstance(found, dict) or "stalls_s" not in found or "step_time_s" not in found:
        raise SpecError(f"{path}: is no document of a single run; write one with: sim run HW WL --json > {path.name}")
    return found


def difference(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any]:
    """Return what differs between two documents of runs: inputs, and seconds per step by cause (after - before)."""
    stalls = {cause.value: after["stalls_s"][cause.value] - before["stalls_s"][cause.value] for cause in STALLS}
    changed = {key: [before.get(key), after.get(key)] for key in _SAME if before.get(key) != after.get(key)}
    return {
        "schema": 1,
        "inputs": changed,
        "step_time_s": [before["step_time_s"], after["step_time_s"]],
        "speedup": before["throughput_samples_per_s"] and after["throughput_samples_per_s"] / before["throughput_samples_per_s"],
        "epoch_time_s": [before["epoch_time_s"], after["epoch_time_s"]],
        "cost_per_epoch_usd": [before["cost_per_epoch_usd"], after["cost_per_epoch_usd"]],
        "stalls_s": stalls,
        "cause": max(stalls, key=lambda name: abs(stalls[name])) if any(stalls.values()) else None,
    }


def difference_text(found: Mapping[str, Any], before: Mapping[str, Any], after: Mapping[str, Any]) -> str:
    """Return the table of a difference between *before* and *after*, and its sentence."""
    rows = [
        [name, show(before[name], unit), show(after[name], unit), _signed(after[name] - before[name])] for name, unit in _FIGURES.items()
    ]
    rows += [
        [name, show(before["stalls_s"][name], "time"), show(after["stalls_s"][name], "time"), _signed(seconds)]
        for name, seconds in found["stalls_s"].items()
        if max(before["stalls_s"][name], after["stalls_s"][name]) > 0
    ]
    lines = [f"{key}: {old} -> {new}" for key, (old, new) in found["inputs"].items()]
    table = aligned([Title("", True), Title("before"), Title("after"), Title("change")], rows)
    return "\n".join([*lines, *([""] if lines else []), table, "", _sentence(found)])


def _sentence(found: Mapping[str, Any]) -> str:
    if found["cause"] is None:
        return "The two runs are the same."
    old, new = found["step_time_s"]
    way = "longer" if new > old else "shorter"
    cause = found["cause"]
    return f"A step is {show(abs(new - old), 'time')} {way}; {cause} changed most, by {_signed(found['stalls_s'][cause])}."


def _signed(seconds: float) -> str:
    return "0 s" if not seconds else f"{'+' if seconds > 0 else '-'}{show(abs(seconds), 'time')}"
