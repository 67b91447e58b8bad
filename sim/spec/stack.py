"""What does the software stack do around the model? One file per stack (``workloads/stacks``), each factor with its source.

*strategy* says which gradients travel when, *backend* how they move, *wire_dtype* and *compression* what they weigh.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, model_validator

from sim.spec import extensions
from sim.spec.fields import Bytes, Count, Factor, Fraction, Seconds, Source, Spec, Whole
from sim.spec.hardware import Transport
from sim.spec.parallel import MeshOptions
from sim.spec.servers import Servers

Strategy = Literal["ddp", "apex", "apex_per_tensor", "flat", "horovod", "parameter_server", "parameter_server_async"]

OTHER_ALGORITHMS = ("Hierarchical", "RackHierarchical", "HalvingDoubling")
"""All-reduces that NCCL does not have (Horovod's, Gloo's and MPI's); each is asked for alone in ``nccl_algo``."""

NCCL_ALGORITHMS = ("ring", "tree", "collnet", "collnetdirect", "collnetchain", "nvls", "nvlstree", "pat")
"""Names that are NCCL's own, in small letters."""


def other_algorithm(asked: str | None) -> str | None:
    """Return the algorithm that NCCL does not have which *asked* names, if it does: of another library, or the user's own."""
    name = (asked or "").replace("_", "").lower()
    found = next((known for known in OTHER_ALGORITHMS if known.lower() == name), None)
    if found is None and asked and name not in NCCL_ALGORITHMS and asked in extensions.names(extensions.COLLECTIVES):
        return asked
    return found


class Fusion(Spec):
    """Horovod's tensor fusion and what its background thread does each cycle."""

    threshold: Bytes
    """HOROVOD_FUSION_THRESHOLD: tensors travel together up to so many bytes."""
    cycle_time: Seconds
    """HOROVOD_CYCLE_TIME: how often the background thread wakes."""
    response_cache: Whole = 1024
    """HOROVOD_CACHE_CAPACITY: how many tensors ranks agree on by one bit each; 0 is off."""
    control_latency: Seconds
    """Time of one small message between two hosts' controllers."""
    request_time: Seconds
    """Time that the first rank takes to read one rank's request for one tensor, where the response cache does not know it."""
    source: Source


class Compression(Spec):
    """What travels in place of whole gradients: the largest elements (top_k), or low-rank factors of each matrix (power_sgd)."""

    method: Literal["top_k", "power_sgd"]
    density: Fraction | None = None
    """Share of the elements that top_k sends."""
    rank: Count | None = None
    """Columns of each factor of power_sgd."""
    source: Source

    @model_validator(mode="after")
    def _belongs(self) -> Compression:
        wanted, other = ("density", "rank") if self.method == "top_k" else ("rank", "density")
        if not getattr(self, wanted):
            raise ValueError(f"method {self.method} needs a {wanted}; write it, for example {wanted}: {0.01 if wanted == 'density' else 4}")
        if getattr(self, other) is not None:
            raise ValueError(f"{other} belongs to the other method, not to {self.method}; leave it out")
        return self


class Stack(Spec):
    """How gradients are exchanged, kernels launched and the optimizer run."""

    name: str
    strategy: Strategy
    """ddp: buckets in gradient-ready order, overlapped with backward. apex: the same, counted in elements. apex_per_tensor: one
    all-reduce per gradient tensor, overlapped. flat: one all-reduce of everything after backward. horovod: what is ready each cycle.
    parameter_server: workers push gradients to servers and pull the new weights, all in step; parameter_server_async: each by itself."""
    own_exchange: Annotated[str, BeforeValidator(extensions.checked_name(extensions.EXCHANGES))] | None = None
    """The name of an exchange of your own, which forms the buckets in the place of ``strategy``."""
    bucket_cap: Bytes = 25 * 2.0**20
    first_bucket_cap: Bytes = 2.0**20
    message_size: Count = 10_000_000
    """Elements at which apex closes a bucket."""
    fusion: Fusion | None = None
    """Of Horovod, and only of it."""
    servers: Servers | None = None
    """Of the parameter-server strategies, and only of them."""
    overlap: bool = True
    no_sync: bool = True
    """Micro-batches before the last of a step exchange nothing; else each exchanges and waits."""
    blocking_scalar_all_reduces: Whole = 0
    """One-element all-reduces between forward and backward, each followed by a host synchronisation."""
    broadcast_buffers: bool = False
    """Rank 0's BatchNorm statistics are broadcast before each step's first forward."""
    sync_batch_norm: bool = False
    """Every BatchNorm layer gathers its statistics from all ranks in forward, and sums two more in backward, while ranks wait."""
    sparse_embeddings: bool = False
    """Embeddings' gradients travel as the rows touched and their numbers, gathered from all ranks, not as whole tables."""
    gradient_clipping: bool = False
    """Gradients are scaled by their global norm: a pass to read them, and one to write them, after all have come."""
    backend: Literal["nccl", "gloo"] = "nccl"
    """gloo: through host memory and sockets; its ``gloo_transport`` says what one socket carries."""
    gloo_transport: Transport | None = None
    wire_dtype: Literal["fp16", "bf16", "autocast"] | None = None
    """Gradients are cast to this for the exchange, and back; autocast: to 16 bits under amp_fp16 and amp_bf16, else not at all."""
    compression: Compression | None = None
    gradient_copy_passes: float = Field(ge=0)
    """Memory passes per gradient byte to move gradients into and out of communication buffers."""
    optimizer: Literal["per_tensor", "foreach", "fused"]
    optimizer_factor: Factor = 1.0
    """Kernels of the optimizer step over those of torch's own rule, where the stack adds clipping, norms or statistics per tensor."""
    accumulates_gradients: bool = False
    """Gradients are zeroed before each step and added to, two kernels and four passes for each tensor; else the first one is taken as it is
    (torch.optim.Optimizer.zero_grad: set_to_none is its default since 2.0)."""
    frees_gradients: bool = False
    """Gradients' memory is free from the optimizer's step until backward makes them anew (torch 2's ``zero_grad`` drops them)."""
    gradient_hooks: float = Field(default=0.0, ge=0)
    """Kernels that hooks launch on each gradient tensor as it becomes ready, each a pass over it."""
    gradient_checks: float = Field(default=0.0, ge=0)
    """What the host does to each gradient tensor after backward, in launches; the GPU waits, for results are read back one by one."""
    launch_cpu: Seconds
    """Host time to launch one kernel."""
    cuda_graphs: bool = False
    """A whole step is captured once and replayed: its kernels cost the host one launch together."""
    kernels_per_operator: Factor = 1.0
    """Kernels per operator of the layer table, relative to the table's own count: what the host launches and the GPU starts."""
    compute_factor: Factor = 1.0
    """GPU time of this stack relative to the layer model."""
    tensor_core_factor: Factor = 1.0
    tensor_core_gemm_factor: Factor = 1.0
    """The same on tensor cores, on top of ``compute_factor``: convolutions and recurrent layers; matrix products and attention."""
    elementwise_traffic: Factor = 1.0
    """Bytes that element-wise operators, norms and softmax move, relative to the layer table's: below 1 where they are fused."""
    composed_traffic: Factor = 1.0
    """The same once more in models with attention, where the stack builds LayerNorm, GELU and dropout of many small kernels."""
    score_passes: float | None = Field(default=None, ge=0)
    """Memory passes over attention's scores in a step where one kernel holds both products, softmax and dropout; None: as many as the
    layer table has, in kernels of their own."""
    cast_traffic: Factor = 1.0
    """Bytes of casts to 8 bits over those of kernels of their own: below 1 where norms and activations write 8 bits themselves."""
    attention_kernel: Literal["", "flash2", "flash3", "flash4", "cudnn"] = ""
    """Which fused attention runs where layers say its shape; empty, or one that the GPU lacks: the first that its ``kernels`` list."""
    unpadded: bool = False
    """Only tokens are computed: sequences are not filled up to the longest; how long they are is in the data set's ``lengths``."""
    length_imbalance: Fraction = 1.0
    """Of unpadded sequences: ranks' spread of tokens over what chance makes it; 0 where they exchange sequences before a step."""
    channels_last: bool = False
    """Images are stored channels last, as tensor cores want them; else cuDNN transposes around each convolution."""
    transposed_norms: bool = False
    """In 16 bits images are channels last, but norms work channels first, and transpose what they read and write."""
    persistent_norms: bool = False
    """In 16 bits backward of BatchNorm has kernels that do not end while a collective runs beside them: cuDNN's persistent ones, for
    channels last, whose blocks wait for each other, and for those that the collective keeps off the GPU."""
    unaligned_products: bool = True
    """Tensor cores take matrix products of any shape (cuBLAS 11 and later, or software that pads); else multiples of 8 only."""
    distributed_overhead: Seconds = 0.0
    """Cost per step that going distributed adds, almost independent of the number of ranks."""
    overlap_slowdown: Factor = 1.0
    """Compute takes this many times longer while a collective runs beside it."""
    fp32_convolution: Literal["fp32", "tf32"] = "tf32"
    fp32_matmul: Literal["fp32", "tf32"] = "fp32"
    """What 'fp32' means on GPUs with TF32 tensor cores, by torch version."""
    cudnn: str = Field(default="8.0", pattern=r"^\d+(\.\d+)*$")
    """Version that decides which kernels convolutions have: before 5.1 no Winograd on GPUs older than Maxwell."""
    nccl: str = "2.10"
    """Version whose rules choose algorithm and protocol of each message: 2.3 (rings alone), 2.4 (trees below a size), 2.10 or 2.30."""
    nccl_algo: str | None = None
    """What NCCL_ALGO says, such as ``Ring`` or ``^Tree``; or one of ``OTHER_ALGORITHMS``, or an all-reduce of your own."""
    nccl_proto: str | None = None
    """What NCCL_PROTO says: ``LL``, ``LL128``, ``Simple``, a list of them, or ``^LL``."""
    channels: Count | None = None
    """What NCCL_MAX_NCHANNELS says."""
    mesh: MeshOptions | None = None
    """How the stack runs layouts other than plain data parallelism; None: not at all."""
    source: Source

    @model_validator(mode="after")
    def _agrees(self) -> Stack:
        for contradicts, sentence in self._contradictions():
            if contradicts:
                raise ValueError(sentence)
        return self

    def _contradictions(self) -> Iterator[tuple[bool, str]]:
        """Yield whether fields contradict each other in some way, and the sentence that says so."""
        horovod, gloo = self.strategy == "horovod", self.backend == "gloo"
        yield horovod and not self.fusion, "strategy horovod needs a fusion block (threshold, cycle_time); write it, or extend horovod-0.21"
        yield (
            self.fusion is not None and not horovod,
            f"fusion is Horovod's, but the strategy is {self.strategy}; leave it out, or write strategy: horovod",
        )
        yield gloo and not self.gloo_transport, "backend gloo needs a gloo_transport; write gloo_transport: tcp-single-flow"
        yield (
            self.gloo_transport is not None and not gloo,
            "gloo_transport is gloo's, but the backend is nccl; leave it out, or write backend: gloo",
        )
        forced = [name for name in ("nccl_algo", "nccl_proto", "channels") if getattr(self, name) is not None]
        yield gloo and bool(forced), f"{', '.join(forced)}: NCCL's, but the backend is gloo; leave it out, or write backend: nccl"
        other = other_algorithm(self.nccl_algo)
        yield (
            bool(other and self.nccl_proto),
            f"nccl_proto {self.nccl_proto}: NCCL's protocols carry NCCL's algorithms; {other} has none, so leave it out",
        )
        yield (
            self.uses_servers and not self.servers,
            f"strategy {self.strategy} needs a servers block; write servers: {{count: 1, source: ...}}",
        )
        yield (
            self.servers is not None and not self.uses_servers,
            f"servers are for parameter servers, not {self.strategy}; leave them out, or write strategy: parameter_server",
        )
        yield (
            self.uses_servers and self.own_exchange is not None,
            f"own_exchange {self.own_exchange}: forms the buckets of all-reduces, but the strategy is {self.strategy}; leave it out",
        )
        yield (
            self.cuda_graphs and (horovod or gloo or self.uses_servers or self.blocking_scalar_all_reduces > 0),
            "cuda_graphs cannot capture work of the host: horovod, gloo, parameter servers and blocking_scalar_all_reduces; "
            "leave them out, or write cuda_graphs: false",
        )
        whole = self.uses_servers and (gloo or self.sync_batch_norm or self.compression or self.sparse_embeddings)
        yield (
            bool(whole),
            "backend gloo, sync_batch_norm, compression and sparse_embeddings are for ranks that meet each other; "
            "leave them out, or write another strategy than parameter servers",
        )

    @property
    def uses_servers(self) -> bool:
        """Whether gradients travel through parameter servers."""
        return self.strategy.startswith("parameter_server")

    @property
    def asynchronous(self) -> bool:
        """Whether workers do not wait for each other."""
        return self.strategy == "parameter_server_async"
