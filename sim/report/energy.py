"""What power, energy and carbon does a run take? Its figures in a document, a row of a table, and a line."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from sim.analysis.energy import KWH, GridIntensity, NodesOfKind, energy_figures, grid_of
from sim.report.whole_job import tokens_text
from sim.spec.hardware import Hardware
from sim.spec.workload import Workload
from sim.training.layer_times import mix_of
from sim.units import show

if TYPE_CHECKING:
    from sim.study.power_cap import Limited

_SHORT = ("gpu_power_w", "node_power_w", "energy_per_sample_j", "energy_per_token_j", "kwh_per_epoch", "co2_per_epoch_kg")
"""What a row of a table has."""


def with_energy(document: dict[str, Any], machine: Hardware, workload: Workload, used: Mapping[int, int] | None = None) -> dict[str, Any]:
    """Return the figures of a run's *document* with its energy; null where the TDP of its GPU is unknown.

    *used* are the GPUs of the job by number of the node among the workers that have GPUs; by default it has equally many on the first
    nodes. GPUs of all kinds spend the same shares of a step on what they do. The grid is that of the region of the price, or the
    world's mean.
    """
    group = next(group for group in machine.groups if group.role == "worker" and group.node.gpu_count)
    if used is None:
        used = dict.fromkeys(range(document["nodes"]), max(1, round(document["gpus"] / document["nodes"])))
    grid = grid_of(group.price.region if group.price else None, machine.provider)
    per_step = document["throughput_samples_per_s"] * document["step_time_s"]
    kinds = [
        NodesOfKind(node, count, gpus, mix_of(workload, node.gpu)) for (number, gpus), count in _alike(machine, used).items()
        for node in [machine.groups[number].node]
    ]  # fmt: skip
    figures = energy_figures(kinds, document["stalls_s"], per_step, grid, workload.model.sequence)
    if figures is None:
        return document | {"energy": None}
    joules = figures["site_power_w"] * document["epoch_time_s"]
    return document | {"energy": figures | {"kwh_per_epoch": joules / KWH, "co2_per_epoch_kg": joules * grid.intensity}}


def _alike(machine: Hardware, used: Mapping[int, int]) -> Counter[tuple[int, int]]:
    """Return how many of the *used* nodes are of each group of *machine*, given by its number, with so many GPUs of the job."""
    groups = [
        number for number, group in enumerate(machine.groups) if group.role == "worker" and group.node.gpu_count for _ in range(group.count)
    ]
    return Counter((groups[node], gpus) for node, gpus in used.items())


def power_cap_figures(limit: Limited) -> dict[str, float]:
    """Return what a *limit* on the power of GPUs does to the steps, in time and energy."""
    return {
        "gpu_cap_w": limit.cap, "step_time_s": limit.steps.step_time, "step_time_without_s": limit.step_time_without,
        "energy_per_sample_j": limit.joules, "energy_per_sample_without_j": limit.joules_without,
    }  # fmt: skip


def with_power_cap(document: dict[str, Any], machine: Hardware, workload: Workload, cap: str) -> dict[str, Any]:
    """Return a run's *document* with what a limit of *cap* on each GPU would make of its steps. Raise SpecError where nobody knows."""
    from sim.study.power_cap import limited  # with it come long runs and numpy, without which every other run does
    from sim.study.weeks import steps_of

    figures = power_cap_figures(limited(steps_of(document, machine, workload), cap))
    return document | {"energy": document["energy"] | {"power_cap": figures}}


def power_cap_text(figures: Mapping[str, float]) -> str:
    """Return in words what a power cap costs in time and saves in energy."""
    longer = figures["step_time_s"] / figures["step_time_without_s"] - 1
    more = figures["energy_per_sample_j"] / figures["energy_per_sample_without_j"] - 1
    if longer <= 0:
        return f"GPUs limited to {show(figures['gpu_cap_w'], 'power')} never draw as much, so that nothing changes (--power-cap)"
    return (
        f"GPUs limited to {show(figures['gpu_cap_w'], 'power')}: a step takes {show(figures['step_time_s'], 'time')} instead of "
        f"{show(figures['step_time_without_s'], 'time')} (+{100 * longer:.1f}%), and a sample "
        f"{show(figures['energy_per_sample_j'], 'energy')} instead of {show(figures['energy_per_sample_without_j'], 'energy')} "
        f"({100 * more:+.1f}%)"
    )


def brief_energy(energy: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Return what of the *energy* of a document a row of a comparison has."""
    return None if energy is None else {name: energy[name] for name in (*_SHORT, "grid")}


def energy_columns(energy: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the *energy* of a document in columns of a table, and of which grid its CO2 is; none where it is unknown."""
    figures = {name: None if energy is None else energy[name] for name in _SHORT}
    return figures | {"co2_of": None if energy is None else grid_words(energy["grid"])}


def job_energy(energy: Mapping[str, Any] | None, time: float, weeks: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return kWh and kg of CO2 of a job of *time* seconds, and the grid, at the mean power of the *energy* of its run.

    With failures it is that of its *weeks*, in which nodes also wait, and spares do.
    """
    if energy is None:
        return {"energy_kwh": None, "co2_kg": None, "grid": None}
    watts = energy["site_power_w"] if weeks is None else weeks["energy_kwh"] * KWH / weeks["elapsed_s"]
    kwh = watts * time / KWH
    return {"energy_kwh": kwh, "co2_kg": kwh * energy["grid"]["kg_per_kwh"], "grid": energy["grid"]}


def kwh_text(kwh: float) -> str:
    """Return *kwh* in words: 31.7 MWh."""
    return show(kwh * KWH, "billed energy")


def epoch_tokens(document: Mapping[str, Any]) -> float | None:
    """Return the tokens of an epoch of a run's *document*, to three digits; None where samples are no sequences."""
    rate = document.get("tokens_per_s")
    return None if rate is None else float(f"{rate * document['epoch_time_s']:.3g}")


def grid_text(grid: GridIntensity) -> str:
    """Return of which *grid* a carbon figure is, and how much carbon a kWh of it is."""
    return f"CO2 at {grid_words(grid.figures)}"


def grid_words(figures: Mapping[str, Any]) -> str:
    """Return of which grid, given its *figures* in a document, a carbon figure is, and how much carbon a kWh of it is."""
    where = "the world's mean" if figures["assumed"] else figures["region"]
    return f"{1000 * figures['kg_per_kwh']:.0f} g/kWh, {where}, {figures['year']}"


def energy_text(energy: Mapping[str, Any] | None, tokens: float | None = None) -> str:
    """Return the line that tells the *energy* of a document, whose epoch has so many *tokens*."""
    if energy is None:
        return ""
    grid = energy["grid"]
    where = "the world's mean" if grid["assumed"] else grid["region"]
    capped = f"\n  {power_cap_text(energy['power_cap'])}" if "power_cap" in energy else ""
    epoch = "per epoch" if tokens is None else f"per epoch of {tokens_text(tokens)}"
    return (
        f"energy: {kwh_text(energy['kwh_per_epoch'])} and {show(energy['co2_per_epoch_kg'], 'mass')} CO2 {epoch} "
        f"({1000 * grid['kg_per_kwh']:.0f} g/kWh, {where}); {show(energy['energy_per_sample_j'], 'energy')} per sample; each node draws "
        f"{show(energy['node_power_w'], 'power')}{capped}"
    )
