"""Which rentable machines have faster GPUs, and how long would the job take on them? The job is simulated again on a few of them.

Candidates have a price and the same number of GPUs per node. Machines of the same provider come first, then those with the lowest price
per FLOP/s; each GPU model is tried once. Hardware overrides (``--set``) do not carry over. Limit: only `SHOWN` machines are tried;
`recommend` and `compare` try the whole catalog.
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
"""Number of machines tried, each with a different GPU model."""


class FasterMachine(NamedTuple):
    """A rentable machine, and the time and cost of the job on the same number of nodes."""

    hardware: str
    gpu: str
    gpus: int
    step_time: float
    epoch_time: float
    usd_per_h: float
    """Price of all nodes together."""
    cost: float
    """Cost of an epoch (USD)."""


def faster_machines(scenario: Scenario, run: Run) -> list[FasterMachine]:
    """Return up to `SHOWN` machines with faster GPUs on which the only job of *scenario* has shorter steps than in *run*; fastest first."""
    own = run.hardware.first_workers.node
    rows = [row for row in hardware_rows()[0] if row["nodes"] == 1 and row["gpus"] == own.gpu_count and row["price"] is not None]
    faster: list[tuple[bool, float, str, str]] = []
    for row in rows:
        machine = load_hardware(str(row["name"])).spec
        gpu, rate = machine.first_workers.node.gpu, price(machine)
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
        except SpecError:  # the job does not fit, or the GPU lacks the precision
            continue
        job, rate = other.jobs[0], price(other.hardware)
        spent = cost(other.hardware, job.warm.time)
        if rate is not None and spent is not None and job.warm.step_time < run.jobs[0].warm.step_time:
            quicker.append(
                FasterMachine(
                    name, other.hardware.first_workers.node.gpu.name, job.job.ranks, job.warm.step_time, job.warm.time, 3600 * rate, spent
                )
            )
    return sorted(quicker, key=lambda machine: machine.step_time)
