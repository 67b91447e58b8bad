"""Which work holds up a step? Oracles: logs written by hand, the length of the window, and runs with 1% more of a resource."""

from __future__ import annotations

from collections import defaultdict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim.analysis.bottleneck import RESOURCES
from sim.analysis.critical_path import critical_path
from sim.analysis.stalls import Window
from sim.causes import Resource
from sim.events import Cause, EventLog, LoggedRank, WaitSpan, WorkSpan
from sim.simulate import simulate
from sim.spec.hardware import Hardware
from sim.study.faster import faster, resources_behind
from sim.study.scenario import Scenario, prepare
from sim.training.job import Job
from tests.harness import layer, machine, run, toy_workload, volume
from tests.study.scenes import scene

PERCENT = 1.01
LITTLE = 1.001
"""For a machine where 1% is already past the point at which another path is as long."""


def log(*entries: WaitSpan | WorkSpan, ranks: int = 1) -> EventLog:
    event_log = EventLog(lambda: 0.0, ranks=[LoggedRank(0, number, 1, "n0", (number,)) for number in range(ranks)])
    event_log.waits = [entry for entry in entries if isinstance(entry, WaitSpan)]
    event_log.work = [entry for entry in entries if isinstance(entry, WorkSpan)]
    return event_log


def path(event_log: EventLog, start: float, end: float, steps: int = 1) -> dict[str, float]:
    return {row.resource: row.seconds for row in critical_path(event_log, [Window(start, end, steps)])}


def wait(cause: Cause, t0: float, t1: float, resource: str = "", ident: int = -1, rank: int = 0) -> WaitSpan:
    return WaitSpan(rank, cause, resource, ident, t0, t1)


def work(stream: str, cause: Cause, t0: float, t1: float, resource: str = "", ident: int = -1, rank: int = 0) -> WorkSpan:
    return WorkSpan(rank, stream, cause.value, cause, resource, ident, 0.0, t0, t1)


def test_a_collective_beside_compute_is_on_the_path_only_from_its_bucket_on() -> None:
    """Backward of bucket 0 ends at 2 s, the slowest rank is 0.5 s late, NVLink takes it to 6 s; compute from 2 to 4 s is hidden."""
    event_log = log(
        wait(Cause.COPY, 0, 1, "host to device"),
        wait(Cause.COMPUTE, 1, 2, "gpu"),
        wait(Cause.COMPUTE, 2, 4, "gpu"),
        wait(Cause.GRADIENT, 4, 6),
        work("gpu", Cause.COMPUTE, 1, 2, "gpu", ident=0),
        work("gpu", Cause.COMPUTE, 2, 4, "gpu", ident=1),
        work("comm", Cause.INTERCONNECT, 2.5, 6, "NVLink", ident=0),
    )
    assert path(event_log, 0, 6) == {"NVLink": 3.5, "gpu": 1, "host to device": 1, "slowest rank": 0.5}


def test_the_slower_of_two_ranks_is_followed() -> None:
    """Rank 1 comes to the collective at 3 s, rank 0 at 1 s."""
    event_log = log(
        wait(Cause.COMPUTE, 0, 1, "fast"),
        wait(Cause.GRADIENT, 1, 4),
        wait(Cause.COMPUTE, 0, 3, "slow", rank=1),
        wait(Cause.GRADIENT, 3, 4, rank=1),
        work("comm", Cause.NETWORK, 3, 4, "NIC"),
        ranks=2,
    )
    assert path(event_log, 0, 4) == {"slow": 3, "NIC": 1}


def test_a_loader_that_bounds_the_step_hides_compute() -> None:
    """One worker reads 1 s and prepares 2 s, batch after batch: the rank's 0.5 s of compute run at the same time, at every turn."""
    entries: list[WaitSpan | WorkSpan] = []
    for batch in range(3):
        t = 3.0 * batch
        entries += [
            work("worker 0", Cause.FETCH, t, t + 1, "disk", ident=batch),
            work("worker 0", Cause.PREP, t + 1, t + 3, "cpu cores", ident=batch),
            wait(Cause.INPUT, t + 0.5 * (batch > 0), t + 3, ident=batch),
            wait(Cause.COMPUTE, t + 3, t + 3.5, "gpu"),
        ]
    assert path(log(*entries), 3.5, 9.5, 2) == {"cpu cores": pytest.approx(2), "disk": pytest.approx(1)}


def test_what_meets_a_full_disk_waits_for_who_left_it_last() -> None:
    """Two workers read in turn, 1 s a batch, and prepare 0.5 s each while the other reads: preparing is hidden."""
    entries: list[WaitSpan | WorkSpan] = []
    for batch in range(6):
        t = float(batch)
        entries += [
            work(f"worker {batch % 2}", Cause.FETCH, max(0.0, t - 0.5), t + 1, "disk (full)", ident=batch),
            work(f"worker {batch % 2}", Cause.PREP, t + 1, t + 1.5, "cpu cores", ident=batch),
            wait(Cause.INPUT, max(0.0, t + 0.75), t + 1.5, ident=batch),
            wait(Cause.COMPUTE, t + 1.5, t + 1.75, "gpu"),
        ]
    assert path(log(*entries), 3.75, 5.75, 2) == {"disk": pytest.approx(1)}


@settings(max_examples=25, deadline=None)
@given(
    loader=st.sampled_from(["synthetic", "pytorch", "dali_cpu", "dali_gpu"]),
    gpus=st.integers(1, 3),
    nodes=st.integers(1, 2),
    prep=st.floats(0.01, 2.0),
    disk=st.floats(3e5, 1e8),
    gradients=st.integers(1_000, 200_000_000),
    workers=st.integers(0, 3),
    jitter=st.floats(0.0, 0.2),
)
def test_the_path_is_as_long_as_its_window(
    loader: str, gpus: int, nodes: int, prep: float, disk: float, gradients: int, workers: int, jitter: float
) -> None:
    """Conservation: whatever bounds a job, the seconds on the path sum to a step of the window."""
    inputs = {"num_workers": workers} if loader == "pytorch" else {}
    workload = toy_workload(
        (layer(0.1, 0.1, gradients // 3 + 1), layer(0.05, 0.1, gradients)),
        loader=loader, prep=prep, prepared=1e7, gpu_prep=0.1 if loader == "dali_gpu" else None, inputs=inputs,
    )  # fmt: skip
    hardware = machine(gpus, nodes, disk=volume(bandwidth=disk), cores=4, compute_cv=jitter)
    epoch = run(hardware, workload, cold=False).jobs[0].warm
    window = max(epoch.windows, key=lambda window: window.steps * window.repeats)
    rows = critical_path(epoch.log, epoch.windows)
    assert all(row.seconds > 0 for row in rows)
    assert sum(row.seconds for row in rows) == pytest.approx((window.end - window.start) / window.steps, rel=1e-6)


def prices(hardware: Hardware, job: Job, more: float = PERCENT) -> dict[Resource, tuple[float, float]]:
    """Return by resource what 1% more saves of a step, in per cent: by the path of one run, and by runs with so many times as much."""
    warm = simulate(hardware, [job], cold=False).jobs[0].warm
    seconds: dict[Resource, float] = defaultdict(float)
    for row in critical_path(warm.log, warm.windows):
        for resource in resources_behind(row.cause, row.resource, job.workload.input.loader):
            seconds[resource] += row.seconds
    by_resource = {}
    for resource in RESOURCES:
        changed, jobs = faster(hardware, [job], [resource], more)
        saved = warm.step_time - simulate(changed, jobs, cold=False).jobs[0].warm.step_time
        slope = saved * more / (more - 1)
        by_resource[resource] = (100 * seconds[resource] / 101 / warm.step_time, 100 * slope / 101 / warm.step_time)
    return by_resource


def agree(by_resource: dict[Resource, tuple[float, float]]) -> None:
    """The path's price is that of the runs within 1%, or within 0.01% of the step: a hundredth of what bounds all of it."""
    for resource, (by_path, by_run) in by_resource.items():
        assert by_path == pytest.approx(by_run, rel=0.01, abs=0.01), resource


@pytest.mark.parametrize("name", ["disk", "cpu", "decode", "copy", "nvlink", "pcie", "network", "spread"])
def test_one_slow_resource_has_the_price_that_runs_give(name: Resource) -> None:
    hardware, workload = scene(name)
    by_resource = prices(hardware, run(hardware, workload).jobs[0].job)
    agree(by_resource)
    assert max(by_resource[name]) > 0.3  # per cent of the step, of 0.99 that are due where one bounds all


@pytest.mark.parametrize(
    ("machine_name", "workload", "settings_", "nodes", "bound"),
    [
        ("p3.16xlarge", "vgg16", (), 1, "gpu"),
        ("p3.16xlarge", "vgg16", ("node.nic.bandwidth=1 Gbps",), 2, "network"),
        ("p3.8xlarge", "alexnet", (), 1, "cpu"),
        ("p3.8xlarge", "alexnet", ("node.host.memory=16 GiB",), 1, "cpu"),
        ("p2.16xlarge", "alexnet", ("node.host.memory=8 GiB",), 1, "disk"),
        ("p3.2xlarge", "alexnet", ("input.loader=synthetic",), 1, "copy"),
    ],
)
def test_machines_of_the_catalog_have_the_price_that_runs_give(
    machine_name: str, workload: str, settings_: tuple[str, ...], nodes: int, bound: Resource
) -> None:
    question = prepare(Scenario(machine_name, workload, settings_, nodes=nodes))
    by_resource = prices(question.hardware, question.jobs[0].averaged)
    agree(by_resource)
    assert by_resource[bound][0] > 0.1
    if bound == "cpu":
        by_path, by_run = by_resource["gpu"]
        assert by_path == 0.0  # hidden
        assert by_run == pytest.approx(0.0, abs=1e-6)


def test_a_gpu_that_decodes_beside_training_has_the_price_that_runs_give_up_to_the_edge() -> None:
    """The stated limit: half of the shared time is the other's, and 1% more compute moves the decoding that runs at the same time."""
    question = prepare(Scenario("p3.8xlarge", "resnet18", ("input.loader=dali_gpu",)))
    by_resource = prices(question.hardware, question.jobs[0].averaged, LITTLE)
    agree(by_resource)
    assert by_resource["decode"][0] > 0.1
    edge = prepare(Scenario("p3.8xlarge", "mobilenet_v2", ("input.loader=dali_gpu", "training.batch=16")))
    by_path, by_run = prices(edge.hardware, edge.jobs[0].averaged)["gpu"]
    assert by_run < 0.9 * by_path


def test_launches_and_compute_that_they_bound_share_what_runs_give_to_both() -> None:
    """The stated limit: a launch of 3 s over 0.3 s of compute is logged as 2.7 s; together both are worth what the launches are."""
    hardware, workload = scene("launch")
    by_resource = prices(hardware, run(hardware, workload).jobs[0].job)
    assert by_resource["launch"] == (pytest.approx(0.9 * 0.990099, rel=1e-4), pytest.approx(0.990099, rel=1e-4))
    assert by_resource["launch"][0] + by_resource["gpu"][0] == pytest.approx(by_resource["launch"][1] + by_resource["gpu"][1], rel=1e-6)
