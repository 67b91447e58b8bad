"""Do stages send and receive what torch's pipeline runtime does, in an order that ends?

Oracles: ``_add_send_recv``, ``_validate_schedule`` and ``_simulate_comms_compute`` of torch.distributed.pipelining.schedules.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Any

import pytest

from sim.parallel.lower.layouts import Layout, program
from sim.parallel.program import Receive, Send, Work
from sim.parallel.schedule import holder, position
from tests.parallel.layouts import block_model, layout
from tests.parallel.test_schedule import TORCH, Case, possible, stage_of

SENT = {"activations": ("SEND_F", "RECV_F", -1), "gradients": ("SEND_B", "RECV_B", 1)}
Step = tuple[str, int, int]
"""(action, chunk of the model, micro-batch)."""


@pytest.fixture
def schedules(monkeypatch: pytest.MonkeyPatch) -> Any:
    module: Any = pytest.importorskip("torch.distributed.pipelining.schedules", reason="the oracle is torch")
    # tests add sends and receives themselves, to orders whose stages have no model
    monkeypatch.setattr(module._PipelineScheduleRuntime, "_prepare_schedule_with_comms", lambda self, actions: None)
    return module


def cases() -> list[Case]:
    """Every third pipeline of 2 to 5 stages that both torch's runtime and this simulator play: not GPipe and 1F1B, which it runs otherwise.

    Torch wants equal groups of micro-batches for ZB-H1, too.
    """
    small = [case for case in possible(1) if case[1] <= 5 and case[3] <= 16]
    split = [case for case in small if case[0] in ("zbv", "dualpipev") or (case[0] == "zb_h1" and case[3] % case[1] == 0)]
    return [*split, *(case for case in small if case[0] == "interleaved_1f1b" and case[2] > 1)][::3]


def of(case: Case) -> Layout:
    schedule, stages, chunks, micro_batches = case
    blocks = block_model({f"layers.{number}.product": (1,) for number in range(stages * chunks)})
    return layout(blocks, stages, pipeline=stages, virtual_stages=chunks, schedule=schedule, micro_batches=micro_batches, shard="none")


def ours(case: Case) -> list[list[Step]]:
    """Return what each stage does: passes, sends and receives."""
    made = of(case)
    return [list(_steps(made, stage)) for stage in range(case[1])]


def _steps(made: Layout, stage: int) -> Iterator[Step]:
    for each in program(made, stage):
        match each:
            case Work():  # of two chunks, where one follows another on the same rank
                chunks = [chunk for chunk, units in enumerate(made.chunks) if each.first <= units[0] <= each.last]
                for chunk in chunks if each.part == "F" else reversed(chunks):
                    yield each.part, chunk, each.micro_batch
            case Send(tag=(what, chunk, micro_batch)):
                send, _, back = SENT[what]
                yield send, chunk + back, micro_batch
            case Receive(tag=(what, chunk, micro_batch)):
                yield SENT[what][1], chunk, micro_batch


def stage_ranks(case: Case) -> dict[int, int]:
    schedule, stages, chunks, _ = case
    return {position(schedule, stages, rank, chunk): rank for rank in range(stages) for chunk in range(chunks)}


def theirs(case: Case, schedules: Any) -> list[list[Step]]:
    """Return what each rank does once torch has added sends and receives; two passes that overlap, one after another."""
    schedule, stages, chunks, micro_batches = case
    built = getattr(schedules, TORCH[schedule])([stage_of(chunk, stages, chunks) for chunk in range(chunks)], micro_batches)
    order = {rank: [action for action in actions if action] for rank, actions in built.pipeline_order.items()}
    ranks = stage_ranks(case)
    added = schedules._add_send_recv(order, stage_to_rank=lambda stage: ranks[stage], num_stages=stages * chunks)
    flat = [[part for action in added[rank] for part in action.sub_actions or (action,)] for rank in range(stages)]
    return [[(part.computation_type.value, part.stage_index, part.microbatch_index) for part in rank] for rank in flat]


def only(start: str, steps: Iterable[Step]) -> list[Step]:
    return [step for step in steps if step[0].startswith(start)]


def test_sends_are_torchs_in_their_order_and_receives_are_the_same(schedules: Any) -> None:
    """Torch posts receives in the order of sends, ahead of use; here a receive is where a pass waits, right before it."""
    wrong = []
    compared = set()
    for case in cases():
        for mine, his in zip(ours(case), theirs(case, schedules), strict=True):
            compared.add(case[0])
            same_sends = only("SEND", mine) == only("SEND", his)
            same_receives = sorted(only("RECV", mine)) == sorted(only("RECV", his))
            if not (same_sends and same_receives and _right_before_use(mine)):
                wrong.append(case)
    assert wrong == []
    assert compared == set(TORCH) - {"gpipe", "1f1b"}


def _right_before_use(steps: Sequence[Step]) -> bool:
    used = {"RECV_F": "F", "RECV_B": "BI"}
    return all(
        then[0] in used[what] and then[1:] == (chunk, micro_batch) for (what, chunk, micro_batch), then in pairwise(steps) if what in used
    )


def test_messages_between_two_ranks_come_in_the_order_they_are_sent_in(schedules: Any) -> None:
    """What torch's order of receives is for: NCCL matches messages of two ranks by their order, not by name."""
    wrong = []
    for case in cases():
        schedule, stages, chunks, _ = case
        mine, his = ours(case), theirs(case, schedules)
        sent, received = (defaultdict[tuple[int, int], list[Step]](list) for _ in range(2))
        for rank in range(stages):
            for what, chunk, micro_batch in only("SEND", mine[rank]):
                to = chunk + (1 if what == "SEND_F" else -1)
                sent[rank, holder(schedule, stages, chunks, to)[0]].append((what.replace("SEND", "RECV"), to, micro_batch))
            for what, chunk, micro_batch in only("RECV", his[rank]):
                source = chunk - (1 if what == "RECV_F" else -1)
                received[holder(schedule, stages, chunks, source)[0], rank].append((what, chunk, micro_batch))
        if sent != received:
            wrong.append(case)
    assert wrong == []


def test_torch_finds_no_pass_missing_and_no_deadlock(schedules: Any) -> None:
    wrong = []
    for case in cases():
        _, stages, chunks, micro_batches = case
        kinds = {kind.value: kind for kind in schedules._ComputationType}
        actions = {
            rank: [schedules._Action(chunk, kinds[what], micro_batch) for what, chunk, micro_batch in steps]
            for rank, steps in enumerate(ours(case))
        }
        ranks = stage_ranks(case)
        passes = {rank: [action for action in of if action.computation_type.value in "FBIW"] for rank, of in actions.items()}
        if schedules._validate_schedule(passes, stages, stages * chunks, micro_batches) != ranks:
            wrong.append(case)
        schedules._simulate_comms_compute(actions, lambda stage, ranks=ranks: ranks[stage], stages * chunks)  # raises where ranks wait
    assert wrong == []


def test_torch_finds_a_deadlock_where_a_send_is_missing(schedules: Any) -> None:
    case: Case = ("zb_h1", 2, 1, 4)
    kinds = {kind.value: kind for kind in schedules._ComputationType}
    actions = {
        rank: [schedules._Action(chunk, kinds[what], micro_batch) for what, chunk, micro_batch in steps if what != "SEND_B"]
        for rank, steps in enumerate(ours(case))
    }
    with pytest.raises(ValueError, match="not progressing"):
        schedules._simulate_comms_compute(actions, lambda stage: stage, 2)
