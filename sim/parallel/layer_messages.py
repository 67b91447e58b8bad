"""What must a rank exchange for a layer that is split over its group? Messages of tensor, expert and context groups.

They depend on where a split begins and ends (Megatron-LM, arXiv 2205.05198): with sequence parallelism, an all-gather at the beginning
and a reduce-scatter at the end, otherwise one all-reduce at the end; in backward, the reverse.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal, NamedTuple

from sim.parallel.routing import expert_load
from sim.spec.layer import Attention, Layer
from sim.spec.parallel import Parallel
from sim.spec.transformer import Mamba

GroupName = Literal["tensor", "context", "expert"]
"""Axes along which ranks split layers, and so exchange messages inside a unit."""


class LayerMessage(NamedTuple):
    """One exchange of a rank: bytes per sample for 4-byte elements; *overlaps*: whether it overlaps with the layer's own work."""

    axis: GroupName
    op: Literal["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send_recv"]
    nbytes: float
    overlaps: bool = False
    skew: float = 1.0
    """For an all-to-all: bytes that the most loaded rank receives (in combine: sends), divided by the mean."""
    times: int = 1
    """Number of such messages, one after another."""
    steps: int = 1
    """Number of equal steps of the layer's work, of which each message overlaps with one."""
    wide: float = 0.0
    """Bytes in addition that have 4-byte elements in any precision."""


SPLIT = frozenset({"colwise", "heads", "per_head"})


def begins_experts(layers: Sequence[Layer], index: int) -> bool:
    """Return whether layer *index* is the first layer of a run of experts."""
    return layers[index].share == "expert" and (index == 0 or layers[index - 1].share != "expert")


def tensor_messages(
    layer: Layer, parallel: Parallel, inside: bool, regathers: bool, forward: list[LayerMessage], backward: list[LayerMessage]
) -> bool:
    """Add the messages of the tensor group for *layer*; return whether the layers after it work on split activations."""
    sequence, context = parallel.sequence_parallel, parallel.context
    if layer.op == "loss" and layer.share in SPLIT:  # maximum, sum and logit of the target, for each token
        forward += [LayerMessage("tensor", "all_reduce", 4.0 * max(layer.tokens, 1) / context)] * 3
        return False
    if layer.share in SPLIT and not inside:
        entering = layer.read / context
        if sequence:
            forward.append(LayerMessage("tensor", "all_gather", entering))
            backward.append(LayerMessage("tensor", "reduce_scatter", entering))
            if regathers:
                backward.append(LayerMessage("tensor", "all_gather", entering, overlaps=True))  # the input, for the gradient of the weights
        else:
            backward.append(LayerMessage("tensor", "all_reduce", entering))
        return True
    if layer.share in ("rowwise", "vocabulary"):
        leaving = layer.write / context
        if sequence:
            forward.append(LayerMessage("tensor", "reduce_scatter", leaving))
            backward.append(LayerMessage("tensor", "all_gather", leaving))
        else:
            forward.append(LayerMessage("tensor", "all_reduce", leaving))
        return False
    return inside


def expert_messages(
    layers: Sequence[Layer], index: int, parallel: Parallel, forward: list[LayerMessage], backward: list[LayerMessage]
) -> None:
    """Add dispatch before the first and combine after the last layer of a run of experts, or messages of tensor ranks that split them."""
    begins = begins_experts(layers, index)
    ends = index + 1 == len(layers) or layers[index + 1].share != "expert"
    tokens = parallel.context * (parallel.tensor if parallel.sequence_parallel or parallel.expert == 1 else 1)
    if parallel.expert > 1:
        for there, nbytes in ((begins, layers[index].write), (ends, layers[index].read)):
            if there:
                load = expert_load(parallel)
                message = LayerMessage("expert", "all_to_all", nbytes * load.mean / tokens, skew=load.maximum / load.mean)
                forward.append(message)
                backward.append(message)
    elif parallel.tensor > 1 and parallel.sequence_parallel:
        if begins:
            forward.append(LayerMessage("tensor", "all_gather", layers[index].read / parallel.context))
            backward.append(LayerMessage("tensor", "reduce_scatter", layers[index].read / parallel.context))
        if ends:
            forward.append(LayerMessage("tensor", "reduce_scatter", layers[index].write / parallel.context))
            backward.append(LayerMessage("tensor", "all_gather", layers[index].write / parallel.context))
    elif parallel.tensor > 1:
        if begins:
            backward.append(LayerMessage("tensor", "all_reduce", layers[index].read / parallel.context))
        if ends:
            forward.append(LayerMessage("tensor", "all_reduce", layers[index].write / parallel.context))


def context_messages(attention: Attention, parallel: Parallel, forward: list[LayerMessage], backward: list[LayerMessage]) -> None:
    """Add the exchange of keys and values: around a ring that overlaps with attention, or gathered before it (Transformer Engine)."""
    local = key_bytes(attention, parallel)
    if parallel.context_exchange == "ring":
        forward.append(LayerMessage("context", "all_gather", local * parallel.context, overlaps=True))  # one ring step per rank
        backward.append(LayerMessage("context", "all_gather", 2.0 * local * parallel.context, overlaps=True))
    else:
        gathered = LayerMessage("context", "all_gather", local * parallel.context)
        forward.append(gathered)
        backward += [gathered, gathered._replace(op="reduce_scatter")]


SCAN_COPIES: Final = (6.0, 4.0)
"""Bytes that moving one byte of what enters and of what leaves a scan over context ranks takes: chunks put side by side, parts joined, and
tokens put into their order, each read and written; for the result the last and the first."""


def scan_messages(scan: Layer, mamba: Mamba, parallel: Parallel, forward: list[LayerMessage], backward: list[LayerMessage]) -> None:
    """Add the exchanges around a Mamba-2 *scan* over context ranks, each of which convolves and scans all tokens for its part of the heads.

    One all-to-all each for gate, values, both projections of the state, and steps; after the scan, one for its result; in backward, the
    same for their gradients (Megatron-LM core/ssm/mamba_context_parallel.py, ``pre_conv_ssm`` and ``post_conv_ssm``).
    """
    of_element = scan.write / mamba.inner / (parallel.context * parallel.tensor)
    widths = [*entering_scan(mamba, parallel), mamba.inner]
    for messages in (forward, backward):
        messages += [LayerMessage("context", "all_to_all", of_element * width) for width in widths]


def entering_scan(mamba: Mamba, parallel: Parallel) -> tuple[int, ...]:
    """Return the elements of a token of all tensor ranks that are exchanged before a Mamba-2 scan: those of each message.

    Groups of which there are fewer than context ranks are repeated.
    """
    projections = mamba.groups * mamba.state * max(1, parallel.context * parallel.tensor // mamba.groups)
    return mamba.inner, mamba.inner, projections, projections, mamba.heads


def scan_copies(conv: Layer, mamba: Mamba, parallel: Parallel) -> float:
    """Return the bytes per sample (4-byte elements) that one rank copies around the exchanges of a scan, whose *conv* is given."""
    of_element = conv.write / mamba.channels / (parallel.context * parallel.tensor)
    return of_element * (SCAN_COPIES[0] * sum(entering_scan(mamba, parallel)) + SCAN_COPIES[1] * mamba.inner)


def key_bytes(attention: Attention, parallel: Parallel) -> float:
    """Return the bytes (4-byte elements) of the keys and values of one tensor and context rank."""
    width = 4.0 * (attention.head_dim + (attention.value_dim or attention.head_dim))
    return attention.keys * attention.documents / parallel.context * max(1.0, attention.kv_heads / parallel.tensor) * width
