"""What does the software stack do around the model? One file per stack (``workloads/stacks``), each factor with its source."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from sim.spec.fields import Bytes, Count, Factor, Seconds, Source, Spec, Whole

Strategy = Literal["ddp", "apex_per_tensor", "flat"]


class Stack(Spec):
    """How gradients are exchanged, kernels launched and the optimizer run."""

    name: str
    strategy: Strategy
    """ddp: buckets in gradient-ready order, overlapped with backward. apex_per_tensor: one all-reduce per gradient tensor,
    overlapped. flat: one all-reduce of everything after backward."""
    bucket_cap: Bytes = 25 * 2.0**20
    first_bucket_cap: Bytes = 2.0**20
    overlap: bool = True
    blocking_scalar_all_reduces: Whole = 0
    """One-element all-reduces between forward and backward, each followed by a host synchronisation."""
    broadcast_buffers: bool = False
    """Rank 0's BatchNorm statistics are broadcast before each forward."""
    gradient_copy_passes: float = Field(ge=0)
    """Memory passes per gradient byte to move gradients into and out of communication buffers."""
    optimizer: Literal["per_tensor", "foreach", "fused"]
    launch_cpu: Seconds
    """Host time to launch one kernel."""
    kernels_per_operator: Factor = 1.0
    """Kernels launched per operator of the layer table, relative to the table's own count."""
    compute_factor: Factor = 1.0
    """GPU time of this stack relative to the layer model."""
    distributed_overhead: Seconds = 0.0
    """Cost per step that going distributed adds, almost independent of the number of ranks."""
    overlap_slowdown: Factor = 1.0
    """Compute takes this many times longer while a collective runs beside it."""
    fp32_convolution: Literal["fp32", "tf32"] = "tf32"
    fp32_matmul: Literal["fp32", "tf32"] = "fp32"
    """What 'fp32' means on GPUs with TF32 tensor cores, by torch version."""
    nccl: str = "2.10"
    """Version whose rules choose algorithm and protocol; recorded, but no run asks them yet."""
    channels: Count | None = None
    source: Source
