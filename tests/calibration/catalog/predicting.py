"""How well do the factors of `calibration.catalog.compute` predict rows that were never fitted?

Left out in turn are a chip, a model, a stack, or an architecture with all newer ones; the baseline is a constant fraction of peak, fitted
to the same remaining rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np

from calibration.catalog.compute import Factors, fit, row_factors
from calibration.catalog.compute_model import FactorRow, step_time

_LEAST_OLDER: Final = 2


class Score(NamedTuple):
    """Absolute relative errors of step time over *rows*."""

    rows: int
    median: float
    p90: float


@dataclass(frozen=True)
class LeftOutPrediction:
    """One row, predicted from a fit without it and the rows that were left out with it."""

    row: FactorRow
    left_out: str
    predicted: float
    baseline: float

    @property
    def error(self) -> float:
        """Return predicted / measured - 1."""
        return self.predicted / self.row.measured - 1


def predict(row: FactorRow, factors: Factors) -> float:
    """Return the step time of *row*, seconds."""
    return step_time(row, row_factors(row, factors))


def constant_fraction(rows: Sequence[FactorRow]) -> Callable[[FactorRow], float]:
    """Return the baseline: FLOP over a fraction of peak, which is the median over those of *rows* that use the same kind of units."""
    fractions = {
        kind: float(np.median([row.flop / row.peak / row.measured for row in rows if bool(row.on_tensor_cores.any()) is kind] or [0.5]))
        for kind in (False, True)
    }
    return lambda row: row.flop / row.peak / fractions[bool(row.on_tensor_cores.any())]


def leave_out(rows: Sequence[FactorRow], by: Callable[[FactorRow], str]) -> list[LeftOutPrediction]:
    """Return a prediction of every row from factors fitted without the rows for which *by* returns the same."""
    predictions: list[LeftOutPrediction] = []
    for name in sorted({by(row) for row in rows}):
        rest = [row for row in rows if by(row) != name]
        factors, baseline = fit(rest), constant_fraction(rest)
        predictions += [LeftOutPrediction(row, name, predict(row, factors), baseline(row)) for row in rows if by(row) == name]
    return predictions


def predict_from_older(rows: Sequence[FactorRow]) -> list[LeftOutPrediction]:
    """Return predictions of each architecture's rows from factors fitted to the older architectures only, if there are at least two."""
    predictions: list[LeftOutPrediction] = []
    for capability in sorted({row.capability for row in rows}, key=float):
        older = [row for row in rows if float(row.capability) < float(capability)]
        if len({row.capability for row in older}) < _LEAST_OLDER:
            continue
        factors, baseline = fit(older), constant_fraction(older)
        here = [row for row in rows if row.capability == capability]
        predictions += [LeftOutPrediction(row, capability, predict(row, factors), baseline(row)) for row in here]
    return predictions


def predict_from_one_point(rows: Sequence[FactorRow]) -> list[LeftOutPrediction]:
    """Return predictions of each sweep's other batches, scaled by its middle batch: one measured point of the same GPU, model and stack.

    The factors are fitted only to the middle batches and to rows outside sweeps, so that no predicted batch contributes to them.
    """
    sweeps = _sweeps(rows)
    factors = fit([sweep[len(sweep) // 2] for sweep in sweeps])
    predictions: list[LeftOutPrediction] = []
    for sweep in sweeps:
        middle = sweep[len(sweep) // 2]
        ratio, rate = middle.measured / predict(middle, factors), middle.measured / (middle.record.batch_per_gpu or 1)
        predictions += [
            LeftOutPrediction(row, "other batches", ratio * predict(row, factors), rate * (row.record.batch_per_gpu or 1))
            for row in sweep
            if row.record.batch_per_gpu != middle.record.batch_per_gpu
        ]
    return predictions


def _sweeps(rows: Sequence[FactorRow]) -> list[list[FactorRow]]:
    """Return *rows* grouped by everything but the batch (source, GPU, model, stack, ...), each group sorted by batch."""
    sweeps: dict[tuple[str, ...], list[FactorRow]] = {}
    for row in rows:
        record = row.record
        key = (record.source, record.hardware, record.workload, row.stack, str(record.precision), record.overrides)
        sweeps.setdefault(key, []).append(row)
    return [sorted(sweep, key=lambda row: row.record.batch_per_gpu or 0) for sweep in sweeps.values()]


def score(errors: Iterable[float]) -> Score:
    """Return the median and the 90th percentile of the absolute *errors*."""
    sizes = np.abs(np.array(list(errors)))
    return Score(len(sizes), float(np.median(sizes)), float(np.percentile(sizes, 90)))
