"""How much does the main job take? Memory of the whole process, and nothing heavy imported on the way."""

from __future__ import annotations

import subprocess
import sys

import pytest

LAZY = ("pandas", "networkx", "joblib", "scipy", "matplotlib", "torch", "sim.report.page.run", "sim.report.plots")
SCRIPT = """
import pathlib, sys
from sim.cli import main
assert main(["run", "p3.16xlarge", "vgg16", "--json"]) == 0
status = pathlib.Path("/proc/self/status")  # ru_maxrss would count the process that started this one, too
peak = next((line.split()[1] for line in status.read_text().splitlines() if line.startswith("VmHWM")), "0") if status.exists() else "0"
print(peak, *sorted(sys.modules), file=sys.stderr)
"""


@pytest.fixture(scope="module")
def footprint() -> list[str]:
    return subprocess.run([sys.executable, "-c", SCRIPT], check=True, capture_output=True, text=True).stderr.split()


def test_peak_memory_stays_below_250_mb(footprint: list[str]) -> None:
    if footprint[0] == "0":
        pytest.skip("/proc tells the peak memory of a process on Linux only")
    assert int(footprint[0]) * 1024 < 250e6


@pytest.mark.parametrize("module", LAZY)
def test_main_job_does_not_import(footprint: list[str], module: str) -> None:
    assert module not in footprint[1:]
