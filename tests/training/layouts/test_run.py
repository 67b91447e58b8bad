"""Oracles: closed forms of pipelines, conservation of time and bytes, and the slowest link."""

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
from sim.parallel.program import Receive, Send, Start, Wait, Work
from sim.report.layouts.layout import waits
from sim.spec.fabric import LeafSpine
from sim.spec.hardware import Hardware
from sim.spec.layer import Layer
from sim.training.layouts.bound import least_time
from sim.training.layouts.play import play
from sim.training.layouts.prices import LayoutPrices
from sim.training.layouts.run import Simulation
from sim.training.layouts.scene import BESIDE, LayoutScene, PlayedLayout
from sim.training.layouts.unfolded import Unfolded
from tests.examples import examples
from tests.harness import cluster, layer, loads, machine, toy_node
from tests.training.layouts.toys import BACKWARD, FORWARD, block, blocks, free, played, run, split_block, workload

SLOT = FORWARD + BACKWARD


# --- closed forms ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
@pytest.mark.parametrize(("stages", "micro_batches"), [(1, 3), (2, 2), (4, 4), (4, 11)])
def test_the_bubble_is_p_minus_1_over_m(schedule: str, stages: int, micro_batches: int) -> None:
    """Narayanan et al. 2021, section 2.2.1: m + p - 1 slots for m of work."""
    layout_run = run(free(stages), workload(blocks(4 * stages), pipeline=stages, schedule=schedule, micro_batches=micro_batches))
    assert layout_run.step_time == pytest.approx((micro_batches + stages - 1) * 4 * SLOT, rel=1e-6)
    assert layout_run.stalls[Cause.PIPELINE] == pytest.approx((stages - 1) * 4 * SLOT, rel=1e-6)


@pytest.mark.parametrize(("stages", "chunks", "micro_batches"), [(2, 2, 4), (4, 2, 8), (4, 3, 4)])
def test_the_bubble_of_interleaved_stages_is_v_times_less(stages: int, chunks: int, micro_batches: int) -> None:
    """Narayanan et al. 2021, section 2.2.2: (p - 1) / (m v)."""
    given_ = workload(blocks(stages * chunks), pipeline=stages, virtual_stages=chunks, micro_batches=micro_batches)
    layout_run = run(free(stages), given_)
    assert layout_run.step_time == pytest.approx((micro_batches * chunks + stages - 1) * SLOT, rel=1e-6)


def test_the_bubble_of_zb_h1_is_a_third() -> None:
    """Qi et al. 2024, section 2.3: (p - 1) (F + B - W) = (p - 1) F where F = B = W."""
    layout_run = run(free(4), workload(blocks(4), pipeline=4, schedule="zb_h1", micro_batches=12))
    assert layout_run.step_time == pytest.approx(12 * SLOT + 3 * FORWARD, rel=1e-6)


def test_zbv_has_no_bubble() -> None:
    """Qi et al. 2024, section 4 (ZB-V): with F = B = W only the ramp of the V remains, which does not grow with micro-batches."""
    fewer, more = (
        run(free(2), workload(blocks(4), pipeline=2, schedule="zbv", virtual_stages=2, micro_batches=count)).step_time for count in (8, 12)
    )
    assert more - fewer == pytest.approx(4 * 2 * SLOT, rel=1e-6)


@pytest.mark.parametrize("shard", ["none", "optimizer", "gradients", "parameters"])
def test_without_communication_a_step_is_its_compute(shard: str) -> None:
    layout_run = run(free(4), workload(blocks(6), micro_batches=3, shard=shard, tensor=1, context=1))
    accumulated = layout_run.played.stages[0].stalls[Cause.COMPUTE]
    assert layout_run.step_time == pytest.approx(accumulated, rel=1e-6)
    assert accumulated == pytest.approx(3 * 6 * SLOT, rel=1e-6)


def test_the_slowest_stage_sets_the_pace() -> None:
    """A stage with twice the layers: every micro-batch but the first and the last waits for it."""
    slow = run(free(2), workload(blocks(6), pipeline=2, layers_per_stage=(2, 4), micro_batches=10))
    assert slow.step_time == pytest.approx((10 * 4 + 2) * SLOT, rel=1e-6)
    cut = run(free(2), workload(blocks(6), pipeline=2, cuts=["layers.2"], micro_batches=10))
    assert cut.step_time == pytest.approx(slow.step_time, rel=1e-12)


def test_a_stage_that_begins_inside_a_block_receives_all_that_is_alive_there() -> None:
    """Two activations go on there, and one between blocks: 100 MB more forward, and 100 MB back, at 1 GB/s and with nothing beside."""
    wire = machine(1, 2, nvlink=1e12, nic=1e9, launch=0.0)
    table = [
        layer(
            FORWARD,
            BACKWARD,
            name=f"layers.{number}.{part}",
            read="100 MB",
            write="100 MB",
            entering="200 MB" if part == "second" else None,
        )
        for number in range(2)
        for part in ("first", "second")
    ]
    between = run(wire, workload(table, pipeline=2, cuts=["layers.1"]))
    inside = run(wire, workload(table, pipeline=2, cuts=["layers.1.second"]))
    assert inside.step_time - between.step_time == pytest.approx(2 * 100e6 / 1e9, rel=0.02)


def test_fsdp_hides_what_compute_covers() -> None:
    """Gathers that take longer than a block's forward and scatters that take less than its backward: exposed are the first gather, the
    difference of each other one, and the last scatter."""
    elements, ranks, nvlink = 1_000_000, 4, 1e8
    gather = 4.0 * elements * (ranks - 1) / ranks / nvlink
    forward, backward = gather / 2, 4 * gather
    hardware = machine(ranks, nvlink=nvlink, nic=1e18)
    layout_run = run(hardware, workload(blocks(5, forward, backward, elements), shard="parameters"))
    # forward: 5 gathers one after another, then the last block; backward: gathers are hidden, one scatter at the end, beside 4 backwards
    expected = 5 * gather + forward + gather + 5 * backward + gather
    assert layout_run.step_time == pytest.approx(expected, rel=1e-3)


def test_reduction_of_replicas_follows_that_of_shards() -> None:
    """HSDP: the all-reduce of a shard begins when its reduce-scatter has ended; next reduce-scatters do not wait for it."""
    hardware = machine(2, 2, nvlink=1e8, nic=1e8)
    given_ = workload(blocks(3, elements=1_000_000), shard="parameters", replicate=2)
    scene, done = played(hardware, given_)
    reductions = sorted(
        (work for work in done.log.work if work.name == "gradient reduction" and work.t0 >= done.stages[0].begin), key=lambda work: work.t0
    )
    shards, copies = ([work for work in reductions if ("NIC" in work.resource) is copied] for copied in (False, True))
    assert len(shards) == len(copies) == 3
    assert all(copy.t0 >= shard.t1 for shard, copy in zip(shards, copies, strict=True))
    assert shards[1].t0 < copies[0].t1  # beside the next reduce-scatter
    starts = [each for each in scene.programs[0] if isinstance(each, Start) and each.axis == "replicate"]
    assert [each.predecessor[0] for each in starts if each.predecessor] == ["scatter"] * 3
    waits = [each.tag[0] for each in scene.programs[0] if isinstance(each, Wait)]
    assert waits[-3:] == ["scatter replicas"] * 3


# --- laws --------------------------------------------------------------------------------------------------------------


@st.composite
def layouts(draw: st.DrawFn) -> tuple[dict[str, Any], int, int]:
    """Draw fields of ``parallel`` and of the machine that go together: (fields, GPUs of a node, nodes)."""
    tensor, pipeline, data = draw(st.sampled_from((1, 2))), draw(st.sampled_from((1, 2, 4))), draw(st.sampled_from((1, 2, 4)))
    schedule = draw(st.sampled_from(("gpipe", "1f1b", "zb_h1", "interleaved_1f1b", "zbv") if pipeline > 1 else ("1f1b",)))
    fields: dict[str, Any] = {"tensor": tensor, "pipeline": pipeline, "schedule": schedule}
    fields |= {"virtual_stages": 2} if schedule in ("interleaved_1f1b", "zbv") else {}
    fields["shard"] = draw(st.sampled_from(("none", "optimizer", "gradients", "parameters")))
    if fields["shard"] != "none" and data > 1:
        fields["replicate"] = draw(st.sampled_from((1, 2)))
    if fields["shard"] == "parameters":
        fields["reshard_after_forward"] = draw(st.sampled_from((None, True, False)))
    fields["micro_batches"] = pipeline * draw(st.sampled_from((1, 2)))
    gpus = tensor * pipeline * data
    nodes = draw(st.sampled_from([count for count in (1, 2, 4) if gpus % count == 0]))
    return fields, gpus // nodes, nodes


@st.composite
def stacks(draw: st.DrawFn) -> dict[str, Any]:
    flags = ("overlap_gradients", "overlap_parameters", "forward_prefetch", "separate_reduce_scatter", "pipeline_overlap", "root")
    mesh: dict[str, Any] = {flag: draw(st.booleans()) for flag in flags}
    mesh |= {"framework": draw(st.sampled_from(("fsdp2", "fsdp1", "megatron"))), "bucket_elements": draw(st.sampled_from((0, 150_000)))}
    if mesh["framework"] == "fsdp1":
        mesh |= {"backward_prefetch": draw(st.sampled_from(("pre", "post", "none"))), "limit_all_gathers": draw(st.booleans())}
    stack = {"gradient_clipping": draw(st.booleans()), "no_sync": draw(st.booleans()), "launch_cpu": draw(st.sampled_from(("0 s", "2 ms")))}
    return {"mesh": mesh, "stack": stack | {"overlap_slowdown": draw(st.sampled_from((1.0, 1.2)))}}


def model() -> list[Layer]:
    return [each for number in range(8) for each in split_block(number, 100_000)]


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


def assert_stands_for_all(scene: LayoutScene) -> None:
    """One rank a stage, where nodes are alike, and one for each class of ranks step as every rank does by itself; the bound is below."""
    every = Unfolded(scene, 4).run()
    shown = Simulation(scene, 4, keep_rates=False).run() if scene.layout.mesh.is_even else play(scene)
    assert_like(every, shown, Unfolded(scene, 4, folds=True).run())
    assert least_time(scene) <= shown.time * (1 + 1e-9)


def assert_like(every: PlayedLayout, *ways: PlayedLayout) -> None:
    for way in ways:
        assert way.time == pytest.approx(every.time, rel=1e-9)
        for one, mean in zip(way.stages, every.stages, strict=True):
            assert one.stalls == pytest.approx(mean.stalls, rel=1e-9, abs=1e-9)
            assert math.fsum(mean.stalls.values()) == pytest.approx(mean.time, rel=1e-9)


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


@examples(4, 8, layouts(), stacks(), st.sampled_from(("core", "leaves", "both")), st.sampled_from((1, 2)))  # each simulates up to 32 ranks
def test_messages_and_groups_share_the_links_between_switches(
    drawn: tuple[dict[str, Any], int, int], stack: dict[str, Any], narrow: str, per_leaf: int
) -> None:
    """One rank a stage steps as every rank does by itself where core and uplinks are narrow, unless ranks differ; none is overfull."""
    fields, each, nodes = drawn
    fabric: dict[str, Any] = {"core_bandwidth": 2e7} if narrow != "leaves" else {}
    if narrow != "core":
        fabric["leaf_spine"] = LeafSpine.model_validate({"nodes_per_leaf": per_leaf, "uplink_bandwidth": "20 MB/s"})
    plain = machine(each, nodes, nvlink=2e8, nic=5e7, launch=1e-4)
    hardware = plain.model_copy(update={"fabric": plain.fabric.model_copy(update=fabric)})
    laid_out = workload(model(), **stack, **fields)
    scene = layout_scene(hardware, laid_out, prepare(hardware, laid_out))
    every, classes = Unfolded(scene, 4).run(), Unfolded(scene, 4, folds=True)
    shown = Simulation(scene, 4, keep_rates=True).run()
    alike = len(set(classes.representatives)) == scene.layout.mesh.stages
    assert_like(every, classes.run(), *([shown] if alike else []))
    for link, steps in loads(shown.log).items():
        assert all(load <= scene.prices.capacity[link] * (1 + 1e-6) for _, load in steps if link in scene.prices.capacity), link
    assert least_time(scene) <= shown.time * (1 + 1e-9)


@examples(4, 10, stacks(), st.sampled_from((1, 2)), st.sampled_from(("none", "optimizer", "parameters")), st.sampled_from((1e7, 2e8)))
def test_messages_inside_units_share_links_with_groups(stack: dict[str, Any], pipeline: int, shard: str, nvlink: float) -> None:
    """Over four steps each link carries the bytes of every group, message and tensor exchange, no faster than it can."""
    laid_out = workload(model(), **stack, tensor=2, pipeline=pipeline, shard=shard, micro_batches=2)
    scene, done = played(machine(4, pipeline, nvlink=nvlink, nic=5e7, launch=1e-4), laid_out, steps=4)
    expected: Counter[str] = Counter()
    for stage, program in enumerate(scene.programs):
        for each in program:
            if isinstance(each, Work):
                for inside in scene.times[stage].span(each.first, each.last, each.part).exposed_waits:
                    expected.update(scene.prices.live_loads(stage, inside.load))
            elif isinstance(each, Send | Start) and not (stage and isinstance(each, Start) and each.axis == "everyone"):
                send = isinstance(each, Send)
                price = (
                    scene.prices.send(stage, each.stage, each.nbytes)
                    if send
                    else scene.prices.price(stage, each.axis, each.op, each.nbytes)
                )
                expected.update({link: amount * price.volume for link, amount in price.load.items()})
    moved, ends = loads(done.log), max(stage.end for stage in done.stages)
    assert any("NVLink" in scene.prices.descriptions[link][1] for link in expected)
    for link, amount in expected.items():
        steps = [*moved[link], (ends, 0.0)]
        assert sum(load * (end - start) for (start, load), (end, _) in pairwise(steps)) == pytest.approx(4 * amount, rel=1e-6)
        assert all(load <= scene.prices.capacity[link] * (1 + 1e-9) for _, load in steps)
        assert 4 * amount <= scene.prices.capacity[link] * ends * (1 + 1e-9)


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


def hashed(hardware: Hardware, share: float) -> Hardware:
    """Return *hardware* with paths between its nodes that fill to *share*."""
    return hardware.model_copy(update={"fabric": hardware.fabric.model_copy(update={"path_efficiency": share})})


@examples(3, 6, layouts(), stacks(), st.sampled_from((1, 2)))
def test_hashed_paths_slow_every_rank_alike(drawn: tuple[dict[str, Any], int, int], stack: dict[str, Any], nics: int) -> None:
    """One rank a stage stands for all, the bound stays below and grows as paths fill less; full ones are none at all."""
    fields, each, nodes = drawn
    plain = machine(each, nodes, nvlink=2e8, nic=5e7, launch=1e-4, nics=nics if each % nics == 0 else 1)
    laid_out = workload(model(), **stack, **fields)
    times, least = [], []
    for share in (0.4, 0.8, 1.0):
        hardware = hashed(plain, share)
        scene = layout_scene(hardware, laid_out, prepare(hardware, laid_out))
        times.append(play(scene, 4).time)
        assert times[-1] == pytest.approx(Unfolded(scene, 4).run().time, rel=1e-9)
        least.append(least_time(scene))
        assert least[-1] <= times[-1] * (1 + 1e-9)
    assert least[0] * (1 + 1e-9) >= least[1] and least[1] * (1 + 1e-9) >= least[2]
    assert times[2] == play(layout_scene(plain, laid_out, prepare(plain, laid_out)), 4).time


def test_a_message_over_hashed_paths_takes_its_bytes_over_their_share() -> None:
    """Two stages on two nodes, one micro-batch: there and back, 2 n / (share x bandwidth)."""
    layers = [each.model_copy(update={"read": 4e6, "write": 4e6}) for each in blocks(2)]
    layout_run = run(hashed(machine(1, 2, nic=1e8), 0.5), workload(layers, pipeline=2))
    assert layout_run.step_time == pytest.approx(2 * SLOT + 2 * 4e6 / 0.5e8, rel=1e-3)


def test_messages_of_all_replicas_cross_the_core_at_one_time() -> None:
    """Two stages of two replicas on four nodes: there and back 2 x 2 n over the core, rank by rank as with one rank a stage."""
    plain = machine(1, 4, nic=1e12, pcie=1e15)
    hardware = plain.model_copy(update={"fabric": plain.fabric.model_copy(update={"core_bandwidth": 1e8})})
    layers = [each.model_copy(update={"read": 4e6, "write": 4e6, "gradients": (1,)}) for each in blocks(2)]
    laid_out = workload(layers, pipeline=2)
    scene = layout_scene(hardware, laid_out, prepare(hardware, laid_out))
    assert play(scene).time == pytest.approx(2 * SLOT + 2 * 2 * 4e6 / 1e8, rel=1e-3)
    assert Unfolded(scene, 4).run().time == pytest.approx(play(scene).time, rel=1e-6)
    assert least_time(scene) <= play(scene).time * (1 + 1e-9)


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
        (4, 24, 8, {"tensor": 3, "pipeline": 2, "shard": "optimizer"}),
        (2, 33, 6, {"pipeline": 3, "micro_batches": 6, "order": ("pipeline", "tensor", "context", "data")}),
        (4, 36, 12, {"pipeline": 6, "shard": "parameters", "order": ("pipeline", "tensor", "context", "data")}),
        pytest.param(4, 18, 72, {"pipeline": 12, "micro_batches": 12}, marks=pytest.mark.nightly),
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


def test_a_stage_that_lies_unlike_on_its_nodes_shares_the_nic_of_each() -> None:
    """Three nodes of two, stages of three ranks: the node in the middle carries gradients of both stages at the same time."""
    hardware = machine(2, 3, nvlink=1e12, nic=1e8)
    laid_out = workload(blocks(2, elements=1_000_000), pipeline=2, mesh={"framework": "megatron", "overlap_gradients": False})
    scene = layout_scene(hardware, laid_out, prepare(hardware, laid_out))
    assert not scene.layout.mesh.is_even
    assert play(scene).time > Simulation(scene, 4, keep_rates=False).run().time * (1 + 1e-3)


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


def passes(count: int, moved: float, elements: int) -> list[Layer]:
    """Blocks that read and write *moved* bytes forward and backward, and compute nothing."""
    update = {"op": "norm", "read": moved / 2, "write": moved / 2, "backward_traffic": moved / 2, "forward": 0.0, "backward": 0.0}
    return [each.model_copy(update=update) for each in blocks(count, elements=elements)]


def with_memory(hardware: Hardware, bandwidth: float) -> Hardware:
    """Return *hardware* with GPUs of that memory bandwidth."""
    (group,) = hardware.groups
    node = group.node.model_copy(update={"gpu": group.node.gpu.model_copy(update={"memory_bandwidth": bandwidth})})
    return hardware.model_copy(update={"groups": (group.model_copy(update={"node": node}),)})


def test_compute_beside_a_collective_has_what_is_left_of_the_memory() -> None:
    """Closed form: five of six all-reduces of 2 ms lie beside backward and take a quarter of the memory bandwidth: 5 x 2 ms / 4 more."""
    elements, nvlink = 50_000_000, 1e11
    alone = 4.0 * elements / nvlink  # two ranks: 2 (n - 1)/n of the bytes
    hardware = with_memory(machine(2, nvlink=nvlink, nic=1e18), 10 * nvlink)  # five bytes through memory for each half of them, sent twice
    plain, shared = (run(hardware, workload(passes(6, 8e11, elements), mesh={"shares_device": shares})) for shares in (False, True))
    assert shared.step_time - plain.step_time == pytest.approx(5 * alone / 4, rel=1e-6)
    assert shared.stalls[Cause.COMPUTE] - plain.stalls[Cause.COMPUTE] == pytest.approx(5 * alone / 4, rel=1e-6)
    slower = {resource: seconds for _, resource, seconds in waits(shared) if resource.startswith(BESIDE)}
    assert sum(slower.values()) == pytest.approx(5 * alone / 4, rel=1e-6)  # and it has a row of its own
    assert not [resource for _, resource, _ in waits(plain) if resource.startswith(BESIDE)]


@pytest.mark.parametrize(
    ("framework", "micro_batches", "each", "passed"),
    [
        # a shard into the buffer, 8 / 4, before the first gather each way; weights out of it, 8, of three blocks each way; gradients in, 8
        ("fsdp2", 1, False, 2 * 2 + 6 * 8 + 3 * 8),
        ("fsdp2", 3, True, 3 * (2 * 2 + 6 * 8 + 3 * 8)),
        # gradients are put together, 8, and those of the first block divided, 8, before its reduce-scatter, which nothing hides
        ("fsdp1", 1, False, 3 * 8 + 8),
        ("fsdp1", 2, True, 2 * (3 * 8 + 8)),
    ],
)
def test_fsdp_copies_at_the_rate_of_the_memory(framework: str, micro_batches: int, each: bool, passed: int) -> None:
    """Closed form: bytes of each element of a block over the memory bandwidth, beside compute that takes a hundred times as long."""
    elements, bandwidth = 1_000_000, 1e12
    hardware = with_memory(free(4), bandwidth)
    stack = {"no_sync": not each}
    given = workload(blocks(3, elements=elements), stack, {"framework": framework}, micro_batches, shard="parameters")
    layout_run = run(hardware, given)
    computed = micro_batches * 3 * SLOT
    assert layout_run.step_time - computed == pytest.approx(passed * elements / bandwidth, rel=1e-6)
    assert layout_run.stalls[Cause.COMPUTE] - computed == pytest.approx(
        micro_batches * elements / bandwidth * {"fsdp2": 72, "fsdp1": 24}[framework], rel=1e-6
    )


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


# --- what groups share ---------------------------------------------------------------------------------------------------


def test_two_groups_on_one_nic_share_it() -> None:
    """Two tensor ranks a node: their data-parallel groups each need the NIC; two NICs serve one each."""
    given_ = workload(model(), tensor=2)
    alone = {}
    for nics in (1, 2):
        hardware = machine(2, 2, nics=nics, nvlink=1e12, nic=1e8)
        alone[nics] = LayoutPrices(
            hardware, prepare(hardware, given_).mesh, layout_scene(hardware, given_, prepare(hardware, given_)).prices.tuning
        )
    one, two = (alone[nics].price(0, "shard", "all_reduce", 4e6).uncontended_time for nics in (1, 2))
    assert one == pytest.approx(2 * 4e6 / 1e8, rel=1e-3)
    assert two == pytest.approx(4e6 / 1e8, rel=1e-3)


@pytest.mark.parametrize(("gpus", "nodes", "expert"), [(2, 4, 8), (2, 4, 4), (4, 2, 8), (4, 1, 4), (1, 4, 4)])
@pytest.mark.parametrize("load", [1.0, 1.3, 2.5])
def test_a_dispatch_waits_for_the_node_of_the_most_loaded_rank(gpus: int, nodes: int, expert: int, load: float) -> None:
    """Closed form: what comes by its card, (n - l)(L + (l - 1)(n - L)/(n - 1)) blocks, or what one rank receives, (n - 1) L blocks at most.

    Never above an exchange in which all ranks are as loaded as that one.
    """
    hardware = machine(gpus, nodes, nvlink=1e15, nic=1e8, pcie=1e15)
    kind = {"share": "expert", "groups": 8, "tokens": 8}
    given_ = workload([each.model_copy(update=kind) for each in blocks(2)], expert=expert)
    prices = LayoutPrices(hardware, prepare(hardware, given_).mesh, layout_scene(hardware, given_, prepare(hardware, given_)).prices.tuning)
    nbytes, groups = 8e7, max(1, gpus // expert)
    local = min(gpus, expert)
    duration = prices.price_without_links(0, "expert", "all_to_all", nbytes, load).uncontended_time
    rest = (expert - load) / (expert - 1)
    by_card = groups * (expert - local) * (load + (local - 1) * rest) * nbytes / expert / 1e8
    assert duration == pytest.approx(by_card, rel=1e-4, abs=1e-6)
    assert duration <= prices.price_without_links(0, "expert", "all_to_all", load * nbytes).uncontended_time * (1 + 1e-9)


def test_stages_on_one_node_share_its_nic() -> None:
    """Gradients of both stages leave by one NIC at the same time: twice as long as those of one."""
    hardware = machine(2, 2, nics=1, nvlink=1e12, nic=1e8)
    fields: dict[str, Any] = {"micro_batches": 1, "mesh": {"framework": "megatron", "overlap_gradients": False}}
    both = run(hardware, workload(blocks(2, elements=1_000_000), pipeline=2, **fields, order=("pipeline", "tensor", "context", "data")))
    one = run(machine(1, 2, nvlink=1e12, nic=1e8), workload(blocks(1, elements=1_000_000), **fields))
    exchange = 4e6 / 1e8
    assert one.step_time == pytest.approx(SLOT + exchange, rel=1e-3)
    # the last stage ends backward one backward before the first one, and has the NIC to itself meanwhile
    assert both.step_time == pytest.approx(2 * SLOT + 2 * exchange - BACKWARD, rel=1e-3)


# --- hosts and halves ------------------------------------------------------------------------------------------------------


def test_halves_of_backward_are_the_whole() -> None:
    given_ = workload(model(), tensor=2, pipeline=2, schedule="zb_h1", micro_batches=2)
    given_ = given_.model_copy(update={"training": given_.training.model_copy(update={"compute_factor": 1.7})})
    scene = layout_scene(free(4), given_, prepare(free(4), given_))
    full, inputs, weights = (scene.times[0](0, part) for part in ("B", "I", "W"))
    assert inputs.compute + weights.compute == pytest.approx(full.compute, rel=1e-12)
    assert inputs.launch_time(1.0) + weights.launch_time(1.0) == pytest.approx(full.launch_time(1.0), rel=1e-12)
    assert weights.compute > 0


def test_the_host_issues_a_prefetch_behind_the_work_before_it() -> None:
    """A host that launches slowly: each gather begins when the block before it is launched, and nothing is hidden."""
    elements, ranks, nvlink = 1_000_000, 4, 1e8
    gather = 4.0 * elements * (ranks - 1) / ranks / nvlink
    slow = {"stack": {"launch_cpu": f"{2 * gather!r} s"}}
    layout_run = run(machine(ranks, nvlink=nvlink), workload(blocks(4, 0.0, 0.0, elements), shard="parameters", **slow))
    quick = run(machine(ranks, nvlink=nvlink), workload(blocks(4, 0.0, 0.0, elements), shard="parameters"))
    forward = 4 * 2 * gather + gather  # four launches, of which each but the last precedes a gather
    assert layout_run.step_time >= forward + 4 * 2 * gather
    assert quick.step_time == pytest.approx((4 + 3 + 4) * gather + gather, rel=0.1)
    assert layout_run.stalls[Cause.LAUNCH] > 0


def test_counts_of_tokens_drain_the_host() -> None:
    """With its lead gone the host launches each expert layer while the GPU waits; not where capacity is fixed."""
    layers = []
    for number in range(4):
        layers.append(block(number))
        for name in ("dispatch", "experts"):
            kind = {"name": f"layers.{number}.{name}", "share": "expert", "groups": 4, "tokens": 8}
            layers.append(block(number, 1e-5, 1e-5).model_copy(update=kind))
    launch = {"launch_cpu": "1 ms"}
    counted, padded = (
        run(free(2), workload(layers, stack=launch, mesh={"expert_counts": counts}, expert=2, shard="none")) for counts in (True, False)
    )
    assert padded.stalls[Cause.LAUNCH] == pytest.approx(1e-3)  # of the first kernel
    # behind each count the GPU waits for the expert's kernel and, since that is short, for the one after it
    assert counted.stalls[Cause.LAUNCH] == pytest.approx(1e-3 + 4 * (2e-3 - 1e-5), rel=1e-6)


# --- messages between stages --------------------------------------------------------------------------------------------------


def test_stages_wait_for_their_sends_unless_they_overlap() -> None:
    """1F1B sends and receives in one call: in the steady state each micro-batch costs two messages more; interleaved stages may not."""
    nbytes, nvlink = 1e6, 1e9
    layers = [each.model_copy(update={"read": nbytes * 4, "write": nbytes * 4}) for each in blocks(4)]
    times = {}
    for overlap in (False, True):
        times[overlap] = run(
            machine(2, nvlink=nvlink), workload(layers, mesh={"pipeline_overlap": overlap}, pipeline=2, virtual_stages=2, micro_batches=8)
        ).step_time
    assert times[True] < times[False]


@pytest.mark.parametrize(("framework", "calls"), [("megatron", 2), ("deepspeed", 4)])
def test_messages_of_a_micro_batch_in_the_steady_state(framework: str, calls: int) -> None:
    """A send and the receive after it are one call of 1F1B: two a micro-batch; DeepSpeed's are calls of their own: four (TrainSchedule)."""
    nbytes, nvlink = 1e6, 1e9
    layers = [each.model_copy(update={"read": nbytes * 4, "write": nbytes * 4}) for each in blocks(4)]
    fewer, more = (
        run(machine(4, nvlink=nvlink), workload(layers, mesh={"framework": framework}, pipeline=4, micro_batches=count)).step_time
        for count in (8, 16)
    )
    assert (more - fewer) / 8 == pytest.approx(SLOT + calls * nbytes * 4 / nvlink, rel=0.01)


def test_a_message_takes_its_bytes_over_the_link() -> None:
    """Two stages, one micro-batch: there and back, 2 n / bandwidth."""
    layers = [each.model_copy(update={"read": 4e6, "write": 4e6}) for each in blocks(2)]
    layout_run = run(machine(2, nvlink=1e8), workload(layers, pipeline=2))
    assert layout_run.step_time == pytest.approx(2 * SLOT + 2 * 4e6 / 1e8, rel=1e-3)


# --- what the host does beside launching -------------------------------------------------------------------------------


def test_checked_collectives_bound_a_step_by_the_host() -> None:
    # forward two messages of a block, backward two more and one gathered again; each check is four socket messages to the other rank
    seconds, count = 0.05, 3
    checked, plain = (
        run(free(2), workload([each for number in range(count) for each in split_block(number)], mesh=mesh, tensor=2)).step_time
        for mesh in ({"framework": "megatron", "collective_check": f"{seconds} s"}, {"framework": "megatron"})
    )
    launched = count * 5 * 4 * seconds
    assert launched < checked < launched + 2 * plain
    assert plain < 0.1 * checked


def test_a_checked_reduction_begins_when_the_host_has_compared_it() -> None:
    step = {
        check: run(free(4), workload(blocks(2), mesh={"collective_check": check}, shard="optimizer")).step_time for check in ("0 s", "1 s")
    }
    assert step["1 s"] - step["0 s"] == pytest.approx(2 * 4 * 3 * 1.0, rel=0.01)  # one bucket: a reduce-scatter, and a gather


def routed(number: int) -> list[Layer]:
    """Return a block of four experts: their product, and a combination that takes no time."""
    own = {"share": "expert", "read": "4 B", "write": "4 B"}
    return [
        block(number, share="expert", tokens=64, groups=4, channels=(8, 8)),
        layer(0.0, 0.0, name=f"layers.{number}.combine", **own),
    ]


def test_experts_keep_the_host_busy_and_graphs_less() -> None:
    layers = [each for number in range(4) for each in routed(number)]
    steps = {
        (host, graphs): run(
            free(2), workload(layers, mesh={"expert_host": host, "expert_counts": False}, stack={"cuda_graphs": graphs}, expert=2)
        ).step_time
        for host in ("0 s", "1 s")
        for graphs in (False, True)
    }
    assert steps["0 s", False] == pytest.approx(4 * SLOT, rel=0.01)
    assert steps["1 s", False] == pytest.approx(4 * (1.0 + 1.5), rel=0.02)
    assert steps["1 s", True] == pytest.approx(4 * (1.0 + 1.5) / 2, rel=0.03)


def test_blocks_keep_the_host_busy_operator_by_operator() -> None:
    """A block's forward takes the host a second, its backward 1.5, what runs forward again one more; replayed graphs take none."""

    laid_out = workload(blocks(4), mesh={"block_host": "1 s"})
    again = laid_out.model_copy(update={"training": laid_out.training.model_copy(update={"activation_checkpointing": "blocks"})})
    graphs = workload(blocks(4), mesh={"block_host": "1 s"}, stack={"cuda_graphs": True})
    assert run(free(2), laid_out).step_time == pytest.approx(4 * (1.0 + 1.5), rel=0.02)
    assert run(free(2), again).step_time == pytest.approx(4 * (1.0 + 2.5), rel=0.02)
    assert run(free(2), graphs).step_time == pytest.approx(4 * SLOT, rel=0.01)


def test_each_tensor_message_keeps_the_host_busy() -> None:
    """A block with sequence parallelism starts two messages in forward and two in backward; replayed graphs start none."""
    split = {"layers": [each for number in range(4) for each in split_block(number)], "tensor": 2, "sequence": True}
    started = run(free(2), workload(**split, mesh={"tensor_host": "1 s"}))
    assert started.step_time == pytest.approx(4 * 4 * 1.0, rel=0.02)
    graphs = run(free(2), workload(**split, mesh={"tensor_host": "1 s"}, stack={"cuda_graphs": True}))
    assert graphs.step_time == pytest.approx(run(free(2), workload(**split)).step_time, rel=0.01)


@pytest.mark.parametrize("schedule", ["1f1b", "zb_h1"])
def test_backward_that_is_split_costs_the_host_no_more(schedule: str) -> None:
    """Two stages of two blocks, two micro-batches: hosts launch ahead of what arrives, so that a step is what one of them launches."""
    laid_out = workload(blocks(4), mesh={"block_host": "1 s"}, micro_batches=2, pipeline=2, schedule=schedule)
    assert run(free(2), laid_out).step_time == pytest.approx(2 * 2 * (1.0 + 1.5), rel=0.05)


@pytest.mark.parametrize("chunks", [1, 2])
def test_each_cut_hands_over_what_crosses_it(chunks: int) -> None:
    """Blocks whose inputs differ: both ends of a message name the bytes that enter the later of the two chunks, as do its gradients."""
    layers = [each.model_copy(update={"read": 8e3 / 2**number}) for number, each in enumerate(blocks(4))]
    hardware, laid_out = free(4 // chunks), workload(layers, micro_batches=4, pipeline=4 // chunks, virtual_stages=chunks)
    layout = prepare(hardware, laid_out)
    made = [each for instructions in layout_scene(hardware, laid_out, layout).programs for each in instructions]
    sends = {each.tag: each.nbytes for each in made if isinstance(each, Send)}
    width = layout.input_bytes[0] / 8e3
    assert width > 0
    expected = {("activations", chunk): width * 8e3 / 2**chunk for chunk in (1, 2, 3)}
    expected |= {("gradients", chunk): width * 8e3 / 2 ** (chunk + 1) for chunk in (0, 1, 2)}
    assert {(what, chunk): nbytes for (what, chunk, _), nbytes in sends.items()} == pytest.approx(expected)
    assert {each.tag: each.nbytes for each in made if isinstance(each, Receive)} == sends


def test_a_message_takes_the_time_of_its_own_cut() -> None:
    """Three stages, one micro-batch: there and back each cut takes its own bytes over the NIC."""
    layers = [each.model_copy(update={"read": read, "write": 1.0}) for read, each in zip((1.0, 4e6, 1e6), blocks(3), strict=True)]
    hardware, laid_out = machine(1, 3, nic=1e8), workload(layers, pipeline=3)
    scene = layout_scene(hardware, laid_out, prepare(hardware, laid_out))
    assert play(scene).time == pytest.approx(3 * SLOT + 2 * (4e6 + 1e6) / 1e8, rel=1e-3)
    assert least_time(scene) <= play(scene).time * (1 + 1e-9)


def test_without_a_pipeline_nobody_waits_for_other_stages() -> None:
    """Shard groups of three ranks on nodes of four lie unlike: ranks of one stage come at other times, and wait for the slowest of them."""
    hardware = machine(4, 3, nvlink=2e8, nic=5e7, launch=1e-4)
    laid_out = workload(model(), shard="parameters", replicate=4, micro_batches=2, stack={"gradient_clipping": True})
    scene = layout_scene(hardware, laid_out, prepare(hardware, laid_out))
    assert not scene.layout.mesh.is_even
    for played_layout in (play(scene), Unfolded(scene, 4).run()):
        (stage,) = played_layout.stages
        assert stage.stalls[Cause.PIPELINE] == stage.exposed["pipeline"] == 0.0
        assert stage.stalls[Cause.STRAGGLER] > 1e-6
        assert math.fsum(stage.stalls.values()) == pytest.approx(stage.time, rel=1e-9)


def test_the_gradient_norm_is_no_reduction_of_gradients() -> None:
    """Plain FSDP has no data-parallel reduction: what it waits for is gathers and scatters of shards, and the norm."""
    hardware = machine(1, 2, nic=1e8, launch=1e-3)
    laid_out = workload(blocks(2, elements=100_000), shard="parameters", stack={"gradient_clipping": True})
    layout_run = run(hardware, laid_out)
    assert layout_run.exposed["data"] == 0.0
    assert layout_run.exposed["norm"] >= 1e-3
    without = run(hardware, workload(blocks(2, elements=100_000), shard="parameters"))
    assert without.exposed["norm"] == 0.0 < without.exposed["shard"]
