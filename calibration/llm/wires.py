"""How long do collectives and messages take? Bytes over the fabric inside a domain, over one NIC per GPU between domains."""

from __future__ import annotations

import math

from calibration.llm.case import MEASURED_MESSAGE, Case
from calibration.llm.priors import Constants
from sim.parallel.routing import copies_between


class Wires:
    """Times of collectives of *case*: bytes over the fabric inside a domain, over one NIC per GPU between domains."""

    def __init__(self, case: Case, constants: Constants) -> None:
        self.case, self.constants = case, constants
        self.fabric = case.chip.fabric * constants["fabric"]
        self.network = case.nic * constants["network"]

    def gather(self, size: float, ranks: int, stride: int, latency: float | None = None) -> float:
        """Return the seconds of an all-gather or reduce-scatter of *size* bytes over *ranks*, *stride* GPUs apart.

        *latency*: measured seconds that one more node adds for each `MEASURED_MESSAGE` bytes, in place of the latency of hops.
        """
        if ranks <= 1:
            return 0.0
        inside = self._inside(ranks, stride)
        nodes = math.ceil(ranks / inside)
        rate = self.fabric if nodes == 1 else min(self.fabric, self.network * inside)
        hops = self.start(ranks, stride)
        if latency is not None and nodes > 1:
            hops = (nodes - 1) * latency * size / MEASURED_MESSAGE
        return size * (ranks - 1) / ranks / rate + self.constants["launch.collective"] + hops

    def start(self, ranks: int, stride: int) -> float:
        """Return the seconds that one ring of *ranks*, *stride* GPUs apart, takes for negligible bytes."""
        nodes = math.ceil(ranks / self._inside(ranks, stride))
        return (ranks - nodes) * self.constants["hop.fabric"] + (nodes - 1) * self.constants["hop.network"]

    def exchange(self, size: float, ranks: int, stride: int) -> float:
        """Return the seconds of an all-to-all in which each rank sends *size* bytes in total."""
        if ranks <= 1:
            return 0.0
        inside = self._inside(ranks, stride)
        outside = size * (1 - inside / ranks)
        if ranks > inside:
            outside *= copies_between(ranks / inside, self.case.shape.experts_per_token, self.case.one_copy)
        near = size * (inside - 1) / ranks / self.fabric
        return max(near, outside / self.network) / self.constants["dispatch"] * 0.5 + self.constants["launch.collective"]

    def send(self, size: float, stride: int) -> float:
        """Return the seconds of one message to the rank *stride* GPUs away."""
        rate = self.fabric if stride < self.case.domain else self.network
        return size / rate + self.constants["launch.collective"]

    def _inside(self, ranks: int, stride: int) -> int:
        """Return how many of *ranks*, *stride* GPUs apart, share a domain."""
        return max(1, min(ranks, self.case.domain // stride))
