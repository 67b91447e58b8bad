"""How much slower than the layer model does a measured job compute? A factor on its layer times, by batch, from measured runs.

A run that was measured together with its exposed synchronisation computes for ``step - exposed_sync``; on one GPU for the whole step.
Its factor makes the simulated step, less simulated waits for other ranks, equal to that. Between measured batches the factor is
interpolated over the logarithm of the batch, beyond them it stays: there the layer model's own dependence on the batch holds. Where no
run of the cluster says, runs of the same GPU and software do; where none does, the layer model is taken as it is.

A row without exposed synchronisation whose steps hold some, on several GPUs or on one with parameter servers, is taken with the simulated
one.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Final

from calibration.clusters.evaluate import Case, Evaluator
from calibration.questions import Question
from calibration.run_records import RunRecord

LEAST_SCALE: Final = 0.05
MOST_SCALE: Final = 20.0
"""Factors beyond which a row contradicts its own description."""
CLOSE: Final = 1e-3
MOST_TRIALS: Final = 6


@dataclass(frozen=True)
class ComputeScale:
    """Factors on layer times: by group of equal jobs, a list of (batch, factor); *alone* are the groups measured on one GPU each."""

    curves: dict[Hashable, list[tuple[int, float]]] = field(default_factory=dict)
    alone: frozenset[Hashable] = frozenset()

    def of(self, asked: Question) -> float | None:
        """Return the factor for *asked*; None where nothing was measured."""
        key = self._key(asked)
        return None if key is None else _at(self.curves[key], asked.batch)

    def joins_others(self, asked: Question) -> bool:
        """Tell whether *asked* runs on several GPUs, and its factor was measured on one by itself."""
        return asked.job.ranks > 1 and self._key(asked) in self.alone

    def _key(self, asked: Question) -> Hashable | None:
        return next((key for key in group_keys(asked) if key in self.curves), None)


def group_keys(asked: Question) -> list[Hashable]:
    """Return the groups that *asked* belongs to, the nearest first: runs of one group are expected to compute alike."""
    record, training = asked.record, asked.workload.training
    job = (record.workload, training.stack.name, training.stack.strategy, training.precision)
    here = ("cluster", record.hardware, *job)
    return [
        (*here, record.software, asked.workload.input.loader, record.overrides),
        (*here, record.software, asked.workload.input.loader),
        (*here, record.software),
        here,
        ("gpu", asked.gpu.name, *job, record.software),
    ]


Solved = Mapping[RunRecord, float | None]
"""The factor of each run, None where none meets its compute time."""


def solved(rows: Sequence[Question], evaluator: Evaluator) -> Solved:
    """Return the factor of each of *rows*, which tell it by themselves: so what several clusters ask is found once for all."""
    return dict(zip((row.record for row in rows), _solve(rows, evaluator), strict=True))


def measured_scale(rows: Sequence[Question], evaluator: Evaluator, known: Solved | None = None) -> ComputeScale:
    """Return the factors that *rows* tell; where some of a group ran on several GPUs, those on one GPU are left out of it.

    A job that runs alone skips work that distributed ones do, or does more: compute of distributed steps is measured in such steps.
    Factors that are *known* are not looked for again.
    """
    told = {**(known or {})}
    told |= solved([row for row in rows if row.record not in told], evaluator)
    factors = {id(row): told[row.record] for row in rows}
    found: dict[Hashable, dict[int, list[Question]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        if factors[id(row)] is not None:
            for key in group_keys(row):
                found[key][row.batch].append(row)
    curves: dict[Hashable, list[tuple[int, float]]] = {}
    for key, batches in found.items():
        curves[key] = [(batch, median(factors[id(row)] or 1.0 for row in _preferred(same))) for batch, same in sorted(batches.items())]
    alone = {key for key, batches in found.items() if all(row.job.ranks == 1 for same in batches.values() for row in _preferred(same))}
    return ComputeScale(curves, frozenset(alone))


def _preferred(rows: Sequence[Question]) -> Sequence[Question]:
    return [row for row in rows if row.job.ranks > 1 and row.record.exposed_sync is not None] or rows


def _solve(rows: Sequence[Question], evaluator: Evaluator) -> list[float | None]:
    """Return for each of *rows* the factor with which the simulation meets its compute time; None where none does.

    Regula falsi on all rows side by side: one round of simulations is one call.
    """
    guess = [1.0] * len(rows)
    reached: list[list[tuple[float, float]]] = [[] for _ in rows]
    open_rows = list(range(len(rows)))
    for _ in range(MOST_TRIALS):
        found = evaluator.all([Case(rows[index].record, guess[index], ()) for index in open_rows])
        for index, prediction in zip(open_rows, found, strict=True):
            target, simulated = _times(rows[index], prediction.step, prediction.compute)
            reached[index].append((guess[index], math.log(simulated / target)))
            guess[index] = _next(reached[index])
        open_rows = [index for index in open_rows if abs(reached[index][-1][1]) > CLOSE]
        if not open_rows:
            break
    best = [min(trials, key=lambda trial: abs(trial[1])) for trials in reached]
    return [scale if abs(miss) < 0.05 and LEAST_SCALE < scale < MOST_SCALE else None for scale, miss in best]


def _times(row: Question, step: float, compute: float) -> tuple[float, float]:
    """Return the measured seconds and the simulated ones that they are compared with."""
    alone = row.job.ranks == 1 and not row.workload.training.stack.uses_servers
    if alone or row.record.exposed_sync is not None:
        return row.step_time - (row.record.exposed_sync or 0.0), compute
    return row.step_time, step


def _next(trials: Sequence[tuple[float, float]]) -> float:
    """Return where to try next, given (factor, log of simulated over measured) so far: the secant in logarithms, near slope 1."""
    scale, miss = trials[-1]
    slope = 1.0
    if len(trials) > 1 and trials[-1][0] != trials[-2][0]:
        slope = (miss - trials[-2][1]) / math.log(scale / trials[-2][0])
    slope = min(1.5, max(0.3, slope))
    return min(MOST_SCALE, max(LEAST_SCALE, scale * math.exp(-miss / slope)))


def _at(curve: Sequence[tuple[int, float]], batch: int) -> float:
    below = [point for point in curve if point[0] <= batch]
    above = [point for point in curve if point[0] >= batch]
    if not below or not above:
        return (above or below)[0 if above else -1][1]
    (low, first), (high, last) = below[-1], above[0]
    if low == high:
        return first
    share = math.log(batch / low) / math.log(high / low)
    return math.exp(math.log(first) * (1 - share) + math.log(last) * share)
