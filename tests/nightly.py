"""Which nightly tests does a change reach? ``make due`` runs those of files whose covered content is not that of the parent commit.

A test file covers what it imports of this project, directly or through others, also inside functions and by a name in a text; the folders
and files that texts of tests and of `calibration` name; data beside it; and ``pyproject.toml``. Where git knows no parent, all are due.
What is due and does not end within the budget is named and left to `make nightly`; which comes first differs from commit to commit.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
BUDGET = 2400.0
"""Seconds for all that is due."""
OURS = ("sim", "calibration", "stallsim", "tests", "workloads")
ALWAYS = "pyproject.toml"
MARK = re.compile(r"\bmark\.nightly\b")
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
    found, data = set(waiting), {root / ALWAYS, *_data(test.parent, root)}
    while waiting:
        modules, files = read(waiting.pop(), root)
        data |= files
        waiting += modules - found
        found |= modules
    return found | data


def nightly_files(root: Path = ROOT) -> list[Path]:
    """Return the test files that have nightly tests: they, or what they import of the tests beside them, mark some."""
    marking = {path for path in (root / "tests").rglob("*.py") if MARK.search(path.read_text(encoding="utf-8"))}
    return sorted(path for path in (root / "tests").rglob("test_*.py") if path in marking or read(path, root)[0] & marking)


def due(tests: Iterable[Path], changed: set[Path] | None, root: Path = ROOT) -> list[Path]:
    """Return those of *tests* that cover something *changed*; all of them where that is not known."""
    return [test for test in tests if changed is None or covered(test, root) & changed]


def changed_since(parent: str, root: Path = ROOT) -> set[Path] | None:
    """Return the files whose content is not that of the commit *parent*; None where git does not know it."""

    def asked(*words: str) -> list[str]:
        return subprocess.run(["git", *words], cwd=root, capture_output=True, text=True, check=True).stdout.split("\0")

    try:
        names = [*asked("diff", "--name-only", "--no-renames", "-z", parent), *asked("ls-files", "--others", "--exclude-standard", "-z")]
    except (subprocess.CalledProcessError, FileNotFoundError):
        return None
    return {root / name for name in names if name}


def ended(test: Path, seconds: float) -> int | None:
    """Run the nightly tests of the file *test*; return pytest's exit code, None where they do not end within so many *seconds*."""
    words = [sys.executable, "-m", "pytest", "-q", "-n0", "--benchmark-disable", "-m", "nightly", str(test)]
    with subprocess.Popen(words, cwd=ROOT, start_new_session=True) as child:
        try:
            return child.wait(seconds)
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, signal.SIGKILL)  # with the processes that it has started
            return None


def outcomes(tests: Sequence[Path], budget: float, run: Callable[[Path, float], int | None], processes: int) -> dict[Path, str]:
    """Run *tests*, so many at a time, for *budget* seconds in all; return how each ended."""
    end = time.monotonic() + budget

    def outcome(test: Path) -> str:
        left = end - time.monotonic()
        code = run(test, left) if left > 0 else None
        if code is None:
            return "skipped: the budget was spent" if left <= 0 else "stopped: the budget was spent"
        return "passed" if code in (0, _NOTHING_COLLECTED) else "failed"

    with ThreadPoolExecutor(processes) as pool:
        return dict(zip(tests, pool.map(outcome, tests), strict=True))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the nightly tests that are due and say how each file ended; return 1 where one fails."""
    parser = argparse.ArgumentParser(prog="python -m tests.nightly", description=__doc__)
    parser.add_argument("--parent", default="HEAD^", help="commit that the content is compared with (default: %(default)s)")
    parser.add_argument("--budget", type=float, default=BUDGET, help="seconds for all (default: %(default)g)")
    parser.add_argument("--list", action="store_true", help="only say what is due")
    asked = parser.parse_args(arguments)
    tests, changed = nightly_files(), changed_since(asked.parent)
    found = due(tests, changed)
    found.sort(key=lambda test: hashlib.sha256(repr((sorted(map(str, changed or ())), test.name)).encode()).digest())
    said = "whose covered content has changed" if changed is not None else f"all, as git does not know {asked.parent}"
    print(f"nightly tests of {len(found)} of {len(tests)} files ({said})", flush=True)
    ends = dict.fromkeys(found, "due") if asked.list else outcomes(found, asked.budget, ended, len(os.sched_getaffinity(0)))
    for test in tests:
        print(f"  {test.relative_to(ROOT)}: {ends.get(test, 'skipped: what it covers is as it was')}")
    return int("failed" in ends.values())


if __name__ == "__main__":
    sys.exit(main())
