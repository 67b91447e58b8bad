"""How much memory does the fullest rank of a run need? Weights, gradients, states and kept activations (arXiv 2205.05198), in bytes.

Kept for backward, per token and layer, of 16-bit elements: both norms' inputs, their outputs, queries, keys, values, attention's output and
both sides of the activation. Sequence parallelism splits the first four. The last stage keeps logits, in 16 and 32 bits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from calibration.llm.case import Case

if TYPE_CHECKING:
    from calibration.llm.closed_form import Weights

WORKSPACE = 0.8 * 2.0**30
"""Bytes beside tensors: estimate (cuBLAS workspaces and buffers of collectives inside the allocator)."""


def peak(case: Case, weights: Weights) -> float:
    """Return the bytes of the fullest rank of *case* with *weights* before sharding."""
    return _states(case, weights) + max(_activations(case, weights), _logits(case) + _activations(case, weights) * _last(case)) + WORKSPACE


def _last(case: Case) -> float:
    """Return the share of the first stage's activations that the last stage holds (1F1B keeps one micro-batch there)."""
    return 1.0 if case.pipeline == 1 else 1.0 / min(case.micro_batches, case.pipeline)


def _states(case: Case, weights: Weights) -> float:
    ranks = case.data * case.context
    if case.lora:
        return 2.0 * weights.total / (ranks if case.zero == 3 else 1)
    experts_of = max(1, ranks * case.tensor // case.expert) if case.expert > 1 else ranks
    plain = weights.dense + weights.vocabulary
    if case.zero == 3:
        block = 2 * (weights.dense + weights.experts) / weights.layers
        return 16.0 * (plain / ranks + weights.experts / experts_of) + 2.0 * block + 4.0 * block / 2 + 4.0 * weights.vocabulary
    gradients = 4.0 if case.fp32_gradients or case.family != "megatron" else 2.0
    if case.family == "nanotron":
        gradients = 6.0
    kept = 2.0 + gradients
    states = 12.0
    if not case.zero:
        return (kept + states) * (plain + weights.experts)
    return kept * (plain + weights.experts) + states * (plain / ranks + weights.experts / experts_of)


def _activations(case: Case, weights: Weights) -> float:
    shape = case.shape
    tokens = case.micro_batch * case.seq / case.context
    stream = tokens / (case.tensor if case.sequence_parallel else 1)
    heads = shape.heads * (shape.head_size + shape.value_size) + shape.groups * (shape.head_size + shape.value_size)
    inner = float(shape.inner) * (3 if shape.gated else 2)
    if shape.experts:
        wide = float(shape.expert_ffn or shape.inner) * shape.experts_per_token
        inner = wide * (3 if shape.gated else 2) + shape.hidden * shape.experts_per_token * 2
    layer = 2.0 * (4 * shape.hidden * stream + (heads + inner) * tokens / case.tensor)
    if not case.flash and case.recompute != "attention":
        layer += 5.0 * shape.heads * case.seq * tokens / case.tensor
    boundary = 2.0 * shape.hidden * stream
    kept = {"none": layer, "attention": layer, "full": boundary, "operators": 0.55 * layer}[case.recompute]
    if case.recompute == "full" and case.recomputed_layers:
        share = min(1.0, case.recomputed_layers / weights.layers)
        kept = share * boundary + (1 - share) * layer
    in_flight = 1.0 if case.pipeline == 1 else min(float(case.micro_batches), case.pipeline * (1 + (case.pipeline - 1) / (case.pipeline * case.virtual)) if case.virtual > 1 else case.pipeline)
    return in_flight * weights.layers * kept + (layer if case.recompute in ("full", "operators") else 0.0)


def _logits(case: Case) -> float:
    tokens = case.micro_batch * case.seq / case.context
    return (2.0 + 4.0 + 4.0) * tokens * case.shape.vocab / case.tensor
