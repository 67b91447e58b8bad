"""How long does a GPU take for an operator, and for a memory pass? The roofline, pure; and a live GPU that computes in time.

A layer takes ``max(FLOP / (peak * e_op(FLOP per kernel)), bytes / (memory bandwidth * e_mem))`` plus the least time of its kernels
(Williams, Waterman and Patterson, CACM 2009, with measured efficiencies). Limits: kernels of one layer run one after
another; nothing overlaps inside the GPU but collectives, which slow compute by the stack's ``overlap_slowdown``.
"""

from __future__ import annotations

from typing import NamedTuple

from sim.cluster.network import Activity, Network
from sim.spec.fields import OperatorClass, Precision, at
from sim.spec.hardware import Gpu, Peak
from sim.spec.stack import Stack
from sim.spec.workload import Layer

_HALF: frozenset[Precision] = frozenset({"amp_fp16", "amp_bf16", "fp16", "bf16", "fp8"})
_PEAKS: dict[Precision, tuple[Peak, ...]] = {
    "tf32": ("tf32", "fp32"),
    "amp_fp16": ("fp16", "fp32"),
    "fp16": ("fp16", "fp32"),
    "amp_bf16": ("bf16", "fp32"),
    "bf16": ("bf16", "fp32"),
    "fp8": ("fp8", "bf16", "fp32"),  # NVIDIA/TransformerEngine runs linear layers in FP8, everything else in BF16
}
_FULL_PRECISION_OPS = frozenset({"softmax", "loss"})  # kept in FP32 by autocast's and apex O1's lists


class Kernels(NamedTuple):
    """GPU time in seconds, and the number of launches it takes the host."""

    time: float
    launches: float


def element_bytes(op: str, precision: Precision) -> float:
    """Return the bytes of one activation element of operator class *op*."""
    return 2.0 if precision in _HALF and op not in _FULL_PRECISION_OPS else 4.0


def peaks_for(op: str, precision: Precision, stack: Stack) -> tuple[Peak, ...]:
    """Return the peaks that an operator may use, best first: units that the GPU lacks, or has no kernels for, give way to the next."""
    if precision == "fp32":
        return (stack.fp32_convolution if op == "conv" else stack.fp32_matmul, "fp32")
    return _PEAKS[precision]


def layer_time(layer: Layer, gpu: Gpu, precision: Precision, stack: Stack, batch: int, backward: bool = False) -> Kernels:
    """Return the GPU time and launches of one layer for a batch (samples)."""
    scale = element_bytes(layer.op, precision) / 4.0
    weights = 4.0 * sum(layer.gradients)
    if backward:
        flop, traffic, kernels = layer.backward, layer.backward_traffic, layer.backward_kernels
        weights *= 2.0  # read the weights, write their gradients
    else:
        flop, traffic, kernels = layer.forward, layer.read + layer.write, layer.forward_kernels
    launches = kernels * stack.kernels_per_operator
    busy = max(
        _compute_time(layer, flop * batch, _kernel_size(layer, batch), gpu, precision, stack),
        memory_time(traffic * batch * scale + weights, gpu),
    )
    return Kernels((busy + kernels * gpu.kernel_time) * stack.compute_factor, launches)


def efficiency_class(layer: Layer, gpu: Gpu) -> OperatorClass:
    """Return whose efficiency curve a layer follows: a 1x1 convolution has its own where the GPU gives one, for Winograd cannot help it."""
    pointwise = layer.op == "conv" and layer.kernel_size == 1 and "pointwise_conv" in gpu.efficiency
    return "pointwise_conv" if pointwise else layer.op


def _kernel_size(layer: Layer, batch: int) -> float:
    """Return the FLOP of one kernel, over which efficiency is given: one product, as backward takes two of forward's size.

    A recurrent layer runs a kernel for each time step; elsewhere further kernels (bias, counters) do no products.
    """
    return layer.forward * batch / (max(layer.forward_kernels, 1) if layer.op == "rnn" else 1)


def _compute_time(layer: Layer, flop: float, kernel_size: float, gpu: Gpu, precision: Precision, stack: Stack) -> float:
    curves = gpu.efficiency.get(efficiency_class(layer, gpu))
    if not curves or flop <= 0:
        return 0.0
    peaks = [peak for peak in peaks_for(layer.op, precision, stack) if peak in gpu.peak]
    # where the class was measured on none of them, its share of another peak says more than nothing
    peak = next((peak for peak in peaks if peak in curves), peaks[0])
    curve = curves.get(peak) or next(iter(curves.values()))
    return flop / (gpu.peak[peak] * at(curve, kernel_size))


def memory_time(nbytes: float, gpu: Gpu) -> float:
    """Return the time of moving *nbytes* to and from the GPU's memory."""
    return nbytes / (gpu.memory_bandwidth * gpu.memory_efficiency)


class LiveGpu:
    """One GPU (or a class of equal ones) while a simulation runs: computes, slower while a collective runs beside it."""

    def __init__(self, network: Network, name: str, slowdown: float, shared: str | None) -> None:
        self._network = network
        self._name = name
        self._slow = 1.0 / slowdown
        self._usage = {shared: 1.0} if shared else {}
        self._communicating = False
        self._current: Activity | None = None

    def compute(self, duration: float) -> Activity:
        """Begin *duration* seconds of work at full speed."""
        self._current = self._network.start(self._name, duration, self._usage, cap=self._speed())
        return self._current

    def communicating(self, active: bool) -> None:
        """Tell whether a collective runs beside the compute from now on."""
        self._communicating = active
        if self._current is not None:
            self._network.set_cap(self._current, self._speed())

    def _speed(self) -> float:
        return self._slow if self._communicating else 1.0
