"""How do fitted constants become a description that `sim run` accepts? As YAML of hardware and software stack, with a source per value.

A GPU in the catalog keeps its data sheet, and efficiencies are relative to it. A CPU or any other GPU is described by measurements only,
with the fastest measured rate as its peak. Values that no probe measures are marked as estimates. On a CPU, a *GPU* of the description is
one rank with its share of the cores.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from calibration.machines.gloo_fit import BETWEEN, INSIDE, gloo_class
from calibration.machines.layer_factors import NETWORK_PASSES, NETWORK_PRODUCTS
from calibration.machines.machine_fit import FACTOR, FIXED, JITTER, RATE, Fit, MergedRecords, median_time
from calibration.machines.posterior import PosteriorEstimate
from calibration.machines.product_shares import ProductShare, product_shares
from sim.spec.fields import CONVOLUTIONS
from sim.spec.hardware import Gpu
from sim.spec.library import load_part
from sim.spec.yaml import SpecError

Block = dict[str, Any]

FREE_COPY: Final = "1 TB/s"
"""Rate of copies to a CPU device, which do not happen because its tensors are already in host memory."""
CURVE_POINTS: Final = 6
"""Number of points of an efficiency curve."""
LEAST_SHARE: Final = 0.01
TENSOR_FACTORS: Final = {"tensor_core_factor": ("conv", "direct_conv", "pointwise_conv"), "tensor_core_gemm_factor": ("gemm", "attention")}
"""Factors of the catalog that correct for efficiency curves of other GPUs, with the classes whose measured curves replace them."""


@dataclass(frozen=True)
class Machine:
    """The hardware and software stack to write."""

    hardware: Block
    before_layers: Block
    """Values of the ``gpu`` block before measurements of whole layers changed them, for the changed keys."""
    stack: Block | None
    undetermined: tuple[str, ...]
    """What the records do not determine, each with the command that would measure it."""


def gpu_named_by_driver(name: str) -> Gpu | None:
    """Return the GPU of the catalog that the driver calls *name*; None unless exactly one matches."""
    from sim.study.new.parts import named_like

    stem = named_like(name)
    return load_part(Gpu, stem) if stem else None


class Sources:
    """Collects the source of each value of a block."""

    def __init__(self, records: MergedRecords) -> None:
        self._records = records
        self.texts: dict[str, str] = {}

    def fitted(self, key: str, probe: str, text: str) -> None:
        """Record that *key* was measured by *probe*."""
        files = ", ".join(self._records.files)
        self.texts[key] = f"{files}, probe {probe}, {self._records.date}: {text}"

    def facts(self, key: str) -> None:
        """Record that *key* is a fact that the machine reports about itself."""
        self.texts[key] = f"{', '.join(self._records.files)}, {self._records.date}: as reported by the machine"

    def estimate(self, key: str, reason: str) -> None:
        """Record that *key* is an estimate."""
        self.texts[key] = f"estimate ({reason})"


def interval(estimate: PosteriorEstimate, scale: float, unit: str, inverse: bool = False) -> str:
    """Return value and 95% interval of a parameter in *unit* as text; with *inverse*, those of 1 over the parameter."""
    value, low, high = (
        (1 / x for x in (estimate.value, estimate.high, estimate.low)) if inverse else (estimate.value, estimate.low, estimate.high)
    )
    return f"{value * scale:.4g} {unit} (95% {low * scale:.4g} to {high * scale:.4g})"


def rate_text(estimate: PosteriorEstimate, unit: str = "GB/s") -> str:
    """Return the rate that corresponds to a time per unit, in 1e9 units per second."""
    return f"{1e-9 / estimate.value:.4g} {unit}"


def require_rate(fitted: Mapping[str, Fit], subject: str, probe: str) -> PosteriorEstimate:
    """Return the rate of *subject*, which every simulation needs. Raise SpecError with the *probe* that measures it if it is unknown."""
    if subject not in fitted or not fitted[subject][RATE].identified:
        raise SpecError(f"the records do not contain {subject}: measure it with 'calibration profile --only {probe}'")
    return fitted[subject][RATE]


# --- the device ------------------------------------------------------------------------------------------------------


def device_block(records: MergedRecords, fitted: Mapping[str, Fit]) -> Block:
    """Return the ``gpu`` block."""
    facts = records.machine
    part = gpu_named_by_driver(facts["gpus"][0]["name"]) if facts["gpus"] else None
    sources = Sources(records)
    block: Block = {"extends": part.name} if part else _unknown_device(records, fitted, sources)
    if part and "memory" in fitted:
        share = min(1.0, 1.0 / fitted["memory"][RATE].value / part.memory_bandwidth)
        block["memory_efficiency"] = round(share, 4)
        sources.fitted("memory_efficiency", "memory", interval(fitted["memory"][RATE], 1e-9, "GB/s", inverse=True))
    peaks = {precision: rate for precision, rate in part.peak.items()} if part else highest_rates(fitted)
    if curves := efficiency_curves(fitted, peaks, _kernel_time(fitted)):
        ran = _product_probes(fitted)
        sources.fitted("efficiency", _listed(ran), "; ".join(curve_sources(fitted)))
        block["efficiency"] = {**_catalog_curves(part), **curves} if part else with_default_curves(curves, sources)
        for factor, kinds in TENSOR_FACTORS.items() if part else ():
            if any(peak != "fp32" for kind in kinds for peak in curves.get(kind, {})):
                block[factor] = 1.0
                sources.fitted(factor, ran[-1], "none in addition to the measured efficiency on tensor cores")
    if part and (shares := product_shares(records, part)):
        measured_shares = {peak: float(f"{share_fit.share:.3g}") for peak, share_fit in shares.items()}
        block["kernels"] = {"product_share": {**part.kernels.product_share, **measured_shares} if part.kernels else measured_shares}
        sources.fitted("kernels", "gemm", "; ".join(_share_text(peak, share_fit) for peak, share_fit in shares.items()))
    if (launch := fitted.get("launch by the device")) is not None:
        block["kernel_time"] = f"{1e6 * launch[RATE].value:.4g} us"
        sources.fitted("kernel_time", "launch", interval(launch[RATE], 1e6, "us"))
    if (slowdown := concurrent_slowdown(records)) > 1.0:
        block["vector_factor"] = round(slowdown, 3)
        sources.fitted("vector_factor", "gemm", f"products take {slowdown:.3g} times as long while the other ranks multiply as well")
    if (jitter := fitted.get(JITTER)) is not None:
        block["compute_cv"] = round(min(0.5, jitter[FACTOR].value), 4)
        sources.fitted("compute_cv", "steps", f"steps without exchange: {interval(jitter[FACTOR], 1e2, '%')}")
    return block | {"source": sources.texts}


def _share_text(peak: str, product_share: ProductShare) -> str:
    described, left_out = 100 * product_share.described_error, 100 * product_share.left_out_error
    missed = f"error on held-out products {left_out:.0f}%, with the catalog's share {described:.0f}%"
    return f"{peak} share {product_share.share:.3g} of {product_share.points} products ({missed})"


def with_layers(block: Block, records: MergedRecords, layers: Mapping[str, Fit], before: float) -> Block:
    """Return the ``gpu`` *block* with its ``vector_factor``, *before* until now, scaled by the factor that whole layers determined."""
    sources, changed = Sources(records), dict(block)
    if (products := layers.get(NETWORK_PRODUCTS)) is not None:
        changed["vector_factor"] = round(before * products[FACTOR].value, 3)
        text = f"layers take {interval(products[FACTOR], 1.0, 'times')} as long as their kernels"
        sources.fitted("vector_factor", "layers", "; ".join([text, *(block["source"].get("vector_factor", "").split(": ")[1:])]))
    return changed | {"source": block["source"] | sources.texts}


def _catalog_curves(part: Gpu) -> Block:
    return {kind: {peak: [list(point) for point in curve] for peak, curve in peaks.items()} for kind, peaks in part.efficiency.items()}


def _kernel_time(fitted: Mapping[str, Fit]) -> float:
    launch = fitted.get("launch by the device")
    return launch[RATE].value if launch else 0.0


def _unknown_device(records: MergedRecords, fitted: Mapping[str, Fit], sources: Sources) -> Block:
    """Return the fields that a device outside the catalog needs in addition to those that every device gets."""
    facts = records.machine
    memory, product = require_rate(fitted, "memory", "memory"), require_rate(fitted, "gemm fp32", "gemm")
    gpu = facts["gpus"][0] if facts["gpus"] else None
    sources.facts("*")
    sources.fitted("memory_bandwidth", "memory", interval(memory, 1e-9, "GB/s", inverse=True))
    rate = interval(product, 1e-9, "GFLOP/s", inverse=True)
    sources.fitted("peak", _listed(_product_probes(fitted)), f"the fastest class; products of fp32 {rate}")
    sources.estimate("context_memory", "what libraries and their buffers take")
    if "launch by the device" not in fitted:
        sources.estimate("kernel_time", "not measured; profile --only launch")
    if not gpu:
        sources.texts["host_cores"] = "each rank computes on its share of the cores"
    own = {} if gpu else {"host_cores": max(1, facts["physical_cores"] // records.neighbors)}
    return {
        "name": gpu["name"] if gpu else f"{records.name}-rank",
        "architecture": "unknown" if gpu else "cpu",
        "compute_capability": gpu["compute_capability"] if gpu else "0.0",
        "memory": f"{(gpu['memory_bytes'] if gpu else facts['memory_bytes'] / records.neighbors) / 2**30:.4g} GiB",
        "memory_bandwidth": rate_text(memory),
        "memory_efficiency": 1.0,
        "peak": {name: f"{rate / 1e9:.4g} GFLOP/s" for name, rate in highest_rates(fitted).items()},
        "efficiency": {},
        "kernel_time": "5 us",
        "context_memory": "0.5 GiB",
        **own,
    }


def _product_probes(fitted: Mapping[str, Fit]) -> list[str]:
    """Return the probes of products that contributed to *fitted*."""
    return [probe for probe in ("gemm", "convolution", "attention") if any(fit.probe == probe for fit in fitted.values())]


def _listed(probes: Sequence[str]) -> str:
    return " and ".join(filter(None, (", ".join(probes[:-1]), probes[-1])))


def highest_rates(fitted: Mapping[str, Fit]) -> dict[str, float]:
    """Return the highest measured rate (FLOP/s) for each precision; attention may be the fastest, where products of bf16 are emulated."""
    rates: dict[str, float] = {}
    for subject, fit in fitted.items():
        kind, _, precision = subject.partition(" ")
        if kind in ("gemm", "attention", *CONVOLUTIONS) and fit[RATE].identified:
            rates[precision] = max(rates.get(precision, 0.0), 1.0 / fit[RATE].value)
    return rates


def efficiency_curves(fitted: Mapping[str, Fit], peaks: Mapping[Any, float], kernel_time: float) -> Block:
    """Return efficiency curves by class and precision: points of time at peak rate and share of the peak, without *kernel_time*."""
    curves: Block = {}
    for subject, fit in fitted.items():
        kind, _, precision = subject.partition(" ")
        if kind in ("gemm", "attention", *CONVOLUTIONS) and precision in peaks and fit[RATE].identified:
            curves.setdefault(kind, {})[precision] = _curve(fit, peaks[precision], kernel_time)
    if "gemm" in curves and "rnn" not in curves:
        curves["rnn"] = curves["gemm"]
    return curves


def with_default_curves(curves: Block, sources: Sources) -> Block:
    """Return *curves* of a device outside the catalog, with the curve of gemm for classes of convolutions that were not measured.

    A class without a curve would take only the time of its memory traffic.
    """
    missing = [kind for kind in ("conv", "depthwise_conv") if kind not in curves]
    if missing and "gemm" in curves:
        sources.texts["efficiency"] += f"; {' and '.join(missing)} as gemm: estimate (not measured; profile --only convolution)"
    return {kind: curves["gemm"] for kind in missing if "gemm" in curves} | curves


def _curve(fit: Fit, peak: float, kernel_time: float) -> list[list[Any]]:
    fixed = max(0.0, (fit[FIXED].value if fit[FIXED].identified else 0.0) - kernel_time)
    sizes = np.geomspace(fit.sizes.min(), fit.sizes.max(), CURVE_POINTS) if fit.sizes.max() > fit.sizes.min() else fit.sizes[:1]
    points = [(size / peak, size / peak / (fixed + size * fit[RATE].value)) for size in sizes]
    return [[f"{1e6 * time:.4g} us", float(f"{max(LEAST_SHARE, share):.4g}")] for time, share in points]


def curve_sources(fitted: Mapping[str, Fit]) -> Iterable[str]:
    """Yield a text with the fitted rate of each class and precision."""
    for subject, fit in fitted.items():
        if fit.probe in ("gemm", "convolution", "attention"):
            yield f"{subject} {interval(fit[RATE], 1e-9, 'GFLOP/s', inverse=True)}, scatter {100 * fit.posterior.noise:.0f}%"


def concurrent_slowdown(records: MergedRecords) -> float:
    """Return the time of a product while other ranks compute products over its time in isolation, at least 1; 1 if either is unmeasured."""
    rows = records.rows("gemm")
    shared = next((row for row in rows if "together" in row), None)
    if shared is None:
        return 1.0
    single = [row for row in rows if "together" not in row and (row["shape"], row["precision"]) == (shared["shape"], shared["precision"])]
    return max(1.0, median_time(shared) / median_time(single[0])) if single else 1.0


# --- the software ----------------------------------------------------------------------------------------------------


def stack_block(records: MergedRecords, fitted: Mapping[str, Fit]) -> Block | None:
    """Return the software stack that the records determine; None if they determine none of its values."""
    sources = Sources(records)
    block: Block = {"extends": "gloo-ddp" if records.machine["backend"] == "gloo" else "torch-2.x-ddp", "name": f"{records.name}-ddp"}
    if records.machine["device"] == "cpu":
        block |= {"launch_cpu": "0 us", "optimizer": "per_tensor"}
        sources.texts["launch_cpu"] = "a CPU runs an operator in the call that launches it: the device's kernel_time holds its cost"
        sources.texts["optimizer"] = "torch/optim: foreach is chosen for parameters on CUDA alone"
    elif "launch by the host" in fitted:
        launch = fitted["launch by the host"][RATE]
        block["launch_cpu"] = f"{1e6 * launch.value:.4g} us"
        sources.fitted("launch_cpu", "launch", interval(launch, 1e6, "us"))
    if INSIDE in fitted or BETWEEN in fitted:
        block["gloo_transport"] = gloo_block(records, fitted)
    if (passes := fitted.get(NETWORK_PASSES)) is not None:
        block["elementwise_traffic"] = float(f"{passes[FACTOR].value:.4g}")
        text = f"memory-bound layers take {interval(passes[FACTOR], 1.0, 'times')} as long as moving their bytes"
        sources.fitted("elementwise_traffic", "layers", text)
    if (overlap := fitted.get("products beside an exchange")) is not None and records.machine["device"] == "cuda":
        block["overlap_slowdown"] = round(max(1.0, overlap[FACTOR].value), 3)
        text = f"products during an all-reduce take {interval(overlap[FACTOR], 1.0, 'times')} as long as alone"
        sources.fitted("overlap_slowdown", "all_reduce", text)
    return block | {"source": sources.texts} if len(block) > 2 else None


def gloo_block(records: MergedRecords, fitted: Mapping[str, Fit]) -> Block:
    """Return the transport class of Gloo's sockets; constants that were not identified keep the values of `gloo_class`."""
    fit, sources = fitted.get(INSIDE) or fitted[BETWEEN], Sources(records)
    block: Block = {"extends": gloo_class().name, "name": f"gloo-{records.name}", "flows": 1}
    for name in ("launch", "hop_latency"):
        if fit[name].identified:
            block[name] = f"{1e6 * fit[name].value:.4g} us"
            sources.fitted(name, fit.probe, interval(fit[name], 1e6, "us"))
    if fit[RATE].identified:
        block["flow_cap"] = rate_text(fit[RATE])
        sources.fitted("flow_cap", fit.probe, interval(fit[RATE], 1e-9, "GB/s", inverse=True))
    if "gloo processor" in fitted:
        used = fitted["gloo processor"][RATE]
        block["cpu_time_per_byte"] = f"{1e9 * used.value:.4g} s/GB"
        sources.fitted("cpu_time_per_byte", fit.probe, interval(used, 1e9, "s/GB"))
    return block | {"source": sources.texts}
