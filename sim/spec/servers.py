"""Which parameter servers does a stack use, and what does an update cost on them? The block ``servers`` of a stack."""

from typing import Literal

from sim.spec.fields import Bytes, Count, Latency, Source, Spec, TimePerByte


class Servers(Spec):
    """Parameter servers. Costs are core-seconds on the reference core of the data sets, scaled by the ``speed`` of the server's CPU."""

    count: Count = 1
    """Number of server processes."""
    placement: Literal["group", "colocated"] = "group"
    """group: one server on each of the first nodes with role ``server``; colocated: one on each of the first worker nodes."""
    sharding: Literal["variables", "chunks"] = "variables"
    """variables: whole variables are assigned round-robin in the order of their creation; chunks: all servers have equal shares."""
    chunk: Bytes = 32.0 * 2**10
    """Size of one chunk."""
    update_cpu: Latency = 0.0
    """Core time to receive and apply one worker's gradient of one variable (or chunk) and to send the new value back."""
    byte_cpu: TimePerByte = 0.0
    """Core time per byte received or sent, including the transport's work on the server."""
    pipelined: bool = False
    """true: chunks are received, added and sent concurrently; false: a bucket is received, then applied, then sent."""
    racks: Count = 1
    """Number of racks, each with the same number of workers and servers. Servers add up the gradients of their rack before racks exchange
    the sums. 1: no such hierarchy."""
    source: Source
