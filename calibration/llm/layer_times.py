"""How long does each layer of a rank compute? As the simulator counts and times it, without its factors that were fitted to whole steps.

A block's times are means over all blocks, so that windows, layers of experts and state-space layers count as often as they occur. The
blocks of a hybrid are the letters of its pattern here, of which a numbered block of the model may have two.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence
from functools import lru_cache
from typing import Final, Literal, NamedTuple, get_args

from calibration.llm.case import Case
from calibration.llm.engine import compute_workload
from calibration.llm.weights import blocks_of_stages
from sim.cluster.gpu import element_bytes, layer_time, layer_work, memory_time
from sim.parallel.host_modules import module_count
from sim.parallel.ring import ring_attention
from sim.parallel.shares import rank_layer
from sim.parallel.units import UnitKind, units
from sim.spec.fields import SCANS, Peak
from sim.spec.identity import IdentityKey, content
from sim.spec.layer import Layer
from sim.spec.parallel import Parallel
from sim.spec.sections import with_fields
from sim.training.layouts.times import unfused_time

LayerKind = Literal["product", "experts", "attention", "scan", "routing", "element-wise"]
NARROW: Final[Mapping[Peak, str]] = {"fp8": "fp8", "nvfp4": "fp4"}
"""Products in fewer than 16 bits."""
TILE: Final = 64
"""Sizes of a product above this that are not a multiple of it are slower than the kernels' model says."""


_MEANS: Final = ("forward", "backward", "modules", "restored")
"""Fields of `LayerTime` of which a block has the mean over all blocks."""


class LayerTime(NamedTuple):
    """Seconds of a layer of one rank for one micro-batch; of a block's, the mean over all blocks."""

    kind: LayerKind
    narrow: str
    """``fp8`` or ``fp4`` if it is a product in as few bits, else empty."""
    is_aligned: bool
    """Whether sizes of a product are multiples of `TILE`, or smaller (routers, adapters)."""
    forward: float
    backward: float
    modules: float
    """Modules of Transformer Engine that run it (`module_count`); of a block's, the mean over all blocks."""
    restored: float
    """Seconds to copy its input, if that has been recomputed, to where backward reads it."""


def layer_times(case: Case) -> Mapping[UnitKind, Mapping[str, LayerTime]]:
    """Return the times of the layers of one rank of *case*, by name without the number of the block.

    They are those before the first block (``first``), of a mean block, and after the last one (``last``).
    """
    return _of_case(IdentityKey(id(case), case))


@lru_cache(maxsize=4096)  # more than a table has rows, because a fit predicts each of them again for every constant
def _of_case(same: IdentityKey) -> Mapping[UnitKind, Mapping[str, LayerTime]]:
    (case,) = same.held
    workload = compute_workload(case)
    precision, options = workload.training.precision, case.mesh_options
    casts_once = options is not None and options.keeps_8bit_weights and case.precision != "16bit"
    stack = with_fields(
        workload.layer_stack,
        compute_factor=1.0,
        factor_by_kernels=False,
        accumulates_gradients=False,
        weight_casts=1.0 / case.micro_batches if casts_once else 1.0,
    )
    parallel = Parallel(
        tensor=case.tensor, context=case.context, expert=case.expert, sequence=case.sequence_parallel if case.tensor > 1 else None
    )
    timed_layers: dict[Hashable, LayerTime] = {}

    def timed(layer: Layer, modules: int) -> LayerTime:
        if case.torch_ring is not None and layer.attention is not None:
            layer = layer.model_copy(update={"attention": ring_attention(layer.attention, case.torch_ring)})
        passes = [layer_time(layer, case.gpu, precision, stack, case.micro_batch, backward).time for backward in (False, True)]
        if options is not None:
            beside = [
                unfused_time(layer, case.shape, options, case.gpu, precision, case.micro_batch, backward) for backward in (False, True)
            ]
            passes = [kernels + passes_over for kernels, passes_over in zip(passes, beside, strict=True)]
        peak = layer_work(layer, case.gpu, precision, stack, case.micro_batch).peak
        kind = _kind(layer)
        narrow = NARROW.get(peak, "") if kind in ("product", "experts") else ""
        copied = 2.0 * min(layer.saved, layer.read) * case.micro_batch * element_bytes(layer.op, precision) / 4.0
        aligned = all(size % TILE == 0 or size < TILE for size in layer.channels)
        forward, backward = passes
        return LayerTime(kind, narrow, aligned, forward, backward, modules, memory_time(copied, case.gpu))

    places: dict[UnitKind, dict[str, list[LayerTime]]] = {place: defaultdict(list) for place in get_args(UnitKind)}
    for name, place, layers in units(workload.model):
        for index, layer in enumerate(layers):
            if place == "block" and layer.name in (f"{name}.norm", f"{name}.head", f"{name}.loss"):  # of multi-token prediction
                continue
            modules = module_count(layers, index, stack.kernels.fused_casts)
            key = (
                layer.name.rpartition(".")[2],
                *(content(value) for field, value in layer.__dict__.items() if field != "name"),
                len(layers),
                modules,
            )
            if key not in timed_layers:
                timed_layers[key] = timed(rank_layer(layers, index, parallel), modules)
            places[place][layer.name.removeprefix(f"{name}.")].append(timed_layers[key])
    blocks = sum(blocks_of_stages(case)[0])
    return {place: _means(times, blocks if place == "block" else 1) for place, times in places.items()}


def _means(times: Mapping[str, Sequence[LayerTime]], count: int) -> Mapping[str, LayerTime]:
    """Return by name the sums of *times* over *count*."""
    return {
        name: same[0]._replace(**{each: sum(getattr(one, each) for one in same) / count for each in _MEANS}) for name, same in times.items()
    }


def _kind(layer: Layer) -> LayerKind:
    if layer.op == "attention":
        return "attention"
    if layer.op in SCANS:
        return "scan"
    if layer.op == "gemm":
        return "experts" if layer.share == "expert" else "product"
    return "routing" if layer.name.endswith(("experts.dispatch", "experts.combine")) else "element-wise"
