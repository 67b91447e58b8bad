"""What must each host carry so that parameter servers cost no time, beside what its ports can? Rows of a table, pure.

See `sim.training.collectives.parameter_server.bandwidth_bound`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, get_args

from sim.spec.hardware import Hardware
from sim.training.collectives.parameter_server import Placement

PLACEMENTS: tuple[Placement, ...] = get_args(Placement)


class BoundRow(NamedTuple):
    """One model size (bytes) and what the busiest host needs by placement, bytes/s in and out together."""

    nbytes: int
    needed: Mapping[Placement, float]


class BoundTable(NamedTuple):
    """All sizes on one machine; ``there`` is what the ports of the busiest host carry by placement, bytes/s in and out together."""

    hardware: str
    workers: int
    compute_time: float
    there: Mapping[Placement, float]
    rows: tuple[BoundRow, ...]
    machine: Hardware
    inputs: Mapping[str, str]
    """SHA-256 of the description."""
