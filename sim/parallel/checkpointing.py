"""What does activation checkpointing compute again, and what does it keep? By block: everything, attention alone, or operator by operator.

``operators`` is torchtitan's selective mode (distributed/activation_checkpoint.py): outputs of attention and of every second matrix product
are kept, all else of a block is computed again; q, k and v, and gate and up, count as products of their own.
"""

from __future__ import annotations

from typing import NamedTuple

from sim.parallel.split import Piece, Unit
from sim.spec.layer import Layer

_JOINED = {"qkv": 3, "gate_up": 2}
"""Products that a layer of this name joins."""


class Again(NamedTuple):
    """A piece that backward runs forward again, and which share of it."""

    piece: Piece
    share: float


def recomputed(checkpointing: str, unit: Unit) -> tuple[Again, ...]:
    """Return the pieces of *unit* that backward runs forward again."""
    if unit.kind != "block" or checkpointing == "none":
        return ()
    if checkpointing == "blocks":
        return tuple(Again(piece, 1.0) for piece in unit.pieces)
    if checkpointing == "selective":
        return tuple(Again(piece, 1.0) for piece in unit.pieces if piece.layer.op == "attention")
    if checkpointing == "operators":
        shares = _every_second(unit)
        return tuple(Again(piece, share) for piece, share in zip(unit.pieces, shares, strict=True) if share)
    return tuple(Again(piece, 1.0) for piece in unit.pieces if piece.layer.segment)


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
