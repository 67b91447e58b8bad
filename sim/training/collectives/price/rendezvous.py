"""What does the rendezvous of a two-sided network cost? One more exchange at every hop between nodes, for messages that are not eager.

A two-sided network sends a message of up to ``eager`` bytes at once. For a longer message it first sends a request, and the receiver
fetches the rest (libfabric man/fi_cxi.7.md). NCCL's plug-in for libfabric uses two-sided sends, except over EFA since p5
(aws/aws-ofi-nccl src/nccl_ofi_sendrecv.c). A message is what one channel passes on at a time, including its protocol's flags:

    T += sequential hops between nodes * rendezvous        if a message has more than ``eager`` bytes

This applies to rings, trees and sends, not to algorithms of other libraries.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from sim.training.collectives.nccl import constants as nccl
from sim.training.collectives.nccl.protocols import WIRE_BYTES
from sim.training.collectives.price.layout import JobLayout, depth
from sim.training.collectives.price.recurrence import ROUNDS, ring_steps


def rendezvous(layout: JobLayout, op: str, algorithm: str, protocol: str, nbytes: float, channels: int) -> float:
    """Return the time (s) that rendezvous adds to *op* on *nbytes*, which are divided among *channels*."""
    asking = [part.slot.node.nic.transport for part in layout.parts if part.slot.node.nic.transport.eager is not None]
    if layout.nodes == 1 or not asking or algorithm not in _HOPS:
        return 0.0
    divided = (op in ROUNDS and algorithm == "Ring") or algorithm in ("Pairwise", "Gather", "Scatter")
    most = math.inf if protocol == "Simple" else nccl.THREADS[protocol] * nccl.BYTES_PER_THREAD[protocol]
    message = min(most, nbytes / channels / (layout.ranks if divided else 1)) * WIRE_BYTES[protocol]
    late = max((transport.rendezvous for transport in asking if message > (transport.eager or 0.0)), default=0.0)
    return _HOPS[algorithm](layout, op) * late


def _of_ring(layout: JobLayout, op: str) -> float:
    """Return the number of hops between nodes that a chunk crosses; in a pipeline, from the root to the last node."""
    return ring_steps(op, layout.ranks) * layout.nodes / layout.ranks if op in ROUNDS else layout.nodes - 1


def _of_tree(layout: JobLayout, op: str) -> float:
    return 2.0 * depth(layout.nodes)


def _at_once(layout: JobLayout, op: str) -> float:
    return 1.0


_HOPS: Mapping[str, Callable[[JobLayout, str], float]] = {
    "Ring": _of_ring,
    "Tree": _of_tree,
    "NVLSTree": _of_tree,
    **dict.fromkeys(("Pairwise", "SendRecv", "Gather", "Scatter"), _at_once),
}
"""Number of sequential hops between nodes, by algorithm."""
