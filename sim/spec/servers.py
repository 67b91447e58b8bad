"""Which parameter servers does a stack use, and what does an update cost them? The block ``servers`` of a stack."""

from __future__ import annotations

from typing import Literal

from sim.spec.fields import Bytes, Count, Seconds, Source, Spec, TimePerByte


class Servers(Spec):
    """Parameter servers; costs are core-seconds of the server's processor, as fast as the reference core of the data sets."""

    count: Count = 1
    """Server processes."""
    placement: Literal["group", "colocated"] = "group"
    """group: one server on each of the first hosts of role ``server``; colocated: on each of the first worker nodes."""
    sharding: Literal["variables", "chunks"] = "variables"
    """variables: whole variables dealt in turn, in the order of their creation; chunks: every server has an equal share of all."""
    chunk: Bytes = 32.0 * 2**10
    """Bytes of one chunk."""
    update_cpu: Seconds = 0.0
    """Core time to take in and apply one worker's gradient of one variable (or chunk), and to send its value back."""
    byte_cpu: TimePerByte = 0.0
    """Core time per byte received or sent, what the transport takes of the server included."""
    pipelined: bool = False
    """Whether chunks are received, added and sent side by side; otherwise a bucket is received, then applied, then sent."""
    racks: Count = 1
    """Racks of equally many workers, each with the same number of servers, which add up their rack's gradients before the racks meet."""
    source: Source
