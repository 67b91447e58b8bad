"""How does the program communicate with its user? Data on stdout, messages on stderr, an exit code, and no traceback without ``--debug``.

Exit codes: 0 success; 1 the command ran, but a condition failed or nothing qualifies, as when no layout of a plan fits; 2 usage
error or bad input, such as a single job that does not fit; 130 interrupted (Ctrl-C), 143 terminated (SIGTERM).
``--quiet`` and ``--debug`` may appear anywhere on the command line.
"""

from __future__ import annotations

import errno
import json
import os
import re
import shlex
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import typer

from sim.report.files import MADE_BY, TRACE
from sim.spec.yaml import SpecError
from sim.units import shorten, show

if TYPE_CHECKING:
    from sim.report.picture import Picture

SCRIPTS = {"python -m sim": "stallsim", "python -m calibration": "stallsim-calibrate"}
"""The two ways to call each program; messages and help are written with the first."""

GLOBAL_OPTIONS = {"--debug": "debug", "--quiet": "quiet", "-q": "quiet"}
"""Options that are removed before the command line is parsed."""
ITEMS_FOR_ESTIMATE: Final = 3
"""Items of many that must be done before an estimate of the remaining time: the first may be the largest."""


INTERRUPTED, TERMINATED = 128 + signal.SIGINT, 128 + signal.SIGTERM
"""The exit codes of a command that Ctrl-C or SIGTERM ended."""

MINUTE = 60.0
"""Seconds between two lines of progress if stderr is not a terminal."""


class Console:
    """Writes messages and progress to stderr."""

    quiet = False

    def __init__(self) -> None:
        self.said = time.monotonic()
        self.last = ""
        """The last line of progress; empty if it no longer holds."""
        self.ended: threading.Event | None = None
        """Set at the end of the command to end the thread that repeats this line; None if there is none."""

    def __call__(self, text: str) -> None:
        """Write *text* on a line of its own, in place of a line of progress, unless quiet."""
        if not self.quiet:
            if sys.stderr.isatty():
                self.progress("")
            typer.echo(named_as_called(text), err=True)

    def counter(self, what: str) -> Callable[[int, int], None]:
        """Return a callback (done, total) that shows progress over *what* and an estimate of the remaining time."""
        began: tuple[float, int] | None = None

        def show_done(done: int, of: int) -> None:
            nonlocal began
            now = time.monotonic()
            began = began or (now, done)  # time before the first item, such as starting processes, says nothing about the rest
            left = (now - began[0]) / max(done - began[1], 1) * (of - done)
            enough = done - began[1] >= min(ITEMS_FOR_ESTIMATE, of // 10)
            show_left = left >= 1 and now - began[0] > 1 and enough
            self.progress(f"{done:,} of {of:,} {what}" + (f", about {show(left, 'time', 2)} left" if show_left else ""))

        return show_done

    def progress(self, text: str) -> None:
        """Replace the line of progress by *text*, or clear it if that is empty; without a terminal, print it once a minute."""
        if self.quiet:
            return
        if sys.stderr.isatty() and os.environ.get("TERM") != "dumb":
            sys.stderr.write(f"\r\x1b[K{text[: shutil.get_terminal_size().columns - 1]}")
            sys.stderr.flush()
            return
        self.last = text
        if text and time.monotonic() - self.said >= MINUTE:
            self._repeat()
        elif text and self.ended is None:
            self.ended = threading.Event()
            threading.Thread(target=self._repeat_each_minute, args=(self.ended,), daemon=True).start()

    def end(self) -> None:
        """Repeat no line of progress any more: the command has ended."""
        self.last = ""
        if self.ended is not None:
            self.ended.set()
            self.ended = None

    def _repeat(self) -> None:
        self.said = time.monotonic()
        typer.echo(self.last, err=True)

    def _repeat_each_minute(self, ended: threading.Event) -> None:
        """Print the last line of progress again for each minute without another, until *ended*: one item may take long."""
        while not ended.wait(max(MINUTE / 60, self.said + MINUTE - time.monotonic())):
            if self.last and not self.quiet and time.monotonic() - self.said >= MINUTE:
                self._repeat()


messages = Console()


def json_text(value: Any) -> str:
    """Return the JSON text of *value*, with the program named as it was called."""
    return named_as_called(json.dumps(value, indent=2)) + "\n"


def print_json(value: Any) -> None:
    """Print *value* on stdout as JSON."""
    typer.echo(json_text(value), nl=False)


def show_text(text: str) -> None:
    """Print *text* on stdout with the program named as it was called; on a terminal, fit it to the width and color it.

    NO_COLOR and TERM=dumb disable colors.
    """
    text = named_as_called(text)
    if sys.stdout.isatty():
        from sim.report.fitting import color_text, fit_text

        text = fit_text(text, shutil.get_terminal_size().columns)
        text = color_text(text) if in_color() else text
    typer.echo(text)


def in_color() -> bool:
    """Return whether the environment allows colors (no-color.org: not if NO_COLOR is set and not empty)."""
    return not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def split_global_options(arguments: Sequence[str]) -> tuple[list[str], set[str]]:
    """Return *arguments* without the options of `GLOBAL_OPTIONS`, and the names of these options; everything after ``--`` is kept."""
    end = list(arguments).index("--") if "--" in arguments else len(arguments)
    flags = {GLOBAL_OPTIONS[word] for word in arguments[:end] if word in GLOBAL_OPTIONS}
    return [*(word for word in arguments[:end] if word not in GLOBAL_OPTIONS), *arguments[end:]], flags


def exit_code(app: Callable[..., Any], arguments: Sequence[str] | None) -> int:
    """Run *app* on *arguments* (None: those of the process) and return the exit code; errors are one sentence on stderr."""
    words, flags = split_global_options(sys.argv[1:] if arguments is None else arguments)
    messages.quiet, messages.said = "quiet" in flags, time.monotonic()
    _open_closed_streams()
    handler = _end_on_sigterm()
    token, trace_token = MADE_BY.set(shlex.join([*program().split(), *words])), TRACE.set("")
    try:
        app(args=words, standalone_mode=True)
    except SystemExit as stopped:
        if stopped.code in (INTERRUPTED, TERMINATED):
            return _interrupted()
        _show_example(stopped.__context__)
        return stopped.code if isinstance(stopped.code, int) else 1
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the reader, such as head, has closed the pipe
    except KeyboardInterrupt:
        return _interrupted()
    except Exception as error:
        if "debug" in flags:
            raise
        messages.progress("")
        typer.echo(_error_message(error), err=True)
        return 1 if isinstance(error, SpecError) and error.nothing_qualifies else 2
    finally:
        messages.end()
        MADE_BY.reset(token)
        TRACE.reset(trace_token)
        if handler is not None:
            signal.signal(signal.SIGTERM, handler)
    return 0


class TerminationRequest(KeyboardInterrupt):
    """Raised by SIGTERM, as from ``timeout`` and batch systems, so that a command ends as after Ctrl-C: with the best found so far."""


_terminations: list[int] = []
"""Signals that ended the command; a list, because a handler may not return anything."""


def _end_on_sigterm() -> Any:
    """Let SIGTERM raise `TerminationRequest`, and return the previous handler; None in threads, and if a caller has its own."""
    _terminations.clear()
    if threading.current_thread() is not threading.main_thread() or signal.getsignal(signal.SIGTERM) != signal.SIG_DFL:
        return None
    return signal.signal(signal.SIGTERM, _terminate)


def _terminate(number: int, frame: object) -> None:
    _terminations.append(number)
    raise TerminationRequest


def _open_closed_streams() -> None:
    """Discard what is written to stdout or stderr if the caller closed it; Python then has None in its place."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_WRONLY), "w", encoding="utf-8"))


_FULL: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EROFS)
"""Error codes of a disk that cannot be written; these are not bugs of the program."""


def _error_message(error: Exception) -> str:
    """Return the sentence that reports *error*."""
    if isinstance(error, SpecError):
        return named_as_called(str(error))
    if isinstance(error, OSError) and error.errno in _FULL:
        return f"{error.filename or 'the output'}: cannot be written: {error.strerror}"
    if isinstance(error, OSError) and error.errno == errno.ENAMETOOLONG:
        return f"{shorten(str(error.filename))}: the name is too long for a file"
    return f"internal error: {type(error).__name__}: {error}; --debug shows where"


def _interrupted() -> int:
    """Report that Ctrl-C or SIGTERM ended the command, and return its exit code."""
    messages.progress("")
    messages("terminated" if _terminations else "interrupted")
    return TERMINATED if _terminations else INTERRUPTED


def _show_example(error: BaseException | None) -> None:
    """Print the example of the command that a usage *error* belongs to."""
    command = getattr(getattr(error, "ctx", None), "command", None)
    format_message = getattr(error, "format_message", None)
    example = getattr(command, "epilog", None)
    if example and format_message is not None and not format_message().startswith("Usage:"):  # the full help already has the examples
        typer.echo(f"\n{named_as_called(example)}", err=True)


def program() -> str:
    """Return the name of the program as called: ``stallsim``, ``stallsim-calibrate``, ``python -m calibration`` or ``python -m sim``."""
    called = Path(sys.argv[0])
    if called.stem in SCRIPTS.values():
        return called.stem
    module = f"python -m {called.parent.name}"
    return module if called.name == "__main__.py" and module in SCRIPTS else "python -m sim"


def named_as_called(text: str) -> str:
    """Return *text* with the program named as it was called."""
    if program() in SCRIPTS:
        return text
    for module, script in SCRIPTS.items():
        text = re.sub(rf"{module}(?=\s|$)", script, text)
    return text


def wrote_trace(path: Path, said: str) -> None:
    """Report that the trace *path* is written, as *said*; pages of this command refer to it."""
    TRACE.set(str(path))
    messages(f"wrote {said}")


def name_in_file(path: Path) -> None:
    """Name the program in the new file *path* as it was called."""
    from sim.spec.whole_file import write_file

    text = path.read_text(encoding="utf-8")
    if (named := named_as_called(text)) != text:
        write_file(path, named)


def show_table(document: object, text: str, table: str, as_json: bool, as_csv: bool) -> None:
    """Print a result in one of its forms: *document* as JSON, *table* as CSV, or *text*."""
    if as_json:
        print_json(document)
    else:
        typer.echo(table, nl=False) if as_csv else show_text(text)


def write_report(
    html: Path | None,
    folder: Path | None,
    result: tuple[dict[str, Any], str, str],
    page: Callable[[], str],
    more_files: Callable[[], Mapping[str, str | bytes]] = dict,
) -> None:
    """Write the page of a run's *result* (document, text, CSV) to *html*, and the result, the page and *more_files* into *folder*."""
    from sim.spec.whole_file import write_file, write_files

    document, text, table = result
    markup = named_as_called(page()) if html is not None or folder is not None else ""
    if html is not None:
        write_file(html, markup)
        messages(f"wrote {html}")
    if folder is not None:
        files: dict[str, str | bytes] = {
            "run.json": json_text(document), "report.txt": named_as_called(text) + "\n", "report.html": markup, "run.csv": table,
            **more_files(),
        }  # fmt: skip
        write_files(folder, files)
        messages(f"wrote {', '.join(str(folder / name) for name in files)}")


def write_result(
    folder: Path | None,
    html: Path | None,
    name: str,
    result: tuple[dict[str, Any], str],
    page: Callable[[dict[str, Any]], str],
    plot: Callable[[dict[str, Any]], Picture] | None = None,
    more_files: Mapping[str, str | bytes] | None = None,
) -> None:
    """Write the page of *result* (document, text) to *html*, and the result, the page, the *plot* and *more_files* into *folder*."""
    from sim.spec.whole_file import write_file, write_files

    document, text = result
    report = named_as_called(text) + "\n"
    markup = named_as_called(page(document)) if html is not None or folder is not None else ""
    if html is not None:
        write_file(html, markup)
        messages(f"wrote {html}")
    if folder is not None:
        files: dict[str, str | bytes] = {
            f"{name}.json": json_text(document),
            f"{name}.txt": report,
            f"{name}.html": markup,
        }
        files |= {**(more_files or {}), **(plot(document).files(name) if plot is not None else {})}
        write_files(folder, files)
        messages(f"wrote {folder}/{', '.join(files)}")
