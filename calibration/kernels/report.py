"""How large are errors of kernel times? By GPU and kind of kernel, with the catalog's constants, and with the GPU left out of the fit.

Only BF16 products are scored with the GPU left out. Their constants are then fitted to the other GPUs only. The share of the peak comes
from boards of the same architecture, by the law ``rate ~ power ** 0.6`` that measured Blackwell boards follow, or is the mean of all others
if there are none; the share of bandwidth is the mean of the same boards.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from calibration.kernels import fit
from calibration.kernels.records import KernelRow, catalog_gpu, predictable_rows
from sim.spec.hardware import Gpu

POWER_EXPONENT: Final = 0.6
"""Exponent with which the rate of large products grows with a board's power: Blackwell does 1751, 1857, 2137 TFLOP/s at 1000, 1100, 1400
W."""
NOT_FITTED: Final = frozenset({"best_of_search", "tilelang", "aiter", "flash4", "trtllm"})
"""Kernels whose rows are not used in fits (except two backward rows of FlashAttention 4). trtllm: experts, and products in NVFP4, for which
Transformer Engine takes cuBLASLt."""


def kernel_kind(row: KernelRow) -> str:
    """Return the kind under which *row* is listed: operator, kernel, precision, direction."""
    words = [row.op, row.kernel, row.precision]
    return " ".join([*words, "backward"] if row.backward else words)


def is_fitted(row: KernelRow) -> bool:
    """Return whether constants of its own GPU were fitted to rows like *row*."""
    if row.gpu == "H800-SXM5-80GB":
        return row.peak == "fp8"
    gpu = catalog_gpu(row.gpu)
    return row.kernel not in NOT_FITTED and gpu is not None and fit.kernels_of(gpu).measured


def score_kernels(rows: Sequence[KernelRow], left_out: bool = False, steps: int = 150) -> list[dict[str, Any]]:
    """Return one line for each GPU and kind of kernel: rows, median and 90th percentile of the relative error, and the median bias."""
    usable = predictable_rows(rows)
    gpus = {row.gpu: gpu for row in usable if (gpu := catalog_gpu(row.gpu)) is not None}
    lines = []
    without = {name: fit_without(name, usable, gpus, steps) for name in gpus if _has_fitted_products(name, usable)} if left_out else {}
    for name in sorted(gpus):
        for group in sorted({kernel_kind(row) for row in usable if row.gpu == name}):
            chosen = [row for row in usable if row.gpu == name and kernel_kind(row) == group]
            line: dict[str, Any] = {"gpu": name, "kernel": group, "rows": len(chosen), "fitted": is_fitted(chosen[0])}
            line |= _errors(chosen, gpus)
            large = [row for row in chosen if row.is_large]
            line |= {f"large_{key}": value for key, value in (_errors(large, gpus) if large else {}).items()}
            if name in without and chosen[0].product and chosen[0].peak == "bf16":
                line |= {f"left_out_{key}": value for key, value in _errors(chosen, without).items()}
                line |= {f"left_out_large_{key}": value for key, value in (_errors(large, without) if large else {}).items()}
            lines.append(line)
    return lines


def _errors(rows: Sequence[KernelRow], gpus: Mapping[str, Gpu]) -> dict[str, float]:
    errors = np.expm1(np.abs(fit.log_errors(rows, gpus)))
    signed = np.expm1(np.median(fit.log_errors(rows, gpus)))
    return {"median": float(np.median(errors)), "p90": float(np.quantile(errors, 0.9)), "bias": float(signed)}


def _has_fitted_products(name: str, rows: Sequence[KernelRow]) -> bool:
    return any(row.gpu == name and _is_fitted_product(row) for row in rows)


def _is_fitted_product(row: KernelRow) -> bool:
    return row.product is not None and row.kernel == "cublas" and row.precision == "bf16" and row.source.startswith("ai-dynamo")


def fit_without(name: str, rows: Sequence[KernelRow], gpus: Mapping[str, Gpu], steps: int) -> Gpu:
    """Return the GPU *name* with constants of products that are fitted to the rows of the other GPUs only."""
    chosen = [row for row in rows if _is_fitted_product(row) and row.gpu != name]
    others = {row.gpu: gpus[row.gpu] for row in chosen}
    start = {key: getattr(fit.kernels_of(gpus[name]), key) for key in fit.PRODUCT_CONSTANTS}
    start["memory_share"] = float(np.mean([fit.kernels_of(gpu).memory_share for gpu in others.values()]))
    shared, shares = fit.fit_products(chosen, others, start, penalize=False, steps=steps)
    mates = {other: gpu for other, gpu in others.items() if gpu.architecture == gpus[name].architecture}
    if mates:
        shared["memory_share"] = float(np.mean([fit.kernels_of(gpu).memory_share for gpu in mates.values()]))
    return fit.with_kernels(
        gpus[name], shared | {"product_share": {"bf16": _share(gpus[name], mates or others, shares, by_power=bool(mates))}}
    )


def refit_constants(rows: Sequence[KernelRow]) -> list[dict[str, Any]]:
    """Return the constants fitted to *rows* by GPU and kind of kernel: of attention kernels, shares of peak, and passes."""
    usable = [row for row in predictable_rows(rows) if is_fitted(row)]
    gpus = {row.gpu: gpu for row in usable if (gpu := catalog_gpu(row.gpu)) is not None}
    groups: dict[tuple[str, str], list[KernelRow]] = defaultdict(list)
    for row in usable:
        groups[row.gpu, kernel_kind(row)].append(row)
    results = []
    for (name, group), chosen in sorted(groups.items()):
        if values := _refit(chosen, gpus):
            results.append({"gpu": name, "kernel": group, "rows": len(chosen), "constants": values})
    return results


def _refit(rows: Sequence[KernelRow], gpus: Mapping[str, Gpu]) -> dict[str, float]:
    """Return the constants fitted to *rows* of one kind on one GPU; empty for experts, to which nothing is fitted."""
    first = rows[0]
    if first.product is not None:
        return {f"product_share.{first.peak}": fit.fit_share(rows, gpus)}
    if first.attention is None:
        return fit.fit_passes(rows, gpus) if first.experts is None else {}
    rate = next((rate for rate in fit.kernels_of(gpus[first.gpu]).attention if rate.kernel == first.kernel), None)
    names = fit.BACKWARD_CONSTANTS if first.backward else fit.FORWARD_CONSTANTS
    return fit.fit_attention(rows, gpus, {name: getattr(rate, name) for name in names}, names) if rate else {}


def constants_text(lines: Sequence[Mapping[str, Any]]) -> str:
    """Return refitted constants as a table for a terminal."""
    out = [f"{'GPU':16} {'kernel':38} {'rows':>5}  constants"]
    for line in lines:
        constants = ", ".join(f"{name} {value:.4g}" for name, value in line["constants"].items())
        out.append(f"{line['gpu']:16} {line['kernel']:38} {line['rows']:5}  {constants}")
    return "\n".join(out)


def _share(gpu: Gpu, others: Mapping[str, Gpu], shares: Mapping[str, float], by_power: bool) -> float:
    """Return the share of its peak that *gpu* gets if it has no rows: by the power law from *others*, or their mean."""
    if not by_power:
        return float(np.mean([shares[name] for name in others]))
    assert gpu.power is not None
    rates = [shares[name] * other.peak["bf16"] / (other.power or gpu.power) ** POWER_EXPONENT for name, other in others.items()]
    return float(min(max(shares.values()), np.mean(rates) * gpu.power**POWER_EXPONENT / gpu.peak["bf16"]))


def score_text(lines: Sequence[Mapping[str, Any]]) -> str:
    """Return *lines* as a table for a terminal."""
    left_out = any("left_out_median" in line for line in lines)
    head = f"{'GPU':16} {'kernel':38} {'rows':>5} {'fitted':>6}  median   p90   bias   large: median   p90"
    out = [head + ("   left out: median   p90   large: median   p90" if left_out else "")]
    for line in lines:
        cells = f"{line['gpu']:16} {line['kernel']:38} {line['rows']:5} {'yes' if line['fitted'] else 'no':>6}"
        cells += f" {line['median']:6.1%} {line['p90']:6.1%} {line['bias']:+6.1%}"
        cells += f"         {line['large_median']:6.1%} {line['large_p90']:6.1%}" if "large_median" in line else ""
        if "left_out_median" in line:
            cells += f"             {line['left_out_median']:6.1%} {line['left_out_p90']:6.1%}"
            cells += f"          {line['left_out_large_median']:6.1%} {line['left_out_large_p90']:6.1%}"
        out.append(cells)
    return "\n".join(out)
