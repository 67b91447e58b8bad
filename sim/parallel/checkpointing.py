"""What does activation checkpointing recompute, and what does it keep? For each block: everything, only attention, or by operator.

In recomputed blocks, the outputs of named layers can be saved (torch.utils.checkpoint, ``CheckpointPolicy.MUST_SAVE``; JAX,
``save_only_these_names``). Such a layer does not run again, and neither do the exchanges that sum its output.

``operators`` is torchtitan's selective mode (distributed/activation_checkpoint.py): it keeps the outputs of attention and of every second
matrix product, and recomputes the rest of a block. q, k and v count as separate products, and so do gate and up. Megatron can recompute
only some blocks of a stage, or only some modules of a block (megatron/core/transformer/transformer_config.py, ``recompute_modules``).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from sim.parallel.host_modules import is_joined
from sim.parallel.split import LayerPiece, Unit
from sim.spec.layer import Layer
from sim.spec.training import Training
from sim.spec.yaml import SpecError

_PRODUCTS: Final = frozenset({"gemm", "conv"})
"""Operators whose backward reads their input but not their output."""
_JOINED = {"qkv": 3, "gate_up": 2}
"""Number of matrix products that a layer of this name combines."""


MODULES: Final[Mapping[str, str]] = {
    "core_attn": r"attention\.core",
    "mlp": r"feed\.(gate_up|activation|down)",
    "moe": r"router|experts\.\w+|experts_(down|up)|shared\.\w+",
    "moe_act": r"experts\.activation",
    "layernorm": r"attention_norm|ffn_norm",
    "mla_up_proj": r"attention\.(q|q_norm|q_up|kv_norm|kv_up|rope)",
}
"""The layers of each Megatron module, as patterns for the end of a layer's name. The norms of latents belong to their up projections
(models/gpt/gpt_layer_specs.py), and queries without latents are projected with these (transformer/multi_latent_attention.py,
``qkv_up_proj_and_rope_apply``)."""
_LATENT: Final = "attention.kv_up"
"""The end of the name of a layer that only latent attention has."""


_OUTPUTS: Final[Mapping[str, str]] = {
    "moe_act": r"experts\.down",
    "layernorm": r"attention\.(qkv|q|q_down)|feed\.gate_up|router",
    "mla_up_proj": r"attention\.core",
}
"""For modules that keep their input and discard their output: the layers that would have saved the output
(core/tensor_parallel/random.py, ``CheckpointWithoutOutput``). The other modules keep only their input."""


class RecomputedPiece(NamedTuple):
    """A piece whose forward pass is recomputed in backward, and the recomputed share."""

    piece: LayerPiece
    share: float


def recomputed_pieces(training: Training, unit: Unit) -> tuple[RecomputedPiece, ...]:
    """Return the pieces of *unit* whose forward pass is recomputed in backward."""
    checkpointing = training.activation_checkpointing
    if unit.kind != "block":
        return ()
    if checkpointing == "blocks":
        saves = training.recompute_saves
        return tuple(RecomputedPiece(piece, 1.0) for piece in _rerun_pieces(training, unit) if not is_named(piece.layer, saves))
    if checkpointing == "operators":
        shares = _every_second(unit)
        return tuple(RecomputedPiece(piece, share) for piece, share in zip(unit.pieces, shares, strict=True) if share)
    named = _modules_by_piece(training, unit)
    return tuple(
        RecomputedPiece(piece, 1.0)
        for piece, modules in zip(unit.pieces, named, strict=True)
        if modules or _is_selected(piece, checkpointing)
    )


def checkpoint_count(training: Training, unit: Unit) -> int:
    """Return how many parts of *unit* backward recomputes, each with a checkpoint of its own: the block, or each norm and other module."""
    if training.activation_checkpointing in ("blocks", "operators"):
        return int(bool(recomputed_pieces(training, unit)))
    if unit.kind != "block":
        return 0
    named = _modules_by_piece(training, unit)
    once = {module for modules in named for module in modules if module != "layernorm"}
    once |= {"core_attn" for piece in unit.pieces if _is_selected(piece, training.activation_checkpointing)}
    return len(once) + sum("layernorm" in modules for modules in named)


def restored_bytes(training: Training, unit: Unit) -> list[float]:
    """Return by piece of *unit* the bytes per sample (4-byte elements) of its input that are copied after they have been recomputed.

    An output that was discarded is made again elsewhere, and copied to where backward reads it (core/tensor_parallel/random.py,
    ``CheckpointWithoutOutput._recompute``).
    """
    if unit.kind != "block" or training.activation_checkpointing in ("blocks", "operators"):
        return [0.0] * len(unit.pieces)
    modules = _modules_of(unit, training.recompute_modules)
    joined = training.stack.kernels.fused_casts
    return [
        min(piece.layer.saved, piece.layer.read) if reads_discarded(piece.layer.name, modules, joined) else 0.0 for piece in unit.pieces
    ]


def _rerun_pieces(training: Training, unit: Unit) -> Sequence[LayerPiece]:
    """Return the pieces of a block that recomputation runs: all, or with early stop, up to the last tensor that backward reads."""
    options = training.stack.mesh
    if options is None or not options.early_stop:
        return unit.pieces
    last = max((number for number, piece in enumerate(unit.pieces) if piece.layer.saved), default=-1)
    reads_input_alone = last >= 0 and unit.pieces[last].layer.op in _PRODUCTS
    return unit.pieces[: last if reads_input_alone else last + 1]


def _is_selected(piece: LayerPiece, checkpointing: str) -> bool:
    """Return whether *piece* is recomputed although its block is not: attention (``selective``), or segments in the model's own code."""
    return piece.layer.op == "attention" if checkpointing == "selective" else checkpointing == "model" and bool(piece.layer.segment)


def checkpointed_share(training: Training, units: Sequence[Unit], stages: int) -> float:
    """Return the share of a stage's blocks that is checkpointed: all, or ``recompute_blocks`` of them, assuming equal stages."""
    if training.activation_checkpointing != "blocks" or not training.recompute_blocks:
        return 1.0
    blocks = sum(unit.kind == "block" for unit in units) / stages
    return min(1.0, training.recompute_blocks / blocks) if blocks else 1.0


def discarded_shares(modules: Sequence[str], unit: Unit, joined: tuple[str, ...] = ()) -> list[float]:
    """Return how many of its saved bytes each piece of a block does not keep because *modules* of the block are recomputed.

    Norms before a product whose name ends with one of *joined* are part of its module, and not recomputed by themselves.
    """
    freed = []
    inside = False
    modules = _modules_of(unit, modules)
    for piece in unit.pieces:
        layer = piece.layer
        recomputed = in_modules(layer.name, [module for module in modules if module not in _OUTPUTS])
        entering = layer.read if recomputed and not inside else 0.0
        leaving = layer.write if layer.op == "attention" else 0.0  # the product after it reads the result that attention saves
        output = reads_discarded(layer.name, modules, joined)
        freed.append(max(0.0, layer.saved - entering - leaving) if recomputed else min(layer.saved, layer.read) if output else 0.0)
        inside = recomputed
    return freed


def reads_discarded(layer: str, modules: Sequence[str], joined: tuple[str, ...]) -> bool:
    """Return whether the layer named *layer*, with or without its block, reads an output that one of the Megatron *modules* discards."""
    own_norm = bool(joined) and layer.endswith(joined)
    discarding = [module for module in modules if module in _OUTPUTS and not (module == "layernorm" and own_norm)]
    return any(re.search(rf"(^|\.)({_OUTPUTS[module]})$", layer) for module in discarding)


def _modules_by_piece(training: Training, unit: Unit) -> list[list[str]]:
    """Return by piece of *unit* the recomputed modules to which it belongs; a norm that the next layer's module runs is in none."""
    modules, joined = _modules_of(unit, training.recompute_modules), training.stack.kernels.fused_casts
    layers = [piece.layer for piece in unit.pieces]
    return [
        [
            module
            for module in modules
            if in_modules(layer.name, [module]) and not (module == "layernorm" and is_joined(layers, number, joined))
        ]
        for number, layer in enumerate(layers)
    ]


def _modules_of(unit: Unit, modules: Sequence[str]) -> list[str]:
    """Return those of the Megatron *modules* that *unit* has: only latent attention has up projections, to which its rotation belongs."""
    latent = any(piece.layer.name.endswith(_LATENT) for piece in unit.pieces)
    return [module for module in modules if latent or module != "mla_up_proj"]


def in_modules(layer: str, modules: Sequence[str]) -> bool:
    """Return whether the layer named *layer*, with or without its block, belongs to one of the Megatron *modules*."""
    return any(re.search(rf"(^|\.)({MODULES[module]})$", layer) for module in modules)


def is_named(layer: Layer, names: Sequence[str]) -> bool:
    """Return whether the name of *layer* is one of *names*, or ends with a dot and one of them."""
    return any(f".{layer.name}".endswith(f".{name}") for name in names)


def check_saves(training: Training, units: Sequence[Unit]) -> None:
    """Raise SpecError if ``recompute_saves`` contains a name that no layer of a block has."""
    if not training.recompute_saves:
        return
    layers = {piece.layer.name: piece.layer for unit in units if unit.kind == "block" for piece in unit.pieces}
    for name in training.recompute_saves:
        if not any(is_named(layer, (name,)) for layer in layers.values()):
            ends = dict.fromkeys(re.sub(r"^.*?\.\d+\.", "", each) for each in layers)
            raise SpecError(f"training.recompute_saves: no block has a layer {name}; write some of {', '.join(ends)}")


def kept_outputs(training: Training, unit: Unit) -> list[tuple[Layer, float]]:
    """Return the layers of a checkpointed block whose outputs are kept nevertheless, and the share of each that is kept.

    A saved output is the sum over tensor ranks; with sequence parallelism, a rank keeps only its own tokens.
    """
    if unit.kind != "block":
        return []
    if training.activation_checkpointing == "blocks":
        tokens = 1.0 / training.parallel.tensor if training.parallel.sequence_parallel else 1.0
        saved = (piece.layer for piece in unit.pieces if is_named(piece.layer, training.recompute_saves))
        return [(layer, tokens if layer.share == "rowwise" else 1.0) for layer in saved]
    if training.activation_checkpointing != "operators":
        return []
    shares = _every_second(unit)
    return [
        (piece.layer, 1.0 - share)
        for piece, share in zip(unit.pieces, shares, strict=True)
        if piece.layer.op in ("gemm", "attention") and share < 1
    ]


def _every_second(unit: Unit) -> list[float]:
    """Return the recomputed share of each piece: none of attention, every second matrix product, and all of the rest."""
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
