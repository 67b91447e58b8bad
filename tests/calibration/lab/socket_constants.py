"""Which network constants does the laboratory's calibrating point give? Those of one socket under Gloo, from its raw record and compute's.

*payload*: the share of the line that a plain socket reached with both directions in use, as in a ring. *latency*: its round trip, because a
notice goes one way and the data that it releases the other. *cpu_time_per_byte*: processor time of a rank beyond its compute, over the
bytes that it sent and received, including DDP's copies between gradients and buckets. They are also in the laboratory's stack file,
with which `test_constants` compares them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean, median

from calibration.lab.records import RecordLine
from sim.spec.yaml import SpecError


@dataclass(frozen=True)
class SocketConstants:
    """Constants of one socket."""

    payload: float
    """Share of the line rate."""
    latency: float
    """Round-trip time, seconds."""
    cpu_time_per_byte: float
    """Core-seconds per byte sent or received."""


def socket_constants(lines: Sequence[RecordLine], gradient_bytes: float) -> SocketConstants:
    """Return the constants from *lines* of role network, for a model with *gradient_bytes*. Raise SpecError if there are no such lines."""
    calibrating = [line for line in lines if line["role"] == "network" and line["state"] == "measured"]
    isolated = {(line["point"]["model"], line["point"]["batch"]): line for line in lines if line["role"] == "compute"}
    if not calibrating:
        raise SpecError("no measured point has the role network; the plan needs at least one")
    return SocketConstants(
        median(line["socket"]["both_bytes_per_s"] / line["point"]["rate_bytes_per_s"] for line in calibrating),
        min(line["socket"]["round_trip_s"] for line in calibrating),
        median(_cpu_time_per_byte(line, isolated[line["point"]["model"], line["point"]["batch"]], gradient_bytes) for line in calibrating),
    )


def _cpu_time_per_byte(line: RecordLine, isolated: RecordLine, gradient_bytes: float) -> float:
    ranks = len(line["ranks"])
    beyond = mean(rank["cpu_time_s"] for rank in line["ranks"]) - isolated["ranks"][0]["cpu_time_s"]
    return float(max(0.0, beyond)) / (2 * 2 * (ranks - 1) / ranks * gradient_bytes)
