"""Does Ctrl-C end a long command with one word, without a traceback of it or of the processes that it started?"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

SECONDS = 60.0
"""Within which the processes of a sweep have begun, and later ended."""
POINTS = 150


def children(of: int) -> list[int]:
    """Return the processes that *of* started, resource trackers and all."""
    path = Path(f"/proc/{of}/task/{of}/children")
    return [int(word) for word in path.read_text().split()] if path.exists() else []


def started(words: list[str], folder: Path) -> subprocess.Popen[str]:
    """Return a command that runs in *folder*, in a process group of its own, as a terminal starts it."""
    return subprocess.Popen(
        [sys.executable, "-m", "sim", *words],
        cwd=folder,
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a shell starts what is in its background without it
    )


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="children are read from /proc")
def test_ctrl_c_while_processes_start(tmp_path: Path) -> None:
    """As a terminal does, SIGINT goes to all processes of the group, just when the workers import."""
    words = ["sweep", "p3.8xlarge", "resnet50", "--vary", f"batch=1..180:{POINTS}", "--jobs", "2", "-o", "t.csv"]
    process = started(words, tmp_path)
    end = time.monotonic() + SECONDS
    while len(children(process.pid)) < 3 and process.poll() is None and time.monotonic() < end:
        time.sleep(0.02)
    time.sleep(0.2)  # in the midst of their imports
    workers = children(process.pid)
    os.killpg(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=SECONDS)
    assert len(workers) >= 3
    assert process.returncode == 130, err
    assert out == ""
    assert "Traceback" not in err
    assert err.endswith("interrupted\n")
    assert not (tmp_path / "t.csv").exists()


def test_ctrl_c_while_modules_are_imported(tmp_path: Path) -> None:
    """A package that raises what Ctrl-C raises stands in for the moment of its import."""
    (tmp_path / "typer.py").write_text("raise KeyboardInterrupt\n")
    root = Path(__file__).resolve().parents[2]
    environment = os.environ | {"PYTHONPATH": f"{tmp_path}:{root}"}
    done = subprocess.run([sys.executable, "-m", "sim", "list"], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "interrupted\n")


@pytest.mark.parametrize(
    ("number", "code", "word"),
    [(signal.SIGINT, 130, "interrupted"), pytest.param(signal.SIGTERM, 143, "terminated", marks=pytest.mark.nightly)],
)
def test_a_plan_that_is_stopped_shows_the_best_so_far(tmp_path: Path, number: int, code: int, word: str) -> None:
    """Ctrl-C, and SIGTERM as ``timeout`` and batch systems send it: exit codes are 128 plus the signal's number (POSIX sh, 2.8.2)."""
    journal = tmp_path / "journal"
    few_layouts = ["--fix", "pp=8"]  # bounds take a fifth of the search, which simulates 94 layouts
    words = ["plan", "n3-h100-sxm5x8", "llama-3.2-1b", "--nodes", "4", "--global-batch", "64", *few_layouts, "--jobs", "1"]
    process = started([*words, "--journal", str(journal)], tmp_path)
    end = time.monotonic() + SECONDS
    while (not journal.exists() or journal.read_text().count("\n") < 3) and process.poll() is None and time.monotonic() < end:
        time.sleep(0.02)
    process.send_signal(number)
    out, err = process.communicate(timeout=SECONDS)
    assert process.returncode == code, err
    assert "a better layout may exist, by at most" in out and "Run the best: python -m sim run" in out
    assert "simulated so far; this is the best of them" in out
    assert "Traceback" not in err and err.endswith(f"{word}\n")
