"""What groups of a layout and sends between its stages cost. Oracles: bytes over the narrowest link, by hand, with latency and shares."""

from __future__ import annotations

from typing import Any

import pytest

from sim.events import Cause
from sim.mesh import prepare, scene_of
from sim.spec.hardware import Hardware
from sim.training.layouts.prices import LayoutPrices, PriceBook
from tests.harness import cluster, machine, toy_node
from tests.training.layouts.test_gloo import gloo
from tests.training.layouts.toys import split_block, workload

N = 4e6
NIC, NVLINK = 1e8, 1e9
STAGES_INSIDE = ("pipeline", "tensor", "context", "data")
"""The order of ranks in which the stages of a pipeline share nodes."""


def prices(hardware: Hardware, stack: dict[str, Any] | None = None, book: PriceBook | None = None, **fields: Any) -> LayoutPrices:
    given = workload([each for number in range(4) for each in split_block(number)], stack=stack, **fields)
    layout = prepare(hardware, given)
    known = scene_of(hardware, given, layout).prices
    return LayoutPrices(hardware, layout.mesh, known.tuning, known.sockets, book=book or PriceBook())


# --- groups -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ranks", [2, 4])
def test_a_ring_inside_a_node_moves_its_share_over_one_link(ranks: int) -> None:
    """2 (n-1)/n S for an all-reduce, (n-1)/n S for a gather, over an NVLink."""
    found = prices(machine(ranks, nvlink=NVLINK), tensor=ranks)
    share = (ranks - 1) / ranks * N / NVLINK
    assert found.price(0, "tensor", "all_reduce", N).alone == pytest.approx(2 * share, rel=1e-3)
    assert found.price(0, "tensor", "all_gather", N).alone == pytest.approx(share, rel=1e-3)
    assert found.outlined(0, "tensor", "all_gather", N).alone == found.price(0, "tensor", "all_gather", N).alone
    assert found.price(0, "tensor", "all_gather", N).limit == "1 NVLinks GPU0-NVSwitch"
    assert found.price(0, "tensor", "all_gather", N).cause is Cause.INTERCONNECT


@pytest.mark.parametrize("nodes", [2, 4])
@pytest.mark.parametrize("tensor", [1, 2, 4])
def test_groups_beside_each_other_add_up_on_the_nic(nodes: int, tensor: int) -> None:
    """Each of *tensor* groups sends 2 (n-1)/n S from a node; one NIC carries them all, so many NICs one each."""
    one = 2 * (nodes - 1) / nodes * N / NIC
    for nics in {1, tensor}:
        found = prices(machine(tensor, nodes, nics=nics, nvlink=1e12, nic=NIC), tensor=tensor).price(0, "shard", "all_reduce", N)
        assert found.alone == pytest.approx(one * tensor / nics, rel=1e-3)
        assert found.cause is Cause.NETWORK
        assert found.launch + found.volume / found.cap <= found.alone * (1 + 1e-9)


def test_load_times_rate_never_exceeds_what_a_link_carries() -> None:
    found = prices(machine(4, 2, nics=2, nvlink=NVLINK, nic=NIC), tensor=4)
    price = found.price(0, "shard", "all_reduce", N)
    rate = price.volume / (price.alone - price.launch)
    used = {link: amount * rate / found.capacity[link] for link, amount in price.load.items()}
    assert max(used.values()) == pytest.approx(1.0, rel=1e-3)
    assert all(found.descriptions[link] for link in price.load)


def test_what_the_core_of_a_fabric_carries_is_shared_by_all_groups() -> None:
    """Four nodes, two groups: each of eight members sends 2 (n-1)/n S through a core as fast as one NIC."""
    hardware = cluster(toy_node(2, nics=2, nvlink=1e12, nic=NIC), count=4, core_bandwidth=f"{NIC} B/s")
    found = prices(hardware, tensor=2).price(0, "shard", "all_reduce", N)
    assert found.alone == pytest.approx(8 * 2 * (3 / 4) * N / NIC, rel=1e-3)
    assert found.load["core"] > 0
    assert found.cause is Cause.NETWORK


def test_least_is_what_a_group_takes_and_never_more() -> None:
    found = prices(machine(2, 2, nvlink=1e12, nic=NIC), tensor=2)
    assert found.least(0, "shard", "all_reduce", N) == found.price(0, "shard", "all_reduce", N).alone


def test_latency_is_a_share_of_small_messages_only() -> None:
    found = prices(machine(4, nvlink=NVLINK, hop_latency=1e-4), tensor=4)
    small, large = (found.price(0, "tensor", "all_reduce", nbytes).latency_share for nbytes in (1e3, 1e9))
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
    assert price.alone == pytest.approx(N / NVLINK, rel=1e-3)
    assert price.volume / price.cap == pytest.approx(N / NVLINK, rel=1e-3)


def test_groups_of_stages_on_other_nodes_lie_alike() -> None:
    found = prices(machine(4, 2, nvlink=1e12, nic=NIC), tensor=2, pipeline=2)
    assert found.lying(0, "tensor") == found.lying(1, "tensor")
    assert found.lying(0, "tensor") != found.lying(0, "shard")


def test_a_book_keeps_what_lies_alike_for_another_mesh() -> None:
    book, hardware = PriceBook(), machine(2, 2, nvlink=1e12, nic=NIC)
    first = prices(hardware, book=book, tensor=2)
    price = first.price(0, "shard", "all_reduce", N)
    known = len(book.outlines)
    second = prices(hardware, book=book, tensor=2)
    assert second.price(0, "shard", "all_reduce", N) == price
    assert second.lying(0, "shard") == first.lying(0, "shard") != first.lying(0, "tensor")
    assert len(book.outlines) == known
    assert second.price(0, "shard", "all_reduce", 2 * N).alone == pytest.approx(2 * price.alone, rel=1e-3)
    assert len(book.outlines) == known + 1


# --- sends ------------------------------------------------------------------------------------------------------------


def test_a_send_inside_a_node_takes_its_bytes_over_the_link() -> None:
    found = prices(machine(2, nvlink=NVLINK, launch=1e-3, hop_latency=2e-3), pipeline=2)
    price = found.send(0, 1, N)
    assert price.alone == pytest.approx(1e-3 + 2e-3 + N / NVLINK, rel=1e-6)
    assert (price.cause, price.launch) == (Cause.INTERCONNECT, 1e-3)
    assert found.send(1, 0, N).alone == pytest.approx(price.alone, rel=1e-9)
    assert found.least_send(0, 1, N) == price.alone


@pytest.mark.parametrize(("tensor", "nics"), [(1, 1), (2, 1), (2, 2), (4, 2)])
def test_sends_beside_each_other_share_the_nic(tensor: int, nics: int) -> None:
    """Every rank of a stage sends its bytes to its like on the next node."""
    found = prices(machine(tensor, 2, nics=nics, nvlink=1e12, nic=NIC), tensor=tensor, pipeline=2)
    price = found.send(0, 1, N)
    assert price.alone == pytest.approx(tensor / nics * N / NIC, rel=1e-3)
    ends = {name.split(".")[0] for name in price.load}
    assert ends == {"stage0", "stage1"}
    assert all(capacity > 0 for capacity in found.capacity.values())


@pytest.mark.parametrize("stack", [None, gloo()])
def test_sends_of_all_replicas_share_the_core_of_a_fabric(stack: dict[str, Any] | None) -> None:
    """Two stages of two nodes with two ranks each: four messages at one time through a core slower than one NIC."""
    hardware = cluster(toy_node(2, nics=2, nvlink=1e12, nic=NIC), count=4, core_bandwidth=f"{NIC / 10} B/s")
    found = prices(hardware, stack, tensor=2, pipeline=2)
    price = found.send(0, 1, N)
    assert price.volume == pytest.approx(N, rel=1e-2)
    assert price.alone == pytest.approx(4 * N / (NIC / 10), rel=1e-2)
    assert (price.cause, price.limit) == (Cause.NETWORK, "the core of the fabric")
    assert price.load["core"] == found.send(1, 0, N).load["core"], "what messages of all stages share has one name"
    assert found.least_send(0, 1, N) == price.alone


def test_sends_inside_nodes_do_not_cross_the_core() -> None:
    hardware = cluster(toy_node(2, nvlink=NVLINK, nic=NIC), count=2, core_bandwidth="1 B/s")
    found = prices(hardware, pipeline=2, order=STAGES_INSIDE)
    assert found.send(0, 1, N).alone == pytest.approx(N / NVLINK, rel=1e-3)


@pytest.mark.parametrize("per_leaf", [1, 2, 4])
def test_sends_share_the_uplinks_of_their_leaves(per_leaf: int) -> None:
    """Stages of two nodes: below leaves of one node each one message crosses an uplink; of two nodes both; of four none."""
    uplink = NIC / 10
    hardware = cluster(
        toy_node(1, nic=NIC, pcie=1e15), count=4, leaf_spine={"nodes_per_leaf": per_leaf, "uplink_bandwidth": f"{uplink} B/s"}
    )
    price = prices(hardware, pipeline=2).send(0, 1, N)
    assert price.alone == pytest.approx({1: N / uplink, 2: 2 * N / uplink, 4: N / NIC}[per_leaf], rel=1e-3)
    assert price.cause is Cause.NETWORK


def test_sends_between_scattered_nodes_load_uplinks_by_the_mean() -> None:
    """Of a leaf's two nodes one sends, to the other with chance 1/3: the mean load of an uplink is 2/3 of a message."""
    leaves = {"nodes_per_leaf": 2, "uplink_bandwidth": f"{NIC / 10} B/s"}
    hardware = cluster(toy_node(1, nic=NIC, pcie=1e15), count=4, leaf_spine=leaves, rank_order="scattered")
    assert prices(hardware, pipeline=2).send(0, 1, N).alone == pytest.approx(2 / 3 * N / (NIC / 10), rel=1e-3)


def test_an_oversubscribed_leaf_slows_sends_by_its_ratio() -> None:
    """What a NIC cannot use weighs on the uplink, too: at 10 to 1 both nodes of a leaf get a tenth."""
    hardware = cluster(toy_node(1, nic=NIC, pcie=1e15), count=4, leaf_spine={"nodes_per_leaf": 2, "oversubscription": 10})
    assert prices(hardware, pipeline=2).send(0, 1, N).alone == pytest.approx(10 * N / NIC, rel=1e-3)


def test_a_send_inside_a_node_is_not_taken_for_one_between_the_same_gpus_of_two() -> None:
    """Four stages on two nodes of two GPUs: from the first to the second, and to the last, GPU 0 sends to GPU 1."""
    found = prices(machine(2, 2, nvlink=NVLINK, nic=NIC), pipeline=4)
    assert found.send(0, 1, N).alone == pytest.approx(N / NVLINK, rel=1e-3)
    assert found.send(0, 3, N).alone == pytest.approx(N / NIC, rel=1e-3)
    assert found.send(2, 3, N).alone == pytest.approx(N / NVLINK, rel=1e-3)


def test_what_a_send_needs_of_each_end_lies_there() -> None:
    """Out of the node of the one stage, into that of the other; the same loads the other way round."""
    found = prices(machine(1, 2, nic=NIC), pipeline=2)
    there, back = found.send(0, 1, N).load, found.send(1, 0, N).load
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
    assert price.alone == pytest.approx(5e-3 + price.notice + N / NIC, rel=1e-6)
    assert (price.launch, price.cause, price.algorithm) == (5e-3, Cause.NETWORK, "Gloo send")
    assert price.launch + price.volume / price.cap == pytest.approx(price.alone)


@pytest.mark.parametrize("nbytes", [3e6, 2e6, 1e6])
def test_what_the_token_bucket_holds_takes_no_time(nbytes: float) -> None:
    price = gloo_send(nbytes=nbytes, burst=1e6)
    assert price.volume == max(1.0, nbytes - 1e6)
    assert price.alone == pytest.approx(price.volume / NIC, rel=1e-6)


def test_inside_a_node_a_gloo_send_knows_no_bucket_and_no_fabric() -> None:
    price = gloo_send(1, latency=3e-3, burst=1e6, hop_latency="4 ms", cpu_time_per_byte="2 s/GB")
    assert price.notice == pytest.approx(2e-3)
    assert price.volume == N
    assert price.cause is Cause.INTERCONNECT
    assert price.alone == pytest.approx(2e-3 + N * 2e-9, rel=1e-3)


def test_a_gloo_send_is_held_back_by_its_cores_and_its_flows() -> None:
    cores = gloo_send(cpu_time_per_byte="40 s/GB")
    assert cores.alone == pytest.approx(N * 40e-9, rel=1e-6)
    assert cores.load["stage0.cores"] == cores.load["stage1.cores"] == pytest.approx(40e-9)
    flows = gloo_send(flow_cap=f"{NIC / 8} B/s", flows=2)
    assert flows.alone == pytest.approx(4 * N / NIC, rel=1e-6)
    assert flows.limit == "the flow limit of socket"
    assert gloo_send(flow_cap=f"{NIC} B/s", flows=2).alone == pytest.approx(N / NIC, rel=1e-6)


def test_what_sockets_lose_of_the_nic_weighs_like_bytes() -> None:
    """NCCL's transport reaches all of this NIC, sockets half: their bytes weigh twice."""
    price = gloo_send(total_efficiency=0.5)
    assert price.alone == pytest.approx(2 * N / NIC, rel=1e-6)
    on_nic = [amount for name, amount in price.load.items() if "nic" in name]
    assert on_nic and max(on_nic) == pytest.approx(2.0)
