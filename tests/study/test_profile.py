"""Oracle: the runs themselves, one by one; spans sum, so a differential stall is the sum of what changed by cause."""

from __future__ import annotations

import pytest

from sim.analysis import differential
from sim.cluster.storage import read_rate
from sim.events import Cause
from sim.spec.yaml import SpecError
from sim.study.needs import GONE, Needs
from sim.study.profile import Profile, profile
from sim.study.scenario import Scenario, answer


@pytest.fixture(scope="module")
def profiled() -> Profile:
    return profile(Scenario("p3.16xlarge", "resnet18", stack="apex-per-tensor"))


def test_runs_are_those_of_the_procedure(profiled: Profile) -> None:
    synthetic = ("input.loader=synthetic",)
    one = answer(Scenario("p3.16xlarge", "resnet18", synthetic, placement="1", stack="apex-per-tensor")).run.jobs[0]
    steps = profiled.real.jobs[0].warm.steps
    assert profiled.times.one_gpu == pytest.approx(one.warm.step_time * steps, rel=1e-12)
    twin = answer(Scenario("p3.8xlarge", "resnet18", synthetic, nodes=2, stack="apex-per-tensor")).run.jobs[0]
    assert profiled.times.twin == pytest.approx(twin.warm.time, rel=1e-12)
    assert profiled.times.cold > profiled.times.warm > profiled.times.synthetic > profiled.times.one_gpu


def test_what_changed_by_cause_sums_to_the_differential_stall(profiled: Profile) -> None:
    job, synthetic = profiled.real.jobs[0], profiled.synthetic.jobs[0]
    assert sum(profiled.stall_causes["fetch"].values()) == pytest.approx(job.first.step_time - job.warm.step_time, rel=1e-9)
    assert sum(profiled.stall_causes["prep"].values()) == pytest.approx(job.warm.step_time - synthetic.warm.step_time, rel=1e-9)
    steps = job.warm.steps
    assert sum(profiled.stall_causes["interconnect"].values()) * steps == pytest.approx(
        differential.interconnect_stall(profiled.times).time, rel=0.01
    )


def test_the_disk_it_asks_for_removes_the_fetch_stall_and_a_slower_one_does_not(profiled: Profile) -> None:
    wanted = profiled.needs.disk_bandwidth
    assert wanted is not None
    storage = profiled.real.node().storage
    assert storage is not None
    dataset = profiled.real.jobs[0].job.workload.dataset
    more = wanted / read_rate(storage, dataset, burst=False)
    for factor, gone in ((1.02, True), (0.9, False)):
        fast = f"{factor * wanted / 1e6:.3f} MB/s"
        overrides = tuple(
            f"node.storage.{key}={value}"
            for key, value in {
                "bandwidth": fast, "iops": "1000000 /s", "volume.bandwidth": fast, "volume.max_iops": "1000000 /s",
                "volume.baseline_iops": "1000000 /s", "volume.burst_iops": "null",
                "volume.latency": f"{1e6 * storage.volume.latency / more} us",
            }.items()
        )  # fmt: skip
        run = answer(Scenario("p3.16xlarge", "resnet18", overrides, stack="apex-per-tensor")).run.jobs[0]
        assert (run.first.step_time <= GONE * run.warm.step_time) is gone


def test_the_cores_it_asks_for_remove_the_prep_stall(profiled: Profile) -> None:
    cores, node = profiled.needs.cores, profiled.real.node()
    assert cores is not None
    speed = node.host.cpu.speed * cores / node.host.physical_cores
    run, best = (
        answer(Scenario("p3.16xlarge", "resnet18", (f"node.host.cpu.speed={given}",), stack="apex-per-tensor")).run.jobs[0].warm
        for given in (speed, 100.0)
    )
    assert run.step_time <= GONE * best.step_time and best.stalls[Cause.PREP] < 0.001 * best.step_time
    assert cores > node.host.physical_cores


def test_a_run_without_input_needs_nothing() -> None:
    assert profile(Scenario("p3.2xlarge", "resnet18", ("input.loader=synthetic",))).needs == Needs(None, None, None)


def test_a_machine_without_half_has_no_twin_unless_named() -> None:
    assert profile(Scenario("p3.2xlarge", "resnet18")).twin is None
    assert profile(Scenario("p3.16xlarge", "resnet18"), "none").twin is None
    with pytest.raises(SpecError, match="evenly"):
        profile(Scenario("p3.2xlarge", "resnet18"), "p3.2xlarge")


def test_a_cold_epoch_that_waits_for_no_reads_needs_no_disk() -> None:
    """Oracle: the cold step itself; without its burst credits this disk would be too slow."""
    vgg_profile = profile(Scenario("p3.16xlarge", "vgg16"), "none")
    job, storage = vgg_profile.real.jobs[0], vgg_profile.real.node().storage
    assert storage is not None and job.first.step_time <= GONE * job.warm.step_time
    dataset = job.job.workload.dataset
    rate = job.job.ranks * job.job.workload.training.batch * dataset.sample / job.warm.step_time
    assert read_rate(storage, dataset, burst=False) < rate
    assert vgg_profile.needs.disk_bandwidth is None
