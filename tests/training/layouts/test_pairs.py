"""Do messages of experts hide behind the compute of the other pass of a pair? Closed forms, bounds of two streams, and whole steps."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.analysis.layout_memory import memory_by_stage
from sim.mesh import layout_scene, prepare
from sim.parallel.program import Receive, Send, Work
from sim.spec.layer import Layer
from sim.spec.workload import Workload
from sim.training.layouts.bound import least_time
from sim.training.layouts.pairs import PassSegment, pair_time
from sim.training.layouts.play import play
from tests.harness import layer, machine
from tests.training.layouts.toys import MESH, free, run, workload

PAIRED: dict[str, Any] = {"mesh": {**MESH, "paired_schedules": ["1f1b", "interleaved_1f1b", "dualpipev"], "pipeline_overlap": True}}
ALONE: dict[str, Any] = {"mesh": {**MESH, "pipeline_overlap": True}}
EACH = st.sampled_from((0.0, 0.1, 0.25, 1.0, 3.0))
PASSES = st.lists(st.builds(PassSegment, EACH, EACH), max_size=5).map(lambda segments: [*segments, PassSegment(0.5, 0.0)])


def test_a_pair_of_even_blocks_hides_all_messages() -> None:
    """Per block: attention of 1 s in forward, 2 s in backward, experts the same, and messages of 0.9 s."""
    forward = [PassSegment(1.0, 0.9)] * 8 + [PassSegment(0.0, 0.0)]
    backward = [PassSegment(0.0, 0.9)] + [PassSegment(2.0, 0.9)] * 7 + [PassSegment(2.0, 0.0)]
    assert sum(pair_time(forward, backward)) == pytest.approx(8 * (1.0 + 2.0))
    assert pair_time(forward, backward).exposed == pytest.approx(0.0, abs=1e-12)


def test_a_pair_with_long_messages_takes_the_messages() -> None:
    """What is left of compute: the part before the first message, and that after the last one."""
    forward = [PassSegment(1.0, 10.0)] * 4 + [PassSegment(1.0, 0.0)]
    backward = [PassSegment(0.5, 10.0)] + [PassSegment(2.0, 10.0)] * 3 + [PassSegment(2.0, 0.0)]
    assert sum(pair_time(forward, backward)) == pytest.approx(0.5 + 8 * 10.0 + 1.0)


def test_passes_without_messages_follow_each_other_and_one_alone_hides_none() -> None:
    assert sum(pair_time([PassSegment(1.0, 0.0)], [PassSegment(2.0, 0.0)])) == 3.0
    assert sum(pair_time([PassSegment(1.0, 3.0), PassSegment(1.0, 0.0)], [])) == 5.0
    assert sum(pair_time([], [])) == 0.0


def test_messages_slow_compute_as_long_as_they_move() -> None:
    """For m seconds compute proceeds at 1/s of its speed, so C seconds take C + m (1 - 1/s)."""
    forward, backward = [PassSegment(1.0, 0.0)], [PassSegment(0.0, 2.0), PassSegment(4.0, 0.0)]
    alone, slowed = pair_time(forward, backward), pair_time(forward, backward, slowdown=1.25)
    assert sum(alone) == pytest.approx(6.0)  # 1 s of compute beside 2 s of messages, then 4 s
    assert slowed.compute == pytest.approx(1.25 + 4.0)
    overlapped = pair_time([PassSegment(5.0, 0.0)], [PassSegment(0.0, 2.0), PassSegment(4.0, 0.0)], slowdown=1.25)
    assert sum(overlapped) == pytest.approx(9.0 + 2.0 * (1 - 1 / 1.25))


@given(PASSES, PASSES, st.sampled_from((1.0, 1.2, 3.0)))
def test_a_pair_is_between_its_longer_stream_and_both_streams(
    forward: list[PassSegment], backward: list[PassSegment], slowdown: float
) -> None:
    compute = sum(each.compute for each in (*forward, *backward))
    messages = sum(each.message for each in (*forward, *backward))
    pair = pair_time(forward, backward, slowdown)
    assert max(compute, messages) - 1e-9 <= sum(pair) <= compute + messages + 1e-9
    assert compute - 1e-9 <= pair.compute <= slowdown * compute + 1e-9
    assert sum(pair_time(forward, backward)) <= sum(pair) + 1e-9


def expert_blocks(count: int, forward: float = 0.01) -> list[Layer]:
    """Return blocks of a product and an expert, which take *forward* seconds each, twice as long in backward."""
    layers: list[Layer] = []
    own: dict[str, Any] = {"read": "4 MB", "write": "4 MB", "tokens": 16, "channels": (8, 8)}
    for number in range(count):
        layers.append(layer(forward, 2 * forward, 100, name=f"layers.{number}.attention", **own))
        for name, seconds, elements in (("dispatch", 0.0, ()), ("up", forward, (100,)), ("combine", 0.0, ())):
            named = {"name": f"layers.{number}.experts.{name}", "share": "expert", "groups": 4}
            layers.append(layer(seconds, 2 * seconds, *elements, **named, **own))
    return layers


def step(given_workload: Workload, gpus: int = 4, nvlink: float = 1e9) -> float:
    return run(machine(gpus, 1, nvlink=nvlink, launch=0.0), given_workload).step_time


@pytest.mark.parametrize(("nvlink", "hidden"), [(1e9, True), (2e8, False)])
def test_a_step_without_a_pipeline_is_a_forward_pairs_and_a_backward(nvlink: float, hidden: bool) -> None:
    """Megatron-LM's combined_1f1b_schedule_for_no_pipelining: F, then m - 1 pairs, then B."""
    micro_batches, layers = 6, expert_blocks(3)
    fields: dict[str, Any] = {"expert": 4, "micro_batches": micro_batches}
    paired, alone = (workload(layers, stack, **fields) for stack in (PAIRED, ALONE))
    hardware = machine(4, 1, nvlink=nvlink, launch=0.0)
    scene = layout_scene(hardware, paired, prepare(hardware, paired))
    times, last = scene.times[0], len(scene.layout.units) - 1
    passes = {part: sum(each for each in (times.span(0, last, part).compute, times.span(0, last, part).waits)) for part in ("F", "B")}
    pair = times.of(Work("F", 0, last, 1, (0, last))), times.of(Work("B", 0, last, 0, (0, last)))
    compute = times.span(0, last, "F").compute + times.span(0, last, "B").compute
    messages = passes["F"] + passes["B"] - compute
    of_pair = sum(each.compute + each.waits for each in pair)
    assert max(compute, messages) <= of_pair + 1e-12 < passes["F"] + passes["B"]
    assert (of_pair == pytest.approx(compute)) == hidden
    rest = step(alone, nvlink=nvlink) - micro_batches * (passes["F"] + passes["B"])  # what the last gradients take
    assert rest == pytest.approx(step(paired, nvlink=nvlink) - passes["F"] - (micro_batches - 1) * of_pair - passes["B"], abs=1e-9)


@pytest.mark.parametrize(("pipeline", "micro_batches"), [(2, 4), (2, 8), (4, 8), (4, 20), (8, 16)])
def test_the_bubble_is_that_of_dualpipes_readme(pipeline: int, micro_batches: int) -> None:
    """Bubble (PP/2 - 1)(F&B + B - 3W) for PP chunks on PP/2 ranks; without messages F&B = F + B, and W is half of B in products."""
    forward = 0.01
    fields: dict[str, Any] = {
        "expert": 2,
        "pipeline": pipeline,
        "schedule": "dualpipev",
        "virtual_stages": 2,
        "micro_batches": micro_batches,
    }
    laid_out = workload(expert_blocks(2 * pipeline, forward), PAIRED, **fields)
    taken = run(free(2 * pipeline), laid_out).step_time
    of_chunk = 2 * forward, 4 * forward, 2 * forward  # F, B, W of a block of two products
    both = of_chunk[0] + of_chunk[1]
    bubble = (pipeline - 1) * (both + of_chunk[1] - 3 * of_chunk[2])
    assert taken == pytest.approx(2 * micro_batches * both + bubble, rel=0.01)


LAYOUTS = [
    ("1f1b", 1, 1, 4), ("interleaved_1f1b", 2, 2, 4), ("interleaved_1f1b", 4, 2, 8), ("dualpipev", 2, 2, 4), ("dualpipev", 2, 2, 9),
    ("dualpipev", 4, 2, 8), ("dualpipev", 4, 2, 32), ("interleaved_1f1b", 2, 2, 32),
]  # fmt: skip


SHARDS = ("none", "optimizer", "gradients", "parameters")


@pytest.mark.parametrize(
    ("schedule", "pipeline", "chunks", "micro_batches", "shard"),
    [
        pytest.param(*fields, shard, marks=[pytest.mark.nightly] if fields[-1] > 20 and shard in ("optimizer", "gradients") else [])
        for fields in LAYOUTS
        for shard in SHARDS
    ],
)
def test_the_bound_is_below_the_step_which_pairs_shorten_in_long_steps(
    schedule: str, pipeline: int, chunks: int, micro_batches: int, shard: str
) -> None:
    fields: dict[str, Any] = {"expert": 2, "pipeline": pipeline, "schedule": schedule, "virtual_stages": chunks}
    fields |= {"micro_batches": micro_batches, "shard": shard}
    hardware = machine(2 * pipeline, 1, nvlink=3e8, launch=1e-4)
    steps = {}
    for name, stack in (("paired", PAIRED), ("alone", ALONE)):
        laid_out = workload(expert_blocks(8), stack, **fields)
        scene = layout_scene(hardware, laid_out, prepare(hardware, laid_out))
        steps[name] = play(scene, 4).time
        assert least_time(scene) <= steps[name] * (1 + 1e-9)
    if micro_batches > 20:  # with few, the bubble grows by more than messages are hidden, because a pair sends only after both passes
        assert steps["paired"] < steps["alone"]


def of_two_experts(schedule: str, pipeline: int, chunks: int, micro_batches: int) -> dict[str, Any]:
    """Return the fields of a layout with two expert ranks."""
    return {"expert": 2, "pipeline": pipeline, "schedule": schedule, "virtual_stages": chunks, "micro_batches": micro_batches}


@pytest.mark.parametrize(("schedule", "pipeline", "chunks", "micro_batches"), LAYOUTS)
def test_pairs_leave_work_and_messages_between_stages_as_they_are(schedule: str, pipeline: int, chunks: int, micro_batches: int) -> None:
    """A pair receives for both passes before it, and sends after it; programs have the same work, sends and receipts."""
    fields = of_two_experts(schedule, pipeline, chunks, micro_batches)
    hardware = machine(2 * pipeline, 1, nvlink=5e8)
    scenes = {}
    for name, stack in (("paired", PAIRED), ("alone", ALONE)):
        laid_out = workload(expert_blocks(8), stack, **fields)
        scenes[name] = layout_scene(hardware, laid_out, prepare(hardware, laid_out))
    pairs = 0
    for paired, alone in zip(scenes["paired"].programs, scenes["alone"].programs, strict=True):
        for kind in (Work, Send, Receive):
            plain = [
                sorted(each._replace(beside=None) if isinstance(each, Work) else each for each in program if isinstance(each, kind))
                for program in (paired, alone)
            ]
            assert [each[:4] if isinstance(each, Work) else each[:3] for each in plain[0]] == [
                each[:4] if isinstance(each, Work) else each[:3] for each in plain[1]
            ]
        for at, each in enumerate(paired):
            if isinstance(each, Work) and each.part == "F" and each.beside:
                other = paired[at + 1]
                assert isinstance(other, Work) and other.part == "B"
                assert (other.beside, each.beside) == ((each.first, each.last), (other.first, other.last))
                pairs += 1
    assert pairs > 0


def activations(schedule: str, pipeline: int, chunks: int, micro_batches: int, stack: dict[str, Any]) -> list[float]:
    fields = of_two_experts(schedule, pipeline, chunks, micro_batches)
    keeping = [each.model_copy(update={"saved": 1e6}) for each in expert_blocks(8)]
    laid_out, hardware = workload(keeping, stack, **fields), machine(2 * pipeline, 1, nvlink=5e8)
    layout = prepare(hardware, laid_out)
    return [each.activations for each in memory_by_stage(layout, laid_out, hardware.first_workers.node.gpu)]


def test_a_pair_frees_the_activations_of_a_block_as_those_of_another_appear() -> None:
    """DualPipe's README: activations of PP + 1 chunks, of which PP = 2 x ranks. Both frameworks free those of a block after its backward
    (Megatron-LM's ``TransformerLayerSchedulePlan.run`` calls ``release_state``), so a pair holds one block more than before it."""
    held, alone = (activations("dualpipev", 2, 2, 8, stack) for stack in (PAIRED, ALONE))
    chunk = 2 * 4 * 1e6  # two blocks of four layers
    assert all(most - chunk < own <= most for own, most in zip(held, alone, strict=True)) and held != alone
    (paired,), (one,) = (activations("1f1b", 1, 1, 8, stack) for stack in (PAIRED, ALONE))
    assert (one, paired) == (8 * 4e6, 9 * 4e6)


def test_without_expert_ranks_nothing_runs_as_a_pair() -> None:
    laid_out = workload(expert_blocks(4), PAIRED, micro_batches=4)
    hardware = machine(2, 1, nvlink=5e8)
    scene = layout_scene(hardware, laid_out, prepare(hardware, laid_out))
    assert not any(isinstance(each, Work) and each.beside for each in scene.programs[0])
