"""How many chunks' activations does each stage of a pipeline hold at once, at least? By schedule (Narayanan et al. 2021)."""

from __future__ import annotations

import math
from functools import lru_cache


@lru_cache(maxsize=65536)
def in_flight(schedule: str, pipeline: int, chunks: int, micro_batches: int) -> tuple[float, ...]:
    """Return the minimum number of chunks whose activations each stage holds at once."""
    if schedule == "gpipe":
        return (float(micro_batches),) * pipeline
    if schedule == "1f1b":
        return tuple(float(min(pipeline - stage, micro_batches)) for stage in range(pipeline))
    if schedule == "interleaved_1f1b":
        group = micro_batches // max(1, micro_batches // pipeline)
        return tuple(float(min((chunks - 1) * group + 2 * (pipeline - 1 - stage) + 1, chunks * micro_batches)) for stage in range(pipeline))
    return (1.0,) * pipeline


@lru_cache(maxsize=65536)
def passes_before_all(schedule: str, pipeline: int, chunks: int, micro_batches: int) -> float:
    """Return after how many backward passes, at least one more, every chunk of a stage had one and none its last; infinite if unknown."""
    if schedule == "1f1b":
        return 0.0
    rounds = max(1, micro_batches // pipeline)
    if schedule == "interleaved_1f1b" and rounds > 1:
        return float((chunks - 1) * (micro_batches // rounds))
    return math.inf
