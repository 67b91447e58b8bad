"""What is predicted for a measured run? Its step time, and the memory of its fullest rank."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Memory:
    """Peak GPU memory in bytes, in the reading of the run's table, and whether it fits."""

    nbytes: float
    verdict: str
    """fits, thrashes or does_not_fit; unknown, with NaN bytes, if no machine with the GPU is described."""


@dataclass(frozen=True)
class LlmPrediction:
    """A predicted step: its seconds, its peak GPU memory in bytes, and the parts of its time (seconds, in ``parts``)."""

    step_time: float
    memory: float
    verdict: str
    parts: Mapping[str, float] = field(default_factory=dict)
