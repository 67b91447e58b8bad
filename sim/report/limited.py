"""What are the figures of a run whose GPUs have a power limit? Those of its document, with the longer steps of `sim.study.power_cap`.

Data-parallel runs are simulated again with slower GPUs, in both epochs. With a layout, all epochs become longer by the same time.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sim.analysis.energy import KWH, power_model
from sim.analysis.whole_job import JobPlan
from sim.report.document import burst_credits_end, credits_end, run_credits_end, run_figures
from sim.report.energy import power_cap_figures
from sim.report.verdict import first_epoch_sentence
from sim.report.whole_job import job_of_run
from sim.simulate import Run
from sim.spec.hardware import Hardware
from sim.spec.workload import Workload
from sim.study.power_cap import LimitedSteps, SlowerRuns, limit_steps
from sim.study.weeks import Steps, steps_of

_RATES = ("throughput_samples_per_s", "tokens_per_s", "tokens_per_s_per_gpu", "model_flops_utilization", "hardware_flops_utilization")
_PRICES = ("cost_per_epoch_usd", "cost_per_token_usd")


def steps_to_limit(document: Mapping[str, Any], machine: Hardware, workload: Workload, slower: SlowerRuns | None) -> Steps:
    """Return the steps of the run of *document*; with *slower*, a power limit on them is simulated."""
    steps = steps_of(document, machine, workload)
    if slower is None:
        return steps
    market = document["price"]["market"]

    def at_speed(speed: float) -> Steps:
        slowed = steps_of(run_figures(slower(speed), market=market), machine, workload)
        return slowed._replace(expected_error=steps.expected_error, power_error=steps.power_error)

    return steps._replace(at_speed=at_speed)


def under_power_cap(
    document: Mapping[str, Any], machine: Hardware, workload: Workload, cap: str, plan: JobPlan | None = None,
    slower: SlowerRuns | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Return a run's *document* with GPUs limited to *cap*; *plan* is its whole job. Raise SpecError if the effect is unknown.

    *slower* simulates the run with slower GPUs; without it, all epochs become longer by the same time.
    """
    limit = limit_steps(steps_to_limit(document, machine, workload, slower), cap)
    again = None if slower is None or limit.speed == 1.0 else slower(limit.speed)
    shown = dict(document) | (_estimated(document, limit) if again is None else _simulated(document, again))
    ratio = shown["step_time_s"] / document["step_time_s"]
    shown |= {name: document[name] / ratio for name in _RATES if document.get(name) is not None}
    if "verdict" in document:  # rows of a sweep have none
        shown["verdict"] = _verdict(document, shown)
    shown["energy"] = _energy(shown, limit)
    if plan is not None and document["whole_job"] is not None:
        shown["whole_job"] = job_of_run(plan, shown, machine, workload)
    return shown


def _simulated(document: Mapping[str, Any], again: Run) -> dict[str, Any]:
    """Return the times and costs of *document* from the run *again* with slower GPUs."""
    figures = run_figures(again, market=document["price"]["market"])
    changed = {name: figures[name] for name in ("step_time_s", "stalls_s", "epoch_time_s", "cost_per_epoch_usd", "first_epoch")}
    if "warnings" in document:
        outdated = credits_end(document["burst_credits_end"], document["step_time_s"])
        others = [warning for warning in document["warnings"] if warning not in outdated]
        changed |= {"burst_credits_end": burst_credits_end(again), "warnings": others + run_credits_end(again)}
    return changed


def _estimated(document: Mapping[str, Any], limit: LimitedSteps) -> dict[str, Any]:
    """Return the times and costs of *document*, which is not simulated again: each epoch takes longer by the time added to warm steps."""
    ratio = limit.steps.step_time / limit.step_time_without
    longer = (ratio - 1.0) * document["epoch_time_s"]
    first, parts = document["first_epoch"], document.get("pretraining")
    return {
        "step_time_s": limit.steps.step_time,
        "stalls_s": dict(limit.steps.stalls),
        "epoch_time_s": document["epoch_time_s"] + longer,
        "first_epoch": first
        | _slower_steps(first, limit)
        | {"epoch_time_s": first["epoch_time_s"] + longer, "cost_usd": _longer(first, longer)},
        **({"pretraining": _longer_parts(parts, ratio)} if parts else {}),
        **{name: document[name] * ratio for name in _PRICES if document.get(name) is not None},
    }


def _verdict(document: Mapping[str, Any], shown: Mapping[str, Any]) -> str:
    """Return the verdict of *document*, with its sentence on the first epoch updated to the figures of *shown*.

    The bottleneck is not determined again. If the limit makes steps longer, the verdict says that it holds without the limit.
    """
    start = "Without the power limit: " if shown["step_time_s"] > document["step_time_s"] * (1 + 1e-9) else ""
    before, after = (first_epoch_sentence(one["first_epoch"]["epoch_time_s"], one["epoch_time_s"]) for one in (document, shown))
    return start + str(document["verdict"]).removesuffix(before) + after


def _slower_steps(first: Mapping[str, Any], limit: LimitedSteps) -> dict[str, Any]:
    """Return the steps of the *first* epoch with the same added compute time as warm steps; layouts have no separate first steps."""
    if "stalls_s" not in first:
        return {}
    more, stalls = limit.steps.step_time - limit.step_time_without, first["stalls_s"]
    return {"step_time_s": first["step_time_s"] + more, "stalls_s": dict(stalls) | {"compute": stalls["compute"] + more}}


def _longer(epoch: Mapping[str, Any], longer: float) -> float | None:
    """Return the cost of *epoch* if it takes *longer* seconds more."""
    return None if epoch["cost_usd"] is None else epoch["cost_usd"] * (1.0 + longer / epoch["epoch_time_s"])


def _longer_parts(pretraining: Mapping[str, Any], ratio: float) -> dict[str, Any]:
    """Return *pretraining* with all of its steps *ratio* times as long."""
    longer = {name: pretraining[name] * ratio for name in ("time_s", "cost_usd") if pretraining[name] is not None}
    parts = [
        part
        | {name: part[name] * ratio for name in ("step_time_s", "time_s", "cost_usd") if part[name] is not None}
        | {"tokens_per_s": part["tokens_per_s"] / ratio}
        for part in pretraining["parts"]
    ]
    return dict(pretraining) | longer | {"parts": parts}


def _energy(document: Mapping[str, Any], limit: LimitedSteps) -> dict[str, Any]:
    """Return the energy of *document* at the power of the limited GPUs."""
    energy, steps = document["energy"], limit.steps
    site = steps.nodes * limit.power.total * power_model().pue
    grid = energy["grid"]["kg_per_kwh"]
    kwh = site * document["epoch_time_s"] / KWH
    tokens = energy["energy_per_token_j"]
    per_token = None if tokens is None else tokens * limit.joules / energy["energy_per_sample_j"]
    return dict(energy) | {
        "gpu_power_w": limit.power.gpus / steps.node.gpu_count, "node_power_w": limit.power.total, "parts_w": limit.power._asdict(),
        "site_power_w": site, "energy_per_sample_j": limit.joules, "energy_per_token_j": per_token,
        "co2_per_sample_kg": limit.joules / KWH * grid, "kwh_per_epoch": kwh, "co2_per_epoch_kg": kwh * grid,
        "power_cap": power_cap_figures(limit),
    }  # fmt: skip
