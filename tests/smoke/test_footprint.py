"""How much do the main job and one on 16 384 GPUs take? Memory of the whole process, and nothing heavy imported on the way."""

from __future__ import annotations

import subprocess
import sys

import pytest

LAZY = (
    "numpy",
    "pandas",
    "networkx",
    "joblib",
    "scipy",
    "matplotlib",
    "torch",
    "sim.report.page.run",
    "sim.report.plots",
    "sim.commands.plan",
    "sim.mesh",
)
MAIN = ("run", "p3.16xlarge", "vgg16", "--json")
LARGE = ("run", "p4d.24xlarge", "resnet50", "--fast", "--nodes", "2048", "--set", "dataset.samples=500000000", "--json")
SCRIPT = """
import pathlib, sys
from sim.cli import main
assert main(sys.argv[1:]) == 0
status = pathlib.Path("/proc/self/status")  # ru_maxrss would count the process that started this one, too
peak = next((line.split()[1] for line in status.read_text().splitlines() if line.startswith("VmHWM")), "0") if status.exists() else "0"
print(peak, *sorted(sys.modules), file=sys.stderr)
"""


def footprint_of(*words: str) -> list[str]:
    """The peak memory (KiB; 0 where nothing tells) of ``sim`` with *words*, and the modules that it imported."""
    return subprocess.run([sys.executable, "-c", SCRIPT, *words], check=True, capture_output=True, text=True, timeout=240).stderr.split()


def peak(footprint: list[str]) -> int:
    """Peak memory in bytes."""
    if footprint[0] == "0":
        pytest.skip("/proc tells the peak memory of a process on Linux only")
    return int(footprint[0]) * 1024


@pytest.fixture(scope="module")
def footprint() -> list[str]:
    return footprint_of(*MAIN)


def test_peak_memory_stays_below_250_mb(footprint: list[str]) -> None:
    assert peak(footprint) < 250e6


def test_peak_memory_of_2048_nodes_stays_below_300_mb() -> None:
    assert peak(footprint_of(*LARGE)) < 300e6


@pytest.mark.parametrize("module", LAZY)
def test_main_job_does_not_import(footprint: list[str], module: str) -> None:
    assert module not in footprint[1:]
