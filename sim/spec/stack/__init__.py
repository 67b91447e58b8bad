"""What does the software stack do around the model? One file per stack (``workloads/stacks``), each number with its source.

All fields of a stack are at the top level of its file. In the code, those of the exchange are a section, ``stack.exchange``, with one class
for each strategy (`sim.spec.sections`); the others are defined in `library` and `kernels`.
"""

from collections.abc import Iterator
from typing import Annotated, Self

from pydantic import Field, model_validator

from sim.spec.fields import Fraction, Label, Source
from sim.spec.parallel import MeshOptions, Shard
from sim.spec.sections import Sectioned
from sim.spec.stack.contradictions import Contradiction, refuse
from sim.spec.stack.exchange import (
    Apex,
    ApexPerTensor,
    AsyncParameterServer,
    Compression,
    Ddp,
    Exchange,
    Flat,
    Fusion,
    Horovod,
    ParameterServer,
    ServerExchange,
)  # fmt: skip
from sim.spec.stack.kernels import StackKernels, UpdateWork
from sim.spec.stack.library import Library

__all__ = [
    "Apex", "ApexPerTensor", "AsyncParameterServer", "Compression", "Ddp", "Exchange", "Flat", "Fusion", "Horovod",
    "Library", "ParameterServer", "ServerExchange", "Stack", "StackKernels", "UpdateWork",
]  # fmt: skip


class Stack(Sectioned):
    """A software stack: how it exchanges gradients, launches kernels and runs the optimizer."""

    exchange: Annotated[Exchange, Field(discriminator="strategy")]
    library: Library
    kernels: StackKernels
    update: UpdateWork
    name: Label
    unpadded: bool = False
    """Whether sequences are not padded to the longest, so that only tokens are computed; the data set's ``lengths`` has their lengths."""
    length_imbalance: Fraction = 1.0
    """For unpadded sequences: variation of tokens between ranks, relative to random assignment; 0 if ranks exchange sequences before a step
    so that all have the same number of tokens."""
    mesh: MeshOptions | None = None
    """How the stack runs layouts; None: it runs only plain data parallelism."""
    source: Source

    @model_validator(mode="after")
    def _parts_agree(self) -> Self:
        refuse(self._contradictions())
        return self

    def synchronizes_each(self, shard: Shard) -> bool:
        """Return whether gradients are reduced in each micro-batch: without ``no_sync``, or if *shard* is incompatible with it."""
        reduces = self.mesh is not None and self.mesh.reduces_shards_each
        return not self.exchange.no_sync or shard == "gradients" or (shard == "parameters" and reduces)

    @property
    def server_hosts(self) -> int:
        """Number of hosts of role ``server`` that its parameter servers run on."""
        return self.exchange.server_hosts if isinstance(self.exchange, ServerExchange) else 0

    @property
    def host_waits_for_gradients(self) -> bool:
        """Whether the host, rather than a GPU stream, waits for reduced gradients, as it does with Gloo's work and Horovod's handles.

        Horovod marks a handle as done after its thread has seen the operation end on the GPU (``gpu_operations.cc``, ``FinalizeGPUQueue``).
        torch waits for the handle (``mpi_ops.synchronize``); TensorFlow and MXNet launch the operations that depend on it only then.
        """
        return self.library.backend == "gloo" or isinstance(self.exchange, Horovod)

    def _contradictions(self) -> Iterator[Contradiction]:
        gloo, servers = self.library.backend == "gloo", isinstance(self.exchange, ServerExchange)
        host = self.host_waits_for_gradients or servers or self.exchange.blocking_scalar_all_reduces > 0
        yield (
            self.kernels.cuda_graphs and host,
            "cuda_graphs cannot capture work on the host: horovod, gloo, parameter servers and blocking_scalar_all_reduces; leave them "
            "out, or write cuda_graphs: false",
        )
        yield (
            servers and gloo,
            "backend gloo is for all-reduces between ranks; leave it out, or use a strategy without parameter servers",
        )
