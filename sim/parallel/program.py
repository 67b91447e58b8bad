"""What does a rank do in one step? A list of instructions in the order in which its compute stream meets them.

A program names layers, messages and groups, never seconds: `sim.training.layouts` and, for data parallelism, `sim.training.step_plan`
price it. ``Start`` enters an operation into the queue of its communicator, which plays operations one after another; ``Wait`` holds the
compute stream until one has ended. Ranks of one pipeline stage run the same program.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, get_args

if TYPE_CHECKING:
    from sim.parallel.mesh import GroupAxis

PassPart = Literal["F", "B", "I", "W"]
"""Forward, backward, backward of inputs, backward of weights."""
Tag = tuple[str, int, int]
"""What an operation is for: (what, unit or chunk of the model or bucket of gradients, -1: none, micro-batch)."""
Op = Literal["all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce", "all_to_all", "send_recv", "gather", "scatter"]
HOST_WAITS: Final[Mapping[str, frozenset[Op]]] = {
    "nothing": frozenset(),
    "reductions": frozenset({"all_reduce", "reduce_scatter"}),
    "everything": frozenset(get_args(Op)),
}
"""Operations by what ``host_waits`` of a stack says."""


class Message(NamedTuple):
    """One collective of *nbytes*: what it leaves on every rank, so that a gather counts the parts of all ranks.

    Of ``scatter`` and ``gather`` that is the vector of the root, of ``send_recv`` what each rank sends.
    """

    op: Op
    nbytes: float


class Load(NamedTuple):
    """Take the next micro-batch from the loader and copy it to the GPU."""

    micro_batch: int


class Work(NamedTuple):
    """Compute units *first* to *last* (numbers of the model's units, both included) for one micro-batch."""

    part: PassPart
    first: int
    last: int
    micro_batch: int


class Pack(NamedTuple):
    """Copy gradients into *bucket*, narrower or compressed as they travel."""

    bucket: int
    micro_batch: int


class Unpack(NamedTuple):
    """Copy what has come in all buckets back into gradients."""

    micro_batch: int


class Copy(NamedTuple):
    """Pass *nbytes* through the GPU's memory, read and written, where FSDP copies weights or gradients beside its collectives."""

    what: Literal["weights", "gradients"]
    nbytes: float
    micro_batch: int


class Update(NamedTuple):
    """Run the optimizer on this rank's share of the weights."""


class Start(NamedTuple):
    """Enter *op* on *nbytes* (a gather's output, a reduction's input) among the ranks of *axis* into *communicator*'s queue."""

    tag: Tag
    op: Op
    axis: GroupAxis
    nbytes: float
    communicator: str
    after: Tag | None = None
    """The operation of this rank whose end it waits for."""
    prefetch: bool = False
    """The host issues it behind the works before its use (FSDP's implicit prefetch): no sooner than it has launched them."""
    more: tuple[Message, ...] = ()
    """Collectives that follow the first as one operation with it."""
    limited: bool = False
    """The host issues it, and launches what follows, no sooner than compute comes to this place (FSDP1's ``limit_all_gathers``)."""
    delay: float = 0.0
    """Seconds between the last rank that comes and its begin (Horovod's cycle)."""
    copied: float = 0.0
    """Bytes that another stream than that which computes passes through the GPU's memory before it begins, read and written."""

    @property
    def messages(self) -> tuple[Message, ...]:
        """Return all its collectives, one after another."""
        return (Message(self.op, self.nbytes), *self.more)


class Wait(NamedTuple):
    """Hold compute until the operation *tag* has ended."""

    tag: Tag
    host: bool = False
    """The host waits too, and launches what follows no sooner; else it goes on, and only the stream waits."""


class Free(NamedTuple):
    """Free the gathered weights of *units*."""

    units: tuple[int, ...]


class Send(NamedTuple):
    """Hand *nbytes* to the rank at the same place in stage *stage*; the next work waits for it where stages do not overlap messages."""

    tag: Tag
    stage: int
    nbytes: float
    holds: bool = True
    """Not held: the next work goes on; the send is waited for with the next that holds, or before the optimizer."""


class Receive(NamedTuple):
    """Hold compute until the *nbytes* that *tag* names have come from stage *stage*.

    It stands where they are used; buffers are taken to be there before, as torch's runtime posts receives in the order of sends.
    """

    tag: Tag
    stage: int
    nbytes: float


Instruction = Load | Work | Pack | Unpack | Copy | Update | Start | Wait | Free | Send | Receive
Program = tuple[Instruction, ...]


def waited_for(instructions: Iterable[Instruction], ops: Container[Op]) -> Iterator[Instruction]:
    """Yield *instructions*, where the host waits for each operation of *ops* before it goes on."""
    for instruction in instructions:
        yield instruction
        if isinstance(instruction, Start) and instruction.op in ops:
            yield Wait(instruction.tag)


def before_use(program: Sequence[Instruction], at: int) -> Iterator[Work]:
    """Yield the works of *program* between the start at place *at* and the first wait for it."""
    start = program[at]
    assert isinstance(start, Start)
    for each in map(program.__getitem__, range(at + 1, len(program))):
        if isinstance(each, Wait) and each.tag == start.tag:
            return
        if isinstance(each, Work):
            yield each


def loaded(instructions: Iterable[Instruction]) -> Iterator[Instruction]:
    """Yield *instructions*, where each forward that begins the model loads its micro-batch."""
    for instruction in instructions:
        if isinstance(instruction, Work) and instruction.part == "F" and instruction.first == 0:
            yield Load(instruction.micro_batch)
        yield instruction


def fused(instructions: Iterable[Instruction]) -> Program:
    """Join work on neighbouring units with nothing between it."""
    joined: list[Instruction] = []
    for instruction in instructions:
        before = joined[-1] if joined else None
        if isinstance(instruction, Work) and isinstance(before, Work) and _follows(before, instruction):
            first, last = min(before.first, instruction.first), max(before.last, instruction.last)
            joined[-1] = Work(before.part, first, last, before.micro_batch)
        else:
            joined.append(instruction)
    return tuple(joined)


def _follows(before: Work, after: Work) -> bool:
    if (before.part, before.micro_batch) != (after.part, after.micro_batch):
        return False
    return after.first == before.last + 1 if after.part == "F" else after.last == before.first - 1
