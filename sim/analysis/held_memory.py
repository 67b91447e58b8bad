"""How much memory does a rank of a layout hold from step to step? Weights, gradients and optimizer states, by data types and sharding.

The levels of sharding are the stages of ZeRO (arXiv 1910.02054).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from sim.parallel.lower.layouts import Layout
from sim.spec.fp8_recipe import quantization
from sim.spec.hardware import Gpu
from sim.spec.layer import WIDTHS
from sim.spec.parallel import MeshOptions
from sim.spec.workload import Workload


class HeldMemory(NamedTuple):
    """Bytes that a rank of a stage holds from step to step, and bytes used by the optimizer's step."""

    weights: float
    gradients: float
    states: float
    casts: float
    """32-bit copies of gradients that the optimizer's step makes."""
    stepping: float
    """Memory blocks of the optimizer's step that nothing else can reuse."""


def held_memory(layout: Layout, stage: int, workload: Workload, gpu: Gpu) -> HeldMemory:
    """Return what one rank of *stage* on a *gpu* holds: experts and other parameters, each divided by the ranks that shard it."""
    units = layout.units_of(stage)
    each = (_held_of(layout, units, workload, gpu, experts) for experts in (False, True))
    return HeldMemory(*map(math.fsum, zip(*each, strict=True)))


def _held_of(layout: Layout, held: Sequence[int], workload: Workload, gpu: Gpu, experts: bool) -> HeldMemory:
    mesh, options = layout.mesh, layout.options
    level = {"none": 0, "optimizer": 1, "gradients": 2, "parameters": 3}[mesh.parallel.shard]
    precision = workload.training.precision
    in_8_bits = precision == "fp8"
    shards = mesh.group_size("expert_data" if experts else "shard")
    elements = {unit: layout.elements(unit, experts=experts) for unit in held}
    trained = {unit: layout.elements(unit, experts=experts, trained=True) for unit in held}
    total, learning = sum(elements.values()), sum(trained.values())
    frozen = total - learning if options.frozen_8bit and in_8_bits else 0.0
    weights = ((total - frozen) * WIDTHS[options.weights] + frozen) / (shards if level == 3 else 1)
    cast_units = max(0.0, sum(elements[unit] for unit in held if layout.units[unit].kind == "block") - frozen)
    weights += _narrow_width(workload, options, gpu) * cast_units / (shards if level == 3 else 1)
    gradients = learning * WIDTHS[options.gradients] / (shards if level >= 2 else 1)
    gradients += learning * WIDTHS[options.weights] if shards > 1 and options.reducer_buckets else 0.0
    states = sum(of * _state_width(workload, options, layout.units[unit].kind == "block") for unit, of in trained.items())
    cast = options.gradients != "fp32" and (options.casts_gradients == "always" or (options.casts_gradients == "fp8" and in_8_bits))
    stepping = learning * (options.step_share_bytes / shards + (options.step_whole_bytes if shards > 1 else 0.0)) if level else 0.0
    share = shards if level else 1
    return HeldMemory(weights, gradients, states / share, 4.0 * learning / share if cast else 0.0, stepping)


def _narrow_width(workload: Workload, options: MeshOptions, gpu: Gpu) -> float:
    """Return the bytes per element that quantized copies add to the weights of blocks; negative if they replace the type of ``weights``.

    Copies are kept for the whole step, and sharded if weights are (TransformerEngine pytorch/module/base.py, get_weight_workspace). If the
    optimizer writes weights in 8 bits, they exist in no other type. This also holds for MX blocks, which are gathered in 16 bits.
    Megatron-Bridge keeps weights in blocks of 128 in 16 bits as well (``fp8_param_gather`` is off).
    """
    own = quantization(workload.training.precision, workload.training.effective_recipe, gpu)
    if own is None or not options.keeps_8bit_weights:
        return 0.0
    in_place = options.parameters_8bit and workload.training.precision == "fp8" and workload.training.effective_recipe != "blockwise"
    return own.weight * own.copies(gpu) - (WIDTHS[options.weights] if in_place else 0.0)


def widths(workload: Workload, options: MeshOptions) -> tuple[float, float, float]:
    """Return the bytes per element of weight, gradient, and states (the minimum over elements)."""
    states = min(_state_width(workload, options, in_block) for in_block in (False, True))
    return WIDTHS[options.weights], WIDTHS[options.gradients], states


def _state_width(workload: Workload, options: MeshOptions, in_block: bool) -> float:
    """Return the bytes of optimizer states and master weight of one element, *in_block* or in embedding and head."""
    return workload.training.optimizer.state_width(WIDTHS[options.states], in_block) + (4.0 if options.master else 0.0)
