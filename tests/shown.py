"""Which output belongs into README.md and docs/? Runs the commands they show and puts what is printed below them.

A block begins with ``<!-- run: COMMAND -->``, or with ``<!-- run, exits 2: COMMAND -->`` if the command fails and its message is shown, and
ends with ``<!-- end -->``; ``make readme`` renews all, a test compares them. Python examples (``pycon``) are
renewed in the same way.
"""

from __future__ import annotations

import contextlib
import doctest
import io
import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from calibration.cli import main as calibrator
from sim.cli import main as simulator

ROOT = Path(__file__).resolve().parents[1]
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
BLOCK = re.compile(r"<!-- run(?:, exits (?P<code>\d+))?: (?P<command>.+?) -->\n(?P<body>.*?)<!-- end -->", re.DOTALL)
DAY = "2026-11-25"
"""From which the ages of prices are counted, so that what is shown stays."""
PYTHON = re.compile(r"```pycon\n(?P<body>.*?)```", re.DOTALL)


ENVIRONMENT = {"NO_COLOR": "1", "COLUMNS": "160", "PYTHONIOENCODING": "utf-8", "STALLSIM_TODAY": DAY}
PROGRAMS: dict[str, Callable[[list[str]], int]] = {"python -m sim": simulator, "python -m calibration": calibrator}


def output(command: str, exits: int = 0) -> str:
    """Return what *command* prints when typed in the project's folder, as `process_output` does; a program of ours runs in this process.

    Raise RuntimeError unless it ends with the code that is due; where that is not 0, its messages are part of what it prints.
    """
    words = shlex.split(command)
    program = PROGRAMS.get(" ".join(words[:3]))
    if program is None:
        return process_output(command)
    printed, before, folder = io.StringIO(), os.environ.copy(), Path.cwd()
    os.environ.update(ENVIRONMENT)
    os.chdir(ROOT)
    try:
        with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(io.StringIO()) as stderr:
            code = program(words[3:])
    finally:
        os.chdir(folder)
        os.environ.clear()
        os.environ.update(before)
    if code != exits:
        raise RuntimeError(f"{command} ends with {code}: {stderr.getvalue()}")
    return printed.getvalue() + (stderr.getvalue() if exits else "")


def process_output(command: str) -> str:
    """Return what *command* prints when typed in the project's folder."""
    words = shlex.split(command)
    if words[0] == "python":
        words[0] = sys.executable
    done = subprocess.run(words, cwd=ROOT, env=os.environ | ENVIRONMENT, check=True, capture_output=True, encoding="utf-8", timeout=240)
    return done.stdout


def block(match: re.Match[str]) -> str:
    """Return the whole block of *match*, with its command freshly run."""
    command, code = match["command"], int(match["code"] or 0)
    head = f"run, exits {code}" if code else "run"
    return f"<!-- {head}: {command} -->\n```\n$ {command}\n{output(command, code).rstrip()}\n```\n<!-- end -->"


def renewed(text: str) -> str:
    """Return the *text* of a page with every block renewed."""
    return BLOCK.sub(block, text)


def session(text: str) -> str:
    """Return what Python shows when the ``>>>`` lines of a page's *text* are typed one after another, by block, in an empty folder."""
    names: dict[str, object] = {}
    before = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            return PYTHON.sub(lambda match: f"```pycon\n{_typed(match['body'], names)}```", text)
        finally:
            os.chdir(before)


def _typed(body: str, names: dict[str, object]) -> str:
    shown = io.StringIO()
    for example in doctest.DocTestParser().get_examples(body):
        shown.write(f">>> {example.source}")
        with contextlib.redirect_stdout(shown):
            exec(compile(example.source, "a page", "single"), names)
    return shown.getvalue()


if __name__ == "__main__":
    for page in PAGES:
        page.write_text(session(renewed(page.read_text(encoding="utf-8"))), encoding="utf-8")
