"""Which nightly tests are due? Those of files that have not passed on the content that they cover now; ``make due`` runs them.

A test file covers what it imports of this project, directly or through others, also inside functions and by a name in a text; the folders
and files that texts of tests and of `calibration` name; data beside it; and ``pyproject.toml``. ``tests/nightly_passed.txt`` is committed
and holds, for each file, a hash of the covered content on which all its nightly tests passed and none was skipped; ``make due`` and
``make nightly`` write it. What is due and does not end within the budget is named and stays due; the order differs with the content.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import math
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Lock
from typing import NamedTuple
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parents[1]
BUDGET = 2400.0
"""Seconds for all that is due."""
PASSED = ROOT / "tests" / "nightly_passed.txt"
"""A line for each file: hash of covered content, path. Each line states a fact, so that a merge may keep the lines of both sides."""
OURS = ("sim", "calibration", "stallsim", "tests", "workloads")
ALWAYS = "pyproject.toml"
MARK = re.compile(r"\bmark\.nightly\b")
ALONE = re.compile(r"\bmark\.alone\b")
"""Marks tests that compare with what processes of their own take by the clock: other tests beside them would change that."""
_NAME = re.compile(r"[a-z_]\w*(\.\w+)*\.?")
_NOTHING_COLLECTED = 5
"""Exit code of pytest."""


def files_of(name: str, root: Path = ROOT) -> list[Path]:
    """Return the files that importing the module *name* reads: its own and those of the packages around it; none for other projects'.

    Of a name that ends in a dot, as in ``f"sim.commands.{name}"``, all modules of the package.
    """
    parts = name.rstrip(".").split(".")
    if parts[0] not in OURS:
        return []
    inside = root.joinpath(*parts)
    packages = [root.joinpath(*parts[:length], "__init__.py") for length in range(1, len(parts) + 1)]
    own = inside.glob("*.py") if name.endswith(".") else [inside.with_suffix(".py")]
    return [path for path in (*packages, *own) if path.is_file()]


def named(tree: ast.Module, module: Sequence[str]) -> Iterator[str]:
    """Yield the names that may be modules in what *tree*, the source of *module*, imports and in its texts.

    A package in a text may be run, as by ``python -m``.
    """
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            around = ".".join(module[: len(module) - node.level]) if node.level else ""
            start = ".".join(filter(None, (around, node.module)))
            yield start
            yield from (f"{start}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and _NAME.fullmatch(node.value):
            yield from (node.value, f"{node.value}.__main__")


@cache
def read(path: Path, root: Path = ROOT) -> tuple[frozenset[Path], frozenset[Path]]:
    """Return the modules that the module at *path* names, and what else it names of the project: files, and all files of folders."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    module = path.relative_to(root).with_suffix("").parts
    modules = {file for name in named(tree, module) for file in files_of(name, root)} - {path}
    if module[0] not in ("tests", "calibration"):
        return frozenset(modules), frozenset()
    texts = {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    places = (root / text for text in texts if 0 < len(text) < 100 and not text.startswith(("/", ".")) and "\0" not in text)
    data = {file for place in places for file in _data(place, root)}
    return frozenset(modules), frozenset(data)


def _data(place: Path, root: Path) -> Iterable[Path]:
    """Return the file at *place*, or all files below it, but for the sources of programs; those are named as modules."""
    with suppress(OSError, ValueError):
        if place.is_file():
            return [place]
        if place.is_dir() and place != root:
            return [file for file in place.rglob("*") if file.is_file() and file.suffix not in (".py", ".pyc")]
    return []


def covered(test: Path, root: Path = ROOT) -> set[Path]:
    """Return every file of the project that decides what the tests in the file *test* find."""
    conftests = [folder / "conftest.py" for folder in test.parents if folder.is_relative_to(root / "tests")]
    own = files_of(".".join(test.relative_to(root).with_suffix("").parts), root)
    waiting = [test, *own, *(path for path in conftests if path.is_file())]
    reached, data = set(waiting), {root / ALWAYS, *_data(test.parent, root)}
    while waiting:
        modules, files = read(waiting.pop(), root)
        data |= files
        waiting += modules - reached
        reached |= modules
    return reached | data


def nightly_files(root: Path = ROOT) -> list[Path]:
    """Return the test files that have nightly tests: they, or what they import of the tests beside them, mark some."""
    marking = {path for path in (root / "tests").rglob("*.py") if MARK.search(path.read_text(encoding="utf-8"))}
    return sorted(path for path in (root / "tests").rglob("test_*.py") if path in marking or read(path, root)[0] & marking)


def kept_by_git(root: Path = ROOT) -> frozenset[Path] | None:
    """Return the files that git has or would add; None where git does not know the project."""
    words = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    try:
        listed = subprocess.run(words, cwd=root, capture_output=True, text=True, check=True).stdout
    except (subprocess.CalledProcessError, FileNotFoundError):
        return None
    return frozenset(root / name for name in listed.split("\0") if name)


def content(test: Path, kept: frozenset[Path] | None, root: Path = ROOT) -> str:
    """Return a hash of the covered content of *test*: paths and bytes, of those files that a clone would have."""
    paths = covered(test, root) - {PASSED}
    hashes = {path.relative_to(root).as_posix(): _hash_of(path) for path in (paths if kept is None else paths & kept)}
    return hashlib.sha256(repr(sorted(hashes.items())).encode()).hexdigest()[:32]


@cache
def _hash_of(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def passed_before(record: Path = PASSED) -> set[tuple[str, str]]:
    """Return what the *record* says has passed: (hash of the content, path of the test file)."""
    lines = record.read_text(encoding="utf-8").splitlines() if record.is_file() else []
    return {(words[0], words[1]) for line in lines if len(words := line.split()) == 2}


def note(passed: Mapping[str, str], tests: Iterable[str], record: Path = PASSED) -> None:
    """Write to the *record* the content on which *passed* (by path) did; it keeps a line of each other one of *tests*."""
    kept = {path: digest for digest, path in sorted(passed_before(record))} | dict(passed)
    record.write_text("".join(f"{kept[path]} {path}\n" for path in sorted(set(tests) & set(kept))), encoding="utf-8")


class Ended(NamedTuple):
    """How the nightly tests of a file ended: pytest's exit code, and how many were skipped."""

    code: int
    skipped: int = 0

    @property
    def passed(self) -> bool:
        """Tell whether none failed."""
        return self.code in (0, _NOTHING_COLLECTED)


def ended(test: Path, seconds: float) -> Ended | None:
    """Run the nightly tests of the file *test*; return how they ended, None where they do not within so many *seconds*."""
    with TemporaryDirectory() as folder:
        report = Path(folder, "report.xml")
        words = [sys.executable, "-m", "pytest", "-q", "-n0", "--benchmark-disable", "-m", "nightly", f"--junitxml={report}", str(test)]
        with subprocess.Popen(words, cwd=ROOT, start_new_session=True) as child:
            try:
                code = child.wait(seconds if seconds < math.inf else None)
            except subprocess.TimeoutExpired:
                os.killpg(child.pid, signal.SIGKILL)  # with the processes that it has started
                return None
        skipped = len(ElementTree.parse(report).findall(".//testcase/skipped[@type='pytest.skip']")) if report.is_file() else 0
        return Ended(code, skipped)


def outcomes(
    tests: Sequence[Path],
    budget: float,
    run: Callable[[Path, float], Ended | None],
    processes: int,
    done: Callable[[Path], object] = lambda test: None,
    alone: Collection[Path] = (),
) -> dict[Path, str]:
    """Run *tests*, so many at a time, for *budget* seconds in all; return how each ended. *done* hears of those that passed as a whole.

    Those in *alone* run first, each by itself.
    """
    end = time.monotonic() + budget
    one_at_a_time = Lock()

    def outcome(test: Path) -> str:
        left = end - time.monotonic()
        if left <= 0:
            return "not run: the budget was spent"
        ending = run(test, left)
        if ending is None:
            return "stopped: the budget was spent"
        if not ending.passed:
            return "failed"
        if ending.skipped:
            return f"passed, but for {ending.skipped} skipped: stays due"
        with one_at_a_time:
            done(test)
        return "passed"

    ends = {test: outcome(test) for test in tests if test in alone}
    rest = [test for test in tests if test not in alone]
    with ThreadPoolExecutor(processes) as pool:
        return ends | dict(zip(rest, pool.map(outcome, rest), strict=True))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the nightly tests that are due and say how each file ended; return 1 where one fails."""
    parser = argparse.ArgumentParser(prog="python -m tests.nightly", description=__doc__)
    parser.add_argument("--all", action="store_true", help="run all, due or not")
    parser.add_argument("--budget", type=float, default=BUDGET, help="seconds for all (default: %(default)g)")
    parser.add_argument("--list", action="store_true", help="only say what is due")
    options = parser.parse_args(arguments)
    kept, before = kept_by_git(), passed_before()
    names = {test: test.relative_to(ROOT).as_posix() for test in nightly_files()}
    digests = {test: content(test, kept) for test in names}
    due = [test for test in names if options.all or (digests[test], names[test]) not in before]
    due.sort(key=lambda test: digests[test])
    print(f"nightly tests of {len(due)} of {len(names)} files", flush=True)

    def passed(test: Path) -> None:
        note({names[test]: digests[test]}, names.values())

    if options.list:
        ends = dict.fromkeys(due, "due")
    else:
        alone = {test for test in due if ALONE.search(test.read_text(encoding="utf-8"))}
        ends = outcomes(due, options.budget, ended, len(os.sched_getaffinity(0)), passed, alone)
    for test, name in names.items():
        print(f"  {name}: {ends.get(test, 'passed before, on the same content')}")
    return int("failed" in ends.values())


if __name__ == "__main__":
    sys.exit(main())
