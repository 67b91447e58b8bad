"""Is a GPU's own share of its peak found from its products? Oracle: the kernel model with a known share, by a fake device clock."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest

from calibration.kernels.fit import with_kernels
from calibration.machines.fit_run import yaml_text
from calibration.machines.machine_fit import MergedRecords, merge_records
from calibration.machines.machine_yaml import device_block, gpu_named_by_driver
from calibration.machines.product_shares import product_shares
from calibration.measure.machine_record import MachineRecord, ProbeRecord, write_record
from calibration.measure.probes.products import GEMM, LINEAR_LAYERS
from sim.cluster.kernels import ProductShape, product_time
from sim.spec.hardware import Gpu
from sim.spec.library import load
from tests.calibration.fake_cuda import FakeCuda, install
from tests.calibration.machine_records import gpu_record
from tests.calibration.measure.test_probes_of_layouts import bench
from tests.late import torch

H100 = {"name": "NVIDIA H100 80GB HBM3", "memory_bytes": 80 * 2**30, "compute_capability": "9.0"}
SHAPES = [(size, size, size) for size in (512, 768, 1024, 1536, 2048, 3072)] + list(LINEAR_LAYERS)


@cache
def h100() -> Gpu:
    gpu = gpu_named_by_driver(H100["name"])
    assert gpu is not None and gpu.kernels is not None
    return gpu


@cache
def seconds(shape: tuple[int, ...], share: float) -> float:
    gpu = with_kernels(h100(), {"product_share": {"bf16": share}})
    return product_time(gpu, "bf16", ProductShape(*shape), burst=True) + gpu.kernel_time


def record(times: dict[tuple[int, ...], float]) -> MachineRecord:
    gpu = gpu_record()
    gpu.machine["gpus"] = [H100]
    rows = [
        {"precision": "bf16", "shape": list(shape), "flop": 2 * shape[0] * shape[1] * shape[2], "times_s": [time] * 3}
        for shape, time in times.items()
    ]
    gpu.probes["gemm"] = ProbeRecord("done", "2026-01-02T00:00:00Z", rows=rows)
    return gpu


def measured(folder: Path, made: MachineRecord) -> MergedRecords:
    write_record(folder / "r.json", made)
    return merge_records([folder / "r.json"])


def test_a_share_comes_out_and_stands_in_the_description(tmp_path: Path) -> None:
    fitted = measured(tmp_path, record({shape: seconds(shape, 0.6) for shape in SHAPES}))
    (tmp_path / "gpu.yaml").write_text(yaml_text(device_block(fitted, {})))
    kernels = load(Gpu, tmp_path / "gpu.yaml").spec.kernels
    before = h100().kernels
    assert kernels is not None and before is not None
    assert kernels.product_share["bf16"] == pytest.approx(0.6, rel=0.01)
    assert {**kernels.product_share, "bf16": 0.0} == {**before.product_share, "bf16": 0.0}
    assert kernels.tile_edge == before.tile_edge


def test_products_as_described_change_nothing(tmp_path: Path) -> None:
    share = h100().kernels.product_share["bf16"]  # type: ignore[union-attr]
    assert product_shares(measured(tmp_path, record({shape: seconds(shape, share) for shape in SHAPES})), h100()) == {}


def test_what_one_half_of_the_shapes_tells_wrongly_of_the_other_is_refused(tmp_path: Path) -> None:
    """Shapes in turn 1.5 times as fast and as slow as described: either half's share makes the other worse."""
    share = h100().kernels.product_share["bf16"]  # type: ignore[union-attr]
    ordered = sorted(SHAPES, key=lambda shape: (shape[0] * shape[1] * shape[2], shape))
    times = {shape: seconds(shape, share) * (1.5 if place % 2 else 1 / 1.5) for place, shape in enumerate(ordered)}
    assert product_shares(measured(tmp_path, record(times)), h100()) == {}


@pytest.mark.needs("torch")
def test_products_timed_by_the_device_tell_their_share(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The probe itself, on a device whose products reach half of the peak."""
    cuda = install(monkeypatch, FakeCuda(launch=1e-6))
    real = torch.randn
    monkeypatch.setattr("torch.randn", lambda *sizes, device=None, **options: real(*sizes, **options))

    def product(left: Any, right: Any) -> Any:
        cuda.kernel(seconds((left.shape[0], right.shape[1], left.shape[1]), 0.5))

    monkeypatch.setattr("torch.matmul", product)
    questions = [{"precision": "bf16", "shape": list(shape), "flop": 2 * shape[0] * shape[1] * shape[2]} for shape in SHAPES]
    rows = [row | GEMM.answer(bench(tmp_path), row) for row in questions]
    made = record({})
    made.probes["gemm"].rows = rows
    assert product_shares(measured(tmp_path, made), h100())["bf16"].share == pytest.approx(0.5, rel=0.03)
