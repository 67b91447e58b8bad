"""When do the thread blocks of a ring keep a network waiting? Every slice of a large Simple all-reduce, played as NCCL's code has it.

In each loop the block of a rank sends a first chunk, receives and sends on 2n - 3 more, and receives a last one; only then does it begin
the next loop (NVIDIA/nccl src/device/all_reduce.h). Chunks are passed on in two slices, and a block waits until one of the eight places of
its buffer is free (src/include/device.h). Between nodes a proxy sends slices from memory of the host, one after the other.
"""

from __future__ import annotations

from dataclasses import dataclass, field

SLICES = 2
PLACES = 8


@dataclass
class _Hop:
    """Slices on the way from a rank to the next: when each can be received, and when its place was free again."""

    copy: float
    """Seconds in which a block writes or reads a slice."""
    wire: float
    """Seconds in which a proxy sends one; 0 inside a node."""
    arrived: list[float] = field(default_factory=list)
    freed: list[float] = field(default_factory=list)

    def send(self, end: float) -> None:
        """Send a slice that was written at *end*."""
        self.arrived.append(max([end, *self.arrived[-1:]]) + self.wire if self.wire else end)


@dataclass
class _Block:
    """The block of one rank between two hops, in loops of *slices* slices that it sends, the first and last chunk not at once."""

    before: _Hop
    after: _Hop
    slices: int
    now: float = 0.0
    played: int = 0
    ends: list[float] = field(default_factory=list)

    def step(self) -> bool:
        """Play the next slice; False if it still waits for another rank."""
        loop, place = divmod(self.played, self.slices + SLICES)
        sends, receives = place < self.slices, place >= SLICES
        got, room = loop * self.slices + place - SLICES, loop * self.slices + place - PLACES
        if (receives and got >= len(self.before.arrived)) or (sends and room >= len(self.after.freed)):
            return False
        begin = max(self.now, self.before.arrived[got] if receives else 0.0, self.after.freed[room] if sends and room >= 0 else 0.0)
        self.now = begin + max(self.before.copy * receives, self.after.copy * sends)
        self.played += 1
        if receives:
            self.before.freed.append(self.now)
        if sends:
            self.after.send(self.now)
        if place == self.slices + SLICES - 1:
            self.ends.append(self.now)
        return True


def seconds_of_loop(nodes: int, gpus: int, network: float, host: float, inside: float, loops: int = 24) -> float:
    """Return the seconds in which a ring of *nodes* nodes with *gpus* ranks each repeats itself, for slices of one byte.

    Rates (bytes/s): proxies send at *network*, blocks access the host's memory at *host*, and other GPUs at *inside*.
    """
    ranks = nodes * gpus
    hops = [_Hop(1 / inside, 0.0) if (rank + 1) % gpus else _Hop(1 / host, 1 / network) for rank in range(ranks)]
    blocks = [_Block(hops[rank - 1], hops[rank], 2 * (ranks - 1) * SLICES) for rank in range(ranks)]
    while len(blocks[0].ends) < loops:
        for block in blocks:
            while len(block.ends) < loops and block.step():
                pass
    ends = blocks[0].ends
    return (ends[-1] - ends[loops // 2]) / (loops - 1 - loops // 2)
