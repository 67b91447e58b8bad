"""Which share of its peak do the matrix products of one GPU reach? One value per precision, with the other constants of its architecture.

Layers with specified product shapes are timed by `sim.cluster.kernels`. There a GPU model differs from others of its architecture only by
``product_share``, the share of the peak that its power limit allows. It is fitted to the measured products of a record with least absolute
errors (`calibration.kernels.fit.fit_share`). A fitted share is used only if cross-validation between two halves of the shapes shows smaller
errors than the described share.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

import numpy as np

from calibration.kernels.fit import fit_share, log_errors, with_kernels
from calibration.kernels.records import PEAKS, KernelRow
from calibration.machines.machine_fit import MergedRecords, median_time
from sim.cluster.kernels import ProductShape, kernels_of
from sim.spec.fields import Peak
from sim.spec.hardware import Gpu

LEAST_SHAPES: Final = 6
"""Least number of shapes of one precision for a cross-validation of halves."""


class ProductShare(NamedTuple):
    """The share of the peak that products of one precision reach, with errors (mean absolute error of log times)."""

    share: float
    points: int
    described_error: float
    """Error with the share of the description."""
    left_out_error: float
    """Error with the share fitted to the other half of the shapes."""


def product_shares(records: MergedRecords, gpu: Gpu) -> dict[Peak, ProductShare]:
    """Return the shares of *gpu*'s peaks fitted to the measured products, for the precisions at which they beat the described ones."""
    shares: dict[Peak, ProductShare] = {}
    products = list(_products(records, gpu))
    for peak in dict.fromkeys(row.peak for row in products):
        rows = [row for row in products if row.peak == peak]
        if len(rows) < LEAST_SHAPES:
            continue
        usual = _mean_error(rows, gpu, peak, None)
        halves = rows[::2], rows[1::2]
        held_out = sum(len(rest) * _mean_error(rest, gpu, peak, _share(half, gpu)) for half, rest in (halves, halves[::-1])) / len(rows)
        if held_out < usual:
            shares[peak] = ProductShare(_share(rows, gpu), len(rows), usual, held_out)
    return shares


def _products(records: MergedRecords, gpu: Gpu) -> Iterable[KernelRow]:
    """Yield the measured products whose kernels *gpu* describes, smallest first, without those too short to be bound by the peak."""
    alone = [row for row in records.rows("gemm") if "together" not in row and row["precision"] in PEAKS]
    for row in sorted(alone, key=lambda row: (row["flop"], row["shape"])):
        peak = PEAKS[row["precision"]]
        if kernels_of(gpu, peak) and row["flop"] / gpu.peak[peak] >= gpu.kernel_time:
            rows, columns, depth = row["shape"]
            shape = ProductShape(rows, columns, depth)
            yield KernelRow(gpu.name, "gemm", "", row["precision"], False, shape, None, None, 1, 0.0, median_time(row), records.name)


def _share(rows: Sequence[KernelRow], gpu: Gpu) -> float:
    return fit_share(rows, {gpu.name: gpu})


def _mean_error(rows: Sequence[KernelRow], gpu: Gpu, peak: Peak, share: float | None) -> float:
    changed_gpu = gpu if share is None else with_kernels(gpu, {"product_share": {peak: share}})
    return float(np.mean(np.abs(log_errors(rows, {gpu.name: changed_gpu}))))
