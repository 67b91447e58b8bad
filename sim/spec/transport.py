"""How does a message cross one hop? A physical link, and the constants of the transport class that uses it."""

from typing import Final

from sim.spec.fields import Bandwidth, Bytes, Count, Curve, Fraction, Latency, Source, Spec, TimePerByte

CHANNEL_RATES: Final = ("channel_cap", "block_copy", "ll_cap", "send_cap", "nvls_cap")
"""Fields of a transport that are rates of one channel's thread block."""


class Transport(Spec):
    """The constants of one transport class (``hardware/parts/transports``): how collective traffic crosses one hop."""

    name: str
    hop_latency: Latency
    """Latency of one hop: time from the start of one rank's send to the start of the next rank's, in addition to bytes over bandwidth."""
    hop_latency_ll: Latency | None = None
    """Latency of one hop under NCCL's LL protocol; none: ``hop_latency`` times the LL-to-Simple ratio in NCCL's tuning tables."""
    launch: Latency
    """Fixed cost of one collective on this transport."""
    simple_start: Latency = 0.0
    """Additional one-time cost of a ring under NCCL's Simple protocol: its thread blocks synchronize before the first slice."""
    eager: Bytes | None = None
    """Largest message between nodes, including the protocol's flags, that is sent eagerly, without a rendezvous; none: all messages are."""
    rendezvous: Latency = 0.0
    """Additional time of each hop between nodes for messages above ``eager``: sender and receiver first exchange a handshake."""
    efficiency: Curve
    """Fraction of the link's deliverable bandwidth (of ``flow_cap`` x ``flows``, if given) that is reached, as a function of the bytes per
    rank and channel."""
    flow_cap: Bandwidth | None = None
    """Upper limit of the bandwidth of one flow, whatever the line rate; none: no limit."""
    flows: Count = 1
    """Number of parallel flows that one connection opens."""
    channel_cap: Bandwidth | None = None
    """Upper limit of the bandwidth of one channel's thread block, sending or receiving. In a ring, a block processes its chunks
    sequentially. None: no limit."""
    block_copy: Bandwidth | None = None
    """Rate at which one channel's thread block copies inside its GPU while it sends nothing: in a ring, the last chunk that it receives.
    None: this copy costs nothing."""
    ll_cap: Bandwidth | None = None
    """Upper limit of the payload bandwidth of one channel's thread block under NCCL's LL protocol; none: limited only by the links."""
    send_cap: Bandwidth | None = None
    """Upper limit of the bandwidth of one channel in point-to-point messages, where a thread block divides its threads between sending and
    receiving. If the links have a similar bandwidth, the result is lower than either limit. None: no limit."""
    nvls_cap: Bandwidth | None = None
    """Rate at which one channel's thread block copies data to and from the buffers of a reduction in NVSwitch (NVLS); none: this copy
    costs nothing."""
    total_efficiency: Fraction = 1.0
    """Fraction of the line rate that all flows together can carry."""
    cpu_time_per_byte: TimePerByte = 0.0
    """Core-seconds that the host spends per byte sent or received."""
    source: Source


class Link(Spec):
    """One type of physical link (``hardware/parts/links``)."""

    name: str
    bandwidth: Bandwidth
    """Bandwidth of one link in each direction."""
    efficiency: Fraction
    """Fraction of ``bandwidth`` that a large copy reaches."""
    nccl_bandwidth: Bandwidth
    """Bandwidth that NCCL's topology search assumes. It affects only NCCL's choices, never a simulated time."""
    transport: Transport | None = None
    """Transport of messages between GPUs over this link, for NVLink and similar links; none for other links."""
    source: Source
