"""How is one model spread over many GPUs? The layout of a job: axes of the mesh, sharding, and the pipeline's schedule.

The names are those of torch.distributed and Megatron-LM. A job on ``gpus`` GPUs has ``gpus / (tensor * pipeline * context)`` data-parallel
ranks; ``expert`` regroups the ranks of a stage for the weights of experts only. The default is plain data parallelism.
"""

from __future__ import annotations

import re
from typing import Annotated, Final, Literal, get_args

from pydantic import BeforeValidator, Field, WithJsonSchema, model_validator

from sim.spec import extensions
from sim.spec.fields import Bytes, Count, Factor, Fraction, Seconds, Source, Spec, Whole
from sim.spec.yaml import SpecError
from sim.units import shorten

Schedule = Literal["gpipe", "1f1b", "interleaved_1f1b", "zb_h1", "zbv", "dualpipev"]
Shard = Literal["none", "optimizer", "gradients", "parameters"]
Axis = Literal["tensor", "context", "expert", "data", "pipeline"]
SplitAxis = Literal["tensor", "context", "pipeline", "expert"]

MEGATRON_ORDER: Final[tuple[Axis, ...]] = ("tensor", "context", "data", "pipeline")
"""Axes from the fastest-varying rank number to the slowest (Megatron-LM's ``tp-cp-ep-dp-pp``; experts split the data axis)."""
NEAR_PIPELINE: Final[tuple[Axis, ...]] = ("tensor", "context", "pipeline", "data")
"""Stages next to each other (Megatron-LM's --use-tp-pp-dp-mapping)."""
SPLIT_STAGES: Final = ("zbv", "dualpipev")
"""Schedules that place two chunks on each rank in the shape of a V."""
SLOTTED: Final = ("gpipe", "1f1b", "interleaved_1f1b")
"""Schedules whose forward and backward passes fill slots that are all alike; others divide backward, or run two directions."""
SCHEDULES: Final[tuple[Schedule, ...]] = get_args(Schedule)
SHARDS: Final[tuple[Shard, ...]] = get_args(Shard)
SPLIT_AXES: Final[tuple[SplitAxis, ...]] = get_args(SplitAxis)
"""Axes that divide one replica of the model."""


ScheduleName = Annotated[
    str,
    BeforeValidator(extensions.checked_name(extensions.SCHEDULES, SCHEDULES)),
    WithJsonSchema(
        {
            "anyOf": [{"enum": list(SCHEDULES), "type": "string"}, {"type": "string", "description": "the name of one of your own"}],
            "description": f"one of {', '.join(SCHEDULES)}, or the name of one of your own",
        }
    ),
]
"""A schedule, or the name of one that the user brings."""


NOT_SIMULATED: Final[dict[str, str]] = {
    **dict.fromkeys(
        ("ulysses", "ulysses_degree", "context_ulysses"),
        "Ulysses is not simulated; context splits sequences",
    ),
    **dict.fromkeys(
        ("expert_tensor", "expert_tensor_parallel", "etp"), "expert tensor parallelism is not simulated; expert places whole experts"
    ),
    **dict.fromkeys(("cpu_offload", "offload"), "CPU offload is not simulated; shard divides what ranks hold"),
    "gspmd": "GSPMD is not simulated; tensor, context and shard say how ranks split the model",
    **dict.fromkeys(
        ("rollouts", "rollout"), "rollouts of reinforcement learning are not simulated; a step is forward, backward and update"
    ),
}
"""What users write of a layout that is not simulated, and in words that it is not."""


def _wrapping(value: object) -> object:
    """Read what FSDP wraps: patterns as a list or joined by ``+``, or the least parameters as a mapping, a text or a number."""
    least: object = value.get("min_params") if isinstance(value, dict) and set(value) == {"min_params"} else None
    if isinstance(value, str) and value.partition("=")[0].strip() == "min_params":
        least = value.partition("=")[2]
    if isinstance(value, int) and not isinstance(value, bool):
        least = value
    if least is not None:
        return _parameters(least)
    patterns = _paths(value)
    if not patterns:
        raise ValueError(f"{shorten(value)} is no way to wrap; write patterns of module paths such as [layers.*], or {{min_params: 100M}}")
    return patterns


def _paths(value: object) -> tuple[str, ...]:
    """Read paths of modules, as a list or joined by ``+``; none where *value* is anything else."""
    paths = value.split("+") if isinstance(value, str) else list(value) if isinstance(value, list | tuple) else []
    if not all(isinstance(each, str) and re.fullmatch(r"[^\s.]+(\.[^\s.]+)*", each.strip()) for each in paths):
        return ()
    return tuple(each.strip() for each in paths)


def _cuts(value: object) -> tuple[str, ...]:
    """Read where stages begin: paths of modules, as a list or joined by ``+``."""
    paths = _paths(value)
    if not paths and value not in ((), []):
        raise ValueError(f"{shorten(value)} names no modules; write the modules that stages begin with, such as [layer2.0, layer4.1.conv2]")
    return paths


def _parameters(text: object) -> int:
    """Read a number of parameters such as 100M."""
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)\s*([KMB]?)", str(text).strip())
    number = round(float(match[1]) * {"": 1, "K": 1e3, "M": 1e6, "B": 1e9}[match[2]]) if match else 0
    if not 0 < number <= 10**15:
        raise ValueError(
            f"min_params {shorten(text)} is not a number of parameters; write for example 100M (K, M, B: thousands to billions)"
        )
    return number


Wrapping = Annotated[
    tuple[str, ...] | int,
    BeforeValidator(_wrapping),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "array", "items": {"type": "string"}},
                {"type": "string"},
                {"type": "integer", "minimum": 1},
                {"type": "object", "properties": {"min_params": {"type": ["integer", "string"]}}, "additionalProperties": False},
            ],
            "description": "patterns of module paths such as [layers.*], or {min_params: 100M}",
        }
    ),
]
"""What FSDP wraps: patterns of module paths, or the least parameters of a wrap."""
Cuts = Annotated[
    tuple[str, ...],
    BeforeValidator(_cuts),
    WithJsonSchema(
        {"anyOf": [{"type": "array", "items": {"type": "string"}}, {"type": "string"}], "description": "modules, such as [layer2.0, fc]"}
    ),
]
"""Modules that stages begin with."""


class Parallel(Spec):
    """The layout of one job. ``shard`` is ZeRO's stage: optimizer 1, gradients 2, parameters 3 (FSDP)."""

    tensor: Count = 1
    """Ranks that split each layer's weights (tensor parallelism)."""
    sequence: bool | None = None
    """Sequence parallelism: norms and residuals are split over the tensor group. None: on where ``tensor`` is above 1."""
    pipeline: Count = 1
    """Stages."""
    context: Count = 1
    """Ranks that split each sequence, attention included (context parallelism)."""
    context_exchange: Literal["ring", "all_gather"] = "ring"
    """How keys and values reach the other ranks of a context group."""
    expert: Count = 1
    """Ranks that split the experts of a layer; taken from the tensor, context and data ranks."""
    replicate: Count = 1
    """Replicas of a sharded model (HSDP): parameters are sharded inside each, gradients all-reduced between them."""
    shard: Shard = "none"
    """What data-parallel ranks divide among each other; none: nothing (DDP)."""
    reshard_after_forward: bool | Count | None = None
    """FSDP: whether gathered weights are freed after forward; a number reshards to groups of n ranks. None: yes, unless pipelined."""
    wrap: Wrapping | None = None
    """FSDP: modules that are gathered by themselves: patterns of their paths (``layer*.*``; ``*`` stands for one name, ``**``
    for any number), or ``{min_params: 100M}``, torch's ``size_based_auto_wrap_policy``. None: numbered blocks; else from 100 M on."""
    schedule: ScheduleName | None = None
    """None: 1f1b, or interleaved_1f1b where ``virtual_stages`` is above 1."""
    virtual_stages: Count = 1
    """Chunks of layers on each rank of the pipeline."""
    layers_per_stage: tuple[Whole, ...] = ()
    """Blocks of each stage (or chunk, in the order of the model); empty: even, as the stack spreads them."""
    cuts: Cuts = ()
    """Modules that stages but the first begin with (or chunks, in the order of the model); empty: between numbered blocks."""
    order: tuple[Axis, ...] = ()
    """Axes from the fastest-varying rank number to the slowest; empty: the stack's."""
    expert_imbalance: float = Field(default=1.0, ge=1.0)
    """Tokens of the most loaded rank of an expert group over the mean; all others of the group have equally many."""

    capacity_factor: Factor | None = None
    """Most tokens of an expert over their mean; the rest is dropped (Megatron-LM's ``moe_expert_capacity_factor``). None: no limit."""
    pad_to_capacity: bool = False
    """Each expert's tokens are filled up to its capacity, so that no host waits for their number (``moe_pad_expert_input_to_capacity``)."""

    @model_validator(mode="after")
    def _agrees(self) -> Parallel:
        if self.pad_to_capacity and self.capacity_factor is None:
            raise ValueError("pad_to_capacity without a capacity to fill up to; write capacity_factor, such as 1.25, or leave it out")
        if self.schedule == "interleaved_1f1b" and self.virtual_stages == 1 and self.pipeline > 1:
            raise ValueError("schedule interleaved_1f1b needs virtual_stages of 2 or more; write virtual_stages: 2, or schedule: 1f1b")
        if self.schedule in SPLIT_STAGES and self.virtual_stages not in (1, 2):
            raise ValueError(f"schedule {self.schedule} has 2 virtual stages; write virtual_stages: 2")
        if self.schedule in ("gpipe", "1f1b", "zb_h1") and self.virtual_stages > 1:
            raise ValueError(f"schedule {self.schedule} has one chunk per stage; write schedule: interleaved_1f1b, or virtual_stages: 1")
        if self.virtual_stages > 1 and self.pipeline == 1:
            raise ValueError("virtual_stages without a pipeline; write pipeline: 2 or more, or virtual_stages: 1")
        if self.cuts and self.layers_per_stage:
            raise ValueError("cuts and layers_per_stage both say where stages begin; leave one of them out")
        if self.order and sorted(self.order) != sorted(MEGATRON_ORDER):
            raise ValueError(f"order names each of {', '.join(MEGATRON_ORDER)} once, from the fastest-varying to the slowest")
        if self.expert > 1 and self.expert_imbalance > self.expert:
            most = f"one of {self.expert} ranks has all tokens at {self.expert}"
            raise ValueError(f"expert_imbalance {self.expert_imbalance:g}: {most}; write at most that")
        if self.reshard_after_forward not in (None, False) and self.shard != "parameters":
            raise ValueError("reshard_after_forward is for sharded parameters (FSDP); write shard: parameters, or leave it out")
        if self.wrap is not None and self.shard != "parameters":
            raise ValueError("wrap is for sharded parameters (FSDP); write shard: parameters, or leave it out")
        if self.replicate > 1 and self.shard == "none":
            raise ValueError("replicate is for sharded models (HSDP); write shard: parameters, or replicate: 1")
        return self

    @property
    def trivial(self) -> bool:
        """Whether this is plain data parallelism."""
        return self == Parallel()

    @property
    def sequence_parallel(self) -> bool:
        """Whether norms and residuals are split over the tensor group."""
        return self.tensor > 1 and self.sequence is not False

    @property
    def chunks(self) -> int:
        """Chunks of layers on each rank of the pipeline."""
        return 2 if self.schedule in SPLIT_STAGES and self.pipeline > 1 else self.virtual_stages

    @property
    def model_ranks(self) -> int:
        """GPUs that hold one copy of the model apart from sharding: tensor x context x pipeline."""
        return self.tensor * self.context * self.pipeline


class MeshOptions(Spec):
    """What a framework does about layouts: data types, overlap and buckets. Without this block a stack runs plain data parallelism only."""

    framework: Literal["fsdp2", "fsdp1", "megatron", "nanotron", "deepspeed", "apex"]
    """Whose timing and defaults hold."""
    axes: tuple[SplitAxis, ...] = SPLIT_AXES
    """Axes that the framework has beside data parallelism."""
    shards: tuple[Shard, ...] = SHARDS
    """What the framework divides among data-parallel ranks."""
    schedules: tuple[Schedule, ...] = SCHEDULES
    """Schedules that the framework has, which plans choose from; a run takes others too."""
    recomputes: bool = True
    """Whether the framework's backward can compute blocks, or their attention, again; of plans, a run takes what is asked for."""
    sequence: Literal["always", "never", "either"] = "either"
    """Whether the framework's tensor ranks split norms and residuals (sequence parallelism); of plans, a run takes what is asked for."""
    weights: Literal["fp32", "bf16", "fp16"] = "fp32"
    """Type of the parameters that the optimizer updates (FSDP's sharded parameters), or of the working copy where ``master`` is true."""
    master: bool = False
    """FP32 master weights are kept beside ``weights``."""
    gradients: Literal["fp32", "bf16", "fp16"] = "fp32"
    """Type in which gradients are accumulated."""
    reduction: Literal["fp32", "bf16", "fp16"] = "fp32"
    """Type in which gradients travel."""
    states: Literal["fp32", "bf16", "int8"] = "fp32"
    """Type of the optimizer's states."""
    overlap_gradients: bool = True
    """Gradients are reduced beside backward (of the last micro-batch)."""
    overlap_parameters: bool = True
    """Sharded optimizers gather updated parameters beside the next forward."""
    bucket_elements: Whole = 0
    """Elements of a gradient bucket where no unit of layers is one; 0: Megatron's max(40 M, 1 M x data ranks)."""
    forward_prefetch: bool = True
    """The gather of the next unit is issued before the current one computes. FSDP1: before the host launches that, else right behind it."""
    backward_prefetch: Literal["pre", "post", "none"] = "pre"
    """FSDP1: when backward gathers the next unit: before the current one computes, behind it, or when it is needed."""
    limit_all_gathers: bool = True
    """FSDP1: the host waits until all but two gathered units are free again before it gathers another."""
    whole_gradients: bool = False
    """Where replicas share a sharded optimizer, gradients are added up among all their ranks in one all-reduce, not reduced to shards first
    (``full_ar`` of apex's DistributedFusedLAMB)."""
    flattens: bool = False
    """Sharded optimizers copy gradients into a flat buffer before they travel, and gathered weights out of one (apex)."""
    copies: bool = True
    """FSDP copies weights out of what it gathers and gradients into what it reduces; not where the compiler lays them out."""
    separate_reduce_scatter: bool = False
    """Reduce-scatters have a communicator of their own and overlap gathers."""
    early_stop: bool = False
    """What backward computes again ends with the last tensor that backward reads (torch's ``set_checkpoint_early_stop``; XLA drops
    what nothing reads): not with a block's last product."""
    tensor_overlap: Fraction = 0.0
    """Share of tensor-parallel communication hidden under products."""
    pipeline_overlap: bool = False
    """Stages compute while they send, but for gpipe and 1f1b, whose frameworks wait for a send with the receive after it."""
    expert_overlap: Fraction = 0.0
    """Share of the experts' dispatch and combine hidden under other work."""
    root: bool = False
    """FSDP wraps no more than the blocks; embedding, last norm and head belong to the root, which is gathered first and reduced last."""
    regathers: bool | None = None
    """Sequence parallelism gathers the inputs of split products again in backward rather than keep them. None: megatron and nanotron do."""
    expert_counts: bool = True
    """The host waits for the number of tokens of each expert before it launches the experts; not where their capacity is fixed."""
    host_waits: Literal["nothing", "reductions", "everything"] = "nothing"
    """Collectives that the host waits for before it goes on, as over Gloo, where no stream of a device holds them."""
    expert_host: Seconds = 0.0
    """Host time of the experts in one block's forward (router, dispatch, combination), beyond launching the layer table's kernels."""
    block_host: Seconds = 0.0
    """Host time of one block's forward where software runs it operator by operator, beyond launching the layer table's kernels."""
    one_copy: bool = False
    """Dispatch sends a token once to each node that has experts for it (DeepEP, HybridEP), not once to each expert."""
    collective_check: Seconds = 0.0
    """Host time of one socket message where torch compares each collective between its ranks (TORCH_DISTRIBUTED_DEBUG=DETAIL)."""
    fused_accumulation: bool = False
    """Products that make gradients of weights add them to those of micro-batches before; else a pass of its own does."""
    keeps_8bit_weights: bool = False
    """Weights are brought to 8 bits once a step, for all its micro-batches; else whenever a micro-batch uses them."""
    parameters_8bit: bool = False
    """In 8 bits the optimizer writes the weights of blocks in 8 bits (``fp8_param_gather``; not in 4); else kept ones lie beside."""
    shares_device: bool = False
    """Collectives take multiprocessors and memory bandwidth from what computes beside them, each as many as it has channels and bytes."""
    gradients_wait: bool = False
    """Gradients stay in the type of ``weights`` beside those that are accumulated, until the backward of their micro-batch ends."""
    reducer_buckets: bool = False
    """Torch's DistributedDataParallel keeps buckets of all gradients in the type of ``weights`` beside them."""
    input_buffers: Whole = 0
    """Buffers for the gathered inputs of split products that are kept from one product to the next."""
    frozen_8bit: bool = False
    """Weights that do not train are held in 8 bits alone where products are in 8 bits."""
    communicators: Whole = 0
    """Communicators of NCCL beside those of the layout's groups."""
    flat_buffers: Bytes = 0.0
    """Flat buffers that gradients are copied to before they travel."""
    records_streams: bool = False
    """Outputs that tensor-parallel collectives sum up are free again once the GPU is past them, of which the host hears one forward late
    (torch's ``record_stream``)."""
    blocks_ahead: Whole = 0
    """Blocks whose forward the host launches before the GPU has run them, of all micro-batches that no backward comes before; 0: those of
    one forward, since the host waits at each micro-batch."""
    step_share_bytes: float = Field(default=0.0, ge=0)
    """Bytes in large blocks that the step of a sharded optimizer takes for an element of this rank's share."""
    step_whole_bytes: float = Field(default=0.0, ge=0)
    """The same for an element of all that the stage holds, such as weights gathered into one block."""
    casts_gradients: Literal["never", "fp8", "always"] = "never"
    """When the step copies the gradients of this rank's share to 32 bits, where ``gradients`` are not: with products in fp8, or always."""
    stages_by_cost: bool = False
    """Stages take blocks until the cost of their products passes an even share, in place of even numbers of blocks (nanotron)."""
    order: tuple[Axis, ...] = MEGATRON_ORDER
    """Axes from neighbors to far apart: which ranks are next to each other."""
    first_stage_less: Whole = 0
    """Blocks that the first stage holds less, in place of the embedding."""
    last_stage_less: Whole = 0
    """Blocks that the last stage holds less, in place of the head."""
    source: Source

    @model_validator(mode="after")
    def _switches(self) -> MeshOptions:
        if self.framework != "fsdp1" and (self.backward_prefetch != "pre" or not self.limit_all_gathers):
            raise ValueError(
                f"backward_prefetch and limit_all_gathers are switches of FSDP1, and framework is {self.framework}; "
                "write framework: fsdp1, or leave them out"
            )
        return self

    def lacks(self, parallel: Parallel) -> str:
        """Return what *parallel* asks for and the framework does not have, such as ``tensor parallelism``; empty where it has all."""
        axis = next((name for name in SPLIT_AXES if getattr(parallel, name) > 1 and name not in self.axes), None)
        if axis is not None:
            return f"{axis} parallelism"
        return "" if parallel.shard in self.shards else f"sharding of {parallel.shard}"

    @property
    def sends_ahead(self) -> bool:
        """Whether schedules that wait for sends wait later where the next pass has the same direction, as torch's do."""
        return self.framework == "fsdp2"

    @property
    def saves_8bit_inputs(self) -> bool:
        """Whether products in 8 bits keep their inputs so for backward (NVIDIA/TransformerEngine module/linear.py); torchao does not."""
        return self.framework == "megatron"

    @property
    def keeps_sent(self) -> bool:
        """Whether a stage keeps what it sent on until the backward of that micro-batch.

        DeepSpeed runtime/pipe/engine.py, ``pipe_buffers``; torch.distributed.pipelining stage.py, ``fwd_cache``. Megatron frees it.
        """
        return self.framework in ("deepspeed", "fsdp2")

    @property
    def reduces_shards_each(self) -> bool:
        """Whether gradients of sharded parameters are reduced at each micro-batch, whatever ``no_sync`` of the stack says.

        DeepSpeed runtime/engine.py refuses ``no_sync`` from ZeRO-2 on; Megatron-FSDP megatron_fsdp.py, ``grad_reduce_every_bprop``.
        """
        return self.framework in ("deepspeed", "megatron")

    @property
    def receives_first(self) -> bool:
        """Whether a stage between a forward and a backward receives before it sends, each in a call that compute waits for.

        DeepSpeed runtime/pipe/schedule.py, ``TrainSchedule``; Megatron-LM joins the two.
        """
        return self.framework == "deepspeed"

    @property
    def gathers_again(self) -> bool:
        """Whether backward gathers the inputs of split products again."""
        return self.framework in ("megatron", "nanotron") if self.regathers is None else self.regathers


def even_blocks(blocks: int, chunks: int, first_less: int, last_less: int) -> list[int]:
    """Return the blocks of each chunk where they are spread evenly, remainders to the early ones.

    The first and the last hold *first_less* and *last_less* less. Raise SpecError for more chunks than blocks.
    """
    if chunks > blocks:
        raise SpecError(
            f"training.parallel.pipeline: {chunks} chunks of layers, but the model has {blocks} blocks; use at most {blocks} stages x "
            "virtual stages"
        )
    if chunks == 1:
        return [blocks]
    total = blocks + first_less + last_less
    counts = [total // chunks + (index < total % chunks) for index in range(chunks)]
    counts[0] -= first_less
    counts[-1] -= last_less
    return counts if min(counts) >= 0 else even_blocks(blocks, chunks, 0, 0)
