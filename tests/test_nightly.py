"""Which nightly tests does a change reach? Oracles: a small project with written answers, what Python imports, git's own clones."""

from __future__ import annotations

import math
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests import nightly
from tests.nightly import Ended, content, covered, ended, kept_by_git, nightly_files, note, outcomes, passed_before

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
    reached = {str(test.relative_to(project / "tests")) for test in tests if project / changed in covered(test, project)}
    assert reached == REACHED[changed]


def git(root: Path, *words: str) -> None:
    subprocess.run(["git", "-c", "user.name=t", "-c", "user.email=t@t", *words], cwd=root, check=True, capture_output=True)


class Clone:
    """A repository with one test file, which covers a table beside it; what it has passed is committed as in the project."""

    def __init__(self, root: Path) -> None:
        self.root, self.test, self.table = root, root / "tests" / "a" / "test_rows.py", root / "tests" / "a" / "rows.csv"
        self.record = root / "tests" / "passed.txt"

    def commit(self) -> None:
        git(self.root, "add", "-A")
        git(self.root, "commit", "-m", "more", "--allow-empty")

    def content(self) -> str:
        nightly._hash_of.cache_clear()
        return content(self.test, kept_by_git(self.root), self.root)

    def due(self) -> bool:
        return (self.content(), "tests/a/test_rows.py") not in passed_before(self.record)

    def passes(self) -> None:
        note({"tests/a/test_rows.py": self.content()}, ["tests/a/test_rows.py"], self.record)


@pytest.fixture
def clone(tmp_path: Path) -> Clone:
    made = Clone(tmp_path)
    made.test.parent.mkdir(parents=True)
    made.test.write_text(MARKED)
    made.table.write_text("1")
    (tmp_path / "pyproject.toml").write_text("")
    (tmp_path / "other.txt").write_text("1")
    (tmp_path / ".gitignore").write_text("*.log")
    git(tmp_path, "init")
    made.commit()
    return made


def test_what_never_passed_is_due(clone: Clone) -> None:
    assert clone.due()
    clone.passes()
    assert not clone.due()


def test_a_change_several_commits_ago_keeps_it_due(clone: Clone, tmp_path_factory: pytest.TempPathFactory) -> None:
    """In a clean clone as well: the parent commit does not matter."""
    clone.passes()
    clone.table.write_text("2")
    clone.commit()
    for text in ("2", "3"):
        (clone.root / "other.txt").write_text(text)
        clone.commit()
    clean = tmp_path_factory.mktemp("clean")
    git(clean, "clone", str(clone.root), "copy")
    assert Clone(clean / "copy").due()
    clone.passes()
    clone.commit()
    git(clean, "clone", str(clone.root), "later")
    assert not Clone(clean / "later").due()


def test_content_that_comes_back_has_passed(clone: Clone) -> None:
    clone.passes()
    clone.table.write_text("2")
    assert clone.due()
    clone.table.write_text("1")
    assert not clone.due()


def test_only_what_a_clone_has_counts(clone: Clone) -> None:
    """Files that git ignores are not in a clone; new ones may be added, and removed ones are gone."""
    clone.passes()
    (clone.test.parent / "trace.log").write_text("")
    assert not clone.due()
    (clone.test.parent / "more.csv").write_text("")
    assert clone.due()
    (clone.test.parent / "more.csv").unlink()
    clone.table.unlink()
    assert clone.due()


def test_the_record_is_no_content_of_its_own(monkeypatch: pytest.MonkeyPatch, clone: Clone) -> None:
    """Else writing it would make due what covers its folder."""
    beside = clone.test.parent / "passed.txt"
    before = clone.content()
    monkeypatch.setattr(nightly, "PASSED", beside)
    beside.write_text("f tests/a/test_rows.py")
    assert clone.content() == before


def test_without_git_all_files_count(tmp_path: Path, clone: Clone) -> None:
    assert kept_by_git(tmp_path.parent) is None
    before = content(clone.test, None, clone.root)
    clone.table.write_text("2")
    nightly._hash_of.cache_clear()
    assert content(clone.test, None, clone.root) != before


def test_lines_of_both_sides_of_a_merge_hold(tmp_path: Path) -> None:
    record = tmp_path / "passed.txt"
    assert passed_before(record) == set()
    record.write_text("a1 tests/a.py\na2 tests/a.py\nb1 tests/b.py\ngone tests/gone.py\n")
    assert passed_before(record) >= {("a1", "tests/a.py"), ("a2", "tests/a.py")}
    note({"tests/a.py": "a3"}, ["tests/a.py", "tests/b.py"], record)
    assert passed_before(record) == {("a3", "tests/a.py"), ("b1", "tests/b.py")}


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
    files = covered(test)
    assert ours - files == set()
    assert nightly.ROOT / "sim" / "commands" / "sweep.py" in files
    assert nightly.ROOT / "calibration" / "lab" / "run.py" not in files


def test_every_outcome_is_said() -> None:
    ends = {"passed": Ended(0), "empty": Ended(5), "skipping": Ended(0, skipped=2), "failed": Ended(1), "endless": None}
    tests = [Path(name) for name in ends]
    passed: list[str] = []
    ends_by_test = outcomes(tests, 60.0, lambda test, left: ends[test.name], 2, lambda test: passed.append(test.name))
    said = ["passed", "passed", "passed, but for 2 skipped: stays due", "failed", "stopped: the budget was spent"]
    assert [ends_by_test[test] for test in tests] == said
    assert sorted(passed) == ["empty", "passed"]


def test_what_is_measured_by_the_clock_runs_alone() -> None:
    tests = [Path(name) for name in "abcdef"]
    alone, running, beside = {tests[1], tests[4]}, set[Path](), dict[Path, set[Path]]()

    def run(test: Path, seconds: float) -> Ended:
        running.add(test)
        time.sleep(0.02)
        beside[test] = running - {test}
        running.discard(test)
        return Ended(0)

    assert set(outcomes(tests, 60, run, 3, alone=alone)) == set(tests) == set(beside)
    assert not any(others for test, others in beside.items() if test in alone)
    assert not any(others & alone for others in beside.values())


def test_nothing_begins_after_the_budget() -> None:
    began = []

    def run(test: Path, left: float) -> Ended:
        began.append((test.name, left))
        time.sleep(left)
        return Ended(0)

    ends_by_test = outcomes([Path("first"), Path("second")], 0.2, run, 1)
    assert [name for name, _ in began] == ["first"]
    assert 0 < began[0][1] <= 0.2
    assert ends_by_test[Path("second")] == "not run: the budget was spent"


def test_how_a_file_ends_is_read_of_its_report(tmp_path: Path) -> None:
    """A file of three nightly tests: one passes, one is skipped, one fails as it should; and a quick one, which does not run."""
    test = tmp_path / "test_three.py"
    mark = "@pytest.mark.nightly\ndef test_"
    head = (
        f"import pytest\n{mark}a(): ...\n{mark}b(): pytest.skip('absent')\n{mark}c(): pytest.xfail('an aim')\ndef test_quick(): assert 0\n"
    )
    test.write_text(head)
    assert ended(test, 200.0) == Ended(0, skipped=1)
    test.write_text(f"{head}{mark}d(): assert 0\n")
    assert ended(test, math.inf) == Ended(1, skipped=1)


def test_what_does_not_end_is_stopped(tmp_path: Path) -> None:
    started = time.monotonic()
    assert ended(tmp_path / "test_none.py", 0.3) is None
    assert time.monotonic() - started < 30
