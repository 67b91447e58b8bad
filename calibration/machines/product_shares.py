"""Which share of its peak do a GPU's own matrix products reach? One number by precision, beside the constants of its architecture.

Layers that say the shapes of their products are timed by `sim.cluster.kernels`, in which a board differs from others of its architecture
by ``product_share`` alone: what its power lets through. The measured products of a record tell it (`calibration.kernels.fit.fit_share`,
least absolute errors). It is taken where shares of one half of the shapes predict the other half better than the described one does, so a
record never makes products worse than the catalogue has them by what it can tell itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

import numpy as np

from calibration.kernels.fit import errors, fit_share, with_kernels
from calibration.kernels.records import PEAKS, KernelRow
from calibration.machines.machine_fit import Measured, typical
from sim.cluster.kernels import ProductShape, described
from sim.spec.fields import Peak
from sim.spec.hardware import Gpu

LEAST_SHAPES: Final = 6
"""Shapes of one precision below which halves say little."""


class ProductShare(NamedTuple):
    """What products of one precision reach, and how far they are missed (mean absolute error of logarithms) when they are left out."""

    share: float
    points: int
    described: float
    """Missed by the share of the description .."""
    left_out: float
    """.. and by that of the other half of the shapes."""


def product_shares(measured: Measured, gpu: Gpu) -> dict[Peak, ProductShare]:
    """Return the shares of *gpu*'s peaks that the record's products tell, of precisions whose kernels are described."""
    shares: dict[Peak, ProductShare] = {}
    products = list(_products(measured, gpu))
    for peak in dict.fromkeys(row.peak for row in products):
        rows = [row for row in products if row.peak == peak]
        if len(rows) < LEAST_SHAPES:
            continue
        usual = _missed(rows, gpu, peak, None)
        halves = rows[::2], rows[1::2]
        other = sum(len(rest) * _missed(rest, gpu, peak, _share(half, gpu)) for half, rest in (halves, halves[::-1])) / len(rows)
        if other < usual:
            shares[peak] = ProductShare(_share(rows, gpu), len(rows), usual, other)
    return shares


def _products(measured: Measured, gpu: Gpu) -> Iterable[KernelRow]:
    """Yield the measured products whose kernels *gpu* describes, the smallest first; what a launch outlasts tells nothing of the peak."""
    alone = [row for row in measured.rows("gemm") if "together" not in row and row["precision"] in PEAKS]
    for row in sorted(alone, key=lambda row: (row["flop"], row["shape"])):
        peak = PEAKS[row["precision"]]
        if described(gpu, peak) and row["flop"] / gpu.peak[peak] >= gpu.kernel_time:
            rows, columns, depth = row["shape"]
            shape = ProductShape(rows, columns, depth)
            yield KernelRow(gpu.name, "gemm", "", row["precision"], False, shape, None, None, 1, 0.0, typical(row), measured.name)


def _share(rows: Sequence[KernelRow], gpu: Gpu) -> float:
    return fit_share(rows, {gpu.name: gpu})


def _missed(rows: Sequence[KernelRow], gpu: Gpu, peak: Peak, share: float | None) -> float:
    there = gpu if share is None else with_kernels(gpu, {"product_share": {peak: share}})
    return float(np.mean(np.abs(errors(rows, {gpu.name: there}))))
