"""How many loader workers has a GPU, how many would its cores carry, and how many does a job need that waits for prepared samples?

Workers are torch's processes (``num_workers``) or DALI's threads (``num_threads``). Limits: only cores are counted, not host memory.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from sim.events import Cause
from sim.simulate import Run
from sim.spec.input import Input
from sim.spec.workload import Workload

NOTICEABLE_WAIT = 0.04
"""Smallest wait for prepared samples that is attributed to the number of workers, as a share of the step: the noise of measurements."""


class LoaderWorkers(NamedTuple):
    """The workers of one GPU and the hardware threads that they could use; *option* is the field that sets them."""

    option: str
    per_gpu: int
    threads: int

    @property
    def are_default(self) -> bool:
        """Whether there are as many as torch's examples, or DALI, use by default."""
        return bool(self.per_gpu == Input.model_fields[self.option.removeprefix("input.")].default)


def limiting_workers(run: Run, number: int = 0) -> LoaderWorkers | None:
    """Return the workers of job *number* if it waits for prepared samples while cores are idle; else None."""
    job = run.jobs[number]
    options = job.job.workload.input
    if options.loader in ("synthetic", "dali_gpu") or job.warm.stalls[Cause.PREP] < NOTICEABLE_WAIT * job.warm.step_time:
        return None
    gpus_of = [(slot, sum(len(gpus) for _, gpus in slot.lent_gpus)) for slot in run.cluster if number in dict(slot.lent_gpus)]
    workers = LoaderWorkers(f"input.{_field(options)}", _workers(options), min(slot.node.host.vcpus // gpus for slot, gpus in gpus_of))
    return workers if workers.per_gpu < workers.threads else None


def with_workers(workload: Workload, workers: int) -> Workload:
    """Return *workload* with *workers* for each GPU."""
    return workload.model_copy(update={"input": workload.input.model_copy(update={_field(workload.input): workers})})


def enough_workers(workers: LoaderWorkers, speedup: float) -> int:
    """Return how many workers would be *speedup* times as fast, if each is as fast as now: as many as hardware threads at most."""
    return min(workers.threads, math.ceil(max(1, workers.per_gpu) * speedup))


def _field(options: Input) -> str:
    return "num_workers" if options.loader == "pytorch" else "num_threads"


def _workers(options: Input) -> int:
    return options.num_workers if options.loader == "pytorch" else options.num_threads
