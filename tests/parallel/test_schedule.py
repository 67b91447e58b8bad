"""Do pipelines run their passes in the right order?

Oracles: the schedule classes of torch.distributed.pipelining, closed forms of what is held in flight, and a sort of the graph of waits.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from graphlib import CycleError, TopologicalSorter
from itertools import groupby, islice, zip_longest
from types import SimpleNamespace
from typing import Any, get_args

import pytest

from sim.parallel.schedule import Action, actions, check_schedule, find_deadlock, gatherings, holder, paired_forwards, position
from sim.spec.parallel import SPLIT_STAGES, Schedule
from sim.spec.yaml import SpecError

Case = tuple[Schedule, int, int, int]

TORCH: dict[Schedule, str] = {
    "gpipe": "ScheduleGPipe",
    "1f1b": "Schedule1F1B",
    "interleaved_1f1b": "ScheduleInterleaved1F1B",
    "zb_h1": "ScheduleInterleavedZeroBubble",
    "zbv": "ScheduleZBVZeroBubble",
    "dualpipev": "ScheduleDualPipeV",
}


def in_flight(program: Iterable[Action]) -> list[tuple[int, ...]]:
    """Return, after each action, the micro-batches that each local chunk holds: forward is done, backward (including W) is not."""
    program = tuple(program)
    held = [0] * (1 + max((action.chunk for action in program), default=-1))
    timeline = []
    for action in program:
        held[action.chunk] += {"F": 1, "B": -1, "I": 0, "W": -1}[action.kind]
        timeline.append(tuple(held))
    return timeline


def chunk_counts(schedule: Schedule) -> Sequence[int]:
    return (1, 2, 3, 4) if schedule == "interleaved_1f1b" else (2,) if schedule in SPLIT_STAGES else (1,)


def combinations(fewest: int = 1) -> Iterator[Case]:
    """Every schedule on 2 to 8 stages with *fewest* to 4 micro-batches a stage (1 instead of 0), possible or not."""
    for schedule in get_args(Schedule):
        for stages in range(2, 9):
            for chunks in chunk_counts(schedule):
                for micro_batches in range(max(1, fewest * stages), 4 * stages + 1):
                    yield schedule, stages, chunks, micro_batches


def possible(fewest: int = 0) -> Iterator[Case]:
    for case in combinations(fewest):
        try:
            check_schedule(*case)
        except SpecError:
            continue
        yield case


def programs(schedule: Schedule, stages: int, chunks: int, micro_batches: int) -> list[tuple[Action, ...]]:
    return [actions(schedule, stages, chunks, micro_batches, stage) for stage in range(stages)]


class PlayedStage(SimpleNamespace):
    """A stage without a model, which records the passes that torch runs on it."""

    def forward_one_chunk(self, micro_batch: int, *_: Any, **__: Any) -> None:
        self.passes.append(("F", self.stage_index, micro_batch))

    def backward_one_chunk(self, micro_batch: int, **_: Any) -> None:
        self.passes.append(("B", self.stage_index, micro_batch))

    def nothing(self, *_: Any, **__: Any) -> tuple[()]:
        return ()

    get_fwd_recv_ops = get_fwd_send_ops = get_bwd_recv_ops = get_bwd_send_ops = perform_reduce_grad = nothing


def stage_of(chunk: int, stages: int, chunks: int) -> PlayedStage:
    last = chunk == stages * chunks - 1
    return PlayedStage(stage_index=chunk, num_stages=stages * chunks, group_size=stages, group_rank=0, is_last=last, submod=None, passes=[])


def torch_orders(schedule: Schedule, stages: int, chunks: int, micro_batches: int) -> list[list[tuple[str, int, int]]]:
    """What torch's class runs on each rank: (kind, chunk of the model, micro-batch); raise its ValueError.

    The order that ScheduleGPipe and Schedule1F1B list is not what they run (1F1B's last stage counts from 1), so that they are run.
    """
    from torch.distributed.pipelining import schedules

    build = getattr(schedules, TORCH[schedule])
    if schedule in ("gpipe", "1f1b"):
        played = [stage_of(stage, stages, 1) for stage in range(stages)]
        for stage in played:
            build(stage, micro_batches)._step_microbatches()
        return [stage.passes for stage in played]
    order = build([stage_of(chunk, stages, chunks) for chunk in range(chunks)], micro_batches).pipeline_order
    flat = [[part for action in order[rank] if action for part in action.sub_actions or (action,)] for rank in range(stages)]
    return [[(action.computation_type.value, action.stage_index, action.microbatch_index) for action in rank] for rank in flat]


def test_orders_are_those_of_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    schedules: Any = pytest.importorskip("torch.distributed.pipelining.schedules", reason="the oracle is torch")
    # lowering to sends and receives changes no order and takes most of the time; shapes need a model
    monkeypatch.setattr(schedules._PipelineScheduleRuntime, "_prepare_schedule_with_comms", lambda self, actions: None)
    monkeypatch.setattr(schedules.PipelineScheduleSingle, "_initialize_stage", lambda self, *inputs: None)
    wrong, compared, refused = [], Counter[str](), []
    for case in combinations():
        schedule, stages, _, _ = case
        try:
            theirs = torch_orders(*case)
        except ValueError:
            refused.append(case)
            continue
        ours = [
            [(action.kind, position(schedule, stages, stage, action.chunk), action.micro_batch) for action in program]
            for stage, program in enumerate(programs(*case))
        ]
        compared[schedule] += 1
        if ours != theirs:
            wrong.append(case)
    assert wrong == []
    assert set(compared) == set(TORCH)
    # what torch refuses is refused here too, but for one chunk without halves, whose micro-batches need no groups
    assert {case for case in refused if case[0] != "zb_h1"} == {case for case in combinations() if case not in set(possible(1))}


def test_chunks_are_gathered_and_freed_as_torch_does() -> None:
    """Oracle: ``_add_unshard_reshard``, to which the order of what it frees at once does not matter."""
    schedules: Any = pytest.importorskip("torch.distributed.pipelining.schedules", reason="the oracle is torch")
    wrong, evicted = [], 0
    for case in islice(possible(), 0, None, 7):
        for program in programs(*case):
            given = [schedules._Action(each.chunk, schedules.FORWARD, each.micro_batch) for each in program]
            theirs = schedules._add_unshard_reshard(given)
            kinds = {schedules.RESHARD: "freed", schedules.UNSHARD: "gathered", schedules.FORWARD: "pass"}
            read = [(kinds[action.computation_type], action.stage_index) for action in theirs]
            ours: list[tuple[str, int]] = []
            for each, action in zip_longest(gatherings(program), program):
                ours += [("freed", chunk) for chunk in each.freed_chunks] + [("gathered", chunk) for chunk in each.gathered_chunks]
                ours += [("pass", action.chunk)] if action else []
            evicted += sum(bool(each.freed_chunks) for each in gatherings(program)[:-1])
            if _sorted_frees(ours) != _sorted_frees(read):
                wrong.append(case)
    assert wrong == []
    assert evicted


def _sorted_frees(order: Sequence[tuple[str, int]]) -> list[tuple[str, list[int]]]:
    runs = [(kind, [number for _, number in run]) for kind, run in groupby(order, key=lambda each: each[0])]
    return [(kind, sorted(numbers) if kind == "freed" else numbers) for kind, numbers in runs]


def test_every_pass_runs_once_and_every_pipeline_ends() -> None:
    wrong = []
    for case in possible():
        _, _, chunks, micro_batches = case
        every = {(chunk, micro_batch) for chunk in range(chunks) for micro_batch in range(micro_batches)}
        ranks = programs(*case)
        for program in ranks:
            runs = {kind: [action[1:] for action in program if action.kind == kind] for kind in "FBIW"}
            once = len(program) == len(set(program)) and set(runs["F"]) == every and set(runs["I"]) == set(runs["W"])
            if not once or sorted(runs["B"] + runs["I"]) != sorted(every):
                wrong.append(case)
        if find_deadlock(case[0], ranks) is not None:
            wrong.append(case)
    assert wrong == []


def test_pairs_of_dualpipev_are_those_of_torch() -> None:
    """Oracle: the ``OVERLAP_F_B`` actions of torch's ``ScheduleDualPipeV``."""
    schedules = pytest.importorskip("torch.distributed.pipelining.schedules", reason="compares with torch's schedules")
    for stages in range(2, 7):
        for micro_batches in (2 * stages, 2 * stages + 1, 4 * stages):
            fake = SimpleNamespace(pp_group_size=stages, _n_microbatches=micro_batches)
            for stage in range(stages):
                order = schedules.ScheduleDualPipeV._calculate_single_rank_operations(fake, stage)
                overlapped = [each.sub_actions for each in order if each is not None and each.sub_actions]
                program = actions("dualpipev", stages, 2, micro_batches, stage)
                own = [program[at : at + 2] for at in sorted(paired_forwards("dualpipev", stages, 2, micro_batches, stage))]
                assert [[(position("dualpipev", stages, stage, each.chunk), each.micro_batch) for each in pair] for pair in own] == [
                    [(each.stage_index, each.microbatch_index) for each in pair] for pair in overlapped
                ]


def test_one_more_forward_makes_the_pairs_of_1f1b_independent() -> None:
    """Oracle: Megatron-LM core/pipeline_parallel/schedules.py, get_pp_rank_microbatches; combined_1f1b.py: F, FB ... FB, B."""
    for stages, chunks, micro_batches in ((1, 1, 4), (1, 1, 1), (2, 2, 2), (2, 2, 4), (4, 2, 8), (4, 3, 12), (3, 2, 9)):
        schedule = "interleaved_1f1b" if chunks > 1 else "1f1b"
        ranks = [actions(schedule, stages, chunks, micro_batches, stage, ahead=1) for stage in range(stages)]
        assert find_deadlock(schedule, ranks) is None
        for stage, program in enumerate(ranks):
            usual = actions(schedule, stages, chunks, micro_batches, stage)
            assert [each for each in program if each.kind == "F"] == [each for each in usual if each.kind == "F"]
            assert [each for each in program if each.kind == "B"] == [each for each in usual if each.kind == "B"]
            group = micro_batches // max(1, micro_batches // stages)
            warm_up = min(chunks * micro_batches, (chunks - 1) * group + 2 * (stages - 1 - stage) + 1)
            pairs = sorted(paired_forwards(schedule, stages, chunks, micro_batches, stage))
            assert pairs == list(range(warm_up, len(program) - warm_up, 2))
            assert all(program[at].kind + program[at + 1].kind == "FB" and program[at][1:] != program[at + 1][1:] for at in pairs)


def test_micro_batches_in_flight() -> None:
    """1F1B holds min(p - s, m), ZB-H1 min(p, m), ZBV 2 p half as large, DualPipeV one more; interleaved its warm-up and one."""
    wrong = []
    for case in possible():
        schedule, stages, chunks, micro_batches = case
        group = micro_batches // max(1, micro_batches // stages)
        for stage, program in enumerate(programs(*case)):
            timeline = in_flight(program)
            peak = max(map(sum, timeline))
            expected = {
                "gpipe": micro_batches,
                "1f1b": min(stages - stage, micro_batches),
                "interleaved_1f1b": min((chunks - 1) * group + 2 * (stages - 1 - stage) + 1, chunks * micro_batches),
                "zb_h1": min(stages, micro_batches),
                "zbv": min(2 * stages, micro_batches + stage + 1, 2 * micro_batches),
                "dualpipev": 2 * stages + 1,
            }[schedule]
            if peak != expected or any(timeline[-1]) or len(timeline) != len(program):
                wrong.append((*case, stage, peak, expected))
    assert wrong == []


def test_in_flight_counts_each_chunk() -> None:
    program = [Action("F", 0, 0), Action("F", 1, 0), Action("F", 0, 1), Action("I", 1, 0), Action("W", 1, 0), Action("B", 0, 0)]
    assert in_flight(program) == [(1, 0), (1, 1), (2, 1), (2, 1), (2, 0), (1, 0)]
    assert in_flight([]) == []


def test_holders_and_positions() -> None:
    wrong = []
    for schedule, stages, chunks, _ in possible(4):
        places = [holder(schedule, stages, chunks, chunk) for chunk in range(stages * chunks)]
        if [position(schedule, stages, *place) for place in places] != list(range(stages * chunks)) or len(set(places)) != len(places):
            wrong.append((schedule, stages, chunks))
    assert wrong == []
    assert [holder("interleaved_1f1b", 2, 2, chunk) for chunk in range(4)] == [(0, 0), (1, 0), (0, 1), (1, 1)]
    assert [holder("zbv", 2, 2, chunk) for chunk in range(4)] == [(0, 0), (1, 0), (1, 1), (0, 1)]
    with pytest.raises(ValueError, match="chunk 4 is not in a model of 4"):
        holder("zbv", 2, 2, 4)
    with pytest.raises(ValueError, match="stage 2 of a pipeline of 2"):
        actions("1f1b", 2, 1, 4, 2)


def test_one_stage_alternates() -> None:
    assert [action.kind for action in actions("1f1b", 1, 1, 2, 0)] == ["F", "B", "F", "B"]
    assert [action.kind for action in actions("gpipe", 1, 1, 2, 0)] == ["F", "F", "B", "B"]


def test_refusals_say_what_would_do() -> None:
    cases: list[tuple[Case, str]] = [
        (("1f1b", 4, 1, 0), "a pipeline of 4 stages, 1 chunks each, with 0 micro-batches; write 1 or more of each"),
        (("zbv", 4, 1, 8), "schedule zbv has 2 chunks on each stage, not 1; write virtual_stages: 2"),
        (("zbv", 1, 1, 8), "schedule zbv has 2 chunks on each stage, not 1; write pipeline: 2 or more, or schedule: 1f1b"),
        (
            ("dualpipev", 4, 2, 7),
            "schedule dualpipev on 4 stages needs at least 8 micro-batches, not 7; write micro_batches: 8, or schedule: zbv",
        ),
        (("zb_h1", 4, 2, 8), "schedule zb_h1 has 1 chunk on each stage, not 2; write virtual_stages: 1, or schedule: interleaved_1f1b"),
        (
            ("interleaved_1f1b", 4, 2, 9),
            "schedule interleaved_1f1b on 4 stages cannot run 9 micro-batches in equal groups of 4 or more; write micro_batches: 8 or 10",
        ),
    ]
    said = {}
    for case, _ in cases:
        with pytest.raises(SpecError) as refusal:
            check_schedule(*case)
        said[case] = str(refusal.value)
    assert said == dict(cases)


def test_what_refusals_advise_works() -> None:
    """The nearest numbers of micro-batches: both work, none between them does."""
    works = {case for case in possible()}
    wrong = []
    for case in set(combinations(0)) - works:
        schedule, stages, chunks, micro_batches = case
        if schedule != "interleaved_1f1b":
            continue
        with pytest.raises(SpecError) as refusal:
            check_schedule(*case)
        below, above = (int(word) for word in str(refusal.value).rsplit(": ", 1)[1].split(" or "))
        between = [number for number in range(below + 1, above) if (schedule, stages, chunks, number) in works]
        if not below < micro_batches < above or between or not {(schedule, stages, chunks, end) for end in (below, above)} <= works:
            wrong.append(case)
    assert wrong == []


def test_a_cycle_of_waits_is_told() -> None:
    first = [Action("F", 0, 0), Action("B", 0, 0), Action("F", 0, 1), Action("B", 0, 1)]
    second = [Action("F", 0, 0), Action("F", 0, 1), Action("B", 0, 0), Action("B", 0, 1)]
    assert find_deadlock("gpipe", [first, second]) == [
        "stage 0 waits at backward of chunk 0, micro-batch 0 for the backward of chunk 1, micro-batch 0, which stage 1 runs later",
        "stage 1 waits at forward of chunk 1, micro-batch 1 for the forward of chunk 0, micro-batch 1, which stage 0 runs later",
    ]
    assert find_deadlock("gpipe", [first[1:], second]) == [
        "stage 0 waits at backward of chunk 0, micro-batch 0 for the forward of chunk 0, micro-batch 0, which stage 0 does not run"
    ]


def waits(schedule: Schedule, ranks: Sequence[Sequence[Action]], chunks: int) -> dict[tuple[int, Action], set[tuple[int, Action]]]:
    """The graph of what each action follows: the one before it on its rank, and what its data come from."""
    graph: dict[tuple[int, Action], set[tuple[int, Action]]] = {}
    backward = {(stage, *action[1:]): (stage, action) for stage, rank in enumerate(ranks) for action in rank if action.kind in "BI"}
    for stage, rank in enumerate(ranks):
        for index, action in enumerate(rank):
            before = {(stage, rank[index - 1])} if index else set()
            chunk = position(schedule, len(ranks), stage, action.chunk)
            if action.kind == "F" and chunk:
                source, local = holder(schedule, len(ranks), chunks, chunk - 1)
                before.add((source, Action("F", local, action.micro_batch)))
            if action.kind == "W":
                before.add(backward[stage, action.chunk, action.micro_batch])
            if action.kind in "BI":
                before.add((stage, action._replace(kind="F")))
                if chunk < len(ranks) * chunks - 1:
                    source, local = holder(schedule, len(ranks), chunks, chunk + 1)
                    before.add(backward[source, local, action.micro_batch])
            graph[stage, action] = before
    return graph


def test_deadlock_agrees_with_a_sort_of_the_graph() -> None:
    rng = random.Random(7)
    cases = [case for case in possible(1) if case[1] <= 4 and case[3] <= 8]
    wrong, ends = [], Counter[bool]()
    for _ in range(600):
        schedule, stages, chunks, micro_batches = rng.choice(cases)
        ranks = [list(program) for program in programs(schedule, stages, chunks, micro_batches)]
        for _ in range(rng.randint(1, 3)):
            program = rng.choice(ranks)
            place, moved = rng.randrange(len(program)), rng.randrange(len(program))
            program.insert(place, program.pop(moved if rng.random() < 0.3 else min(place + 1, len(program) - 1)))
        try:
            TopologicalSorter(waits(schedule, ranks, chunks)).prepare()
            sorts = True
        except CycleError:
            sorts = False
        ends[sorts] += 1
        if (find_deadlock(schedule, ranks) is None) != sorts:
            wrong.append((schedule, stages, chunks, micro_batches))
    assert wrong == []
    assert min(ends[True], ends[False]) > 100
