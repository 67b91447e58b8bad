"""What do experts cost in addition to their matrix products and bytes? Token copies between nodes, passes over them, and host work.

Node-aware dispatch sends a token once to each node that has experts for it and forwards it inside the node, once to each rank (DeepSeek-V3,
arXiv 2412.19437, section 3.2.2). These are DeepEP (tests/legacy/test_internode.py: ``inplace_unique`` of the ranks and of the nodes of a
token) and HybridEP, which Megatron-LM's flex dispatcher calls (transformer/moe/token_dispatcher.py, ``MoEFlexTokenDispatcher``). Others
permute one copy for each expert before their all-to-all: ``MoEAlltoAllTokenDispatcher`` there (``permute`` before ``all_to_all``), and
torchtitan (distributed/expert_parallel.py, ``_token_dispatch``). Router, dispatch, experts and combine launch about a
hundred operators from the host (Megatron-LM transformer/moe), and Transformer Engine starts others for each local expert. CUDA graphs of
attention and router leave a quarter of the former to the host and all of the latter, because the kernels of dispatch and experts depend on
the number of tokens.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Final, NamedTuple

from sim.spec.fields import Fp8Recipe, Precision
from sim.spec.fp8_recipe import needs_transposes
from sim.spec.hardware import Gpu
from sim.spec.layer import Layer
from sim.spec.parallel import MeshOptions, Parallel
from sim.spec.transformer import Mamba, Mla, Transformer


class PassCount(NamedTuple):
    """Passes outside fused kernels: for each element of a tensor, or for all elements of one together."""

    moved: float
    """Reads and writes in 16 bits by kernels that reach the memory's bandwidth."""
    indexed: float
    """Operators with a broadcast or strided operand (`Kernels.indexed_elements`)."""

    def over(self, elements: float) -> PassCount:
        """Return these passes over *elements* elements."""
        return PassCount(self.moved * elements, self.indexed * elements)


class PartWidths(NamedTuple):
    """A number of passes over each part of a head of latent attention."""

    plain: float
    turned: float
    value: float

    def of(self, mla: Mla) -> float:
        """Return the elements that they pass for one token and head."""
        return self.plain * mla.nope_dim + self.turned * mla.rope_dim + self.value * mla.value_dim


BIAS_PASSES: Final = (PassCount(5.0, 1.0), PassCount(4.0, 2.0))
"""Passes over the output of Megatron's experts, in forward and backward. Forward: ``b * p`` (indexed), ``t + b * p`` and ``cat``. Backward:
parts of the gradient, its products with probabilities and biases (indexed), and their sums (transformer/moe/experts.py,
``TEGroupedMLP._apply_bias``)."""
BIAS_PASSES_FP32: Final = (PassCount(12.0, 1.0), PassCount(12.0, 2.0))
"""The same if the probabilities have 32 bits, as for DeepEP and HybridEP (transformer/moe/token_dispatcher.py: ``token_probs.float()``):
sums are in 32 bits until they have been joined."""
BIAS_OPERATIONS: Final = (2, 6)
"""Operators that `_apply_bias` starts for each expert (forward: product, sum; backward: two products and two sums), and the additions to
the gradients of its two biases (Megatron-LM distributed/distributed_data_parallel.py: ``param.main_grad.add_``)."""
BIAS_OPERATIONS_FP32: Final = (2, 8)
"""The same if the probabilities have 32 bits: backward casts the gradients of tokens and bias."""
ROTATION_PASSES: Final = (PassCount(3.0, 3.5), PassCount(5.0, 3.5))
"""Passes over queries and keys beyond the one that a fused rotation takes: two products with cosines and sines, minus of one half and
``cat`` (indexed), sums (models/common/embeddings/rope_utils.py, ``apply_rotary_pos_emb``: if ``mscale`` is not 1,
``_apply_rotary_pos_emb_bshd`` runs even with ``apply_rope_fusion``)."""
LATENT_ROTATION: Final = ((PartWidths(0.0, 5.0, 0.0), PartWidths(2.0, 6.5, 1.0)), (PartWidths(0.0, 10.0, 0.0), PartWidths(2.0, 6.5, 1.0)))
"""Passes of latent attention between its up projections and its kernel if they are not fused, in forward and backward: those at the
memory's bandwidth and indexed ones, for each element of a head's part without position, with it, and of a value
(transformer/multi_latent_attention.py, ``qkv_up_proj_and_rope_apply`` without ``apply_rope_fusion``: parts are split, put in the order of
halves, rotated, put together, and values copied)."""
LATENT_LAUNCHES: Final = (28, 22)
"""Operators of these passes beyond one."""
SQUARE_PASSES: Final = (PassCount(2.0, 0.0), PassCount(7.0, 0.0))
"""Passes over the result of a squared ReLU beyond those of a fused one: ``torch.pow(F.relu(x), 2)`` and its backward, a power, two products
and a comparison."""
SQUARE_LAUNCHES: Final = (1, 3)
"""Operators of these passes beyond one."""
SCAN_LAUNCHES: Final = (2, 1)
"""Copies around a Mamba-2 scan of several samples, whose kernels take samples first: of what enters it, gate included, and of its result;
backward: of the gradient of the former (ssm/mamba_mixer.py, ``_ssm_training``: two ``rearrange(...).contiguous()``, which copy nothing if
there is one sample; gradients of the result are read with strides)."""
GATED_ROW: Final = 1.11e-6
"""Seconds in which one program of the backward of Mamba-2's gated norm processes a group of one token, whatever its size: each program
takes its groups in turn, 8 elements a thread, and waits for memory (state-spaces/mamba ops/triton/layernorm_gated.py, ``_layer_norm_bwd``).
From calibration/records/scans.csv, ``mamba2_norm``: 415 us for 12,288 tokens in 8 groups by 264 programs."""
GATED_WARP: Final = 256
"""Elements of a group for each warp of a program, of which there are 1 to 8."""
CLAMP_PASSES: Final = (PassCount(2.0, 1.0), PassCount(2.75, 2.5))
"""Passes over the input of the experts' activation: both halves are clamped (indexed) and joined; backward compares one half with
one limit, the other with two, and masks (indexed; fusions/fused_bias_geglu.py, ``weighted_bias_quick_geglu_impl``)."""
TITAN_DISPATCH_PASSES: Final = ((PassCount(4.0, 0.0), 0.0), (PassCount(0.0, 4.0), 0.0))
"""Passes of torchtitan's dispatch, in forward and backward, that the layer table does not include (it gathers copies in one pass): over
the dispatched copies, and reads and writes of the tokens. Forward: append a row of zeros, and gather by expert into padded rows
(models/moe/utils.py, ``_permute``). Backward: add to rows, twice; torch's kernel for this takes as long as two indexed
operators (calibration/records/blind/2026-11-27-h200-kernels.csv, as the numbers of the combine)."""
TITAN_COMBINE_PASSES: Final = ((PassCount(5.0, 3.0), 4.0), (PassCount(10.5, 2.5), 6.0))
"""The same in torchtitan's combine. Forward: zeros, and rows in the order before padding (``_unpermute``) and in the order of tokens,
each as long as 1.5 indexed operators; cast to 32 bits; product with the scores; cast back (models/moe/moe.py, ``MoE.forward`` without
``score_before_experts``). Backward: gather twice, cast, and the products; the one for the rows takes as long as 2.5."""
BACKWARD_LAUNCHES: Final = 1.5
"""Host time of a block's backward relative to its forward: estimate (two products for each one, but no Python between operators)."""
GRAPHED_EXPERTS: Final = 0.28
"""Share of the host time for a block of experts that remains with CUDA graphs of attention and router: all but the 72 kernels of the router
(NVIDIA/Megatron-LM docs/discussions/deepseek-v3-gb200-optimization, 2.1.4 and 2.3) of a hundred operators, whose number is an estimate."""
GROUPED_PRODUCTS: Final = 2
"""``GroupedLinear`` modules of a block's experts (transformer/moe/experts.py, ``TEGroupedMLP``)."""
CAST_LAUNCHES: Final[Mapping[Fp8Recipe, int]] = {"delayed": 1, "tensorwise": 4, "rowwise": 1, "blockwise": 1, "mxfp8": 1}
"""Kernels that quantize one expert's tokens (NVIDIA/TransformerEngine pytorch/csrc/extensions/cast.cpp, ``multi_tensor_quantize_impl``: one
expert after the other, but for delayed scaling with transposed copies). tensorwise: clear the maximum, find it, compute the scale, cast
(common/recipe/current_scaling.cu)."""
CAST_OPERATIONS: Final = 0.32
"""Host time of one of these kernels relative to an operation that Python starts, because a loop in C++ starts them."""
TENSOR_OPERATIONS: Final = 1.7
"""Operations that it takes the host to make an expert's tensor in 8 bits, which Python does. Both numbers are from three steps with 128
experts (calibration/records/blind/2026-11-27-h200-megatron.csv, Qwen3 30B with 256 tokens): in forward and backward of a block, an expert
takes 7.0 operations of 36 us longer than in 16 bits with delayed scaling (no kernel for each), 7.8 with blocks (4) and 12.2 with one scale
per tensor (16)."""
TIMED_RECIPES: Final = frozenset[Fp8Recipe]({"delayed", "tensorwise", "blockwise"})
"""Recipes of these steps. Others have kernels for all experts in newer releases (cast.cpp, ``group_quantize``); no step was measured."""
NVFP4_CAST_LAUNCHES: Final = 3
"""The same of NVFP4: largest magnitude, rows, columns (pytorch/csrc/quantizer.cpp, ``NVFP4Quantizer::quantize_impl``)."""


class Routing(NamedTuple):
    """How a router chooses the experts of a token: *copies* of *experts*, all in *chosen_groups* of *groups* equal groups of neighbors."""

    experts: int
    copies: int
    groups: int = 1
    chosen_groups: int = 1


def routing_of(shape: Transformer) -> Routing:
    """Return the routing of the blocks with experts of *shape*."""
    return Routing(shape.experts, shape.experts_per_token, shape.expert_groups, shape.groups_per_token or shape.expert_groups)


@lru_cache(maxsize=256)
def places_reached(routing: Routing, places: float) -> float:
    """Return to how many of *places* a token goes on average; each (a node or a rank) holds an equal number of neighboring experts.

    All choices of groups, and of experts within them, are equally likely: of the E experts of the chosen groups, k are drawn without
    replacement, so that a place with x of them has none of the k with probability ``(E - x)! (E - k)! / (E! (E - x - k)!)``.
    """
    places = min(places, float(routing.experts))
    if places <= 1:
        return 1.0
    group = routing.experts / routing.groups
    own = routing.experts / places
    missed = 0.0
    counted = max(1, int(places))
    for place in range(counted):
        missed += sum(
            chance * _missed(routing.chosen_groups * group, held, routing.copies) for held, chance in _held(routing, place * own, own)
        )
    return places * (1.0 - missed / counted)


def _held(routing: Routing, first: float, own: float) -> Iterator[tuple[float, float]]:
    """Yield how many experts of the chosen groups a place may hold, with the probability of each; it has *own* experts from *first* on."""
    group = routing.experts / routing.groups
    chosen: dict[tuple[int, float], int] = {(0, 0.0): 1}  # number of ways, by how many groups of the place are chosen, and their experts
    covered = 0
    for number in range(int(first / group), routing.groups):
        shared = min(first + own, (number + 1) * group) - max(first, number * group)
        if shared <= 1e-9 * group:
            break
        covered += 1
        for (count, held), ways in list(chosen.items()):
            key = count + 1, round(held + shared, 9)
            chosen[key] = chosen.get(key, 0) + ways
    every = math.comb(routing.groups, routing.chosen_groups)
    for (count, held), ways in chosen.items():
        if count <= routing.chosen_groups:
            yield held, ways * math.comb(routing.groups - covered, routing.chosen_groups - count) / every


def _missed(experts: float, held: float, copies: int) -> float:
    """Return the probability that none of *copies* of *experts*, drawn without replacement, is among *held* of them."""
    return math.prod(max(0.0, (experts - held - drawn) / (experts - drawn)) for drawn in range(copies))


def copies_between(places: float, routing: Routing, one_copy: bool) -> float:
    """Return the bytes that leave one of *places*, nodes or ranks, relative to one copy for each expert of a token.

    *one_copy*: each place gets a token once, however many of its experts the token is for.
    """
    return places_reached(routing, places) / routing.copies if one_copy and places > 1 and routing.copies else 1.0


def dispatch_width(quantized: bool) -> float:
    """Return the bytes of what is dispatched in 8 bits, with a 32-bit scale for 128 elements, relative to 16 bits.

    DeepSeek-V3, arXiv 2412.19437, section 3.3.3; *quantized*: whether products are in 8 bits, as the cast is theirs.
    """
    return (1.0 + 4.0 / 128.0) / 2.0 if quantized else 1.0


def dispatched_bytes(layer: Layer) -> float:
    """Return the bytes per sample, at 4 bytes an element, of the token copies that *layer* dispatches or combines; 0 for other layers."""
    if layer.name.endswith("experts.dispatch"):
        return layer.write
    return layer.read if layer.name.endswith("experts.combine") else 0.0


def sorted_bytes(nbytes: float, experts: float) -> float:
    """Return the bytes read and written to sort *nbytes* of dispatched copies by a rank's *experts*, or to undo the sorting.

    One expert needs no sorting (Megatron-LM transformer/moe/token_dispatcher.py calls ``sort_chunks_by_idxs`` after dispatch and before
    combine). Node-aware dispatch has `received_bytes` instead.
    """
    return 0.0 if experts <= 1 else 2.0 * nbytes


def received_bytes(nbytes: float, routing: Routing, ranks: int) -> float:
    """Return the bytes that node-aware dispatch among *ranks* reads to make *nbytes* of copies, or writes, beyond the layer table's.

    The table gathers all copies of a token from one row, and sums them up to one. Here each rank that received the token does so for its
    own copies (token_dispatcher.py, ``get_permuted_hidden_states_by_experts``; DeepEP csrc/hybrid_ep/extension/permute.cu).
    """
    return nbytes * (places_reached(routing, ranks) - 1.0) / routing.copies if routing.copies else 0.0


def padded_bytes(nbytes: float, quantized: bool, one_copy: bool) -> float:
    """Return the bytes read and written to pad *nbytes* of dispatched copies to the rows that 8-bit products need, or to take the rows out.

    Transformer Engine copies all tokens unless every expert has a multiple of 16 or 32 (module/fp8_padding.py, ``Fp8Padding``; Megatron-LM
    transformer/moe/experts.py, ``quantization_padding``). DeepEP and HybridEP pad in their own kernels (token_dispatcher.py,
    ``pad_multiple``).
    """
    return 2.0 * nbytes if quantized and not one_copy else 0.0


def unfused_passes(layer: Layer, shape: Transformer, backward: bool, options: MeshOptions, batch: int = 1) -> PassCount:
    """Return the elements per sample over which Megatron makes passes outside fused kernels in *layer*.

    This is for biases of experts, clamps, rotations with a factor, those of latent attention and squares that *options* do not fuse, and
    around scans of a *batch* of several samples.
    """
    if layer.name.endswith("experts.down") and len(layer.gradients) > 1:
        return (BIAS_PASSES_FP32 if options.one_copy else BIAS_PASSES)[backward].over(layer.write / 4.0)
    if layer.name.endswith("experts.activation") and shape.clamped:
        return CLAMP_PASSES[backward].over(layer.read / 4.0)
    if _has_unfused_latents(layer, shape, options):
        assert shape.mla is not None
        elements = layer.read / 4.0  # of queries and keys, which the layer table reads and writes once
        heads = elements / (2.0 * (shape.mla.nope_dim + shape.mla.rope_dim))
        moved, indexed = (passes.of(shape.mla) * heads for passes in LATENT_ROTATION[backward])
        return PassCount(moved - 2.0 * elements, indexed)
    if layer.name.endswith("attention.rope") and shape.rope_scaled:
        return ROTATION_PASSES[backward].over(layer.read / 4.0)
    if _has_unfused_squares(layer, shape, options):
        return SQUARE_PASSES[backward].over(layer.write / 4.0)
    if layer.name.endswith("mamba.scan") and batch > 1:
        gate_too = layer.received_bytes + layer.write
        return PassCount(0.0, (gate_too if backward else gate_too + layer.write) / 4.0)
    return PassCount(0.0, 0.0)


def unfused_launches(layer: Layer, shape: Transformer, backward: bool, options: MeshOptions, batch: int = 1) -> int:
    """Return the operators that Megatron starts for the passes of `unfused_passes` beyond the layer table's.

    Those around experts are part of their host time.
    """
    if _has_unfused_latents(layer, shape, options):
        return LATENT_LAUNCHES[backward]
    if _has_unfused_squares(layer, shape, options):
        return SQUARE_LAUNCHES[backward]
    return SCAN_LAUNCHES[backward] if layer.name.endswith("mamba.scan") and batch > 1 else 0


def gated_norm_time(layer: Layer, mamba: Mamba, multiprocessors: int, batch: int) -> float:
    """Return the seconds of the backward of a Mamba-2 layer's gated norm if its programs wait for memory, not for its bandwidth.

    There are as many programs as multiprocessors, or more if they have fewer than 4 warps.
    """
    group = mamba.inner / mamba.groups
    warps = min(max(2.0 ** math.ceil(math.log2(group)) // GATED_WARP, 1.0), 8.0)
    programs = multiprocessors * math.ceil(4.0 / warps)
    return GATED_ROW * math.ceil(batch * layer.write / 4.0 / group / programs)


def _has_unfused_latents(layer: Layer, shape: Transformer, options: MeshOptions) -> bool:
    return shape.mla is not None and not options.fused_latents and layer.name.endswith("attention.rope")


def _has_unfused_squares(layer: Layer, shape: Transformer, options: MeshOptions) -> bool:
    return shape.activation == "relu2" and not options.fused_squares and layer.name.endswith(".activation")


def permuted_passes(layer: Layer, backward: bool) -> PassCount:
    """Return the elements per sample over which torchtitan makes passes around experts beyond those of the layer table in *layer*."""
    if layer.name.endswith("experts.dispatch"):
        (copies, tokens), moved = TITAN_DISPATCH_PASSES[backward], (layer.write, layer.read)
    elif layer.name.endswith("experts.combine"):
        (copies, tokens), moved = TITAN_COMBINE_PASSES[backward], (layer.read, layer.write)
    else:
        return PassCount(0.0, 0.0)
    return PassCount((copies.moved * moved[0] + tokens * moved[1]) / 4.0, copies.indexed * moved[0] / 4.0)


def expert_host_time(seconds: float, graphs: bool) -> float:
    """Return the host time (s) of the experts in one block's forward; *seconds* is the time without CUDA *graphs*."""
    return seconds * (GRAPHED_EXPERTS if graphs else 1.0)


def cast_launches(precision: Precision, recipe: Fp8Recipe | None, gpu: Gpu) -> int:
    """Return the kernels that quantize the tokens of one expert for a product; 0 if one kernel quantizes those of all experts."""
    if precision == "nvfp4":
        return NVFP4_CAST_LAUNCHES
    if precision != "fp8" or recipe is None or (recipe == "delayed" and needs_transposes(gpu)):
        return 0
    return CAST_LAUNCHES[recipe]


def cast_operations(precision: Precision, recipe: Fp8Recipe | None, gpu: Gpu) -> float:
    """Return the operations that the host starts to quantize the tokens of one expert for a product: kernels, and a tensor."""
    launches = cast_launches(precision, recipe, gpu)
    if precision != "fp8" or recipe not in TIMED_RECIPES:
        return float(launches)
    return CAST_OPERATIONS * launches + TENSOR_OPERATIONS


def expert_operations(cast: float, backward: bool) -> float:
    """Return the operations that the host starts for each local expert in a block's forward or *backward*; *cast*: for one cast.

    Each of two ``GroupedLinear`` launches one product per expert in forward (NVIDIA/TransformerEngine common/gemm/cublaslt_gemm.cu,
    ``multi_stream_cublas_gemm``), and two in backward, which also allocates a gradient that is never read (module/grouped_linear.py,
    ``handle_custom_ddp_from_mcore``) and calls a hook (Megatron-LM distributed/distributed_data_parallel.py,
    ``_make_backward_post_hook``). Forward casts the module's input, backward the gradient of its output.
    """
    return GROUPED_PRODUCTS * (cast + (4 if backward else 1))


def bias_operations(shape: Transformer, backward: bool, one_copy: bool) -> int:
    """Return the operations that the host starts for the biases of each local expert; 0 without biases."""
    return (BIAS_OPERATIONS_FP32 if one_copy else BIAS_OPERATIONS)[backward] if shape.has_bias("ffn") else 0


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
