"""Is a profile of a job that trained on CPUs read as it should be? Oracle: traces made by hand; torch's own profiler under Gloo."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from calibration.cli import main
from calibration.traces.import_trace import import_traces
from sim.events import Cause
from sim.spec.yaml import SpecError
from tests.calibration.traces.test_import_trace import STEP, Event, event, profile


def cpu_step(number: int, late: float = 0.0) -> list[Event]:
    """One step of 100 ms on a CPU whose exchange begins *late* (us).

    Batch to 10 ms, forward to 40, an operator inside another to 30; backward on a thread of its own to 70 (+ late), Gloo from 60 (+ late)
    to 90, optimizer to 99, nothing for 1 ms.
    """
    at = number * STEP
    backward = event("cpu_op", "autograd::engine::evaluate_function: AddmmBackward0", at + 40_000, at + 70_000 + late) | {"tid": 2}
    gloo = event("user_annotation", "gloo:all_reduce", at + 60_000 + late, at + 90_000) | {"tid": 3}
    return [
        event("user_annotation", f"ProfilerStep#{number}", at, at + STEP),
        event("user_annotation", "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", at, at + 10_000),
        event("cpu_op", "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", at, at + 10_000),
        event("cpu_op", "aten::linear", at + 10_000, at + 40_000),
        event("cpu_op", "aten::addmm", at + 12_000, at + 30_000),
        backward,
        gloo,
        event("cpu_op", "aten::add_", at + 90_000, at + 99_000),
    ]


def cpu_profile(folder: Path, rank: int, late: float = 0.0, backend: str = "gloo") -> Path:
    events = [trace_event for number in range(3) for trace_event in cpu_step(number, late)]
    info = {"backend": backend, "rank": rank, "world_size": 2}
    return profile(folder, rank, 2, events=events, deviceProperties=[], distributedInfo=info)


def test_a_job_on_processors_is_read_by_its_operators(tmp_path: Path) -> None:
    """Batch 10 ms; operators 30, 30 and 9; Gloo alone from 70 to 90 ms; 1 ms in which the host is outside any operator."""
    job = import_traces([cpu_profile(tmp_path, 0), cpu_profile(tmp_path, 1)])
    expected = {Cause.COMPUTE: 0.069, Cause.PREP: 0.010, Cause.INTERCONNECT: 0.020, Cause.LAUNCH: 0.001}
    assert {cause: job.stalls[cause] for cause in expected} == pytest.approx(expected)
    assert sum(job.stalls.values()) == pytest.approx(job.step_time) == pytest.approx(0.1)


def test_a_rank_that_comes_late_to_gloo_holds_the_other_up(tmp_path: Path) -> None:
    """15 ms late: the punctual rank, ready at 70 ms, waits until the other joins at 75, and from there to 90 for the exchange."""
    job = import_traces([cpu_profile(tmp_path, 0), cpu_profile(tmp_path, 1, late=15_000.0)])
    assert job.by_rank[0][Cause.STRAGGLER] == pytest.approx(0.005)  # from 70 to 75 ms, where the late one joins
    assert job.by_rank[0][Cause.INTERCONNECT] == pytest.approx(0.015)


def test_operators_wait_inside_for_the_collectives_of_a_divided_job(tmp_path: Path) -> None:
    """FSDP over Gloo: of backward, from 40 to 70 ms, the 10 ms inside the reduction from 60 to 90 are not compute."""
    paths = [cpu_profile(tmp_path, rank) for rank in range(2)]
    for path in paths:
        path.write_text(path.read_text().replace("gloo:all_reduce", "gloo:reduce_scatter"))
    job = import_traces(paths)
    expected = {Cause.COMPUTE: 0.059, Cause.PREP: 0.010, Cause.INTERCONNECT: 0.030, Cause.LAUNCH: 0.001}
    assert {cause: job.stalls[cause] for cause in expected} == pytest.approx(expected)


def test_a_job_over_nccl_needs_its_kernels(tmp_path: Path) -> None:
    """Profiled without ProfilerActivity.CUDA: operators of the host would be mistaken for work of the GPUs."""
    with pytest.raises(SpecError, match=r"with ProfilerActivity\.CUDA"):
        import_traces([cpu_profile(tmp_path, 0, backend="nccl"), cpu_profile(tmp_path, 1, backend="nccl")])


TRAINED = """
import os, sys, torch
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ProfilerActivity, profile, schedule
torch.set_num_threads(1)
torch.distributed.init_process_group("gloo", init_method=sys.argv[1], rank=int(sys.argv[2]), world_size=2)
model = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(256, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, 10)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
with profile(activities=[ProfilerActivity.CPU], schedule=schedule(wait=1, warmup=1, active=3, repeat=1)) as profiler:
    for _ in range(5):
        optimizer.zero_grad()
        model(torch.randn(16, 256)).sum().backward()
        optimizer.step()
        profiler.step()
profiler.export_chrome_trace(sys.argv[3])
torch.distributed.barrier()
os._exit(0)
"""


@pytest.mark.nightly
def test_a_job_of_two_ranks_over_gloo_is_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Oracle: torch.profiler under DistributedDataParallel: one bucket a step, stalls that sum to its steps."""
    pytest.importorskip("torch")
    paths = [tmp_path / f"rank{rank}.json" for rank in range(2)]
    ranks = [
        subprocess.Popen([sys.executable, "-c", TRAINED, f"file://{tmp_path}/ranks", str(rank), str(path)], stderr=subprocess.PIPE)
        for rank, path in enumerate(paths)
    ]
    errors = [rank.communicate(timeout=300)[1] for rank in ranks]
    if any(rank.returncode < 0 for rank in ranks):
        pytest.skip("torch's profiler died of a signal")
    assert [rank.returncode for rank in ranks] == [0, 0], errors
    job = import_traces(paths)
    assert job.windows[0].steps == 2 and {len(trace.collectives) for trace in job.traces} == {3}
    assert sum(job.stalls.values()) == pytest.approx(job.step_time) and job.stalls[Cause.COMPUTE] > 0
    assert main(["import-trace", *map(str, paths)]) == 0
    assert capsys.readouterr().out.startswith("2 CPU ranks on 1 node, 2 steps profiled")
    assert main(["import-trace", str(paths[0])]) == 0
    shown = capsys.readouterr()
    assert shown.out.startswith("1 of 2 CPU ranks on 1 node, 2 steps profiled")
    assert "only rank 0 of 2 given; the others are taken to be like it" in shown.err
