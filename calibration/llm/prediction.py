"""What is said of a measured run? Its step, and the memory of its fullest rank."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Memory:
    """Bytes of GPU memory at their peak, as a table reads them, and whether they fit."""

    nbytes: float
    verdict: str
    """fits, thrashes or does_not_fit; unknown, with NaN bytes, where no machine with the GPU is described."""


@dataclass(frozen=True)
class LlmPrediction:
    """A predicted step: seconds, bytes of GPU memory at its peak, and what the time is made of (seconds, in ``parts``)."""

    step_time: float
    memory: float
    verdict: str
    parts: Mapping[str, float] = field(default_factory=dict)
