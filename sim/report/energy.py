"""How much power and energy does a run use, and how much CO2 does that emit? Figures in a document, a table row, and a line of text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from sim.analysis.energy import KWH, GridIntensity, NodesOfKind, energy_figures, grid_of
from sim.report.power_error import brief_power_error, energy_error_words, power_error, with_energy_error
from sim.report.whole_job import tokens_text
from sim.spec.hardware import Hardware
from sim.spec.workload import Workload
from sim.training.layer_times import mix_of
from sim.units import show, signed_percent

if TYPE_CHECKING:
    from sim.study.power_cap import LimitedSteps

_SHORT = ("gpu_power_w", "node_power_w", "energy_per_sample_j", "energy_per_token_j", "kwh_per_epoch", "co2_per_epoch_kg")
"""The figures in a row of a table."""
_ROUNDING = 1e-9
"""Relative change of energy up to which it is rounding."""


def with_energy(
    document: dict[str, Any],
    machine: Hardware,
    workload: Workload,
    used: Mapping[int, int] | None = None,
    everyone: Mapping[int, int] | None = None,
) -> dict[str, Any]:
    """Return the figures of a run's *document* with its energy; null if the TDP of its GPU is not specified.

    *used* maps each node, numbered among the workers that have GPUs, to the number of the job's GPUs on it; by default the job has the
    same number on each of the first nodes. *everyone* maps nodes to the GPUs of all jobs; by default there is no other. All kinds of GPU
    are assumed to divide a step among activities in the same proportions. The CO2 is that of the grid in the region of the price, or of
    the world's mean.
    """
    group = machine.first_workers
    if used is None:
        used = dict.fromkeys(range(document["nodes"]), max(1, round(document["gpus"] / document["nodes"])))
    grid = grid_of(group.price.region if group.price else None, machine.provider)
    per_step = document["throughput_samples_per_s"] * document["step_time_s"]
    kinds = [
        NodesOfKind(node, count, gpus, mix_of(workload, node.gpu), others)
        for (number, gpus, others), count in _count_nodes(machine, used, everyone or used).items()
        for node in [machine.groups[number].node]
    ]
    figures = energy_figures(kinds, document["stalls_s"], per_step, grid, workload.tokens_per_sample, workload.input.ahead)
    if figures is None:
        return document | {"energy": None}
    joules = figures["site_power_w"] * document["epoch_time_s"]
    figures |= {"kwh_per_epoch": joules / KWH, "co2_per_epoch_kg": joules * grid.intensity}
    error = power_error({kind.node.gpu.name for kind in kinds}, all(kind.mix is not None for kind in kinds))
    return document | {"energy": with_energy_error(figures | {"expected_error": error}, document.get("expected_error"))}


def _count_nodes(machine: Hardware, used: Mapping[int, int], everyone: Mapping[int, int]) -> Counter[tuple[int, int, int]]:
    """Return the count of the *used* nodes by group number in *machine*, number of the job's GPUs on the node, and of others' GPUs."""
    groups = [
        number for number, group in enumerate(machine.groups) if group.role == "worker" and group.node.gpu_count for _ in range(group.count)
    ]
    return Counter((groups[node], gpus, everyone[node] - gpus) for node, gpus in used.items())


def power_cap_figures(limit: LimitedSteps) -> dict[str, float]:
    """Return the step time and the energy per sample with and without a *limit* on GPU power."""
    return {
        "gpu_cap_w": limit.cap, "step_time_s": limit.steps.step_time, "step_time_without_s": limit.step_time_without,
        "energy_per_sample_j": limit.joules, "energy_per_sample_without_j": limit.joules_without,
    }  # fmt: skip


def power_cap_text(figures: Mapping[str, float]) -> str:
    """Return a sentence on the time that a power cap costs and the energy it saves."""
    longer = figures["step_time_s"] / figures["step_time_without_s"] - 1
    more = figures["energy_per_sample_j"] / figures["energy_per_sample_without_j"] - 1
    if longer <= 0 and more >= -_ROUNDING:
        return f"GPUs limited to {show(figures['gpu_cap_w'], 'power')} never draw that much, so the limit has no effect (--power-cap)"
    return (
        f"GPUs limited to {show(figures['gpu_cap_w'], 'power')}: a step takes {show(figures['step_time_s'], 'time')} instead of "
        f"{show(figures['step_time_without_s'], 'time')} ({signed_percent(longer)}), and a sample "
        f"{show(figures['energy_per_sample_j'], 'energy')} instead of {show(figures['energy_per_sample_without_j'], 'energy')} "
        f"({signed_percent(more)})"
    )


def brief_energy(energy: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Return the part of a document's *energy* that a row of a comparison shows."""
    return None if energy is None else {name: energy[name] for name in (*_SHORT, "grid")}


def energy_columns(energy: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the *energy* of a document as columns of a table, with the grid of its CO2; the values are None if it is unknown."""
    figures = {name: None if energy is None else energy[name] for name in _SHORT}
    return figures | {"co2_of": None if energy is None else grid_words(energy["grid"])}


def job_energy(energy: Mapping[str, Any] | None, time: float, weeks: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return kWh and kg of CO2 of a job of *time* seconds, and the grid, at the mean power in the *energy* of its run.

    With failures, the mean power is that of its *weeks*, in which nodes also wait and spares are idle.
    """
    if energy is None:
        return {"energy_kwh": None, "co2_kg": None, "grid": None}
    watts = energy["site_power_w"] if weeks is None else weeks["energy_kwh"] * KWH / weeks["elapsed_s"]
    kwh = watts * time / KWH
    return {"energy_kwh": kwh, "co2_kg": kwh * energy["grid"]["kg_per_kwh"], "grid": energy["grid"]}


def kwh_text(kwh: float) -> str:
    """Return *kwh* as text: 31.7 MWh."""
    return show(kwh * KWH, "billed energy")


def epoch_tokens(document: Mapping[str, Any]) -> float | None:
    """Return the tokens per epoch of a run's *document*, to three digits; None if samples are not sequences."""
    rate = document.get("tokens_per_s")
    return None if rate is None else float(f"{rate * document['epoch_time_s']:.3g}")


def grid_text(grid: GridIntensity) -> str:
    """Return text that names the *grid* of a CO2 figure, with its carbon intensity."""
    return f"CO2 at {grid_words(grid.figures)}"


def grid_words(figures: Mapping[str, Any]) -> str:
    """Return the carbon intensity, place and year of a grid as text, from its *figures* in a document."""
    where = "world average" if figures["assumed"] else f"{figures['region']},"
    return f"{1000 * figures['kg_per_kwh']:.0f} g/kWh, {where} {figures['year']}"


def energy_text(
    energy: Mapping[str, Any] | None,
    tokens: float | None = None,
    one_of_several: bool = False,
    job: Mapping[str, Any] | None = None,
) -> str:
    """Return a line with the *energy* of a document, for the whole *job* of the document if it has one, else for an epoch.

    *tokens*: those of an epoch, if any; *one_of_several*: if other jobs run.
    """
    if energy is None:
        return ""
    grid = energy["grid"]
    where = "world average" if grid["assumed"] else grid["region"]
    capped = f"\n  {power_cap_text(energy['power_cap'])}" if "power_cap" in energy else ""
    drawing = "this job's part of a node draws" if one_of_several else "each node draws"
    if job is None:
        kwh, mass = energy["kwh_per_epoch"], energy["co2_per_epoch_kg"]
        of = "per epoch" if tokens is None else f"per epoch of {tokens_text(tokens)}"
    else:
        of_job = job_energy(energy, job["time_s"])
        kwh, mass, of = of_job["energy_kwh"], of_job["co2_kg"], "for the whole job"
    within = energy_error_words(energy, kwh)
    return (
        f"energy: {kwh_text(kwh)} (PUE {energy['pue']:.3g}) and {show(mass, 'mass')} CO2 {of} "
        f"({1000 * grid['kg_per_kwh']:.0f} g/kWh, {where}); {show(energy['energy_per_sample_j'], 'energy')} per sample; "
        f"{drawing} {show(energy['node_power_w'], 'power')} on average "
        f"({brief_power_error(energy['expected_error'])}){f'; energy: {within}' if within else ''}{capped}"
    )
