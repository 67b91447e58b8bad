"""What an algorithm costs on a link graph, and how it plays: closed forms on uniform networks, conservation, and fair shares."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.spec.algorithms import NCCL_ALGORITHMS, OTHER_ALGORITHMS
from sim.spec.library import load_hardware
from sim.spec.yaml import SpecError
from sim.study.collective import collective_table
from sim.training.collectives.nccl.protocols import WIRE_BYTES, latency_share
from sim.training.collectives.price import pricing
from sim.training.collectives.price.collective_plan import OPS, Tuning, plan_collectives
from sim.training.collectives.price.pricing import PRICES, ring_piece, tree_piece
from sim.training.job import EXECUTORS
from tests.harness import Rig, cluster, loads, machine, toy_node
from tests.oracle.collectives.all_to_all import all_to_all_time
from tests.oracle.collectives.blocks import SLICES, seconds_of_loop
from tests.oracle.collectives.broadcast import broadcast_time
from tests.oracle.collectives.halving_doubling import halving_doubling_time
from tests.oracle.collectives.hierarchical import Level, hierarchical_all_reduce_time
from tests.oracle.collectives.point_to_point import gather_time, send_recv_time
from tests.oracle.collectives.ring import ring_all_gather_time
from tests.oracle.collectives.tree import depth
from tests.training.collectives.price.forced_cost import cost

executors = pytest.mark.parametrize("executor", EXECUTORS)
sizes = st.floats(1e4, 1e9)


def test_every_algorithm_that_may_be_named_has_a_price():
    assert {name.lower() for name in (*NCCL_ALGORITHMS, *OTHER_ALGORITHMS)} <= {name.lower() for name in PRICES}


def test_thread_blocks_of_rings_and_exchanges():
    """Closed form: the last chunk is copied while nothing is sent; LL passes on what blocks do; sends share blocks with a rank's own."""
    machine = load_hardware("hgx-h100").spec
    of_links = "node.topology.nvlink.link.transport"
    free = load_hardware("hgx-h100", [f"{of_links}.{name}=null" for name in ("block_copy", "ll_cap", "send_cap")]).spec

    def late(op, algorithm, protocol, nbytes, channels):
        times = [Rig(each, fold=True).plan.cost_of(nbytes, algorithm, protocol, channels, op).uncontended_time for each in (machine, free)]
        return times[0] - times[1]

    blocks = machine.groups[0].node.over_nvlink
    for op in ("all_reduce", "all_gather", "reduce_scatter"):
        assert late(op, "Ring", "Simple", 1e9, 24) == pytest.approx(1e9 / 8 / 24 / blocks.block_copy, rel=1e-9)
        assert late(op, "Ring", "LL", 1e9, 24) >= 0.0
    assert late("broadcast", "Ring", "Simple", 1e9, 24) == 0.0
    slow = Rig(machine, fold=True).plan.cost_of(2**20, "Ring", "LL", 1, "all_gather").uncontended_time
    assert slow > 7 * 2**20 / 8 / blocks.ll_cap


def test_thread_blocks_of_messages():
    """Closed form. Eight messages, one of a rank to itself, have four of 32 channels each, or all of them once they are large.

    Between nodes half of a block's 640 threads copy inside the GPU, of which 224 do in a reduction in NVSwitch, 512 in an A100's ring.
    """
    machine = load_hardware("hgx-h100").spec
    plan, blocks = Rig(machine, fold=True).plan, machine.groups[0].node.over_nvlink
    free = load_hardware("hgx-h100", ["node.topology.nvlink.link.transport.send_cap=null"]).spec

    def seconds(spec, nbytes, op):
        price = Rig(spec, fold=True).plan.cost_of(nbytes, {"all_to_all": "Pairwise", "send_recv": "SendRecv"}[op], "Simple", 1, op)
        return price.uncontended_time - price.launch - blocks.hop_latency

    for nbytes, together in ((1e8, math.hypot), (1e10, max)):
        links, own = seconds(free, nbytes, "all_to_all"), nbytes / 8 / (blocks.send_cap * 32 / 8)
        assert seconds(machine, nbytes, "all_to_all") == pytest.approx(together(links, own), rel=1e-6)
    links, own = seconds(free, 2e7, "send_recv"), 2e7 / (blocks.send_cap * plan.choice(2e7, "send_recv").channels)
    assert own > links
    assert seconds(machine, 2e7, "send_recv") == pytest.approx(own, rel=1e-6)
    assert seconds(machine, 1e10, "send_recv") == pytest.approx(seconds(free, 1e10, "send_recv"), rel=1e-6)  # 32 channels outdo the links
    (far,) = collective_table("hgx-h100", "send_recv", [2**32], nodes=10, gpus=10).rows
    assert far.protocol == "Simple" and far.channels == 1
    assert far.algbw == pytest.approx(blocks.nvls_cap * 320 / 224, rel=0.01)
    (older,) = collective_table("dgx-a100", "send_recv", [2**30], nodes=16, gpus=16).rows
    a100 = load_hardware("dgx-a100").spec.groups[0].node.over_nvlink
    assert older.algbw == pytest.approx(max(a100.send_cap, a100.block_copy * 320 / 512), rel=0.01)
    (small,) = collective_table("hgx-h100", "send_recv", [8], nodes=2, gpus=2).rows
    assert small.protocol == "Simple"  # connections between nodes that only send and receive have no buffers for LL


def alone(toys, executor, nbytes, algorithm):
    rig = Rig(toys, executor, algorithm=algorithm)
    rig.ring("it", nbytes)
    rig.env.run()
    return rig.ends["it"]


@executors
@given(power=st.integers(1, 4), nbytes=sizes, nic=st.floats(1e8, 1e11), latency=st.floats(0, 1e-3))
def test_halving_doubling_between_nodes(executor, power, nbytes, nic, latency):
    """Closed form: 2 log2(n) l + 2(n-1)/n S/B."""
    toys = machine(1, 2**power, nic=nic, network_latency=latency, pcie=1e15)
    expected = halving_doubling_time(2**power, nbytes, nic, latency)
    assert alone(toys, executor, nbytes, "HalvingDoubling") == pytest.approx(expected, rel=1e-9)


@executors
@given(gpus=st.integers(2, 4), nodes=st.integers(2, 4), nbytes=sizes, nic=st.floats(1e8, 1e10), inside=st.floats(0, 1e-4))
def test_hierarchical(executor, gpus, nodes, nbytes, nic, inside):
    """Closed form: the GPUs of a node share its NIC while their shards travel."""
    toys = machine(gpus, nodes, nic=nic, nvlink=2e10, hop_latency=inside, network_latency=1e-5, pcie=1e15)
    expected = hierarchical_all_reduce_time(nbytes, Level(gpus, 2e10, inside), Level(nodes, nic / gpus, 1e-5))
    assert alone(toys, executor, nbytes, "Hierarchical") == pytest.approx(expected, rel=1e-9)


@given(n=st.integers(2, 16), nbytes=sizes, nic=st.floats(1e8, 1e11), latency=st.floats(0, 1e-3))
def test_all_to_all_between_nodes(n, nbytes, nic, latency):
    """Closed form: (n-1) S/(nB), and one latency: two channels, one to each of so many partners, serve sixteen at once."""
    toys = machine(1, n, nic=nic, network_latency=latency, pcie=1e15)
    expected = all_to_all_time(n, nbytes, nic, latency, 16)
    assert cost(toys, nbytes, "Pairwise", op="all_to_all").uncontended_time == pytest.approx(expected, rel=1e-9)


@given(n=st.integers(2, 16), nbytes=sizes, nic=st.floats(1e8, 1e11), latency=st.floats(0, 1e-3))
def test_sends_between_nodes(n, nbytes, nic, latency):
    """Closed forms: S/B + l to the next; (n-1) S/(nB) through the root's port, a latency for every sixteen partners."""
    toys = machine(1, n, nic=nic, network_latency=latency, pcie=1e15)
    assert cost(toys, nbytes, "SendRecv", op="send_recv").uncontended_time == pytest.approx(
        send_recv_time(n, nbytes, nic, latency), rel=1e-9
    )
    for algorithm, op in (("Gather", "gather"), ("Scatter", "scatter")):
        assert cost(toys, nbytes, algorithm, op=op).uncontended_time == pytest.approx(gather_time(n, nbytes, nic, latency, 16), rel=1e-9)


@given(gpus=st.integers(1, 4), nodes=st.integers(2, 6), nbytes=sizes)
def test_a_root_s_card_carries_what_leaves_the_other_nodes(gpus, nodes, nbytes):
    """Conservation: (N-1)/N of a gather comes in by the root's one card, with infinitely fast links inside."""
    toys = machine(gpus, nodes, nic=1e9, nvlink=1e15, pcie=1e15)
    for algorithm, op in (("Gather", "gather"), ("Scatter", "scatter")):
        assert cost(toys, nbytes, algorithm, op=op).uncontended_time == pytest.approx((nodes - 1) / nodes * nbytes / 1e9, rel=1e-6)


@executors
@given(
    gpus=st.integers(1, 3), nodes=st.integers(1, 3), nbytes=st.floats(1e4, 1e8),
    op=st.sampled_from(["send_recv", "gather", "scatter", "reduce"]),
)  # fmt: skip
@pytest.mark.parametrize("scale", [1.0, pytest.param(10.0, marks=pytest.mark.nightly)])
def test_both_executors_play_sends_alike(executor, scale, gpus, nodes, nbytes, op):
    """The time alone is what is priced; the transfer executor plays the schedule send by send, a reduce in up to hundreds of pieces."""
    if gpus * nodes == 1:
        return
    nbytes *= scale
    toys = machine(gpus, nodes, nic=1e9, nvlink=1e10, hop_latency=1e-5, network_latency=1e-4, pcie=1e15)
    rig = Rig(toys, executor, algorithm=None, protocol="Simple" if op == "reduce" else None, fold=executor == "phase")
    rig.ring("it", nbytes, op=op)
    rig.env.run()
    assert rig.ends["it"] == pytest.approx(rig.plan.cost(nbytes, op).uncontended_time, rel=1e-9 if executor == "phase" else 0.35)


@pytest.mark.parametrize("op", ["all_gather", "reduce_scatter"])
@given(n=st.integers(2, 16), nbytes=sizes, nic=st.floats(1e8, 1e11), latency=st.floats(0, 1e-3))
def test_half_an_all_reduce_between_nodes(op, n, nbytes, nic, latency):
    """Closed form: (n-1)(S/(nB) + l)."""
    toys = machine(1, n, nic=nic, network_latency=latency, pcie=1e15)
    assert cost(toys, nbytes, "Ring", op=op).uncontended_time == pytest.approx(ring_all_gather_time(n, nbytes, nic, latency), rel=1e-9)


@given(n=st.integers(2, 16), power=st.integers(21, 33), nic=st.floats(1e8, 1e11), latency=st.floats(0, 1e-3))
def test_a_broadcast_between_nodes(n, power, nic, latency):
    """Closed form: a pipeline of n - 1 hops in pieces of 512 KiB, however many hops there are."""
    toys, nbytes = machine(1, n, nic=nic, network_latency=latency, pcie=1e15), 2.0**power
    pieces = round(nbytes / ring_piece(nbytes))
    assert pieces == 2 ** (power - 19)
    assert cost(toys, nbytes, "Ring", op="broadcast").uncontended_time == pytest.approx(
        broadcast_time(n, nbytes, nic, latency, pieces), rel=1e-9
    )


@pytest.mark.parametrize("op", ["broadcast", "reduce"])
def test_channels_divide_a_broadcast_among_them(op):
    """Bounds: of a large message, 12 channels that share NVSwitch take (n-1)/n more than those of an all-gather, and little beside."""
    machine_of_12 = load_hardware("p4d.24xlarge", ["node.topology.nvlink.link.transport.block_copy=null"]).spec
    pipeline, gathered = (cost(machine_of_12, 1e9, "Ring", op=each).uncontended_time for each in (op, "all_gather"))
    assert 1.0 < pipeline / (gathered * 8 / 7) < 1.1


@given(power=st.integers(20, 30), occupied=st.floats(1e-6, 1e-3))
def test_a_pipeline_pays_for_each_of_its_pieces(power, occupied):
    """Closed forms: each piece holds its flow (1 GB/s) so long beyond its bytes, in trees and broadcasts; then all that came before."""
    nbytes, flow = 2.0**power, 1e9
    for algorithm, op, volume in (("Tree", "all_reduce", nbytes / 2), ("Ring", "broadcast", nbytes)):
        piece = tree_piece(volume, 1) if algorithm == "Tree" else ring_piece(volume)
        curve = [[f"{piece!r} B", piece / (piece + occupied * flow)]]
        toys = machine(1, 2, nic=1e15, pcie=1e15, network_latency=1e-4, network={"flow_cap": "1 GB/s", "efficiency": curve})
        each = piece / flow + occupied
        ways = 2 if algorithm == "Tree" else 1
        expected = ways * (each + 1e-4) + (volume / piece - 1) * each
        assert cost(toys, nbytes, algorithm, op=op).uncontended_time == pytest.approx(expected, rel=1e-9)


@given(power=st.integers(1, 6), nbytes=sizes, nic=st.floats(1e8, 1e11), latency=st.floats(0, 1e-3))
def test_a_gather_in_doubling_steps(power, nbytes, nic, latency):
    """Closed form of PAT: log2(n) l + (n-1)/n S/B."""
    n = 2**power
    toys = machine(1, n, nic=nic, network_latency=latency, pcie=1e15)
    expected = power * latency + (n - 1) / n * nbytes / nic
    assert cost(toys, nbytes, "PAT", op="all_gather").uncontended_time == pytest.approx(expected, rel=1e-9)


@given(nodes=st.integers(2, 32), nbytes=st.floats(1e3, 1e10), nic=st.floats(1e9, 1e11), latency=st.floats(1e-6, 1e-3))
def test_a_tree_between_nodes(nodes, nbytes, nic, latency):
    """Closed form: 2 h l, the first piece's way beside half of the streams, and the rest at the busiest port's pace: min(N, 4) of S/2."""
    toys = machine(1, nodes, nic=nic, network_latency=latency, pcie=1e15)
    hops, streams, volume = depth(nodes), min(nodes, 4), nbytes / 2
    piece = tree_piece(volume, hops)
    expected = 2 * hops * (latency + piece * streams / 2 / nic) + (volume - piece) * streams / nic
    assert cost(toys, nbytes, "Tree").uncontended_time == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize(
    ("volume", "hops", "expected"), [(4096, 1, 512), (2048, 1, 256), (4096, 4, 128), (1024, 8, 64), (128, 8, 32), (16, 8, 16)]
)
def test_pieces_of_a_tree(volume, hops, expected):
    """NVIDIA/nccl enqueue.cc, in KiB: 512, halved to 128 while there are fewer than 8 pieces a hop, to 64 for 4, to 32 for 1."""
    assert tree_piece(volume * 1024.0, hops) == expected * 1024.0


@pytest.mark.parametrize(("flows", "faster"), [(16, 1.0), (1, 2.0)])
def test_each_tree_has_one_of_two_connections_of_many_sockets(flows, faster):
    """NCCL doubles channels: a ring's cap is that of two connections, which two trees between two nodes share; one socket is one."""
    many = {"flow_cap": "10 MB/s", "flows": flows}
    toys = machine(1, 2, nic=1e12, pcie=1e15, network=many)
    assert cost(toys, 1e9, "Ring").uncontended_time / cost(toys, 1e9, "Tree").uncontended_time == pytest.approx(faster, rel=0.01)


@pytest.mark.parametrize("gpus", [2, 4, 8])
@pytest.mark.parametrize("channels", [1, 2, 4])
def test_thread_blocks_of_channels_move_chunk_after_chunk(gpus, channels):
    """By hand (NVIDIA/nccl all_reduce.h): of n chunks a block sends one, passes 2n-3 on, and receives one."""
    rates = {"pcie": 1e12, "wiring": "pcie", "peer_to_peer": "none"}
    capped = Rig(machine(gpus, host={"channel_cap": "1 GB/s"}, **rates)).plan.cost_of(1e9, "Ring", "Simple", channels)
    assert capped.uncontended_time == pytest.approx((2 * gpus - 1) / gpus / channels)
    assert "thread block" in capped.bottleneck
    free, wide = (
        Rig(machine(gpus, host=host, **rates)).plan.cost_of(1e9, "Ring", "Simple", channels) for host in ({}, {"channel_cap": "5 TB/s"})
    )
    assert wide == free


def test_trees_beat_rings_at_small_sizes_and_pipeline_at_large_ones():
    """Many nodes: log N against N latencies below 1 MB; above, a tree sends 2 S through a port where a ring sends 2(n-1)/n S."""
    toys = machine(1, 32, nic=12.5e9, network_latency=1e-5, pcie=1e15)
    small, large = (cost(toys, nbytes, "Tree").uncontended_time / cost(toys, nbytes, "Ring").uncontended_time for nbytes in (1e4, 1e9))
    assert small < 0.3
    assert 0.95 < large < 1.1


def test_two_nodes_pass_the_rate_of_their_nic_by_trees():
    """A tree of two nodes sends S through each NIC where a ring of 16 ranks sends 15/8 S (NVIDIA/nccl-tests issue 22: 134 and 268 ms)."""
    toys = machine(8, 2, nic=10e9, nvlink=1e12, pcie=1e15)
    ratio = cost(toys, 1e9, "Ring").uncontended_time / cost(toys, 1e9, "Tree").uncontended_time
    assert ratio == pytest.approx(15 / 8, rel=0.05)


@given(
    algorithm=st.sampled_from(["Tree", "Hierarchical", "Ring"]), gpus=st.integers(1, 4), nodes=st.integers(2, 4),
    nbytes=st.floats(1e5, 1e8), wiring=st.sampled_from(["nvswitch", "pcie"]), latency=st.sampled_from([0.0, 1e-5]),
)  # fmt: skip
def test_phase_is_close_to_transfers_and_no_link_is_overloaded(algorithm, gpus, nodes, nbytes, wiring, latency):
    """One activity takes as long as every transfer by itself, at most as much longer as hops are thought to want links at once."""
    toys = machine(gpus, nodes, wiring=wiring, nic=5e9, hop_latency=latency, network_latency=latency)
    times = {}
    for executor in EXECUTORS:
        rig = Rig(toys, executor, algorithm=algorithm)
        rig.ring("it", nbytes)
        rig.env.run()
        times[executor] = rig.ends["it"]
        for link, steps in loads(rig.log).items():
            assert max(load for _, load in steps) <= rig.network.capacity[link] * (1 + 1e-9)
    assert times["transfer"] * 0.97 <= times["phase"] <= times["transfer"] * 1.7


@pytest.mark.parametrize(("gpus", "nodes"), [(1, 2), (1, 8), (4, 1), (4, 2), (4, 4), (8, 2)])
def test_a_tree_takes_what_its_pieces_take_one_by_one(gpus, nodes):
    """Oracle: the executor that plays every piece on its own: its first meets on the way up none that falls, its last none that rises."""
    toys = machine(gpus, nodes, wiring="nvswitch", nic=5e9 * gpus, nvlink=2e10, hop_latency=1e-6, network_latency=1e-6, pcie=1e15)
    assert 0.99 < alone(toys, "phase", 1e7, "Tree") / alone(toys, "transfer", 1e7, "Tree") < 1.05


@executors
@pytest.mark.parametrize("algorithm", ["Tree", "Hierarchical"])
@pytest.mark.parametrize("nbytes", [1e8, pytest.param(1e9, marks=pytest.mark.nightly)])
def test_two_jobs_on_one_nic_get_half_each(executor, algorithm, nbytes):
    """Fair share: two all-reduces between the same nodes take twice as long as one."""
    toys = machine(1, 2, nic=1e9, pcie=1e15)
    rig = Rig(toys, executor, algorithm=algorithm)
    rig.ring("first", nbytes)
    rig.ring("second", nbytes)
    rig.env.run()
    assert rig.ends["first"] == pytest.approx(2 * alone(toys, executor, nbytes, algorithm), rel=0.02)


def test_a_tree_beside_a_copy_yields_the_fair_share():
    """Two streams each way of the tree and one copy on a NIC: the copy has a third of it."""
    rig = Rig(machine(1, 2, nic=3e9, pcie=1e15), algorithm="Tree")
    rig.ring("tree", 1e10)
    rig.copy("copy", 1e9, ["nic0>net"])
    rig.env.run()
    assert rig.ends["copy"] == pytest.approx(1.0, rel=0.01)


@pytest.mark.parametrize("protocol", WIRE_BYTES)
def test_flags_weigh_on_the_wire(protocol):
    """Closed form: 2(n-1)/n S times the protocol's wire bytes; a hop's latency is NCCL's share of Simple's."""
    toys = machine(4, nvlink=1e9, hop_latency=1e-3)
    expected = 1.5 * 1e9 * WIRE_BYTES[protocol] / 1e9 + 6 * 1e-3 * latency_share(protocol, "nvlink")
    assert cost(toys, 1e9, "Ring", protocol).uncontended_time == pytest.approx(expected)


@pytest.mark.parametrize(("nodes", "share"), [(1, 0.92 * 7 / 9), (8, 120 / 128)])
def test_a_tree_over_nvlink_takes_less_of_ll128_than_a_network(nodes, share):
    """Shares of the bandwidth that NCCL's tuner leaves LL128 in trees: of one node, whose NVLinks bound it, and of several (tuning.cc)."""
    toys = machine(4, nodes, nvlink=1e9 if nodes == 1 else 1e12, nic=1e9, pcie=1e15)
    assert cost(toys, 1e11, "Tree").uncontended_time / cost(toys, 1e11, "Tree", "LL128").uncontended_time == pytest.approx(share, rel=1e-3)


SOCKETS = {"flow_cap": "1e6 GB/s"}


@pytest.mark.parametrize(("nodes", "gpus", "network"), [(2, 1, 1e15), (2, 1, 5e9), (4, 1, 5e9), (2, 4, 5e9)])
def test_a_ring_over_sockets_reads_its_last_chunk_from_host_memory(nodes, gpus, network):
    """Oracle: every slice of the ring's blocks and proxies. With several GPUs per node, their buffers hide it."""
    toys, nbytes = machine(gpus, nodes, nic=network, pcie=9.7e9, nvlink=40e9, network=SOCKETS), 1e10
    played = nbytes / nodes / gpus / SLICES * seconds_of_loop(nodes, gpus, network, 9.7e9, 40e9)
    assert cost(toys, nbytes, "Ring").uncontended_time == pytest.approx(played, rel=1e-3)


@pytest.mark.parametrize(("nodes", "measured"), [(2, 6.38e9), (4, 8.46e9)])
def test_more_nodes_carry_more_through_host_memory(nodes, measured):
    """Measured: the bus bandwidth of V100 whose network takes no time (zarzen/nccl-tests @5a468768 infNet), which copy at 9.7 GB/s."""
    toys = machine(1, nodes, nic=1e15, pcie=9.7e9, network=SOCKETS)
    carried = 2 * (nodes - 1) / nodes * 1e10 / cost(toys, 1e10, "Ring").uncontended_time
    assert carried == pytest.approx(measured, rel=0.03)


@pytest.mark.parametrize(
    ("protocol", "op", "chunks", "reads"), [("Simple", "all_reduce", 4, 1), ("Simple", "all_gather", 2, 1), ("LL", "all_reduce", 8, 0)]
)
def test_only_simple_rings_over_sockets_read_a_last_chunk(protocol, op, chunks, reads):
    """Closed form on three nodes: chunks on the wire, twice as long under LL, and the one that is read from the host's memory."""
    sockets, verbs = (machine(1, 3, nic=1e9, pcie=8e9, network=network) for network in (SOCKETS, {}))
    assert cost(sockets, 3e9, "Ring", protocol, op).uncontended_time == pytest.approx(chunks + reads / 8)
    assert cost(verbs, 3e9, "Ring", protocol, op).uncontended_time == pytest.approx(chunks)


def test_a_class_may_have_its_own_latency_of_ll():
    """Closed form: two hops; with one GPU a node NCCL's network latency is its trees', 5 us of LL where rings have 2.7 (tuning.cc)."""
    toys = machine(1, 2, nic=1e9, pcie=1e15, network={"hop_latency": "1 ms", "hop_latency_ll": "0.4 ms"})
    assert cost(toys, 1.0, "Ring", "LL").uncontended_time == pytest.approx(2 * 0.4e-3 * 5 / 2.7, rel=1e-3)
    several = machine(2, 2, nic=1e9, network={"hop_latency": "1 ms", "hop_latency_ll": "0.4 ms"})
    assert cost(several, 1.0, "Ring", "LL").uncontended_time == pytest.approx(3 * 0.4e-3, rel=1e-3)  # every second of 6 steps


@pytest.mark.parametrize("algorithm", ["Ring", "Tree"])
def test_a_card_that_may_not_address_gpus_reads_what_was_copied(algorithm):
    """Closed form: the copy and the card's own follow one another, all streams of a card sharing that rate; so do two jobs."""
    toys = machine(1, 2, nic=3e9, pcie=6e9, host={"efficiency": 1.25})
    rate = 1.25 / (1 / 6e9 + 1 / 3e9)
    assert cost(toys, 1e10, algorithm).uncontended_time == pytest.approx(1e10 / rate, rel=1e-2)
    assert cost(toys, 1e10, algorithm).bottleneck.startswith("copies through host memory")
    rig = Rig(toys, algorithm=algorithm)
    rig.ring("first", 1e10)
    rig.ring("second", 1e10)
    rig.env.run()
    assert rig.ends["first"] == pytest.approx(2e10 / rate, rel=0.02)


def test_unequal_nodes_say_what_works():
    toys = cluster(toy_node(1), toy_node(2))
    with pytest.raises(SpecError, match="same number of ranks on every node, not 1 and 2; use Ring or Tree"):
        Rig(toys, algorithm="Hierarchical").plan.cost(1e6)
    assert Rig(toys, algorithm="Tree").plan.cost(1e6).uncontended_time > 0


def test_too_many_channels():
    with pytest.raises(SpecError, match="65 channels: NCCL has 1 to 64"):
        plan_collectives([], None, Tuning(channels=65))


@given(nbytes=st.floats(1, 1e10), op=st.sampled_from(OPS))
def test_costs_are_kept(nbytes, op):
    """The same question twice is one answer, and its parts make sense."""
    plan = Rig(machine(4, 2), algorithm=None, protocol=None, fold=True).plan
    price = plan.cost(nbytes, op)
    assert plan.cost(nbytes, op) is price
    assert price.uncontended_time > 0 and 0 <= price.latency_share <= 1 and all(weight >= 0 for weight in price.load.values())


def test_inside_a_node_nothing_crosses_the_core() -> None:
    toys = cluster(toy_node(4), core_bandwidth="1 GB/s")
    plan = Rig(toys, fold=True).plan
    assert {slot for algorithm in ("Ring", "Tree") for slot, _ in plan.cost_of(1e8, algorithm, "Simple", 1).load} == {"n0"}


@given(nodes=st.integers(2, 32), nbytes=st.floats(1e3, 1e10), latency=st.floats(1e-6, 1e-3))
def test_a_tree_shares_the_core_of_a_fabric(nodes, nbytes, latency):
    """Closed form: two trees of N-1 edges, S/2 on each both ways through 1 GB/s; the first piece meets on its way what goes its way."""
    toys = cluster(toy_node(1, nic=1e15, network_latency=latency, pcie=1e18), count=nodes, core_bandwidth="1 GB/s")
    hops, volume = depth(nodes), nbytes / 2
    piece = tree_piece(volume, hops)
    expected = 2 * hops * latency + (2 * hops * piece * 2 * (nodes - 1) + (volume - piece) * 4 * (nodes - 1)) / 1e9
    assert cost(toys, nbytes, "Tree").uncontended_time == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("nics", [1, 2, 4])
def test_all_channels_of_a_ring_share_the_core_of_a_fabric(nics):
    """Closed form: each of four nodes sends 2 (n-1)/n S through 1 GB/s, over as many channels as it has cards."""
    toys = cluster(toy_node(4, nics=nics, nic=1e15, nvlink=1e18, pcie=1e18, dram=1e20), count=4, core_bandwidth="1 GB/s")
    assert Rig(toys, fold=True).plan.layout.channels >= nics
    assert cost(toys, 1e9, "Ring").uncontended_time == pytest.approx(4 * 2 * (15 / 16), rel=1e-3)


def test_unlike_nodes_cross_leaves_as_equal_ones_do():
    """Nodes that differ in nothing a ring uses: 2 (n-1)/n S through uplinks of 100 MB/s, however its hops are told apart."""
    leaves = {"nodes_per_leaf": 2, "uplink_bandwidth": "100 MB/s"}
    kinds = [toy_node(1, nic=1e12, pcie=1e15, memory=memory) for memory in (1e12, 2e12)]
    equal, unlike = (cluster(*nodes, count=4 // len(nodes), leaf_spine=leaves) for nodes in (kinds[:1], kinds))
    assert len(Rig(unlike, fold=True).plan.parts) == 2
    assert cost(unlike, 1e8, "Ring").uncontended_time == pytest.approx(2 * 3 / 4, rel=1e-3)
    assert cost(equal, 1e8, "Ring").uncontended_time == pytest.approx(2 * 3 / 4, rel=1e-3)


def test_only_hops_between_leaves_wait_for_their_uplinks():
    """Closed form: of the 2 (n-1) = 6 hops of a chunk round four nodes, two a leaf, 3 cross uplinks of 100 MB/s; all take their latency."""
    node = toy_node(1, nic=1e12, pcie=1e15, network_latency=1.0)
    leaves = cluster(node, count=4, leaf_spine={"nodes_per_leaf": 2, "uplink_bandwidth": "100 MB/s"})
    longer = cost(leaves, 1e8, "Ring").uncontended_time - cost(cluster(node, count=4), 1e8, "Ring").uncontended_time
    assert longer == pytest.approx(3 * 1e8 / 4 / 100e6, rel=1e-3)


def test_switches_as_fast_as_the_cards_leave_a_ring_as_it_is():
    """The hops of one node stand for all, two nodes a leaf; only slower switches need those of a leaf, where every second one is slow."""
    leaves = {"nodes_per_leaf": 2, "uplink_bandwidth": "100 MB/s"}
    layout = Rig(cluster(toy_node(2, nic=1e9, nvlink=1e12, pcie=1e15), count=4, leaf_spine=leaves), fold=True).plan.layout
    (ring,) = pricing._distinct_rings(layout)
    far = [edge.fabric is not None for edge in ring]
    busy, late = tuple(1.0 if each else 0.5 for each in far), (0.1,) * len(ring)
    assert pricing._slowed_by_switches(layout, ring, busy, late, 1.0) == (busy, late)
    slower, latencies = pricing._slowed_by_switches(layout, ring, busy, late, 3.0)
    assert (len(slower), slower.count(3.0), latencies) == (2 * len(ring), far.count(True), late * 2)


def test_a_tree_of_unlike_nodes_waits_for_the_latest():
    """Of three nodes the first two are nearer to each other; a first piece meets the largest latency up and down, as if all had it."""
    latencies = (1e-3, 2e-3, 4e-3)
    nodes = [toy_node(1, nic=1e9, pcie=1e15, network_latency=latency) for latency in latencies]
    latest = cost(cluster(*nodes[2:], count=3), 1.0, "Tree").uncontended_time
    assert cost(cluster(*nodes), 1.0, "Tree").uncontended_time == pytest.approx(latest, rel=1e-6)
    assert latest == pytest.approx(2 * depth(3) * 4e-3, rel=1e-3)
