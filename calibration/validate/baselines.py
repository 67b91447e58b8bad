"""What would simple rules predict for the same rows? Free communication, a closed form, and a scaled copy of the nearest run.

All rules use the same measured compute times as the simulator. *Free communication*: the step time is the compute time. *Closed form*:
DDP's buckets become ready at equal intervals during a backward pass of two thirds of the compute, each takes ``2(n-1)/n S/B + 2(n-1) l`` on
one stream, and the step ends with the last. B inside a node, B between nodes and l are fitted to the cluster's network rows. *Copy*: the
step time of the nearest calibrating row of the same job, times the ratio of the compute times.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from calibration.questions import RunQuestion
from sim.parallel.lower.exchange_plan import gradient_bytes
from sim.spec.stack import Ddp, ParameterServer
from sim.spec.stack.exchange import TORCH_BUCKET_CAP

if TYPE_CHECKING:
    import numpy as np

RULES: Final = ("free_communication", "closed_form", "copy_row")
BACKWARD: Final = 2 / 3
"""Share of compute in backward, which has twice the work of forward."""
_START: Final = (math.log(5e9), math.log(2e9), math.log(50e-6))
"""Start values for the fit of the closed form: log bytes/s inside and between nodes, and log seconds per ring step."""
_WIDTH: Final = 3.0
"""Width of a vague prior on their logarithms, which keeps constants finite that no row determines."""


class RunCompute(NamedTuple):
    """A run and its compute time (s), without exposed communication."""

    question: RunQuestion
    compute: float


def free_communication(row: RunCompute) -> float:
    """Return the step time (s) if communication were free."""
    return row.compute


def closed_form(row: RunCompute, constants: Sequence[float]) -> float:
    """Return the step time (s) by the closed form with *constants*: logarithms of both bandwidths and of the latency."""
    ranks = row.question.job.ranks
    if ranks == 1:
        return row.compute
    inside, between, latency = map(math.exp, constants)
    bandwidth = between if row.question.nodes > 1 else inside
    workload = row.question.workload
    nbytes = gradient_bytes(workload) * workload.model.parameters
    exchange = workload.training.stack.exchange
    cap = exchange.bucket_cap if isinstance(exchange, Ddp | ParameterServer) else TORCH_BUCKET_CAP
    buckets = max(1, math.ceil(nbytes / cap))
    each = 2 * (ranks - 1) * (nbytes / buckets / ranks / bandwidth + latency)
    begin = row.compute * (1 - BACKWARD / workload.training.gradient_accumulation_steps)
    done = begin
    for bucket in range(1, buckets + 1):
        done = max(done, begin + (row.compute - begin) * bucket / buckets) + each
    return max(row.compute, done)


def fit_closed_form(rows: Sequence[RunCompute]) -> tuple[float, ...] | None:
    """Return the constants of `closed_form` that best fit the network *rows* of one cluster; None without rows."""
    if not rows:
        return None
    from scipy.optimize import least_squares

    start = list(_START)

    def misses(values: np.ndarray) -> list[float]:
        prior = [0.03 * (value - begin) / _WIDTH for value, begin in zip(values, start, strict=True)]
        return [math.log(closed_form(row, values.tolist()) / row.question.step_time) for row in rows] + prior

    solutions = [
        least_squares(misses, [start[0] + shift, start[1] + shift, start[2]], loss="soft_l1", f_scale=0.1) for shift in (-3, -1.5, 0, 1.5)
    ]
    return tuple(map(float, min(solutions, key=lambda result: result.cost).x))


def copy_row(row: RunCompute, calibration: Sequence[RunCompute]) -> float | None:
    """Return the step time (s) of the nearest run of the same job in *calibration*, scaled by compute; None if there is none."""
    same = [other for other in calibration if _job(other.question) == _job(row.question)]
    if not same:
        return None
    nearest = min(same, key=lambda other: _distance(row.question, other.question))
    return nearest.question.step_time * row.compute / nearest.compute


def _job(question: RunQuestion) -> tuple[str, str, str, str]:
    training = question.workload.training
    return (question.record.workload, training.stack.name, training.stack.exchange.strategy, training.precision)


def _distance(one: RunQuestion, other: RunQuestion) -> float:
    pairs = ((one.job.ranks, other.job.ranks), (one.nodes, other.nodes), (one.batch, other.batch))
    return sum(abs(math.log(first / second)) for first, second in pairs)
