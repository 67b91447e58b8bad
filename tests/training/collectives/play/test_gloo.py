"""What Gloo costs: closed forms of its ring, copies through host memory, and the CPU it takes from the loader."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.cluster.build import place, slots
from sim.events import Cause
from sim.spec.hardware import Transport
from sim.training.collectives.play.gloo import plan_gloo
from sim.training.collectives.price.collective_plan import CORES_COPY
from sim.training.collectives.price.gloo_ring import cut_segments
from sim.training.job import job_slots
from tests.harness import cluster, layer, machine, run, toy_node, toy_workload, volume

FREE = {"name": "socket", "hop_latency": "0 s", "launch": "0 s", "efficiency": 1.0, "source": "test"}


def gloo(**keys):
    return {"backend": "gloo", "gloo_transport": FREE | keys, "nccl_algo": None, "nccl_proto": None}


def plan(hardware, **keys):
    node_slots = slots(hardware, [place(hardware)])
    return plan_gloo(job_slots(0, node_slots), hardware.fabric, Transport.model_validate(FREE | keys))


def stall(hardware, elements, **keys):
    """Seconds per step that gradients of so many elements, in one bucket after backward, are waited for."""
    stack = gloo(**keys) | {"strategy": "flat", "overlap": False}
    stalls = run(hardware, toy_workload([layer(0.1, 0.2, elements)], stack=stack)).jobs[0].warm.stalls
    return stalls[Cause.INTERCONNECT] + stalls[Cause.NETWORK]


@given(st.integers(2, 6), st.integers(1, 4), st.floats(1, 1e9), st.floats(0, 1e-2))
def test_ring_all_reduce(nodes, gpus, nbytes, launch):
    """Closed form (gloo docs/algorithms.md): 2(n-1)/n of the bytes at the NIC's rate, whatever lies inside nodes."""
    ranks = nodes * gpus
    gloo_plan = plan(machine(gpus, nodes, nic=1e9), launch=f"{launch!r} s")
    expected = launch + 2 * (ranks - 1) / ranks * nbytes / 1e9
    assert gloo_plan.cost(nbytes).uncontended_time == pytest.approx(expected)
    later = 1.5 if ranks == 2 else 1.0  # the later of two ranks lets its data go before its notices
    assert gloo_plan.cost(nbytes, "all_gather").uncontended_time == pytest.approx(launch + later * (expected - launch) / 2)
    assert gloo_plan.cost(nbytes, "reduce_scatter").uncontended_time == pytest.approx(expected)
    rounds = math.ceil(math.log2(ranks))
    assert gloo_plan.cost(nbytes, "broadcast").uncontended_time == pytest.approx(launch + rounds * nbytes / 1e9)


def test_uplinks_bound_the_ring():
    """Closed form: the ring leaves each of two leaves once, by uplinks of a tenth of a NIC."""
    elements = 25_000_000
    toys = cluster(toy_node(1, nic=1e9, pcie=1e15), count=4, leaf_spine={"nodes_per_leaf": 2, "uplink_bandwidth": "100 MB/s"})
    assert stall(toys, elements) == pytest.approx(2 * 3 / 4 * 4 * elements / 1e8, rel=1e-3)


@given(st.integers(2, 6), st.integers(1, 4), st.floats(1e-6, 1e-3))
def test_a_small_all_reduce_is_all_latency(nodes, gpus, latency):
    """Closed form: 2(n-1) latencies, as every rank waits for what its neighbor sent; a broadcast's tree has fewer rounds."""
    ranks = nodes * gpus
    gloo_plan = plan(machine(gpus, nodes, nic=1e15), hop_latency=f"{latency!r} s")
    assert gloo_plan.cost(8.0).uncontended_time == pytest.approx(2 * (ranks - 1) * latency, abs=1e-8)
    assert gloo_plan.cost(8.0, "broadcast").uncontended_time == pytest.approx(math.ceil(math.log2(ranks)) * latency, abs=1e-8)


def test_a_long_ring_hides_latency_behind_its_segments():
    """Closed form: each pass of many segments waits only for its first notice and its last bytes; a distant wire for every two segments."""
    near, far = machine(1, 4, nic=1e9), cluster(machine(1, 4, nic=1e9).groups[0].node, count=4, latency="0.1 s")
    assert plan(near, hop_latency="1 ms").cost(400e6).uncontended_time == pytest.approx(2 * (0.3 + 1e-3))
    count, segment = cut_segments(400e6, 4)
    assert plan(far).cost(400e6).uncontended_time == pytest.approx(2 * (count / 2 * (segment / 1e9 + 0.2)), rel=0.01)


def test_one_socket_bounds_it():
    """Closed form: a flow of 100 MB/s on a NIC of 1 GB/s; and a rank's two threads at 2 x 10 ns a byte, in and out."""
    flow = plan(machine(1, 4, nic=1e9), flow_cap="0.1 GB/s")
    assert flow.cost(4e8).uncontended_time == pytest.approx(6 * 1e8 / 1e8)
    assert flow.cost(4e8).bottleneck == "the flow limit of socket"
    slow = plan(machine(1, 4, nic=1e9), cpu_time_per_byte="10 s/GB")
    assert slow.cost(4e8).uncontended_time == pytest.approx(6 * 1e8 * 2 * 10e-9 / 2)
    assert slow.cost(4e8).bottleneck == CORES_COPY


def test_few_cores_bound_it():
    """Closed form: eight ranks of a node that send and receive at 1 ns a byte share one core."""
    gloo_plan = plan(machine(8, 2, nic=1e9, cores=1), cpu_time_per_byte="1 s/GB")
    assert gloo_plan.cost(16e6).uncontended_time == pytest.approx(30 * 1e6 * 2 * 1e-9 * 8)


def test_a_tcp_stack_loses_some_of_the_line():
    """Definition: of a line of 1 GB/s sockets carry the share that the transport says."""
    assert plan(machine(1, 2, nic=1e9), total_efficiency=0.5).cost(1e9).uncontended_time == pytest.approx(2.0)


def test_gradients_pass_through_host_memory():
    """Closed form: 40 MB down and up a PCIe uplink of 1 GB/s shared by two GPUs, then 1.5/2 of it twice over the NIC at 1 GB/s."""
    stalled = stall(machine(2, 2, pcie=1e9, nic=1e9, dram=1e15), 10_000_000)
    assert stalled == pytest.approx(2 * 2 * 40e-3 + 1.5 * 40e-3)


def test_one_node_needs_no_nic():
    """Closed form: the ring is free but for 20 s/GB of copying, two threads a rank; the copies down and up take the PCIe uplink."""
    stalled = stall(machine(4, 1, pcie=1e9, nic=1.0), 1_000_000, cpu_time_per_byte="2 s/GB")
    assert stalled == pytest.approx(2 * 4 * 4e-3 + 1.5 * 4e-3 / 0.5)


LOADER = {"loader": "pytorch", "prep": 0.4, "inputs": {"num_workers": 1}, "samples": 80}


def beside_a_loader(cpu, *layers):
    """The warm epoch of two ranks that prepare a batch in 0.4 core-seconds each and send 100 MB at *cpu* ns a byte, on one core."""
    hardware = machine(2, 1, pcie=1e15, nic=1e9, cores=1, disk=volume(), memory=1e12)
    return run(hardware, toy_workload(layers, stack=gloo(cpu_time_per_byte=f"{cpu} s/GB"), **LOADER)).jobs[0].warm


def test_gloo_and_the_loader_share_the_cores():
    """Conservation: the core works all the time, 0.8 s for the batches and 2 x 2 ranks x 100 MB x 1 ns for Gloo."""
    sent = layer(0.01, 0.02, 25_000_000)
    assert beside_a_loader(0, sent).step_time == pytest.approx(0.8, rel=1e-6)
    assert beside_a_loader(1, sent).step_time == pytest.approx(0.8 + 0.4, rel=1e-6)


def test_gloo_hidden_behind_backward_shows_as_prep_stall():
    """By hand: backward of 0.97 s hides the exchange and 0.8 s of loading; what Gloo computes beside it is missing from preparation."""
    layers = layer(0, 0.95), layer(0.01, 0.02, 25_000_000)
    free, charged = (beside_a_loader(cpu, *layers) for cpu in (0, 1))
    assert free.step_time == pytest.approx(0.98, rel=1e-3)
    assert free.stalls[Cause.PREP] == pytest.approx(0.0, abs=1e-3)
    assert charged.step_time == pytest.approx(1.2, rel=1e-3)
    assert charged.stalls[Cause.PREP] == pytest.approx(1.2 - 0.98, rel=1e-2)
    assert charged.stalls[Cause.INTERCONNECT] == pytest.approx(0.0, abs=1e-3)


def on_its_own_core(cpu, *layers):
    """Two nodes whose accelerator is their one core; gradients of 100 MB at *cpu* ns a byte on a wire that is no matter."""
    node = machine(1, 2, nic=1e15, cores=1).groups[0].node
    node = node.model_copy(update={"gpu": node.gpu.model_copy(update={"host_cores": 1})})
    return run(cluster(node, count=2), toy_workload(layers, stack=gloo(cpu_time_per_byte=f"{cpu} s/GB"))).jobs[0].warm


def test_a_processor_that_trains_hides_no_bytes_behind_its_compute():
    """Conservation: its core works all the time, 0.98 s for the layers and 2 x 100 MB x 1 ns for Gloo."""
    layers = layer(0, 0.95), layer(0.01, 0.02, 25_000_000)
    assert on_its_own_core(0, *layers).step_time == pytest.approx(0.98, rel=1e-3)
    assert on_its_own_core(1, *layers).step_time == pytest.approx(0.98 + 0.2, rel=1e-3)


def test_two_buckets_share_the_time_of_messages_but_not_the_socket():
    """Closed form: two equal buckets last as long as one where all is latency, twice as long where a socket of 50 MB/s holds."""

    def exposed(buckets, **keys):
        layers = [layer(0.1, 0.0, 1_000_000)] * buckets
        stack = gloo(**keys) | {"strategy": "ddp", "bucket_cap": "4 MB"}
        stalls = run(machine(1, 2, nic=1e9, pcie=1e15), toy_workload(layers, stack=stack)).jobs[0].warm.stalls
        return stalls[Cause.INTERCONNECT] + stalls[Cause.NETWORK]

    assert exposed(2, hop_latency="100 ms") == pytest.approx(exposed(1, hop_latency="100 ms"), rel=0.05)
    assert exposed(2, flow_cap="50 MB/s") == pytest.approx(2 * exposed(1, flow_cap="50 MB/s"), rel=1e-3)
    assert exposed(1, flow_cap="50 MB/s") == pytest.approx(4e6 / 50e6, rel=1e-3)  # 2(n-1)/n is 1
