"""Does the CUDA path of ``calibration profile`` time the device, bind ranks to their GPUs, and outlive full memory?

Oracle: `fake_cuda`, whose kernels take a specified time, on a machine without a GPU.
"""

from __future__ import annotations

import datetime
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from calibration.measure import team
from calibration.measure.machine_record import AnswerRow, MachineRecord
from calibration.measure.probes import exchange, training
from calibration.measure.probes.copies import HOST_COPY, copy_questions, peer_questions
from calibration.measure.probes.exchange import OVERLAP_BYTES, OVERLAP_EDGE, exchange_questions
from calibration.measure.probes.passes import LAUNCH
from calibration.measure.probes.probe import Bench, is_out_of_memory
from calibration.measure.probes.small_nets import deep
from calibration.measure.probes.timing import MOST_QUEUED_CALLS, repetition_times
from calibration.measure.profiling import MeasuringPlan, ProfileProgress, measure
from calibration.measure.team import SpawnedTeam, TeamRank
from sim.spec.yaml import SpecError
from tests.calibration.fake_cuda import FakeCuda, install
from tests.late import torch

pytestmark = pytest.mark.needs("torch")
Patch = pytest.MonkeyPatch


def bench(folder: Path, ranks: int = 1) -> Bench:
    return Bench("cuda", 1, 8, 0.05, folder, SpawnedTeam(ranks, "cuda", 1), memory=4 * 2.0**30)


@pytest.mark.parametrize("kernel", [2e-6, 20e-6, 3e-3])
def test_a_short_kernel_is_timed_by_the_device_not_by_its_launches(kernel: float, monkeypatch: Patch) -> None:
    """A launch costs the host 5 us; kernels of 2 us, queued while the device spins, follow each other in 2 us."""
    cuda = install(monkeypatch, FakeCuda(launch=5e-6))
    times = repetition_times(lambda: cuda.kernel(kernel), "cuda", 0.05)
    assert times == pytest.approx([kernel] * len(times), rel=0.01)
    assert len(times) >= 3


def test_no_more_is_queued_than_the_device_takes(monkeypatch: Patch) -> None:
    """Kernels of no length at all: each repetition launches `MOST_QUEUED_CALLS`, the spin and not one more."""
    cuda = install(monkeypatch, FakeCuda(launch=1e-7))
    repetition_times(lambda: cuda.kernel(0.0), "cuda", 1e-4)
    before, _ = cuda.launched, repetition_times(lambda: cuda.kernel(0.0), "cuda", 1e-4)
    assert (cuda.launched - before - 1 - MOST_QUEUED_CALLS) % (
        MOST_QUEUED_CALLS + 1
    ) == 0  # one call, warm ones, then repetitions with a spin each


def test_launches_cost_the_host_and_the_device_apart(tmp_path: Path, monkeypatch: Patch) -> None:
    """Kernels of 2 us that take the host 6 us: both stand in the record."""
    cuda = install(monkeypatch, FakeCuda(launch=6e-6))
    one = type("One", (), {"add_": lambda self, value: cuda.kernel(2e-6)})()
    monkeypatch.setattr("torch.ones", lambda *shape, **options: one)
    monkeypatch.setattr("calibration.measure.probes.passes.time", type("Clock", (), {"perf_counter": staticmethod(cuda.perf_counter)}))
    answers = {row["clock"]: LAUNCH.answer(bench(tmp_path), row)["times_s"] for row in LAUNCH.questions(bench(tmp_path))}
    assert answers["device"] == pytest.approx([2e-6] * len(answers["device"]), rel=0.01)
    assert answers["host"] == pytest.approx([6e-6] * 7, rel=0.01)


def test_layers_are_timed_by_events_that_nobody_waits_for(monkeypatch: Patch) -> None:
    """Every layer of a network takes 1 ms forward and backward on a device that lags behind its host; the whole pass is their sum."""
    cuda = install(monkeypatch, FakeCuda(launch=1e-6))
    model = deep(blocks=2).train()
    real = training._LayerWatch.end

    def slow(watch: Any, name: str, way: str) -> None:
        if way != "whole":
            cuda.kernel(1e-3)
        real(watch, name, way)

    monkeypatch.setattr(training._LayerWatch, "end", slow)
    inputs = torch.randn(2, 3, 32, 32)
    row = training.layer_times(model, lambda: ((inputs,), {}), lambda output: output.sum(), "cuda")
    layers = {layer["layer"]: layer for layer in row["layers"]}
    assert len(row["whole_s"]) == training.REPETITIONS
    for layer in layers.values():
        assert layer["forward_s"] == pytest.approx([1e-3] * training.REPETITIONS, rel=0.01)
        assert layer["backward_s"] == pytest.approx([1e-3] * training.REPETITIONS, rel=0.01)
    assert row["whole_s"] == pytest.approx([2e-3 * len(layers)] * training.REPETITIONS, rel=0.01)


def test_each_rank_binds_its_own_gpu_before_it_joins(monkeypatch: Patch) -> None:
    """LOCAL_RANK, not the rank, which counts over machines; NCCL for tensors of GPUs, Gloo for words, and a limit to waiting."""
    cuda = install(monkeypatch, FakeCuda(), count=4)
    joined: dict[str, Any] = {}
    monkeypatch.setattr(
        torch.distributed, "init_process_group", lambda *names, **how: joined.update(how, backend=names[0], gpu=cuda.current)
    )
    monkeypatch.setattr("torch.set_num_threads", lambda threads: None)
    monkeypatch.setenv("LOCAL_RANK", "2")
    team.join(TeamRank(6, 8, "cuda", 1, nodes=2), "env://")
    assert (joined["backend"], joined["gpu"]) == ("cpu:gloo,cuda:nccl", 2)
    assert (joined["rank"], joined["world_size"]) == (6, 8) and joined["timeout"] == datetime.timedelta(seconds=team.LIMIT)


def test_every_pair_of_gpus_is_a_question(tmp_path: Path, monkeypatch: Patch) -> None:
    install(monkeypatch, FakeCuda(), count=4)
    rows = peer_questions(bench(tmp_path))
    assert {(row["source"], row["target"]) for row in rows} == {(a, b) for a in range(4) for b in range(4) if a != b}
    assert sum((row["source"], row["target"]) == (0, 1) for row in rows) == len(rows) - 11


def test_copies_of_one_and_of_all_gpus_are_questions(tmp_path: Path) -> None:
    rows = copy_questions(bench(tmp_path, 8))
    assert {(row["way"], row["host"]) for row in rows if row["together"] == 1} == {
        (way, host) for way in ("to device", "to host") for host in ("pinned", "pageable")
    }
    assert {row["together"] for row in rows} == {1, 8}


def test_products_beside_a_collective_fill_a_gpu(tmp_path: Path) -> None:
    """Tiles of 128 x 128: more than the 132 to 160 multiprocessors of Hopper and Blackwell, which 512 x 512 would leave idle."""
    assert (OVERLAP_EDGE["cuda"] // 128) ** 2 > 160
    beside = [row for row in exchange_questions(bench(tmp_path, 8)) if "beside" in row]
    assert [row["bytes"] for row in beside] == [OVERLAP_BYTES["cuda"]]
    small = bench(tmp_path, 8)
    small.memory = 2.0**29
    assert not [row for row in exchange_questions(small) if "beside" in row]


def test_what_does_not_fit_into_memory_is_left_out_and_told(tmp_path: Path, monkeypatch: Patch) -> None:
    """Of ten sizes the three largest find no memory: seven answers, the probe done, and the reason why."""
    install(monkeypatch, FakeCuda())

    def answer(here: Bench, question: AnswerRow) -> AnswerRow:
        if question["bytes"] >= 4**12:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 256.00 MiB")
        return {"times_s": [1e-3]}

    def questions(here: Bench) -> list[AnswerRow]:
        return [{"bytes": 4**power} for power in range(5, 15)]

    record = MachineRecord("box", {"vcpus": 8}, {})
    probe = replace(HOST_COPY, questions=questions, answer=answer)
    assert measure(MeasuringPlan(tmp_path / "r.json", [probe]), record, bench(tmp_path), ProfileProgress()) == []
    probe_record = record.probes["host_copy"]
    assert (probe_record.state, len(probe_record.rows), record.state) == ("done", 7, "complete")
    assert probe_record.reason == "3 did not fit into memory: 16777216; 67108864; 268435456"
    failing = replace(probe, answer=lambda here, question: answer(here, {"bytes": 4**14}))
    fresh = MachineRecord("box", {"vcpus": 8}, {})
    [problem] = measure(MeasuringPlan(tmp_path / "s.json", [failing]), fresh, bench(tmp_path), ProfileProgress())
    assert problem == "host_copy: no case fits into memory, not even 268435456"


@pytest.mark.parametrize(
    ("error", "memory"),
    [
        (MemoryError(), True),
        (SpecError("rank 1 of 2: OutOfMemoryError: CUDA out of memory. Tried"), True),
        (RuntimeError("[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory"), True),
        (RuntimeError("CUDA error: an illegal memory access was encountered"), False),
    ],
)
def test_full_memory_is_known_by_its_words(error: Exception, memory: bool) -> None:
    assert is_out_of_memory(error) == memory


def test_ranks_of_several_machines_exchange_inside_one_across_and_all(tmp_path: Path) -> None:
    """Two machines of four GPUs: two and four ranks of the first one, one of each, all eight."""
    here = bench(tmp_path, 8)
    here.team.nodes = 2
    assert exchange.rank_sets(here.team) == [{"ranks": 2}, {"ranks": 4}, {"ranks": 2, "nodes": 2}, {"ranks": 8, "nodes": 2}]
    rank = TeamRank(0, 8, "cuda", 1, nodes=2)
    assert exchange.members_of(rank, 4, 1) == (0, 1, 2, 3)
    assert exchange.members_of(rank, 2, 2) == (0, 4)
    assert exchange.members_of(rank, 8, 2) == tuple(range(8))
    alone = bench(tmp_path, 2)
    alone.team.nodes = 2
    assert exchange.rank_sets(alone.team) == [{"ranks": 2, "nodes": 2}]
