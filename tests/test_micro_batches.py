"""Is a data-parallel step of many micro-batches, most of them left out, the whole step? Oracle: all of them simulated."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import strategies as st

from sim.analysis.critical_path import critical_path
from sim.analysis.stalls import Window
from sim.epoch import Epoch
from sim.report.document import run_document
from sim.report.nccl_choice import messages_of_step
from sim.report.page.run import run_page
from sim.report.trace.excerpt import excerpt
from sim.report.trace.run_trace import write_trace
from sim.simulate import Run
from sim.spec.hardware import Hardware
from sim.spec.workload import Workload
from tests.epochs import assert_same_times
from tests.examples import examples
from tests.harness import cluster, layer, machine, run, toy_node, toy_workload, volume


def both(hardware: Hardware, workload: Workload, **keys: Any) -> tuple[Run, Run]:
    """The same job with few of its micro-batches, and with all of them."""
    return run(hardware, workload, **keys), run(hardware, workload, complete=True, **keys)


def left_out(epoch: Epoch) -> list[Window]:
    return [window for window in epoch.windows if not window.steps]


def assert_same(few: Epoch, every: Epoch, rel: float = 1e-9) -> None:
    assert not left_out(every)
    assert few.exact == every.exact
    assert_same_times(few, every, rel)
    mine, theirs = ({(row.cause, row.resource): row.seconds for row in each.resources} for each in (few, every))
    assert mine == pytest.approx(theirs, abs=rel * every.step_time)


@examples(
    15,
    100,
    gpus=st.integers(1, 3),
    count=st.integers(8, 60),
    forward=st.floats(1e-3, 0.1),
    elements=st.integers(1, 10**7),
    loader=st.sampled_from(["synthetic", "pytorch", "dali_cpu"]),
    workers=st.integers(0, 5),
    prep=st.floats(0, 0.3),
    cores=st.integers(1, 6),
    read=st.booleans(),
    no_sync=st.booleans(),
    noise=st.sampled_from([None, 0.05]),
)
def test_a_step_of_few_micro_batches_is_the_whole_step(
    gpus: int,
    count: int,
    forward: float,
    elements: int,
    loader: str,
    workers: int,
    prep: float,
    cores: int,
    read: bool,
    no_sync: bool,
    noise: float | None,
) -> None:
    workload = toy_workload(
        [layer(forward, 2 * forward, elements)],
        loader=loader,
        prep=prep,
        samples=20 * gpus * count,
        sample=1e6 if read else 1.0,
        prepared=1e7,
        accumulation=count,
        inputs={"num_workers": workers, "num_threads": workers + 1},
        stack={"no_sync": no_sync},
        noise=noise,
    )
    few, every = both(machine(gpus, cores=cores, disk=volume(bandwidth=20e6), memory=1.0), workload)
    for one, other in ((few.jobs[0].first, every.jobs[0].first), (few.jobs[0].warm, every.jobs[0].warm)):
        if one.exact and other.exact:
            assert_same(one, other)
        else:
            assert one.time == pytest.approx(other.time, rel=0.05)


@pytest.mark.parametrize("no_sync", [True, False])
@pytest.mark.parametrize("prep", [0.05, 1.0], ids=["compute-bound", "loader-bound"])
def test_most_micro_batches_are_left_out(prep: float, no_sync: bool) -> None:
    workload = toy_workload(
        [layer(0.03, 0.06, 10**6)],
        loader="pytorch", prep=prep, samples=2 * 3000, accumulation=300, inputs={"num_workers": 3}, stack={"no_sync": no_sync}, noise=0.02,
    )  # fmt: skip
    few, every = both(machine(2, cores=16, disk=volume()), workload)
    short, full = few.jobs[0].warm, every.jobs[0].warm
    assert_same(short, full)
    assert len(short.log.waits) < 0.3 * len(full.log.waits)
    path = [{(row.cause, row.resource): row.seconds for row in critical_path(each.log, each.windows)} for each in (short, full)]
    assert math.fsum(path[0].values()) == pytest.approx(full.step_time, rel=1e-9)
    assert path[0] == pytest.approx(path[1], abs=1e-6 * full.step_time)
    assert messages_of_step(few) == messages_of_step(every)


def test_each_drawn_step_settles_by_itself() -> None:
    workload = toy_workload([layer(0.03, 0.06, 10**6)], samples=2 * 6000, accumulation=40, noise=0.05)
    noise = workload.training.noise.model_copy(update={"draw": True})
    drawn = workload.with_training(noise=noise)
    few, every = both(machine(2), drawn, seed=3)
    assert len(left_out(few.jobs[0].warm)) >= 100
    assert_same(few.jobs[0].warm, every.jobs[0].warm)


def test_unlike_ranks_leave_out_the_same() -> None:
    """A slower GPU paces all where each micro-batch is exchanged; where only the last one is, ranks drift apart, and none is left out."""
    node = toy_node(1)
    slow = node.model_copy(update={"gpu": node.gpu.model_copy(update={"peak": {"fp32": 0.6e12}})})
    for no_sync in (True, False):
        workload = toy_workload([layer(0.03, 0.06, 10**6)], samples=2 * 900, accumulation=30, stack={"no_sync": no_sync})
        few, every = both(cluster(node, slow), workload)
        assert_same(few.jobs[0].warm, every.jobs[0].warm)
        assert bool(left_out(few.jobs[0].warm)) != no_sync


def test_every_micro_batch_of_an_exact_run_is_simulated() -> None:
    workload = toy_workload([layer(0.03, 0.06, 1000)], samples=600, accumulation=30)
    assert not left_out(run(machine(2), workload, exact=True).jobs[0].warm)
    assert left_out(run(machine(2), workload).jobs[0].warm)


def test_burst_credits_are_spent_on_all_micro_batches() -> None:
    """Reads of the micro-batches left out drain the disk's credits too."""
    disk = volume(bandwidth=1e9, iops=20.0, burst_iops="100 IOPS", burst_credits=3000.0, io_size="1 MB")
    workload = toy_workload(
        [layer(0.003, 0.006, 1000)], loader="pytorch", samples=12_000, sample=1e6, accumulation=40, inputs={"num_workers": 2}
    )
    few, every = both(machine(1, disk=disk, memory=1.0), workload)
    assert left_out(few.jobs[0].first)
    assert few.jobs[0].first.time == pytest.approx(every.jobs[0].first.time, rel=1e-9)


def test_a_page_and_a_trace_say_how_many_micro_batches_they_show(tmp_path: Path) -> None:
    workload = toy_workload([layer(0.03, 0.06, 1000)], samples=600, accumulation=30)
    few, every = both(machine(2), workload, keep_rates=True)
    shown = few.log.micro_batches[0][-1]
    assert 2 < shown < 30
    clause = f"{shown} of the 30 micro-batches of a step are shown"
    assert clause in excerpt(few).note
    assert clause in write_trace(few, tmp_path / "trace.json")
    document = run_document(few, {"hardware": "", "workload": "", "stack": "", "records": ""})
    assert clause in run_page(few, document)
    assert "are shown" not in excerpt(every).note
