"""How well does the power model predict published measurements? Power of nodes in timed runs; power and slowdown of GPUs under limits.

In a run on one node, GPUs compute all the time. In a run on several nodes, the busy share follows from the logged run times: (time on one
node / nodes) / time on all nodes. For the rest, GPUs wait in communication. The draw of H100 and H200 by kernel mix was fitted to an H200's
steps; an H100's steps, and nodes of H100s whose benchmark the catalog has, are predicted. Single GPUs draw what the simulated mix of their
network's kernels draws. V100 and P100 take their draw from BERT's rows (`products_draw`), which are not scored; an RTX 6000 draws what an
H200 does, so its BERT rows are scored.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from calibration import FOLDER
from calibration.longrun import read_rows
from sim.analysis.energy import computing_power, gpu_power, node_power, power_model
from sim.analysis.energy_error import power_law
from sim.report.power_error import SUMMARY
from sim.spec.energy import KernelMix
from sim.spec.fields import curve_value
from sim.spec.hardware import Gpu
from sim.spec.library import load_hardware, load_part, load_workload
from sim.spec.whole_file import write_file
from sim.training.layer_times import mix_of

MACHINES = {"H100-SXM5-80GB": "hgx-h100", "B200-SXM-180GB": "hgx-b200"}
SCORED_NETWORKS = ("resnet50", "deepspeech2")
"""Zeus networks that keep the GPU busy all the time; in the others, the loader or the host is the bottleneck."""
BERT = "bert_base_uncased"
"""The network whose power sets the draws of P100 and V100; it also keeps the GPU busy."""
_WORKLOADS = {
    ("resnet50", "imagenet"): "resnet50", ("deepspeech2", "librispeech"): "deepspeech2",
    (BERT, "squad"): "bert-base-seq384", (BERT, "sentiment140"): "bert-base-seq128",
}  # fmt: skip
"""Our workload of a network and data set. Zeus's clips and sentences have other lengths than some of ours, and their lengths vary."""
_MXNET = ("training.precision=amp_fp16", "training.stack=mlperf-mxnet")
_PLAIN_NORMS = "training.stack.elementwise_traffic=0.837"
_LORA = (
    "llama-2-70b", "model.lora.rank=16", "model.transformer.max_seq=8192", "model.sequence=8192", "training.batch=1",
    "training.precision=fp8", "training.stack=nemo-mlperf",
)  # fmt: skip
_BENCHMARKS = {
    ("bert", 1): ("bert-large-seq512", "training.batch=48", "training.precision=fp16", "training.stack=mlperf-pytorch-bert"),
    ("resnet", 1): ("resnet50", "training.batch=400", *_MXNET), ("resnet", 8): ("resnet50", "training.batch=50", *_MXNET, _PLAIN_NORMS),
    ("llama2_70b_lora", 1): _LORA, ("llama2_70b_lora", 8): _LORA,
}  # fmt: skip
"""Our workload of MLPerf's benchmarks by nodes, where the catalog has it, as the submission's own files configure it
(mlcommons/training_results_v4.0 @62f111b7): smc-dc-power/benchmarks/bert config_SMCH100_1x8x48x1_pack.sh; smc-ac-power/benchmarks/resnet
config_SMCH100.sh (BATCHSIZE 400, resnet-v1b-mainloop-fl); smc/benchmarks/resnet config_SMCH100_multi_8x8x50.sh (resnet-v1b-fl, whose
convolutions do not compute the sums of norms: element-wise traffic of ngc-mxnet-20.03); smc-dc-power/benchmarks/llama2-70b_lora
config_SMCH100_8x8x1xtp4pp1cp2.sh (FP8, also taken for one node), on sequences of 8,192 (mlcommons/training_results_v5.1 @ Krai, README)."""


LEAST_ROWS = 5
"""Measured rows of a GPU from which documents quote their errors: of fewer, a 90th percentile says nothing."""


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
    """Return the measured and predicted wall-plug power (W) of nodes in MLPerf's timed runs, as of jobs whose kernels are not known."""
    return [_scored_node(row, busy, None) for row, busy in _timed_runs()]


def score_nodes_by_mix() -> list[ScoredFigure]:
    """Return the same with the simulated mix of kernels, as `run` does: runs of `_BENCHMARKS` on GPUs whose power is known by kernel."""
    scored, model = [], power_model()
    for row, busy in _timed_runs():
        gpu = load_hardware(MACHINES[row["gpu"]]).spec.groups[0].node.gpu
        benchmark = row["benchmark"], int(row["nodes"])
        if benchmark in _BENCHMARKS and gpu_power(gpu, model).products is not None:
            name, *sets = _BENCHMARKS[benchmark]
            scored.append(_scored_node(row, busy, mix_of(load_workload(name, sets).spec, gpu)))
    return scored


def _timed_runs() -> Iterator[tuple[Mapping[str, str], float]]:
    """Yield the rows of nodes with AC meters, each with the share of the run in which GPUs compute."""
    rows = [row for row in read_rows("node_power") if "dc" not in row["submission"]]
    alone = {row["benchmark"]: float(row["run_s"]) for row in rows if row["nodes"] == "1"}
    for row in rows:
        nodes = int(row["nodes"])
        yield row, min(1.0, alone[row["benchmark"]] / nodes / float(row["run_s"])) if nodes > 1 else 1.0


def _scored_node(row: Mapping[str, str], busy: float, mix: KernelMix | None) -> ScoredFigure:
    node = load_hardware(MACHINES[row["gpu"]]).spec.groups[0].node
    power = node_power(node, power_model(), (busy, 1 - busy, 0.0), several=False, mix=mix)  # meters cover nodes, not switches
    assert power is not None and node.gpu.power is not None
    name = f"{row['benchmark']}, {row['nodes']} x {row['gpu']}"
    return ScoredFigure(name, float(row["node_w"]), power.total, node.gpu.power * node.gpu_count)


class LimitedRun(NamedTuple):
    """Runs of one network at one batch on one GPU, under several power limits: seconds of an epoch and W by limit (W)."""

    gpu: str
    network: str
    dataset: str
    batch: int
    by_limit: dict[float, tuple[float, float]]

    @property
    def name(self) -> str:
        """Return what ran where."""
        return f"{self.network}, batch {self.batch}, {self.gpu}"

    @property
    def part(self) -> Gpu:
        """Return the GPU of the catalog."""
        return load_part(Gpu, _PARTS[self.gpu])

    @property
    def mix(self) -> KernelMix:
        """Return the simulated mix of kernels, in 32 bits."""
        sets = [f"training.batch={self.batch}", "training.precision=fp32"]
        mix = mix_of(load_workload(_WORKLOADS[self.network, self.dataset], sets).spec, self.part)
        assert mix is not None  # the workloads have layer tables
        return mix

    @property
    def draw(self) -> float:
        """Return the measured power (W) at the highest limit."""
        return self.by_limit[max(self.by_limit)][1]


_PARTS = {"V100": "v100-pcie-16gb", "P100": "p100-pcie-16gb", "RTX6000": "quadrortx6000"}


def limited_runs(networks: Sequence[str]) -> list[LimitedRun]:
    """Return the recorded runs of *networks*."""
    runs: dict[tuple[str, str, str, str], LimitedRun] = {}
    for row in read_rows("power_limits"):
        if row["network"] in networks:
            key = (row["gpu"], row["network"], row["dataset"], row["batch_size"])
            run = runs.setdefault(key, LimitedRun(*key[:3], int(key[3]), {}))
            run.by_limit[float(row["power_limit_w"])] = (float(row["time_per_epoch_s"]), float(row["gpu_w"]))
    return list(runs.values())


def products_draw(gpu: str) -> float:
    """Return the draw of products (over TDP) at which BERT's runs on *gpu* draw in the mean what was measured.

    Kernels bound by memory draw as much less as on an H200, and starting kernels what an idle GPU draws.
    """
    model = power_model()
    hopper = gpu_power(load_part(Gpu, "h200-sxm-141gb"), model)
    assert hopper.products is not None and hopper.memory is not None
    runs = [run for run in limited_runs([BERT]) if run.gpu == gpu]
    measured = statistics.mean(run.draw / max(run.by_limit) for run in runs)
    in_products = statistics.mean(run.mix.products + hopper.memory / hopper.products * run.mix.memory for run in runs)
    starts = statistics.mean(1 - run.mix.products - run.mix.memory for run in runs)
    return (measured - starts * gpu_power(runs[0].part, model).idle) / in_products


def score_power(runs: Sequence[LimitedRun]) -> list[ScoredFigure]:
    """Return the power (W) of single GPUs at their highest power limit in *runs*."""
    return [ScoredFigure(run.name, run.draw, computing_power(run.part, power_model(), run.mix), max(run.by_limit)) for run in runs]


def score_limits(runs: Sequence[LimitedRun]) -> list[ScoredFigure]:
    """Return the slowdown of *runs* at each limit that binds: one below the measured or the predicted power without a limit."""
    model, scored = power_model(), []
    for run in runs:
        top = max(run.by_limit)
        predicted = min(top, computing_power(run.part, model, run.mix))
        scored += [
            ScoredFigure(
                f"{run.name}, {limit:g} W",
                run.by_limit[limit][0] / run.by_limit[top][0],
                1 / curve_value(model.cap, min(1.0, limit / predicted)),
            )
            for limit in sorted(run.by_limit)
            if limit < top and limit < max(run.draw, predicted)
        ]
    return scored


def energy_document(steps: Sequence[ScoredFigure] = ()) -> dict[str, Any]:
    """Return all scores as one document, including those of single training *steps*."""
    runs = limited_runs(SCORED_NETWORKS)
    powers = score_power(runs)
    groups: dict[str, list[ScoredFigure]] = {
        "node_power_w": score_nodes(), "node_power_by_mix_w": score_nodes_by_mix(), "gpu_power_w": powers,
        "slow_down_under_limits": score_limits(runs),
    }  # fmt: skip
    parts = {f"gpu_power_w, {network}": [row for row in powers if row.name.startswith(network)] for network in SCORED_NETWORKS}
    parts["gpu_power_w, bert on RTX 6000"] = score_power([run for run in limited_runs([BERT]) if run.gpu == "RTX6000"])
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


def expected_errors() -> dict[str, Any]:
    """Return the errors of predicted power that documents of runs quote, by GPU: of nodes by mix of kernels, or of single GPUs."""
    nodes = [("node_power_w", row.name.rsplit(" x ", 1)[1], row) for row in score_nodes_by_mix()]
    scored = limited_runs(SCORED_NETWORKS) + [run for run in limited_runs([BERT]) if run.gpu == "RTX6000"]
    gpus = [("gpu_power_w", run.part.name, row) for run, row in zip(scored, score_power(scored), strict=True)]
    groups: dict[str, dict[str, Any]] = {}
    for of, gpu in dict.fromkeys((of, gpu) for of, gpu, _ in (*nodes, *gpus)):
        rows = [row for own, name, row in (*nodes, *gpus) if (own, name) == (of, gpu)]
        if len(rows) >= LEAST_ROWS:
            summary = _summary(rows)
            errors = {name: round(summary[f"{name}_error"], 3) for name in ("median", "p90", "worst")}
            groups[gpu] = {"of": of, "points": len(rows), **errors, "sources": ["MLPerf" if of == "node_power_w" else "Zeus"]}
            if of == "node_power_w":
                kinds = {row.name.partition(",")[0] for row in rows}
                law = power_law({kind: [row.error for row in rows if row.name.startswith(f"{kind},")] for kind in kinds})
                groups[gpu] |= {"log_error": round(law.log_error, 4), "kinds": law.kinds}
    return {"source": "calibration/records/longrun/node_power.csv and power_limits.csv", "groups": groups}


def energy_text(document: Mapping[str, Any]) -> str:
    """Return *document* as Markdown tables: one line per node, then one per group."""
    lines = ["| node | measured, W | predicted, W | error | TDP alone |", "|---|--:|--:|--:|--:|"]
    lines += [
        f"| {row['name']} | {row['measured']:.0f} | {row['predicted']:.0f} | {100 * row['error']:+.1f}% | "
        f"{100 * (row['plain'] / row['measured'] - 1):+.1f}% |"
        for row in [*document["node_power_w"], *({**row, "name": f"{row['name']}, by mix"} for row in document["node_power_by_mix_w"])]
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


if __name__ == "__main__":
    write_file(FOLDER.parent / SUMMARY, json.dumps(expected_errors(), indent=1) + "\n")
