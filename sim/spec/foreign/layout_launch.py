"""What do launch files contain about a run? The record that all writers use, and functions on it that several of them need."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from sim.spec.fields import Fp8Recipe
from sim.spec.parallel import Parallel, even_blocks
from sim.spec.stack import Stack
from sim.spec.transformer import Transformer
from sim.spec.yaml import SpecError

EXCHANGES: Final = {"ring": "alltoall", "all_gather": "allgather"}
"""Names in torch's context parallelism of the ways to exchange keys and values."""


class Launch(NamedTuple):
    """The settings of one run that launch files contain."""

    name: str
    """Name of the workload."""
    model: str
    """Name of the model in the catalog."""
    shape: Transformer | None
    """Shape of the model; None if it is a table of layers."""
    adapters: bool
    """Whether low-rank adapters are trained or parts are frozen."""
    sequence: int | None
    parallel: Parallel
    data: int
    """Number of data-parallel ranks."""
    batch: int
    micro_batches: int
    checkpointing: str
    precision: str
    nodes: int
    gpus_per_node: int
    accelerator: str
    """SkyPilot's name of the GPU."""
    fp8_recipe: Fp8Recipe | None = None
    """FP8 scaling recipe; None for other precisions."""
    stack: Stack | None = None
    """The stack that was simulated; None: any."""
    recompute_blocks: int = 0
    recompute_modules: tuple[str, ...] = ()
    recompute_saves: tuple[str, ...] = ()
    is_spot: bool = False
    """Whether the prices that apply are those of spot instances."""

    @property
    def is_fsdp1(self) -> bool:
        """Return whether the stack is torch's first FSDP, which shards flat parameters."""
        return self.stack is not None and self.stack.mesh is not None and self.stack.mesh.framework == "fsdp1"

    @property
    def global_batch(self) -> int:
        """Return the samples of a step."""
        return self.data * self.batch * self.micro_batches


def refuse_four_bits(launch: Launch, program: str) -> None:
    """Raise SpecError for nvfp4, which *program* does not support."""
    if launch.precision == "nvfp4":
        raise SpecError(f"{program} has no option for nvfp4; export megatron arguments, or plan with --precision fp8")


def require_shape(launch: Launch, program: str) -> Transformer:
    """Return the shape of the model. Raise SpecError for a model that files of *program* cannot express."""
    if launch.shape is None:
        raise SpecError(
            f"{launch.model} is a table of layers; files for {program} can only describe a decoder by its sizes (model.transformer)"
        )
    if launch.adapters:
        raise SpecError(f"{program} trains the whole model, but {launch.model} has adapters or frozen parts")
    return launch.shape


def blocks_of(launch: Launch, less: int) -> list[int]:
    """Return the number of blocks in each chunk: from the layout, or evenly, with *less* fewer in the first and the last chunk."""
    parallel, shape = launch.parallel, launch.shape
    assert shape is not None
    return list(parallel.layers_per_stage) or even_blocks(
        shape.layers + shape.prediction_layers, parallel.pipeline * parallel.chunks, less, less
    )


def fields_with_defaults(shape: Transformer) -> dict[str, Any]:
    """Return the fields of *shape* with defaults filled in, without ``max_seq``, which follows from the job."""
    full = shape.model_dump(exclude={"max_seq", "shared_experts"})
    full["kv_heads"] = shape.kv_heads or shape.heads
    full["head_dim"] = shape.head_dim or (None if shape.mla else shape.hidden // shape.heads)
    full["ffn"] = shape.ffn or 4 * shape.hidden
    full["norm_bias"] = shape.norm == "layernorm" if shape.norm_bias is None else shape.norm_bias
    if shape.experts:
        full["expert_ffn"] = shape.expert_ffn or full["ffn"]
        full["shared_expert_ffn"] = shape.shared_expert_ffn or shape.shared_experts * full["expert_ffn"]
    return full
