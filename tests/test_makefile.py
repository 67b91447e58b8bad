"""Do targets leave the environment as the tests need it? Read from what make would run, without running it."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


def would_run(*targets: str) -> list[str]:
    # These tests run under make themselves: what it hands down would make this one announce the directories it enters.
    outside = {name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "MFLAGS", "MAKELEVEL")}
    found = subprocess.run(["make", "-n", "-B", *targets], cwd=ROOT, env=outside, capture_output=True, text=True, check=True)
    return found.stdout.splitlines()


@pytest.mark.skipif(shutil.which("make") is None, reason="no make on this machine")
def test_oracles_leave_torch_as_it_is() -> None:
    """timm asks for torchvision, which asks for its own torch: installed alone, or under a constraint, neither is touched."""
    into_ours = [line for line in would_run("oracles") if "pip install" in line and line.startswith(".venv/bin/python")]
    (timm,) = [line for line in into_ours if "timm" in line]
    (transformers,) = [line for line in into_ours if "transformers" in line]
    assert "--no-deps" in timm and "transformers" not in timm
    assert "--constraint .venv/constraints.txt" in transformers
    made = [number for number, line in enumerate(would_run("oracles")) if "pip freeze" in line]
    assert made and made[0] < would_run("oracles").index(transformers)


@pytest.mark.skipif(shutil.which("make") is None, reason="no make on this machine")
def test_fuzz_takes_its_number_of_inputs() -> None:
    assert would_run("fuzz", "INPUTS=7")[-1].endswith("-m tests.fuzz --inputs 7")
