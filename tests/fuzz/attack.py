"""Does whatever is read or typed end in a result or in a sentence? Inputs in turn over all readers and the command line, within limits."""

from __future__ import annotations

import contextlib
import io
import os
import resource
import signal
import sys
import tempfile
import traceback
from collections.abc import Iterator
from pathlib import Path
from random import Random
from types import FrameType
from typing import NamedTuple

from sim.cli import main
from sim.spec.yaml import SpecError
from tests.fuzz.commands import command_line
from tests.fuzz.mutation import mutated
from tests.fuzz.readers import readers

SECONDS = 10
MEMORY = 2**30
"""Bytes that one input may take beside the program itself."""
_EACH = 40
"""Readers' inputs for each command line, which take a hundred times as long."""


class Finding(NamedTuple):
    """An input that caused neither a result nor an error message."""

    kind: str
    number: int
    message: str
    content: str


class TooLong(BaseException):
    """An input took more than its seconds of processor time."""


def attack(numbers: range, seed: int = 0) -> list[Finding]:
    """Return what went wrong over inputs *numbers*; number and *seed* make each again."""
    kinds = readers()
    names = sorted(kinds)
    findings = []
    with tempfile.TemporaryDirectory() as place, _limits(), _inside(Path(place)) as folder:
        for number in numbers:
            random = Random(f"{seed} {number}")
            if number % _EACH == 0:
                words = command_line(random, folder)
                kind, content, step = "command", repr(words), lambda words=words: _typed(words)
            else:
                kind = names[number % len(names)]
                reader = kinds[kind]
                path = folder / reader.file
                bad = mutated(reader.content, random)
                path.write_bytes(bad)
                content, step = repr(bad[:2000]), lambda path=path, reader=reader: reader.read(path)
            message = _ends(step)
            if message:
                findings.append(Finding(kind, number, message, content))
    return findings


def _ends(step: object) -> str:
    """Return how *step* ended; empty where it gave a result or a sentence."""
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    try:
        step()  # type: ignore[operator]
    except SpecError as error:
        if not error.problems or not all(problem.strip() for problem in error.problems):
            return f"no sentence: {error}"
    except TooLong:
        return f"took more than {SECONDS} s"
    except MemoryError:
        return f"took more than {MEMORY >> 20} MiB"
    except BaseException:
        return "".join(traceback.format_exc().splitlines(keepends=True)[-7:])
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
    return ""


def _typed(words: list[str]) -> None:
    stderr = io.StringIO()
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(stderr):
        code = main(words)
    said = stderr.getvalue()
    assert code in (0, 1, 2), (code, said)
    assert "internal error" not in said and "Traceback" not in said, said
    assert code != 2 or said.strip(), "an exit code of 2 without a word"


@contextlib.contextmanager
def _limits() -> Iterator[None]:
    """Let an input that takes too long, or too much memory, end in an exception."""

    def late(number: int, frame: FrameType | None) -> None:
        raise TooLong

    used = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE") if sys.platform == "linux" else 0
    before, old = resource.getrlimit(resource.RLIMIT_AS), signal.signal(signal.SIGPROF, late)
    if used:
        resource.setrlimit(resource.RLIMIT_AS, (used + 2 * MEMORY, before[1]))  # twice: what was freed is not always given back
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)
        signal.signal(signal.SIGPROF, old)


@contextlib.contextmanager
def _inside(folder: Path) -> Iterator[Path]:
    """Work in *folder*, with the few files that command lines name."""
    (folder / "empty.yaml").touch()
    (folder / "job.yaml").write_text("extends: alexnet\nname: job\n")
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield folder
    finally:
        os.chdir(before)
