"""What groups of a layout and sends between its stages cost. Oracles: bytes over the narrowest link, by hand, with latency and shares."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import strategies as st

from sim.cluster.shared_gpu import traffic_of
from sim.events import Cause
from sim.mesh import layout_scene, prepare
from sim.spec.fabric import LeafSpine
from sim.spec.hardware import Hardware
from sim.training.collectives.price.collective_plan import Tuning
from sim.training.layouts.group_price import GroupPrice
from sim.training.layouts.prices import LayoutPrices, PriceBook
from tests.examples import examples
from tests.harness import cluster, machine, toy_node
from tests.training.layouts.drawn_layouts import layouts, model, stacks
from tests.training.layouts.test_gloo import gloo
from tests.training.layouts.toys import split_block, workload

N = 4e6
NIC, NVLINK = 1e8, 1e9
STAGES_INSIDE = ("pipeline", "tensor", "context", "data")
"""The order of ranks in which the stages of a pipeline share nodes."""


def prices(hardware: Hardware, stack: dict[str, Any] | None = None, book: PriceBook | None = None, **fields: Any) -> LayoutPrices:
    given = workload([each for number in range(4) for each in split_block(number)], stack=stack, **fields)
    layout = prepare(hardware, given)
    scene_prices = layout_scene(hardware, given, layout).prices
    return LayoutPrices(hardware, layout.mesh, scene_prices.tuning, scene_prices.sockets, book=book or PriceBook())


# --- groups -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ranks", [2, 4])
def test_a_ring_inside_a_node_moves_its_share_over_one_link(ranks: int) -> None:
    """2 (n-1)/n S for an all-reduce, (n-1)/n S for a gather, over an NVLink."""
    layout_prices = prices(machine(ranks, nvlink=NVLINK), tensor=ranks)
    share = (ranks - 1) / ranks * N / NVLINK
    assert layout_prices.price(0, "tensor", "all_reduce", N).uncontended_time == pytest.approx(2 * share, rel=1e-3)
    assert layout_prices.price(0, "tensor", "all_gather", N).uncontended_time == pytest.approx(share, rel=1e-3)
    assert (
        layout_prices.price_without_links(0, "tensor", "all_gather", N).uncontended_time
        == layout_prices.price(0, "tensor", "all_gather", N).uncontended_time
    )
    assert layout_prices.price(0, "tensor", "all_gather", N).limit == "1 NVLinks GPU0-NVSwitch"
    assert layout_prices.price(0, "tensor", "all_gather", N).cause is Cause.INTERCONNECT


@pytest.mark.parametrize("nodes", [2, 4])
@pytest.mark.parametrize("tensor", [1, 2, 4])
def test_groups_beside_each_other_add_up_on_the_nic(nodes: int, tensor: int) -> None:
    """Each of *tensor* groups sends 2 (n-1)/n S from a node; one NIC carries them all, so many NICs one each."""
    one = 2 * (nodes - 1) / nodes * N / NIC
    for nics in {1, tensor}:
        price = prices(machine(tensor, nodes, nics=nics, nvlink=1e12, nic=NIC), tensor=tensor).price(0, "shard", "all_reduce", N)
        assert price.uncontended_time == pytest.approx(one * tensor / nics, rel=1e-3)
        assert price.cause is Cause.NETWORK
        assert price.launch + price.volume / price.cap <= price.uncontended_time * (1 + 1e-9)


def test_load_times_rate_never_exceeds_what_a_link_carries() -> None:
    layout_prices = prices(machine(4, 2, nics=2, nvlink=NVLINK, nic=NIC), tensor=4)
    price = layout_prices.price(0, "shard", "all_reduce", N)
    rate = price.volume / (price.uncontended_time - price.launch)
    used = {link: amount * rate / layout_prices.capacity[link] for link, amount in price.load.items()}
    assert max(used.values()) == pytest.approx(1.0, rel=1e-3)
    assert all(layout_prices.descriptions[link] for link in price.load)


def test_what_the_core_of_a_fabric_carries_is_shared_by_all_groups() -> None:
    """Four nodes, two groups: each of eight members sends 2 (n-1)/n S through a core as fast as one NIC."""
    hardware = cluster(toy_node(2, nics=2, nvlink=1e12, nic=NIC), count=4, core_bandwidth=f"{NIC} B/s")
    price = prices(hardware, tensor=2).price(0, "shard", "all_reduce", N)
    assert price.uncontended_time == pytest.approx(8 * 2 * (3 / 4) * N / NIC, rel=1e-3)
    assert price.load["core"] > 0
    assert price.cause is Cause.NETWORK


def test_least_is_what_a_group_takes_and_never_more() -> None:
    layout_prices = prices(machine(2, 2, nvlink=1e12, nic=NIC), tensor=2)
    assert layout_prices.least_time(0, "shard", "all_reduce", N) == layout_prices.price(0, "shard", "all_reduce", N).uncontended_time


def test_where_groups_lie_unlike_the_least_is_what_the_first_rank_takes_by_itself() -> None:
    """Pairs on two nodes of three GPUs: the first is inside a node, the second is not, and has a NIC to itself."""
    hardware = machine(3, 2, nvlink=NVLINK, nic=NIC, launch=1e-3)
    layout_prices = prices(hardware, tensor=2)
    assert layout_prices.least_time(0, "tensor", "all_reduce", N) == pytest.approx(1e-3 + N / NVLINK, rel=1e-3)
    staged = prices(hardware, pipeline=2, order=STAGES_INSIDE)
    assert staged.least_send_time(0, 1, N) == pytest.approx(1e-3 + N / NVLINK, rel=1e-3)
    over_gloo = prices(hardware, gloo(launch="2 ms", flow_cap=f"{NIC / 2} B/s"), pipeline=2, order=STAGES_INSIDE)
    assert over_gloo.least_send_time(0, 1, N) == pytest.approx(2e-3 + N / (NIC / 2), rel=1e-3)


def test_latency_is_a_share_of_small_messages_only() -> None:
    layout_prices = prices(machine(4, nvlink=NVLINK, hop_latency=1e-4), tensor=4)
    small, large = (layout_prices.price(0, "tensor", "all_reduce", nbytes).latency_share for nbytes in (1e3, 1e9))
    assert 0.9 < small <= 1.0
    assert 0.0 <= large < 0.1


def test_stages_that_share_a_node_share_the_names_of_its_links() -> None:
    apart = prices(machine(2, 2, nvlink=1e12, nic=NIC), tensor=2, pipeline=2)
    assert [apart.nodes_of(stage) for stage in (0, 1)] == ["stage0", "stage1"]
    inside = prices(machine(2, 2, nvlink=1e12, nic=NIC), pipeline=2, order=STAGES_INSIDE)
    assert {inside.nodes_of(stage) for stage in (0, 1)} == {"stages0-1"}
    loads = [inside.price(stage, "shard", "all_reduce", N).load for stage in (0, 1)]
    assert set(loads[0]) & set(loads[1]), "the NIC that both leave by"


def test_the_slowest_of_unlike_groups_sets_the_price() -> None:
    """Two pairs of GPUs, one joined by two links, one by one: an all-reduce of two sends S over each."""
    price = prices(machine(4, wiring={"0-1": 2, "2-3": 1}, nvlink=NVLINK), tensor=2).price(0, "tensor", "all_reduce", N)
    assert price.uncontended_time == pytest.approx(N / NVLINK, rel=1e-3)
    assert price.volume / price.cap == pytest.approx(N / NVLINK, rel=1e-3)


def test_groups_of_stages_on_other_nodes_lie_alike() -> None:
    layout_prices = prices(machine(4, 2, nvlink=1e12, nic=NIC), tensor=2, pipeline=2)
    assert layout_prices.placement_key(0, "tensor") == layout_prices.placement_key(1, "tensor")
    assert layout_prices.placement_key(0, "tensor") != layout_prices.placement_key(0, "shard")


def test_groups_inside_nodes_lie_alike_however_many_nodes_a_stage_has() -> None:
    """Elsewhere they load no link between switches."""
    hardware = cluster(toy_node(2, nvlink=NVLINK, nic=NIC), count=4, core_bandwidth=f"{NIC} B/s")
    one, two = (prices(hardware, tensor=2, pipeline=stages) for stages in (1, 2))
    assert one.placement_key(0, "tensor") == two.placement_key(0, "tensor")
    assert one.placement_key(0, "shard") != two.placement_key(0, "shard")


def leaving(price: GroupPrice) -> dict[str, float]:
    """Bytes that leave by each node's NIC."""
    return {link.partition(".")[0]: amount * price.volume for link, amount in price.load.items() if link.endswith("nic0>net")}


def test_what_spans_stages_loads_the_nodes_of_each_and_no_other() -> None:
    """Three stages of a node each. All nodes join an all-reduce of everyone and send 2 (n-1)/n S, of the embeddings' group the first
    and the last, S for each of two tensor ranks; that of a stage's own ranks stays on its node."""
    layout_prices = prices(machine(2, 3, nvlink=1e12, nic=NIC), tensor=2, pipeline=3)
    everyone = leaving(layout_prices.price(0, "everyone", "all_reduce", N))
    assert everyone == pytest.approx(dict.fromkeys(("stage0", "stage1", "stage2"), 2 * (5 / 6) * N), rel=1e-3)
    assert leaving(layout_prices.price(0, "ends", "all_reduce", N)) == pytest.approx(dict.fromkeys(("stage0", "stage2"), 2 * N), rel=1e-3)
    for stage in range(3):
        assert {link.partition(".")[0] for link in layout_prices.price(stage, "tensor", "all_reduce", N).load} == {f"stage{stage}"}


def test_stages_whose_groups_lie_alike_beyond_their_first_node_have_one_price() -> None:
    """Stages of three nodes of four GPUs in shard groups of six ranks; the second group of each leaves from the GPUs 2 and 3 of the
    stage's second node. The other stage is as many nodes further: nothing else differs."""
    hardware = cluster(toy_node(4, nvlink=1e12, nic=NIC), count=6, core_bandwidth=f"{NIC / 10} B/s")
    layout_prices = prices(hardware, pipeline=2, replicate=2, shard="parameters")
    assert layout_prices.placement_key(0, "shard") == layout_prices.placement_key(1, "shard")
    first, second = (layout_prices.price(stage, "shard", "all_gather", N) for stage in range(2))
    assert first.uncontended_time == second.uncontended_time == pytest.approx(2 * 2 * (5 / 6) * N / (NIC / 10), rel=1e-3), (
        "two groups, each over two nodes"
    )


@pytest.mark.parametrize("nodes", [2, 3])
@pytest.mark.parametrize("skew", [1.0, 1.5, 3.0])
def test_the_rank_that_receives_most_fills_the_nic_of_its_node(nodes: int, skew: float) -> None:
    """Of n ranks, two a node, those elsewhere send *skew* S/n each to the first and what is left, even, to its neighbor and to others;
    what the first sends, and what the other GPU of its node receives, is even, too."""
    ranks, others = 2 * nodes, 2 * nodes - 2
    rest, block = (ranks - skew) / (ranks - 1), N / ranks
    outline = prices(machine(2, nodes, nvlink=1e15, nic=NIC, pcie=1e15)).outline(0, "shard", "all_to_all", N, skew)
    moved = {each.name: each.amount * outline.price.volume for each in outline.links}
    assert moved["net>nic0"] == pytest.approx(others * (skew + rest) * block)
    assert moved["nic0>net"] == pytest.approx(2 * others * rest * block)
    assert moved["plx0>gpu0"] == pytest.approx(others * skew * block)
    assert moved["plx0>gpu1"] == pytest.approx(others * rest * block)
    assert outline.price.uncontended_time == pytest.approx(max(moved["net>nic0"], moved["nic0>net"]) / NIC, rel=1e-3)


@pytest.mark.parametrize("nodes_per_leaf", [1, 2, 4])
def test_rings_of_a_group_load_uplinks_and_the_links_of_its_nodes(nodes_per_leaf: int) -> None:
    """Four nodes in order: a ring leaves each leaf once with 2 (n-1)/n S, and each node. Uplinks are the machine's, NICs a stage's."""
    leaves = {"nodes_per_leaf": nodes_per_leaf, "uplink_bandwidth": f"{NIC / 10} B/s"}
    layout_prices = prices(cluster(toy_node(1, nic=NIC, pcie=1e15), count=4, leaf_spine=leaves))
    price = layout_prices.price(0, "shard", "all_reduce", N)
    assert price.uncontended_time == pytest.approx(2 * (3 / 4) * N / (NIC if nodes_per_leaf == 4 else NIC / 10), rel=1e-3)
    assert leaving(price) == pytest.approx({"stage0": 2 * (3 / 4) * N}, rel=1e-3)
    assert {link.partition(".")[0] for link in price.load} <= {"stage0", "fabric"}


def unnumbered(price: GroupPrice) -> GroupPrice:
    return price._replace(limit=re.sub(r"(leaf|pod) ?\d+", r"\1", price.limit))


@examples(
    6, 12, layouts(), stacks(), st.sampled_from((1, 2)), st.sampled_from((None, {"leaves": 2, "oversubscription": 2})), st.booleans(),
    st.sampled_from((1.0, 0.5)),
)  # fmt: skip
def test_groups_below_other_switches_have_the_prices_that_each_has_by_itself(
    drawn: tuple[dict[str, Any], int, int], stack: dict[str, Any], per_leaf: int, pods: dict[str, int] | None, rails: bool, filled: float
) -> None:
    """Four times the nodes, so that stages and groups repeat below other leaves and pods. Oracle: none is known to be moved.

    Of several links that are equally slow, another may be named as the limit.
    """
    fields, each, nodes = drawn
    spec = LeafSpine.model_validate({"nodes_per_leaf": per_leaf, "oversubscription": 3, "rails": rails and each > 1, "pods": pods})
    plain = machine(each, 4 * nodes, nvlink=2e8, nic=5e7, nics=each)
    hardware = plain.model_copy(update={"fabric": plain.fabric.model_copy(update={"leaf_spine": spec, "path_efficiency": filled})})
    laid_out = workload(model(), **stack, **fields)
    layout = prepare(hardware, laid_out)
    own, moved = (LayoutPrices(hardware, layout.mesh, Tuning()) for _ in range(2))
    own._period = 0  # a cached property
    for stage in range(layout.mesh.stages):
        for axis in ("tensor", "shard", "replicate", "pool", "everyone"):
            for op in ("all_gather", "all_reduce"):
                if layout.mesh.group_size(axis) > 1:
                    assert unnumbered(moved.price(stage, axis, op, N)) == unnumbered(own.price(stage, axis, op, N)), (stage, axis)
        for target in {*range(layout.mesh.stages)} - {stage}:
            assert unnumbered(moved.send(stage, target, N)) == unnumbered(own.send(stage, target, N)), (stage, target)
    assert moved.capacity == own.capacity and moved.descriptions == own.descriptions


@pytest.mark.parametrize("filled", [0.5, 0.25])
def test_hashed_paths_carry_a_share_of_what_a_node_sends(filled: float) -> None:
    """Nothing is said of switches: each node is below its own, whose uplinks are as fast as its NIC were they filled."""
    hardware = cluster(toy_node(1, nic=NIC, pcie=1e15, nvlink=NVLINK), count=4, path_efficiency=filled)
    reduced = prices(hardware).price(0, "shard", "all_reduce", N)
    assert reduced.uncontended_time == pytest.approx(2 * (3 / 4) * N / (filled * NIC), rel=1e-3)
    sent = prices(hardware, pipeline=4).send(0, 1, N)
    assert sent.uncontended_time == pytest.approx(N / (filled * NIC), rel=1e-3)
    assert {link for link in sent.load if "fabric" in link} == {"stage0.fabric.leaf0.up", "stage1.fabric.leaf1.down"}


@pytest.mark.parametrize(("nodes_per_leaf", "even"), [(1, True), (2, True), (3, False), (4, True), (8, True)])
def test_switches_carry_like_shares_where_each_has_as_many_of_a_stages_nodes(nodes_per_leaf: int, even: bool) -> None:
    """Two stages of four nodes in order: of leaves of three the first has three nodes of the first stage, the second one."""
    leaves = {"nodes_per_leaf": nodes_per_leaf, "uplink_bandwidth": f"{NIC} B/s"}
    assert prices(cluster(toy_node(1), count=8, leaf_spine=leaves), pipeline=2).even_below_switches == even
    assert prices(cluster(toy_node(1), count=8), pipeline=2).even_below_switches


def test_collectives_take_memory_bandwidth_while_they_run() -> None:
    """A ring moves 2 (n-1)/n S through each GPU of an all-reduce, twice what it gathers (`traffic_of`); sends move their bytes."""
    layout_prices = prices(machine(4, nvlink=NVLINK), tensor=2, pipeline=2)
    reduced, gathered = (layout_prices.price(0, "tensor", op, N) for op in ("all_reduce", "all_gather"))
    for op, price in (("all_reduce", reduced), ("all_gather", gathered)):
        assert price.memory_rate * price.uncontended_time == pytest.approx(traffic_of(op, 2, N))
        assert price.blocks > 0
    sent = layout_prices.send(0, 1, N)
    assert sent.memory_rate * sent.uncontended_time == pytest.approx(N)
    assert sent.blocks > 0
    assert layout_prices.send(0, 1, 1.0).latency_share == 0.0


def test_over_gloo_no_thread_blocks_are_kept() -> None:
    price = prices(machine(1, 2, nic=NIC), gloo()).price(0, "shard", "all_reduce", N)
    assert (price.blocks, price.memory_rate) == (0, 0.0)


def test_a_book_keeps_what_lies_alike_for_another_mesh() -> None:
    book, hardware = PriceBook(), machine(2, 2, nvlink=1e12, nic=NIC)
    first = prices(hardware, book=book, tensor=2)
    price = first.price(0, "shard", "all_reduce", N)
    outline_count = len(book.outlines)
    second = prices(hardware, book=book, tensor=2)
    assert second.price(0, "shard", "all_reduce", N) == price
    assert second.placement_key(0, "shard") == first.placement_key(0, "shard") != first.placement_key(0, "tensor")
    assert len(book.outlines) == outline_count
    assert second.price(0, "shard", "all_reduce", 2 * N).uncontended_time == pytest.approx(2 * price.uncontended_time, rel=1e-3)
    assert len(book.outlines) == outline_count + 1


# --- sends ------------------------------------------------------------------------------------------------------------


def test_a_send_inside_a_node_takes_its_bytes_over_the_link() -> None:
    layout_prices = prices(machine(2, nvlink=NVLINK, launch=1e-3, hop_latency=2e-3), pipeline=2)
    price = layout_prices.send(0, 1, N)
    assert price.uncontended_time == pytest.approx(1e-3 + 2e-3 + N / NVLINK, rel=1e-6)
    assert (price.cause, price.launch) == (Cause.INTERCONNECT, 1e-3)
    assert layout_prices.send(1, 0, N).uncontended_time == pytest.approx(price.uncontended_time, rel=1e-9)
    assert layout_prices.least_send_time(0, 1, N) == price.uncontended_time


@pytest.mark.parametrize(("tensor", "nics"), [(1, 1), (2, 1), (2, 2), (4, 2)])
def test_sends_beside_each_other_share_the_nic(tensor: int, nics: int) -> None:
    """Every rank of a stage sends its bytes to its like on the next node."""
    layout_prices = prices(machine(tensor, 2, nics=nics, nvlink=1e12, nic=NIC), tensor=tensor, pipeline=2)
    price = layout_prices.send(0, 1, N)
    assert price.uncontended_time == pytest.approx(tensor / nics * N / NIC, rel=1e-3)
    ends = {name.split(".")[0] for name in price.load}
    assert ends == {"stage0", "stage1"}
    assert all(capacity > 0 for capacity in layout_prices.capacity.values())


@pytest.mark.parametrize("stack", [None, gloo()])
def test_sends_of_all_replicas_share_the_core_of_a_fabric(stack: dict[str, Any] | None) -> None:
    """Two stages of two nodes with two ranks each: four messages at one time through a core slower than one NIC."""
    hardware = cluster(toy_node(2, nics=2, nvlink=1e12, nic=NIC), count=4, core_bandwidth=f"{NIC / 10} B/s")
    layout_prices = prices(hardware, stack, tensor=2, pipeline=2)
    price = layout_prices.send(0, 1, N)
    assert price.volume == pytest.approx(N, rel=1e-2)
    assert price.uncontended_time == pytest.approx(4 * N / (NIC / 10), rel=1e-2)
    assert (price.cause, price.limit) == (Cause.NETWORK, "the core of the fabric")
    assert price.load["core"] == layout_prices.send(1, 0, N).load["core"], "what messages of all stages share has one name"
    assert layout_prices.least_send_time(0, 1, N) == price.uncontended_time


def test_sends_inside_nodes_do_not_cross_the_core() -> None:
    hardware = cluster(toy_node(2, nvlink=NVLINK, nic=NIC), count=2, core_bandwidth="1 B/s")
    layout_prices = prices(hardware, pipeline=2, order=STAGES_INSIDE)
    assert layout_prices.send(0, 1, N).uncontended_time == pytest.approx(N / NVLINK, rel=1e-3)


@pytest.mark.parametrize("per_leaf", [1, 2, 4])
def test_sends_share_the_uplinks_of_their_leaves(per_leaf: int) -> None:
    """Stages of two nodes: below leaves of one node each one message crosses an uplink; of two nodes both; of four none."""
    uplink = NIC / 10
    hardware = cluster(
        toy_node(1, nic=NIC, pcie=1e15), count=4, leaf_spine={"nodes_per_leaf": per_leaf, "uplink_bandwidth": f"{uplink} B/s"}
    )
    price = prices(hardware, pipeline=2).send(0, 1, N)
    assert price.uncontended_time == pytest.approx({1: N / uplink, 2: 2 * N / uplink, 4: N / NIC}[per_leaf], rel=1e-3)
    assert price.cause is Cause.NETWORK


def test_sends_between_scattered_nodes_load_uplinks_by_the_mean() -> None:
    """Of a leaf's two nodes one sends, to the other with chance 1/3: the mean load of an uplink is 2/3 of a message."""
    leaves = {"nodes_per_leaf": 2, "uplink_bandwidth": f"{NIC / 10} B/s"}
    hardware = cluster(toy_node(1, nic=NIC, pcie=1e15), count=4, leaf_spine=leaves, rank_order="scattered")
    assert prices(hardware, pipeline=2).send(0, 1, N).uncontended_time == pytest.approx(2 / 3 * N / (NIC / 10), rel=1e-3)
    two = cluster(toy_node(2, nvlink=NVLINK, nic=NIC, pcie=1e15), count=4, leaf_spine=leaves, rank_order="scattered")
    assert prices(two, pipeline=2).send(0, 1, N).uncontended_time == pytest.approx(2 * 2 / 3 * N / (NIC / 10), rel=1e-3), (
        "twice the messages"
    )


def test_an_oversubscribed_leaf_slows_sends_by_its_ratio() -> None:
    """What a NIC cannot use weighs on the uplink, too: at 10 to 1 both nodes of a leaf get a tenth."""
    hardware = cluster(toy_node(1, nic=NIC, pcie=1e15), count=4, leaf_spine={"nodes_per_leaf": 2, "oversubscription": 10})
    assert prices(hardware, pipeline=2).send(0, 1, N).uncontended_time == pytest.approx(10 * N / NIC, rel=1e-3)


def test_a_send_inside_a_node_is_not_taken_for_one_between_the_same_gpus_of_two() -> None:
    """Four stages on two nodes of two GPUs: from the first to the second, and to the last, GPU 0 sends to GPU 1."""
    layout_prices = prices(machine(2, 2, nvlink=NVLINK, nic=NIC), pipeline=4)
    assert layout_prices.send(0, 1, N).uncontended_time == pytest.approx(N / NVLINK, rel=1e-3)
    assert layout_prices.send(0, 3, N).uncontended_time == pytest.approx(N / NIC, rel=1e-3)
    assert layout_prices.send(2, 3, N).uncontended_time == pytest.approx(N / NVLINK, rel=1e-3)


def test_what_a_send_needs_of_each_end_lies_there() -> None:
    """Out of the node of the one stage, into that of the other; the same loads the other way round."""
    layout_prices = prices(machine(1, 2, nic=NIC), pipeline=2)
    there, back = layout_prices.send(0, 1, N).load, layout_prices.send(1, 0, N).load
    assert {link for link in there if "net" in link} == {"stage0.nic0>net", "stage1.net>nic0"}
    assert set(there) != set(back)
    other = {"stage0": "stage1", "stage1": "stage0"}
    swapped = {".".join((other[nodes], link)): amount for name, amount in back.items() for nodes, _, link in [name.partition(".")]}
    assert there == swapped


# --- over Gloo --------------------------------------------------------------------------------------------------------


def sockets(**keys: Any) -> dict[str, Any]:
    plain = {"name": "socket", "hop_latency": "0 s", "launch": "0 s", "efficiency": 1.0, "source": "test"}
    return {"backend": "gloo", "gloo_transport": plain | keys, "nccl_algo": None, "nccl_proto": None}


def gloo_send(nodes: int = 2, nbytes: float = N, latency: float = 0.0, burst: float = 0.0, **keys: Any) -> Any:
    hardware = machine(2 // nodes, nodes, nic=NIC, pcie=1e18, dram=1e19, nvlink=1e18)
    (group,) = hardware.groups
    node = group.node.model_copy(update={"nic": group.node.nic.model_copy(update={"burst": burst})})
    fabric = hardware.fabric.model_copy(update={"latency": latency})
    changed = hardware.model_copy(update={"groups": (group.model_copy(update={"node": node}),), "fabric": fabric})
    return prices(changed, sockets(**keys), pipeline=2).send(0, 1, nbytes)


def test_a_gloo_send_is_one_way_late_and_then_moves_at_the_nic() -> None:
    price = gloo_send(latency=3e-3, hop_latency="4 ms", launch="5 ms")
    assert price.notice == pytest.approx(4e-3 / 2 + 3e-3)
    assert price.uncontended_time == pytest.approx(5e-3 + price.notice + N / NIC, rel=1e-6)
    assert (price.launch, price.cause, price.algorithm) == (5e-3, Cause.NETWORK, "Gloo send")
    assert price.launch + price.volume / price.cap == pytest.approx(price.uncontended_time)


@pytest.mark.parametrize("nbytes", [3e6, 2e6, 1e6])
def test_what_the_token_bucket_holds_takes_no_time(nbytes: float) -> None:
    price = gloo_send(nbytes=nbytes, burst=1e6)
    assert price.volume == max(1.0, nbytes - 1e6)
    assert price.uncontended_time == pytest.approx(price.volume / NIC, rel=1e-6)


def test_inside_a_node_a_gloo_send_knows_no_bucket_and_no_fabric() -> None:
    price = gloo_send(1, latency=3e-3, burst=1e6, hop_latency="4 ms", cpu_time_per_byte="2 s/GB")
    assert price.notice == pytest.approx(2e-3)
    assert price.volume == N
    assert price.cause is Cause.INTERCONNECT
    assert price.uncontended_time == pytest.approx(2e-3 + N * 2e-9, rel=1e-3)


def test_a_gloo_send_is_held_back_by_its_cores_and_its_flows() -> None:
    cores = gloo_send(cpu_time_per_byte="40 s/GB")
    assert cores.uncontended_time == pytest.approx(N * 40e-9, rel=1e-6)
    assert cores.load["stage0.cores"] == cores.load["stage1.cores"] == pytest.approx(40e-9)
    flows = gloo_send(flow_cap=f"{NIC / 8} B/s", flows=2)
    assert flows.uncontended_time == pytest.approx(4 * N / NIC, rel=1e-6)
    assert flows.limit == "the flow limit of socket"
    assert gloo_send(flow_cap=f"{NIC} B/s", flows=2).uncontended_time == pytest.approx(N / NIC, rel=1e-6)


@pytest.mark.parametrize(("lost", "uplinks", "seconds"), [
    (0.5, {"oversubscription": 10}, 2 * 10 * N / NIC), (0.5, {"uplink_bandwidth": f"{NIC / 10} B/s"}, 2 * N / (NIC / 10)),
    (1.0, {"oversubscription": 10}, 10 * N / NIC),
])  # fmt: skip
def test_what_sockets_lose_of_the_nic_they_lose_of_its_uplinks_where_these_are_told_by_it(
    lost: float, uplinks: dict[str, Any], seconds: float
) -> None:
    """Both nodes of a leaf send: an uplink of a tenth of the NICs above it, of which sockets reach *lost*; of one in bytes/s all."""
    hardware = cluster(toy_node(1, nic=NIC, pcie=1e15), count=4, leaf_spine={"nodes_per_leaf": 2} | uplinks)
    assert prices(hardware, sockets(total_efficiency=lost), pipeline=2).send(0, 1, N).uncontended_time == pytest.approx(seconds, rel=1e-3)


def test_a_gloo_send_is_held_back_by_slow_links_inside_its_node() -> None:
    """The PCIe of the node is slower than its NIC, of which sockets reach half: bytes weigh once on the one, twice on the other."""
    price = prices(machine(1, 2, nic=NIC, pcie=NIC / 4, dram=1e19), sockets(total_efficiency=0.5), pipeline=2).send(0, 1, N)
    assert price.uncontended_time == pytest.approx(4 * N / NIC, rel=1e-3)
    assert price.latency_share == 0.0
    assert price.load["stage0.gpu0>plx0"] == 1.0


def test_what_sockets_lose_of_the_nic_weighs_like_bytes() -> None:
    """NCCL's transport reaches all of this NIC, sockets half: their bytes weigh twice."""
    price = gloo_send(total_efficiency=0.5)
    assert price.uncontended_time == pytest.approx(2 * N / NIC, rel=1e-6)
    assert price.cap == pytest.approx(NIC / 2, rel=1e-6), "with nothing beside it"
    on_nic = [amount for name, amount in price.load.items() if "nic" in name]
    assert on_nic and max(on_nic) == pytest.approx(2.0)
