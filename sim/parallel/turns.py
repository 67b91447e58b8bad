"""Which part of a stage's program repeats? Its steady state is a sequence of equal turns, so a step of fewer micro-batches has all else.

A turn is the work on as many micro-batches as there are stages: that is the period of the orders of 1F1B, of interleaved 1F1B (one round of
a stage's chunks, Narayanan et al. 2021) and of divided backward passes. A schedule without such a part (GPipe) has no turns. What a step
waits for at its end, in the order in which operations were entered, includes operations of all turns; those of turns left out had ended.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from sim.parallel.program import Copy, Free, Instruction, Load, Program, Receive, Send, Start, Tag, Wait, Work

_REPEATED: Final = (Load, Work, Copy, Free, Send, Receive, Start, Wait)
"""Types of instructions in a turn."""
_PASSES: Final = (Load, Work, Send, Receive)
"""Those that only forward and backward have."""


class Turns(NamedTuple):
    """The turns of the steady part of a *program*, each of *length* instructions: three before the index *end*, one from there on."""

    program: Program
    end: int
    """Index at which the turns follow that the program leaves out."""
    length: int
    left_out: int
    """Number of turns that it leaves out of the whole program."""

    @property
    def begin(self) -> int:
        """Return the index at which the turns before `end` begin."""
        return self.end - 3 * self.length

    @property
    def loads(self) -> bool:
        """Return whether a turn takes micro-batches from a loader."""
        return any(isinstance(instruction, Load) for instruction in self.program[self.begin : self.end])

    @property
    def communicates(self) -> bool:
        """Return whether a turn starts operations of groups."""
        return any(isinstance(instruction, Start) for instruction in self.program[self.begin : self.end])


def turns_of(of_step: Program, short: Program, each: int, left_out: int) -> Turns | None:
    """Return the turns of *short*, which is the program *of_step* without *left_out* turns of *each* micro-batches; None if it is not."""
    length, rest = divmod(_last_pass(of_step) - _last_pass(short), left_out)
    if rest or length <= 0:
        return None
    skipped = each * left_out
    alike = next((at for at, (one, other) in enumerate(zip(short, of_step, strict=False)) if one != other), len(short))
    end = alike - length
    if end < 3 * length:
        return None
    resumed = end + left_out * length
    repeats = of_step[end - 2 * length : resumed + length]
    if not all(isinstance(instruction, _REPEATED) for instruction in repeats):
        return None
    before = of_step[end - 3 * length :]
    if any(_later(one, each) != other for one, other in zip(before, repeats, strict=False)):
        return None
    started = {instruction.tag for instruction in of_step[end:resumed] if isinstance(instruction, Start)}
    tail = _last_pass(of_step)
    after = [one for at, one in enumerate(of_step[resumed:], resumed) if at < tail or not (isinstance(one, Wait) and one.tag in started)]
    if len(after) != len(short) - end:
        return None
    pairs = zip(short[end:], after, strict=True)
    return Turns(short, end, length, left_out) if all(other in (one, _later(one, skipped)) for one, other in pairs) else None


def _last_pass(program: Program) -> int:
    """Return the index of the last instruction of a forward or backward: after it, a step may wait for operations of all its turns."""
    return max(at for at, instruction in enumerate(program) if isinstance(instruction, _PASSES))


def _later(instruction: Instruction, micro_batches: int) -> Instruction:
    """Return *instruction* for a micro-batch that comes *micro_batches* later."""
    match instruction:
        case Start():
            before = instruction.predecessor
            later = _later_tag(before, micro_batches) if before is not None else None
            return instruction._replace(tag=_later_tag(instruction.tag, micro_batches), predecessor=later)
        case Send() | Receive() | Wait():
            return instruction._replace(tag=_later_tag(instruction.tag, micro_batches))
        case Copy():
            tag = _later_tag(instruction.tag, micro_batches) if instruction.tag is not None else None
            return instruction._replace(micro_batch=instruction.micro_batch + micro_batches, tag=tag)
        case Load() | Work():
            return instruction._replace(micro_batch=instruction.micro_batch + micro_batches)
        case _:
            return instruction


def _later_tag(tag: Tag, micro_batches: int) -> Tag:
    what, number, own = tag
    return what, number, own + micro_batches
