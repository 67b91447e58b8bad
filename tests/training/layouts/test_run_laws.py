"""Which laws does every layout keep? Oracles: conservation of time and bytes, and the same step with every rank simulated."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import strategies as st

from sim.events import Cause
from sim.mesh import layout_scene, prepare
from sim.parallel.lower.lowering import Lowering
from sim.parallel.program import Receive, Send, Start, Wait
from sim.spec.layer import Layer
from sim.training.layouts.bound import least_time
from sim.training.layouts.play import play
from sim.training.layouts.run import Simulation
from sim.training.layouts.scene import LayoutScene
from sim.training.layouts.unfolded import Unfolded
from tests.examples import examples
from tests.freed import freed_at_once
from tests.harness import cluster, layer, loads, machine, toy_node
from tests.training.layouts.drawn_layouts import assert_like, layouts, model, stacks
from tests.training.layouts.toys import SLOT, blocks, free, played, run, split_block, with_memory, workload


@examples(10, 40, layouts(), stacks())
def test_laws_of_a_step(drawn: tuple[dict[str, Any], int, int], stack: dict[str, Any]) -> None:
    """Stalls sum to the step; it is no shorter than compute, nor than any link's bytes; no link is above its capacity; steps repeat."""
    fields, each, nodes = drawn
    hardware = machine(each, nodes, nvlink=2e8, nic=5e7, launch=1e-4)
    scene, done = played(hardware, workload(model(), **stack, **fields), steps=5)
    for stage in done.stages:
        assert math.fsum(stage.stalls.values()) == pytest.approx(stage.time, rel=1e-9)
        assert math.fsum(stage.resources.values()) == pytest.approx(stage.time, rel=1e-9)
        assert stage.time >= stage.stalls[Cause.COMPUTE]
        assert sum(stage.exposed.values()) <= stage.time * (1 + 1e-9)
        assert min(stage.stalls.values()) >= 0.0
    compute = sum(scene.times[0](unit, part).compute for unit in scene.layout.chunks[0] for part in ("F", "B"))
    assert done.time >= compute * fields["micro_batches"] * (1 - 1e-9)
    capacity = scene.prices.capacity
    ends = max(stage.end for stage in done.stages)
    for link, steps in loads(done.log).items():
        if link in capacity:
            assert all(load <= capacity[link] * (1 + 1e-6) for _, load in steps), link
            assert sum(load * (end - start) for (start, load), (end, _) in pairwise(steps)) <= capacity[link] * ends * (1 + 1e-6)
    again = run(hardware, workload(model(), **stack, **fields))
    assert again.step_time == pytest.approx(done.time, rel=1e-9)


@pytest.mark.parametrize(("nodes", "classes"), [((4, 1), 256), ((2, 3), 256), ((2, 3), 0)])
def test_a_simulation_is_freed_without_a_garbage_collection(nodes: tuple[int, int], classes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """With one rank a stage, with classes of ranks, and with too many classes, whose simulation is given up."""
    monkeypatch.setattr("sim.training.layouts.play.MOST_CLASSES", classes)
    each, count = nodes
    hardware = machine(each, count, nvlink=2e8, nic=5e7)
    laid_out = workload(model(), pipeline=2, shard="optimizer", micro_batches=4)
    scene = layout_scene(hardware, laid_out, prepare(hardware, laid_out))
    assert scene.layout.mesh.is_even is (nodes == (4, 1))
    with freed_at_once():
        assert play(scene).time > 0


def assert_stands_for_all(scene: LayoutScene) -> None:
    """One rank a stage, where nodes are alike, and one for each class of ranks step as every rank does by itself; the bound is below."""
    every = Unfolded(scene, 4).run()
    shown = Simulation(scene, 4, keep_rates=False).run() if scene.layout.mesh.is_even else play(scene)
    assert_like(every, shown, Unfolded(scene, 4, folds=True).run())
    assert least_time(scene) <= shown.time * (1 + 1e-9)


@examples(  # each simulates up to 96 ranks
    4, 8, layouts(), stacks(), st.permutations(("tensor", "context", "data", "pipeline")), st.sampled_from((1, 3)), st.sampled_from((1, 2))
)
def test_one_rank_a_stage_stands_for_all(
    drawn: tuple[dict[str, Any], int, int], stack: dict[str, Any], order: list[str], more_nodes: int, nics: int
) -> None:
    """Where nodes are alike, a stage's first rank steps as every rank does by itself; elsewhere every rank is simulated."""
    fields, each, nodes = drawn
    hardware = machine(each, nodes * more_nodes, nvlink=2e8, nic=5e7, launch=1e-4, nics=nics if each % nics == 0 else 1)
    laid_out = workload(model(), **stack, **fields, order=tuple(order))
    scene = layout_scene(hardware, laid_out, prepare(hardware, laid_out))
    assert_stands_for_all(scene)


@examples(4, 8, layouts(), stacks(), st.booleans(), st.booleans())
def test_launches_that_block_and_stages_that_send_parts_keep_these_laws(
    drawn: tuple[dict[str, Any], int, int], stack: dict[str, Any], blocking: bool, parts: bool
) -> None:
    """A step of one rank a stage takes as long as that of every rank by itself, and at least as long as the bound."""
    fields, each, nodes = drawn
    hardware = machine(each, nodes, nvlink=2e8, nic=5e7, launch=1e-4)
    stack = {"mesh": stack["mesh"] | {"stage_parts": parts}, "stack": stack["stack"] | {"launch_blocking": blocking, "launch_cpu": "2 ms"}}
    laid_out = workload(model(), **stack, **(fields | {"sequence": False}))
    scene = layout_scene(hardware, laid_out, prepare(hardware, laid_out))
    every = Unfolded(scene, 4).run()
    assert play(scene).time == pytest.approx(every.time, rel=1e-9)
    assert least_time(scene) <= every.time * (1 + 1e-9)


@st.composite
def wide_layouts(draw: st.DrawFn) -> tuple[dict[str, Any], int, int]:
    """Draw layouts with context and expert ranks, schedules in the shape of a V, to 64 ranks: (fields, GPUs of a node, nodes)."""
    tensor, context, pipeline = draw(st.sampled_from((1, 2))), draw(st.sampled_from((1, 2))), draw(st.sampled_from((1, 2, 4)))
    data = draw(st.sampled_from([count for count in (1, 2, 4) if tensor * context * pipeline * count <= 64]))
    fields: dict[str, Any] = {"tensor": tensor, "context": context, "pipeline": pipeline}
    fields["context_exchange"] = draw(st.sampled_from(("ring", "all_gather")))
    schedule = draw(st.sampled_from(("1f1b", "zbv", "dualpipev") if pipeline > 1 else ("1f1b",)))
    fields |= {"schedule": schedule} | ({"virtual_stages": 2} if schedule != "1f1b" else {})
    fields["expert"] = draw(st.sampled_from([count for count in (1, 2, 4) if tensor * context * data % count == 0]))
    uneven = fields["expert"] > 1 and schedule == "1f1b"  # in a V: test_uneven_experts_in_a_v_are_blamed_alike
    fields["expert_imbalance"] = draw(st.sampled_from((1.0, 1.5))) if uneven else 1.0
    fields["shard"] = draw(st.sampled_from(("none", "optimizer", "gradients", "parameters")))
    fields["micro_batches"] = pipeline * draw(st.sampled_from((2, 3)))
    gpus = tensor * context * pipeline * data
    nodes = draw(st.sampled_from([count for count in (1, 2, 4) if gpus % count == 0]))
    return fields, gpus // nodes, nodes


def expert_model() -> list[Layer]:
    """Return blocks with attention, and two products of four experts each."""
    seen = {"heads": 4, "kv_heads": 4, "head_dim": 8, "queries": 16, "keys": 16}
    own: dict[str, Any] = {"read": "4 kB", "write": "4 kB"}
    grouped: dict[str, Any] = {"share": "expert", "groups": 4, "tokens": 16, "channels": (8, 8)} | own
    layers: list[Layer] = []
    for number in range(8):
        core = layer(SLOT / 16, SLOT / 8, name=f"layers.{number}.core", op="attention", share="heads", attention=seen, **own)
        first, second = split_block(number, 50_000)
        experts = [layer(SLOT / 8, SLOT / 4, 100_000, name=f"layers.{number}.experts.{name}", **grouped) for name in ("up", "down")]
        layers += [first, core, second, *experts]
    return layers


@examples(4, 10, wide_layouts(), stacks())
def test_one_rank_stands_for_all_with_context_and_expert_ranks(drawn: tuple[dict[str, Any], int, int], stack: dict[str, Any]) -> None:
    """Where nodes are alike a stage's first rank steps as every rank does by itself; classes of ranks do so everywhere."""
    fields, each, nodes = drawn
    hardware = machine(each, nodes, nvlink=2e8, nic=5e7, launch=1e-4)
    laid_out = workload(expert_model(), **stack, **fields)
    scene = layout_scene(hardware, laid_out, prepare(hardware, laid_out))
    assert_stands_for_all(scene)


@pytest.mark.xfail(
    strict=True,
    raises=AssertionError,
    reason="steps take the same time, but up to 1e-6 s of waiting for a slower rank is counted as pipeline",
)
@pytest.mark.parametrize("schedule", ["zbv", "dualpipev"])
def test_uneven_experts_in_a_v_are_blamed_alike(schedule: str) -> None:
    hardware = machine(4, 1, nvlink=2e8, nic=5e7, launch=1e-4)
    fields = {"pipeline": 2, "virtual_stages": 2, "schedule": schedule, "expert": 2, "expert_imbalance": 1.5, "micro_batches": 4}
    uneven = workload(expert_model(), **fields)
    assert_stands_for_all(layout_scene(hardware, uneven, prepare(hardware, uneven)))


@pytest.mark.parametrize(("per_leaf", "exact"), [(1, True), (2, True), (3, False), (4, True), (8, True)])
def test_a_run_says_whether_switches_divide_a_stage_alike(per_leaf: int, exact: bool) -> None:
    """Stages of four nodes each: leaves of three have three of one stage, and the next one only one."""
    hardware = cluster(toy_node(1, nic=1e8), count=8, leaf_spine={"nodes_per_leaf": per_leaf, "oversubscription": 2})
    laid_out = workload(blocks(2, elements=1_000_000), pipeline=2)
    scene = layout_scene(hardware, laid_out, prepare(hardware, laid_out))
    assert play(scene).exact is exact
    by_rank = play(scene, exact=True)
    assert by_rank.exact
    assert_like(Unfolded(scene, 4).run(), by_rank)


def test_a_tied_embedding_joins_stages_on_unlike_nodes() -> None:
    """Stages of three ranks on nodes of two: those in the middle share nothing; one for all alike steps as each does by itself."""
    laid_out = workload(blocks(6), pipeline=6)
    hardware = machine(2, 9, nvlink=2e8, nic=5e7)
    scene = layout_scene(hardware, laid_out, replace(prepare(hardware, laid_out), tied_bytes=4e6))
    assert not scene.layout.mesh.is_even
    assert play(scene).time == pytest.approx(Unfolded(scene, 4).run().time, rel=1e-9)


def test_rank_by_rank_a_late_host_is_blamed_as_in_one_rank_a_stage() -> None:
    """Ranks that are all alike: none is slower than another, and what comes late is what hosts compare and launch."""
    hardware = machine(2, 2, nvlink=2e8, nic=5e7)
    laid_out = workload(model(), shard="optimizer", mesh={"framework": "fsdp2", "collective_check": "3 ms"}, stack={"launch_cpu": "20 ms"})
    scene = layout_scene(hardware, laid_out, prepare(hardware, laid_out))
    (one,), (mean,) = Simulation(scene, 4, keep_rates=False).run().stages, Unfolded(scene, 4).run().stages
    assert one.stalls == pytest.approx(mean.stalls, rel=1e-9)
    assert mean.stalls[Cause.LAUNCH] > mean.stalls[Cause.STRAGGLER] == 0.0


@pytest.mark.parametrize(
    ("gpus", "nodes", "classes", "fields"),
    [
        (4, 18, 1, {"tensor": 3, "shard": "parameters"}),
        pytest.param(4, 27, 1, {"tensor": 3, "shard": "parameters"}, marks=pytest.mark.nightly),
        (4, 24, 6, {"tensor": 3, "pipeline": 2, "shard": "optimizer"}),
        (2, 33, 6, {"pipeline": 3, "micro_batches": 6, "order": ("pipeline", "tensor", "context", "data")}),
        pytest.param(
            4,
            36,
            12,
            {"pipeline": 6, "shard": "parameters", "order": ("pipeline", "tensor", "context", "data")},
            marks=pytest.mark.nightly,
        ),
        pytest.param(4, 18, 60, {"pipeline": 12, "micro_batches": 12}, marks=pytest.mark.nightly),
    ],
)
def test_ranks_that_step_alike_are_simulated_once(gpus: int, nodes: int, classes: int, fields: dict[str, Any]) -> None:
    """Above 64 ranks, on nodes that differ: step and stalls are those of every rank by itself; where nodes repeat, few are simulated."""
    hardware = machine(gpus, nodes, nvlink=2e8, nic=5e7, launch=1e-4, nics=gpus)
    layers = [each.model_copy(update={"channels": (9, 9)}) for number in range(12) for each in split_block(number, 90_000)]
    laid_out = workload(layers, **fields)
    scene = layout_scene(hardware, laid_out, prepare(hardware, laid_out))
    assert not scene.layout.mesh.is_even
    folded = Unfolded(scene, 4, folds=True)
    assert len(set(folded.representatives)) == classes
    by_class, every = folded.run(), Unfolded(scene, 4).run()
    assert by_class.time == pytest.approx(every.time, rel=1e-9)
    for one, other in zip(by_class.stages, every.stages, strict=True):
        assert one.stalls == pytest.approx(other.stalls, rel=1e-9, abs=1e-9)
    assert play(scene).exact


@pytest.mark.parametrize(("most", "exact"), [(7, False), (8, True)])
def test_ranks_that_step_alike_on_one_node_do_not_make_more_layouts_exact(most: int, exact: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nodes of four in groups of three: two of eight classes are those of others on the same nodes, which are counted all the same."""
    monkeypatch.setattr("sim.training.layouts.play.MOST_CLASSES", most)
    hardware = machine(4, 24, nvlink=2e8, nic=5e7, launch=1e-4, nics=4)
    layers = [each.model_copy(update={"channels": (9, 9)}) for number in range(12) for each in split_block(number, 90_000)]
    laid_out = workload(layers, tensor=3, pipeline=2, shard="optimizer")
    scene = layout_scene(hardware, laid_out, prepare(hardware, laid_out))
    assert len(set(Unfolded(scene, 4, folds=True).representatives)) == 6
    assert play(scene).exact is exact


@examples(10, 30, layouts(), stacks())
def test_everything_sent_is_received_and_everything_started_awaited(drawn: tuple[dict[str, Any], int, int], stack: dict[str, Any]) -> None:
    fields, each, nodes = drawn
    given_ = workload(model(), **stack, **fields)
    scene = layout_scene(machine(each, nodes), given_, prepare(machine(each, nodes), given_))
    sent = Counter(
        (number, each.stage, each.tag) for number, program in enumerate(scene.programs) for each in program if isinstance(each, Send)
    )
    received = Counter(
        (each.stage, number, each.tag) for number, program in enumerate(scene.programs) for each in program if isinstance(each, Receive)
    )
    assert sent == received
    assert not sent or max(sent.values()) == 1
    for program in scene.programs:
        started = [each.tag for each in program if isinstance(each, Start)]
        assert len(started) == len(set(started))
        assert {each.tag for each in program if isinstance(each, Wait)} == set(started)


def test_work_of_every_unit_and_micro_batch_is_done_once() -> None:
    """Forward, and backward or both of its halves."""
    for schedule, chunks in (("gpipe", 1), ("1f1b", 1), ("interleaved_1f1b", 2), ("zb_h1", 1), ("zbv", 2), ("dualpipev", 2)):
        given_ = workload(blocks(8), pipeline=4, schedule=schedule, virtual_stages=chunks, micro_batches=8)
        scene = layout_scene(free(4), given_, prepare(free(4), given_))
        done: Counter[tuple[int, int, str]] = Counter()
        for program in scene.programs:
            for each in program:
                if hasattr(each, "part"):
                    done.update(
                        (unit, each.micro_batch, part) for unit in range(each.first, each.last + 1) for part in each.part.replace("B", "IW")
                    )
        assert done == {(unit, number, part): 1 for unit in range(8) for number in range(8) for part in "FIW"}, schedule


def test_a_program_is_lowered_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """One for each stage, whether it is simulated, its memory replayed, or that shown over time."""
    lowered: list[int] = []
    step = Lowering.step
    monkeypatch.setattr(Lowering, "step", lambda self: lowered.append(self.stage) or step(self))
    layout_run = run(free(4), workload(blocks(4), pipeline=2, shard="parameters", micro_batches=2))
    assert all(layout_run.memory_over_time(stage) for stage in range(2))
    assert sorted(lowered) == [0, 1]


@examples(3, 6, layouts(), stacks())
def test_a_shared_device_keeps_the_laws_of_a_step(drawn: tuple[dict[str, Any], int, int], stack: dict[str, Any]) -> None:
    """Collectives that take part of the memory bandwidth: steps are no shorter than the bound, stalls sum to them, one rank stands for all.

    A step may be shorter than where nothing is shared: messages that come later may share links with fewer others.
    """
    fields, each, nodes = drawn
    hardware = with_memory(machine(each, nodes, nvlink=2e8, nic=5e7, launch=1e-4), 1e9)
    layers = [one.model_copy(update={"read": 1e7, "write": 1e7, "backward_traffic": 1e7}) for one in model()]
    laid_out = workload(layers, **stack | {"mesh": stack["mesh"] | {"shares_device": True}}, **fields)
    scene = layout_scene(hardware, laid_out, prepare(hardware, laid_out))
    done = play(scene, 4)
    assert least_time(scene) <= done.time * (1 + 1e-9)
    assert done.time == pytest.approx(Unfolded(scene, 4).run().time, rel=1e-9)
    assert all(math.fsum(stage.stalls.values()) == pytest.approx(stage.time, rel=1e-9) for stage in done.stages)
