"""Which activations does the forward pass of a unit keep for its backward pass? It depends on the stack's kernels and on recomputation."""

from __future__ import annotations

from sim.parallel.checkpointing import discarded_shares, kept_outputs
from sim.parallel.split import Unit
from sim.spec.fp8_recipe import RECIPES
from sim.spec.layer import Layer
from sim.spec.precision import PRECISION_TRAITS
from sim.spec.training import Training
from sim.spec.workload import Workload


def kept_bytes(unit: Unit, workload: Workload) -> float:
    """Return the bytes that the forward pass of *unit* keeps for one micro-batch; if blocks differ, of the blocks that keep least."""
    if unit.kind == "block" and workload.training.activation_checkpointing in ("blocks", "operators"):
        return checkpointed_bytes(unit, workload)
    return sum(saved_bytes(piece.layer, workload) for piece in unit.pieces) - recomputed_bytes(unit, workload)


def checkpointed_bytes(unit: Unit, workload: Workload) -> float:
    """Return the bytes that a checkpointed block keeps of one micro-batch: its input, and the outputs that are not recomputed."""
    outputs = sum(activation_bytes(layer, layer.write * share, workload) for layer, share in kept_outputs(workload.training, unit))
    return activation_bytes(unit.pieces[0].layer, unit.boundary, workload) + outputs


def recomputed_bytes(unit: Unit, workload: Workload) -> float:
    """Return the bytes that a block does not keep because its attention or some of its modules are recomputed."""
    training = workload.training
    if unit.kind != "block":
        return 0.0
    modules = training.recompute_modules
    attention = training.activation_checkpointing == "selective" or "core_attn" in modules
    scores = sum(score_bytes(piece.layer, workload) for piece in unit.pieces) if attention else 0.0
    shares = discarded_shares(modules, unit, training.stack.kernels.fused_casts)
    return scores + sum(activation_bytes(piece.layer, saved, workload) for piece, saved in zip(unit.pieces, shares, strict=True))


def saved_bytes(layer: Layer, workload: Workload) -> float:
    """Return the bytes that *layer* keeps for the backward pass under the stack of *workload*."""
    training = workload.training
    if layer.op == "loss":
        return min(activation_bytes(layer, layer.saved, workload), loss_bytes(layer, workload))
    factors, mesh, meaning = training.stack.kernels.operator_memory, training.stack.mesh, PRECISION_TRAITS[training.precision]
    last = layer.name.rpartition(".")[2]
    factor = factors.get(last, 1.0) if factors else 1.0
    quantized = last not in training.stack.kernels.unquantized
    if layer.op == "gemm" and mesh is not None and mesh.saves_8bit_inputs and quantized:
        factor *= kept_width(training) / meaning.activation
    if mesh is not None and mesh.framework == "megatron" and _clamped(layer, workload):
        factor += 1.0  # clamping also keeps its input (fusions/fused_bias_geglu.py)
    saved = activation_bytes(layer, layer.saved, workload) * factor + score_bytes(layer, workload)
    if mesh is not None and mesh.permutes_tokens and layer.name.endswith("experts.combine"):
        saved += 2.0 * activation_bytes(layer, layer.read, workload)  # in 32 bits, for the gradient of the scores
    return saved


def score_bytes(layer: Layer, workload: Workload) -> float:
    """Return the bytes of attention's scores that separate kernels keep: softmax's result, and with dropout the mask and its own result.

    Korthikanti et al. (arXiv 2205.05198, section 4.1): 5 a s^2 b in 16 bits with dropout. One kernel for attention keeps none.
    """
    training, transformer = workload.training, workload.model.transformer
    if layer.attention is None or not training.stack.kernels.score_passes:
        return 0.0
    shape, width = layer.attention, PRECISION_TRAITS[training.precision].activation
    scores = shape.heads * shape.queries * shape.keys * shape.documents * training.batch
    return scores * (2.0 * width + 1.0 if transformer is not None and transformer.dropout else width)


def kept_width(training: Training) -> float:
    """Return the bytes per element that a matrix product keeps for the backward pass: one column-wise copy with its scales."""
    if training.precision == "fp8" and training.effective_recipe is not None:
        return RECIPES[training.effective_recipe].activation
    return PRECISION_TRAITS[training.precision].matrix


def _clamped(layer: Layer, workload: Workload) -> bool:
    """Return whether *layer* is a clamped activation of experts that is not recomputed."""
    transformer = workload.model.transformer
    clamped = transformer is not None and transformer.clamped and layer.name.endswith("experts.activation")
    return clamped and "moe_act" not in workload.training.recompute_modules


def loss_bytes(layer: Layer, workload: Workload) -> float:
    """Return the peak bytes of logits in the loss *layer*."""
    training = workload.training
    stack, split = training.stack, training.parallel.tensor > 1
    each = stack.kernels.split_logit_bytes if split and stack.kernels.split_logit_bytes else stack.kernels.logit_bytes
    return each * layer.read / 4.0 * training.batch


def activation_bytes(layer: Layer, amount: float, workload: Workload) -> float:
    """Convert *amount*, the 32-bit bytes of one sample, to the bytes of a micro-batch in the data type of *layer*'s activations."""
    width = 4.0 if layer.op in ("softmax", "loss") else PRECISION_TRAITS[workload.training.precision].activation
    return amount * width / 4.0 * workload.training.batch
