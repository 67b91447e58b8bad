"""What do parameter servers cost on measured clusters? Two fitted constants of the processor: time per update, and per byte.

Rows of role ``network`` determine both, by least squares of the logarithm of throughput (soft L1, because single rows are off by 20%). Rows
of role ``compute``, one worker with its server, give each model's compute time on each GPU. It is derived again for every trial, so that
the exchange of one worker is not counted twice. Rows of role ``prediction`` are only predicted. Models must differ in bytes per variable,
or the two constants cannot be distinguished: `spread` returns by how much they differ.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any, Final, NamedTuple

from calibration import RECORDS
from calibration.questions import RunQuestion, question
from calibration.run_records import read_records
from sim.events import Cause
from sim.simulate import JobRun, simulate
from sim.spec.sections import with_fields
from sim.spec.servers import Servers
from sim.spec.stack import ServerExchange
from sim.spec.yaml import SpecError
from sim.training.sharding import shards

SERVER_RUNS: Final = RECORDS / "cmdare.csv"
"""The runs that come with the package."""
LEAST_COMPUTE: Final = 0.01
"""Lower limit of the factor on layer times."""


class ServerCosts(NamedTuple):
    """Core-seconds per update, and per byte in or out."""

    per_update: float
    per_byte: float


class PredictedRun(NamedTuple):
    """One run as measured and as simulated: steps per second of all workers together."""

    question: RunQuestion
    measured: float
    predicted: float

    @property
    def error(self) -> float:
        """Return predicted / measured - 1."""
        return self.predicted / self.measured - 1


@dataclass(frozen=True)
class ServerFit:
    """Fitted costs, and every row with its prediction."""

    costs: ServerCosts
    rows: tuple[PredictedRun, ...]


def fit_servers(files: Sequence[Path]) -> ServerFit:
    """Return the costs that fit the ``network`` rows of *files*, and predictions of all rows. Raise SpecError if they cannot be fitted."""
    rows = [question(record) for path in files for record in read_records(path).records]
    without_servers = [row for row in rows if not isinstance(row.workload.training.stack.exchange, ServerExchange)]
    if without_servers:
        raise SpecError(f"{without_servers[0].record.where}: the stack has no parameter servers; remove the row, or use another stack")
    fitted = [row for row in rows if row.record.role == "network"]
    if bytes_per_variable_ratio(fitted) < 1.5:
        raise SpecError(
            f"{files[0]}: expected rows of role 'network' of two or more models whose mean bytes per variable differ by at least half; "
            "otherwise the cost per update and per byte cannot be separated"
        )
    costs = _fit(fitted, rows)
    return ServerFit(costs, tuple(_predict(rows, costs, _factors(rows, costs))))


def bytes_per_variable_ratio(rows: Iterable[RunQuestion]) -> float:
    """Return the ratio of the largest to the smallest mean bytes per variable among the models of *rows*."""
    sizes = [row.workload.model.parameters / sum(len(layer.gradients) for layer in row.workload.model.layers) for row in rows]
    return max(sizes) / min(sizes) if sizes else 0.0


def _fit(fitted: Sequence[RunQuestion], rows: Sequence[RunQuestion]) -> ServerCosts:
    from scipy.optimize import least_squares

    def misses(logs: Sequence[float]) -> list[float]:
        costs = ServerCosts(math.exp(logs[0]), math.exp(logs[1]))
        return [math.log1p(row.error) for row in _predict(fitted, costs, _factors(rows, costs))]

    solution = least_squares(misses, [-8.3, -20.3], loss="soft_l1", f_scale=0.05, diff_step=1e-3)  # starts at 0.25 ms and 1.5 s/GB
    return ServerCosts(math.exp(solution.x[0]), math.exp(solution.x[1]))


def _factors(rows: Iterable[RunQuestion], costs: ServerCosts) -> dict[tuple[str, str], float]:
    """Return, by hardware and workload, the factor on layer times with which one worker is as fast as measured."""
    factors = {}
    for row in rows:
        if row.record.role == "compute":
            alone = _simulated(row, costs, 1.0).warm
            missing = row.step_time - alone.step_time
            factors[row.record.hardware, row.record.workload] = max(LEAST_COMPUTE, 1 + missing / alone.stalls[Cause.COMPUTE])
    return factors


def _predict(rows: Iterable[RunQuestion], costs: ServerCosts, factors: Mapping[tuple[str, str], float]) -> list[PredictedRun]:
    predicted = []
    for row in rows:
        run = _simulated(row, costs, factors.get((row.record.hardware, row.record.workload), 1.0))
        predicted.append(PredictedRun(row, row.job.ranks / row.step_time, row.job.ranks / run.warm.step_time))
    return predicted


def _simulated(row: RunQuestion, costs: ServerCosts, factor: float) -> JobRun:
    """Return the simulated run of *row*, with these *costs* and this *factor* on layer times."""
    training = row.workload.training
    stack = training.stack
    if (servers := _servers_of(row)) is not None:
        own = servers.model_copy(update={"update_cpu": costs.per_update, "byte_cpu": costs.per_byte})
        stack = with_fields(stack, servers=own)
    job = replace(row.job, workload=row.workload.with_training(stack=stack, compute_factor=factor))
    return simulate(row.hardware, [job], cold=False).jobs[0]


def server_table(fit: ServerFit) -> str:
    """Return measured and predicted steps per second, row by row, and the errors of each cluster's fitted and predicted rows."""
    lines = [f"update {fit.costs.per_update * 1e3:.3f} ms, {fit.costs.per_byte * 1e9:.2f} s/GB on one core of the reference processor", ""]
    lines.append(f"{'hardware':14} {'workload':20} {'servers':>7} {'workers':>7} {'measured':>9} {'predicted':>9} {'error':>7}  role")
    for row in fit.rows:
        lines.append(
            f"{row.question.record.hardware:14} {row.question.record.workload:20} {_servers(row):7} {row.question.job.ranks:7} "
            f"{row.measured:9.2f} {row.predicted:9.2f} {100 * row.error:6.1f}%  {row.question.record.role}"
        )
    lines.append("")
    for hardware in dict.fromkeys(row.question.record.hardware for row in fit.rows):
        for role in ("network", "prediction"):
            middle, high, count = error_summary(
                row for row in fit.rows if (row.question.record.hardware, row.question.record.role) == (hardware, role)
            )
            if count:
                lines.append(f"{hardware:14} {role:12} {count:3} rows: median {100 * middle:.1f}%, 90th percentile {100 * high:.1f}%")
    return "\n".join([*lines, "", *_second_servers(fit)])


def _second_servers(fit: ServerFit) -> list[str]:
    """Return a line for each model with one and two servers: the gain from the second with the most workers, and its cause."""
    lines = []
    for hardware, workload in dict.fromkeys((row.question.record.hardware, row.question.record.workload) for row in fit.rows):
        rows = [row for row in fit.rows if (row.question.record.hardware, row.question.record.workload) == (hardware, workload)]
        most = max(row.question.job.ranks for row in rows)
        one, two = ([row for row in rows if row.question.job.ranks == most and _servers(row) == count] for count in (1, 2))
        if one and two:
            share = _busiest_share(two[0])
            measured, predicted = two[0].measured / one[0].measured - 1, two[0].predicted / one[0].predicted - 1
            lines.append(
                f"{hardware:14} {workload:20} {most} workers: a second server adds {100 * measured:.1f}%, predicted "
                f"{100 * predicted:.1f}%; with round-robin variables, one of the two holds {100 * share:.1f}% of the bytes"
            )
    return lines


def _servers_of(row: RunQuestion) -> Servers | None:
    exchange = row.workload.training.stack.exchange
    return exchange.servers if isinstance(exchange, ServerExchange) else None


def _servers(row: PredictedRun) -> int:
    servers = _servers_of(row.question)
    return servers.count if servers else 0


def _busiest_share(row: PredictedRun) -> float:
    """Return the share of a model's bytes that is on the server with the most."""
    servers = _servers_of(row.question)
    kept = [sum(shard.nbytes for shard in own) for own in zip(*shards(row.question.workload, servers), strict=True)] if servers else [1.0]
    return max(kept) / sum(kept)


def server_document(fit: ServerFit) -> dict[str, Any]:
    """Return the fit as a JSON document; errors as fractions."""
    rows = [
        {
            "hardware": row.question.record.hardware,
            "workload": row.question.record.workload,
            "servers": _servers(row),
            "busiest_server_share": _busiest_share(row),
            "workers": row.question.job.ranks,
            "role": row.question.record.role,
            "measured_steps_per_s": row.measured,
            "predicted_steps_per_s": row.predicted,
            "error": row.error,
        }
        for row in fit.rows
    ]
    return {"update_cpu_s": fit.costs.per_update, "byte_cpu_s_per_byte": fit.costs.per_byte, "rows": rows}


def error_summary(rows: Iterable[PredictedRun]) -> tuple[float, float, int]:
    """Return the median and 90th percentile of the absolute errors of *rows*, and their number."""
    sizes = sorted(abs(row.error) for row in rows)
    if not sizes:
        return 0.0, 0.0, 0
    place = 0.9 * (len(sizes) - 1)
    low = int(place)
    high = sizes[low] + (place - low) * (sizes[min(low + 1, len(sizes) - 1)] - sizes[low])
    return median(sizes), high, len(sizes)
