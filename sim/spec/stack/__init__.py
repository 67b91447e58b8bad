"""What does the software stack do around the model? One file per stack (``workloads/stacks``), each factor with its source.

A stack's fields stand side by side in its file; here they are in parts: `exchange`, `library`, `kernels`.
"""

from __future__ import annotations

from collections.abc import Iterator

from pydantic import model_validator

from sim.spec.fields import Fraction, Source
from sim.spec.parallel import MeshOptions, Shard
from sim.spec.stack.contradictions import Contradiction, refuse
from sim.spec.stack.exchange import Compression, Exchange, Fusion, Strategy
from sim.spec.stack.kernels import StackKernels, UpdateWork
from sim.spec.stack.library import NCCL_ALGORITHMS, OTHER_ALGORITHMS, Library, other_algorithm

__all__ = [
    "NCCL_ALGORITHMS", "OTHER_ALGORITHMS", "Compression", "Exchange", "Fusion", "Kernels", "Library", "Stack", "Strategy", "Update",
    "other_algorithm",
]  # fmt: skip


class Stack(StackKernels, UpdateWork, Library, Exchange):
    """How gradients are exchanged, kernels launched and the optimizer run."""

    name: str
    unpadded: bool = False
    """Only tokens are computed: sequences are not filled up to the longest; how long they are is in the data set's ``lengths``."""
    length_imbalance: Fraction = 1.0
    """Of unpadded sequences: ranks' spread of tokens over what chance makes it; 0 where they exchange sequences before a step."""
    mesh: MeshOptions | None = None
    """How the stack runs layouts other than plain data parallelism; None: not at all."""
    source: Source

    @model_validator(mode="after")
    def _parts_agree(self) -> Stack:
        refuse(self._contradictions())
        return self

    def synchronizes_each(self, shard: Shard) -> bool:
        """Return whether a layout's gradients do not wait for the last micro-batch: no ``no_sync``, or shards that it does not go with."""
        reduces = self.mesh is not None and self.mesh.reduces_shards_each
        return not self.no_sync or shard == "gradients" or (shard == "parameters" and reduces)

    @property
    def host_waits_for_gradients(self) -> bool:
        """Whether the host itself waits until gradients are there, as Gloo's work and Horovod's handles make it, and not the GPU's stream.

        Horovod calls a handle done once its thread has seen the end on the GPU (``gpu_operations.cc``, ``FinalizeGPUQueue``); torch waits
        for it (``mpi_ops.synchronize``), TensorFlow and MXNet launch what comes after it then.
        """
        return self.backend == "gloo" or self.strategy == "horovod"

    def _contradictions(self) -> Iterator[Contradiction]:
        gloo = self.backend == "gloo"
        yield (
            self.cuda_graphs and (self.strategy == "horovod" or gloo or self.uses_servers or self.blocking_scalar_all_reduces > 0),
            "cuda_graphs cannot capture work of the host: horovod, gloo, parameter servers and blocking_scalar_all_reduces; "
            "leave them out, or write cuda_graphs: false",
        )
        yield (
            self.uses_servers and gloo,
            "backend gloo is for ranks that meet each other; leave it out, or write another strategy than parameter servers",
        )
