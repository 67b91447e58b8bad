"""One activity per collective: closed forms if alone, fair shares if not, and attribution."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.cluster.build import Placement, place, slots
from sim.events import Cause
from sim.training.collectives.price.collective_plan import plan_collectives
from sim.training.job import EXECUTORS, job_slots
from tests.harness import Rig, all_reduce_alone, carried, cluster, loads, machine, toy_node
from tests.oracle.collectives.single_ring import all_reduce_time

executors = pytest.mark.parametrize("executor", EXECUTORS)
sizes = st.floats(1e3, 1e9)


@executors
@given(
    n=st.integers(2, 16), nbytes=sizes, bandwidth=st.floats(1e8, 1e11), latency=st.floats(0, 1e-3), launch=st.floats(0, 1e-3),
    wiring=st.sampled_from(["nvswitch", "pcie"]),
)  # fmt: skip
def test_uniform_ring(executor, n, nbytes, bandwidth, latency, launch, wiring):
    """Closed form: launch + 2(n-1)/n * S/B + 2(n-1) * latency."""
    toys = machine(n, wiring=wiring, nvlink=bandwidth, pcie=bandwidth, hop_latency=latency, launch=launch)
    expected = launch + 2 * (n - 1) / n * nbytes / bandwidth + 2 * (n - 1) * latency
    assert all_reduce_alone(toys, executor, nbytes) == pytest.approx(expected, rel=1e-9)


@executors
def test_efficiency_and_flow_caps_slow_the_ring(executor):
    """Closed form: 2(n-1)/n * S over efficiency * B, or over flows * cap."""
    lossy = machine(4, nvlink=10e9, efficiency=0.25)
    assert all_reduce_alone(lossy, executor, 1e9) == pytest.approx(1.5 * 1e9 / 2.5e9)
    capped = machine(1, 2, nic=10e9, pcie=1e21, dram=1e21, network={"flow_cap": "1 GB/s", "flows": 3})
    assert all_reduce_alone(capped, executor, 1e9) == pytest.approx(1e9 / 3e9)


@executors
def test_channels_carry_equal_parts(executor):
    """Closed form: a cube's worth of NVLink pairs in a triangle holds two rings, each of half the payload."""
    triangle = machine(3, wiring={"0-1": 1, "1-2": 1, "0-2": 1}, nvlink=10e9)
    assert Rig(triangle, executor).plan.channels == 2
    assert all_reduce_alone(triangle, executor, 1e9) == pytest.approx(2 * 2 / 3 * 1e9 / 2 / 10e9)


@executors
def test_the_stack_may_ask_for_fewer_channels(executor):
    """Closed form: one ring of the triangle's two carries the whole payload."""
    triangle = machine(3, wiring={"0-1": 1, "1-2": 1, "0-2": 1}, nvlink=10e9)
    assert all_reduce_alone(triangle, executor, 1e9, channels=1) == pytest.approx(2 * 2 / 3 * 1e9 / 10e9)
    assert all_reduce_alone(triangle, executor, 1e9, channels=8) == pytest.approx(2 * 2 / 3 * 1e9 / 2 / 10e9)


@executors
def test_a_fabric_with_a_core_bounds_all_nodes_together(executor):
    """Closed form: three edges of 1 GB/s NICs share a core of 1.5 GB/s; its latency adds to the NIC's in each of 2(n-1) steps."""
    toys = cluster(toy_node(1, nic=1e9, network_latency=1e-3), count=3, core_bandwidth="1.5 GB/s", latency="4 ms")
    rig = Rig(toys, executor)
    rig.ring("ring", 3e9)
    rig.env.run()
    assert rig.ends["ring"] == pytest.approx(4 * 1e9 / 0.5e9 + 4 * 5e-3)
    assert comm(rig)[Cause.NETWORK, "the core of the fabric"] == pytest.approx(8.0)


@pytest.mark.parametrize("fold", [True, False])
def test_two_rings_share_the_core(fold):
    """Fair share: the core's load counts every node's edge, folded or not; 6 s for what would take 3 s alone."""
    rig = Rig(cluster(toy_node(1, nic=1e9), count=2, core_bandwidth="1 GB/s"), fold=fold)
    rig.ring("first", 1.5e9)
    rig.ring("second", 1.5e9)
    rig.env.run()
    assert rig.ends == pytest.approx({"first": 6.0, "second": 6.0})


@executors
def test_bytes_sent_are_bytes_received(executor):
    """Conservation: 2(n-1)/n * S leave and reach every GPU, and cross each NIC in each direction."""
    rig = Rig(machine(3, 2, nic=1e9, hop_latency=1e-5, network_latency=1e-4), executor)
    rig.ring("ring", 6e6)
    rig.env.run()
    on = carried(rig.log)
    wire = 2 * 5 / 6 * 6e6
    for node in (0, 1):
        assert [on[f"n{node}.{name}"] for name in ("socket0>nic0", "nic0>net", "net>nic0", "nic0>socket0")] == pytest.approx([wire] * 4)
        sent = [on.get(f"n{node}.gpu{gpu}>nvswitch", 0) + on.get(f"n{node}.gpu{gpu}>plx0", 0) for gpu in range(3)]
        received = [on.get(f"n{node}.nvswitch>gpu{gpu}", 0) + on.get(f"n{node}.plx0>gpu{gpu}", 0) for gpu in range(3)]
        assert sent == pytest.approx([wire] * 3)
        assert received == pytest.approx([wire] * 3)


@executors
def test_a_ring_and_a_copy_on_one_link_get_half_each(executor):
    """Fair share: both wish for the whole link, so each gets half of it while both last."""
    rig = Rig(machine(2, wiring="pcie", pcie=10e9), executor)
    rig.ring("ring", 1e9)
    rig.copy("copy", 1e9, ["socket0>plx0", "plx0>gpu1"])
    rig.env.run(until=1e-3)
    assert {change.name: change.rate for change in rig.log.rates if change.t == 0.0 and "plx0>gpu1" in str(change.usage)} == pytest.approx(
        {"ring": 5e9, "copy": 5e9}
    )


@executors
@pytest.mark.parametrize("copies", [1, 2])
def test_an_all_reduce_beside_copies_to_a_gpu_slows_by_the_fair_share(executor, copies):
    """Closed form: beside copies from the host through one PCIe switch that outlast it, the ring has 1/(copies + 1) of a GPU's port."""
    toys = machine(4, wiring="pcie", pcie=10e9)
    rig = Rig(toys, executor)
    rig.ring("ring", 1e9)
    for copy in range(copies):
        rig.copy(f"copy{copy}", 1e11, ["socket0>plx0", "plx0>gpu1"])
    rig.env.run()
    assert rig.ends["ring"] == pytest.approx((copies + 1) * all_reduce_alone(toys, executor, 1e9), rel=0.02)


@executors
def test_two_rings_on_one_nic_get_half_each(executor):
    """Fair share: two all-reduces between two nodes, each alone for 1 s, take 2 s together."""
    rig = Rig(machine(1, 2, nic=1e9), executor)
    rig.ring("first", 1e9)
    rig.ring("second", 1e9)
    rig.env.run()
    assert rig.ends == pytest.approx({"first": 2.0, "second": 2.0})


@executors
def test_a_wider_link_leaves_the_ring_alone(executor):
    """A copy that leaves the ring what it asks for anyway does not slow it."""
    rig = Rig(machine(2, 2, wiring="nvswitch", nvlink=10e9, nic=1e9), executor)
    rig.ring("ring", 1e9)
    rig.copy("copy", 100e9, ["gpu0>nvswitch"])
    alone = all_reduce_alone(machine(2, 2, wiring="nvswitch", nvlink=10e9, nic=1e9), "phase", 1e9)
    rig.env.run()
    assert rig.ends["ring"] == pytest.approx(alone, rel=0.02)


@given(
    gpus=st.integers(1, 6), nodes=st.integers(1, 4), nbytes=sizes, wiring=st.sampled_from(["nvswitch", "pcie"]),
    peer=st.sampled_from(["sys", "none"]), nic=st.floats(1e8, 1e11), dram=st.floats(1e9, 1e12), latency=st.floats(0, 1e-3),
)  # fmt: skip
def test_alone_takes_what_the_estimate_says(gpus, nodes, nbytes, wiring, peer, nic, dram, latency):
    """Independent path: `all_reduce_time` on the link graph, without network, folding or simulated time; played, and as priced."""
    if gpus * nodes == 1:
        return
    toys = machine(gpus, nodes, wiring=wiring, peer_to_peer=peer, nic=nic, dram=dram, network_latency=latency, launch=1e-5)
    rig = Rig(toys, fold=True)
    (part,) = rig.plan.parts
    estimate = all_reduce_time(part.slot.graph, part.channels, nbytes).time
    assert rig.plan.cost(nbytes).uncontended_time == pytest.approx(estimate, rel=1e-9)
    assert all_reduce_alone(toys, "phase", nbytes, fold=True) == pytest.approx(estimate, rel=1e-9)


@given(gpus=st.integers(1, 4), nodes=st.integers(2, 4), nbytes=sizes)
def test_equal_nodes_cost_the_same_folded_or_not(gpus, nodes, nbytes):
    """The pattern of one node stands for all: exact to 1e-9."""
    toys = machine(gpus, nodes, hop_latency=1e-5, network_latency=1e-4)
    assert all_reduce_alone(toys, "phase", nbytes, fold=True) == pytest.approx(all_reduce_alone(toys, "phase", nbytes), rel=1e-9)


def test_unequal_parts_make_one_ring():
    """1 + 2 GPUs on two nodes are a ring of three; its NICs bound it. Closed form: 2*2/3 * S/B at the NIC, plus two hops' fill."""
    toys = machine(2, 2, nic=1e9, nvlink=1e12)
    placement = (Placement(0, (0,)), Placement(1, (0, 1)))
    assert all_reduce_alone(toys, "phase", 3e6, placement=placement) == pytest.approx(4 / 3 * 3e-3, rel=1e-2)


# --- who is blamed ---------------------------------------------------------------------------------------------------


def comm(rig):
    """Return seconds by cause and resource."""
    seconds = {}
    for span in rig.log.work:
        key = (span.cause, span.resource)
        seconds[key] = seconds.get(key, 0.0) + span.t1 - span.t0
    return seconds


def test_latency_and_bytes_are_told_apart():
    """Closed form: of 2(n-1) steps each spends chunk/B on bytes and the rest on latency; both inside the node."""
    rig = Rig(machine(4, nvlink=1e9, hop_latency=1e-3, launch=1e-3))
    rig.ring("ring", 4e6)
    rig.env.run()
    assert comm(rig) == pytest.approx(
        {(Cause.INTERCONNECT, "nvlink latency"): 1e-3 + 6e-3, (Cause.INTERCONNECT, "1 NVLinks GPU0-NVSwitch"): 6e-3}
    )


def test_between_nodes_the_network_is_blamed():
    """The NIC sets the pace and the network's hops add most latency: every second is the network's."""
    rig = Rig(machine(2, 2, nic=1e9, hop_latency=1e-6, network_latency=1e-3))
    rig.ring("ring", 4e6)
    rig.env.run()
    assert {cause for cause, _ in comm(rig)} == {Cause.NETWORK}
    assert {resource for _, resource in comm(rig)} == {"wire latency", "NIC 0, 8 Gbps"}


def test_the_link_that_another_takes_is_blamed_while_it_does():
    """A copy holds the ring to half of one port for 0.1 s; alone, the ring is bound by its own first link."""
    rig = Rig(machine(4, wiring="pcie", pcie=10e9))
    rig.ring("ring", 1e9)
    rig.copy("copy", 0.5e9, ["plx0>gpu2"])
    rig.env.run()
    blamed = comm(rig)
    assert blamed[Cause.INTERCONNECT, "PCIe port of GPU2"] == pytest.approx(0.1)
    assert sum(blamed.values()) == pytest.approx(rig.ends["ring"])


def test_work_counts_the_payload_once():
    """A collective whose bottleneck changes is written in several spans that together move the payload once."""
    rig = Rig(machine(4, wiring="pcie", pcie=10e9, hop_latency=1e-5))
    rig.ring("ring", 1e9)
    rig.copy("copy", 0.5e9, ["plx0>gpu2"])
    rig.env.run()
    assert len(rig.log.work) > 2
    assert sum(span.nbytes for span in rig.log.work) == 1e9


def test_a_kernel_transport_takes_cores():
    """Closed form: 1 GB/s out and in at 0.4 core-seconds per GB keep 0.8 cores of each node busy."""
    rig = Rig(machine(1, 2, nic=1e9, cores=8, network={"cpu_time_per_byte": "0.4 s/GB"}))
    rig.ring("ring", 1e9)
    rig.env.run()
    assert max(load for _, load in loads(rig.log)["n0.cores"]) == pytest.approx(0.8)


def test_cores_can_bound_a_ring():
    """Closed form: one core at 2 x 1 core-second per GB carries 0.5 GB/s; the network is blamed, by way of the cores."""
    rig = Rig(machine(1, 2, nic=1e9, cores=1, network={"cpu_time_per_byte": "1 s/GB"}))
    rig.ring("ring", 1e9)
    rig.env.run()
    assert rig.ends["ring"] == pytest.approx(2.0)
    assert comm(rig) == pytest.approx({(Cause.NETWORK, "CPU cores that copy for the network"): 2.0})


def test_plans_name_what_bounds_them():
    """The slowest hop: staged copies by their ends, a capped transport by its name."""
    staged = Rig(machine(2, wiring="pcie", peer_to_peer="none")).plan.cost(1e6)
    assert staged.bottleneck.startswith("copies through host memory GPU")
    capped = Rig(machine(1, 2, nic=10e9, network={"flow_cap": "1 GB/s"})).plan.cost(1e6)
    assert (capped.cause, capped.bottleneck) == (Cause.NETWORK, "the flow limit of wire")


def test_fewest_channels_of_any_node_are_used_by_all():
    """A node that lends one GPU with one NIC joins two nodes of one channel: rings are stitched channel to channel."""
    toys = machine(2, 2, nics=2)
    node_slots = slots(toys, [place(toys, pattern="1+2")])
    assert plan_collectives(job_slots(0, node_slots)).channels == 2
