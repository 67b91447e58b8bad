"""`import stallsim` is the public package: cheap to import, documented, and enough for a first session."""

from __future__ import annotations

import subprocess
import sys

import stallsim


def test_all_names_exist_and_are_documented() -> None:
    missing = [name for name in stallsim.__all__ if name[0] != "_" and not getattr(stallsim, name).__doc__]
    assert not missing


def test_importing_costs_no_heavy_library() -> None:
    code = "import stallsim, sys; print([name for name in ('pandas', 'torch', 'matplotlib', 'simpy') if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "[]"


def test_runs_with_and_without_a_layout() -> None:
    plain = stallsim.run("p3.16xlarge", "vgg16")
    laid = stallsim.run("hgx-h100", "llama-3.2-1b", parallel={"shard": "parameters"}, micro_batches=2)
    assert plain.step_time > 0
    assert laid.document["micro_batches"] == 2


def test_load_tells_hardware_from_workloads() -> None:
    assert stallsim.load("p3.16xlarge").name == "p3.16xlarge"
    assert stallsim.load("vgg16").name == "vgg16"


def test_check_lists_problems(tmp_path) -> None:  # type: ignore[no-untyped-def]
    path = tmp_path / "box.yaml"
    path.write_text("name: box\nnode: {gpu: nonsense}\n")
    assert stallsim.check("p3.16xlarge") == []
    assert any("box.yaml" in problem for problem in stallsim.check(path))
