"""Which machines that can be rented have faster GPUs, and what would a job take there? The job again on the likeliest of them.

They have as many GPUs a node and a price; machines of the same provider come first, then those that ask least for the rate of their GPUs.
What ``--set`` changes of the hardware is not taken along. Limit: `recommend` and `compare` try the whole catalogue.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final, NamedTuple

from sim.analysis.cost import cost, price
from sim.simulate import Run, simulate
from sim.spec.library import load_hardware
from sim.spec.listing import hardware_rows
from sim.spec.yaml import SpecError
from sim.study.scenario import Scenario, prepare, split_overrides

SHOWN: Final = 3
"""Machines that are tried, each with GPUs of its own."""


class FasterMachine(NamedTuple):
    """A machine that can be rented, and what the job takes on as many of it."""

    hardware: str
    gpu: str
    gpus: int
    step_time: float
    epoch_time: float
    usd_per_h: float
    """Of all nodes."""
    cost: float
    """Of an epoch (USD)."""


def faster_machines(scenario: Scenario, run: Run) -> list[FasterMachine]:
    """Return up to `SHOWN` machines with faster GPUs than those of the only job of *scenario*, simulated as *run*; the fastest first."""
    own = run.hardware.groups[0].node
    rows = [row for row in hardware_rows()[0] if row["nodes"] == 1 and row["gpus"] == own.gpu_count and row["price"] is not None]
    faster: list[tuple[bool, float, str, str]] = []
    for row in rows:
        machine = load_hardware(str(row["name"])).spec
        gpu, rate = machine.groups[0].node.gpu, price(machine)
        if rate is not None and gpu.dense_16bit > own.gpu.dense_16bit:
            faster.append((machine.provider != run.hardware.provider, rate / gpu.dense_16bit, gpu.name, machine.name))
    tried: dict[str, str] = {}
    for *_, gpu_name, name in sorted(faster):
        tried.setdefault(gpu_name, name)
    workload = tuple(split_overrides(scenario.overrides)[1])
    quicker = []
    for name in list(tried.values())[:SHOWN]:
        try:
            question = prepare(replace(scenario, hardware=name, overrides=workload, nodes=len(run.jobs[0].job.placement)))
            other = simulate(question.hardware, [question.jobs[0].averaged], cold=False)
        except SpecError:  # it does not fit, or runs no such precision
            continue
        job, rate = other.jobs[0], price(other.hardware)
        spent = cost(other.hardware, job.warm.time)
        if rate is not None and spent is not None and job.warm.step_time < run.jobs[0].warm.step_time:
            quicker.append(
                FasterMachine(
                    name, other.hardware.groups[0].node.gpu.name, job.job.ranks, job.warm.step_time, job.warm.time, 3600 * rate, spent
                )
            )
    return sorted(quicker, key=lambda machine: machine.step_time)
