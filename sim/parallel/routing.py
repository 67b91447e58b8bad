"""What do experts cost in addition to their matrix products and bytes? Token copies between nodes, passes over them, and host work.

Node-aware dispatch sends a token once to each node that has experts for it and forwards it inside the node (DeepEP, HybridEP: DeepSeek-V3,
arXiv 2412.19437, section 3.2.2). Other implementations send one copy to each expert. Router, dispatch, experts and combine launch about a
hundred operators from the host (Megatron-LM transformer/moe). CUDA graphs of attention and router leave about half of them to the host,
because the kernels of dispatch and experts depend on the number of tokens.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from sim.spec.layer import Layer
from sim.spec.parallel import Parallel

BIAS_PASSES: Final = (6.0, 8.0)
"""Reads and writes of the output of Megatron's experts, in forward and backward. Forward: ``b * p``, ``t + b * p`` and ``cat``. Backward:
gradients of biases and probabilities, and two for the parts (transformer/moe/experts.py, ``TEGroupedMLP._apply_bias``)."""
CLAMP_PASSES: Final = (4.0, 7.5)
"""Reads and writes of the input of the experts' activation, in forward (clamp, concatenate) and backward (compare, mask, concatenate;
fusions/fused_bias_geglu.py, ``weighted_bias_quick_geglu_impl``)."""
BACKWARD_LAUNCHES: Final = 1.5
"""Host time of a block's backward relative to its forward: estimate (two products for each one, but no Python between operators)."""
GRAPHED_EXPERTS: Final = 0.5
"""Share of the host time for a block of experts that remains with CUDA graphs: estimate (Megatron-Core 0.15's scopes: attn, moe_router,
...)."""


def copies_between(nodes: float, copies: float, one_copy: bool) -> float:
    """Return the bytes that leave a node, relative to one copy for each of a token's *copies* experts, spread evenly over *nodes*."""
    if not one_copy or nodes <= 1 or copies <= 1:
        return 1.0
    missed: float = (1.0 - 1.0 / nodes) ** copies
    return nodes * (1.0 - missed) / copies


def sorted_bytes(nbytes: float, experts: float, one_copy: bool) -> float:
    """Return the bytes read and written to sort *nbytes* of dispatched copies by a rank's *experts*, or to undo the sorting.

    One expert needs no sorting, and node-aware dispatch sorts in its own kernels (Megatron-LM transformer/moe/token_dispatcher.py calls
    ``sort_chunks_by_idxs`` after dispatch and before combine; DeepEP and HybridEP permute in their own kernels).
    """
    return 0.0 if one_copy or experts <= 1 else 2.0 * nbytes


def unfused_elements(layer: Layer, clamped: bool, backward: bool) -> float:
    """Return the elements per sample that Megatron moves around the experts' *layer* outside fused kernels, for biases and clamps."""
    if layer.name.endswith("experts.down") and len(layer.gradients) > 1:
        return BIAS_PASSES[backward] * layer.write / 4.0
    if layer.name.endswith("experts.activation") and clamped:
        return CLAMP_PASSES[backward] * layer.read / 4.0
    return 0.0


def expert_host_time(seconds: float, graphs: bool) -> float:
    """Return the host time (s) of the experts in one block's forward; *seconds* is the time without CUDA *graphs*."""
    return seconds * (GRAPHED_EXPERTS if graphs else 1.0)


class ExpertLoad(NamedTuple):
    """Tokens processed by the experts of a rank, relative to the mean number that the router assigns."""

    maximum: float
    """Load of the most loaded rank of an expert group, which the others wait for."""
    mean: float
    """Mean load over ranks, including padding."""


def expert_load(parallel: Parallel) -> ExpertLoad:
    """Return the load of ranks if one rank has ``expert_imbalance`` times the mean and the experts within a rank are equally loaded.

    Megatron-LM transformer/moe/moe_utils.py, ``get_capacity`` and ``topk_routing_with_score_function``: an expert takes at most
    ``capacity_factor`` times the mean number of copies and drops the rest; with ``pad_to_capacity`` it is padded to that number.
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


def dropped_share(parallel: Parallel) -> float:
    """Return the share of the router's copies that are dropped because of the capacity."""
    return 1.0 - expert_load(parallel.model_copy(update={"pad_to_capacity": False})).mean
