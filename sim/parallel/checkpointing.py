"""What does activation checkpointing compute again, and what does it keep? By block: everything, attention alone, or operator by operator.

``operators`` is torchtitan's selective mode (distributed/activation_checkpoint.py): outputs of attention and of every second matrix product
are kept, all else of a block is computed again; q, k and v, and gate and up, count as products of their own. Megatron can recompute some of
a stage's blocks, and modules of a block by themselves (megatron/core/transformer/transformer_config.py, ``recompute_modules``).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from sim.parallel.split import LayerPiece, Unit
from sim.spec.layer import Layer
from sim.spec.workload import Training

_JOINED = {"qkv": 3, "gate_up": 2}
"""Products that a layer of this name joins."""


MODULES: Final[Mapping[str, str]] = {
    "core_attn": r"attention\.core",
    "mlp": r"feed\.(gate_up|activation|down)",
    "mlp_up": r"feed\.(gate_up|activation)",
    "moe": r"router|experts\.\w+|shared\.\w+",
    "moe_act": r"experts\.activation",
    "layernorm": r"attention_norm|ffn_norm",
    "mla_up_proj": r"attention\.(q_up|kv_up)",
}
"""The layers of each of Megatron's modules, as the end of a layer's name; ``mlp_up`` is MaxText's ``mlpwi``."""


_OUTPUTS: Final[Mapping[str, str]] = {
    "moe_act": r"experts\.down",
    "layernorm": r"attention\.(qkv|q|q_down)|feed\.gate_up|router",
    "mla_up_proj": r"attention\.core",
}
"""Modules that keep their input and discard their output: the layers that would have saved it (core/tensor_parallel/random.py,
``CheckpointWithoutOutput``). The others keep what enters them alone."""


class Recomputed(NamedTuple):
    """A piece that backward runs forward again, and which share of it."""

    piece: LayerPiece
    share: float


def recomputed(training: Training, unit: Unit) -> tuple[Recomputed, ...]:
    """Return the pieces of a checkpointed *unit* that backward runs forward again."""
    checkpointing = training.activation_checkpointing
    if unit.kind != "block":
        return ()
    if checkpointing == "blocks":
        return tuple(Recomputed(piece, 1.0) for piece in unit.pieces)
    if checkpointing == "operators":
        shares = _every_second(unit)
        return tuple(Recomputed(piece, share) for piece, share in zip(unit.pieces, shares, strict=True) if share)
    modules = training.recompute_modules
    return tuple(Recomputed(piece, 1.0) for piece in unit.pieces if _alone(piece, checkpointing) or in_modules(piece.layer, modules))


def _alone(piece: LayerPiece, checkpointing: str) -> bool:
    """Tell whether *piece* is computed again though its block is not: attention of ``selective``, and what the model's code checkpoints."""
    return piece.layer.op == "attention" if checkpointing == "selective" else checkpointing == "model" and bool(piece.layer.segment)


def checkpointed_share(training: Training, units: Sequence[Unit], stages: int) -> float:
    """Return which share of a stage's blocks is checkpointed: all, or as many as ``recompute_blocks`` says, stages being even."""
    if training.activation_checkpointing != "blocks" or not training.recompute_blocks:
        return 1.0
    blocks = sum(unit.kind == "block" for unit in units) / stages
    return min(1.0, training.recompute_blocks / blocks) if blocks else 1.0


def discarded(modules: Sequence[str], unit: Unit) -> list[float]:
    """Return what each piece of a block does not keep, of its saved bytes, since *modules* are recomputed by themselves."""
    freed = []
    inside = False
    for piece in unit.pieces:
        layer = piece.layer
        recomputed = in_modules(layer, [module for module in modules if module not in _OUTPUTS])
        entering = layer.read if recomputed and not inside else 0.0
        output = any(re.search(rf"\.({_OUTPUTS[module]})$", layer.name) for module in modules if module in _OUTPUTS)
        freed.append(max(0.0, layer.saved - entering) if recomputed else min(layer.saved, layer.read) if output else 0.0)
        inside = recomputed
    return freed


def in_modules(layer: Layer, modules: Sequence[str]) -> bool:
    """Tell whether *layer* belongs to one of Megatron's *modules*."""
    return any(re.search(rf"\.({MODULES[module]})$", layer.name) for module in modules)


def kept_outputs(checkpointing: str, unit: Unit) -> list[tuple[Layer, float]]:
    """Return the layers of a checkpointed block whose outputs are kept all the same, and which share of each."""
    if checkpointing != "operators" or unit.kind != "block":
        return []
    shares = _every_second(unit)
    return [
        (piece.layer, 1.0 - share)
        for piece, share in zip(unit.pieces, shares, strict=True)
        if piece.layer.op in ("gemm", "attention") and share < 1
    ]


def _every_second(unit: Unit) -> list[float]:
    """Return the share of each piece that is computed again: none of attention, every second product, all else."""
    shares, before = [], 0
    for piece in unit.pieces:
        if piece.layer.op == "attention":
            shares.append(0.0)
        elif piece.layer.op != "gemm":
            shares.append(1.0)
        else:
            count = _JOINED.get(piece.layer.name.rpartition(".")[2], 1)
            even = sum(number % 2 == 0 for number in range(before + 1, before + count + 1))
            shares.append(even / count)
            before += count
    return shares
