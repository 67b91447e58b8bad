"""How much of a GPU does a collective leave for compute? Multiprocessors without its thread blocks, and the remaining memory bandwidth.

NCCL runs one thread block per channel, which occupies a multiprocessor until it ends (NVIDIA/nccl src/enqueue.cc; docs: NCCL_MAX_CTAS).
Products run in waves over the others. The blocks also move bytes through memory: a copy reads and writes each byte once, a reduction
reads two and writes one (src/device/prims_simple.h). A rank passes on (n-1)/n of an operation's bytes; for each of these, its memory moves

    all-gather, all-to-all 2    reduce-scatter 3    all-reduce 5    send 1, receive 1

Limits: running blocks of a product do not move; a GPU without a kernel model loses no multiprocessors; the higher clock of fewer active
multiprocessors on a board at its power limit is not modeled.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from sim.spec.hardware import Gpu

PASSES: Final[Mapping[str, float]] = {"all_gather": 2.0, "all_to_all": 2.0, "reduce_scatter": 3.0, "all_reduce": 5.0}
"""Bytes through a rank's memory for each byte that it passes on."""
LEAST: Final = 0.1
"""Minimum share of each that is left: concurrent compute is slowed, not stopped."""


def traffic_of(op: str, ranks: int, nbytes: float) -> float:
    """Return the bytes that *op* on *nbytes* among *ranks* moves through the memory of each."""
    return PASSES.get(op, 2.0) * (ranks - 1) / ranks * nbytes


def remaining_gpu(gpu: Gpu, blocks: int, rate: float) -> Gpu:
    """Return the part of *gpu* that remains when *blocks* thread blocks move *rate* bytes/s."""
    bandwidth = max(LEAST * gpu.memory_bandwidth, gpu.memory_bandwidth - rate)
    kernels, peak = gpu.kernels, gpu.peak
    if kernels is not None:
        count = max(round(LEAST * kernels.sm_count), kernels.sm_count - blocks, 1)
        share = count / kernels.sm_count  # each multiprocessor computes as fast as before
        kernels = kernels.model_copy(update={"sm_count": count, "exponentials": share * kernels.exponentials})
        peak = {name: share * rate for name, rate in peak.items()}
    return gpu.model_copy(update={"memory_bandwidth": bandwidth, "kernels": kernels, "peak": peak})
