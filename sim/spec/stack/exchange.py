"""Which gradients travel together, when, and as what? The exchange of a software stack."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, model_validator

from sim.spec import extensions
from sim.spec.fields import Bytes, Count, Factor, Fraction, Seconds, Source, Spec, Whole
from sim.spec.servers import Servers
from sim.spec.stack.contradictions import Contradiction, refuse

Strategy = Literal["ddp", "apex", "apex_per_tensor", "flat", "horovod", "parameter_server", "parameter_server_async"]


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
    """top_k: indices and values of the largest elements. power_sgd: two low-rank factors, all-reduced one after the other."""
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


class Exchange(Spec):
    """How gradients are exchanged."""

    strategy: Strategy
    """ddp: buckets in gradient-ready order, overlapped with backward. apex: the same, counted in elements. apex_per_tensor: one
    all-reduce per gradient tensor, overlapped. flat: one all-reduce of everything after backward. horovod: what is ready each cycle.
    parameter_server: workers push gradients to servers and pull the new weights, all in step; parameter_server_async: each by itself."""
    own_exchange: Annotated[str, BeforeValidator(extensions.checked_name(extensions.EXCHANGES))] | None = None
    """The name of an exchange of your own, which forms the buckets in the place of ``strategy``."""
    bucket_cap: Bytes = 25 * 2.0**20
    """Bytes at which DDP closes a bucket (``bucket_cap_mb``)."""
    first_bucket_cap: Bytes = 2.0**20
    """The same of the bucket that is ready first."""
    message_size: Count = 10_000_000
    """Elements at which apex closes a bucket."""
    fusion: Fusion | None = None
    """Of Horovod, and only of it."""
    servers: Servers | None = None
    """Of the parameter-server strategies, and only of them."""
    overlap: bool = True
    """Whether gradients travel beside backward."""
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
    wire_dtype: Literal["fp16", "bf16", "autocast"] | None = None
    """Gradients are cast to this for the exchange, and back; autocast: to 16 bits under amp_fp16 and amp_bf16, else not at all."""
    compression: Compression | None = None
    """What travels in place of whole gradients."""
    gradient_copy_passes: float = Field(ge=0)
    """Memory passes per gradient byte to move gradients into and out of communication buffers."""
    distributed_overhead: Seconds = 0.0
    """Cost per step that going distributed adds, almost independent of the number of ranks."""
    overlap_slowdown: Factor = 1.0
    """Compute takes this many times longer while a collective runs beside it."""

    @model_validator(mode="after")
    def _exchange_agrees(self) -> Exchange:
        refuse(self._exchange_contradictions())
        return self

    def _exchange_contradictions(self) -> Iterator[Contradiction]:
        horovod = self.strategy == "horovod"
        yield horovod and not self.fusion, "strategy horovod needs a fusion block (threshold, cycle_time); write it, or extend horovod-0.21"
        yield (
            self.fusion is not None and not horovod,
            f"fusion is Horovod's, but the strategy is {self.strategy}; leave it out, or write strategy: horovod",
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
            bool(self.uses_servers and (self.sync_batch_norm or self.compression or self.sparse_embeddings)),
            "sync_batch_norm, compression and sparse_embeddings are for ranks that meet each other; "
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
