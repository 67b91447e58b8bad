"""How long did a model's layers take in a profile, and on which GPU? Measured times that replace computed ones (``import-trace``)."""

from pydantic import Field

from sim.spec.fields import Count, Precision, Seconds, Source, Spec
from sim.spec.hardware import Gpu


class MeasuredTimes(Spec):
    """Measured GPU time of one layer for one batch, and the host time of its kernels."""

    forward: Seconds = 0.0
    """GPU time of forward."""
    backward: Seconds = 0.0
    """GPU time of backward, without ``upkeep``."""
    upkeep: Seconds = 0.0
    """GPU time in backward that does not depend on the batch size: storing, scaling and copying gradients into buckets."""
    forward_launches: float = Field(default=0.0, ge=0)
    """Host time of the forward kernels, in multiples of the stack's ``launch_cpu``."""
    backward_launches: float = Field(default=0.0, ge=0)
    """Host time of the backward kernels, in multiples of the stack's ``launch_cpu``."""


class MeasuredOn(Spec):
    """The GPU and the settings with which the times of a model's layers were measured."""

    gpu: Gpu
    """GPU of the measurement."""
    batch: Count
    """Samples per GPU and pass in the measurement."""
    precision: Precision
    """Precision of the measurement."""
    tensor: Count = 1
    """Number of tensor-parallel ranks in the measurement."""
    source: Source
