"""Oracle: every worker's stream to every server, counted one by one; and what a step takes by closed forms."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.cluster.build import Placement, Serving
from sim.cluster.server_traffic import Hosts, hosts_of, server_fabric
from sim.events import Cause
from sim.spec.hardware import Group, Hardware
from sim.spec.workload import Workload
from sim.spec.yaml import SpecError
from sim.study.scenario import Scenario, prepare
from sim.training.job import Job
from tests.harness import cluster, layer, run, toy_node, toy_workload

GB = 1e9


def leaves(nodes: int, servers: int = 0, per_leaf: int = 2, **spec: Any) -> Hardware:
    """Toy nodes of two GPUs below leaves, and hosts of servers after them."""
    machine = cluster(toy_node(2, nic=GB, pcie=1e15), count=nodes, leaf_spine={"nodes_per_leaf": per_leaf} | spec)
    if not servers:
        return machine
    host = Group.model_validate({"node": toy_node(1, nic=GB, pcie=1e15), "count": servers, "role": "server"})
    return machine.model_copy(update={"groups": (*machine.groups, host)})


@given(
    st.lists(st.integers(0, 2), min_size=2, max_size=9).filter(lambda gpus: sum(map(bool, gpus)) > 1),
    st.integers(1, 3),
    st.integers(1, 3),
    st.booleans(),
    st.booleans(),
    st.booleans(),
)
def test_uplinks_carry_what_is_counted(gpus: list[int], servers: int, per_leaf: int, colocated: bool, fold: bool, outward: bool) -> None:
    """Oracle: a stream between hosts below two leaves goes up from the one and down to the other, and so for pods of two leaves."""
    hardware = leaves(len(gpus), servers, per_leaf, uplink_bandwidth="1 GB/s", pods={"leaves": 2, "oversubscription": 2})
    placement = [Placement(node, tuple(range(count))) for node, count in enumerate(gpus) if count]
    hosts = hosts_of(hardware, placement, Serving(min(servers, len(placement)), colocated, True))
    assert all(node >= len(gpus) for node in hosts.servers) or colocated
    fabric = server_fabric(hardware, hosts.node_lists, 0, hosts, fold)
    for server in (-1, *range(len(hosts.servers))):
        counted: Counter[str] = Counter()
        for worker in hosts.workers:
            for host in hosts.servers if server < 0 else (hosts.servers[server],):
                src, dst = (worker, host) if outward else (host, worker)
                for tier, size in (("leaf", per_leaf), ("pod", 2 * per_leaf)):
                    if src // size != dst // size:
                        counted[f"{tier}{src // size}.up"] += 1
                        counted[f"{tier}{dst // size}.down"] += 1
        load = fabric.load(server, outward, 1.0)
        if not fold:
            assert load == counted
        assert all(counted[name] == amount for name, amount in load.items())
        assert max(load.values(), default=0) == max(counted.values(), default=0)


def test_servers_have_the_places_after_all_workers() -> None:
    assert hosts_of(leaves(3, 2), [Placement(1, (0, 1))], Serving(2, False, True)) == Hosts((1, 1), (3, 4))
    assert hosts_of(leaves(3), [Placement(1, (0, 1)), Placement(2, (0,))], Serving(1, True, True)) == Hosts((1, 1, 2), (1,))


def served(place: str, count: int = 1, sharding: str = "chunks", **keys: Any) -> Workload:
    """1 GB of gradients through servers that compute nothing."""
    servers = {
        "count": count, "placement": place, "sharding": sharding, "update_cpu": "0 s", "byte_cpu": "0 s/GB", "pipelined": False,
        "chunk": "1 MiB", "source": "test",
    }  # fmt: skip
    stack = {"strategy": "parameter_server", "servers": servers, "nccl_algo": None, "nccl_proto": None}
    return toy_workload([layer(1e-9, 1e-9, 250_000_000)], samples=8, stack=stack, **keys)


def on(workload: Workload, *nodes: int) -> Job:
    return Job(workload, tuple(Placement(node, (0,)) for node in nodes))


def test_a_server_beyond_an_uplink_waits_for_it() -> None:
    """Closed form: four workers push 1 GB each; the server's NIC takes 4 s, the uplinks of two leaves of 0.25 GB/s 8 s; and back."""
    machine = leaves(4, 1, uplink_bandwidth="0.25 GB/s")
    simulated = run(machine, on(served("group"), 0, 1, 2, 3))
    # 4 GB go down to the server's leaf, the busiest: 16 s each way
    assert simulated.jobs[0].warm.step_time == pytest.approx(2 * 16.0, rel=1e-3)
    assert next(row.resource for row in simulated.stalls if row.cause is Cause.NETWORK) == "uplinks of leaf 2"
    near = run(machine, on(served("colocated"), 0, 1))
    assert near.jobs[0].warm.step_time == pytest.approx(2 * 1.0, rel=1e-3)  # one worker's bytes through one NIC, below one leaf


def test_jobs_share_the_uplinks_to_their_servers() -> None:
    """Fair share: two jobs with worker and server below the same two leaves take twice as long; a ring beside one takes its share."""
    machine = leaves(4, uplink_bandwidth="0.25 GB/s")
    job = served("colocated")
    (alone,) = (result.warm.step_time for result in run(machine, on(job, 0, 2)).jobs)
    assert alone == pytest.approx(2 * 4.0, rel=1e-3)
    assert [result.warm.step_time for result in run(machine, on(job, 0, 2), on(job, 1, 3)).jobs] == pytest.approx([16.0, 16.0], rel=1e-3)
    ring = toy_workload([layer(1e-9, 1e-9, 250_000_000)], samples=8)
    pushing, reducing = (result.warm.step_time for result in run(machine, on(job, 0, 2), on(ring, 1, 3)).jobs)
    assert reducing > 4.0 * 1.4 and pushing > 8.0 * 1.4


@pytest.mark.parametrize("sharding", ["chunks", "variables"])
@pytest.mark.parametrize("place", ["group", "colocated"])
def test_folded_servers_are_the_unfolded_ones(sharding: str, place: str) -> None:
    """Oracle: every node by itself."""
    machine = leaves(7, 3, uplink_bandwidth="0.3 GB/s", pods={"leaves": 2, "oversubscription": 2})
    job = Job(served(place, 3, sharding), tuple(Placement(node, (0, 1)[: 1 + node % 2]) for node in range(7)))
    other = Job(toy_workload([layer(0.1, 0.2, 10**7)], samples=8), tuple(Placement(node, (1,)) for node in (0, 2, 6)))
    folded, unfolded = (run(machine, job, other, fold=fold) for fold in (True, False))
    for one, each in zip(folded.jobs, unfolded.jobs, strict=True):
        assert one.warm.step_time == pytest.approx(each.warm.step_time, rel=1e-9)


@pytest.mark.parametrize(
    ("overrides", "stack", "says"),
    [
        (("fabric.leaf_spine.nodes_per_leaf=2",), "tf-parameter-server", "parameter_server_async is not modeled across switches"),
        (
            ("fabric.leaf_spine.nodes_per_leaf=2",),
            "tf-parameter-server-sync",
            "servers and workers have different ones; write uplink_bandwidth",
        ),
        (("fabric.torus.dimensions=[4]", "fabric.torus.link_bandwidth=1 Gbps"), "tf-parameter-server-sync", "is not modeled on a torus"),
        (
            ("fabric.leaf_spine.nodes_per_leaf=2", "fabric.leaf_spine.uplink_bandwidth=1 Gbps", "training.stack.servers.racks=2"),
            "phub",
            "2 racks cannot be combined with fabric.leaf_spine",
        ),
    ],
)
def test_what_is_not_modeled_is_said(overrides: tuple[str, ...], stack: str, says: str) -> None:
    with pytest.raises(SpecError, match=says):
        prepare(Scenario("cm-dare-p100", "resnet15-cifar", overrides, nodes=4, stack=stack))
