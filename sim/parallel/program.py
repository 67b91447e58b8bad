"""What does a rank do in one step? A list of instructions in the order in which its compute stream reaches them.

A program names layers, messages and groups, but no times: `sim.training.layouts` and, for data parallelism, `sim.training.step_plan`
price it. ``Start`` enqueues an operation on its communicator, which runs operations in order. ``Wait`` blocks the compute stream until an
operation has ended. Ranks of one pipeline stage run the same program.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, get_args

if TYPE_CHECKING:
    from sim.parallel.mesh import GroupAxis

PassPart = Literal["F", "B", "I", "W"]
"""Forward, backward, backward of inputs, backward of weights."""
Tag = tuple[str, int, int]
"""Identifies an operation: (purpose, unit or chunk of the model or bucket of gradients (-1: none), micro-batch)."""
Op = Literal["all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce", "all_to_all", "send_recv", "gather", "scatter"]
HOST_WAITS: Final[Mapping[str, frozenset[Op]]] = {
    "nothing": frozenset(),
    "reductions": frozenset({"all_reduce", "reduce_scatter"}),
    "everything": frozenset(get_args(Op)),
}
"""Operations that the host waits for, by the value of ``host_waits`` in a stack."""


class Message(NamedTuple):
    """One collective; *nbytes* is the whole vector: the output of an all-gather, the input of a reduction or an all-to-all.

    For ``scatter`` and ``gather``, *nbytes* is the vector of the root; for ``send_recv``, the bytes that each rank sends.
    """

    op: Op
    nbytes: float


class Load(NamedTuple):
    """Take the next micro-batch from the loader and copy it to the GPU."""

    micro_batch: int


class Work(NamedTuple):
    """Compute units *first* to *last* (numbers of the model's units, inclusive) for one micro-batch."""

    part: PassPart
    first: int
    last: int
    micro_batch: int
    beside: tuple[int, int] | None = None
    """The first and the last unit of the backward pass that runs as a pair with this forward, or of the forward pass with this backward."""


class Pack(NamedTuple):
    """Copy gradients into *bucket*, narrowed or compressed for communication."""

    bucket: int
    micro_batch: int


class Unpack(NamedTuple):
    """Copy the received contents of all buckets back into gradients."""

    micro_batch: int


class Copy(NamedTuple):
    """Copy weights or gradients in GPU memory, as FSDP does around its collectives; *nbytes* counts bytes read and written."""

    what: Literal["weights", "gradients"]
    nbytes: float
    micro_batch: int
    tag: Tag | None = None
    """The gather or reduction that this copy stands for in a group of one rank."""
    host: float = 0.0
    """Host time (s) to launch further copies of parts of these bytes. The host begins when the first can run, because its queue is full."""


class Update(NamedTuple):
    """Run the optimizer on this rank's share of the weights."""


class Start(NamedTuple):
    """Enqueue *op* on *nbytes* (the output of a gather, the input of a reduction) among the ranks of *axis* on *communicator*."""

    tag: Tag
    op: Op
    axis: GroupAxis
    nbytes: float
    communicator: str
    predecessor: Tag | None = None
    """The operation of this rank that must end first."""
    prefetch: bool = False
    """The host issues it only after it has launched the works between this place and the first wait for it (FSDP's implicit prefetch)."""
    more_messages: tuple[Message, ...] = ()
    """Collectives that follow the first as part of the same operation."""
    is_limited: bool = False
    """The host issues it, and launches later kernels, no earlier than compute reaches this place (FSDP1's ``limit_all_gathers``)."""
    delay: float = 0.0
    """Seconds between the arrival of the last rank and the begin of the operation (Horovod's cycle)."""
    copied_bytes: float = 0.0
    """Bytes that a stream other than the compute stream reads and writes in GPU memory before the operation begins."""

    @property
    def messages(self) -> tuple[Message, ...]:
        """Return all its collectives in order."""
        return (Message(self.op, self.nbytes), *self.more_messages)


class Wait(NamedTuple):
    """Block compute until the operation *tag* has ended."""

    tag: Tag
    host: bool = False
    """Whether the host also waits before it launches later kernels; otherwise only the compute stream waits."""


class Free(NamedTuple):
    """Free the gathered weights of *units*."""

    units: tuple[int, ...]


class Send(NamedTuple):
    """Send *nbytes* to the rank at the same place in *stage*; the next work waits for the send if stages do not overlap messages."""

    tag: Tag
    stage: int
    nbytes: float
    holds: bool = True
    """If False, the next work does not wait; the wait comes with the next send that holds, or before the optimizer."""


class Receive(NamedTuple):
    """Block compute until the *nbytes* of *tag* have arrived from *stage*.

    Its place is where the data are used. Receive buffers are assumed to be posted earlier, because torch's runtime posts receives in the
    order of sends.
    """

    tag: Tag
    stage: int
    nbytes: float


Instruction = Load | Work | Pack | Unpack | Copy | Update | Start | Wait | Free | Send | Receive
Program = tuple[Instruction, ...]


def micro_batch_of(instruction: Instruction) -> int | None:
    """Return the micro-batch that *instruction* belongs to; None if it is for the whole step, or for no particular one."""
    match instruction:
        case Load() | Work() | Copy():
            return instruction.micro_batch
        case Start() | Wait() | Send() | Receive():
            return instruction.tag[2]
        case _:
            return None


def with_host_waits(instructions: Iterable[Instruction], ops: Container[Op]) -> Iterator[Instruction]:
    """Yield *instructions* with a ``Wait`` inserted directly after the start of each operation in *ops*."""
    for instruction in instructions:
        yield instruction
        if type(instruction) is Start and instruction.op in ops:
            yield Wait(instruction.tag)


def works_before_use(program: Sequence[Instruction], at: int) -> Iterator[Work]:
    """Yield the works of *program* between the start at place *at* and the first wait for it."""
    start = program[at]
    assert isinstance(start, Start)
    for each in map(program.__getitem__, range(at + 1, len(program))):
        if isinstance(each, Wait) and each.tag == start.tag:
            return
        if isinstance(each, Work):
            yield each


def with_loads(instructions: Iterable[Instruction]) -> Iterator[Instruction]:
    """Yield *instructions* with a ``Load`` of the micro-batch inserted before each forward of the model's first unit."""
    for instruction in instructions:
        if type(instruction) is Work and instruction.part == "F" and instruction.first == 0:
            yield Load(instruction.micro_batch)
        yield instruction


def paired(forward: Iterable[Instruction], backward: Iterable[Instruction]) -> Iterator[Instruction]:
    """Yield *forward* and *backward*; as a pair, if each is one work and nothing lies between them."""
    before, after = merge_work(forward), merge_work(backward)
    works = [each for each in (*before, *after) if type(each) is Work]
    if len(works) == 2 and before[-1] is works[0] and after[0] is works[1]:
        first, second = works
        before = (*before[:-1], first._replace(beside=(second.first, second.last)))
        after = (second._replace(beside=(first.first, first.last)), *after[1:])
    yield from before
    yield from after


def merge_work(instructions: Iterable[Instruction]) -> Program:
    """Return the program with consecutive work on neighboring units merged."""
    joined: list[Instruction] = []
    before: Instruction | None = None
    for instruction in instructions:
        if type(instruction) is Work and type(before) is Work and _follows(before, instruction):
            first, last = min(before.first, instruction.first), max(before.last, instruction.last)
            instruction = joined[-1] = Work(before.part, first, last, before.micro_batch)
        else:
            joined.append(instruction)
        before = instruction
    return tuple(joined)


def _follows(before: Work, after: Work) -> bool:
    if (before.part, before.micro_batch) != (after.part, after.micro_batch) or before.beside or after.beside:
        return False
    return after.first == before.last + 1 if after.part == "F" else after.last == before.first - 1
