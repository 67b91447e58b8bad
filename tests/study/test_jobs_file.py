"""Oracle: closed forms of what a loader shared by jobs must take, and CoorDL's published gains as directions."""

from __future__ import annotations

from pathlib import Path

import pytest

from sim.cluster.build import Placement
from sim.spec.yaml import SpecError
from sim.study.scenario import Scenario, answer, prepare
from sim.training.job import Job
from tests.harness import cluster as joined
from tests.harness import layer, run, toy_node, toy_workload, volume

JOBS = """name: search
coordinated_prep: {coordinated}
jobs:
"""
ONE = '  - {{workload: {{extends: resnet18, training: {{batch: {batch}}}}}, placement: "1"}}\n'


def search(folder: Path, coordinated: bool, batches: list[int]) -> str:
    path = folder / f"search-{coordinated}.yaml"
    path.write_text(JOBS.format(coordinated=str(coordinated).lower()) + "".join(ONE.format(batch=batch) for batch in batches))
    return str(path)


@pytest.mark.parametrize("sharers", [1, 2, 4])
def test_a_shared_sweep_reads_and_prepares_once(sharers: int) -> None:
    """Closed form: four jobs of batches of 4 samples, 1 MB each from a disk of 2 MB/s, or 0.5 s each on two cores, once a team."""
    reading = joined(toy_node(4, disk=volume(2e6)))
    preparing = joined(toy_node(4, disk=volume(1e15), cores=2))
    for machine, prep, sample, expected in ((reading, 0.0, 1e6, 4 * 4 / 2), (preparing, 0.5, 1.0, 4 * 4 * 0.5 / 2)):
        workload = toy_workload([layer(1e-6, 1e-6, 10)], loader="pytorch", batch=4, samples=400, sample=sample, prep=prep)
        jobs = [Job(workload, (Placement(0, (gpu,)),), sharers=sharers) for gpu in range(4)]
        simulated = run(machine, *jobs)
        assert [job.first.step_time for job in simulated.jobs] == pytest.approx([expected / sharers] * 4, rel=0.02)


@pytest.mark.slow
def test_a_search_of_hyperparameters_gains_what_coordl_gained(tmp_path: Path) -> None:
    """Direction: CoorDL speeds hyperparameter search on one server up to 5.7 times (arXiv 2007.06775v1, abstract), here eight jobs."""
    server = ("node.host.memory=64 GiB", "input.num_workers=3")
    times = []
    for coordinated, cache in ((False, "linux"), (True, "never_evict")):
        sets = (server[0], f"node.page_cache.policy={cache}")
        answered = answer(Scenario("p3.16xlarge", search(tmp_path, coordinated, [256] * 8), sets))
        times.append(answered.run.jobs[0].warm.step_time)
    assert 2.0 < times[0] / times[1] < 12.0


def test_jobs_that_share_use_the_same_batches(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"batch 32: with coordinated_prep, jobs use the same batches; write 64, like jobs\.0"):
        prepare(Scenario("p3.16xlarge", search(tmp_path, True, [64, 64, 32])))
    assert [job.sharers for job in prepare(Scenario("p3.16xlarge", search(tmp_path, True, [64, 64]))).jobs] == [2, 2]
    assert [job.sharers for job in prepare(Scenario("p3.16xlarge", search(tmp_path, False, [64, 32]))).jobs] == [1, 1]
