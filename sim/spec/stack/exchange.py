"""Which gradients are exchanged together, when, and in which form? The gradient exchange of a software stack.

There is one class for each strategy, with the fields that apply to it; `Exchange` is one of them, told apart by ``strategy``.
"""

from typing import Annotated, ClassVar, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from sim.spec import extensions
from sim.spec.fields import Bytes, Count, Factor, Fraction, Latency, Seconds, Source, Spec, Whole
from sim.spec.sections import Section
from sim.spec.servers import Servers

TORCH_BUCKET_CAP = 25 * 2.0**20
"""``bucket_cap_mb`` of torch's DistributedDataParallel if it is not set."""


class Fusion(Spec):
    """Horovod's tensor fusion, and the work of its background thread in each cycle."""

    threshold: Bytes
    """HOROVOD_FUSION_THRESHOLD: maximum size of tensors that are fused into one operation."""
    cycle_time: Seconds
    """HOROVOD_CYCLE_TIME: interval at which the background thread wakes."""
    response_cache: Whole = 1024
    """HOROVOD_CACHE_CAPACITY: number of tensors on which ranks agree with one bit each; 0: the cache is off."""
    control_latency: Latency
    """Time of one small message between the controllers of two hosts."""
    request_time: Latency
    """Time that the first rank needs to read one rank's request for one tensor that is not in the response cache."""
    source: Source


class Compression(Spec):
    """Compressed gradients: only the largest elements (top_k), or low-rank factors of each matrix (power_sgd)."""

    method: Literal["top_k", "power_sgd"]
    """top_k: indices and values of the largest elements are sent. power_sgd: two low-rank factors are all-reduced sequentially."""
    density: Fraction | None = None
    """Fraction of the elements that top_k sends; required with top_k."""
    rank: Count | None = None
    """Number of columns of each power_sgd factor; required with power_sgd."""
    source: Source

    @model_validator(mode="after")
    def _belongs(self) -> Self:
        wanted, other = ("density", "rank") if self.method == "top_k" else ("rank", "density")
        if not getattr(self, wanted):
            raise ValueError(f"method {self.method} needs {wanted}; add it, for example {wanted}: {0.01 if wanted == 'density' else 4}")
        if getattr(self, other) is not None:
            raise ValueError(f"{other} does not apply to method {self.method}; leave it out")
        return self


class _AnyExchange(Section):
    """What applies to every strategy."""

    overlap: bool = True
    """Whether the gradient exchange overlaps with backward."""
    no_sync: bool = True
    """Whether only the last micro-batch of a step exchanges gradients; false: each micro-batch exchanges and waits."""
    gradient_copy_passes: float = Field(ge=0)
    """Memory passes per gradient byte to copy gradients into and out of communication buffers."""
    distributed_overhead: Seconds = 0.0
    """Additional time per step of a distributed job, almost independent of the number of ranks."""
    overlap_slowdown: Factor = 1.0
    """Factor by which compute takes longer while a collective runs concurrently."""


class _ByAllReduces(_AnyExchange):
    """An exchange by all-reduces between the ranks."""

    own_exchange: Annotated[str, BeforeValidator(extensions.checked_name(extensions.EXCHANGES))] | None = None
    """Name of a user-defined exchange, which forms the buckets instead of ``strategy``; None: ``strategy`` does."""
    blocking_scalar_all_reduces: Whole = 0
    """Number of one-element all-reduces between forward and backward, each followed by a host synchronization."""
    broadcast_buffers: bool = False
    """Whether rank 0's BatchNorm statistics are broadcast before the first forward of each step."""
    sync_batch_norm: bool = False
    """Whether every BatchNorm layer gathers its statistics from all ranks in forward and sums two more in backward, while ranks wait."""
    sparse_embeddings: bool = False
    """Whether gradients of embeddings are exchanged as the rows that were used and their indices, gathered from all ranks; false: as whole
    tables."""
    wire_dtype: Literal["fp16", "bf16", "autocast"] | None = None
    """Data type to which gradients are cast for the exchange. autocast: 16 bits under amp_fp16 and amp_bf16, else none. None: no cast."""
    compression: Compression | None = None
    """Compression of the exchanged gradients; None: whole gradients."""


class Ddp(_ByAllReduces):
    """Buckets in the order in which gradients become ready, overlapped with backward."""

    strategy: Literal["ddp"]
    bucket_cap: Bytes = TORCH_BUCKET_CAP
    """Size at which DDP closes a bucket (``bucket_cap_mb``)."""
    first_bucket_cap: Bytes = 2.0**20
    """Size at which DDP closes the first bucket that becomes ready."""


class Apex(_ByAllReduces):
    """The same, with buckets counted in elements."""

    strategy: Literal["apex"]
    message_size: Count = 10_000_000
    """Number of elements at which apex closes a bucket."""


class ApexPerTensor(_ByAllReduces):
    """One all-reduce per gradient tensor, overlapped."""

    strategy: Literal["apex_per_tensor"]


class Flat(_ByAllReduces):
    """One all-reduce of all gradients after backward."""

    strategy: Literal["flat"]


class Horovod(_ByAllReduces):
    """In each cycle, the gradients that are ready."""

    strategy: Literal["horovod"]
    fusion: Fusion
    """Tensor fusion."""


class _ThroughServers(_AnyExchange):
    """An exchange through parameter servers, without collectives between the ranks."""

    servers: Servers
    """Parameter servers."""
    own_exchange: ClassVar[None] = None
    blocking_scalar_all_reduces: ClassVar[int] = 0
    broadcast_buffers: ClassVar[bool] = False
    sync_batch_norm: ClassVar[bool] = False
    sparse_embeddings: ClassVar[bool] = False
    wire_dtype: ClassVar[None] = None
    compression: ClassVar[None] = None

    @property
    def server_hosts(self) -> int:
        """Number of hosts of role ``server`` that the servers run on; those on the hosts of workers need none."""
        return self.servers.count if self.servers.placement == "group" else 0


class ParameterServer(_ThroughServers):
    """Workers push gradients to servers and pull the new weights, synchronously."""

    strategy: Literal["parameter_server"]
    bucket_cap: Bytes = TORCH_BUCKET_CAP
    """Size at which a bucket is closed and pushed, if the exchange overlaps with backward."""
    first_bucket_cap: Bytes = 2.0**20
    """The same for the first bucket that becomes ready."""


def _after_backward(overlap: object) -> object:
    if overlap is True:
        raise ValueError("asynchronous workers push only after backward; write false, or strategy: parameter_server")
    return overlap


class AsyncParameterServer(_ThroughServers):
    """The same, each worker independently."""

    strategy: Literal["parameter_server_async"]
    overlap: Annotated[Literal[False], BeforeValidator(_after_backward)] = False
    """Whether the gradient exchange overlaps with backward: workers push only after it."""


ServerExchange = ParameterServer | AsyncParameterServer
"""Exchanges through parameter servers."""
Exchange = Ddp | Apex | ApexPerTensor | Flat | Horovod | ServerExchange
"""How gradients are exchanged between ranks."""
