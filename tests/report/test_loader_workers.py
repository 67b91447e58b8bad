"""When are few loader workers named? Oracle: toy nodes whose workers and cores are counted by hand."""

from __future__ import annotations

import pytest

from sim.report.document import run_document
from sim.report.loader_workers import worker_notes
from sim.report.verdict import verdict
from sim.simulate import Run
from sim.study.bottleneck import bottlenecks
from sim.study.loader_workers import LoaderWorkers, enough_workers
from sim.study.scenario import Scenario, answer
from tests.harness import machine, run, toy_workload, volume


def fed(cores: int, gpus: int = 1, workers: int = 4, loader: str = "pytorch") -> Run:
    """A batch takes 4 s to prepare and 0.3 s to compute: 14 workers are enough."""
    inputs = {"num_workers": workers, "pin_memory": False} if loader == "pytorch" else {"num_threads": workers}
    workload = toy_workload(prep=4.0, loader=loader, inputs=inputs)
    return run(machine(gpus, cores=cores, memory=1e15, disk=volume(1e12)), workload)


@pytest.mark.parametrize(
    ("cores", "gpus", "rate"),
    [
        (32, 1, " Cores are idle: --set input.num_workers=14 gives 3.33 samples/s."),  # as many as the GPU needs
        (8, 1, " Cores are idle: --set input.num_workers=8 gives 2 samples/s."),  # as many as there are cores
        (8, 2, None),  # all are used
    ],
)
def test_more_workers_are_named_with_their_rate(cores: int, gpus: int, rate: str | None) -> None:
    simulated = fed(cores, gpus)
    [bottleneck] = bottlenecks(simulated)
    text, document = verdict(simulated, 0, bottleneck), run_document(simulated, {})
    assert text.startswith("CPU prep: ") and text.endswith(rate or "of the step.")
    assumed = f"4 loader workers per GPU, of {cores // gpus} hardware threads per GPU (--set input.num_workers=...)"
    assert (assumed in document["assumptions"]) is (rate is not None)
    expected = {"option": "input.num_workers", "per_gpu": 4, "hardware_threads_per_gpu": cores // gpus}
    assert document.get("loader_workers") == (expected if rate else None)


def test_what_the_verdict_promises_is_what_a_run_gives() -> None:
    [bottleneck] = bottlenecks(fed(8))
    assert bottleneck.more_workers == (8, pytest.approx(fed(8, workers=8).jobs[0].warm.step_time, rel=1e-9))


def test_workers_that_somebody_chose_are_not_assumed() -> None:
    """Nor are those that feed the GPU."""
    for workers in (5, 16):
        assert not [text for text in run_document(fed(32, workers=workers), {})["assumptions"] if "workers" in text]


def test_dali_has_threads() -> None:
    document = run_document(fed(8, workers=3, loader="dali_cpu"), {})
    assert "3 DALI threads per GPU, of 8 hardware threads per GPU (--set input.num_threads=...)" in document["assumptions"]


def test_the_training_process_alone_needs_workers() -> None:
    simulated = fed(32, workers=0)
    [bottleneck] = bottlenecks(simulated)
    assert verdict(simulated, 0, bottleneck).startswith("CPU prep: the training processes themselves deliver ")
    assert bottleneck.more_workers is not None and bottleneck.more_workers[0] == enough_workers(
        LoaderWorkers("input.num_workers", 0, 32), bottleneck.step_time / bottleneck.freed_times["cpu"]
    )


def test_a_table_notes_how_many_machines_wait() -> None:
    """By hand: two wait for preparation and have idle cores; of the third, the network is the larger stall; the fourth is fed."""
    few = {"option": "input.num_workers", "per_gpu": 4, "hardware_threads_per_gpu": 8}
    many = few | {"hardware_threads_per_gpu": 24}
    rows = [
        {"hardware": "a", "stalls_s": {"compute": 9.0, "prep": 2.0, "network": 1.0}, "loader_workers": few},
        {"hardware": "b", "stalls_s": {"compute": 0.5, "prep": 2.0, "network": 1.0}, "loader_workers": many},
        {"hardware": "c", "stalls_s": {"compute": 0.5, "prep": 2.0, "network": 3.0}, "loader_workers": many},
        {"hardware": "d", "stalls_s": {"compute": 0.5, "prep": 2.0, "network": 1.0}},
    ]
    assert worker_notes(rows) == [
        "2 machines wait for 4 loader workers per GPU but have 8 to 24 hardware threads per GPU; --set input.num_workers=8 uses as many as "
        "all of them have"
    ]
    assert worker_notes(rows[:1]) == [
        "1 machine waits for 4 loader workers per GPU but has 8 hardware threads per GPU; --set input.num_workers=8 uses them"
    ]
    assert worker_notes(rows[2:]) == []


def test_workers_that_wait_for_their_own_reads_are_as_many_as_there_are_threads() -> None:
    """Seven would use the cores; but reads of a worker take as long with more of them, so twelve feed the GPU a fifth faster."""

    def waiting(workers: int) -> Run:
        return answer(Scenario("a2-highgpu-1g", "resnet18", (f"input.num_workers={workers}", "node.host.memory=40 GB"))).run

    [bottleneck] = bottlenecks(waiting(1))
    seven, twelve = (waiting(count).jobs[0].warm.step_time for count in (7, 12))
    assert bottleneck.more_workers == (12, pytest.approx(twelve, rel=1e-9))
    assert twelve < 0.85 * seven
