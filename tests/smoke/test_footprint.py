"""How much does the main job take? Memory of the whole process, and nothing heavy imported on the way."""

from __future__ import annotations

import subprocess
import sys

import pytest

LAZY = ("pandas", "networkx", "joblib", "scipy", "matplotlib", "plotly", "torch")
SCRIPT = """
import resource, sys
from sim.cli import main
assert main(["run", "p3.16xlarge", "vgg16", "--json"]) == 0
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, *sorted(sys.modules), file=sys.stderr)
"""


@pytest.fixture(scope="module")
def footprint() -> list[str]:
    return subprocess.run([sys.executable, "-c", SCRIPT], check=True, capture_output=True, text=True).stderr.split()


def test_peak_memory_stays_below_250_mb(footprint: list[str]) -> None:
    assert int(footprint[0]) * 1024 < 250e6


@pytest.mark.parametrize("module", LAZY)
def test_main_job_does_not_import(footprint: list[str], module: str) -> None:
    assert module not in footprint[1:]
