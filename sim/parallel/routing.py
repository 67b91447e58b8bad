"""What do experts cost beside their products and bytes? Copies of a token that leave a node, passes over them, and the host's work.

Dispatch that knows nodes sends a token once to each node that has experts for it, and hands it on inside (DeepEP, HybridEP: DeepSeek-V3,
arXiv 2412.19437, section 3.2.2); all others send one copy for each expert. Router, dispatch, experts and combination are some hundred
operators to the host (Megatron-LM transformer/moe); CUDA graphs of attention and router leave about half of those to it, since
the number of tokens shapes what dispatch and experts launch.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from sim.spec.layer import Layer
from sim.spec.parallel import Parallel

BIAS_PASSES: Final = (6.0, 8.0)
"""Of Megatron's experts, forward and backward, over what leaves them: ``b * p``, ``t + b * p`` and ``cat``, as many reads and writes as
these have; gradients of biases and probabilities, two for the parts (transformer/moe/experts.py, ``TEGroupedMLP._apply_bias``)."""
CLAMP_PASSES: Final = (4.0, 7.5)
"""Over what enters their activation: clamped and put together; compared, masked and put together (fusions/fused_bias_geglu.py,
``weighted_bias_quick_geglu_impl``)."""
BACKWARD_LAUNCHES: Final = 1.5
"""Host time of a block's backward over that of its forward: estimate (two products for each one, but no Python between operators)."""
GRAPHED_EXPERTS: Final = 0.5
"""Part of a block of experts that CUDA graphs leave to the host: estimate (Megatron-Core 0.15's scopes: attn, moe_router, ...)."""


def copies_between(nodes: float, copies: float, one_copy: bool) -> float:
    """Return the bytes that leave a node over those of one copy for each of a token's *copies* experts, spread evenly over *nodes*."""
    if not one_copy or nodes <= 1 or copies <= 1:
        return 1.0
    missed: float = (1.0 - 1.0 / nodes) ** copies
    return nodes * (1.0 - missed) / copies


def sorted_bytes(nbytes: float, experts: float, one_copy: bool) -> float:
    """Return the bytes moved to bring *nbytes* of dispatched copies into the order of a rank's *experts*, or out of it: read and written.

    One expert needs no order, and dispatch that knows nodes brings them in it itself (Megatron-LM transformer/moe/token_dispatcher.py,
    ``sort_chunks_by_idxs`` behind dispatch and before combination; DeepEP and HybridEP permute in their own kernels).
    """
    return 0.0 if one_copy or experts <= 1 else 2.0 * nbytes


def unfused_elements(layer: Layer, clamped: bool, backward: bool) -> float:
    """Return the elements of one sample that Megatron moves around *layer* of experts beside fused kernels: biases, clamps."""
    if layer.name.endswith("experts.down") and len(layer.gradients) > 1:
        return BIAS_PASSES[backward] * layer.write / 4.0
    if layer.name.endswith("experts.activation") and clamped:
        return CLAMP_PASSES[backward] * layer.read / 4.0
    return 0.0


def expert_host_time(seconds: float, graphs: bool) -> float:
    """Return the host's seconds for the experts of one block's forward, which take *seconds* without CUDA *graphs*."""
    return seconds * (GRAPHED_EXPERTS if graphs else 1.0)


class ExpertLoad(NamedTuple):
    """Tokens that experts of a rank work on, over those of the router's mean."""

    most: float
    """Of the most loaded rank of an expert group, which the others wait for."""
    mean: float
    """Of the mean rank, padding included."""


def expert_load(parallel: Parallel) -> ExpertLoad:
    """Return the load of ranks whose experts are equal among themselves, and of which one has ``expert_imbalance`` times the mean.

    Megatron-LM transformer/moe/moe_utils.py, ``get_capacity`` and ``topk_routing_with_score_function``: an expert takes ``capacity_factor``
    times the mean number of copies and drops the rest, or with ``pad_to_capacity`` is filled up to as many.
    """
    ranks, factor = parallel.expert, parallel.capacity_factor
    most = parallel.expert_imbalance if ranks > 1 else 1.0
    if factor is None:
        return ExpertLoad(most, 1.0)
    if parallel.pad_to_capacity:
        return ExpertLoad(factor, factor)
    others = (ranks - most) / (ranks - 1) if ranks > 1 else 1.0
    kept = min(most, factor)
    return ExpertLoad(kept, (kept + (ranks - 1) * min(others, factor)) / ranks)


def dropped(parallel: Parallel) -> float:
    """Return the share of the router's copies that capacity drops."""
    return 1.0 - expert_load(parallel.model_copy(update={"pad_to_capacity": False})).mean
