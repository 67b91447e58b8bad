"""What does FSDP copy on the GPU around its collectives? Bytes read and written in GPU memory for each element of a wrap.

FSDP2 (torch fsdp/_fully_shard/_fsdp_collectives.py): a separate stream casts the shards and copies them into the input buffer of the
all-gather. The compute stream copies each parameter out of the gathered buffer (``split_with_sizes_copy``), and copies gradients into the
buffer that is reduced (``chunk_cat``), which also casts them. FSDP1 (fsdp/_flat_param.py, _runtime_utils.py): parameters are views of
the gathered buffer, so autograd concatenates their gradients (backward of ``torch.split``). Another stream casts them and divides
them before they are reduced. Nothing is copied if the compiler lays out the communicated buffers (``copies: false``, XLA).

Under FSDP2, a group of one rank sends nothing but still copies (_fsdp_param_group.py, ``wait_for_unshard``; ``foreach_reduce``): on the
compute stream, or, out of the gradient buffer, with all of the memory's bandwidth. Both count as compute.

Limits: casting and adding the shards after a reduction is not counted (1/ranks of the bytes); nor is DeepSpeed's ZeRO-3.
"""

from __future__ import annotations

from typing import Literal

from sim.parallel.lower.lowering import Layout
from sim.spec.layer import WIDTHS


def shard_copy_bytes(layout: Layout, ranks: int, from_forward: bool) -> float:
    """Return the bytes that another stream copies of a rank's shard before its gather, per element that *ranks* hold together.

    *from_forward*: the shards were left by forward in the communicated data type (``reshard_after_forward`` with a number).
    """
    travels, held = layout.gathered_width, layout.gathered_width if from_forward else WIDTHS[layout.options.weights]
    casts = WIDTHS[layout.options.weights] != travels  # a parameter dtype is set, to which FSDP2 copies shards of any type
    if _copies(layout) == "fsdp2":
        return ((held + travels if casts else 0.0) + 2.0 * travels) / ranks
    return (held + travels) / ranks if casts and _copies(layout) == "fsdp1" else 0.0


def weight_copy_bytes(layout: Layout) -> float:
    """Return the bytes that the compute stream copies per element after a gather."""
    return 2.0 * layout.gathered_width if _copies(layout) == "fsdp2" else 0.0


def lone_weight_bytes(layout: Layout) -> float:
    """Return the bytes that a group of one rank copies per element instead of a gather."""
    return shard_copy_bytes(layout, 1, False) if layout.copies_alone else 0.0


def lone_gradient_bytes(layout: Layout) -> float:
    """Return the bytes that a group of one rank copies per gradient element instead of a reduction, after `gradient_copy_bytes`.

    With ``set_gradient_divide_factor``, gradients are divided in a separate pass; in larger groups the collectives divide them.
    """
    return 2.0 * layout.reduced_width * (1 + layout.options.divides_gradients) if layout.copies_alone else 0.0


def gradient_copy_bytes(layout: Layout, reduces: bool) -> float:
    """Return the bytes that the compute stream copies per gradient element after backward; *reduces*: whether it is reduced then."""
    match _copies(layout):
        case "fsdp2":
            return unreduced_width(layout) + layout.reduced_width if reduces else 0.0
        case "fsdp1":
            return 2.0 * layout.gathered_width
        case _:
            return 0.0


def unreduced_width(layout: Layout) -> float:
    """Return the bytes of a gradient before it is reduced: as made by autograd, or summed over micro-batches in the communicated type."""
    adds = layout.micro_batches > 1 and not layout.reduces_each
    return layout.reduced_width if adds else layout.gathered_width


def gradient_division_bytes(layout: Layout) -> float:
    """Return the bytes per gradient element that another stream moves before FSDP1 reduces it: a cast, and a division in place."""
    if _copies(layout) != "fsdp1":
        return 0.0
    cast = layout.gathered_width + layout.reduced_width if layout.reduced_width != layout.gathered_width else 0.0
    return cast + 2.0 * layout.reduced_width


def _copies(layout: Layout) -> Literal["fsdp2", "fsdp1", ""]:
    """Return the framework whose copies a rank makes; empty: none."""
    framework = layout.options.framework
    return framework if layout.options.copies and framework in ("fsdp2", "fsdp1") else ""
