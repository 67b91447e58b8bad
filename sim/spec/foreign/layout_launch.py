"""What does a launch file say of one run? The record that writers share, and what several of them ask of it."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from sim.spec.fields import Fp8Recipe
from sim.spec.parallel import Parallel, even_blocks
from sim.spec.transformer import Transformer
from sim.spec.yaml import SpecError

EXCHANGES: Final = {"ring": "alltoall", "all_gather": "allgather"}
"""How torch's context parallelism names ways to exchange keys and values."""


class Launch(NamedTuple):
    """What the files say of one run."""

    name: str
    """The workload's."""
    model: str
    """Its name in the catalogue."""
    shape: Transformer | None
    """None where the model is a table of layers."""
    adapters: bool
    """Whether low-rank adapters are trained, or parts are frozen."""
    sequence: int | None
    parallel: Parallel
    data: int
    """Data-parallel ranks."""
    batch: int
    micro_batches: int
    checkpointing: str
    precision: str
    nodes: int
    gpus_per_node: int
    accelerator: str
    """The GPU's name, as SkyPilot's catalogue has it."""
    fp8_recipe: Fp8Recipe | None = None
    """How 8 bits are scaled; None in other precisions."""

    @property
    def global_batch(self) -> int:
        """Return the samples of a step."""
        return self.data * self.batch * self.micro_batches


def refuse_four_bits(launch: Launch, program: str) -> None:
    """Raise SpecError for four bits, of which *program* has none."""
    if launch.precision == "nvfp4":
        raise SpecError(f"{program} has no option for nvfp4; export megatron arguments, or plan with --precision fp8")


def told_shape(launch: Launch, program: str) -> Transformer:
    """Return the shape of the model. Raise SpecError for a model of which no file of *program* tells."""
    if launch.shape is None:
        raise SpecError(
            f"{launch.model} is a table of layers; {program} builds a decoder from its sizes (model.transformer), and no others from files"
        )
    if launch.adapters:
        raise SpecError(f"{program} trains all of a model; {launch.model} has adapters or frozen parts")
    return launch.shape


def blocks_of(launch: Launch, less: int) -> list[int]:
    """Return the blocks of each chunk: as the layout says, or evenly, the first and last of which hold *less* fewer."""
    own, shape = launch.parallel, launch.shape
    assert shape is not None
    return list(own.layers_per_stage) or even_blocks(shape.layers + shape.prediction_layers, own.pipeline * own.chunks, less, less)


def in_full(shape: Transformer) -> dict[str, Any]:
    """Return the fields of *shape*, defaults written out; how long sequences may be is told by the job."""
    full = shape.model_dump(exclude={"max_seq", "shared_experts"})
    full["kv_heads"] = shape.kv_heads or shape.heads
    full["head_dim"] = shape.head_dim or (None if shape.mla else shape.hidden // shape.heads)
    full["ffn"] = shape.ffn or 4 * shape.hidden
    full["norm_bias"] = shape.norm == "layernorm" if shape.norm_bias is None else shape.norm_bias
    if shape.experts:
        full["expert_ffn"] = shape.expert_ffn or full["ffn"]
        full["shared_expert_ffn"] = shape.shared_expert_ffn or shape.shared_experts * full["expert_ffn"]
    return full
