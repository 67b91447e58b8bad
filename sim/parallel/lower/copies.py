"""What does FSDP copy on the GPU around its collectives? Bytes that cross the memory, read and written, for each element of a wrap.

FSDP2 (torch fsdp/_fully_shard/_fsdp_collectives.py): the shards are cast and then copied into the buffer that is gathered, on a stream of
their own; compute copies each parameter out of it (``split_with_sizes_copy``), and gradients into the buffer that is reduced
(``chunk_cat``), which casts them. FSDP1 (fsdp/_flat_param.py, _runtime_utils.py): parameters are views of what is gathered, so that
autograd puts their gradients together (backward of ``torch.split``); another stream casts these and divides them before they are reduced.

Nothing is copied where the compiler lays out what travels (``copies: false``, XLA).

Limits: shards that are cast and added up behind a reduction, one part in so many ranks; DeepSpeed's ZeRO-3.
"""

from __future__ import annotations

from typing import Literal

from sim.parallel.lower.lowering import Layout
from sim.spec.layer import WIDTHS


def shard_copied(layout: Layout, ranks: int, again: bool) -> float:
    """Return the bytes that another stream copies of a rank's shard before it is gathered, for each element that *ranks* hold together.

    *again*: from shards that forward left behind in the type that travels (``reshard_after_forward`` with a number).
    """
    travels, held = layout.gathered, layout.gathered if again else WIDTHS[layout.options.weights]
    casts = WIDTHS[layout.options.weights] != travels  # a type of parameters is set, which FSDP2 copies to whatever a shard is in
    if _copies(layout) == "fsdp2":
        return ((held + travels if casts else 0.0) + 2.0 * travels) / ranks
    return (held + travels) / ranks if casts and _copies(layout) == "fsdp1" else 0.0


def weights_copied(layout: Layout) -> float:
    """Return the bytes that compute copies of each element once it is gathered."""
    return 2.0 * layout.gathered if _copies(layout) == "fsdp2" else 0.0


def gradients_copied(layout: Layout, reduces: bool) -> float:
    """Return the bytes that compute copies of each gradient behind backward, which then *reduces* it or not."""
    match _copies(layout):
        case "fsdp2":
            return unreduced_width(layout) + layout.reduced if reduces else 0.0
        case "fsdp1":
            return 2.0 * layout.gathered
        case _:
            return 0.0


def unreduced_width(layout: Layout) -> float:
    """Return the bytes of a gradient before it is reduced: as autograd made it, or added up over micro-batches in the type that travels."""
    adds = layout.micro_batches > 1 and not layout.reduces_each
    return layout.reduced if adds else layout.gathered


def gradients_divided(layout: Layout) -> float:
    """Return the bytes that another stream passes of each gradient before FSDP1 reduces it: cast, and divided in place."""
    if _copies(layout) != "fsdp1":
        return 0.0
    cast = layout.gathered + layout.reduced if layout.reduced != layout.gathered else 0.0
    return cast + 2.0 * layout.reduced


def _copies(layout: Layout) -> Literal["fsdp2", "fsdp1", ""]:
    """Return whose copies a rank makes; empty: none."""
    framework = layout.options.framework
    return framework if layout.options.copies and framework in ("fsdp2", "fsdp1") else ""
