"""What do the ranks of a job do together in a step? Operations in one order, each of one or more collectives."""

from __future__ import annotations

from typing import Literal, NamedTuple

Op = Literal["all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce", "all_to_all", "send_recv", "gather", "scatter"]


class Message(NamedTuple):
    """One collective of *nbytes*: what it leaves on every rank, so that a gather counts the parts of all ranks.

    Of ``scatter`` and ``gather`` that is the vector of the root, of ``send_recv`` what each rank sends.
    """

    op: Op
    nbytes: float


class Operation(NamedTuple):
    """What ranks start at one point of a step; it begins *delay* seconds after the last of them, and after the operations before it."""

    name: str
    messages: tuple[Message, ...]
    bucket: int = -1
    """The gradient bucket it reduces beside compute; -1 where every rank waits for it on the spot."""
    delay: float = 0.0

    @property
    def nbytes(self) -> float:
        """Return the bytes of its messages together."""
        return sum(message.nbytes for message in self.messages)
