"""What do context ranks send and move in memory with ring attention? Torch's messages and passes between steps; others' passes.

``torch.distributed.tensor.experimental``, ``_templated_ring_attention`` and its backward (torch 2.6 to 2.13). Each of n ranks attends in n
steps, first to its own keys. The last rank is simulated, whose other steps see half of a rank's keys. Keys are all-gathered beside the
first step (``allgather``) or sent on in each (``alltoall``). Results are merged in 32 bits; so are gradients of keys added and, after every
step, sent. Operator by operator, a message overlaps with the next step; in a compiled block, none does (`docs/model/layouts.md`).
Transformer Engine's ring merges and adds as well (`engine_passes`), in the data type of attention.

Limits: log-sum-exps, which have one element for each head and token, are left out; so are the launches of the steps, and messages of keys
that a compiled block without recomputation sends on again and does not use (torch 2.13).
"""

from __future__ import annotations

from typing import Final, NamedTuple

from sim.parallel.layer_messages import LayerMessage
from sim.spec.layer import Attention
from sim.spec.parallel import MeshOptions
from sim.spec.training import Training

MERGED_WIDTH: Final = 4.0
"""Bytes of an element of what is merged and added."""


class Ring(NamedTuple):
    """How torch's ring runs in a layout."""

    sends: bool
    """Whether keys are sent on in each step; false: gathered behind the first."""
    compiled: bool
    """Whether blocks are compiled, so that merges are fused and messages do not overlap."""
    repeats_keys: bool
    """Whether keys and values are repeated for all query heads before attention."""
    keeps_keys: bool
    """Whether backward of a compiled block has other ranks' keys from forward, which saved them or is recomputed."""


class RankElements(NamedTuple):
    """Elements of one rank, per sample: its queries, its results, and its keys and values together."""

    queries: float
    results: float
    keys: float


def ring_of(training: Training, options: MeshOptions) -> Ring | None:
    """Return how torch's ring runs in *training*; None without context ranks, or if Transformer Engine exchanges keys and values.

    Selective checkpointing by operator saves attention's results, but not the gathered keys (torchtitan's list of saved operators).
    """
    parallel = training.parallel
    if parallel.context == 1 or options.context_ring != "torch":
        return None
    compiled = any(training.stack.kernels.compilation)
    return torch_ring(options, parallel.context_exchange, compiled, training.activation_checkpointing == "operators")


def torch_ring(options: MeshOptions, exchange: str, compiled: bool, by_operator: bool) -> Ring:
    """Return how torch's ring runs with `Parallel.context_exchange`; *by_operator*: selective checkpointing by operator."""
    return Ring(exchange == "ring", compiled, options.repeats_keys, keeps_keys=compiled and not by_operator)


def ring_attention(attention: Attention, ring: Ring) -> Attention:
    """Return a rank's *attention* as torch's ring calls it."""
    return attention.model_copy(update={"in_steps": True, "kv_heads": attention.heads if ring.repeats_keys else attention.kv_heads})


def elements_of(attention: Attention) -> RankElements:
    """Return the elements of a rank's *attention* around a ring (`ring_attention`)."""
    value_dim = attention.value_dim or attention.head_dim
    queries = attention.documents * attention.queries * attention.heads
    keys = attention.documents * attention.keys / attention.shares * attention.kv_heads
    return RankElements(queries * attention.head_dim, queries * value_dim, keys * (attention.head_dim + value_dim))


def ring_messages(local: float, ranks: int, ring: Ring, backward: bool) -> list[LayerMessage]:
    """Return the messages of one pass; *local* is the bytes of a rank's keys and values with 4-byte elements."""
    overlaps = not ring.compiled
    gathered = LayerMessage("context", "all_gather", local * ranks, overlaps, steps=ranks)
    sent = LayerMessage("context", "send_recv", local, overlaps, steps=ranks)
    keys = sent._replace(times=_compiled_sends(ranks) if ring.compiled else ranks - 1) if ring.sends else gathered
    if not backward:
        return [keys]
    gradients = LayerMessage("context", "send_recv", 0.0, overlaps, wide=local, steps=ranks)
    last = gradients._replace(overlaps=False)
    if ring.compiled:
        return [*(() if ring.keeps_keys else (keys,)), last._replace(times=ranks)]
    if not ring.sends:
        return [gathered, gradients._replace(times=ranks - 1), last]
    both = [gradients._replace(nbytes=local, times=ranks - 2)] if ranks > 2 else []  # beside one step
    return [sent, *both, gradients, last]


def _compiled_sends(ranks: int) -> int:
    """Return how often keys are sent on for both passes of a compiled block, which needs no gradients and so happens in forward.

    Only the first messages of both are one: the code that takes further ones apart differs between forward and backward.
    """
    return 2 * ranks - 3


def ring_passes(own: RankElements, ranks: int, width: float, ring: Ring, backward: bool) -> float:
    """Return the bytes that the last rank's operators move in one pass beside attention, for elements of *width* bytes."""
    if ring.compiled:
        return _compiled_backward(own, ranks, width, ring) if backward else _compiled_forward(own, ranks, width, ring)
    return _eager_backward(own, ranks, width) if backward else _eager_forward(own, ranks, width)


def _eager_forward(own: RankElements, ranks: int, width: float) -> float:
    """Return the bytes of keys that are made contiguous and put together for each message, and of merges (``_SDPAMerger``)."""
    converted = width + MERGED_WIDTH if width != MERGED_WIDTH else 0.0
    merge = converted + 8.0 * MERGED_WIDTH  # a difference of results, times a number of each row, subtracted
    return 2.0 * width * ranks * own.keys + (converted + (ranks - 1) * merge + converted) * own.results


def _eager_backward(own: RankElements, ranks: int, width: float) -> float:
    """Return the bytes of zeros, of keys as in forward, of additions, of gradients that are put together, and of conversions."""
    converted = width + MERGED_WIDTH if width != MERGED_WIDTH else 0.0
    added = width + 2.0 * MERGED_WIDTH
    first = MERGED_WIDTH + added + 2.0 * MERGED_WIDTH  # a copy for the first message: zeros have the order of the keys' axes
    keys = first + 2.0 * width * ranks + (ranks - 1) * (0.5 * added + 2.0 * MERGED_WIDTH) + ranks * 2.0 * MERGED_WIDTH + converted
    queries = MERGED_WIDTH + ranks * added + converted
    return keys * own.keys + queries * own.queries


def _compiled_forward(own: RankElements, ranks: int, width: float, ring: Ring) -> float:
    """Return the bytes of messages that are put together, and of one merge of the results of all steps."""
    return _compiled_keys(ranks, width, ring) * own.keys + (ranks + 1) * width * own.results


def _compiled_backward(own: RankElements, ranks: int, width: float, ring: Ring) -> float:
    """Return the bytes of additions to half of the gradients of keys, with copies of all for each message, and of sums over steps."""
    keys = width + MERGED_WIDTH + (ranks - 1) * (width + 5.0 * MERGED_WIDTH) + width + MERGED_WIDTH
    keys += 0.0 if ring.keeps_keys else _compiled_keys(ranks, width, ring)
    return keys * own.keys + (ranks + 1) * width * own.queries


def _compiled_keys(ranks: int, width: float, ring: Ring) -> float:
    """Return the bytes per element of keys to put messages together."""
    return 2.0 * width * (_compiled_sends(ranks) if ring.sends else 1)


def engine_passes(own: RankElements, ranks: int, width: float, causal: bool, backward: bool) -> float:
    """Return the bytes that the last rank's operators move in one pass beside Transformer Engine's steps of attention.

    dot_product_attention/context_parallel.py, ``AttnFuncWithCPAndKVP2P``. Forward puts keys and values into one buffer, scales the result
    of the first step, and adds each other one to it, scaled, in a fused kernel. Backward copies the buffer, puts the gradients of keys and
    values of each step together, and adds them to those that arrive; the first step's gradients are copied, and those of queries, too.
    Under a causal mask, the last rank sees half of the keys of each other rank.
    """
    joined, added = 2.0 * width, 3.0 * width  # read and written; a sum is read as well
    if not backward:
        return joined * own.keys + (joined + (ranks - 1) * added) * own.results
    seen = 0.5 if causal else 1.0
    steps = seen * (ranks - 1) * joined + joined  # gradients put together
    sums = seen * (joined + (ranks - 2) * added) + added
    return (joined + steps + sums) * own.keys + (joined + (ranks - 1) * added) * own.queries
