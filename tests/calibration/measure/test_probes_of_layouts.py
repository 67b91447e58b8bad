"""Are attention, products in 8 bits, and the collectives of sharded jobs measured? Oracles: `fake_cuda`; a sweep over Gloo."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from calibration.cli import main
from calibration.machines.machine_fit import fits, merge_records
from calibration.machines.machine_yaml import efficiency_curves
from calibration.measure.machine_record import ProbeRecord, read_record, write_record
from calibration.measure.probes.attention import ATTENTION, SHAPES
from calibration.measure.probes.collectives import COLLECTIVES, OPERATIONS, SIZES
from calibration.measure.probes.probe import Bench
from calibration.measure.probes.products import CONVOLUTION, GEMM, gemm_questions
from calibration.measure.team import SpawnedTeam
from tests.calibration.fake_cuda import FakeCuda, install
from tests.calibration.machine_records import cpu_record
from tests.late import torch

pytestmark = pytest.mark.needs("torch")
Patch = pytest.MonkeyPatch


def bench(folder: Path, ranks: int = 1) -> Bench:
    return Bench("cuda", 1, 8, 0.05, folder, SpawnedTeam(ranks, "cuda", 1), memory=4 * 2.0**30)


def hopper(monkeypatch: Patch, capability: tuple[int, int] = (9, 0)) -> FakeCuda:
    """Let a GPU of *capability* be there, whose tensors lie in host memory."""
    cuda = install(monkeypatch, FakeCuda(launch=1e-6))
    monkeypatch.setattr("torch.cuda.get_device_capability", lambda: capability)
    real = torch.randn
    monkeypatch.setattr("torch.randn", lambda *sizes, device=None, **options: real(*sizes, **options))
    plain = torch.ones
    monkeypatch.setattr("torch.ones", lambda *sizes, device=None, **options: plain(*sizes, **options))
    return cuda


def test_attention_is_timed_by_the_device_in_every_shape(tmp_path: Path, monkeypatch: Patch) -> None:
    """A kernel of 100 TFLOP/s, whose FLOP are counted here from the tensors that it gets."""
    cuda = hopper(monkeypatch)

    def kernel(queries: Any, keys: Any, values: Any, is_causal: bool = False, enable_gqa: bool = False) -> Any:
        assert enable_gqa == (queries.shape[1] != keys.shape[1])
        _, heads, tokens, size = queries.shape
        cuda.kernel(2 * 2 * heads * tokens * tokens * size * (0.5 if is_causal else 1.0) / 100e12)
        return queries

    monkeypatch.setattr("torch.nn.functional.scaled_dot_product_attention", kernel)
    rows = [row for row in ATTENTION.questions(bench(tmp_path)) if row["way"] == "forward" and row["shape"][2] <= 1024]
    assert {row["precision"] for row in rows} == {"fp32", "fp16", "bf16"} and len(rows) == 3 * sum(shape[2] <= 1024 for shape in SHAPES)
    for row in rows:
        times = ATTENTION.answer(bench(tmp_path), row)["times_s"]
        assert times == pytest.approx([row["flop"] / 100e12] * len(times), rel=0.02), row


def test_products_in_8_bits_are_asked_of_gpus_that_have_them_and_of_shapes_that_they_take(tmp_path: Path, monkeypatch: Patch) -> None:
    cuda = hopper(monkeypatch)

    def kernel(left: Any, right: Any, one: Any, other: Any, out_dtype: Any = None) -> Any:
        assert left.dtype == right.dtype == torch.float8_e4m3fn and right.stride(0) == 1 and out_dtype == torch.bfloat16
        cuda.kernel(2 * left.shape[0] * left.shape[1] * right.shape[1] / 1e15)

    monkeypatch.setattr("torch._scaled_mm", kernel)
    rows = [row for row in gemm_questions(bench(tmp_path)) if row["precision"] == "fp8"]
    assert rows and all(size % 16 == 0 for row in rows for size in row["shape"][1:])
    row = next(row for row in rows if row["shape"] == [1024] * 3)
    times = GEMM.answer(bench(tmp_path), row)["times_s"]
    assert times == pytest.approx([row["flop"] / 1e15] * len(times), rel=0.02)
    assert not any(row["precision"] == "fp8" for row in CONVOLUTION.questions(bench(tmp_path)))
    hopper(monkeypatch, (8, 0))
    assert not any(row["precision"] == "fp8" for row in gemm_questions(bench(tmp_path)))


def test_sizes_are_limited_by_the_rate_of_their_own_precision(tmp_path: Path, monkeypatch: Patch) -> None:
    """A CPU that multiplies fp32 at 80 GFLOP/s and emulates bf16 at 1: a call takes at most a third of 0.3 s in both."""
    rates = {"float32": 80e9, "bfloat16": 1e9}

    def timed(call: Any, device: str, seconds: float) -> list[float]:
        return [2 * 256**3 / rates[str(call().dtype).removeprefix("torch.")]]

    monkeypatch.setattr("calibration.measure.probes.products.repetition_times", timed)
    cpu = Bench("cpu", 2, 2, 0.3, tmp_path, SpawnedTeam(1, "cpu", 1))
    most = {"fp32": 0, "bf16": 0}
    for row in gemm_questions(cpu):
        if "together" not in row:
            most[row["precision"]] = max(most[row["precision"]], row["flop"])
    assert 4e9 < most["fp32"] <= 8e9 and 3e7 < most["bf16"] <= 1e8


def test_measured_attention_becomes_a_curve(tmp_path: Path) -> None:
    """Of 40 GFLOP/s beyond 20 us, on a device whose products make 80."""
    row = {"precision": "fp32", "way": "forward", "shape": [12, 12, 128, 64], "causal": False}
    rows = [row | {"flop": flop, "times_s": [20e-6 + flop / 40e9] * 3} for flop in (10**8, 10**9, 10**10)]
    record = cpu_record()
    record.probes["attention"] = ProbeRecord("done", "2026-11-20 12:00", rows=rows)
    write_record(tmp_path / "r.json", record)
    attention_fits = fits(merge_records([tmp_path / "r.json"]))
    assert 1 / attention_fits["attention fp32"]["time per unit"].value == pytest.approx(40e9, rel=0.01)
    share = efficiency_curves(attention_fits, {"fp32": 80e9}, 0.0)["attention"]["fp32"][-1][1]
    assert share == pytest.approx(0.5, rel=0.01)


def test_every_collective_is_asked_of_two_ranks_and_all(tmp_path: Path) -> None:
    rows = COLLECTIVES.questions(bench(tmp_path, 8))
    assert [(row["op"], row["ranks"], row["bytes"]) for row in rows] == [
        (op, ranks, size) for op in OPERATIONS for ranks in (2, 8) for size in SIZES
    ]
    assert COLLECTIVES.skip_reason(bench(tmp_path)) == "one rank: no other rank to exchange with"


@pytest.mark.nightly
def test_collectives_and_attention_on_two_ranks_over_gloo(tmp_path: Path) -> None:
    """Every question is answered."""
    path = tmp_path / "r.json"
    assert main(["profile", "-o", str(path), "--quick", "--only", "attention,collectives"]) == 0
    record = read_record(path)
    assert all(time > 0 for probe in ("attention", "collectives") for row in record.rows(probe) for time in row["times_s"])
    for op in OPERATIONS:
        rows = [row for row in record.rows("collectives") if row["op"] == op]
        assert len(rows) == len(SIZES[::3])
