"""How much slower than the layer model does a measured job compute? A factor on its layer times, by batch, from measured runs.

A run with measured exposed synchronization computes for ``step - exposed_sync``; a run on one GPU computes for the whole step. The factor
makes the simulated step, less simulated waits for other ranks, equal to that time. Between measured batches, the factor is interpolated
over the logarithm of the batch; outside their range, a step has a constant part (`calibration.clusters.other_batches`). If no run of the
cluster determines the factor, runs of the same GPU and software do; without any, the layer model is used unchanged.

If a row's steps contain exposed synchronization that was not measured (on several GPUs, or on one with parameter servers), the simulated
one is used.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Final

from calibration.clusters.evaluate import Evaluator, SimulatedCase
from calibration.clusters.other_batches import step_model
from calibration.questions import RunQuestion, question
from calibration.run_records import RunRecord
from sim.spec.stack import ServerExchange

LEAST_SCALE: Final = 0.05
MOST_SCALE: Final = 20.0
"""Limits of the factor; a row beyond them contradicts its own description."""
LARGEST_MISS: Final = 0.05
"""Log of simulated over measured time from which no factor reproduces a row: estimate."""
TOLERANCE: Final = 1e-3
MOST_TRIALS: Final = 6


@dataclass(frozen=True)
class ComputeScale:
    """Factors on layer times: for each group of equal jobs, a list of (batch, factor)."""

    curves: dict[Hashable, list[tuple[int, float]]] = field(default_factory=dict)
    one_gpu_groups: frozenset[Hashable] = frozenset()
    """Groups that were measured on one GPU only."""
    deviations: dict[tuple[Hashable, int], float] = field(default_factory=dict)
    """Standard deviations of the log factors, by group and batch, of batches outside the measured range."""

    def factor(self, question: RunQuestion) -> float | None:
        """Return the factor for *question*; None if nothing was measured."""
        key = self.group(question)
        return None if key is None else _interpolate(self.curves[key], question.batch)

    def deviation(self, question: RunQuestion) -> float:
        """Return the standard deviation of the log factor for *question*; 0 for batches inside the measured range."""
        return self.deviations.get((self.group(question), question.batch), 0.0)

    def needs_slowdown(self, question: RunQuestion) -> bool:
        """Return whether *question* runs on several GPUs but its factor was measured on a single one."""
        return question.job.ranks > 1 and self.group(question) in self.one_gpu_groups

    def group(self, question: RunQuestion) -> Hashable | None:
        """Return the nearest group of *question* that was measured; None if there is none."""
        return next((key for key in group_keys(question) if key in self.curves), None)


def group_keys(question: RunQuestion) -> list[Hashable]:
    """Return the groups that *question* belongs to, nearest first; runs of one group are expected to compute equally fast."""
    record, training = question.record, question.workload.training
    job = (record.workload, training.stack.name, training.stack.exchange.strategy, training.precision)
    here = ("cluster", record.hardware, *job)
    return [
        (*here, record.software, question.workload.input.loader, record.overrides),
        (*here, record.software, question.workload.input.loader),
        (*here, record.software),
        here,
        ("gpu", question.gpu.name, *job, record.software),
    ]


FactorByRecord = Mapping[RunRecord, float | None]
"""The factor of each run; None if no factor reproduces its compute time."""


def solve_factors(rows: Sequence[RunQuestion], evaluator: Evaluator) -> FactorByRecord:
    """Return the factor of each of *rows*. It depends only on the row, so that it is solved once for all clusters that need it."""
    return dict(zip((row.record for row in rows), _solve(rows, evaluator), strict=True))


def measured_scale(
    rows: Sequence[RunQuestion], evaluator: Evaluator, scales: FactorByRecord | None = None, questions: Sequence[RunQuestion] = ()
) -> ComputeScale:
    """Return the factors that *rows* determine; for each batch, rows on several GPUs with measured synchronization displace all others.

    A job on one GPU does less work than a distributed one, or more, so the compute of distributed steps is best measured in such steps.
    Factors in *scales* are not solved again. Batches of *questions* outside the range of their group have factors of their own; other
    batches outside take the factor of the nearest measured one.
    """
    factor_of_record = {**(scales or {})}
    factor_of_record |= solve_factors([row for row in rows if row.record not in factor_of_record], evaluator)
    factors = {id(row): factor_of_record[row.record] for row in rows}
    by_group: dict[Hashable, dict[int, list[RunQuestion]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        if factors[id(row)] is not None:
            for key in group_keys(row):
                by_group[key][row.batch].append(row)
    measured = {key: {batch: _preferred(same) for batch, same in sorted(batches.items())} for key, batches in by_group.items()}
    curves = {
        key: [(batch, median(factors[id(row)] or 1.0 for row in same)) for batch, same in batches.items()]
        for key, batches in measured.items()
    }
    one_gpu_groups = {key for key, batches in measured.items() if all(row.job.ranks == 1 for same in batches.values() for row in same)}
    return _with_batches_beyond(ComputeScale(curves, frozenset(one_gpu_groups)), measured, questions, evaluator)


def _with_batches_beyond(
    scale: ComputeScale,
    measured: Mapping[Hashable, Mapping[int, Sequence[RunQuestion]]],
    questions: Sequence[RunQuestion],
    evaluator: Evaluator,
) -> ComputeScale:
    """Return *scale* with factors for those batches of *questions* that are outside their group's range; *measured* has a group's runs."""
    beyond: dict[Hashable, dict[int, RunQuestion]] = defaultdict(dict)
    for one in questions:
        key = scale.group(one)
        if key is not None and not min(measured[key]) <= one.batch <= max(measured[key]):
            nearest = measured[key][_nearest(measured[key], one.batch)][0]
            beyond[key][one.batch] = question(replace(nearest.record, batch_per_gpu=one.batch), evaluator.folders)
    runs = [run for key, others in beyond.items() for run in (*(same[0] for same in measured[key].values()), *others.values())]
    predictions = evaluator.predict_all([SimulatedCase(run.record, 1.0, ()) for run in runs])
    layers = {id(run): _times(run, one.step, one.compute)[1] for run, one in zip(runs, predictions, strict=True)}
    expected: list[tuple[Hashable, int, RunQuestion]] = []
    deviations: dict[tuple[Hashable, int], float] = {}
    for key, others in beyond.items():
        times = {batch: median(map(_compute_time, same)) for batch, same in measured[key].items()}
        model = step_model([layers[id(same[0])] for same in measured[key].values()], list(times.values()))
        for batch, run in others.items():
            last = _nearest(times, batch)
            growth, deviations[key, batch] = model.growth(layers[id(run)], layers[id(measured[key][last][0])])
            expected.append((key, batch, _with_compute_time(run, times[last] * growth)))
    curves = {key: list(points) for key, points in scale.curves.items()}
    for (key, batch, _), factor in zip(expected, _solve([run for *_, run in expected], evaluator), strict=True):
        if factor is not None:
            curves[key].append((batch, factor))
    return replace(scale, curves={key: sorted(points) for key, points in curves.items()}, deviations=deviations)


def _nearest(batches: Iterable[int], batch: int) -> int:
    return min(batches, key=lambda other: abs(math.log(other / batch)))


def _with_compute_time(run: RunQuestion, compute: float) -> RunQuestion:
    """Return *run* as if its measured compute time had been *compute* seconds."""
    sync = None if run.record.exposed_sync is None else 0.0
    return replace(run, record=replace(run.record, step_time=compute, exposed_sync=sync, throughput=None))


def _preferred(rows: Sequence[RunQuestion]) -> Sequence[RunQuestion]:
    return [row for row in rows if row.job.ranks > 1 and row.record.exposed_sync is not None] or rows


def _solve(rows: Sequence[RunQuestion], evaluator: Evaluator) -> list[float | None]:
    """Return for each of *rows* the factor with which the simulation reproduces its compute time; None if none does.

    This is a secant search on all rows in parallel: one round of simulations is one call.
    """
    guess = [1.0] * len(rows)
    reached: list[list[tuple[float, float]]] = [[] for _ in rows]
    open_rows = list(range(len(rows)))
    for _ in range(MOST_TRIALS):
        predictions = evaluator.predict_all([SimulatedCase(rows[index].record, guess[index], ()) for index in open_rows])
        for index, prediction in zip(open_rows, predictions, strict=True):
            target, simulated = _times(rows[index], prediction.step, prediction.compute)
            reached[index].append((guess[index], math.log(simulated / target)))
            guess[index] = _next(reached[index])
        open_rows = [index for index in open_rows if abs(reached[index][-1][1]) > TOLERANCE]
        if not open_rows:
            break
    best = [min(trials, key=lambda trial: abs(trial[1])) for trials in reached]
    return [scale if abs(miss) < LARGEST_MISS and LEAST_SCALE < scale < MOST_SCALE else None for scale, miss in best]


def _times(row: RunQuestion, step: float, compute: float) -> tuple[float, float]:
    """Return the measured seconds, and the simulated seconds to compare them with."""
    alone = row.job.ranks == 1 and not isinstance(row.workload.training.stack.exchange, ServerExchange)
    return _compute_time(row), compute if alone or row.record.exposed_sync is not None else step


def _compute_time(row: RunQuestion) -> float:
    """Return the measured seconds of a step, less its exposed synchronization if that was measured."""
    return row.step_time - (row.record.exposed_sync or 0.0)


def _next(trials: Sequence[tuple[float, float]]) -> float:
    """Return the factor to try next, given the (factor, log of simulated over measured) so far: a secant in logarithms, near slope 1."""
    scale, miss = trials[-1]
    slope = 1.0
    if len(trials) > 1 and trials[-1][0] != trials[-2][0]:
        slope = (miss - trials[-2][1]) / math.log(scale / trials[-2][0])
    slope = min(1.5, max(0.3, slope))
    return min(MOST_SCALE, max(LEAST_SCALE, scale * math.exp(-miss / slope)))


def _interpolate(curve: Sequence[tuple[int, float]], batch: int) -> float:
    below = [point for point in curve if point[0] <= batch]
    above = [point for point in curve if point[0] >= batch]
    if not below or not above:
        return (above or below)[0 if above else -1][1]
    (low, first), (high, last) = below[-1], above[0]
    if low == high:
        return first
    share = math.log(batch / low) / math.log(high / low)
    return math.exp(math.log(first) * (1 - share) + math.log(last) * share)
