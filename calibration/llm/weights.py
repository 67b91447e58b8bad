"""How many parameters does one rank of a run hold? Those of the fullest stage, split by tensor and expert groups, before sharding."""

from __future__ import annotations

import math
from dataclasses import dataclass

from calibration.llm.case import Case
from sim.parallel.stages import by_cost, stage_costs
from sim.spec.transformer import Transformer


@dataclass(frozen=True)
class Weights:
    """Parameters of one rank of the fullest stage, before sharding: dense ones, experts', and those of embedding or head."""

    dense: float
    experts: float
    vocabulary: float
    layers: int

    @property
    def total(self) -> float:
        """Return their sum."""
        return self.dense + self.experts + self.vocabulary


def layer_parameters(case: Case) -> tuple[float, float, float]:
    """Return the parameters of attention (with norms), of a plain feed-forward block, and of one layer's experts.

    For a hybrid, the first two are means over all its layers; state-space layers count as attention.
    """
    shape = case.shape
    if shape.mla is not None:
        latent = shape.mla
        queries = (
            latent.q_rank * (shape.hidden + shape.heads * shape.head_size)
            if latent.q_rank
            else shape.hidden * shape.heads * shape.head_size
        )
        keys = shape.hidden * (latent.kv_rank + latent.rope_dim) + latent.kv_rank * shape.heads * (latent.nope_dim + latent.value_dim)
        attention = queries + keys + shape.heads * latent.value_dim * shape.hidden
    else:
        attention = shape.hidden * (
            shape.heads * (shape.head_size + shape.value_size) + shape.groups * (shape.head_size + shape.value_size)
        )
    matrices = 3 if shape.gated else 2
    dense = float(matrices * shape.hidden * shape.inner)
    inner = float(shape.expert_ffn or shape.inner)
    experts = float(matrices * shape.routed_width * inner * shape.experts) if shape.experts else 0.0
    if shape.pattern is None:
        return float(attention + 2 * shape.hidden), dense, experts
    mixed = shape.share_of("*") * attention + shape.hidden
    for letter, layer in (("M", shape.mamba), ("G", shape.delta_net)):
        if layer is not None:
            mixed += shape.share_of(letter) * shape.hidden * (2 * layer.inner + layer.channels + layer.steps)
    mixed += shape.share_of("C") * 4 * shape.hidden**2
    return mixed, shape.share_of("-") * dense, experts


def shared_parameters(case: Case) -> float:
    """Return the parameters of a layer's shared experts and of the projections into and out of the latent space of its routed ones."""
    shape = case.shape
    if not shape.experts:
        return 0.0
    inner = float(shape.shared_expert_ffn or shape.shared_experts * (shape.expert_ffn or shape.inner))
    latent = 2.0 * shape.hidden * shape.expert_latent if shape.expert_latent else 0.0
    return (3 if shape.gated else 2) * shape.hidden * inner + latent


def stage_weights(case: Case) -> Weights:
    """Return the parameters of one rank of the fullest stage."""
    shape = case.shape
    attention, dense, experts = layer_parameters(case)
    layers = layers_of_stage(case)
    with_experts = sum(shape.has_experts(layer) for layer in range(shape.layers)) * layers / shape.layers
    plain = layers * attention + _dense_layers(shape, layers, with_experts) * dense + with_experts * shared_parameters(case)
    tables = 1 if shape.tied or case.pipeline > 1 else 2
    return Weights(
        dense=plain / case.tensor,
        experts=with_experts * experts / (case.expert if case.expert > 1 else case.tensor),
        vocabulary=tables * float(shape.vocab) * shape.hidden / case.tensor,
        layers=layers,
    )


def layers_of_stage(case: Case) -> int:
    """Return the number of blocks of the fullest stage."""
    return max(blocks_of_stages(case)[0])


def blocks_of_stages(case: Case) -> tuple[tuple[int, ...], int]:
    """Return the number of blocks of each stage, of a hybrid those of its pattern's letters, and the stage that has the output head.

    The split is even, or even with embedding and head counted as a block each; failing both, the last stages have fewer blocks. Some
    stacks split by cost (``mesh.stages_by_cost``), and some scripts set it. A layer of multi-token prediction counts as a block.
    """
    blocks, with_head = _blocks_of_stages(case)
    letters = case.shape.letters_per_block
    stages = [count * letters for count in blocks]
    if case.shape.pattern is not None and letters == 1:  # attention and feed-forward: as two layers of the pattern
        stages[with_head] += case.shape.prediction_layers
    return tuple(stages), with_head


def _blocks_of_stages(case: Case) -> tuple[tuple[int, ...], int]:
    layers, stages = case.shape.block_count + case.shape.prediction_layers, case.pipeline
    if case.layers_per_stage:
        return tuple(sum(case.layers_per_stage[stage::stages]) for stage in range(stages)), stages - 1
    mesh = case.stack_file.mesh
    if mesh is not None and mesh.stages_by_cost and stages > 1:
        return by_cost(layers, *stage_costs(case.shape), stages)
    if layers % stages and (layers + 2) % stages == 0:
        each = (layers + 2) // stages
        return (each - 1, *[each] * (stages - 2), each - 1), stages - 1
    each = math.ceil(layers / stages)
    return tuple(max(0, min(each, layers - each * stage)) for stage in range(stages)), stages - 1


def total_parameters(case: Case) -> float:
    """Return the parameters of the model of *case*."""
    shape = case.shape
    attention, dense, experts = layer_parameters(case)
    with_experts = sum(shape.has_experts(layer) for layer in range(shape.layers))
    blocks = shape.layers * attention + _dense_layers(shape, shape.layers, with_experts) * dense
    blocks += with_experts * (experts + shared_parameters(case))
    return blocks + (1 if shape.tied else 2) * float(shape.vocab) * shape.hidden


def _dense_layers(shape: Transformer, layers: float, with_experts: float) -> float:
    """Return how many of *layers* have the feed-forward block of `layer_parameters`; for a hybrid, that is a mean over all."""
    return layers if shape.pattern is not None else layers - with_experts
