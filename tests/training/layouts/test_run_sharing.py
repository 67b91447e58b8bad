"""What do messages, groups and compute of a layout share? NICs, switches, memory. Oracles: bytes over bandwidth; every rank simulated."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import strategies as st

from sim.events import Cause
from sim.mesh import layout_scene, prepare
from sim.parallel.program import Send, Start, Work
from sim.report.layouts.layout import waits
from sim.spec.fabric import LeafSpine
from sim.spec.hardware import Hardware
from sim.spec.layer import Layer
from sim.training.layouts.bound import least_time
from sim.training.layouts.play import play
from sim.training.layouts.prices import LayoutPrices
from sim.training.layouts.run import Simulation
from sim.training.layouts.scene import BESIDE
from sim.training.layouts.unfolded import Unfolded
from tests.examples import examples
from tests.harness import loads, machine
from tests.training.layouts.drawn_layouts import assert_like, layouts, model, stacks
from tests.training.layouts.toys import BACKWARD, SLOT, blocks, free, played, run, with_memory, workload


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


def test_a_stage_that_lies_unlike_on_its_nodes_shares_the_nic_of_each() -> None:
    """Three nodes of two, stages of three ranks: the node in the middle carries gradients of both stages at the same time."""
    hardware = machine(2, 3, nvlink=1e12, nic=1e8)
    laid_out = workload(blocks(2, elements=1_000_000), pipeline=2, mesh={"framework": "megatron", "overlap_gradients": False})
    scene = layout_scene(hardware, laid_out, prepare(hardware, laid_out))
    assert not scene.layout.mesh.is_even
    assert play(scene).time > Simulation(scene, 4, keep_rates=False).run().time * (1 + 1e-3)


def passes(count: int, moved: float, elements: int) -> list[Layer]:
    """Blocks that read and write *moved* bytes forward and backward, and compute nothing."""
    update = {"op": "norm", "read": moved / 2, "write": moved / 2, "backward_traffic": moved / 2, "forward": 0.0, "backward": 0.0}
    return [each.model_copy(update=update) for each in blocks(count, elements=elements)]


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
