"""What did a profile show of a model's layers, and on which GPU? Times in place of computed ones, written by ``import-trace``."""

from __future__ import annotations

from pydantic import Field

from sim.spec.fields import Count, Precision, Seconds, Source, Spec
from sim.spec.hardware import Gpu


class MeasuredTimes(Spec):
    """GPU time of one layer for one batch, and what its kernels cost the host."""

    forward: Seconds = 0.0
    """GPU time of forward."""
    backward: Seconds = 0.0
    """Without ``upkeep``."""
    upkeep: Seconds = 0.0
    """Of backward, what no batch size changes: gradients that are kept, scaled and copied into buckets."""
    forward_launches: float = Field(default=0.0, ge=0)
    """Host time of the forward kernels, in launches of the stack (``launch_cpu``)."""
    backward_launches: float = Field(default=0.0, ge=0)
    """The same of backward."""


class MeasuredOn(Spec):
    """Where, and with what batch, the times of a model's layers were measured."""

    gpu: Gpu
    """On which the times were measured."""
    batch: Count
    """Samples per GPU and pass."""
    precision: Precision
    """In which they were measured."""
    tensor: Count = 1
    """Tensor ranks that divided the layers where they were measured."""
    source: Source
