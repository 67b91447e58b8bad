"""How does a pipeline schedule supplied by the user run? It returns the passes of each stage once, which are checked before they run.

Every micro-batch passes each chunk once forward and once backward (B, or its halves I and W). The stages must not deadlock: neither by
waiting for passes, nor, if compute waits for sends, by waiting for a receiver that never posts its receive. Limit: chunks are
looped over the stages (chunk c of stage s is number c x stages + s of the model), not V-shaped as in zbv.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol, cast

from sim.parallel.program import PassPart
from sim.parallel.schedule import PASSES, Action, find_deadlock, position, waits_for_send
from sim.spec.extensions import SCHEDULES, call_extension, extension, is_place
from sim.spec.parallel import SCHEDULES as BUILT_IN
from sim.spec.yaml import SpecError

_HALVES: Final = ({"F": 1, "B": 1}, {"F": 1, "I": 1, "W": 1})
_ONCE: Final = "each micro-batch goes through each chunk forward once (F) and backward once (B, or I and W)"


class PipelineSchedule(Protocol):
    """The order in which each stage of a pipeline runs its micro-batches; docs/develop/own-schedule.md has an example."""

    @property
    def name(self) -> str:
        """Return the name of the schedule for ``schedule:`` in YAML and for ``--schedule``."""

    @property
    def waits_for_sends(self) -> bool:
        """Whether compute waits until a stage's sends are done, as in torch's GPipe and 1F1B; torch's other schedules do not wait."""

    def passes(self, stage: int, stages: int, chunks: int, micro_batches: int) -> Iterable[tuple[str, int, int]]:
        """Return the passes that *stage* runs in a step, in order: (kind, local chunk, micro-batch), counted from 0.

        Kinds are F (forward), B (backward), or the halves of B: I (gradient of the input) and W (gradient of the weights).
        Raise ValueError with a one-sentence message for numbers that the schedule cannot run.
        """


@dataclass(frozen=True)
class OwnPasses:
    """The checked passes of a user's schedule for every stage."""

    waits_for_sends: bool
    programs: tuple[tuple[Action, ...], ...]


def own_passes(name: str, stages: int, chunks: int, micro_batches: int, runs_ahead: bool = False) -> OwnPasses | None:
    """Return the passes of the schedule *name* on such a pipeline; None if it is built in.

    *runs_ahead* is as in `sim.parallel.schedule.waits_for_send`. Raise SpecError with a one-sentence message if a pass is
    missing or duplicated, or if the stages deadlock.
    """
    if name in BUILT_IN:
        return None
    schedule = cast(PipelineSchedule, extension(SCHEDULES, name, BUILT_IN))
    waits = schedule.waits_for_sends
    if not isinstance(waits, bool):
        raise SpecError(f"schedule {name}: waits_for_sends is {waits!r}; write True or False")
    programs = tuple(_passes(schedule, name, stage, stages, chunks, micro_batches) for stage in range(stages))
    cycle = find_deadlock(name, programs) or (_unmet(programs, chunks, runs_ahead) if waits else None)
    if cycle is not None:
        raise SpecError(f"schedule {name} never ends: {'; '.join(cycle)}; change the order of its passes")
    return OwnPasses(waits, programs)


def _passes(schedule: PipelineSchedule, name: str, stage: int, stages: int, chunks: int, micro_batches: int) -> tuple[Action, ...]:
    returned = call_extension(SCHEDULES, name, lambda: list(schedule.passes(stage, stages, chunks, micro_batches)))
    actions = tuple(_action(name, stage, each, chunks, micro_batches) for each in cast("list[object]", returned))
    counted = Counter(actions)
    for chunk in range(chunks):
        for micro_batch in range(micro_batches):
            kinds = {kind: times for kind in PASSES if (times := counted[Action(kind, chunk, micro_batch)])}
            if kinds not in _HALVES:
                raise SpecError(f"schedule {name}: stage {stage} runs {_describe(kinds)} chunk {chunk}, micro-batch {micro_batch}; {_ONCE}")
    return actions


def _action(name: str, stage: int, value: object, chunks: int, micro_batches: int) -> Action:
    """Return the pass that *value* describes. Raise SpecError if it does not describe one."""
    if isinstance(value, Sequence) and len(value) == 3:
        kind, chunk, micro_batch = value
        if isinstance(kind, str) and kind in PASSES and is_place(chunk, chunks) and is_place(micro_batch, micro_batches):
            return Action(kind, int(chunk), int(micro_batch))
    raise SpecError(
        f"schedule {name}: stage {stage} runs {value!r}; write (kind, chunk, micro-batch) with a kind of {', '.join(PASSES)}, "
        f"a chunk below {chunks} and a micro-batch below {micro_batches}"
    )


def _describe(kinds: dict[PassPart, int]) -> str:
    """Return text for the counts of passes: ``forward twice and no backward of``."""
    times = {1: "", 2: " twice"}
    phrases = [f"{PASSES[kind]}{times.get(count, f' {count} times')}" for kind, count in kinds.items()]
    lacking = [word for kinds_of, word in (("F", "forward"), ("BIW", "backward")) if not any(kind in kinds for kind in kinds_of)]
    phrases += [f"no {word}" for word in lacking]
    if "I" in kinds and not {"W", "B"} & set(kinds):
        phrases.append("no weight gradient")
    if "W" in kinds and not {"I", "B"} & set(kinds):
        phrases.append("no input gradient")
    return f"{' and '.join(phrases)} of"


def _unmet(programs: Sequence[Sequence[Action]], chunks: int, runs_ahead: bool) -> list[str] | None:
    """Return None if stages that wait for their sends finish, else the wait that blocks; a send needs a posted receive to complete."""
    total_chunks = len(programs) * chunks
    places, sent, posted = [0] * len(programs), set[tuple[str, int, int]](), set[tuple[str, int, int]]()
    waiting: list[set[tuple[str, int, int]]] = [set() for _ in programs]
    ahead: list[set[tuple[str, int, int]]] = [set() for _ in programs]
    moved = True
    while moved:
        moved = False
        for stage, program in enumerate(programs):
            while places[stage] < len(program):
                action = program[places[stage]]
                chunk = position("", len(programs), stage, action.chunk)
                source, target = _messages(action, chunk, total_chunks, len(programs))
                if source is not None:
                    sent.add(source)
                if (source is not None and source not in posted) or not waiting[stage] <= sent:
                    break
                waiting[stage] = set()
                if target is not None:
                    posted.add(target)
                    ahead[stage].add(target)
                places[stage] += 1
                if waits_for_send(action, program[places[stage]] if places[stage] < len(program) else None, runs_ahead):
                    waiting[stage], ahead[stage] = ahead[stage], set()
                moved = True
    stuck = [stage for stage, program in enumerate(programs) if places[stage] < len(program) and not waiting[stage] <= sent]
    if not stuck:
        return None
    what, chunk, micro_batch = min(waiting[stuck[0]] - sent)
    return [
        f"stage {stuck[0]} waits until stage {chunk % len(programs)} receives the {what} of micro-batch {micro_batch}, which happens "
        "later because waits_for_sends is True"
    ]


def _messages(
    action: Action, chunk: int, total_chunks: int, stages: int
) -> tuple[tuple[str, int, int] | None, tuple[str, int, int] | None]:
    """Return the message that *action* on *chunk* of *total_chunks* waits for, and the message that it sends; None if there is none."""
    if stages == 1 or action.kind == "W":
        return None, None
    if action.kind == "F":
        source = ("activations", chunk, action.micro_batch) if chunk > 0 else None
        return source, (("activations", chunk + 1, action.micro_batch) if chunk < total_chunks - 1 else None)
    source = ("gradients", chunk, action.micro_batch) if chunk < total_chunks - 1 else None
    return source, (("gradients", chunk - 1, action.micro_batch) if chunk > 0 else None)
