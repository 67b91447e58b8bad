"""How does a message cross one hop? A physical link, and the constants of the class of transport that uses it."""

from __future__ import annotations

from typing import Final

from sim.spec.fields import Bandwidth, Bytes, Count, Curve, Fraction, Seconds, Source, Spec, TimePerByte

CHANNEL_RATES: Final = ("channel_cap", "block_copy", "ll_cap", "send_cap", "nvls_cap")
"""Fields of a transport that are rates of one channel and its thread block."""


class Transport(Spec):
    """How collective traffic crosses one hop (``hardware/parts/transports``): constants of a transport class."""

    name: str
    hop_latency: Seconds
    """Time from the start of a step's send to the start of the next rank's, beyond bytes over bandwidth."""
    hop_latency_ll: Seconds | None = None
    """The same under NCCL's LL; without it the share of ``hop_latency`` that NCCL's tuner takes."""
    launch: Seconds
    """Fixed cost of one collective on this transport."""
    simple_start: Seconds = 0.0
    """What a ring under NCCL's Simple takes besides, once: its blocks synchronize before the first slice."""
    eager: Bytes | None = None
    """Up to how many bytes, with the protocol's flags, a message between nodes is sent without asking; none: always."""
    rendezvous: Seconds = 0.0
    """What a longer message takes besides, as sender and receiver agree first."""
    efficiency: Curve
    """Share of the link's deliverable bandwidth (of ``flow_cap`` x ``flows``, where given), over bytes per rank and channel."""
    flow_cap: Bandwidth | None = None
    """Most that one flow can carry, whatever the line rate."""
    flows: Count = 1
    """Flows that one connection opens side by side."""
    channel_cap: Bandwidth | None = None
    """Most that the thread block of one channel moves, sending or receiving; it does all it has to in a ring one after another."""
    block_copy: Bandwidth | None = None
    """What the thread block of one channel copies inside its GPU while it sends nothing: the last chunk of a ring that it receives; none:
    at no cost."""
    ll_cap: Bandwidth | None = None
    """Most payload that the thread block of one channel passes on under NCCL's LL; none: as much as links carry."""
    send_cap: Bandwidth | None = None
    """Most that one channel of a message moves where ranks only send and receive, since its block divides its threads between both; where
    links carry about as much, less than either is left."""
    nvls_cap: Bandwidth | None = None
    """Most of a reduction in NVSwitch that the thread block of one channel copies to where the switch reads it, and back; none: at no
    cost."""
    total_efficiency: Fraction = 1.0
    """Share of the line rate that all flows together can carry."""
    cpu_time_per_byte: TimePerByte = 0.0
    """Core-seconds that the host spends per byte sent or received."""
    source: Source


class Link(Spec):
    """One kind of physical link (``hardware/parts/links``): bandwidth of one link in one direction."""

    name: str
    bandwidth: Bandwidth
    """In each direction."""
    efficiency: Fraction
    """Share of ``bandwidth`` that a large copy reaches."""
    nccl_bandwidth: Bandwidth
    """What NCCL's search assumes; used to choose, never to time."""
    transport: Transport | None = None
    """How well messages go over it between GPUs, where it is an NVLink or the like: the class of its generation."""
    source: Source
