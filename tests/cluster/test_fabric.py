"""Oracles: routes counted one by one, closed forms, max-min shares; every node simulated individually, compared with classes of nodes."""

from __future__ import annotations

from collections import Counter
from itertools import permutations, product
from math import prod

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.cluster.bisection import bisection_bandwidth
from sim.cluster.build import Placement
from sim.cluster.fabric import ALL, RING, SWITCH, TREE, JobFabric, NodeStreams, Pattern, job_fabric, moved, period
from sim.events import Cause
from sim.spec.yaml import SpecError
from sim.training.job import Job
from tests.examples import examples
from tests.harness import all_reduce_alone, cluster, layer, run, toy_node, toy_workload
from tests.oracle.collectives.tree import double_binary_tree

GB = 1e9
executors = pytest.mark.parametrize("executor", ["phase", "transfer"])


def leaves(nodes: int, per_leaf: int, ratio: float, *, gpus: int = 1, order: str = "by_switch", pods=None, rails=False, **node):
    """Toy nodes below leaf switches."""
    spec = {"nodes_per_leaf": per_leaf, "oversubscription": ratio, "rails": rails, "pods": pods}
    return cluster(toy_node(gpus, **{"nic": GB, "pcie": 1e15, "nvlink": 1e15} | node), count=nodes, leaf_spine=spec, rank_order=order)


def on_ports(fabric: JobFabric, pattern: Pattern) -> dict[str, float]:
    return fabric.load([NodeStreams(pattern, 0, 0, 1.0, 1.0)])


# --- what crosses, counted route by route ----------------------------------------------------------------------------


def edges_of(pattern: Pattern, nodes: int) -> list[tuple[int, int]]:
    """Everyone who sends a stream to whom; a tree's edges carry one each way."""
    if pattern == RING:
        return [(node, (node + 1) % nodes) for node in range(nodes)]
    if pattern == ALL:
        return list(permutations(range(nodes), 2))
    if pattern.kind == "pairs":
        return [(node, node ^ pattern.distance) for node in range(nodes)]
    return [edge for tree in double_binary_tree(nodes) for child, up in tree.items() for edge in ((child, up), (up, child))]


def per_node(pattern: Pattern, nodes: int) -> float:
    """Streams that the busiest node sends."""
    return float(max(Counter(src for src, _ in edges_of(pattern, nodes)).values()))


@given(st.lists(st.integers(1, 6), min_size=1, max_size=5).filter(lambda sizes: sum(sizes) > 1), st.sampled_from([RING, TREE, ALL]))
def test_uplinks_carry_what_is_counted(sizes, pattern):
    """Oracle: each stream whose ends are below two leaves leaves the one and enters the other."""
    per_leaf, nodes = 6, [leaf * 6 + place for leaf, size in enumerate(sizes) for place in range(size)]
    hardware = leaves(per_leaf * len(sizes), per_leaf, 1)
    out = Counter(nodes[src] // per_leaf for src, dst in edges_of(pattern, len(nodes)) if nodes[src] // 6 != nodes[dst] // 6)
    busiest = per_node(pattern, len(nodes)) if pattern != TREE else min(len(nodes), 4)
    for fold in (True, False):
        load = on_ports(job_fabric(hardware, [nodes], 0, fold), pattern)
        for leaf, size in enumerate(sizes):
            alike = [other for other, other_size in enumerate(sizes) if other_size == size]
            name = f"leaf{alike[0] if fold else leaf}"
            counted = max(out[other] for other in alike) if pattern == TREE else out[leaf]
            assert load.get(f"{name}.up", 0.0) * busiest == pytest.approx(counted)
            assert load.get(f"{name}.down", 0.0) == load.get(f"{name}.up", 0.0)


@given(st.integers(1, 5), st.integers(0, 3), st.integers(0, 4))
def test_doubling_distances(power, leaf_power, distance_power):
    """Oracle: partners node ^ d counted, on leaves of a power of two."""
    nodes, per_leaf, pattern = 2**power, 2**leaf_power, Pattern("pairs", 2 ** min(distance_power, power - 1))
    load = on_ports(job_fabric(leaves(nodes, per_leaf, 1), [range(nodes)], 0), pattern)
    counted = sum(1 for src, dst in edges_of(pattern, nodes) if src < per_leaf <= dst)
    assert load.get("leaf0.up", 0.0) == pytest.approx(counted)


def test_numbers_as_it_happens_send_every_ring_up():
    """Closed form: of m nodes, m(N - m)/(N - 1) have a next node below another leaf, in the mean of all orders."""
    orders = list(permutations(range(6)))
    leaving = sum(sum(order[place] < 2 <= order[(place + 1) % 6] for place in range(6)) for order in orders) / len(orders)
    load = on_ports(job_fabric(leaves(6, 2, 1, order="scattered"), [range(6)], 0), RING)
    assert load["leaf0.up"] == pytest.approx(leaving) == pytest.approx(2 * 4 / 5)


def test_switches_that_add_send_one_sum():
    assert on_ports(job_fabric(leaves(8, 4, 1), [range(8)], 0), SWITCH) == {"leaf0.up": 1.0, "leaf0.down": 1.0}


def test_pods_are_a_tier_above():
    """Closed form: two pods of two leaves of two nodes; a leaf's uplinks carry more of an all-to-all than a quarter of its pod's."""
    fabric = job_fabric(leaves(8, 2, 1, pods={"leaves": 2, "oversubscription": 4}), [range(8)], 0)
    assert on_ports(fabric, ALL) == pytest.approx({"leaf0.up": 12 / 7, "leaf0.down": 12 / 7, "pod0.up": 16 / 7, "pod0.down": 16 / 7})
    assert on_ports(fabric, RING) == dict.fromkeys(("leaf0.up", "leaf0.down", "pod0.up", "pod0.down"), 1.0)
    assert fabric.capacities["leaf0.up"] == 2 * GB
    assert fabric.capacities["pod0.up"] == GB


def test_rails_keep_traffic_of_one_rail_below_its_leaf():
    """Closed form: NIC 0 to NIC 0 stays below leaf 0; NIC 0 to NIC 1 goes through the spine from every node."""
    fabric = job_fabric(leaves(4, 4, 1, gpus=2, nics=2, rails=True), [range(4)], 0)
    assert fabric.load([NodeStreams(RING, 0, 0, 1.0, 1.0), NodeStreams(RING, 1, 1, 1.0, 1.0)]) == {}
    assert fabric.load([NodeStreams(RING, 0, 1, 1.0, 1.0)]) == {"leaf0.rail0.up": 4.0, "leaf0.rail0.down": 4.0}
    assert fabric.load([NodeStreams(ALL, 0, None, 1.0, 1.0)])["leaf0.rail0.up"] == 2.0


@given(st.lists(st.integers(1, 5), min_size=1, max_size=3).filter(lambda lengths: prod(lengths) > 1), st.booleans())
def test_a_torus_carries_what_is_counted(lengths, part):
    """Oracle: dimension-ordered shortest ways of all pairs, halves each way where both are as short; also of half of the planes."""
    *inner, last = lengths
    used = [*inner, max(1, last // 2)] if part else lengths
    nodes = prod(used)
    if nodes < 2:
        return
    on: Counter[tuple[int, tuple[int, ...], int]] = Counter()
    for src, dst in permutations(product(*map(range, used)), 2):
        at = list(src)
        for axis, (length, open_) in enumerate(zip(lengths, [a != b for a, b in zip(used, lengths, strict=True)], strict=True)):
            ahead = (dst[axis] - at[axis]) % length
            ways = [(1, 1.0)] if ahead < length - ahead else [(-1, 1.0)] if ahead > length - ahead else [(1, 0.5), (-1, 0.5)]
            if open_:
                ways = [(1 if dst[axis] > at[axis] else -1, 1.0)]
            for step, share in ways:
                place = at[axis]
                while place != dst[axis]:
                    on[axis, (*at[:axis], place, *at[axis + 1 :]), step] += share
                    place = (place + step) % length
            at[axis] = dst[axis]
    hardware = cluster(toy_node(1), count=prod(lengths), torus={"dimensions": lengths, "link_bandwidth": "1 GB/s"})
    load = on_ports(job_fabric(hardware, [range(nodes)], 0), ALL)
    for axis in range(len(lengths)):
        most = max((amount for (of, _, _), amount in on.items() if of == axis), default=0.0)
        assert load.get(f"job0.dimension{axis}", 0.0) * (nodes - 1) == pytest.approx(most)


def test_bisection_of_a_torus_bounds_all_to_all():
    """Closed form: N^2/4 pairs cross the middle of a 4 x 4 x 4 torus each way on 2 N/4 links: N k/8 on each."""
    hardware = cluster(toy_node(1), count=64, torus={"dimensions": [4, 4, 4], "link_bandwidth": "1 GB/s"})
    load = on_ports(job_fabric(hardware, [range(64)], 0), ALL)
    assert load == pytest.approx({f"job0.dimension{axis}": 64 * 4 / 8 / 63 for axis in range(3)})


def dragonfly(nodes: int = 24, **keys):
    spec = {"nodes_per_router": 2, "routers_per_group": 4, "groups": 3, "local_bandwidth": "1 GB/s", "global_bandwidth": "2 GB/s"} | keys
    return cluster(toy_node(1, nic=1e12), count=nodes, dragonfly=spec)


def test_a_dragonfly_carries_what_is_counted():
    """Oracle: all pairs routed minimally, a local hop at each end unless the router itself has the link to the other group."""
    fabric = job_fabric(dragonfly(), [range(24)], 0)
    local: Counter[int] = Counter()
    across: Counter[int] = Counter()
    for src, dst in permutations(range(24), 2):
        if src // 8 == dst // 8:
            local[src // 2] += src // 2 != dst // 2
            continue
        across[src // 8] += 1
        for gateway in range(4):  # global links lie evenly on the routers of both groups
            local[src // 2] += (gateway != src // 2 % 4) / 4
            local[dst // 8 * 4 + gateway] += (gateway != dst // 2 % 4) / 4
    load = on_ports(fabric, ALL)
    assert load["router0.up"] * 23 == pytest.approx(local[0])
    assert load["group0.up"] * 23 == pytest.approx(across[0])
    assert fabric.capacities == {"router0.up": 3e9, "router0.down": 3e9, "group0.up": 8e9, "group0.down": 8e9}


@pytest.mark.parametrize(("routing", "weight"), [("minimal", (3, 2)), ("adaptive", (2, 2))])
def test_a_ring_of_groups_finds_the_links_of_two(routing, weight):
    """Closed form: minimal ways leave 1 of 3 local and 1 of 2 pairs' global links; by a third group half of all."""
    load = on_ports(job_fabric(dragonfly(routing=routing), [range(24)], 0), RING)
    assert (load["router0.up"], load["group0.up"]) == weight


# --- collectives in time ---------------------------------------------------------------------------------------------


@executors
@given(st.integers(1, 3), st.integers(2, 3), st.floats(1.0, 8.0), st.floats(1e3, 1e9), st.sampled_from([0.0, 1e-5, 1e-2]))
def test_a_ring_across_racks_is_bounded_by_uplinks(executor, per_leaf, racks, ratio, nbytes, latency):
    """Closed form: one node's stream leaves each leaf, so T = K max(c/B + l, c/U + .., ..): with no latency 2(n-1) S/n / min(B, U)."""
    n = per_leaf * racks
    toys = leaves(n, per_leaf, ratio, network_latency=latency)
    bandwidth = min(GB, per_leaf * GB / ratio)
    seconds = all_reduce_alone(toys, executor, nbytes)
    assert seconds == pytest.approx(all_reduce_alone(toys, "phase", nbytes, fold=True), rel=1e-9)
    if not latency:
        assert seconds == pytest.approx(2 * (n - 1) * nbytes / n / bandwidth, rel=1e-9)


def exchanging(toys, *placements):
    """Step times of jobs that only exchange 1 GB of gradients, and what their ranks wait for."""
    workload = toy_workload([layer(1e-9, 1e-9, 250_000_000)], samples=8)
    jobs = [Job(workload, tuple(Placement(node, (0,)) for node in nodes)) for nodes in placements]
    simulated = run(toys, *jobs)
    return [job.warm.step_time for job in simulated.jobs], simulated


@pytest.mark.parametrize("nodes", [(4, 2), (8, 4)])
def test_jobs_share_oversubscribed_uplinks_fairly(nodes):
    """Fair share: two jobs with nodes below the same two leaves get half of the uplinks each; a job below one leaf gets its NICs."""
    count, per_leaf = nodes
    toys = leaves(count, per_leaf, 2 * per_leaf)
    (alone,), simulated = exchanging(toys, (0, per_leaf))
    assert alone == pytest.approx(1 * GB / (GB / 2), rel=1e-3)
    assert next(blame.resource for blame in simulated.stalls if blame.cause is Cause.NETWORK).startswith("uplinks of 2 leaves like leaf 0")
    together, _ = exchanging(toys, (0, per_leaf), (1, per_leaf + 1))
    assert together == pytest.approx([2 * alone] * 2, rel=1e-3)
    apart, _ = exchanging(toys, (0, 1), (per_leaf, per_leaf + 1))
    assert apart == pytest.approx([1.0] * 2, rel=1e-3)


def test_three_jobs_on_one_leaf_take_what_a_solver_gives():
    """Fair share: the uplinks of leaf 0 carry three jobs, of leaf 1 two: each job has a third of leaf 0's."""
    toys = leaves(12, 3, 6)
    (first, second, third), _ = exchanging(toys, (0, 3), (1, 4), (2, 6))
    assert [first, second, third] == pytest.approx([3 * 1 * GB / (GB / 2)] * 3, rel=1e-3)


def test_folded_is_unfolded_and_its_size_does_not_grow():
    """Oracle: every node simulated by itself; and the live resources of 4 096 nodes are those of 8."""
    toys = leaves(8, 4, 8, network_latency=1e-4)
    workload = toy_workload([layer(0.001, 0.002, 1_000_000), layer(0.01, 0.02, 25_000_000)], samples=64)
    assert run(toys, workload).jobs[0].warm.step_time == pytest.approx(run(toys, workload, fold=False).jobs[0].warm.step_time, rel=1e-9)
    small, large = (run(leaves(nodes, 4, 8), workload).log.capacity for nodes in (8, 4096))
    assert set(small) == set(large)


def test_disjoint_jobs_on_a_fabric_that_holds_nobody_back_are_as_fast_as_alone():
    """Closed form: 1 GB over two nodes' NICs of 1 GB/s is 1 s, whoever else exchanges on other nodes, wherever these lie."""
    toys = leaves(12, 3, 1)
    (alone,), _ = exchanging(toys, (0, 1))
    assert alone == pytest.approx(1.0, rel=1e-3)
    for placements in (((0, 1), (4, 5)), ((0, 3), (1, 6), (2, 9)), ((2, 11), (0, 4), (3, 8), (1, 10))):
        together, _ = exchanging(toys, *placements)
        assert together == pytest.approx([alone] * len(placements), rel=1e-9)


def test_jobs_on_common_nodes_share_their_nic():
    """Fair share: two rings through one NIC get half of it each; a third job on the same node as one of them does not affect the
    other."""
    toys = cluster(toy_node(3, nic=GB, pcie=1e15), count=4)
    workload = toy_workload([layer(1e-9, 1e-9, 250_000_000)], samples=8)
    on = [((0, 0), (1, 0)), ((0, 1), (1, 1)), ((2, 0), (3, 0))]
    jobs = [Job(workload, tuple(Placement(node, (gpu,)) for node, gpu in places)) for places in on]
    assert [job.warm.step_time for job in run(toys, *jobs).jobs] == pytest.approx([2.0, 2.0, 1.0], rel=1e-3)


def test_jobs_that_meet_on_one_node_share_its_nic_alone():
    """Fair share: rings over nodes 0-1 and 1-2 meet at node 1's NIC, and get half of it each."""
    toys = cluster(toy_node(2, nic=GB, pcie=1e15), count=3)
    workload = toy_workload([layer(1e-9, 1e-9, 250_000_000)], samples=8)
    on = [((0, 0), (1, 0)), ((1, 1), (2, 0))]
    jobs = [Job(workload, tuple(Placement(node, (gpu,)) for node, gpu in places)) for places in on]
    assert [job.warm.step_time for job in run(toys, *jobs).jobs] == pytest.approx([2.0, 2.0], rel=1e-3)


@pytest.mark.parametrize(
    "on", [((0, 4), (1, 5)), ((0, 1, 4, 5), (2, 6)), ((0, 1, 2, 4), (3, 5, 6, 7)), ((0, 1), (4, 5))], ids=lambda on: str(len(on[0]))
)
def test_jobs_side_by_side_as_every_transfer_of_theirs(on):
    """Oracle: every transfer is a separate flow, along the paths of its two nodes."""
    toys = leaves(8, 4, 8)
    works = [toy_workload([layer(1e-9, 1e-9, elements)], samples=4) for elements in (25_000_000, 12_500_000)]
    jobs = [Job(work, tuple(Placement(node, (0,)) for node in nodes)) for work, nodes in zip(works, on, strict=True)]
    one, other = (run(toys, *jobs, executor=executor, fold=False, exact=True).jobs for executor in ("phase", "transfer"))
    assert [job.warm.step_time for job in one] == pytest.approx([job.warm.step_time for job in other], rel=1e-6)


def torus_of_pairs():
    """A torus of 4 x 4 nodes of two GPUs, whose links are half as fast as the NICs."""
    return cluster(toy_node(2, nic=GB, pcie=1e15), count=16, torus={"dimensions": [4, 4], "link_bandwidth": "500 MB/s"})


def test_jobs_with_blocks_of_a_torus_meet_only_where_these_overlap():
    """Closed form: a ring of a row sends 2 (3/4) GB over links of 0.5 GB/s, and twice as long where another job has the same row."""
    workload = toy_workload([layer(1e-9, 1e-9, 250_000_000)], samples=8)
    rows = {
        ((0, 0), (4, 0)): [3.0, 3.0],
        ((0, 0), (0, 1)): [6.0, 6.0],
        ((8, 0), (4, 0), (8, 1)): [6.0, 3.0, 6.0],
    }
    for places, times in rows.items():
        jobs = [Job(workload, tuple(Placement(node, (gpu,)) for node in range(first, first + 4))) for first, gpu in places]
        assert [job.warm.step_time for job in run(torus_of_pairs(), *jobs).jobs] == pytest.approx(times, rel=1e-3)


@pytest.mark.parametrize("nodes", [(0, 2), (2, 3, 4, 5), (1, 2, 3, 4, 5, 6, 7, 8), (4, 5, 6, 7, 8, 9)])
def test_nodes_that_are_no_block_of_a_torus_are_refused(nodes):
    job = Job(toy_workload(), tuple(Placement(node, (0,)) for node in nodes))
    with pytest.raises(SpecError, match=f"{len(nodes)} nodes, {nodes[0]} to {nodes[-1]}, are not a block of a torus of 4 x 4"):
        run(torus_of_pairs(), job)


def test_jobs_share_the_global_links_of_a_dragonfly():
    """Fair share: a ring of two groups finds half of their 4 links of 2 GB/s by a third group; two jobs have half of that each."""
    toys = dragonfly(routing="adaptive", global_bandwidth="100 MB/s", local_bandwidth="1 TB/s")
    (alone,), simulated = exchanging(toys, (0, 8))
    assert alone == pytest.approx(1 / 0.2, rel=1e-3)
    assert next(blame.resource for blame in simulated.stalls if blame.cause is Cause.NETWORK).startswith("global links of group 0")
    together, _ = exchanging(toys, (0, 8), (2, 10))
    assert together == pytest.approx([2 * alone] * 2, rel=1e-3)
    three, _ = exchanging(toys, (0, 8), (2, 16))
    assert three == pytest.approx([2 * alone] * 2, rel=1e-3)  # group 0 alone is common


# --- hashed paths ------------------------------------------------------------------------------------------------------


@executors
@pytest.mark.parametrize(("nodes", "per_leaf", "share"), [(2, None, 0.7), (5, None, 0.5), (4, 2, 0.6), (4, 1, 1.0)])
def test_a_ring_over_hashed_paths_takes_its_bytes_over_what_these_fill(nodes, per_leaf, share, executor):
    """Closed form: 2 (n - 1)/n S over the share of the links; below one switch of two nodes the ring goes up once a switch."""
    structure = {"leaf_spine": {"nodes_per_leaf": per_leaf}} if per_leaf else {}
    hardware = cluster(toy_node(1, nic=GB), count=nodes, path_efficiency=share, **structure)
    rate = GB * min(1.0, share * (per_leaf or 1))
    assert all_reduce_alone(hardware, executor, 1e8, fold=executor == "phase") == pytest.approx(
        2 * (nodes - 1) / nodes * 1e8 / rate, rel=1e-3
    )


def test_hashed_paths_hold_nobody_back_below_one_switch():
    """One leaf: no byte crosses between switches, so a job there is as fast whatever the paths above fill."""
    times = [
        all_reduce_alone(cluster(toy_node(1, nic=GB), count=4, path_efficiency=share, leaf_spine={"nodes_per_leaf": 4}), "phase", 1e8)
        for share in (1.0, 0.3)
    ]
    assert times[0] == times[1]


@examples(
    15,
    None,
    st.sampled_from([{}, {"leaf_spine": {"nodes_per_leaf": 2}}, {"torus": {"dimensions": [4], "link_bandwidth": "1 GB/s"}}]),
    st.data(),
)
def test_fuller_paths_are_never_slower(structure, data):
    """Monotone: time falls, capacities and the cut between halves grow with the share that paths fill; a share of 1 changes nothing."""
    less, more = sorted((data.draw(st.floats(0.05, 1.0)), data.draw(st.floats(0.05, 1.0))))
    low, high, full = (cluster(toy_node(2, nic=GB), count=4, path_efficiency=share, **structure) for share in (less, more, 1.0))
    slow, quick, free = (all_reduce_alone(each, "phase", 1e7) for each in (low, high, full))
    assert slow >= quick >= free == all_reduce_alone(cluster(toy_node(2, nic=GB), count=4, **structure), "phase", 1e7)
    assert bisection_bandwidth(low) <= bisection_bandwidth(high) <= bisection_bandwidth(full)


def test_bisection_of_hashed_paths_bounds_all_to_all():
    """N/2 nodes send half of what they have to the other half; nothing beats that over the cut."""
    hardware = cluster(toy_node(1, nic=GB), count=4, path_efficiency=0.6)
    assert bisection_bandwidth(hardware) == pytest.approx(2 * 0.6 * GB)


@given(
    st.lists(st.integers(0, 47), min_size=2, max_size=12, unique=True), st.integers(1, 4), st.sampled_from((1, 2, 4)),
    st.sampled_from((None, {"leaves": 2, "oversubscription": 2.0})), st.booleans(), st.booleans(),
)  # fmt: skip
def test_a_job_that_is_moved_by_whole_groups_crosses_links_with_other_numbers(places, times, per_leaf, pods, rails, fold):
    """Oracle: the fabric of each job by itself, link by link, and pair by pair of nodes."""
    hardware = leaves(96, per_leaf, 2, pods=pods, rails=rails, nics=2, gpus=2)
    spec, nodes = hardware.fabric, sorted(places)
    by = times * period(spec)
    assert by == times * per_leaf * (pods["leaves"] if pods else 1)
    here, there = (job_fabric(hardware, [[node + shift for node in nodes]], 0, fold) for shift in (0, by))
    assert there.capacities == {moved(name, spec, by): rate for name, rate in here.capacities.items()}
    assert list(there.descriptions.items()) == [(moved(name, spec, by), moved(text, spec, by)) for name, text in here.descriptions.items()]
    for pattern in (RING, TREE, ALL):
        assert on_ports(there, pattern) == {moved(name, spec, by): load for name, load in on_ports(here, pattern).items()}
    for one, other in permutations(nodes[:4], 2):
        assert there.between(one + by, other + by, 0, 1) == tuple(moved(name, spec, by) for name in here.between(one, other, 0, 1))


def test_no_period_is_known_of_a_torus():
    assert period(cluster(toy_node(1), count=4, torus={"dimensions": [2, 2], "link_bandwidth": "1 GB/s"}).fabric) == 0
