"""How is a sweep documented? Its points (as numbers if they are numeric), the figures of each, and the influence of each field."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import Any

from sim import __version__
from sim.events import LAYOUT_STALLS, STALLS
from sim.study.scenario import Scenario
from sim.units import pluralized

MOST = 2000
"""Maximum number of points in a document; of a longer sweep it has an evenly spaced selection."""
_NUMBER = re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?")
_SHARED_INPUTS = "Inputs are those of the first point. Other points differ only in the varied fields. Epoch times are for warm epochs."
_OPTIONS = ("nodes", "gpus", "placement", "batch", "global_batch", "precision", "stack")
_KEPT = ("step_time_s", "throughput_samples_per_s", "epoch_time_s", "cost_per_epoch_usd")


def sweep_document(
    scenario: Scenario,
    rows: Iterable[Mapping[str, Any]],
    varied: Sequence[str],
    points: int,
    inputs: Mapping[str, str],
    prices: Sequence[Mapping[str, Any]] = (),
) -> dict[str, Any]:
    """Return the JSON document of a sweep of *points* points over the *varied* fields, from the *rows* of `sim.study.sweep`.

    *inputs* are the SHA-256 of the descriptions that the points share, and *prices* those of the first point.
    """
    stride = -(-points // MOST)
    points_shown = [_row(row, varied) for row in islice(rows, 0, None, stride)]
    return {
        "schema": 1,
        "hardware": scenario.hardware,
        "workload": scenario.workload,
        "given": [*_options(scenario), *scenario.overrides],
        "points": points,
        "varied": list(varied),
        "influence": {key: influence(points_shown, key) for key in varied},
        "rows": [row for row in points_shown if not row["problem"]],
        "left_out": [row for row in points_shown if row["problem"]],
        "assumptions": [_SHARED_INPUTS, *(f"set for all points: {text}" for text in [*_options(scenario), *scenario.overrides])],
        "warnings": _not_validated([row for row in points_shown if not row["problem"]]),
        "prices": list(prices),
        "seed": scenario.seed,
        "version": __version__,
        "inputs_sha256": dict(inputs),
    }


def _not_validated(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the features of the layouts of *rows* that no measured run has, each once with the number of points that have it."""
    counts = Counter(row["not_validated"] for row in rows if row["not_validated"])
    return [f"{pluralized(count, 'point')}: {text}" for text, count in counts.items()]


def _options(scenario: Scenario) -> list[str]:
    """Return the options of *scenario* that are set, as in ``nodes=2``."""
    return [f"{name}={value}" for name in _OPTIONS if (value := getattr(scenario, name)) is not None]


def _row(row: Mapping[str, Any], varied: Sequence[str]) -> dict[str, Any]:
    """Return one point: its *varied* fields as written and, if numeric, as numbers, and its main figures."""
    written = {key: str(row[key]) for key in varied}
    numbers = {key: float(match[0]) for key, text in written.items() if (match := _NUMBER.match(text))}
    figures = {key: row.get(key) for key in _KEPT}
    causes = LAYOUT_STALLS if row.get("pipeline_s") is not None else STALLS
    stalls = {cause.value: row.get(f"{cause.value}_s") for cause in causes}
    errors = {name: row.get(f"expected_error_{name}") for name in ("median", "p90")}
    expected = None if errors["p90"] in (None, "") else errors
    says = {"not_validated": row.get("not_validated") or "", "problem": row["problem"]}
    return {"point": written, "numbers": numbers, **figures, "stalls_s": stalls, "expected_error": expected, **says}


def influence(rows: Sequence[Mapping[str, Any]], key: str) -> float | None:
    """Return the ratio of the mean throughputs at the best and at the worst value of field *key*.

    None if the values cannot be compared: there is only one, or they occur with different combinations of the other fields.
    """
    rates: dict[str, list[float]] = defaultdict(list)
    others: dict[str, set[tuple[str, ...]]] = defaultdict(set)
    for row in rows:
        if not row["problem"]:
            rates[row["point"][key]].append(row["throughput_samples_per_s"])
            others[row["point"][key]].add(tuple(text for name, text in row["point"].items() if name != key))
    if len(rates) < 2 or len({frozenset(seen) for seen in others.values()}) > 1:
        return None
    means = [sum(values) / len(values) for values in rates.values()]
    return max(means) / min(means)
