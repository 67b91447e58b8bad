"""Do targets leave the environment as the tests need it? Read from what make would run, without running it."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


def would_run(*targets: str) -> list[str]:
    # These tests run under make themselves: what it hands down would make this one announce the directories it enters.
    outside = {name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "MFLAGS", "MAKELEVEL")}
    completed = subprocess.run(["make", "-n", "-B", *targets], cwd=ROOT, env=outside, capture_output=True, text=True, check=True)
    return completed.stdout.splitlines()


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
@pytest.mark.parametrize("target", ["run", "test", "docs"])
def test_no_target_installs_a_copy_of_the_program(target: str) -> None:
    """A copy in .venv would stay as it is while the sources change, and `stallsim` there would run it."""
    ours = [line for line in would_run(target) if " -m pip install" in line and shlex.split(line)[-1].startswith(".")]
    assert [line for line in ours if "--editable" not in line] == []


@pytest.mark.skipif(shutil.which("make") is None, reason="no make on this machine")
def test_fuzz_takes_its_number_of_inputs() -> None:
    assert would_run("fuzz", "INPUTS=7")[-1].endswith("-m tests.fuzz --inputs 7")
    assert would_run("fuzz", "INPUTS=7", "JOBS=1")[-1].endswith("-m tests.fuzz --inputs 7 --jobs 1")


@pytest.mark.skipif(shutil.which("make") is None, reason="no make on this machine")
def test_one_process_takes_all_tests_of_a_file(tmp_path: Path) -> None:
    """Else each process makes anew what fixtures and caches hold. Oracle: the processes of the tests of four files, side by side."""
    text = """import os, pathlib, time
import pytest
@pytest.mark.parametrize("number", range(4))
def test(number):
    time.sleep(0.05)
    pathlib.Path(__file__).with_suffix(f".{number}").write_text(os.environ["PYTEST_XDIST_WORKER"])
"""
    for name in "abcd":
        (tmp_path / f"test_{name}.py").write_text(text)
    [line] = [line for line in would_run("test") if " -m pytest " in line]
    options = [word for word in line.split(" -m pytest ")[1].split(" -m ")[0].split() if word != "auto"]
    options[options.index("--numprocesses")] = "--numprocesses=2"
    words = [sys.executable, "-m", "pytest", "-c", str(ROOT / "pyproject.toml"), "--rootdir", str(tmp_path), *options, str(tmp_path)]
    subprocess.run(words, cwd=tmp_path, capture_output=True, check=True, timeout=300)
    workers = {name: {(tmp_path / f"test_{name}.{number}").read_text() for number in range(4)} for name in "abcd"}
    assert [len(names) for names in workers.values()] == [1, 1, 1, 1]
    assert set.union(*workers.values()) == {"gw0", "gw1"}


@pytest.mark.skipif(shutil.which("make") is None, reason="no make on this machine")
def test_tests_are_compiled_once_before_several_processes_run_them() -> None:
    compiles, runs = (
        [number for number, line in enumerate(would_run("test")) if text in line] for text in ("--collect-only", " -m pytest ")
    )
    assert len(compiles) == len(runs) == 1 and compiles < runs


@pytest.mark.skipif(shutil.which("make") is None, reason="no make on this machine")
def test_oracles_run_the_tests_that_ask_for_them() -> None:
    """A test that skips for want of what `make oracles` installs stands in a file, or in a folder, that it runs."""
    (tests,) = [line for line in " ".join(would_run("oracles")).replace("\\", "").split(".venv/bin/python") if "pytest" in line]
    runs = [ROOT / word for word in tests.split() if word.startswith("tests/")]
    asking = [path for path in (ROOT / "tests").rglob("*.py") if "is not installed: make oracles" in path.read_text(encoding="utf-8")]
    assert asking
    assert [path for path in asking if not any(path.is_relative_to(place) for place in runs) and path != Path(__file__)] == []
