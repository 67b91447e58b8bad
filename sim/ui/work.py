"""Where are the page's results computed, and how is a computation canceled? In separate processes that can be killed.

A simulation cannot be interrupted from inside, and the server must stay responsive, so each `Worker` has a process that runs one task at
a time. A canceled task ends at the next machine, so that the process keeps what it has read and computed. If that takes too long, the
process is killed, and the next task starts a new one from a fork server that has already imported everything.
"""

from __future__ import annotations

import asyncio
import gc
import multiprocessing
import os
import signal
import threading
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final

from sim.spec.elsewhere import read_files
from sim.spec.library import load_hardware, load_workload
from sim.spec.memo import caching
from sim.spec.yaml import SpecError
from sim.ui.choice import Choice
from sim.ui.download import file_of
from sim.ui.machines import WorkMessage, machine_results
from sim.ui.view import view_of

_GRACE: Final = 1.0
"""Seconds that a canceled task has to end by itself."""
_TIDIED: Final = ((0.5, 1), (10.0, 2))
"""Seconds without a task after which a process collects garbage, and of which generation: first what the last tasks have left."""


def _view(choice: Choice) -> Iterator[Any]:
    yield view_of(choice)


def _file(choice: Choice, name: str) -> Iterator[Any]:
    yield file_of(choice, name)


def _read(_: Choice, names: Sequence[str]) -> Iterator[Any]:
    """Read the descriptions of the machines *names*, so that the first comparison finds them read."""
    for name in names:
        with suppress(SpecError):
            load_hardware(name)
        yield None


TASKS: Final[Mapping[str, Callable[..., Iterator[Any]]]] = {"view": _view, "file": _file, "machines": machine_results, "read": _read}
"""The tasks of a worker: each takes a choice, and yields answers, or None where it can be canceled."""


def answers_to(task: str, choice: Choice, *more: Any) -> Iterator[WorkMessage]:
    """Yield the messages of a process for one *task*: its answers (None: there is none yet), or why it is refused, and then the end."""
    try:
        with caching(cache_name(choice)):
            for answer in TASKS[task](choice, *more):
                yield "said", answer
    except SpecError as error:
        yield "refused", list(error.problems)
    except Exception as error:
        yield "refused", [f"internal error: {type(error).__name__}: {error}"]
    yield "done", None


def cache_name(choice: Choice) -> str:
    """Return a name that changes with every file of the user that *choice* consists of: it may be edited between two requests."""
    with read_files() as files:
        for load, name in ((load_hardware, choice.get("hardware")), (load_workload, choice.get("workload"))):
            if name.endswith((".yaml", ".yml")):
                with suppress(SpecError):  # reported by the task
                    load(name)
    stats = ((str(file), file.stat().st_mtime_ns, file.stat().st_size) for file in sorted(files) if file.exists())
    return repr(("ui", *stats))


def _tidy_until_task(connection: Connection) -> None:
    """Collect garbage while there is no task: with all that is cached, a full collection takes as long as several machines."""
    for idle, generation in _TIDIED:
        if connection.poll(idle):
            return
        gc.collect(generation)


def _serve(connection: Connection, threshold: Sequence[int]) -> None:
    """Run the tasks received through *connection* until it is closed; garbage is collected while there is none, or at *threshold*."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl+C ends the server, which ends this process
    gc.set_threshold(*threshold)
    while True:
        try:
            _tidy_until_task(connection)
            task = connection.recv()
        except EOFError:
            return
        if task is None:  # canceled when it had just ended
            continue
        for message in answers_to(*task):
            if message != ("said", None):
                connection.send(message)
            if message[0] != "done" and connection.poll():  # only to cancel it is anything sent before the end
                connection.recv()
                connection.send(("done", None))
                break


def _receive(connection: Connection) -> asyncio.Future[WorkMessage]:
    """Return the next message from *connection*, read in a thread; that the process was killed meanwhile is not reported as an error."""
    received = asyncio.get_running_loop().run_in_executor(None, connection.recv)
    received.add_done_callback(lambda done: done.cancelled() or done.exception())
    return received


async def _canceled(connection: Connection, received: asyncio.Future[WorkMessage] | None) -> bool:
    """Cancel the task at the other end of *connection*, whose next message is *received* if given; return whether it has ended soon."""
    with suppress(EOFError, OSError, TimeoutError):
        connection.send(None)
        async with asyncio.timeout(_GRACE):
            while True:
                received = received or _receive(connection)
                if (await asyncio.shield(received))[0] == "done":
                    return True
                received = None
    return False


_STARTING: Final = threading.Lock()


@contextmanager
def _package_found_first() -> Iterator[None]:
    """Let the fork server, if it starts inside the block, import this package, not another ``sim`` in the current folder.

    That of Python 3.11 ignores the path of its parent and searches the current folder first.
    """
    names = ("PYTHONPATH", "PYTHONSAFEPATH")
    with _STARTING:
        before = {name: os.environ.get(name) for name in names}
        folders = [str(Path(__file__).resolve().parents[2]), *filter(None, [before["PYTHONPATH"]])]
        os.environ |= {"PYTHONPATH": os.pathsep.join(folders), "PYTHONSAFEPATH": "1"}
        try:
            yield
        finally:
            for name, value in before.items():
                if value is None:
                    del os.environ[name]
                else:
                    os.environ[name] = value


@contextmanager
def _interrupts_blocked() -> Iterator[None]:
    """Block Ctrl-C in this thread, so that processes started inside the block never see it: the server ends them, without tracebacks."""
    resource_tracker.ensure_running()  # starting it unblocks Ctrl-C, so it starts first
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class Worker:
    """A process that runs one task at a time; canceling the task may end it."""

    def __init__(self) -> None:
        how = "forkserver" if "forkserver" in multiprocessing.get_all_start_methods() else "spawn"
        self._context: Any = multiprocessing.get_context(how)
        if how == "forkserver":
            self._context.set_forkserver_preload([__name__])
        self._lock = asyncio.Lock()
        self._starting = threading.Lock()
        self._process: Any = None
        self._connection: Connection | None = None

    async def answers(self, task: str, *arguments: Any) -> AsyncGenerator[WorkMessage, None]:
        """Yield the messages of *task*, without the end; closing the iterator early cancels it."""
        loop = asyncio.get_running_loop()
        async with self._lock:
            connection = await loop.run_in_executor(None, self._started)
            finished, received = False, None
            try:
                connection.send((task, *arguments))
                while True:
                    received = _receive(connection)
                    message = await asyncio.shield(received)  # one thread at a time may read from the connection
                    received = None
                    if message[0] == "done":
                        break
                    yield message
                finished = True
            except (EOFError, OSError):
                yield "refused", ["internal error: the process that computes this has ended; it may have run out of memory"]
            finally:
                if not finished and not await _canceled(connection, received):
                    self.end()

    def _started(self) -> Connection:
        """Return the connection to the process; start it if necessary."""
        with self._starting:
            if self._connection is None or not self._process.is_alive():
                ours, theirs = self._context.Pipe()
                process = self._context.Process(target=_serve, args=(theirs, gc.get_threshold()), daemon=True)
                with _package_found_first(), _interrupts_blocked():
                    process.start()
                theirs.close()
                self._connection, self._process = ours, process
            return self._connection

    def start_soon(self) -> None:
        """Start the process in the background, so that the first task does not wait for it."""
        threading.Thread(target=self._started, daemon=True).start()

    @property
    def process(self) -> int | None:
        """Return the ID of the process; None if there is none."""
        return self._process.pid if self._process is not None else None

    def end(self) -> None:
        """Kill the process, whatever it is doing."""
        with self._starting:
            if self._process is not None:
                self._process.kill()
                self._process.join()
            self._process = self._connection = None  # not closed here, because a thread may still read from it
