"""Oracles: machines that exist (all inside), slips of a unit that have happened (all outside), and the typed models."""

from __future__ import annotations

import pytest

from sim.check import check_hardware, check_workload
from sim.check.ranges import DIMENSIONS, RANGES
from sim.spec.library import load_hardware, load_workload
from sim.spec.sections import file_fields
from sim.units import UNITS


def hardware_problems(*overrides: str) -> list[str]:
    loaded = load_hardware("toy", overrides)
    return check_hardware(loaded.spec, loaded.document)


SLIPS = {
    "node.gpu.memory=80000000000 GiB": "85,899,346 TB is implausible; write 1 GB to 10 TB",  # Calculon's a100_80e.json
    "node.gpu.memory=16 MiB": "16.8 MB is implausible; write 1 GB to 10 TB",
    "node.gpu.memory_bandwidth=900 MB/s": "900 MB/s is implausible; write 1 GB/s to 100 TB/s",
    "node.gpu.memory_bandwidth=900 PB/s": "900,000 TB/s is implausible; write 1 GB/s to 100 TB/s",
    "node.gpu.peak.fp32=15.7 EFLOP/s": "15,700 PFLOP/s is implausible; write 1 GFLOP/s to 100 PFLOP/s",
    "node.gpu.kernel_time=5 s": "5 s is implausible; write 0 s to 10 ms",
    "node.gpu.memory_efficiency=0": "0 is implausible; write 0.01 to 1",
    "node.gpu.tensor_core_rate=0": "0 is implausible; write 0.01 to 1",
    "node.topology.pcie.bandwidth=16 B/s": "16 B/s is implausible; write 1 MB/s to 10 TB/s",
    "node.topology.nvlink.pairs.0-1=5000": "5,000 is implausible; write 1 to 100",
    "node.nic.bandwidth=25 bps": "3.12 B/s is implausible; write 10 Mbps to 10 Tbps",
    "node.nic.transport.hop_latency=30 s": "30 s is implausible; write 0 s to 1 s",
    "node.host.memory=488 TiB": "537 TB is implausible; write 1 GiB to 64 TiB",
    "node.host.cpu.clock=2.7 Hz": "2.7 Hz is implausible; write 100 MHz to 10 GHz",
    "node.storage.volume.size=1 KB": "1 KB is implausible; write 1 GB to 100 PB",
    "node.storage.volume.burst_credits=1.0e+30": "1e+30 is implausible; write 0 to 1e+12",
    "price.on_demand=24480 USD/h": "24,480 USD/h is implausible; write 0.001 USD/h to 2,500 USD/h",
    "price.on_demand=0 USD/h": "0 USD/h is implausible; write 0.001 USD/h to 2,500 USD/h",
    "groups.0.count=9999999": "9,999,999 is implausible; write 1 to 100,000",
}


@pytest.mark.parametrize("override", SLIPS)
def test_a_slip_of_a_unit_is_refused_with_its_place(override: str) -> None:
    key = override.partition("=")[0]
    assert f"--set {override}: {SLIPS[override]}" in hardware_problems(override)
    assert not hardware_problems() or key == ""


def test_workloads_have_bounds_too() -> None:
    loaded = load_workload("toy-job", ["dataset.prep=5 h", "model.layers.0.forward=99 EFLOP", "training.stack.launch_cpu=10 s"])
    assert check_workload(loaded.spec, loaded.document) == [
        "--set dataset.prep=5 h: 5 h is implausible; write 0 s to 1 h",
        "--set model.layers.0.forward=99 EFLOP: 99,000,000 TFLOP is implausible; write 0 FLOP to 10 PFLOP",
        "--set training.stack.launch_cpu=10 s: 10 s is implausible; write 0 s to 100 ms",
    ]


EXTREMES = [  # machines built or announced
    ("node.gpu.memory=192 GB", "node.gpu.memory_bandwidth=8 TB/s", "node.gpu.peak.fp8=5 PFLOP/s"),
    ("node.gpu.memory=1 TB", "node.gpu.memory_bandwidth=32 TB/s"),
    ("node.gpu.memory=2 GB", "node.gpu.memory_bandwidth=14.4 GB/s", "node.gpu.peak.fp32=0.1 TFLOP/s"),
    ("node.nic.bandwidth=200 Mbps", "node.host.memory=2 GiB", "node.topology.pcie.bandwidth=250 MB/s"),
    ("node.nic.bandwidth=3200 Gbps", "node.host.memory=24 TiB", "price.on_demand=113.93 USD/h"),
    ("groups.0.count=100000", "node.storage.bandwidth=500 GB/s"),
]


@pytest.mark.parametrize("overrides", EXTREMES, ids=range(len(EXTREMES)))
def test_real_extremes_are_plausible(overrides: tuple[str, ...]) -> None:
    assert hardware_problems(*overrides) == []


def test_bounds_stand_for_fields_and_dimensions_that_exist() -> None:
    assert DIMENSIONS.keys() == UNITS.keys()
    assert {(kind.__name__, name) for kind, bounds in RANGES.items() for name in bounds if name not in file_fields(kind)} == set()
