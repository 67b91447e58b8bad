"""Which constants describe measured kernels best? Those with the least absolute log errors, first for all GPUs, then for one.

The model's constants are physical and nearly the same everywhere: they are fitted to all GPUs together, then to each architecture, where a
penalty (`PENALTY` per squared log step) keeps them near the common ones. Only the share of its peak belongs to a single GPU: it follows
from the power limit.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from calibration.kernels.records import KernelRow, predicted_time
from sim.spec.hardware import Gpu
from sim.spec.kernels import Kernels

PENALTY: Final = 0.02
"""Penalty for a constant that is e times the common one."""
INITIAL_STEP: Final = 0.2
"""Initial step of a search, in logarithms."""
PRODUCT_CONSTANTS: Final = (
    "tile_edge",
    "pipeline_fill",
    "wave_loss",
    "sharpness",
    "memory_share",
    "feeders",
    "split_traffic",
    "split_time",
)
PASS_CONSTANTS: Final = ("pass_share", "pass_half_size")
FORWARD_CONSTANTS: Final = ("forward", "fill", "exponential_passes", "sharpness")
BACKWARD_CONSTANTS: Final = ("backward", "backward_fill", "backward_passes")
_AT_MOST_ONE: Final = frozenset({"wave_loss", "memory_share", "pass_share"})


def with_kernels(gpu: Gpu, changes: Mapping[str, Any]) -> Gpu:
    """Return *gpu* with *changes* of the constants of its kernels."""
    return gpu.model_copy(update={"kernels": kernels_of(gpu).model_copy(update=dict(changes))})


def log_errors(rows: Sequence[KernelRow], gpus: Mapping[str, Gpu]) -> np.ndarray[Any, Any]:
    """Return the log of predicted over measured time of each row."""
    return np.array([math.log(predicted_time(row, gpus[row.gpu]) / row.time) for row in rows])


def loss(errors: np.ndarray[Any, Any]) -> float:
    """Return the mean absolute error plus a twentieth of the mean square, which penalizes outliers."""
    return float(np.mean(np.abs(errors)) + 0.05 * np.mean(errors**2))


def clip_constant(name: str, value: float) -> float:
    """Return *value*, limited to the range of the constant *name*."""
    return min(1.0, value) if name in _AT_MOST_ONE else max(1.0, value) if name == "sharpness" else value


def minimize(function: Any, start: Sequence[float], steps: int) -> np.ndarray[Any, Any]:
    """Return the logarithms of positive values that minimize *function*, a function of these logarithms, from *start* on."""
    from scipy.optimize import minimize as search

    first = np.log(start)
    corners = np.vstack([first, first + INITIAL_STEP * np.eye(len(first))])
    options = {"maxfev": steps, "xatol": 1e-3, "fatol": 1e-5, "adaptive": True, "initial_simplex": corners}
    return np.asarray(search(function, first, method="Nelder-Mead", options=options).x)


def fit_products(
    rows: Sequence[KernelRow], gpus: Mapping[str, Gpu], start: Mapping[str, float], penalize: bool, steps: int = 400
) -> tuple[dict[str, float], dict[str, float]]:
    """Return the constants of products that *gpus* share, and each GPU's share of its peak; *penalize* keeps them near *start*."""
    names = [name for name in gpus if any(row.gpu == name for row in rows)]
    peak = rows[0].peak
    shares = [kernels_of(gpus[name]).product_share[peak] for name in names]
    logs = np.log([start[name] for name in PRODUCT_CONSTANTS])

    def read(point: np.ndarray[Any, Any]) -> tuple[dict[str, float], dict[str, float]]:
        values = np.exp(point)
        shared = {name: clip_constant(name, float(value)) for name, value in zip(PRODUCT_CONSTANTS, values, strict=False)}
        return shared, {name: min(1.0, float(value)) for name, value in zip(names, values[len(PRODUCT_CONSTANTS) :], strict=True)}

    def cost(point: np.ndarray[Any, Any]) -> float:
        shared, own = read(point)
        tried = {name: with_kernels(gpus[name], shared | {"product_share": {peak: own[name]}}) for name in names}
        losses = [loss(log_errors([row for row in rows if row.gpu == name], tried)) for name in names]
        far = float(np.sum((point[: len(PRODUCT_CONSTANTS)] - logs) ** 2))
        return float(np.mean(losses)) + (PENALTY * far if penalize else 0.0)

    return read(minimize(cost, [*(start[name] for name in PRODUCT_CONSTANTS), *shares], steps))


def fit_attention(
    rows: Sequence[KernelRow], gpus: Mapping[str, Gpu], start: Mapping[str, float], names: Sequence[str], steps: int = 250
) -> dict[str, float]:
    """Return *start* with the constants *names* fitted to *rows*, which all ran the same kernel."""

    def read(point: np.ndarray[Any, Any]) -> dict[str, float]:
        return dict(start) | {name: clip_constant(name, float(value)) for name, value in zip(names, np.exp(point), strict=True)}

    def cost(point: np.ndarray[Any, Any]) -> float:
        values = read(point)
        tried = {name: _with_rate(gpus[name], rows[0].kernel, values) for name in {row.gpu for row in rows}}
        return loss(log_errors(rows, tried))

    return read(minimize(cost, [start[name] for name in names], steps))


def fit_share(rows: Sequence[KernelRow], gpus: Mapping[str, Gpu], steps: int = 60) -> float:
    """Return the share of the peak that fits *rows* of one GPU best, with all other constants unchanged."""
    peak = rows[0].peak
    name = rows[0].gpu

    def cost(point: np.ndarray[Any, Any]) -> float:
        share = min(1.0, float(np.exp(point[0])))
        return loss(log_errors(rows, {name: with_kernels(gpus[name], {"product_share": {peak: share}})}))

    return min(1.0, float(np.exp(minimize(cost, [0.8], steps)[0])))


def fit_passes(rows: Sequence[KernelRow], gpus: Mapping[str, Gpu], steps: int = 80) -> dict[str, float]:
    """Return the constants of passes over memory."""

    def read(point: np.ndarray[Any, Any]) -> dict[str, float]:
        return {name: clip_constant(name, float(value)) for name, value in zip(PASS_CONSTANTS, np.exp(point), strict=True)}

    def cost(point: np.ndarray[Any, Any]) -> float:
        return loss(log_errors(rows, {name: with_kernels(gpus[name], read(point)) for name in {row.gpu for row in rows}}))

    return read(minimize(cost, [0.85, 1e6], steps))


def kernels_of(gpu: Gpu) -> Kernels:
    """Return the description of the kernels of *gpu*, which must have one."""
    assert gpu.kernels is not None
    return gpu.kernels


def _with_rate(gpu: Gpu, kernel: str, values: Mapping[str, float]) -> Gpu:
    rates = tuple(rate.model_copy(update=dict(values)) if rate.kernel == kernel else rate for rate in kernels_of(gpu).attention)
    return with_kernels(gpu, {"attention": rates})
