"""How fast are convolutions and scans of linear attention? Oracle: kernels that others measured (``calibration/records/scans.csv``)."""

from __future__ import annotations

import csv
from statistics import median

import pytest

from calibration import RECORDS
from sim.cluster.gpu import layer_time
from sim.spec.hardware import Gpu
from sim.spec.layer import Layer
from sim.spec.library import load_hardware, load_part
from sim.spec.sections import with_fields
from sim.spec.stack import Stack
from sim.spec.state_space import ScanCost, scan_cost, scan_layers
from sim.spec.transformer import DeltaNet, Mamba

MACHINES = {"H100-SXM5-80GB": "hgx-h100", "B200-SXM-180GB": "hgx-b200", "B300-SXM-288GB": "hgx-b300", "GB300-288GB": "gb300-nvl72"}
"""Machines of the catalog with the measured GPUs."""
STACK = load_part(Stack, "megatron-core", "workloads/stacks")


def rows(op: str, gpu: str) -> list[dict[str, str]]:
    with (RECORDS / "scans.csv").open(encoding="utf-8") as file:
        lines = csv.DictReader(line for line in file if not line.startswith("#"))
        return [row for row in lines if row["op"] == op and row["gpu"] == gpu]


def gpu_of(name: str) -> Gpu:
    return load_hardware(MACHINES[name]).spec.worker_groups[0].node.gpu


def tokens(row: dict[str, str]) -> int:
    return int(row["batch"]) * int(row["seq"])


def scan(row: dict[str, str]) -> ScanCost:
    """Return what a token of the delta rule in *row* costs."""
    return scan_cost(
        DeltaNet(key_heads=int(row["k_heads"]), value_heads=int(row["heads"]), key_dim=int(row["k_dim"]), value_dim=int(row["head_dim"]))
    )


@pytest.mark.parametrize("name", MACHINES)
def test_rates_of_chunks_are_those_of_measured_delta_rules(name: str) -> None:
    """Nothing measured a scan of Mamba-2; the delta rule of Qwen's linear attention has products of the same sizes."""
    kernels = gpu_of(name).kernels
    assert kernels is not None and len(rows("gdn", name)) == 6
    rates = [scan(row).flop[0] * tokens(row) / (1e-6 * float(row["time_us"])) / kernels.sm_count for row in rows("gdn", name)]
    assert kernels.scan_rate == pytest.approx(median(rates), rel=0.06)
    assert all(abs(rate / kernels.scan_rate - 1) < 0.2 for rate in rates)


def test_an_l40s_is_limited_by_its_memory() -> None:
    """Where memory is slow, kernels take as long as the counted passes at 80% of its bandwidth, 864 GB/s (NVIDIA's data sheet)."""
    for row in rows("gdn", "L40S"):
        reached = 2.0 * scan(row).elements[0] * tokens(row) / (1e-6 * float(row["time_us"]))
        assert 0.65 * 864e9 < reached < 0.9 * 864e9, row


@pytest.mark.parametrize(
    ("name", "low", "high"),
    [("H100-SXM5-80GB", 1.0, 1.2), ("B200-SXM-180GB", 0.55, 0.7), ("B300-SXM-288GB", 0.55, 0.7), ("GB300-288GB", 0.55, 0.7)],
)
def test_convolutions_take_as_long_as_measured(name: str, low: float, high: float) -> None:
    """Inputs and outputs pass through memory once. On Blackwell, the measured kernel reaches less than half of the memory bandwidth.

    That is 1.6 times the predicted time, of a tenth of the time of a scan.
    """
    stack = with_fields(STACK, compute_factor=1.0, factor_by_kernels=False)
    ratios = []
    for row in rows("conv", name):
        moved = 4.0 * int(row["seq"]) * int(row["channels"])
        layer = Layer.model_construct(name="mamba.conv", op="elementwise", read=moved, write=moved)
        time = layer_time(layer, gpu_of(name), "bf16", stack, int(row["batch"])).time
        ratios.append(time / (1e-6 * float(row["time_us"])))
    assert len(ratios) >= 5 and low < median(ratios) < high
    made = next(scan_layers(Mamba(heads=64), "mamba", 4096, 4.0))
    assert made.read == made.write == 4.0 * 4096 * Mamba(heads=64).channels
