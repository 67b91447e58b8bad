"""Which estimates decide the result? Every estimate in a run's descriptions is changed by 30% up and down, one at a time.

An estimate is a number without a public source. One that changes the step by more than 5% should be measured before the result is
trusted; all others may stay estimates.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

from sim.check import Estimate, count_estimates
from sim.simulate import simulate
from sim.spec.fields import Spec
from sim.spec.hardware import Hardware
from sim.spec.sections import file_values, with_fields
from sim.spec.workload import Workload
from sim.study.pool import Progress, cores, each
from sim.training.job import Job

CHANGE = 0.3
"""Share by which each estimate is changed, up and down."""
NOTICEABLE = 0.05
"""Share of the step time above which an estimate gets a warning."""

LONG = 2.0
"""Seconds of all runs above which cores share them: processes take one second to start."""
CORES = 4
"""Minimum number of cores with which that pays off."""

_WITHOUT_EFFECT = ("power", "context_memory", "clock", "nccl_bandwidth", "nccl_plugin_latency", "sockets")
"""Keys that never affect the step time."""


class Sensitivity(NamedTuple):
    """Changing the estimate at *key* by 30% changes the warm step by *share* of itself."""

    key: str
    reason: str
    share: float


def sensitivities(hardware: Hardware, job: Job, progress: Progress | None = None) -> list[Sensitivity]:
    """Return the estimates that matter to *job* on *hardware*, largest effect first.

    *progress* gets the number of runs done and the total; if it is given and the runs take long, all cores share them.
    """
    started = time.monotonic()
    base = _step_time(hardware, job)
    took = time.monotonic() - started
    tried = list(_estimates(hardware, job.workload))
    moves = [(of_hardware, estimate.key, factor) for of_hardware, estimate in tried for factor in (1 - CHANGE, 1 + CHANGE)]
    shared = progress is not None and took * len(moves) > LONG and cores() >= CORES
    processes = None if shared else 1
    steps: list[float] = []
    for step in each(partial(_moved, hardware, job), moves, processes):
        steps.append(step)
        if progress is not None:
            progress(len(steps), len(moves))
    sensitive = []
    for (_, estimate), moved in zip(tried, zip(steps[::2], steps[1::2], strict=True), strict=True):
        share = max(abs(step - base) for step in moved) / base
        if share > NOTICEABLE:
            sensitive.append(Sensitivity(estimate.key, estimate.reason, share))
    return sorted(sensitive, key=lambda row: (-row.share, row.key))


def estimate_warnings(hardware: Hardware, job: Job, progress: Progress | None = None) -> list[str]:
    """Return a sentence for each estimate that matters to *job* on *hardware*; for *progress* see `sensitivities`."""
    return [
        f"{row.key} is an estimate; 30% more or less would change the step time by {100 * row.share:.0f}%"
        for row in sensitivities(hardware, job, progress)
    ]


def _estimates(hardware: Hardware, workload: Workload) -> Iterator[tuple[bool, Estimate]]:
    """Yield each estimate that may matter, and whether it belongs to the hardware."""
    spec: Spec
    for spec in (hardware, workload):
        for estimate in count_estimates(spec):
            if isinstance(estimate.value, float | tuple) and estimate.value and estimate.key.rpartition(".")[2] not in _WITHOUT_EFFECT:
                yield spec is hardware, estimate


def _moved(hardware: Hardware, job: Job, move: tuple[bool, str, float]) -> float:
    of_hardware, key, factor = move
    spec: Spec = hardware if of_hardware else job.workload
    changed = _with_factor(spec, _path(key, spec), factor)
    if isinstance(changed, Hardware):
        return _step_time(changed, job)
    return _step_time(hardware, replace(job, workload=changed))


def _step_time(hardware: Hardware, job: Job) -> float:
    return simulate(hardware, [job], cold=False).jobs[0].warm.step_time


def _path(key: str, spec: Spec) -> list[str]:
    steps = key.split(".")
    return ["groups", "0", *steps] if isinstance(spec, Hardware) and steps[0] in ("node", "price") else steps


def _with_factor(value: Any, path: Sequence[str], factor: float) -> Any:
    """Return *value* with the number or curve at *path* multiplied by *factor*."""
    if not path:
        return tuple((size, level * factor) for size, level in value) if isinstance(value, tuple) else value * factor
    step, rest = path[0], path[1:]
    if isinstance(value, Spec):
        return with_fields(value, **{step: _with_factor(file_values(value)[step], rest, factor)})
    if isinstance(value, dict):
        return {**value, step: _with_factor(value[step], rest, factor)}
    index = int(step)
    return (*value[:index], _with_factor(value[index], rest, factor), *value[index + 1 :])
