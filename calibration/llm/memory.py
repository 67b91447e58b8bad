"""How much memory does the fullest rank of a run need? Weights, gradients, states and kept activations (arXiv 2205.05198), in bytes.

Kept for backward, per token and layer, of 16-bit elements: both norms' inputs and outputs, queries, keys, values, attention's output, both
sides of the activation. Sequence parallelism splits the first four; software that runs operator by operator keeps the gate's activation as
well, and nanotron the gathered inputs of products. FP8 products keep 8-bit inputs; products of frozen weights keep none. The last stage
keeps logits. Limits: one stage's fullest moment; fragmentation only where a table reads nvidia-smi.
"""

from __future__ import annotations

from typing import Final

from calibration.llm.case import Case
from calibration.llm.priors import EAGER
from calibration.llm.weights import Weights, blocks_of_stages

WORKSPACE: Final = 0.8 * 2.0**30
"""Bytes beside tensors: estimate (cuBLAS workspaces and buffers of collectives inside the allocator)."""
OUTSIDE: Final = 2.5 * 2.0**30
"""Bytes of context and NCCL that nvidia-smi shows: 1 to 3 GB a process (NVIDIA/Megatron-Bridge performance guide)."""
BUCKETS: Final = 2 * 5e8 * 2.0
"""Bytes of DeepSpeed's flat buffers: reduce_bucket_size and allgather_bucket_size of 5e8 16-bit elements by default."""
REDUCER: Final = 2.0
"""Bytes of a parameter's 16-bit gradient in the buckets of DistributedDataParallel, which nanotron keeps beside its 32-bit ones
(optim/gradient_accumulator.py, ``fp32_accum_hook``; torch's reducer.cpp allocates them once)."""
FRAGMENTS: Final = 1.08
"""Cached over allocated bytes without expandable segments: estimate."""
OPERATORS: Final = 0.43
"""Share of a block's activations that torchtitan's selective checkpointing keeps: block input, attention's output, every second product's
output (distributed/activation_checkpoint.py), of a gated block of Llama's proportions."""


def peak(case: Case, weights: Weights) -> float:
    """Return the bytes of the fullest rank of *case* with *weights* before sharding, as its table reads them.

    Either the stage with most blocks is the fullest, with as many micro-batches as its schedule has in flight, or the one with the head:
    one micro-batch, its logits, and the blocks that it has.
    """
    counts, head = blocks_of_stages(case)
    last = weights.of_blocks(counts[head])
    in_flight = _in_flight(case)
    fullest = _states(case, weights) + _activations(case, weights.layers, in_flight)
    with_head = _states(case, last) + _activations(case, last.layers, in_flight / min(case.micro_batches, case.pipeline)) + _logits(case)
    allocated = max(fullest, with_head) + WORKSPACE
    if case.family == "deepspeed":
        allocated += BUCKETS
    return FRAGMENTS * allocated + OUTSIDE if case.memory_reading == "nvidia-smi" else allocated


def _in_flight(case: Case) -> float:
    """Return the micro-batches whose activations the first stage holds at once, in those of all its blocks (1F1B, interleaved 1F1B)."""
    if case.pipeline == 1:
        return 1.0
    held = float(case.pipeline)
    if case.virtual > 1:
        held *= 1 + (case.pipeline - 1) / (case.pipeline * case.virtual)
    return min(float(case.micro_batches), held)


def _states(case: Case, weights: Weights) -> float:
    ranks = case.data * case.context
    if case.lora:
        return (1.0 if case.products != "16bit" else 2.0) * weights.total / (ranks if case.zero == 3 else 1)
    experts_of = max(1, ranks * case.tensor // case.expert) if case.expert > 1 else ranks
    plain = weights.dense + weights.vocabulary
    if case.zero == 3:
        block = (weights.dense + weights.experts) / weights.layers
        return 16.0 * (plain / ranks + weights.experts / experts_of) + 6.0 * block + 4.0 * weights.vocabulary
    kept = 6.0 if case.fp32_gradients else 4.0
    if case.family == "nanotron" and case.data > 1:
        kept += REDUCER
    states = 16.0 if case.family == "deepspeed" else 12.0
    if not case.zero:
        return (kept + states) * (plain + weights.experts)
    return kept * (plain + weights.experts) + states * (plain / ranks + weights.experts / experts_of)


def _layer(case: Case, whole: bool = False) -> float:
    """Return the bytes that one block keeps of one micro-batch; *whole*: with what is recomputed, scores included."""
    shape = case.shape
    tokens = case.micro_batch * case.seq / case.context
    stream = tokens / (case.tensor if case.sequence_parallel else 1)
    narrow = 1.0 if case.products != "16bit" and case.family != "fsdp2" else 2.0
    queries, keys = shape.heads * (shape.head_size + shape.value_size), shape.groups * (shape.head_size + shape.value_size)
    wide = float(shape.inner)
    frozen = 0.0 if case.lora else 1.0
    routed = 0.0
    if shape.experts:
        wide = float(shape.expert_ffn or shape.inner) * (shape.experts_per_token + shape.shared_experts)
        routed = 2.0 * shape.hidden * shape.experts_per_token
    sides = 2.0 if shape.gated else 1.0
    if case.family in EAGER and shape.gated:
        sides += 1.0
    inputs = tokens if case.family == "nanotron" else stream
    again = () if whole else case.modules
    norms = 2.0 * 2.0 * shape.hidden * stream + (0.0 if "layernorm" in again else narrow * (1.0 + frozen) * shape.hidden * inputs)
    if "mla_up_proj" in again:
        queries = keys = 0
    attention = (2.0 * (queries + keys) - (2.0 - narrow) * shape.heads * shape.value_size) * tokens / case.tensor
    kept = 0.0 if "moe_act" in again else frozen * narrow * wide
    block = (2.0 * sides * wide + kept + 2.0 * routed) * tokens / case.tensor
    if ("moe" if shape.experts else "mlp") in again:
        block = 0.0
    scores = 0.0
    if not case.flash and (whole or case.recompute == "none"):
        scores = 5.0 * shape.heads * case.seq * tokens / case.tensor
    return norms + attention + block + scores


def _activations(case: Case, layers: int, in_flight: float) -> float:
    """Return the bytes that a stage of *layers* keeps of *in_flight* micro-batches, and what it computes again of one block."""
    layer = _layer(case)
    stream = case.micro_batch * case.seq / case.context / (case.tensor if case.sequence_parallel else 1)
    boundary = 2.0 * case.shape.hidden * stream
    kept = {"none": layer, "attention": layer, "full": boundary, "operators": OPERATORS * layer}[case.recompute]
    if case.recompute == "full" and case.recomputed_layers:
        share = min(1.0, case.recomputed_layers / max(1, layers))
        kept = share * boundary + (1 - share) * layer
    again = _layer(case, whole=True) if case.recompute != "none" or case.modules else 0.0
    return in_flight * layers * kept + again


def _logits(case: Case) -> float:
    """Return the bytes of logits: in 16 and 32 bits, with softmax and gradient; in place in Megatron, fused in llm-foundry.

    nanotron's loss makes one more copy in 32 bits and writes the gradient over it (`_ShardedCrossEntropy`): 10 bytes where one micro-batch
    is all, so that no gradient of another lies beside it.
    """
    each = 6.0 if case.family == "fsdp1" else 14.0 if case.family in EAGER else 10.0
    if case.family == "nanotron" and case.micro_batches == 1:
        each = 10.0
    return each * case.micro_batch * case.seq / case.context * case.shape.vocab / case.tensor
