"""Oracle: by hand, GPU by GPU; and closed forms of what jobs side by side take, through a file of jobs as users write it."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.cluster.build import Placement
from sim.spec.hardware import Hardware
from sim.spec.workload import JobSpec
from sim.spec.yaml import SpecError
from sim.study.job_places import Places, nodes_of
from sim.study.scenario import Scenario, answer, prepare
from tests.harness import cluster, toy_node, toy_workload


def job(**keys: object) -> JobSpec:
    return JobSpec.model_validate({"workload": toy_workload()} | keys)


def taken(hardware: Hardware, *jobs: JobSpec) -> list[list[tuple[int, list[int]]]]:
    """Where each job comes to lie: (node, GPUs)."""
    places = Places(hardware)
    return [[(part.node, list(part.gpus)) for part in places.take(number, entry)] for number, entry in enumerate(jobs)]


FOUR = cluster(toy_node(4), count=4)


def test_jobs_lie_where_they_say() -> None:
    assert taken(FOUR, job()) == [[(node, [0, 1, 2, 3]) for node in range(4)]]
    assert taken(FOUR, job(nodes="1..2")) == [[(1, [0, 1, 2, 3]), (2, [0, 1, 2, 3])]]
    assert taken(FOUR, job(nodes=[3, 0], gpus=[2, 1])) == [[(0, [2, 1]), (3, [2, 1])]]
    assert taken(FOUR, job(nodes="0+2..3", placement="1+2+3")) == [[(0, [0]), (2, [0, 1]), (3, [0, 1, 2])]]
    assert taken(FOUR, job(nodes=[1], placement="2"), job(nodes="0..3", placement="2")) == [
        [(1, [0, 1])],
        [(0, [0, 1]), (1, [2, 3]), (2, [0, 1]), (3, [0, 1])],
    ]
    assert taken(FOUR, job(nodes=[0, 2], placement=3)) == [[(0, [0, 1, 2]), (2, [0, 1, 2])]]


def test_without_nodes_a_placement_counts_from_the_first() -> None:
    first = [(0, [0, 1]), (1, [0, 1])]
    assert taken(FOUR, job(placement="2+2"), job(placement="0+1+0+4"), job(gpus=[3])) == [first, [(1, [2]), (3, [0, 1, 2, 3])], [(0, [3])]]


@pytest.mark.parametrize(
    ("jobs", "says"),
    [
        ([{"nodes": 4}], "nodes: there is no node 4; toys has nodes 0 to 3; --nodes 5 adds identical ones"),
        ([{"nodes": "2+1..3"}], "nodes: node 2 appears twice; name each node once"),
        ([{"nodes": "0..1", "placement": "1+1+1"}], "placement 1+1+1: names 3 nodes, but nodes names 2"),
        ([{"placement": "1+1+1+1+1"}], "names 5 nodes, but there are 4; --nodes 5 adds identical ones"),
        ([{"placement": "0+0"}], "placement 0+0: a job needs a GPU; write 1 or more for at least one node"),
        ([{"placement": "1+-1"}], "placement 1+-1: cannot take -1 GPUs of node 1, which has GPUs 0 to 3"),
        ([{"placement": "5"}], "placement 5: cannot take 5 GPUs of node 0, which has GPUs 0 to 3"),
        ([{"nodes": 1, "gpus": [4]}], "there is no GPU 4 on node 1; it has GPUs 0 to 3"),
        ([{"gpus": [1, 1]}], "gpus: GPU 1 appears twice; name each GPU once"),
        (
            [{"nodes": "0..2"}, {"nodes": 2, "gpus": [3]}],
            "GPU 3 of node 2 belongs to an earlier job, jobs.0; give each job its own 'nodes'",
        ),
        ([{"nodes": "0..2"}, {"nodes": "2..3", "placement": "1"}], "placement 1 needs 1 free GPU on node 2, which has 0"),
    ],
)
def test_a_place_that_cannot_be_is_refused_in_a_sentence(jobs: list[dict[str, object]], says: str) -> None:
    with pytest.raises(SpecError) as error:
        taken(FOUR, *(job(**keys) for keys in jobs))
    assert says in str(error.value)


@pytest.mark.parametrize(
    ("nodes", "says"),
    [
        ("3..1", "3..1 is decreasing; write 1..3"),
        ("a", "'a' is neither a number of 0 or more"),
        ([], "is empty"),
        (-1, "is neither a number"),
        (True, "is neither"),
    ],
)
def test_numbers_that_are_none_are_refused(nodes: object, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        job(nodes=nodes)


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3), st.integers(1, 4)), min_size=1, max_size=4))
def test_no_gpu_has_two_jobs(wanted: list[tuple[int, int, int]]) -> None:
    """Conservation: what is given away is there, once."""
    places, seen = Places(FOUR), list[tuple[int, int]]()
    for number, (one, other, count) in enumerate(wanted):
        try:
            placement = places.take(number, job(nodes=f"{min(one, other)}..{max(one, other)}", placement=str(count)))
        except SpecError as error:
            assert "free" in str(error)
            continue
        assert [len(part.gpus) for part in placement] == [count] * len(placement)
        seen += [(part.node, gpu) for part in placement for gpu in part.gpus]
    assert len(seen) == len(set(seen))
    assert all(gpu in range(4) and node in range(4) for node, gpu in seen)


def test_only_nodes_of_the_job_judge_it() -> None:
    """By hand: of two groups of two nodes, a job on nodes 1 and 2 has one of each; on node 3 none of the first."""
    mixed = cluster(toy_node(4), toy_node(2), count=2)
    for nodes, counts in (((1, 2), [1, 1]), ((3,), [0, 1]), ((0, 1, 2, 3), [2, 2])):
        there = nodes_of(mixed, [Placement(node, (0,)) for node in nodes])
        assert [group.count for group in there.groups] == counts


MIXED = """name: mixed
groups:
  - {node: {extends: p3.2xlarge}, count: 1}
  - {node: {extends: p4d.24xlarge}, count: 1}
"""
BIG = """jobs:
  - {workload: {extends: vgg16, training: {batch: 160}}, nodes: NODES, gpus: [0]}
"""


def test_memory_is_that_of_the_nodes_a_job_has(tmp_path: Path) -> None:
    """By hand: 160 images of VGG-16 need more than the 16 GiB of a V100, and less than the 40 of an A100."""
    (tmp_path / "mixed.yaml").write_text(MIXED)
    for node, fits in (("1", True), ("0", False)):
        path = tmp_path / f"{node}.yaml"
        path.write_text(BIG.replace("NODES", node))
        scenario = Scenario(str(tmp_path / "mixed.yaml"), str(path))
        if fits:
            assert prepare(scenario).jobs[0].placement == (Placement(1, (0,)),)
        else:
            with pytest.raises(SpecError, match="batch 160 per GPU needs"):
                prepare(scenario)


PAIR = """jobs:
  - {workload: {extends: resnet18, input: {loader: synthetic}}, nodes: 0..1, placement: "4"}
  - {workload: {extends: resnet18, input: {loader: synthetic}}, nodes: OTHER, placement: "4"}
"""


def test_side_by_side_and_one_upon_the_other(tmp_path: Path) -> None:
    """Closed form: on nodes of its own a job is as fast as alone, on common ones it exchanges over half a NIC."""
    times = {}
    for other in ("2..3", "0..1"):
        path = tmp_path / "pair.yaml"
        path.write_text(PAIR.replace("OTHER", other))
        run = answer(Scenario("p3.16xlarge", str(path), ("node.nic.bandwidth=1 Gbps",), nodes=4)).run
        times[other] = [job.warm.step_time for job in run.jobs]
    alone = answer(Scenario("p3.16xlarge", "resnet18", ("node.nic.bandwidth=1 Gbps", "input.loader=synthetic"), placement="4+4")).run
    assert times["2..3"] == pytest.approx([alone.jobs[0].warm.step_time] * 2, rel=1e-9)
    exchanged = alone.jobs[0].warm.step_time - alone.jobs[0].warm.stalls["compute"]
    assert min(times["0..1"]) > alone.jobs[0].warm.step_time + 0.5 * exchanged
