"""How long does a layer take on a GPU other than the one it was measured on? Pure functions that scale its measured time.

If a layer specifies its work, its measured time is scaled by the ratio of its modeled times (`sim.cluster.gpu`) here and where it was
measured. Another GPU, batch or precision thus changes the time as in the model, and the model's error for the layer stays. A layer that
was only traced specifies just its class: a product is converted to the FLOP that take its measured time there, and these are timed here;
everything else scales with memory bandwidth. Work that does not depend on the batch also scales with memory bandwidth.
Limits: for a layer that was only traced, nothing but the efficiency curve of its class accounts for kernels that do not fill a larger GPU.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final, NamedTuple

from sim.cluster.gpu import PRODUCTS, KernelWork, element_bytes, layer_time, layer_work, memory_time
from sim.spec.fields import OperatorClass, Precision
from sim.spec.hardware import Gpu
from sim.spec.identity import IdentityKey
from sim.spec.layer import WORK_FIELDS, Layer
from sim.spec.measured import MeasuredOn
from sim.spec.stack import Stack

_HALVINGS: Final = 60
_MOST_FLOP: Final = 1e18


class PassSetting(NamedTuple):
    """Everything that determines the time of a pass, except the layer."""

    gpu: Gpu
    precision: Precision
    stack: Stack
    batch: int


def pass_time(layer: Layer, on: MeasuredOn | None, setting: PassSetting, backward: bool = False) -> KernelWork:
    """Return the GPU time and launches of one pass of *layer*: modeled, or scaled from a measurement *on* another setting."""
    if layer.measured is None or on is None:
        return layer_time(layer, *setting, backward)
    measured = layer.measured
    there = PassSetting(on.gpu, on.precision, setting.stack, on.batch)
    launches = measured.backward_launches if backward else measured.forward_launches
    seconds = measured.backward if backward else measured.forward
    time = seconds * _ratio(layer, seconds, setting, there, backward) if seconds else 0.0
    if backward and measured.upkeep:
        time += measured.upkeep * memory_time(1.0, setting.gpu) / memory_time(1.0, there.gpu)
    return KernelWork(time, launches)


def _ratio(layer: Layer, seconds: float, here: PassSetting, there: PassSetting, backward: bool) -> float:
    """Return the time of a pass *here*, relative to its measured time *there* (*seconds*)."""
    if any(getattr(layer, name) for name in WORK_FIELDS):
        modeled = layer_time(layer, *there, backward).time
        return layer_time(layer, *here, backward).time / modeled if modeled else 1.0
    samples = here.batch / there.batch
    if layer.op in PRODUCTS:
        flop = _equal_flop(layer.op, there, seconds)
        if flop:
            return _product_seconds(layer.op, flop * samples, here) / seconds
    moved = samples * element_bytes(layer.op, here.precision) / element_bytes(layer.op, there.precision)
    return moved * memory_time(1.0, here.gpu) / memory_time(1.0, there.gpu)


def _equal_flop(op: OperatorClass, there: PassSetting, seconds: float) -> float:
    """Return the FLOP of a product of class *op* that takes *seconds*; 0 if the GPU has no efficiency for the class."""
    return _worked_out(IdentityKey((op, id(there.gpu), id(there.stack), there.precision, seconds), op, there, seconds))


@lru_cache(maxsize=4096)
def _worked_out(question: IdentityKey) -> float:
    op, there, seconds = question.held
    if not _product_seconds(op, _MOST_FLOP, there):
        return 0.0
    low, high = 0.0, _MOST_FLOP
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if _product_seconds(op, middle, there) < seconds else (low, middle)
    return high


def _product_seconds(op: OperatorClass, flop: float, setting: PassSetting) -> float:
    layer = Layer.model_construct(**(_EMPTY.__dict__ | {"op": op, "forward": flop}))
    work = layer_work(layer, setting.gpu, setting.precision, setting.stack, 1)
    return max(work.products, work.least_products)


_EMPTY: Final = Layer(name="product", op="gemm")
