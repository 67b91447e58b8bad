"""Which guesses decide the answer? Every estimate of a run's descriptions, changed by 30% either way, one at a time.

An estimate is a number without a public source. One that moves the step by more than 5% should be measured before the answer is
believed; all others may stay guesses.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from sim.check import Estimate, count_estimates
from sim.simulate import simulate
from sim.spec.fields import Spec
from sim.spec.hardware import Hardware
from sim.spec.workload import Workload
from sim.training.job import Job

CHANGE = 0.3
"""Share by which each estimate is moved, up and down."""
NOTICEABLE = 0.05
"""Share of the step time from which an estimate is worth a warning."""

_WITHOUT_EFFECT = ("power", "context_memory", "clock", "nccl_bandwidth", "nccl_plugin_latency", "sockets")
"""Keys that never enter a step's time."""


class Sensitivity(NamedTuple):
    """Moving the estimate at *key* by 30% moves the warm step by *share* of itself."""

    key: str
    reason: str
    share: float


def sensitivities(hardware: Hardware, job: Job) -> list[Sensitivity]:
    """Return the estimates that matter to *job* on *hardware*, largest first."""
    base = _step_time(hardware, job)
    found = []
    for spec, estimate in _estimates(hardware, job.workload):
        moved = [_moved(hardware, job, spec, estimate, factor) for factor in (1 - CHANGE, 1 + CHANGE)]
        share = max(abs(step - base) for step in moved) / base
        if share > NOTICEABLE:
            found.append(Sensitivity(estimate.key, estimate.reason, share))
    return sorted(found, key=lambda row: (-row.share, row.key))


def estimate_warnings(hardware: Hardware, job: Job) -> list[str]:
    """Return a sentence for each estimate that matters to *job* on *hardware*."""
    return [
        f"{row.key} is an estimate; 30% more or less would move the step by {100 * row.share:.0f}%" for row in sensitivities(hardware, job)
    ]


def _estimates(hardware: Hardware, workload: Workload) -> Iterator[tuple[Spec, Estimate]]:
    for spec in (hardware, workload):
        for estimate in count_estimates(spec):
            if isinstance(estimate.value, float | tuple) and estimate.value and estimate.key.rpartition(".")[2] not in _WITHOUT_EFFECT:
                yield spec, estimate


def _moved(hardware: Hardware, job: Job, spec: Spec, estimate: Estimate, factor: float) -> float:
    changed = _with_factor(spec, _path(estimate.key, spec), factor)
    if isinstance(changed, Hardware):
        return _step_time(changed, job)
    return _step_time(hardware, replace(job, workload=changed))


def _step_time(hardware: Hardware, job: Job) -> float:
    return simulate(hardware, [job], cold=False).jobs[0].warm.step_time


def _path(key: str, spec: Spec) -> list[str]:
    steps = key.split(".")
    return ["groups", "0", *steps] if isinstance(spec, Hardware) and steps[0] in ("node", "price") else steps


def _with_factor(value: Any, path: Sequence[str], factor: float) -> Any:
    """Return *value* with the number or curve at *path* multiplied."""
    if not path:
        return tuple((size, level * factor) for size, level in value) if isinstance(value, tuple) else value * factor
    step, rest = path[0], path[1:]
    if isinstance(value, Spec):
        return value.model_copy(update={step: _with_factor(getattr(value, step), rest, factor)})
    if isinstance(value, dict):
        return {**value, step: _with_factor(value[step], rest, factor)}
    index = int(step)
    return (*value[:index], _with_factor(value[index], rest, factor), *value[index + 1 :])
