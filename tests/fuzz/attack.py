"""Does whatever is read or typed end in a result or in a sentence? Inputs in turn over all readers and the command line, within limits."""

from __future__ import annotations

import contextlib
import io
import os
import resource
import shlex
import shutil
import signal
import sys
import tempfile
import traceback
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from importlib import import_module
from multiprocessing import active_children
from pathlib import Path
from random import Random
from types import FrameType
from typing import NamedTuple

from calibration.cli import main as calibrator
from sim.cli import main as simulator
from sim.spec.strict import parse_json
from sim.spec.yaml import SpecError
from sim.terminal import INTERRUPTED
from tests.fuzz.commands import command_line
from tests.fuzz.mutation import mutated
from tests.fuzz.readers import readers
from tests.fuzz.typed_values import files

SECONDS = 10
MEMORY = 2**30
"""Bytes that one input may take beside the program itself."""
EACH = 40
"""Readers' inputs for each command line, which take a hundred times as long."""
SERVED = 1.0
"""Seconds after which Ctrl-C ends a page that is served."""
AGAIN = 3.0
"""Seconds until Ctrl-C is typed again, where the first came in the middle of what ignores it, such as the end of an object."""
WAITED = 120.0
"""Seconds by the clock, on a busy machine as well, that no input needs: processes of its own or a network may keep one waiting."""


class Finding(NamedTuple):
    """An input that caused neither a result nor an error message."""

    kind: str
    number: int
    message: str
    content: str


class TooLong(BaseException):
    """An input took more than its seconds of processor time."""


def attack(numbers: range, seed: int = 0, each: int = EACH, codes: Counter[int] | None = None) -> list[Finding]:
    """Return what went wrong over inputs *numbers*, of which one in *each* is a command line; number and *seed* make each again.

    The exit codes of command lines are counted in *codes*.
    """
    kinds = readers()
    names = sorted(kinds)
    findings = []
    with tempfile.TemporaryDirectory() as place, _limits(), _inside(Path(place)) as folder:
        for number in numbers:
            random = Random(f"{seed} {number}")
            if number % each == 0:
                program, words = command_line(random)
                changed = _lay_out(folder / "typed", words, random)
                kind, content, step = (
                    "command",
                    f"{program} {shlex.join(words)}{changed}",
                    partial(_typed, program, words, folder / "typed", Counter() if codes is None else codes),
                )
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
        return "".join(traceback.format_exc().splitlines(keepends=True)[-25:])
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
    return ""


def _lay_out(folder: Path, words: Sequence[str], random: Random) -> str:
    """Empty *folder* but for the files that *words* name, one in eight of them with something wrong; return which, and how they look."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    changed = ""
    for name, content in files().items():
        if not any(part in word for part in (name, name.partition("/")[0]) for word in words):
            continue
        if wrong := random.random() < 1 / 8:
            content = mutated(content, random)
            changed += f"\n{name}: {content[:2000]!r}" if wrong else ""
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return changed


def _typed(program: str, words: list[str], folder: Path, codes: Counter[int]) -> None:
    stdout, stderr = io.StringIO(), io.StringIO()
    serves = program == "sim" and words[:1] == ["ui"]
    if serves:
        with contextlib.suppress(ImportError):  # an import that is interrupted fails from then on
            import_module("sim.ui.server")
            import_module("uvicorn")
    before = Path.cwd()
    os.chdir(folder)
    try:
        with contextlib.redirect_stdout(stdout), contextlib.redirect_stderr(stderr):
            signal.setitimer(signal.ITIMER_REAL, SERVED if serves else WAITED, AGAIN)
            code = {"sim": simulator, "calibration": calibrator}[program](words)
            signal.setitimer(signal.ITIMER_REAL, 0)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        os.chdir(before)
        for process in active_children() if serves else ():
            process.kill()
    said = stderr.getvalue()
    codes[code] += 1
    assert code in ((0, 1, 2, INTERRUPTED) if serves else (0, 1, 2)), (code, said)
    assert "internal error" not in said and "Traceback" not in said, said
    assert code != 2 or said.strip(), "an exit code of 2 without a word"
    if code == 0 and "--json" in words and (printed := stdout.getvalue()).startswith(("{", "[")):
        parse_json(printed, "stdout")  # no NaN, and nothing after the document


@contextlib.contextmanager
def _limits() -> Iterator[None]:
    """Let an input that takes too long, or too much memory, end in an exception."""

    def late(number: int, frame: FrameType | None) -> None:
        raise TooLong

    def interrupt(number: int, frame: FrameType | None) -> None:
        signal.raise_signal(signal.SIGINT)

    used = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE") if sys.platform == "linux" else 0
    before, old = resource.getrlimit(resource.RLIMIT_AS), signal.signal(signal.SIGPROF, late)
    old_alarm = signal.signal(signal.SIGALRM, interrupt)
    if used:
        resource.setrlimit(resource.RLIMIT_AS, (used + 2 * MEMORY, before[1]))  # twice: what was freed is not always given back
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)
        signal.signal(signal.SIGPROF, old)
        signal.signal(signal.SIGALRM, old_alarm)


@contextlib.contextmanager
def _inside(folder: Path) -> Iterator[Path]:
    """Work in *folder*; a browser that is to be opened is none."""
    os.environ["BROWSER"] = "true"
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield folder
    finally:
        os.chdir(before)
