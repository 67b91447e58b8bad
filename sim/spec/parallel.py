"""How is one model distributed over many GPUs? The layout of a job: axes of the mesh, sharding, and the pipeline schedule.

The names are those of torch.distributed and Megatron-LM. A job on ``gpus`` GPUs has ``gpus / (tensor * pipeline * context)`` data-parallel
ranks; ``expert`` regroups the ranks of a stage only for the weights of experts. The default is plain data parallelism.
"""

import re
from typing import Annotated, Final, Literal, Self, get_args

from pydantic import Field, model_validator

from sim.spec import extensions
from sim.spec.fields import Bytes, Count, Factor, Fraction, Latency, Reader, Source, Spec, Whole
from sim.spec.yaml import SpecError
from sim.units import all_of, shorten

Schedule = Literal["gpipe", "1f1b", "interleaved_1f1b", "zb_h1", "zbv", "dualpipev"]
Shard = Literal["none", "optimizer", "gradients", "parameters"]
Axis = Literal["tensor", "context", "expert", "data", "pipeline"]
SplitAxis = Literal["tensor", "context", "pipeline", "expert"]

MEGATRON_ORDER: Final[tuple[Axis, ...]] = ("tensor", "context", "data", "pipeline")
"""Axes from the fastest-varying rank number to the slowest (Megatron-LM's ``tp-cp-ep-dp-pp``; experts split the data axis)."""
NEAR_PIPELINE: Final[tuple[Axis, ...]] = ("tensor", "context", "pipeline", "data")
"""The same order with pipeline stages before data ranks (Megatron-LM's --use-tp-pp-dp-mapping)."""
SPLIT_STAGES: Final = ("zbv", "dualpipev")
"""Schedules that place two chunks on each rank in the shape of a V."""
UNSPLIT_STAGES: Final = ("gpipe", "1f1b", "zb_h1")
"""Schedules with one chunk on each rank."""
SLOTTED: Final = ("gpipe", "1f1b", "interleaved_1f1b")
"""Schedules whose forward and backward passes fill identical slots; others split backward or run in two directions."""
SCHEDULES: Final[tuple[Schedule, ...]] = get_args(Schedule)
SHARDS: Final[tuple[Shard, ...]] = get_args(Shard)
"""What is sharded in each stage of ZeRO, from 0 on."""
SPLIT_AXES: Final[tuple[SplitAxis, ...]] = get_args(SplitAxis)
"""Axes that divide one replica of the model."""


ScheduleName = Annotated[
    str,
    Reader(
        extensions.checked_name(extensions.SCHEDULES, SCHEDULES),
        {
            "anyOf": [
                {"enum": list(SCHEDULES), "type": "string"},
                {"type": "string", "description": "the name of a user-defined schedule"},
            ],
            "description": f"one of {', '.join(SCHEDULES)}, or the name of a user-defined schedule",
        },
    ),
]
"""A built-in schedule, or the name of a user-defined one."""


NOT_SIMULATED: Final[dict[str, str]] = {
    **dict.fromkeys(
        ("ulysses", "ulysses_degree", "context_ulysses"),
        "Ulysses is not simulated; use context to split sequences",
    ),
    **dict.fromkeys(
        ("expert_tensor", "expert_tensor_parallel", "etp"),
        "expert tensor parallelism is not simulated; use expert to distribute whole experts",
    ),
    **dict.fromkeys(("cpu_offload", "offload"), "CPU offload is not simulated; shard reduces the memory of each rank"),
    "gspmd": "GSPMD is not simulated; use tensor, context and shard to split the model",
    **dict.fromkeys(
        ("rollouts", "rollout"), "rollouts of reinforcement learning are not simulated; a step has forward, backward and update only"
    ),
}
"""Keys of layouts that are not simulated, each with the message for it."""


def _wrapping(value: object) -> object:
    """Read what FSDP wraps: patterns as a list or joined by ``+``, or the minimum number of parameters as a mapping, text or number."""
    least: object = value.get("min_params") if isinstance(value, dict) and set(value) == {"min_params"} else None
    if isinstance(value, str) and value.partition("=")[0].strip() == "min_params":
        least = value.partition("=")[2]
    if isinstance(value, int) and not isinstance(value, bool):
        least = value
    if least is not None:
        return _parameters(least)
    patterns = _paths(value)
    if not patterns:
        raise ValueError(
            f"{shorten(value)} is not a valid wrap; write patterns of module paths such as [layers.*], or {{min_params: 100M}}"
        )
    return patterns


def _paths(value: object) -> tuple[str, ...]:
    """Read module paths, as a list or joined by ``+``; return none if *value* is anything else."""
    paths = value.split("+") if isinstance(value, str) else list(value) if isinstance(value, list | tuple) else []
    if not all(isinstance(each, str) and re.fullmatch(r"[^\s.]+(\.[^\s.]+)*", each.strip()) for each in paths):
        return ()
    return tuple(each.strip() for each in paths)


def _cuts(value: object) -> tuple[str, ...]:
    """Read the modules that stages begin with: module paths, as a list or joined by ``+``."""
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
    Reader(
        _wrapping,
        {
            "anyOf": [
                {"type": "array", "items": {"type": "string"}},
                {"type": "string"},
                {"type": "integer", "minimum": 1},
                {"type": "object", "properties": {"min_params": {"type": ["integer", "string"]}}, "additionalProperties": False},
            ],
            "description": "patterns of module paths such as [layers.*], or {min_params: 100M}",
        },
    ),
]
"""What FSDP wraps: patterns of module paths, or the minimum number of parameters of a wrapped module."""
Cuts = Annotated[
    tuple[str, ...],
    Reader(
        _cuts,
        {"anyOf": [{"type": "array", "items": {"type": "string"}}, {"type": "string"}], "description": "modules, such as [layer2.0, fc]"},
    ),
]
"""Modules that begin a new pipeline stage."""


class Parallel(Spec):
    """The layout of one job: how many ranks each axis has, what data-parallel ranks shard, and the pipeline schedule."""

    tensor: Count = 1
    """Tensor parallelism: number of ranks that split each layer's weights."""
    sequence: bool | None = None
    """Sequence parallelism: whether norms and residuals are split over the tensor group. None: yes if ``tensor`` is above 1."""
    pipeline: Count = 1
    """Pipeline parallelism: number of stages."""
    context: Count = 1
    """Context parallelism: number of ranks that split each sequence, including attention."""
    context_exchange: Literal["ring", "all_gather"] = "ring"
    """How keys and values reach the other ranks of a context group: passed around a ring, or all-gathered at once (torch's ``alltoall`` and
    ``allgather``)."""
    expert: Count = 1
    """Expert parallelism: number of ranks that split the experts of a layer; they are taken from the tensor, context and data ranks."""
    replicate: Count = 1
    """Number of replicas of a sharded model (HSDP): parameters are sharded within a replica, gradients are all-reduced between them."""
    shard: Shard = "none"
    """What data-parallel ranks shard. none: nothing (DDP); optimizer: its states (ZeRO-1); gradients: also gradients (ZeRO-2); parameters:
    also parameters (ZeRO-3, FSDP)."""
    reshard_after_forward: bool | Count | None = None
    """FSDP: whether gathered weights are freed after forward; a number n reshards to groups of n ranks. None: yes, unless pipelined."""
    wrap: Wrapping | None = None
    """FSDP: modules that are wrapped, that is, gathered as one unit: patterns of module paths (``layer*.*``; ``*`` matches one name, ``**``
    any number of names), or ``{min_params: 100M}``, which is torch's ``size_based_auto_wrap_policy``. None: the numbered blocks; if the
    model has none, ``{min_params: 100M}``."""
    schedule: ScheduleName | None = None
    """Pipeline schedule. None: interleaved_1f1b if ``virtual_stages`` is above 1, else 1f1b."""
    virtual_stages: Count = 1
    """Number of chunks of layers on each pipeline rank."""
    layers_per_stage: tuple[Whole, ...] = ()
    """Number of blocks in each stage (or chunk, in model order); empty: an even distribution, as the stack makes it."""
    cuts: Cuts = ()
    """Modules that begin a new stage (or chunk, in model order), one for each stage after the first; empty: stages begin at blocks."""
    order: tuple[Axis, ...] = ()
    """Axes from the fastest-varying rank number to the slowest; empty: the stack's order."""
    expert_imbalance: float = Field(default=1.0, ge=1.0)
    """Tokens on the most loaded rank of an expert group, relative to the mean; all other ranks of the group are equally loaded."""

    capacity_factor: Factor | None = None
    """Maximum number of tokens of an expert, relative to the mean; tokens beyond it are dropped (Megatron-LM's
    ``moe_expert_capacity_factor``). None: no limit."""
    pad_to_capacity: bool = False
    """Whether each expert's tokens are padded to its capacity, so that no host waits for their number
    (``moe_pad_expert_input_to_capacity``)."""

    @model_validator(mode="after")
    def _agrees(self) -> Self:
        if self.pad_to_capacity and self.capacity_factor is None:
            raise ValueError("pad_to_capacity needs capacity_factor; write it, such as 1.25, or leave pad_to_capacity out")
        if self.schedule == "interleaved_1f1b" and self.virtual_stages == 1 and self.pipeline > 1:
            raise ValueError("schedule interleaved_1f1b needs virtual_stages of 2 or more; write virtual_stages: 2, or schedule: 1f1b")
        if self.schedule in SPLIT_STAGES and self.virtual_stages not in (1, 2):
            raise ValueError(f"schedule {self.schedule} requires 2 virtual stages; write virtual_stages: 2")
        if self.schedule in UNSPLIT_STAGES and self.virtual_stages > 1:
            raise ValueError(f"schedule {self.schedule} has one chunk per stage; write schedule: interleaved_1f1b, or virtual_stages: 1")
        if self.virtual_stages > 1 and self.pipeline == 1:
            raise ValueError("virtual_stages without a pipeline; write pipeline: 2 or more, or virtual_stages: 1")
        if self.cuts and self.layers_per_stage:
            raise ValueError("cuts and layers_per_stage both set where stages begin; leave one of them out")
        if self.order and sorted(self.order) != sorted(MEGATRON_ORDER):
            raise ValueError(f"order must name each of {', '.join(MEGATRON_ORDER)} once, from the fastest-varying to the slowest")
        if self.expert > 1 and self.expert_imbalance > self.expert:
            most = f"at {self.expert}, one of {self.expert} ranks has all tokens"
            raise ValueError(f"expert_imbalance {self.expert_imbalance:g}: {most}; write at most that")
        resharded = ["reshard_after_forward"] if self.reshard_after_forward not in (None, False) else []
        of_fsdp = [*resharded, *(["wrap"] if self.wrap is not None else [])]
        if of_fsdp and self.shard != "parameters":
            names = all_of(of_fsdp)
            kept = " (with reshard_after_forward: false for FSDP's SHARD_GRAD_OP)" if self.shard == "gradients" else ""
            raise ValueError(
                f"{names} {'is' if len(of_fsdp) == 1 else 'are'} for sharded parameters (FSDP), but shard is {self.shard}; write shard: "
                f"parameters{kept}, or leave {names} out"
            )
        if self.replicate > 1 and self.shard == "none":
            raise ValueError("replicate is for sharded models (HSDP); write shard: parameters, or replicate: 1")
        return self

    @property
    def is_trivial(self) -> bool:
        """Whether this is plain data parallelism."""
        return self == _TRIVIAL

    @property
    def sequence_parallel(self) -> bool:
        """Whether norms and residuals are split over the tensor group."""
        return self.tensor > 1 and self.sequence is not False

    @property
    def chunks(self) -> int:
        """Number of chunks of layers on each pipeline rank."""
        return 2 if self.schedule in SPLIT_STAGES and self.pipeline > 1 else self.virtual_stages

    @property
    def model_ranks(self) -> int:
        """Number of GPUs that hold one copy of the model, sharding not counted: tensor x context x pipeline."""
        return self.tensor * self.context * self.pipeline


_TRIVIAL: Final = Parallel()
HOST_TIMES: Final = (
    "expert_host", "expert_launch", "block_host", "module_host", "quantize_host", "checkpoint_host", "tensor_host", "slice_host",
)  # fmt: skip
"""Fields of `MeshOptions`: the time that the host's processor needs for a framework's code."""


class MeshOptions(Spec):
    """How a framework runs layouts: data types, overlap, buckets. A stack without this block runs only plain data parallelism."""

    framework: Literal["fsdp2", "fsdp1", "megatron", "nanotron", "deepspeed", "apex"]
    """The framework whose order of operations and defaults are simulated."""
    axes: tuple[SplitAxis, ...] = SPLIT_AXES
    """Axes that the framework supports in addition to data parallelism."""
    shards: tuple[Shard, ...] = SHARDS
    """What the framework can shard over data-parallel ranks."""
    schedules: tuple[Schedule, ...] = SCHEDULES
    """Pipeline schedules that the framework supports. Plans choose from them; a run also accepts others."""
    recomputes: bool = True
    """Whether the framework can recompute blocks, or their attention, in backward. Restricts only plans; a run does what is requested."""
    sequence: Literal["always", "never", "either"] = "either"
    """Whether the framework uses sequence parallelism with tensor parallelism. Restricts only plans; a run does what is requested."""
    weights: Literal["fp32", "bf16", "fp16"] = "fp32"
    """Data type of the parameters that the optimizer updates (FSDP's sharded parameters), or of the working copy if ``master`` is true."""
    master: bool = False
    """Whether FP32 master weights are kept in addition to ``weights``."""
    gradients: Literal["fp32", "bf16", "fp16"] = "fp32"
    """Data type in which gradients are accumulated."""
    reduction: Literal["fp32", "bf16", "fp16"] = "fp32"
    """Data type in which gradients are reduced between ranks."""
    states: Literal["fp32", "bf16", "int8"] = "fp32"
    """Data type of the optimizer states."""
    overlap_gradients: bool = True
    """Whether gradient reduction overlaps with backward (of the last micro-batch)."""
    overlap_parameters: bool = True
    """Whether sharded optimizers gather updated parameters during the next forward; false: right after the optimizer step."""
    bucket_elements: Whole = 0
    """Elements at which a gradient bucket closes, if parameters are not sharded (FSDP reduces by unit); with nanotron, only without ZeRO.
    0: Megatron's max(40 M, 1 M x data ranks)."""
    forward_prefetch: bool = True
    """Whether the gather of the next unit is issued before the current one computes. In FSDP1, the host always issues it ahead of use:
    before it launches the current unit if true, else right after."""
    backward_prefetch: Literal["pre", "post", "none"] = "pre"
    """FSDP1: when backward gathers the next unit: before the current one computes, after it, or when it is needed."""
    limit_all_gathers: bool = True
    """FSDP1: whether the host waits until all but two gathered units have been freed before it gathers another."""
    whole_gradients: Literal["never", "with_replicas", "always"] = "never"
    """When gradients of a sharded optimizer are added up over all ranks in all-reduces instead of being reduce-scattered to shards.
    with_replicas: if replicas of the shards exist (apex's DistributedFusedLAMB with ``full_ar``). always: DeepSpeed's ZeRO-1 of 2021 to
    2023, and nanotron's."""
    flattens: bool = False
    """Whether sharded optimizers copy gradients into a flat buffer before the reduction, and gathered weights out of one (apex)."""
    copies: bool = True
    """Whether FSDP copies weights out of its gather buffer and gradients into its reduction buffer; false if the compiler avoids this."""
    divides_gradients: bool = False
    """Whether FSDP2 is given a factor by which to divide gradients (``set_gradient_divide_factor``): a group of one rank divides them in a
    pass of its own, larger groups in their collectives."""
    separate_reduce_scatter: bool = False
    """Whether reduce-scatters have their own communicator, so that they overlap with gathers."""
    early_stop: bool = False
    """Whether recomputation stops at the last tensor that backward reads, so that a block's last product is not recomputed (torch's
    ``set_checkpoint_early_stop``; XLA removes operations with unused results)."""
    tensor_overlap: Fraction = 0.0
    """Fraction of the tensor-parallel communication that is hidden behind matrix products."""
    pipeline_overlap: bool = False
    """Whether stages compute while they send. Has no effect with gpipe and 1f1b, for which frameworks wait for a send together with the
    receive after it."""
    expert_overlap: Fraction = 0.0
    """Fraction of the dispatch and combine of experts that is hidden behind other work."""
    paired_schedules: tuple[Schedule, ...] = ()
    """Schedules in which, with expert ranks, a forward pass and the backward pass after it run as a pair: dispatch and combine of one are
    hidden behind the compute of the other (DualPipe; Megatron-LM's ``overlap_moe_expert_parallel_comm``). 1f1b: only without a pipeline."""
    expert_blocks: Whole = 0
    """Multiprocessors that dispatch and combine in a pair take from compute meanwhile (DeepEP, by default: 20)."""
    root: bool = False
    """Whether FSDP wraps only the blocks. Embedding, last norm and head then belong to the root unit, which is gathered first and reduced
    last."""
    regathers: bool | None = None
    """Whether backward gathers the inputs of split products again under sequence parallelism, instead of keeping them. None: true for
    megatron and nanotron."""
    context_ring: Literal["transformer_engine", "torch"] = "transformer_engine"
    """Whose attention context ranks run. transformer_engine: keys and values, and their gradients, move while attention computes. torch:
    ``torch.distributed.tensor.experimental.context_parallel``, which repeats attention for each rank's keys, merges results and adds
    gradients in FP32; its messages overlap only if blocks are not compiled."""
    repeats_keys: bool = False
    """Whether keys and values are repeated for all query heads before attention, so that context ranks exchange the repeated ones. Applies
    with ``context_ring: torch``."""
    expert_counts: bool = True
    """Whether the host waits for the token count of each expert before it launches the experts. With ``pad_to_capacity`` it never does."""
    host_waits: Literal["nothing", "reductions", "everything"] = "nothing"
    """Collectives for which the host itself waits before it continues, as with Gloo, which has no device stream to hold them."""
    expert_host: Latency = 0.0
    """Host time of the experts in one block's forward (router, dispatch, combine), in addition to launching the layer table's kernels."""
    expert_launch: Latency = 0.0
    """Host time to start one operation for one local expert, if the software starts products, casts and hooks for each expert separately
    (Transformer Engine's ``GroupedLinear``); 0: one kernel computes all experts."""
    slice_host: Latency = 0.0
    """Host time to copy one rank's slice of one tensor out of a gather of all weights (nanotron's ``all_gather_coalesced``)."""
    block_host: Latency = 0.0
    """Host time of one block's forward in software that runs it operator by operator, in addition to launching the table's kernels."""
    module_host: Latency = 0.0
    """The same of one module (a product, attention, or a norm that is not joined with a product), also of what is recomputed."""
    quantize_host: Latency = 0.0
    """Host time to quantize the operands of one product's forward to fewer than 16 bits, outside routed experts."""
    checkpoint_host: Latency = 0.0
    """Host time of one checkpoint's backward in addition to what runs again: random generators' states, a nested backward."""
    fused_latents: bool = True
    """Whether latent attention rotates in fused kernels (Megatron's ``apply_rope_fusion``, an experimental option), not by operator."""
    fused_squares: bool = True
    """Whether a squared ReLU is one kernel (Megatron's ``squared_relu`` is compiled); false: operator by operator."""
    tensor_host: Latency = 0.0
    """Host time of one tensor-parallel message: to start it, and the products that are split to overlap with it."""
    one_copy: bool = False
    """Whether dispatch sends a token once to each node, and in it once to each rank, with experts for it (DeepEP, HybridEP)."""
    dispatch_8bit: bool = False
    """Whether tokens, and in backward the gradients of experts' outputs, are dispatched in 8 bits with one scale for 128 elements if
    products are in 8 bits; combine stays in 16 bits (DeepSeek-V3)."""
    permutes_tokens: bool = False
    """Whether separate kernels pad tokens for experts, restore their order and weight them (torchtitan); false: fused kernels."""
    collective_check: Latency = 0.0
    """Host time of one socket message if torch compares collectives between ranks (TORCH_DISTRIBUTED_DEBUG=DETAIL); 0: it does not."""
    fused_accumulation: bool = False
    """Whether the products that compute weight gradients add them to those of earlier micro-batches; false: a separate pass does."""
    accumulation_bytes: Whole = 0
    """Bytes per gradient that a pass moves to add those of one micro-batch to earlier ones; 0: it reads and writes ``gradients`` once."""
    keeps_8bit_weights: bool = False
    """Whether weights are converted to 8 bits (or fewer) once per step for all micro-batches; false: in each micro-batch."""
    parameters_8bit: bool = False
    """Whether the optimizer writes the weights of blocks directly in 8 bits with fp8 (``fp8_param_gather``); not with nvfp4. false: 8-bit
    copies that are kept need additional memory."""
    shares_device: bool = False
    """Whether collectives take resources from concurrent compute: one multiprocessor per channel, and memory bandwidth for their bytes."""
    gradients_wait: bool = False
    """Whether gradients of a micro-batch stay in the type of ``weights``, in addition to the accumulated ones, until its backward ends."""
    reducer_buckets: bool = False
    """Whether torch's DistributedDataParallel holds buckets of all gradients in the type of ``weights``, in addition to the gradients."""
    input_buffers: Whole = 0
    """Number of buffers for gathered inputs of split products that are kept from one product to the next."""
    frozen_8bit: bool = False
    """Whether frozen weights are held only in 8 bits if products are in 8 bits."""
    communicators: Whole = 0
    """Number of NCCL communicators in addition to those of the layout's groups."""
    flat_buffers: Bytes = 0.0
    """Size of the flat buffers to which gradients are copied before they are sent."""
    records_streams: bool = False
    """Whether outputs of tensor-parallel sums are freed one forward late, when the host learns that they may be (``record_stream``)."""
    blocks_ahead: Whole = 0
    """With ``records_streams``: number of blocks whose forward the host launches ahead of the GPU, at most those of all forward passes
    before the first backward. 0: the blocks of one forward, because the host waits at each micro-batch."""
    step_share_bytes: float = Field(default=0.0, ge=0)
    """Bytes, in large allocator blocks, that the step of a sharded optimizer needs per element of this rank's share."""
    step_whole_bytes: float = Field(default=0.0, ge=0)
    """The same bytes per element of everything the stage holds, such as weights gathered into one block."""
    casts_gradients: Literal["never", "fp8", "always"] = "never"
    """When the optimizer step copies the gradients of this rank's share to FP32, if ``gradients`` is not fp32. fp8: with precision fp8."""
    stage_parts: bool = False
    """Whether tensor ranks without sequence parallelism each send a part of what stages exchange, which the receiving ranks gather."""
    stages_by_cost: bool = False
    """Whether stages take blocks until the cost of their products exceeds an even share (nanotron); false: even numbers of blocks."""
    order: tuple[Axis, ...] = MEGATRON_ORDER
    """Axes from the fastest-varying rank number to the slowest, for layouts that do not specify ``order``."""
    first_stage_less: Whole = 0
    """Number of blocks that the first stage has fewer than an even share, in exchange for the embedding."""
    last_stage_less: Whole = 0
    """Number of blocks that the last stage has fewer than an even share, in exchange for the head."""
    source: Source

    @model_validator(mode="after")
    def _switches(self) -> Self:
        if self.framework != "fsdp1" and (self.backward_prefetch != "pre" or not self.limit_all_gathers):
            raise ValueError(
                f"backward_prefetch and limit_all_gathers are options of FSDP1, but framework is {self.framework}; write framework: "
                "fsdp1, or leave them out"
            )
        return self

    def lacks(self, parallel: Parallel) -> str:
        """Return what *parallel* requests and the framework lacks, such as ``tensor parallelism``; empty if nothing is missing."""
        axis = next((name for name in SPLIT_AXES if getattr(parallel, name) > 1 and name not in self.axes), None)
        if axis is not None:
            return f"{axis} parallelism"
        return "" if parallel.shard in self.shards else f"sharding of {parallel.shard}"

    @property
    def sends_ahead(self) -> bool:
        """Whether schedules that wait for sends wait later if the next pass has the same direction, as torch's do."""
        return self.framework == "fsdp2"

    @property
    def clipping_passes(self) -> float:
        """Number of times that FSDP's or Megatron's gradients are read or written to clip them: for the norm, and to multiply them.

        torch/nn/utils/clip_grad.py, ``clip_grads_with_norm_``: multiplies always. XLA multiplies where the optimizer reads gradients.
        Megatron-LM optimizer/clip_grads.py, ``clip_grad_by_total_norm_fp32``: only if the norm exceeds the limit, which is left out.
        """
        if self.framework not in ("fsdp1", "fsdp2", "megatron"):
            return 0.0
        return 3.0 if self.copies and self.framework != "megatron" else 1.0

    @property
    def saves_8bit_inputs(self) -> bool:
        """Whether 8-bit products save their inputs for backward in 8 bits (NVIDIA/TransformerEngine module/linear.py); torchao does not."""
        return self.framework == "megatron"

    @property
    def keeps_sent(self) -> bool:
        """Whether a stage keeps the output that it has sent until the backward of that micro-batch.

        DeepSpeed runtime/pipe/engine.py, ``pipe_buffers``; torch.distributed.pipelining stage.py, ``fwd_cache``. Megatron frees it.
        """
        return self.framework in ("deepspeed", "fsdp2")

    @property
    def reduces_shards_each(self) -> bool:
        """Whether gradients of sharded parameters are reduced in each micro-batch, whatever the stack's ``no_sync`` is.

        DeepSpeed runtime/engine.py refuses ``no_sync`` from ZeRO-2 on; Megatron-FSDP megatron_fsdp.py, ``grad_reduce_every_bprop``.
        """
        return self.framework in ("deepspeed", "megatron")

    @property
    def receives_first(self) -> bool:
        """Whether a stage between a forward and a backward receives before it sends, in two calls that compute waits for.

        DeepSpeed runtime/pipe/schedule.py, ``TrainSchedule``; Megatron-LM combines the two calls.
        """
        return self.framework == "deepspeed"

    @property
    def gathers_again(self) -> bool:
        """Whether backward gathers the inputs of split products again."""
        return self.framework in ("megatron", "nanotron") if self.regathers is None else self.regathers


def even_blocks(blocks: int, chunks: int, first_less: int, last_less: int) -> list[int]:
    """Return the number of blocks in each chunk if they are distributed evenly; earlier chunks get the remainder.

    The first and the last chunk have *first_less* and *last_less* blocks fewer, unless that is more than their share; they may be left with
    none. Raise SpecError for more chunks than that allows.
    """
    if chunks == 1:
        return [blocks]
    total = blocks + first_less + last_less
    counts = [total // chunks + (index < total % chunks) for index in range(chunks)]
    counts[0] -= first_less
    counts[-1] -= last_less
    if chunks <= total and min(counts) >= 0:
        return counts
    if chunks <= blocks:
        return even_blocks(blocks, chunks, 0, 0)
    alone = ""
    if chunks <= blocks + 2:
        fields = (f"training.stack.mesh.{end}_stage_less: 1" for end in ("first", "last"))
        alone = f", or one block less in the first and the last chunk: {', '.join(fields)}"
    raise SpecError(
        f"training.parallel.pipeline: {chunks} chunks of layers, but the model has {blocks} block{'s' * (blocks != 1)}; "
        f"use at most {blocks} stages x virtual stages{alone}"
    )
