"""In which order does each rank of a pipeline run its chunks? Six schedules, and a check whether the orders of all stages can finish.

The orders equal those of torch.distributed.pipelining (2.13): ``gpipe`` (Huang et al. 2019), ``1f1b`` and ``interleaved_1f1b`` (Narayanan
et al. 2021, arXiv 2104.04473), ``zb_h1`` and ``zbv`` (Qi et al. 2024, arXiv 2401.10241; ``zb_h1`` is torch's ScheduleInterleavedZeroBubble
with one chunk), ``dualpipev`` (github.com/deepseek-ai/DualPipe; an overlapped pair is an F and the B after it).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice, pairwise
from typing import Final, NamedTuple

from sim.parallel.program import PassPart
from sim.spec.parallel import SPLIT_STAGES, UNSPLIT_STAGES
from sim.spec.yaml import SpecError

PASSES: Final[dict[PassPart, str]] = {"F": "forward", "B": "backward", "I": "input gradient", "W": "weight gradient"}

RENDEZVOUS_SCHEDULES: Final = ("gpipe", "1f1b")
"""Schedules whose messages begin when the receiver requests them; the sender's compute waits until they are sent."""

_ACTIVE: Final = 3
"""Maximum number of chunks that a rank holds gathered: ``max_active_stages`` of torch's ``_add_unshard_reshard``."""


class Action(NamedTuple):
    """One pass of one micro-batch: forward, backward, or its halves (gradient of the input, gradient of the weights)."""

    kind: PassPart
    chunk: int
    """Local index of the chunk on its rank, in the order of the model."""
    micro_batch: int


def actions(schedule: str, stages: int, chunks: int, micro_batches: int, stage: int, ahead: int = 0) -> tuple[Action, ...]:
    """Return the actions of the rank of *stage* in one step, in order; raise SpecError for combinations that `check_schedule` rejects.

    *ahead*: further forwards before the first backward of (interleaved) 1F1B, without which a backward may need the forward before it.
    """
    check_schedule(schedule, stages, chunks, micro_batches)
    if not 0 <= stage < stages:
        raise ValueError(f"stage {stage} of a pipeline of {stages}")
    if schedule == "zbv":
        return _zbv(stages, micro_batches, stage)
    if schedule == "dualpipev":
        return _dualpipev(stages, micro_batches, stage)
    warm_up = _warm_up(schedule, stages, chunks, micro_batches, stage)
    warm_up += ahead if schedule in ("1f1b", "interleaved_1f1b") else 0
    return tuple(_looped(chunks, micro_batches, _group(stages, micro_batches), warm_up, stage if schedule == "zb_h1" else None))


def paired_forwards(schedule: str, stages: int, chunks: int, micro_batches: int, stage: int) -> frozenset[int]:
    """Return the places in `actions`, one forward ahead, of the forwards that can run as a pair with the backward after them.

    DualPipe's last rank runs its first pair one after the other, for a smaller bubble (torch's ``ScheduleDualPipeV``). Of the orders of
    1F1B, these are the forwards after the warm-up (Megatron-LM core/pipeline_parallel/schedules.py). Other schedules have none.
    """
    if schedule == "dualpipev":
        program = actions(schedule, stages, chunks, micro_batches, stage)
        pairs = [at for at, (action, following) in enumerate(pairwise(program)) if action.kind + following.kind == "FB"]
        return frozenset(pairs[1:] if stage == stages - 1 else pairs)
    if schedule not in ("1f1b", "interleaved_1f1b"):
        return frozenset()
    every = chunks * micro_batches
    warm_up = min(every, _warm_up(schedule, stages, chunks, micro_batches, stage) + 1)
    return frozenset(range(warm_up, 2 * every - warm_up, 2))


def position(schedule: str, stages: int, stage: int, chunk: int) -> int:
    """Return the number of a local *chunk* in the model, counted from its input: chunks loop over the stages, or form a V."""
    if schedule in SPLIT_STAGES and chunk == 1:
        return 2 * stages - 1 - stage
    return chunk * stages + stage


def holder(schedule: str, stages: int, chunks: int, global_chunk: int) -> tuple[int, int]:
    """Return the stage and the local chunk of *global_chunk*: the inverse of `position`."""
    if not 0 <= global_chunk < stages * chunks:
        raise ValueError(f"chunk {global_chunk} is not in a model of {stages * chunks} chunks")
    chunk, place = divmod(global_chunk, stages)
    return (stages - 1 - place if schedule in SPLIT_STAGES and chunk == 1 else place), chunk


def check_schedule(schedule: str, stages: int, chunks: int, micro_batches: int) -> None:
    """Raise SpecError with a one-sentence message if *schedule* cannot run that many micro-batches on such a pipeline."""
    if min(stages, chunks, micro_batches) < 1:
        raise SpecError(f"a pipeline of {stages} stages, {chunks} chunks each, with {micro_batches} micro-batches; write 1 or more of each")
    if schedule in SPLIT_STAGES and chunks != 2:
        advice = "write virtual_stages: 2" if stages > 1 else "write pipeline: 2 or more, or schedule: 1f1b"
        raise SpecError(f"schedule {schedule} has 2 chunks on each stage, not {chunks}; {advice}")
    if schedule in UNSPLIT_STAGES and chunks > 1:
        raise SpecError(
            f"schedule {schedule} has 1 chunk on each stage, not {chunks}; write virtual_stages: 1, or schedule: interleaved_1f1b"
        )
    if schedule == "dualpipev" and micro_batches < 2 * stages:
        raise SpecError(
            f"schedule dualpipev on {stages} stages needs at least {2 * stages} micro-batches, not {micro_batches}; "
            f"write micro_batches: {2 * stages}, or schedule: zbv"
        )
    if schedule == "interleaved_1f1b" and not _divides(stages, micro_batches):
        raise SpecError(
            f"schedule interleaved_1f1b on {stages} stages cannot run {micro_batches} micro-batches in equal groups of {stages} or more; "
            f"write micro_batches: {_nearest(stages, micro_batches)}"
        )


def waits_for_send(action: Action, following: Action | None, runs_ahead: bool) -> bool:
    """Return whether a stage that waits for its sends waits for the send of *action* before it continues to compute.

    With *runs_ahead* (torch/distributed/pipelining/schedules.py), the sends of warm-up and cool-down, and all sends of GPipe, are issued
    on their own and waited for later. A send before a pass of the other direction forms one batch with the receive after it.
    """
    return not runs_ahead or following is None or following.kind != action.kind


class Gathering(NamedTuple):
    """The local chunks with sharded weights that torch's runtime first frees and then gathers before a pass."""

    freed_chunks: tuple[int, ...]
    gathered_chunks: tuple[int, ...]


def gatherings(program: Sequence[Action]) -> list[Gathering]:
    """Return the gatherings before each action of *program* and after the last: the next three chunks are held, others are freed.

    torch/distributed/pipelining/schedules.py, ``_add_unshard_reshard``; its runtime runs all but `RENDEZVOUS_SCHEDULES`.
    """
    order, coming = list[int](), [tuple[int, ...]()]
    for action in reversed(program):
        order = [action.chunk, *(chunk for chunk in order if chunk != action.chunk)]
        coming.append(tuple(order[:_ACTIVE]))
    steps, held = [], tuple[int, ...]()
    for ahead in reversed(coming):
        steps.append(Gathering(tuple(chunk for chunk in held if chunk not in ahead), tuple(chunk for chunk in ahead if chunk not in held)))
        held = ahead
    return steps


def find_deadlock(schedule: str, programs: Sequence[Sequence[Action]]) -> list[str] | None:
    """Return None if the *programs* of all stages finish, else the cycle of waits as text, one wait per line.

    Sends are buffered. A forward waits for the forward of the previous chunk. A backward waits for its own forward and for the backward of
    the next chunk.
    """
    chunks = 1 + max((action.chunk for action in chain(*programs)), default=0)
    run = _UntimedRun(schedule, chunks, programs)
    run.advance()
    return run.cycle()


def _group(stages: int, micro_batches: int) -> int:
    """Return how many micro-batches pass one chunk before the next chunk begins: torch's rule (Megatron-LM's for multiples of *stages*)."""
    return micro_batches // max(1, micro_batches // stages)


def _warm_up(schedule: str, stages: int, chunks: int, micro_batches: int, stage: int) -> int:
    """Return the forwards of *stage* before forwards and backwards alternate; raise ValueError for schedules that do not alternate so."""
    hops = stages - 1 - stage
    if schedule == "gpipe":
        return micro_batches
    if schedule == "interleaved_1f1b":
        return (chunks - 1) * _group(stages, micro_batches) + 2 * hops
    if schedule in ("1f1b", "zb_h1"):
        return hops
    raise ValueError(f"schedule {schedule} has no order of passes here")


def _divides(stages: int, micro_batches: int) -> bool:
    return micro_batches % _group(stages, micro_batches) == 0


def _nearest(stages: int, micro_batches: int) -> str:
    below = next(fewer for fewer in range(micro_batches - 1, 0, -1) if _divides(stages, fewer))
    above = next(more for more in range(micro_batches + 1, micro_batches + stages + 1) if _divides(stages, more))
    return f"{below} or {above}"


def _looped(chunks: int, micro_batches: int, group: int, warm_up: int, lag: int | None) -> Iterator[Action]:
    """Yield *warm_up* forwards, then forwards and backwards in alternation, then the remaining backwards.

    With *lag*, backwards are split, and the gradient of the weights follows that many backwards later.
    """
    order = [(step // group % chunks, step // (group * chunks) * group + step % group) for step in range(chunks * micro_batches)]
    forwards = [Action("F", chunk, micro_batch) for chunk, micro_batch in order]
    yield from forwards[:warm_up]
    for step, (chunk, micro_batch) in enumerate(order):
        yield from forwards[warm_up + step : warm_up + step + 1]
        yield Action("B" if lag is None else "I", chunks - 1 - chunk, micro_batch)
        if lag is not None and step >= lag:
            yield from _weights(order, chunks, step - lag, step - lag + 1)
    if lag is not None:
        yield from _weights(order, chunks, max(0, len(order) - lag), len(order))


def _weights(order: Sequence[tuple[int, int]], chunks: int, begin: int, end: int) -> Iterator[Action]:
    return (Action("W", chunks - 1 - chunk, micro_batch) for chunk, micro_batch in order[begin:end])


def _zbv(stages: int, micro_batches: int, stage: int) -> tuple[Action, ...]:
    """Return the actions; with fewer than 2 x stages - 1 micro-batches, those of 2 x stages - 1 without the ones that do not exist."""
    many, hops = max(2 * stages - 1, micro_batches), stages - 1 - stage
    fed = many - (2 * stages - 1 - stage)
    """Forwards of the first chunk that remain after the warm-up."""
    steps = [
        *["F0"] * (2 * hops + 1),
        *["F1", "F0"] * stage,
        *["F1", "I1", "W1"] * (hops + 1),
        *["F0", "I0", "W0", "F1", "I1", "W1"] * fed,
        *["I0", "W0", "F1", "I1", "W1"] * (many - stages - fed),
        *["I0", "I1"] * stage,
        *["I0", "W0"] * (hops + 1),
        *["W1"] * stage,
        *["W0"] * stage,
    ]
    return tuple(action for action in _numbered(steps) if action.micro_batch < micro_batches)


def _dualpipev(stages: int, micro_batches: int, stage: int) -> tuple[Action, ...]:
    hops, turns = stages - 1 - stage, stage + 1
    steps = [
        *["F0"] * (2 * hops),
        *["F0", "F1"] * turns,
        *["I1", "W", "F1"] * hops,
        *["F0", "B1", "F1", "B0"] * (micro_batches - 2 * stages + turns),
        *["B1", "F1", "B0"] * hops,
        # the second half of these last backwards leaves the gradients of the weights for the drain
        *(f"{'B' if index < turns else 'I'}{1 - index % 2}" for index in range(2 * turns)),
        *["W", "I0"] * hops,
        *["W"] * turns,
    ]
    return tuple(_numbered(steps))


def _numbered(steps: Iterable[str]) -> Iterator[Action]:
    """Number the micro-batches of *steps* ("F0": forward of chunk 0), increasing per kind; W takes the oldest pending I (of its chunk)."""
    count: Counter[tuple[PassPart, int]] = Counter()
    pending: list[Action] = []
    for step in steps:
        if step[0] == "W":
            oldest = next(action for action in pending if step in ("W", f"W{action.chunk}"))
            pending.remove(oldest)
            yield oldest._replace(kind="W")
            continue
        kind: PassPart = "F" if step[0] == "F" else "B" if step[0] == "B" else "I"
        way: PassPart = "B" if kind == "I" else kind
        chunk = int(step[1])
        action = Action(kind, chunk, count[way, chunk])
        count[way, chunk] += 1
        if kind == "I":
            pending.append(action)
        yield action


class _Token(NamedTuple):
    """A pass of a chunk of the model. The gradient of the input, which B and I produce, is recorded as B."""

    kind: PassPart
    chunk: int
    micro_batch: int

    def __str__(self) -> str:
        return f"{PASSES[self.kind]} of chunk {self.chunk}, micro-batch {self.micro_batch}"


class _UntimedRun:
    """An untimed run of all stages: each stage advances until its next action lacks an input."""

    def __init__(self, schedule: str, chunks: int, programs: Sequence[Sequence[Action]]) -> None:
        self.schedule = schedule
        self.chunks = chunks
        self.programs = programs
        self.places = [0] * len(programs)
        self.done: set[_Token] = set()

    def advance(self) -> None:
        """Run every stage as far as possible; a blocked stage is resumed when the pass that it waits for is done."""
        waiting: defaultdict[_Token, list[int]] = defaultdict(list)
        ready = list(range(len(self.programs)))
        while ready:
            stage = ready.pop()
            for action in islice(self.programs[stage], self.places[stage], None):
                if (need := self._missing(stage, action)) is not None:
                    waiting[need].append(stage)
                    break
                produced = self._produced(stage, action)
                self.done.add(produced)
                self.places[stage] += 1
                ready += waiting.pop(produced, ())

    def _token(self, stage: int, action: Action) -> _Token:
        return _Token(action.kind, position(self.schedule, len(self.programs), stage, action.chunk), action.micro_batch)

    def _produced(self, stage: int, action: Action) -> _Token:
        token = self._token(stage, action)
        return token._replace(kind="B") if token.kind == "I" else token

    def _missing(self, stage: int, action: Action) -> _Token | None:
        """Return the first pass that *action* needs and that has not run yet, or None."""
        token = self._token(stage, action)
        if action.kind == "F":
            needs = [_Token("F", token.chunk - 1, token.micro_batch)] if token.chunk > 0 else []
        elif action.kind == "W":
            needs = [_Token("B", token.chunk, token.micro_batch)]
        else:
            last = token.chunk == len(self.programs) * self.chunks - 1
            needs = [_Token("F", token.chunk, token.micro_batch), *([] if last else [_Token("B", token.chunk + 1, token.micro_batch)])]
        return next((need for need in needs if need not in self.done), None)

    def cycle(self) -> list[str] | None:
        """Follow waits from the first blocked stage until a stage recurs, or until no stage runs the missing pass."""
        stage = next((stage for stage, program in enumerate(self.programs) if self.places[stage] < len(program)), None)
        waits: dict[int, str] = {}
        while stage is not None and stage not in waits:
            action = self.programs[stage][self.places[stage]]
            need = self._missing(stage, action)
            assert need is not None
            owner, _ = holder(self.schedule, len(self.programs), self.chunks, need.chunk)
            line = f"stage {stage} waits at {self._token(stage, action)} for the {need}"
            if need not in (self._produced(owner, other) for other in self.programs[owner]):
                return [f"{line}, which stage {owner} does not run"]
            waits[stage] = f"{line}, which stage {owner} runs later"
            stage = owner
        return list(waits.values())[list(waits).index(stage) :] if stage is not None else None
