"""What did a measured run do? Its shape, layout, precision, GPU and network, as `calibration.llm.describe` finds them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from calibration.llm.chips import Chip, ProductPrecision, host_factor_of, part_of
from calibration.llm.limits import RunLimits
from calibration.llm.priors import EAGER_FAMILIES
from calibration.llm.table import LlmRow
from calibration.llm.words import Recompute
from sim.cluster.quantizing import recipe_of
from sim.parallel.ring import Ring, torch_ring
from sim.spec.fields import Fp8Recipe
from sim.spec.hardware import Gpu
from sim.spec.library import load_part
from sim.spec.parallel import MeshOptions
from sim.spec.stack import Stack
from sim.spec.transformer import Transformer

MEASURED_MESSAGE: Final = 256e6
"""Bytes of the collectives whose latencies were measured (``ring_latency_us`` of ``records/llm/practice.yaml``)."""
SHARDED_FAMILIES: Final = ("fsdp1", "fsdp2")
"""Families that shard parameters by default (torch FullyShardedDataParallel: FULL_SHARD; fully_shard: reshard_after_forward)."""


@dataclass(frozen=True, eq=False)
class Case:
    """One run that can be predicted. Sizes are in elements, rates in bytes/s, times in seconds. Equal only to itself."""

    row: LlmRow
    shape: Transformer
    model_family: str
    chip: Chip
    domain: int
    """GPUs of one node that the fabric joins, or of one NVLink rack."""
    gpus_per_node: int
    """GPUs that the run uses on each node."""
    nic: float
    ring_latency: Mapping[str, float]
    """Measured seconds that one more node adds to a collective of `MEASURED_MESSAGE` bytes on this cluster: ``gather`` (and
    reduce-scatter) and ``reduce``; empty if unmeasured."""
    gpus: int
    data: int
    tensor: int
    sequence_parallel: bool
    pipeline: int
    virtual_stages: int
    layers_per_stage: tuple[int, ...]
    """Number of blocks of each chunk, with layers of multi-token prediction, if the scripts set it; empty: as the stack does."""
    context: int
    context_exchange: str
    """How context ranks exchange keys and values: ``ring`` or ``all_gather``."""
    expert: int
    zero: int
    replicas: int
    """Number of replicas of a sharded model (HSDP)."""
    seq: int
    micro_batch: int
    micro_batches: int
    """Micro-batches of one step on one data-parallel rank."""
    precision: ProductPrecision
    """Precision of products."""
    stated_recipe: Fp8Recipe | None
    """FP8 recipe, if the row or the scripts state one; otherwise the stack's applies."""
    recompute: Recompute
    recomputed_layers: int
    """Number of blocks of a rank that are recomputed; 0: all."""
    recomputed_modules: tuple[str, ...]
    """Parts of each block that are recomputed individually (``recompute_modules`` of Megatron): some of `words.MODULES`."""
    saved_layers: tuple[str, ...]
    """Layers whose outputs are saved though their block is recomputed: suffixes of the simulator's names."""
    score_passes: float
    """Memory passes of attention scores in a step beside their products; 0: attention is one kernel."""
    lora: bool
    lora_targets: tuple[str, ...]
    """Linear layers with adapters; empty: all of a block."""
    document_tokens: int
    """Tokens of the document of a token chosen at random, if documents are packed into sequences; 0: a sequence is one document."""
    family: str
    is_known_software: bool
    """Whether the row or its source names software that `family` describes; else, another's behavior is assumed."""
    stack: str
    is_tuned: bool
    """Whether the source uses everything that hides overhead: user buffers, CUDA graphs."""
    tensor_overlap: bool
    expert_overlap: bool
    one_copy: bool
    """Whether dispatch sends a token once to each node that has experts for it (DeepEP, HybridEP), not once to each expert."""
    fused: Mapping[str, bool]
    """Options of the mesh in which its software differs from its stack: what runs in fused kernels, such as ``fused_latents``."""
    drops_tokens: bool
    """Whether each expert takes as many copies as its capacity, padded, and further ones are dropped."""
    uses_cuda_graphs: bool
    launch_blocking: bool
    """Whether the host waits for each kernel before it launches the next one (CUDA_LAUNCH_BLOCKING=1)."""
    is_compiled: bool
    checks_collectives: bool
    """Whether torch compares every collective between its ranks first (TORCH_DISTRIBUTED_DEBUG=DETAIL)."""
    memory_unit: float
    """Bytes in the unit of the table's peak memory."""
    optimizer_states: str
    """Type of the optimizer's states if the source's scripts set it, else empty."""
    activation_kept: float
    """Share of a gated activation's input that backward keeps, relative to the share of its stack."""
    logit_bytes: float
    """Bytes of a logit at the memory peak of the loss, if the stack's file has another loss; 0: the stack's."""
    memory_reading: str
    """Reading of memory in the table: ``allocated`` or ``reserved`` of torch's allocator, or ``nvidia-smi``."""
    memory_rank: str
    """Rank whose memory the table shows: ``fullest``, or ``first`` for the first stage."""
    scored_within: RunLimits
    fitted_within: RunLimits
    assumptions: tuple[str, ...]

    @property
    def measured(self) -> float | None:
        """Return the measured seconds of a step: `LlmRow.step_time`, or else what tokens per second and the batch of this case say."""
        rate = self.row.number.get("tokens_per_s_per_gpu", 0.0)
        return self.row.step_time or (self.global_batch * self.seq / (rate * self.gpus) if rate > 0 else None)

    @property
    def measured_memory(self) -> float | None:
        """Return the measured peak of memory in bytes, if the table has it."""
        peak = self.row.number.get("memory_peak_GiB_reported", 0.0)
        return peak * self.memory_unit if peak > 0 else None

    @property
    def global_batch(self) -> float:
        """Return the number of sequences per step."""
        return float(self.micro_batch * self.micro_batches * self.data)

    @property
    def shard_ranks(self) -> int:
        """Return the number of ranks over which a sharded model, or its optimizer's states, are divided."""
        return self.data * self.context // self.replicas

    @property
    def collective_latency(self) -> float | None:
        """Return the measured latency of the collectives of gradients: a sharded optimizer scatters and gathers, others all-reduce."""
        return self.ring_latency.get("gather" if self.zero else "reduce")

    @cached_property
    def gpu(self) -> Gpu:
        """Return the catalog's part of this run's GPU."""
        return part_of(self.chip)

    @property
    def host_factor(self) -> float:
        """Return by how much longer the host's work takes than on the servers for which host times hold (`Cpu.host_factor`)."""
        return host_factor_of(self.chip)

    @cached_property
    def stack_file(self) -> Stack:
        """Return the stack of this run."""
        return load_part(Stack, self.stack)

    @cached_property
    def torch_ring(self) -> Ring | None:
        """Return how torch's ring runs; None without context ranks, or if Transformer Engine exchanges keys and values."""
        mesh = self.stack_file.mesh
        if self.context == 1 or mesh is None or mesh.context_ring != "torch":
            return None
        return torch_ring(mesh, self.context_exchange, any(self.stack_file.kernels.compilation), self.recompute == "operators")

    @property
    def flash(self) -> bool:
        """Return whether attention is one kernel."""
        return not self.score_passes

    @property
    def mesh_options(self) -> MeshOptions | None:
        """Return the options of its stack with those of its software."""
        mesh = self.stack_file.mesh
        return mesh and mesh.model_copy(update={"one_copy": self.one_copy, **self.fused})

    @property
    def runs_by_operator(self) -> bool:
        """Return whether the host launches operators one by one, as neither a compiler nor a script joins them."""
        return (self.family in EAGER_FAMILIES and not self.is_compiled) or self.stack_file.kernels.composed_norms

    @property
    def gradient_width(self) -> float:
        """Return the bytes of a gradient as the stack reduces it."""
        mesh = self.stack_file.mesh
        return 4.0 if mesh is None or mesh.reduction == "fp32" else 2.0

    @property
    def recipe(self) -> Fp8Recipe | None:
        """Return the FP8 recipe of the row or the scripts, or else of the stack; None for other precisions."""
        return (self.stated_recipe or recipe_of("fp8", self.stack_file.kernels, self.gpu)) if self.precision == "fp8" else None

    @property
    def axes(self) -> str:
        """Return the axes that split the model, such as ``tensor+pipeline``; ``data`` if none does."""
        names = ("tensor", "pipeline", "context", "expert")
        return "+".join(name for name in names if getattr(self, name) > 1) or "data"

    def is_within(self, limits: RunLimits) -> bool:
        """Return whether the run stays within *limits*; a pipeline of one stage may have any number of nodes."""
        return limits.include(self.tensor, self.measured_memory or 0.0, self.node_span if self.pipeline > 1 else 1)

    @property
    def node_span(self) -> int:
        """Return the number of nodes of the run, with eight GPUs each (or fewer, if a node has fewer)."""
        return math.ceil(self.gpus / min(self.domain, 8))
