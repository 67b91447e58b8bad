"""Up to where are runs of a source scored and fitted? Beyond, speed differs for reasons that no table shows (``practice.yaml``)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from calibration.llm.chips import Chip
from sim.spec.yaml import SpecError

_KEYS: Final = ("tensor", "memory_GiB", "memory_share", "pipeline_nodes")


class RunLimits(NamedTuple):
    """Up to where runs of a source are used: tensor ranks, peak memory in bytes (exclusive), and nodes of a pipeline."""

    tensor: float = math.inf
    memory: float = math.inf
    pipeline_nodes: float = math.inf

    def include(self, tensor: int, memory: float, pipeline_nodes: int) -> bool:
        """Return whether a run with *tensor* ranks, a peak *memory* in bytes and a pipeline of so many nodes is within the limits."""
        return tensor <= self.tensor and memory < self.memory and pipeline_nodes <= self.pipeline_nodes

    @property
    def text(self) -> str:
        """Return the limits that are set, in words."""
        limits = (
            (self.tensor, f"{self.tensor:g} tensor ranks"),
            (self.memory, f"{self.memory / 2.0**30:g} GiB"),
            (self.pipeline_nodes, f"pipelines of {self.pipeline_nodes:g} node{'s' * (self.pipeline_nodes != 1)}"),
        )
        return " or ".join(words for limit, words in limits if limit < math.inf)


def limits_in(practice: Mapping[str, Any], chip: Chip) -> dict[str, Any]:
    """Return the fields of a `Case` that say which runs of its source, described by *practice*, are scored and fitted."""
    return {name: limits_of(practice.get(name, {}), chip) for name in ("scored_within", "fitted_within")}


def limits_of(written: Mapping[str, float], chip: Chip) -> RunLimits:
    """Return the limits *written* in ``practice.yaml`` for runs on *chip*. Raise SpecError for an unknown key."""
    if unknown := [key for key in written if key not in _KEYS]:
        raise SpecError(f"practice.yaml: unknown limit {unknown[0]!r}; write one of {', '.join(_KEYS)}")
    memory = min(written.get("memory_GiB", math.inf) * 2.0**30, written.get("memory_share", math.inf) * chip.memory)
    return RunLimits(written.get("tensor", math.inf), memory, written.get("pipeline_nodes", math.inf))
