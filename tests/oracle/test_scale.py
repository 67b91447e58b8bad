"""Do large and long runs cost no more work, and say the same? Oracles: every step simulated, closed forms, counted work."""

from __future__ import annotations

import pytest

from sim.events import Cause
from sim.simulate import Run, simulate
from sim.study.scenario import Scenario, answer
from sim.training.job import Job
from sim.training.spread import expected_maximum
from tests.harness import layer, machine, place, toy_workload

FIFTIETH = f"dataset.samples={1281167 // 50}"
"""Of ImageNet."""
ENDING = ("dataset.files=per_sample", "node.storage.volume.size=33 GiB", "node.storage.volume.burst_credits=5000")
"""A volume of 100 I/Os per second that bursts for a few seconds."""


@pytest.mark.parametrize(
    ("workload", "overrides"),
    [
        ("alexnet", ()),
        ("resnet50", ()),
        ("alexnet", ENDING),
    ],
)
def test_an_epoch_of_imagenet_is_fast_forwarded(workload: str, overrides: tuple[str, ...]) -> None:
    """Oracle: every step of a fiftieth of ImageNet on p2.xlarge, cold and warm; in the last case burst credits run out on the way."""
    short, every_step = (
        answer(Scenario("p2.xlarge", workload, (FIFTIETH, *overrides), exact=exact)).run.jobs[0] for exact in (False, True)
    )
    for one, other in ((short.first, every_step.first), (short.warm, every_step.warm)):
        assert one.exact
        assert one.time == pytest.approx(other.time, rel=1e-3)
        assert one.step_time == pytest.approx(other.step_time, rel=1e-3)
        assert dict(one.stalls) == pytest.approx(dict(other.stalls), abs=1e-3 * other.step_time)
    assert (short.first.stalls[Cause.FETCH] > 1) == (overrides == ENDING)


def work_of(nodes: int) -> tuple[int, ...]:
    """How much one run of ten steps writes down."""
    overrides = (f"dataset.samples={10 * 80 * 8 * nodes}", "training.stack.nccl_algo=Tree")
    run = answer(Scenario("p4d.24xlarge", "resnet50", overrides, nodes=nodes, exact=True)).run
    log = run.log
    return len(log.ranks), len(log.waits), len(log.steps[0]), len(run.cluster), len({work.stream for work in log.work})


def test_a_homogeneous_run_does_as_much_work_on_16384_gpus_as_on_16() -> None:
    """Counted, not timed: classes of ranks, waits and steps; only the ring of NCCL's trees grows, by its logarithm, in arithmetic."""
    (few_ranks, few_waits, *few), (many_ranks, many_waits, *many) = work_of(2), work_of(2048)
    assert (many_ranks, many) == (few_ranks, few)
    assert many_waits <= few_waits  # a wait that a longer exchange hides is not written down


def drawn(gpus: int, nodes: int, persistent: float, jitter: float, draw: bool, fold: bool = True, steps: int = 200) -> Run:
    """A job of 1 s of compute and next to no communication."""
    workload = toy_workload((layer(0.4, 0.6, 10),), samples=steps * gpus * nodes)
    noise = workload.training.noise.model_copy(update={"draw": draw, "compute_cv": jitter, "persistent_cv": persistent})
    hardware = machine(gpus, nodes, nvlink=1e15, nic=1e15, pcie=1e15)
    jobs = [Job(workload.with_training(noise=noise), place(hardware))]
    return simulate(hardware, jobs, exact=draw, cold=False, fold=fold, seed=11)


def test_waiting_for_the_slowest_of_a_thousand_ranks_is_a_stall_of_its_own() -> None:
    """Closed form: the expected maximum of 1 000 normal variables, 3.24 deviations, of 1 s of compute; two classes stand for all."""
    mean = drawn(8, 125, 0.0, 0.02, draw=False)
    expected = expected_maximum(1000) * 0.02
    assert expected == pytest.approx(0.0648, abs=1e-4)
    assert mean.jobs[0].warm.stalls[Cause.STRAGGLER] == pytest.approx(expected, rel=1e-6)
    assert {blame.resource for blame in mean.stalls if blame.cause is Cause.STRAGGLER} == {"slowest rank"}
    assert [rank.size for rank in mean.log.ranks] == [125, 875]  # on each node one is next to the NIC
    drawn_steps = drawn(8, 125, 0.0, 0.02, draw=True)
    assert drawn_steps.jobs[0].warm.stalls[Cause.STRAGGLER] == pytest.approx(expected, rel=0.05)  # 200 draws of deviation 0.35 of 3.24
    assert len(drawn_steps.log.ranks) == 2


def test_a_thousand_distinct_ranks_agree_with_the_class_that_stands_for_them() -> None:
    """1 024 ranks that differ, each simulated by itself: the step is that of one draw of the maximum, within the noise of three steps."""
    distinct = drawn(8, 128, 0.02, 0.02, draw=True, fold=False, steps=3)
    assert len(distinct.log.ranks) == 1024
    expected = 1 + expected_maximum(1024) * 0.02 * 2**0.5
    assert distinct.jobs[0].warm.step_time == pytest.approx(expected, abs=4 * 0.35 * 0.03)
