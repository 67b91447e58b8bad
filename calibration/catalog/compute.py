"""Which factors fit 1-GPU rows best?

The fit is a ridge regression in logarithms: each row's ``log(predicted / measured)`` is in units of the noise, each factor's logarithm in
units of its plausible spread. So a factor without rows keeps the value from DeepBench's kernels, and an architecture without rows takes the
mean of all. Rows of one batch sweep share their weight. A test (`tests.calibration.catalog.predicting`) predicts rows left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from calibration.catalog.compute_model import (
    FIRST_KERNELS,
    ROW_FACTORS,
    FactorRow,
    Vector,
    all_factor_keys,
    factor_keys,
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

Factors = Mapping[tuple[str, str], float]


def row_factors(row: FactorRow, factors: Factors) -> Vector:
    """Return the log factors of *row* in the order of ``LOCAL``; those without a fitted value are zero."""
    local = np.zeros(len(ROW_FACTORS))
    for key, place in factor_keys(row):
        local[place] += factors.get(key, 0.0)
    return local


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
