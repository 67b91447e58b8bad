"""Is a step of many micro-batches that was worked out from few the step itself? Oracle: all of them simulated."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import strategies as st

from sim.cluster.checkpoint import Outflow
from sim.cluster.topology import node_graph
from sim.mesh import layout_scene, prepare, run_layout
from sim.parallel.lower.layouts import program
from sim.parallel.turns import turns_of
from sim.report.layouts.layout import layout_document
from sim.report.page.layout import layout_page
from sim.report.trace.layout_trace import write_layout_trace
from sim.study.layout import layout_answer
from sim.study.scenario import Scenario
from sim.training.layouts.play import play
from sim.training.layouts.scene import LayoutScene, PlayedLayout, StageStep
from sim.training.layouts.turning import play_steadily, play_turns, turns_by_stage
from tests.examples import examples
from tests.harness import machine
from tests.training.layouts.drawn_layouts import layouts, model, stacks
from tests.training.layouts.toys import blocks, workload

MANY: tuple[dict[str, Any], ...] = (
    {"pipeline": 4, "micro_batches": 64, "shard": "optimizer"},
    {"pipeline": 4, "micro_batches": 66},
    {"pipeline": 2, "micro_batches": 48, "tensor": 2, "schedule": "interleaved_1f1b", "virtual_stages": 4, "shard": "optimizer"},
    {"pipeline": 4, "micro_batches": 64, "schedule": "interleaved_1f1b", "virtual_stages": 2, "mesh": {"pipeline_overlap": True}},
    {"pipeline": 4, "micro_batches": 64, "schedule": "zb_h1", "mesh": {"pipeline_overlap": True}},
    {"micro_batches": 32, "shard": "optimizer"},
    {"micro_batches": 40, "shard": "parameters"},
    {"micro_batches": 40, "shard": "parameters", "mesh": {"framework": "fsdp1", "backward_prefetch": "post", "limit_all_gathers": True}},
    {"pipeline": 2, "micro_batches": 40, "shard": "parameters", "reshard_after_forward": True},
    {"pipeline": 2, "micro_batches": 40, "mesh": {"overlap_gradients": True}, "no_sync": False},
)


def waits_of(step: StageStep) -> dict[tuple[Any, str], float]:
    """Waits by cause and what is moved, not by link: of two equally slow ones, rounding decides which is named."""
    waits: dict[tuple[Any, str], float] = {}
    for (cause, resource), seconds in step.resources.items():
        kind = cause, resource.partition(":")[0]
        waits[kind] = waits.get(kind, 0.0) + seconds
    return waits


def assert_same(shortened: PlayedLayout, full: PlayedLayout) -> None:
    for one, other in zip(shortened.stages, full.stages, strict=True):
        within = 1e-9 * other.time
        assert one.time == pytest.approx(other.time, abs=within) == pytest.approx(sum(one.stalls.values()), abs=within)
        pairs: list[tuple[dict[Any, float], dict[Any, float]]] = [
            (dict(one.stalls), dict(other.stalls)), (dict(one.exposed), dict(other.exposed)), (waits_of(one), waits_of(other)),
        ]  # fmt: skip
        for mine, theirs in pairs:
            assert all(mine.get(key, 0.0) == pytest.approx(theirs.get(key, 0.0), abs=within) for key in mine.keys() | theirs.keys())


@examples(4, 12, layouts(), stacks(), st.integers(8, 14))
def test_a_step_of_many_micro_batches(drawn: tuple[dict[str, Any], int, int], stack: dict[str, Any], many: int) -> None:
    fields, each, nodes = drawn
    fields |= {"pipeline": 1, "virtual_stages": 1, "schedule": "1f1b", "shard": "parameters", "micro_batches": 3 * many}
    hardware = machine(each, nodes, nvlink=2e8, nic=5e7, launch=1e-4)
    given_ = workload(model(), **stack, **fields)
    scene = layout_scene(hardware, given_, prepare(hardware, given_))
    assert_same(play_steadily(scene), play(scene))


@examples(6, 40, layouts(), stacks(), st.integers(9, 20), st.integers(0, 3), st.sampled_from((2e8, 2e7)))
def test_a_pipeline_of_many_micro_batches(
    drawn: tuple[dict[str, Any], int, int], stack: dict[str, Any], many: int, rest: int, nvlink: float
) -> None:
    fields, each, nodes = drawn
    turn = fields["pipeline"]
    fields |= {"shard": "optimizer" if fields["shard"] == "parameters" else fields["shard"]}
    fields.pop("reshard_after_forward", None)
    fields |= {"micro_batches": turn * many + (0 if fields["schedule"] == "interleaved_1f1b" else rest % turn)}
    hardware = machine(each, nodes, nvlink=nvlink, nic=5e7, launch=1e-4)
    given_ = workload(model(), **stack, **fields)
    scene = layout_scene(hardware, given_, prepare(hardware, given_))
    assert_same(play_steadily(scene), play(scene))


@examples(6, 60, layouts(), stacks(), st.integers(4, 12), st.integers(3, 9), st.integers(0, 3))
def test_turns_are_those_of_the_whole_step(
    drawn: tuple[dict[str, Any], int, int], stack: dict[str, Any], few: int, more: int, rest: int
) -> None:
    """Oracle: the program of all micro-batches."""
    fields, each, nodes = drawn
    turn = fields["pipeline"]
    rest = 0 if fields["schedule"] == "interleaved_1f1b" else rest % turn
    fields |= {"micro_batches": turn * (few + more) + rest}
    given_ = workload(model(), **stack, **fields)
    layout = prepare(machine(each, nodes), given_)
    shown = turns_by_stage(layout, turn * few + rest)
    short = replace(layout, micro_batches=turn * few + rest)
    of_step = [turns_of(program(layout, stage), program(short, stage), turn, more) for stage in range(turn)]
    assert shown == (None if None in of_step else of_step)


@pytest.mark.parametrize("slow", [{"launch_cpu": "40 ms"}, {}], ids=["host", "gpu"])
@pytest.mark.parametrize("fields", MANY, ids=str)
def test_turns_are_left_out(fields: dict[str, Any], slow: dict[str, Any]) -> None:
    synchronizes = {"no_sync": fields.get("no_sync", True)}
    given_ = workload(
        model(), stack={"gradient_clipping": True} | synchronizes | slow, **{key: fields[key] for key in fields.keys() - {"no_sync"}}
    )
    hardware = machine(2, 4, nvlink=2e8, nic=5e7)
    scene = layout_scene(hardware, given_, prepare(hardware, given_))
    few, every = play_turns(scene), play(scene)
    assert few is not None
    assert_same(few, every)
    assert len(few.log.work) < 0.7 * len(every.log.work)
    assert few.left_out > 0.3 * fields["micro_batches"]
    assert every.left_out == 0


@pytest.mark.parametrize(
    "fields", [{"pipeline": 2, "micro_batches": 48, "shard": "optimizer"}, {"micro_batches": 40, "shard": "parameters"}], ids=str
)
def test_turns_beside_the_writes_of_a_checkpoint_are_left_out(fields: dict[str, Any]) -> None:
    """The writes last all the time, so they are the same in every turn."""
    given_ = workload(model(), **fields)
    hardware = machine(1, 4, nvlink=2e8, nic=5e7)
    alone = layout_scene(hardware, given_, prepare(hardware, given_))
    scene = replace(alone, outflows=[Outflow(node_graph(alone.node).memory_to_network(0), 4e7)])
    few, every = play_turns(scene), play(scene)
    assert few is not None
    assert_same(few, every)
    assert few.left_out > 0.3 * fields["micro_batches"]
    assert every.time > 1.01 * play(alone).time


def test_stages_that_drift_apart_have_no_equal_turns() -> None:
    """The first and the last stage send less, and so run ahead of the others until the pipeline holds them back."""
    given_ = workload(model(), pipeline=4, micro_batches=64, schedule="interleaved_1f1b", virtual_stages=2)
    hardware = machine(2, 4, nvlink=2e8, nic=5e7)
    scene = layout_scene(hardware, given_, prepare(hardware, given_))
    assert play_turns(scene) is None
    played = play_steadily(scene)
    assert_same(played, play(scene))
    assert played.left_out == 0


def scene_of(machine_: Any, draw: bool = False, cv: float = 0.02, **fields: Any) -> LayoutScene:
    """Return a scene whose ranks differ, drawn at each step if *draw*."""
    made = workload(model(), stack={"gradient_clipping": True}, **fields)
    noise = made.training.noise.model_copy(update={"compute_cv": cv, "persistent_cv": 0.0, "draw": draw})
    given_ = made.with_training(noise=noise)
    return layout_scene(machine_, given_, prepare(machine_, given_))


@pytest.mark.parametrize(
    "fields",
    [
        {"pipeline": 2, "micro_batches": 24, "shard": "optimizer"},
        pytest.param({"pipeline": 2, "micro_batches": 32, "shard": "optimizer"}, marks=pytest.mark.nightly),
        {"micro_batches": 12, "shard": "parameters"},
        pytest.param({"micro_batches": 16, "shard": "parameters"}, marks=pytest.mark.nightly),
    ],
)
def test_each_drawn_step_settles_by_itself(fields: dict[str, Any]) -> None:
    """A drawn pace lasts a whole step: each step has turns of its own, all of them equal."""
    hardware = machine(2, 2, nvlink=2e8, nic=5e7)
    few, every = (steps(scene_of(hardware, draw=True, **fields)) for steps in (play_turns, play))
    assert few is not None
    assert_same(few, every)
    assert len(every.drawn_times) == 100
    assert few.drawn_times == pytest.approx(every.drawn_times, rel=1e-9)
    assert max(every.drawn_times) > 1.001 * min(every.drawn_times)


def test_stages_on_unlike_nodes_leave_out_turns() -> None:
    given_ = workload(model(), pipeline=2, micro_batches=48, shard="optimizer")
    hardware = machine(2, 3, nvlink=2e8, nic=5e7)
    scene = layout_scene(hardware, given_, prepare(hardware, given_))
    assert not scene.layout.mesh.is_even
    few, every = play_turns(scene), play(scene)
    assert few is not None
    assert_same(few, every)


@pytest.mark.parametrize(
    ("fields", "simulated"),
    [
        ({"shard": "parameters", "micro_batches": 64}, 6),
        ({"shard": "parameters", "micro_batches": 8}, 8),
        ({"shard": "optimizer", "micro_batches": 8}, 8),
        ({"pipeline": 2, "schedule": "gpipe", "micro_batches": 64}, 64),
    ],
    ids=str,
)
def test_few_are_simulated(fields: dict[str, Any], simulated: int) -> None:
    given_ = workload(blocks(4), **fields)
    hardware = machine(2)
    played = play_steadily(layout_scene(hardware, given_, prepare(hardware, given_)))
    assert fields["micro_batches"] - played.left_out == simulated


def test_a_trace_shows_all_micro_batches(tmp_path: Path) -> None:
    few = run_layout(machine(2), workload(blocks(4), shard="parameters", micro_batches=64))
    assert few.played.left_out == 58
    assert few.completed().played.left_out == 0
    assert few.completed().step_time == pytest.approx(few.step_time, rel=1e-9)
    assert few.memory_over_time(0)
    write_layout_trace(few, tmp_path / "trace.json")
    events = json.loads((tmp_path / "trace.json").read_text(encoding="utf-8"))["traceEvents"]
    forwards = [event for event in events if event.get("args", {}).get("what") == "forward"]
    assert len(forwards) == 4 * 64  # of each block


def test_a_page_says_how_many_micro_batches_it_shows() -> None:
    layout = (("--shard", "parallel.shard", "parameters"),)
    answer = layout_answer(Scenario("hgx-h100", "llama-3.2-1b", ("training.gradient_accumulation_steps=40",), nodes=1, layout=layout))
    shown = 40 - answer.run.played.left_out
    assert shown < 40
    assert f"{shown} of the 40 micro-batches of a step are shown" in layout_page(answer.run, layout_document(answer))
