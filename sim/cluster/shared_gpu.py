"""What does a collective leave of the GPU that it runs on? Multiprocessors but for its thread blocks, memory bandwidth but for its bytes.

NCCL runs one thread block a channel, which keeps its multiprocessor from launch to end (NVIDIA/nccl src/enqueue.cc; docs: NCCL_MAX_CTAS):
products run in waves over the others. Its blocks move bytes through memory: a copy reads and writes each once, a reduction reads two
and writes one (src/device/prims_simple.h), so that of the share (n-1)/n of an operation's bytes that a rank passes on

    all-gather, all-to-all 2    reduce-scatter 3    all-reduce 5    send 1, receive 1

pass its memory.

Limits: blocks of a product are not moved once they run; a GPU without a kernel model has no multiprocessors to lose; a board at its power
limit would clock fewer multiprocessors higher.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from sim.spec.hardware import Gpu

PASSES: Final[Mapping[str, float]] = {"all_gather": 2.0, "all_to_all": 2.0, "reduce_scatter": 3.0, "all_reduce": 5.0}
"""Bytes through a rank's memory for each byte that it passes on."""
LEAST: Final = 0.1
"""Share of either that is left at least: what runs beside is slow, not stopped."""


def traffic_of(op: str, ranks: int, nbytes: float) -> float:
    """Return the bytes that *op* on *nbytes* among *ranks* moves through the memory of each."""
    return PASSES.get(op, 2.0) * (ranks - 1) / ranks * nbytes


def left_of(gpu: Gpu, blocks: int, rate: float) -> Gpu:
    """Return what *blocks* thread blocks that move *rate* bytes/s leave of *gpu*."""
    bandwidth = max(LEAST * gpu.memory_bandwidth, gpu.memory_bandwidth - rate)
    kernels, peak = gpu.kernels, gpu.peak
    if kernels is not None:
        count = max(round(LEAST * kernels.sm_count), kernels.sm_count - blocks, 1)
        share = count / kernels.sm_count  # each multiprocessor computes as fast as before
        kernels = kernels.model_copy(update={"sm_count": count, "exponentials": share * kernels.exponentials})
        peak = {name: share * rate for name, rate in peak.items()}
    return gpu.model_copy(update={"memory_bandwidth": bandwidth, "kernels": kernels, "peak": peak})
