"""How long do messages of a measured run take, by closed formulas? Bytes over the rate of the slowest link, and latencies of hops.

Links are the fabric that joins GPUs of a domain (a switch, or a link between every two), PCIe between domains of one node, and a NIC for
each GPU between nodes. Limit: no contention between groups.
"""

from __future__ import annotations

import math
from typing import Final

from calibration.llm.case import MEASURED_MESSAGE, Case
from calibration.llm.priors import Constants
from sim.parallel.routing import copies_between, routing_of

FEWER_RINGS: Final = (4, 6)
"""Numbers of ranks of a mesh that have one ring less without a common link than others would (Tillson 1980, Hamiltonian cycles of complete
digraphs, from general knowledge; tests try them)."""


class Wires:
    """Times of collectives of *case*: over the fabric in a domain, over PCIe between domains of a node, over one NIC per GPU elsewhere."""

    def __init__(self, case: Case, constants: Constants) -> None:
        self.case, self.constants = case, constants
        self.fabric = case.chip.fabric * constants["fabric"]
        self.bus = case.chip.bus * constants["fabric"]
        self.network = case.nic * constants["network"]

    def gather(self, size: float, ranks: int, stride: int, latency: float | None = None, coalesced: bool = False) -> float:
        """Return the seconds of an all-gather or reduce-scatter of *size* bytes over *ranks*, *stride* GPUs apart.

        *latency*: measured seconds that one more node adds for each `MEASURED_MESSAGE` bytes, or once if all bytes are *coalesced* in one
        message, in place of the latency of hops.
        """
        if ranks <= 1:
            return 0.0
        inside, near = self._inside(ranks, stride), self._near(ranks, stride)
        nodes = math.ceil(ranks / near)
        rate = self._ring(inside)
        if near > inside:
            rate = min(rate, self.bus)
        if nodes > 1:
            rate = min(rate, self.network * near)
        hops = self.start(ranks, stride)
        if latency is not None and nodes > 1:
            hops = (nodes - 1) * latency * (1.0 if coalesced else size / MEASURED_MESSAGE)
        return size * (ranks - 1) / ranks / rate + self.constants["launch.collective"] + hops

    def start(self, ranks: int, stride: int) -> float:
        """Return the seconds that one ring of *ranks*, *stride* GPUs apart, takes for negligible bytes."""
        nodes = math.ceil(ranks / self._near(ranks, stride))
        return (ranks - nodes) * self.constants["hop.fabric"] + (nodes - 1) * self.constants["hop.network"]

    def exchange(self, size: float, ranks: int, stride: int, copies: float | None = None) -> float:
        """Return the seconds of an all-to-all in which each rank sends *size* bytes in total.

        *copies*: what share of the bytes is sent; None: that of copies of tokens for experts, between nodes or, in one node, between ranks.
        """
        if ranks <= 1:
            return 0.0
        inside, near = self._inside(ranks, stride), self._near(ranks, stride)
        if copies is None:
            copies = copies_between(ranks / near if ranks > near else ranks, routing_of(self.case.shape), self.case.one_copy)
        size *= copies
        over_fabric = size * (inside - 1) / ranks / self._links(inside - 1)
        over_bus = size * (near - inside) / ranks / self.bus
        over_network = size * (1 - near / ranks) / self.network
        return max(over_fabric, over_bus, over_network) / self.constants["dispatch"] * 0.5 + self.constants["launch.collective"]

    def send(self, size: float, stride: int) -> float:
        """Return the seconds of one message to the rank *stride* GPUs away."""
        rate = self._links(1) if stride < self.case.domain else self.bus if stride < self.case.gpus_per_node else self.network
        return size / rate + self.constants["launch.collective"]

    def turn(self, size: float, ranks: int, stride: int) -> float:
        """Return the seconds in which each of *ranks*, *stride* GPUs apart, sends *size* bytes to the next, and the last to the first."""
        return self.send(size, stride * (ranks - 1))

    def _links(self, count: int) -> float:
        """Return the bytes/s of a GPU to *count* others of its domain: all of its fabric through a switch, a link to each in a mesh."""
        if not self.case.chip.is_mesh:
            return self.fabric
        return self.fabric * max(1, count) / (self.case.chip.domain - 1)

    def _ring(self, ranks: int) -> float:
        """Return the bytes/s of all rings of *ranks* in one domain: in a mesh, as many rings as do not share a link.

        There is one less than ranks, two less for `FEWER_RINGS`.
        """
        return self._links(ranks - 1 - (ranks in FEWER_RINGS))

    def _inside(self, ranks: int, stride: int) -> int:
        """Return how many of *ranks*, *stride* GPUs apart, share a domain."""
        return max(1, min(ranks, self.case.domain // stride))

    def _near(self, ranks: int, stride: int) -> int:
        """Return how many of *ranks*, *stride* GPUs apart, share a node, or else a domain of several nodes."""
        return max(self._inside(ranks, stride), min(ranks, self.case.gpus_per_node // stride))
