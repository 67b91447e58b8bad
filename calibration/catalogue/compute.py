"""Which factors fit 1-GPU rows best, and how well do they predict rows that were never fitted?

The fit is a ridge regression in logarithms: each row's ``log(predicted / measured)`` is in units of the noise, each factor's logarithm in
units of its plausible spread. So a factor without rows keeps the value from DeepBench's kernels, and an architecture without rows takes the
mean of all. Rows of one batch sweep share their weight. Each chip, model, stack, and architecture with all newer ones is left out in
turn. The baseline is a constant fraction of peak, fitted to the same remaining rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np

from calibration.catalogue.compute_model import (
    FIRST_KERNELS,
    ROW_FACTORS,
    FactorRow,
    Vector,
    all_factor_keys,
    factor_keys,
    step_time,
    step_time_and_slopes,
)

NOISE: Final = 0.07
"""Error of a row that is not the model's fault: repeated runs, clocks, drivers (DLPerf's and Lambda's containers differ by 5 to 10%)."""
PRIOR_WIDTHS: Final = {
    "all": {"vector": 0.05, "tensor": 0.2, "gemm": 0.2, "memory": 0.1},
    "measured": {"vector": 0.08, "tensor": 0.1, "gemm": 0.1, "memory": 0.1},
    "estimated": {"vector": 0.25, "tensor": 0.1, "gemm": 0.2, "memory": 0.15},
    FIRST_KERNELS: {"tensor": 0.5},
    "stack": {"overall": 0.15, "tensor": 0.15, "gemm": 0.15, "fused": 0.25, "launch": 0.5, "optimizer": 0.7},
}
"""Prior standard deviation of each factor's logarithm: estimate (clocks, caches and layouts; savings by fusion)."""
DEEPBENCH_ARCHITECTURES: Final = frozenset({"cc 5.2", "cc 6.0", "cc 6.1", "cc 7.0"})
"""Architectures whose kernels are in DeepBench (Turing's T4 is throttled and represents only itself)."""
GAUSS_NEWTON_STEPS: Final = 8
_LEAST_OLDER: Final = 2

Factors = Mapping[tuple[str, str], float]


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


def row_factors(row: FactorRow, factors: Factors) -> Vector:
    """Return the log factors of *row* in the order of ``LOCAL``; those without a fitted value are zero."""
    local = np.zeros(len(ROW_FACTORS))
    for key, place in factor_keys(row):
        local[place] += factors.get(key, 0.0)
    return local


def predict(row: FactorRow, factors: Factors) -> float:
    """Return the step time of *row*, seconds."""
    return step_time(row, row_factors(row, factors))


def fit(rows: Sequence[FactorRow]) -> Factors:
    """Return the factors that best fit those of *rows* that have the role ``compute``."""
    rows = [row for row in rows if row.record.role == "compute"]
    keys = all_factor_keys(rows)
    index = {key: number for number, key in enumerate(keys)}
    scale = np.array([PRIOR_WIDTHS[_prior_group(owner)][kind] for kind, owner in keys])
    weights = _weights(rows)
    values = np.zeros(len(keys))
    for _ in range(GAUSS_NEWTON_STEPS):
        factors = dict(zip(keys, values, strict=True))
        matrix, residual = np.zeros((len(rows), len(keys))), np.zeros(len(rows))
        for number, row in enumerate(rows):
            local = row_factors(row, factors)
            predicted, slope = step_time_and_slopes(row, local)
            residual[number] = np.log(row.measured / predicted) / NOISE
            for key, place in factor_keys(row):
                matrix[number, index[key]] += slope[place] / NOISE
        robust = weights / np.maximum(1.0, np.abs(residual) / 2.0)
        normal = matrix.T @ (robust[:, None] * matrix) + np.diag(1 / scale**2)
        step = np.linalg.solve(normal, matrix.T @ (robust * residual) - values / scale**2)
        values = values + np.clip(step, -0.3, 0.3)
    return dict(zip(keys, values, strict=True))


def _prior_group(name: str) -> str:
    if name in ("all", FIRST_KERNELS):
        return name
    return ("measured" if name in DEEPBENCH_ARCHITECTURES else "estimated") if name.startswith("cc ") else "stack"


def _weights(rows: Sequence[FactorRow]) -> Vector:
    """Return row weights with which a batch sweep of n rows counts as much as sqrt(n) single rows."""
    sweep = [(row.record.hardware, row.record.workload, row.stack, row.record.precision) for row in rows]
    return np.array([sweep.count(key) ** -0.5 for key in sweep])


def constant_fraction(rows: Sequence[FactorRow]) -> Callable[[FactorRow], float]:
    """Return the baseline: FLOP over a fraction of peak; the fraction is the median of those *rows* that use the same kind of units."""
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
