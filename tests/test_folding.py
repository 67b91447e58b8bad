"""Does folding split only what it must, and change nothing? Oracle: every node and rank simulated by itself, on mixed clusters."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
from hypothesis import strategies as st

from sim.cluster.build import Placement
from sim.simulate import Run, simulate
from sim.spec.hardware import Hardware, Node
from sim.spec.library import load_hardware
from sim.training.job import Job
from tests.examples import examples
from tests.harness import layer, toy_node, toy_workload, volume

LINKS = {"0-1": 1, "1-2": 1, "2-3": 1, "0-3": 1}


def node(flaw: str = "", **keys: Any) -> Node:
    """A node of four GPUs in a ring of NVLinks, or one with a flaw."""
    keys = {"wiring": LINKS, "cores": 4, "disk": volume(bandwidth=40e6)} | keys
    if flaw == "broken link":
        keys["wiring"] = {pair: count for pair, count in LINKS.items() if pair != "1-2"}
    if flaw == "slow NIC":
        keys["nic"] = 0.3e9
    if flaw == "slow disk":
        keys["disk"] = volume(bandwidth=11e6)
    made = toy_node(4, **keys)
    if flaw == "slow GPU":
        made = made.model_copy(update={"gpu": made.gpu.model_copy(update={"peak": {"fp32": 0.6e12}})})
    return made


FLAWS = ("broken link", "slow NIC", "slow disk", "slow GPU")


class Cluster(NamedTuple):
    """Groups of (flaw, count), and the GPUs that the job has on each node."""

    groups: list[tuple[str, int]]
    gpus: list[int]

    @property
    def hardware(self) -> Hardware:
        made = [{"node": node(flaw), "count": count} for flaw, count in self.groups]
        return Hardware.model_validate({"name": "mixed", "groups": made})

    @property
    def placement(self) -> tuple[Placement, ...]:
        return tuple(Placement(number, tuple(range(count))) for number, count in enumerate(self.gpus))

    @property
    def kinds(self) -> int:
        """Number of different (kind of node, GPUs used), which must be distinguished."""
        flaws = [flaw for flaw, count in self.groups for _ in range(count)]
        return len(set(zip(flaws, self.gpus, strict=True)))

    def repeated(self, times: int) -> list[int]:
        """GPUs used on each node where every node stands so many times."""
        return [count for count in self.gpus for _ in range(times)]


@st.composite
def clusters(draw: st.DrawFn) -> Cluster:
    """Good nodes, perhaps some with flaws among them, and an even or an uneven placement."""
    flaws = draw(st.lists(st.sampled_from(FLAWS), max_size=2, unique=True))
    groups = [(flaw, draw(st.integers(1, 2))) for flaw in ["", *draw(st.lists(st.just(""), max_size=1)), *flaws]]
    groups = draw(st.permutations(groups))
    nodes = sum(count for _, count in groups)
    even = draw(st.integers(1, 4))
    gpus = draw(st.lists(st.integers(1, 4), min_size=nodes, max_size=nodes)) if draw(st.booleans()) else [even] * nodes
    return Cluster(list(groups), gpus)


def simulated(cluster: Cluster, fold: bool = True, **keys: Any) -> Run:
    """A job that reads, copies and exchanges."""
    layers = [layer(0.01, 0.02, 10**6), layer(0.01, 0.02, 10**5)]
    workload = toy_workload(layers, samples=30 * sum(cluster.gpus), prepared=1e7, **keys)
    return simulate(cluster.hardware, [Job(workload, cluster.placement)], exact=True, fold=fold)


@examples(8, 30, clusters(), st.sampled_from(["synthetic", "pytorch", "dali_cpu"]), st.sampled_from(["Ring", "Tree"]))
def test_folded_mixed_clusters_are_the_unfolded_ones(cluster: Cluster, loader: str, algorithm: str) -> None:
    """Step, epoch and every stall to 1e-9, whichever nodes have flaws and however unevenly the job lies on them."""
    folded, unfolded = (simulated(cluster, fold, loader=loader, prep=0.01, stack={"nccl_algo": algorithm}) for fold in (True, False))
    for one, other in zip(folded.jobs, unfolded.jobs, strict=True):
        for short, long in ((one.first, other.first), (one.warm, other.warm)):
            assert short.time == pytest.approx(long.time, rel=1e-9)
            assert short.step_time == pytest.approx(long.step_time, rel=1e-9)
            assert dict(short.stalls) == pytest.approx(dict(long.stalls), abs=1e-9 * long.step_time)


@examples(15, None, clusters())
def test_only_what_differs_is_split(cluster: Cluster) -> None:
    """By hand: a slot for each (description, GPUs used), and as many classes of ranks however many nodes of each there are."""
    twice, thrice = (
        simulated(Cluster([(flaw, count * times) for flaw, count in cluster.groups], cluster.repeated(times))) for times in (2, 3)
    )
    for outcome, times in ((twice, 2), (thrice, 3)):
        assert len(outcome.cluster) == cluster.kinds
        assert sum(slot.count for slot in outcome.cluster) == times * len(cluster.gpus)
        assert sum(rank.size for rank in outcome.log.ranks) == times * sum(cluster.gpus)
    assert [rank.gpus for rank in twice.log.ranks] == [rank.gpus for rank in thrice.log.ranks]


def test_groups_described_alike_are_one() -> None:
    """Three groups of the same description, each read from its own block, are one slot of six nodes."""
    groups = [("", 2), ("", 3), ("", 1)]
    together, apart = simulated(Cluster([("", 6)], [4] * 6)), simulated(Cluster(groups, [4] * 6))
    assert [slot.count for slot in apart.cluster] == [6]
    assert repr(apart.jobs[0].warm) == repr(together.jobs[0].warm)


def test_a_flaw_between_equal_groups_splits_only_itself() -> None:
    """Two groups alike with a slow node between them: one slot of five, and one of one."""
    outcome = simulated(Cluster([("", 2), ("slow GPU", 1), ("", 3)], [4] * 6))
    assert [slot.count for slot in outcome.cluster] == [5, 1]


class Crowd(NamedTuple):
    """Several jobs on one cluster: by node and GPU, which job has it (-1: none); and the fabric between."""

    groups: list[tuple[str, int]]
    dealt: list[list[int]]
    fabric: dict[str, Any]

    @property
    def hardware(self) -> Hardware:
        made = [{"node": node(flaw), "count": count} for flaw, count in self.groups]
        return Hardware.model_validate({"name": "crowded", "groups": made, "fabric": self.fabric})

    def placement(self, job: int) -> tuple[Placement, ...]:
        owned = [(number, tuple(gpu for gpu, owner in enumerate(owners) if owner == job)) for number, owners in enumerate(self.dealt)]
        return tuple(Placement(number, gpus) for number, gpus in owned if gpus)

    @property
    def jobs(self) -> list[int]:
        return sorted({owner for owners in self.dealt for owner in owners} - {-1})

    @property
    def kinds(self) -> int:
        """Different (kind of node, who has which GPU) among the nodes in use: what must be told apart between nodes."""
        flaws = [flaw for flaw, count in self.groups for _ in range(count)]
        return len({(flaw, tuple(owners)) for flaw, owners in zip(flaws, self.dealt, strict=True) if set(owners) != {-1}})


FABRICS: list[dict[str, Any]] = [
    {},
    {"core_bandwidth": "1.5 GB/s"},
    {"leaf_spine": {"nodes_per_leaf": 2, "uplink_bandwidth": "600 MB/s"}},
    {"leaf_spine": {"nodes_per_leaf": 1, "uplink_bandwidth": "700 MB/s", "pods": {"leaves": 2, "oversubscription": 2}}},
    {"leaf_spine": {"nodes_per_leaf": 2, "uplink_bandwidth": "600 MB/s"}, "rank_order": "scattered"},
    {
        "dragonfly": {
            "nodes_per_router": 1, "routers_per_group": 2, "groups": 4,
            "local_bandwidth": "400 MB/s", "global_bandwidth": "500 MB/s",
        }
    },
]  # fmt: skip


@st.composite
def crowds(draw: st.DrawFn, fabrics: list[dict[str, Any]] = FABRICS) -> Crowd:
    """Two or three jobs on equal nodes, on separate nodes, or on random ones."""
    flaws = draw(st.lists(st.sampled_from(FLAWS), max_size=2, unique=True))
    groups = draw(st.permutations([("", draw(st.integers(1, 3))), *((flaw, draw(st.integers(1, 2))) for flaw in flaws)]))
    nodes, jobs = sum(count for _, count in groups), draw(st.integers(2, 3))
    few = st.lists(st.integers(-1, jobs - 1), min_size=4, max_size=4)
    pool = draw(st.lists(few, min_size=1, max_size=3))  # so that some nodes are dealt alike
    dealt = [list(draw(st.sampled_from(pool))) for _ in range(nodes)]
    for job in range(jobs):
        dealt[job % nodes][job] = job
    return Crowd(list(groups), dealt, draw(st.sampled_from(fabrics)))


def crowded(crowd: Crowd, fold: bool, noise: float | None = None, **keys: Any) -> Run:
    """Jobs of different sizes that read, prepare and exchange, the second a little later."""
    jobs = []
    for job in crowd.jobs:
        layers = [layer(0.01, 0.02 + 0.003 * job, 10**6 * (1 + job)), layer(0.01, 0.02, 10**5)]
        placement = crowd.placement(job)
        workload = toy_workload(layers, samples=12 * sum(len(part.gpus) for part in placement), prepared=1e7, noise=noise, **keys)
        jobs.append(Job(workload, placement, start=0.05 * job))
    return simulate(crowd.hardware, jobs, exact=True, fold=fold)


@examples(8, 30, crowds(), st.sampled_from(["synthetic", "pytorch", "dali_cpu"]), st.sampled_from(["Ring", "Tree"]))
def test_folded_jobs_side_by_side_are_the_unfolded_ones(crowd: Crowd, loader: str, algorithm: str) -> None:
    """Step and every stall of every job to 1e-9, whoever shares which node, NIC, uplink, disk and cores with whom."""
    folded, unfolded = (crowded(crowd, fold, loader=loader, prep=0.01, stack={"nccl_algo": algorithm}) for fold in (True, False))
    assert len(folded.cluster) == crowd.kinds
    for one, other in zip(folded.jobs, unfolded.jobs, strict=True):
        for short, long in ((one.first, other.first), (one.warm, other.warm)):
            assert short.time == pytest.approx(long.time, rel=1e-9)
            assert short.step_time == pytest.approx(long.step_time, rel=1e-9)
            assert dict(short.stalls) == pytest.approx(dict(long.stalls), abs=1e-9 * long.step_time)


SWITCHED: dict[str, dict[str, Any]] = {
    "pods": {"leaf_spine": {"nodes_per_leaf": 2, "oversubscription": 4, "pods": {"leaves": 2, "oversubscription": 4}}},
    "rails": {"leaf_spine": {"nodes_per_leaf": 4, "oversubscription": 4, "rails": True}},
    "scattered": {"leaf_spine": {"nodes_per_leaf": 2, "oversubscription": 4}, "rank_order": "scattered"},
    "torus": {"torus": {"dimensions": [4, 2], "link_bandwidth": "30 GB/s"}},
}


@pytest.mark.parametrize("algorithm", ["Ring", "Tree"])
@pytest.mark.parametrize(
    "gpus",
    [
        pytest.param((8,) * 8, marks=pytest.mark.nightly),
        pytest.param((8, 8, 4, 4, 4, 4), marks=pytest.mark.nightly),
        (8, 4, 8, 4, 8, 4, 8, 4),
        (1, 3, 5, 7, 8, 2, 1, 1),
    ],
)
@pytest.mark.parametrize("fabric", SWITCHED)
def test_folded_rings_turn_where_the_unfolded_do(fabric: str, gpus: tuple[int, ...], algorithm: str) -> None:
    """A step of the catalog's 8 x 8 H100 with 8 NICs each to 1e-9, wherever nodes unlike and switches lie along the rings."""
    hgx = load_hardware("hgx-h100").spec.groups[0].node
    hardware = Hardware.model_validate({"name": "switched", "groups": [{"node": hgx, "count": 8}], "fabric": SWITCHED[fabric]})
    first = 0 if fabric == "torus" else 8 - len(gpus)  # one pod has a leaf less
    placement = tuple(Placement(first + place, tuple(range(count))) for place, count in enumerate(gpus))
    for parameters in (10**5, 10**7):
        workload = toy_workload([layer(0.001, 0.002, parameters)], samples=5 * sum(gpus), stack={"nccl_algo": algorithm})
        one, other = (simulate(hardware, [Job(workload, placement)], exact=True, fold=fold).jobs[0].warm for fold in (True, False))
        assert one.step_time == pytest.approx(other.step_time, rel=1e-9)
        assert dict(one.stalls) == pytest.approx(dict(other.stalls), abs=1e-9 * other.step_time)
