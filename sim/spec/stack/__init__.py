"""What does the software stack do around the model? One file per stack (``workloads/stacks``), each number with its source.

All fields of a stack are at the top level of its file; here they are defined in parts: `exchange`, `library`, `kernels`.
"""

from collections.abc import Iterator
from typing import Self

from pydantic import model_validator

from sim.spec.fields import Fraction, Label, Source
from sim.spec.parallel import MeshOptions, Shard
from sim.spec.stack.contradictions import Contradiction, refuse
from sim.spec.stack.exchange import Compression, Exchange, Fusion, Strategy
from sim.spec.stack.kernels import StackKernels, UpdateWork
from sim.spec.stack.library import Library

__all__ = [
    "Compression", "Exchange", "Fusion", "Library", "Stack", "StackKernels", "Strategy", "UpdateWork",
]  # fmt: skip


class Stack(StackKernels, UpdateWork, Library, Exchange):
    """A software stack: how it exchanges gradients, launches kernels and runs the optimizer."""

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
        return not self.no_sync or shard == "gradients" or (shard == "parameters" and reduces)

    @property
    def host_waits_for_gradients(self) -> bool:
        """Whether the host, rather than a GPU stream, waits for reduced gradients, as it does with Gloo's work and Horovod's handles.

        Horovod marks a handle as done after its thread has seen the operation end on the GPU (``gpu_operations.cc``, ``FinalizeGPUQueue``).
        torch waits for the handle (``mpi_ops.synchronize``); TensorFlow and MXNet launch the operations that depend on it only then.
        """
        return self.backend == "gloo" or self.strategy == "horovod"

    def _contradictions(self) -> Iterator[Contradiction]:
        gloo = self.backend == "gloo"
        yield (
            self.cuda_graphs and (self.strategy == "horovod" or gloo or self.uses_servers or self.blocking_scalar_all_reduces > 0),
            "cuda_graphs cannot capture work on the host: horovod, gloo, parameter servers and blocking_scalar_all_reduces; leave them "
            "out, or write cuda_graphs: false",
        )
        yield (
            self.uses_servers and gloo,
            "backend gloo is for all-reduces between ranks; leave it out, or use a strategy without parameter servers",
        )
