"""Which gradients are exchanged together, when, and in which form? The gradient exchange of a software stack."""

from collections.abc import Iterator
from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from sim.spec import extensions
from sim.spec.fields import Bytes, Count, Factor, Fraction, Latency, Seconds, Source, Spec, Whole
from sim.spec.servers import Servers
from sim.spec.stack.contradictions import Contradiction, refuse

Strategy = Literal["ddp", "apex", "apex_per_tensor", "flat", "horovod", "parameter_server", "parameter_server_async"]


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


class Exchange(Spec):
    """How gradients are exchanged between ranks."""

    strategy: Strategy
    """ddp: buckets in the order in which gradients become ready, overlapped with backward. apex: the same, with buckets counted in
    elements. apex_per_tensor: one all-reduce per gradient tensor, overlapped. flat: one all-reduce of all gradients after backward.
    horovod: in each cycle, the gradients that are ready. parameter_server: workers push gradients to servers and pull the new weights,
    synchronously; parameter_server_async: the same, each worker independently."""
    own_exchange: Annotated[str, BeforeValidator(extensions.checked_name(extensions.EXCHANGES))] | None = None
    """Name of a user-defined exchange, which forms the buckets instead of ``strategy``; None: ``strategy`` does."""
    bucket_cap: Bytes = 25 * 2.0**20
    """Size at which DDP closes a bucket (``bucket_cap_mb``)."""
    first_bucket_cap: Bytes = 2.0**20
    """Size at which DDP closes the first bucket that becomes ready."""
    message_size: Count = 10_000_000
    """Number of elements at which apex closes a bucket."""
    fusion: Fusion | None = None
    """Tensor fusion; required with horovod, not allowed otherwise."""
    servers: Servers | None = None
    """Parameter servers; required with the parameter-server strategies, not allowed otherwise."""
    overlap: bool = True
    """Whether the gradient exchange overlaps with backward."""
    no_sync: bool = True
    """Whether only the last micro-batch of a step exchanges gradients; false: each micro-batch exchanges and waits."""
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
    gradient_copy_passes: float = Field(ge=0)
    """Memory passes per gradient byte to copy gradients into and out of communication buffers."""
    distributed_overhead: Seconds = 0.0
    """Additional time per step of a distributed job, almost independent of the number of ranks."""
    overlap_slowdown: Factor = 1.0
    """Factor by which compute takes longer while a collective runs concurrently."""

    @model_validator(mode="after")
    def _exchange_agrees(self) -> Self:
        refuse(self._exchange_contradictions())
        return self

    def _exchange_contradictions(self) -> Iterator[Contradiction]:
        horovod = self.strategy == "horovod"
        yield horovod and not self.fusion, "strategy horovod needs a fusion block (threshold, cycle_time); add it, or extend horovod-0.21"
        yield (
            self.fusion is not None and not horovod,
            f"fusion is a Horovod option, but strategy is {self.strategy}; leave it out, or write strategy: horovod",
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
            f"own_exchange {self.own_exchange} forms buckets of all-reduces, but strategy is {self.strategy}; leave it out",
        )
        yield (
            bool(self.uses_servers and (self.sync_batch_norm or self.compression or self.sparse_embeddings)),
            "sync_batch_norm, compression and sparse_embeddings need collectives between ranks; leave them out, or use a strategy "
            "without parameter servers",
        )

    @property
    def uses_servers(self) -> bool:
        """Whether gradients are exchanged through parameter servers."""
        return self.strategy.startswith("parameter_server")

    @property
    def server_hosts(self) -> int:
        """Number of hosts of role ``server`` that its parameter servers run on; those on the hosts of workers need none."""
        return self.servers.count if self.servers is not None and self.servers.placement == "group" else 0

    @property
    def asynchronous(self) -> bool:
        """Whether workers do not wait for each other."""
        return self.strategy == "parameter_server_async"
