"""How well does the power model predict published measurements? Power of nodes in timed runs; power and slowdown of GPUs under limits.

In a run on one node, GPUs compute all the time. In a run on several nodes, the busy share follows from the logged run times: (time on one
node / nodes) / time on all nodes. For the rest, GPUs wait in communication. The draw of H100 and H200 by kernel mix was fitted to an H200's
steps; an H100's steps are predicted. No constant of `hardware/parts/power` comes from the other scored rows: V100, P100 and RTX 6000 take
their full draw from BERT's rows, which are not scored.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from calibration.longrun import read_rows
from sim.analysis.energy import node_power, power_model
from sim.spec.fields import curve_value
from sim.spec.hardware import Gpu
from sim.spec.library import load_hardware, load_part

MACHINES = {"H100-SXM5-80GB": "hgx-h100", "B200-SXM-180GB": "hgx-b200"}
SCORED_NETWORKS = ("resnet50", "deepspeech2")
"""Zeus networks that keep the GPU busy all the time; in the others, the loader or the host is the bottleneck."""


class ScoredFigure(NamedTuple):
    """A measured figure, its prediction, and the prediction from TDP alone in *plain* (None if there is none)."""

    name: str
    measured: float
    predicted: float
    plain: float | None = None

    @property
    def error(self) -> float:
        """Return the relative error of the prediction."""
        return self.predicted / self.measured - 1


def score_nodes() -> list[ScoredFigure]:
    """Return the measured and predicted wall-plug power (W) of nodes in MLPerf's timed runs."""
    model = power_model()
    rows = [row for row in read_rows("node_power") if "dc" not in row["submission"]]
    alone = {row["benchmark"]: float(row["run_s"]) for row in rows if row["nodes"] == "1"}
    scored = []
    for row in rows:
        node, nodes = load_hardware(MACHINES[row["gpu"]]).spec.groups[0].node, int(row["nodes"])
        busy = min(1.0, alone[row["benchmark"]] / nodes / float(row["run_s"])) if nodes > 1 else 1.0
        power = node_power(node, model, (busy, 1 - busy, 0.0), several=False)  # meters cover nodes, not switches
        assert power is not None and node.gpu.power is not None
        scored.append(
            ScoredFigure(f"{row['benchmark']}, {nodes} x {row['gpu']}", float(row["node_w"]), power.total, node.gpu.power * node.gpu_count)
        )
    return scored


def score_limits() -> tuple[list[ScoredFigure], list[ScoredFigure]]:
    """Return the power (W) of single GPUs at their highest power limit, and the slowdown at each lower limit that binds."""
    model = power_model()
    rows = [row for row in read_rows("power_limits") if row["network"] in SCORED_NETWORKS]
    runs: dict[tuple[str, str, str], dict[float, tuple[float, float]]] = {}
    for row in rows:
        key = (row["gpu"], row["network"], row["batch_size"])
        runs.setdefault(key, {})[float(row["power_limit_w"])] = (float(row["time_per_epoch_s"]), float(row["gpu_w"]))
    powers, slower = [], []
    for (gpu, network, batch), by_limit in runs.items():
        top = max(by_limit)
        time, draw = by_limit[top]
        name = f"{network}, batch {batch}, {gpu}"
        powers.append(ScoredFigure(name, draw, _full_load_share(gpu) * top, top))
        slower += [
            ScoredFigure(f"{name}, {limit:g} W", by_limit[limit][0] / time, 1 / curve_value(model.cap, min(1.0, limit / draw)))
            for limit in sorted(by_limit)
            if limit < min(draw, top)
        ]
    return powers, slower


_PARTS = {"V100": "v100-pcie-16gb", "P100": "p100-pcie-16gb", "RTX6000": "quadrortx6000"}


def _full_load_share(gpu: str) -> float:
    model, part = power_model(), load_part(Gpu, _PARTS[gpu], "hardware/parts/gpus")
    named = next((block for block in model.gpus if part.name in block.gpus), model.gpus[-1])
    return named.compute


def energy_document(steps: Sequence[ScoredFigure] = ()) -> dict[str, Any]:
    """Return all scores as one document, including those of single training *steps*."""
    nodes, (powers, slower) = score_nodes(), score_limits()
    groups: dict[str, list[ScoredFigure]] = {"node_power_w": nodes, "gpu_power_w": powers, "slow_down_under_limits": slower}
    parts = {f"gpu_power_w, {network}": [row for row in powers if row.name.startswith(network)] for network in SCORED_NETWORKS}
    mixed: dict[str, list[ScoredFigure]] = {"gpu_power_by_mix_w": list(steps)} if steps else {}
    return {
        "schema": 1,
        **{name: [{**one._asdict(), "error": one.error} for one in rows] for name, rows in (groups | mixed).items()},
        "summary": {name: _summary(rows) for name, rows in (groups | parts | mixed).items()},
    }


def _summary(rows: list[ScoredFigure]) -> dict[str, Any]:
    errors = [abs(row.error) for row in rows]
    plain = [abs(row.plain / row.measured - 1) for row in rows if row.plain is not None]
    return {
        "rows": len(rows),
        "median_error": statistics.median(errors),
        "p90_error": float(np.percentile(errors, 90)),
        "worst_error": max(errors),
        "within_15_percent": sum(error <= 0.15 for error in errors) / len(errors),
        "median_error_of_tdp": statistics.median(plain) if plain else None,
        **scaled_tdp(rows),
    }


def scaled_tdp(rows: Sequence[ScoredFigure]) -> dict[str, float | None]:
    """Return the errors of TDP times a constant, which for each row is the median ratio of the other rows."""
    ratios = [row.measured / row.plain for row in rows if row.plain is not None]
    errors = [abs(statistics.median(ratios[:place] + ratios[place + 1 :]) / ratio - 1) for place, ratio in enumerate(ratios)]
    return {
        "median_error_of_scaled_tdp": statistics.median(errors) if errors else None,
        "p90_error_of_scaled_tdp": float(np.percentile(errors, 90)) if errors else None,
    }


def energy_text(document: Mapping[str, Any]) -> str:
    """Return *document* as Markdown tables: one line per node, then one per group."""
    lines = ["| node | measured, W | predicted, W | error | TDP alone |", "|---|--:|--:|--:|--:|"]
    lines += [
        f"| {row['name']} | {row['measured']:.0f} | {row['predicted']:.0f} | {100 * row['error']:+.1f}% | "
        f"{100 * (row['plain'] / row['measured'] - 1):+.1f}% |"
        for row in document["node_power_w"]
    ]
    plain = "median error of TDP alone | of TDP times a constant | 90th percentile of that"
    lines += ["", f"| group | rows | median error | 90th percentile | worst | within 15% | {plain} |"]
    lines.append("|---|--:|--:|--:|--:|--:|--:|--:|--:|")
    for name, row in document["summary"].items():
        others = [row[key] for key in ("median_error_of_tdp", "median_error_of_scaled_tdp", "p90_error_of_scaled_tdp")]
        lines.append(
            f"| {name} | {row['rows']} | {100 * row['median_error']:.1f}% | {100 * row['p90_error']:.1f}% | "
            f"{100 * row['worst_error']:.1f}% | "
            f"{100 * row['within_15_percent']:.0f}% | {' | '.join('-' if error is None else f'{100 * error:.1f}%' for error in others)} |"
        )
    return "\n".join(lines)
