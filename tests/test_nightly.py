"""Which nightly tests does a change reach? Oracles: a small project with written answers, what Python imports, git."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests import nightly
from tests.nightly import changed_since, covered, due, ended, nightly_files, outcomes

MARKED = "import pytest\n@pytest.mark.nightly\ndef test(): ...\n"
PROJECT = {
    "pyproject.toml": "",
    "hardware/box.yaml": "",
    "sim/__init__.py": "",
    "sim/__main__.py": "from sim.cli import main",
    "sim/cli.py": "def main(name):\n    import_module(f'sim.commands.{name}')",
    "sim/commands/__init__.py": "",
    "sim/commands/run.py": "import sim.deep",
    "sim/deep.py": "",
    "sim/late.py": "",
    "sim/direct.py": "def asked():\n    from sim import late\n",
    "sim/apart.py": "",
    "tests/conftest.py": "",
    "tests/a/test_import.py": f"from sim import direct\n{MARKED}",
    "tests/b/test_program.py": f"WORDS = ['-m', 'sim', 'run']\n{MARKED}",
    "tests/b/rows.csv": "",
    "tests/c/test_folder.py": f"BOX = ROOT / 'hardware'\n{MARKED}",
    "tests/c/cases.py": MARKED,
    "tests/d/test_through.py": "from tests.c.cases import test",
    "tests/d/test_quick.py": "from sim import direct",
}


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("project")
    for name, text in PROJECT.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


IMPORT, PROGRAM, FOLDER, THROUGH = "a/test_import.py", "b/test_program.py", "c/test_folder.py", "d/test_through.py"
REACHED = {
    "sim/direct.py": {IMPORT},
    "sim/late.py": {IMPORT},
    "sim/__init__.py": {IMPORT, PROGRAM},
    "sim/deep.py": {PROGRAM},
    "tests/b/rows.csv": {PROGRAM},
    "hardware/box.yaml": {FOLDER},
    "tests/c/cases.py": {THROUGH},
    "sim/apart.py": set(),
    "tests/conftest.py": {IMPORT, PROGRAM, FOLDER, THROUGH},
    "pyproject.toml": {IMPORT, PROGRAM, FOLDER, THROUGH},
}


@pytest.mark.parametrize("changed", REACHED)
def test_what_a_change_reaches(project: Path, changed: str) -> None:
    tests = nightly_files(project)
    assert {str(path.relative_to(project / "tests")) for path in tests} == {IMPORT, PROGRAM, FOLDER, THROUGH}
    found = due(tests, {project / changed}, project)
    assert {str(path.relative_to(project / "tests")) for path in found} == REACHED[changed]


def test_without_a_parent_all_are_due(project: Path) -> None:
    assert due(nightly_files(project), None, project) == nightly_files(project)
    assert due(nightly_files(project), set(), project) == []


def test_content_that_differs_from_the_parents(tmp_path: Path) -> None:
    def git(*words: str) -> None:
        subprocess.run(["git", "-c", "user.name=t", "-c", "user.email=t@t", *words], cwd=tmp_path, check=True, capture_output=True)

    git("init")
    for name in ("kept", "changed", "removed", "restored"):
        (tmp_path / name).write_text(name)
    git("add", "-A")
    git("commit", "-m", "first")
    assert changed_since("HEAD^", tmp_path) is None
    (tmp_path / "changed").write_text("otherwise")
    (tmp_path / "removed").unlink()
    git("add", "-A")
    git("commit", "-m", "second")
    (tmp_path / "new").write_text("")
    (tmp_path / "restored").write_text("restored")  # touched, with the same content
    assert changed_since("HEAD^", tmp_path) == {tmp_path / name for name in ("changed", "removed", "new")}


def test_all_that_python_imports_is_covered() -> None:
    """Of a test file and of a run as a process: what is in ``sys.modules`` then."""
    test = nightly.ROOT / "tests" / "study" / "test_sweep.py"
    code = """
import sys, tests.study.test_sweep
from sim.cli import main
main(["run", "p3.2xlarge", "resnet18", "--fast", "--quiet"])
print(*(path for module in list(sys.modules.values()) if (path := getattr(module, "__file__", None))), sep="\\n", file=sys.stderr)
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=nightly.ROOT, capture_output=True, text=True, check=True, timeout=240)
    loaded = {path for line in done.stderr.splitlines() if (path := Path(line)).is_relative_to(nightly.ROOT)}
    ours = {path for path in loaded if path.relative_to(nightly.ROOT).parts[0] in nightly.OURS}
    assert len(ours) > 100
    found = covered(test)
    assert ours - found == set()
    assert nightly.ROOT / "sim" / "commands" / "sweep.py" in found
    assert nightly.ROOT / "calibration" / "lab" / "run.py" not in found


def test_every_outcome_is_said() -> None:
    codes = {"passed": 0, "empty": 5, "failed": 1, "endless": None}
    tests = [Path(name) for name in codes]
    found = outcomes(tests, 60.0, lambda test, left: codes[test.name], 2)
    assert [found[test] for test in tests] == ["passed", "passed", "failed", "stopped: the budget was spent"]


def test_nothing_begins_after_the_budget() -> None:
    began = []

    def run(test: Path, left: float) -> int:
        began.append((test.name, left))
        time.sleep(left)
        return 0

    found = outcomes([Path("first"), Path("second")], 0.2, run, 1)
    assert [name for name, _ in began] == ["first"]
    assert 0 < began[0][1] <= 0.2
    assert found[Path("second")] == "skipped: the budget was spent"


def test_what_does_not_end_is_stopped(tmp_path: Path) -> None:
    started = time.monotonic()
    assert ended(tmp_path / "test_none.py", 0.3) is None
    assert time.monotonic() - started < 30
