"""Oracle: closed forms; a machine on which a worker prepares 1/c samples/s and a GPU takes g, simulated."""

from __future__ import annotations

import math
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.report.share import share_document, share_text
from sim.spec.yaml import SpecError
from sim.study.share import LoaderHost, Need, course, divide_evenly, divide_greedily, divide_proportionally, share

needs_of = st.lists(st.builds(Need, st.floats(10, 1000), st.floats(10, 200)), min_size=1, max_size=3)


def divided(policy, workers, gpus, needs):
    """Workers of each GPU where all jobs have so many GPUs each on one host."""
    given = policy([LoaderHost(workers, dict(enumerate(gpus)))], dict(enumerate(needs)))
    return [given[job] for job in range(len(needs))]


def test_policies_divide_as_they_say():
    """Closed form: 24 workers, 6 GPUs; a GPU of the first needs 2 workers, one of the second 10."""
    gpus, needs = [2, 4], [Need(100.0, 50.0), Need(1000.0, 100.0)]
    assert divided(divide_evenly, 24, gpus, needs) == [6, 3]
    assert divided(divide_proportionally, 24, gpus, needs) == [4, 4]
    assert divided(divide_greedily, 24, gpus, needs) == [2, 5]
    assert divided(divide_greedily, 1000, gpus, needs) == [2, 10]


def test_a_job_on_several_hosts_has_what_the_least_gives():
    """Closed form: job 0 has two GPUs on each of two hosts, beside job 1 (two GPUs) on one, beside nobody on the other."""
    hosts, needs = [LoaderHost(12, {0: 2, 1: 2}), LoaderHost(30, {0: 2})], {0: Need(1000.0, 100.0), 1: Need(200.0, 100.0)}
    assert divide_evenly(hosts, needs) == divide_proportionally(hosts, needs) == {0: 3, 1: 3}
    assert divide_greedily(hosts, needs) == {0: 4, 1: 2}  # job 1 has enough at 2, and 12 - 4 are left for two GPUs of job 0
    assert divide_evenly(hosts, {0: needs[0]}) == {0: 6}  # while job 1 does not run


def test_jobs_alike_get_as_many_by_need():
    """Closed form: two jobs of four GPUs that could use ten workers each share sixteen evenly, three of two GPUs as far as it goes."""
    need = Need(1000.0, 100.0)
    assert divided(divide_greedily, 16, [4, 4], [need] * 2) == [2, 2]
    assert sorted(divided(divide_greedily, 16, [2, 2, 2], [need] * 3)) == [2, 3, 3]


def test_jobs_on_other_hosts_do_not_count():
    hosts = [LoaderHost(12, {0: 2}), LoaderHost(12, {1: 4})]
    needs = {0: Need(1000.0, 100.0), 1: Need(1000.0, 100.0)}
    for policy in (divide_evenly, divide_proportionally, divide_greedily):
        assert policy(hosts, needs) == {0: 6, 1: 3}


@given(needs_of, st.integers(0, 20))
def test_greedy_keeps_the_most_gpus_busy_where_jobs_are_alike_in_size(needs, spare):
    """Oracle: every division tried; gains never grow with workers, so the greedy one is the best of jobs with one GPU."""
    workers = len(needs) + spare
    best = max(
        sum(need.busy(given) for need, given in zip(needs, tried, strict=True))
        for tried in product(range(1, workers + 1), repeat=len(needs))
        if sum(tried) <= workers
    )
    division = divided(divide_greedily, workers, [1] * len(needs), needs)
    assert sum(division) <= workers
    assert sum(need.busy(given) for need, given in zip(needs, division, strict=True)) == pytest.approx(best)


def test_rates_change_when_a_job_comes_or_goes():
    """Closed form: 10 samples/s shared by those that run; the second comes at 5 s, the first ends at 15 s, the second at 20 s."""
    stretches = course([0.0, 5.0], [100.0, 100.0], lambda active: dict.fromkeys(active, 10.0 / len(active)))
    assert [(stretch.start, stretch.end) for stretch in stretches] == [(0.0, 5.0), (5.0, 15.0), (15.0, 20.0)]
    assert math.isclose(sum((stretch.end - stretch.start) * sum(stretch.rates.values()) for stretch in stretches), 200.0)


def test_nobody_runs_in_between():
    stretches = course([3.0, 50.0], [10.0, 10.0], lambda active: dict.fromkeys(active, 10.0))
    assert [(stretch.start, stretch.end) for stretch in stretches] == [(3.0, 4.0), (50.0, 51.0)]


MIX = """name: mix
jobs:
  - {workload: shufflenet_v2_x0_5, placement: "4", epochs: 0.5}
  - {workload: vgg16, placement: "4", epochs: 0.1, start: 30 s}
"""


@pytest.mark.slow
def test_dividing_by_need_beats_an_even_division(tmp_path):
    """Direction: A-Dloader's abstract has throughput +28.9% and makespan -10% against even allocation for its own mix of jobs."""
    (tmp_path / "mix.yaml").write_text(MIX)
    shared = share("p3.16xlarge", str(tmp_path / "mix.yaml"), ["greedy"])
    document = share_document(shared)
    first, by_need = document["policies"]
    assert first["throughput_gain"] == first["makespan_gain"] == 0
    assert by_need["throughput_gain"] > 0.1
    assert by_need["makespan_gain"] > 0.1
    assert all(job["throughput_gain"] > -0.02 for job in by_need["jobs"])
    assert "compared with an even division" in share_text(document)


SIDE = """name: side
jobs:
  - {workload: {extends: shufflenet_v2_x0_5, dataset: {samples: 8192}}, nodes: 0..1, gpus: [0, 1]}
  - {workload: {extends: shufflenet_v2_x0_5, dataset: {samples: 8192}}, nodes: 1, gpus: [2, 3], epochs: 0.5}
  - {workload: {extends: shufflenet_v2_x0_5, dataset: {samples: 8192}}, nodes: 2, gpus: [0]}
"""


def test_jobs_side_by_side_divide_only_common_nodes(tmp_path):
    """Closed form: a node's workers are divided among its own jobs; a job on two nodes is limited by its share of the fuller one."""
    (tmp_path / "side.yaml").write_text(SIDE)
    shared = share("p3.8xlarge", str(tmp_path / "side.yaml"), ["even"], nodes=4)
    cores = shared.cores[0]
    [even_division] = shared.outcomes
    assert shared.cores == (cores, cores)
    assert even_division.workers == (cores // 4, cores // 4, cores)
    assert shared.hardware == "p3.8xlarge, 3 nodes"
    first, second, _ = even_division.throughput
    assert first == pytest.approx(2 * second, rel=0.01)  # as many workers a GPU, twice the GPUs
    (tmp_path / "two.yaml").write_text("\n".join(SIDE.splitlines()[:4]) + "\n")  # without the third
    assert share("p3.8xlarge", str(tmp_path / "two.yaml"), ["even"], nodes=4).outcomes[0].throughput == pytest.approx(
        (first, second), rel=0.01
    )


@pytest.mark.parametrize(
    ("jobs", "policies", "workers", "says"),
    [
        ("vgg16", ["even"], None, "lists no jobs"),
        ("resnet18-and-vgg16", ["fair"], None, "write one of even, proportional, greedy"),
        ("resnet18-and-vgg16", ["even"], 7, "each of a node's 8 GPUs needs a worker"),
    ],
)
def test_what_cannot_be_divided_is_said(jobs, policies, workers, says):
    with pytest.raises(SpecError, match=says):
        share("p3.16xlarge", jobs, policies, workers=workers)
