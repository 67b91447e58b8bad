"""How do many independent runs use all cores? One function is mapped over many items, in order and lazily: the only parallel path.

Items run in joblib's loky processes, or in this process if one is enough. Results come in the order of the items whatever the number of
processes, so every table is the same. If a process is killed (out of memory, by hand), the items in flight are computed again, one at a
time; an item whose process is killed twice while nothing else runs is refused.
"""

from __future__ import annotations

import gc
import os
import signal
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

from sim.spec.extensions import has_registered
from sim.spec.yaml import SpecError

Item = TypeVar("Item")
Computed = TypeVar("Computed")
Progress = Callable[[int, int], None]
"""Called with the number of items that are done, and their total."""

LEAST_FOR_PROCESSES = 4
"""Number of items up to which starting processes takes longer than it saves: a process imports for half a second, a run takes 0.1 s."""

_BATCH = 16
"""Maximum number of items that a process gets at a time; they are lost if it is killed."""


def cores() -> int:
    """Return the processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def process_count(processes: int | None) -> int:
    """Return the requested number of *processes*, all cores if None. Raise SpecError for less than one, or for another type."""
    if processes is not None and not isinstance(processes, int):
        raise SpecError(f"--jobs {processes!r}: expected a whole number")
    if processes is not None and processes < 1:
        raise SpecError(f"--jobs {processes}: write 1 or more processes")
    return processes or cores()


def runs_here(count: int, processes: int | None) -> bool:
    """Return whether *count* items run in this process."""
    return process_count(processes) <= 1 or count <= LEAST_FOR_PROCESSES or has_registered()


def each(
    function: Callable[[Item], Computed], items: Sequence[Item], processes: int | None = None, group_size: int = 1
) -> Iterator[Computed]:
    """Yield ``function(item)`` for each of *items* in order, on up to *processes* processes (all cores if None).

    From the first item on, each *group_size* consecutive items share work that is done once if one process computes them.

    All items are computed in this process if the user passed it objects that other processes lack, such as a schedule.
    Raise SpecError if the process of an item is killed repeatedly.
    """
    if runs_here(len(items), processes):
        yield from map(function, items)
        return
    wanted = min(process_count(processes), len(items))
    from joblib.externals.loky.process_executor import TerminatedWorkerError

    batch = max(1, min(_BATCH, len(items) // (4 * wanted)))
    if group_size <= _BATCH:
        batch = max(1, batch // group_size) * group_size
    under_way = 2 * wanted * batch  # items that joblib dispatches ahead
    done, alone, lost = 0, 0, -1
    while done < len(items):
        part = items[done : done + alone] if alone else items[done:]
        try:
            for result in _on_processes(function, part, wanted, 1 if alone else batch, 1 if alone else under_way):
                done += 1
                yield result
            alone = 0
        except TerminatedWorkerError:
            if alone and lost == done:
                raise SpecError(_killed_message(done, len(items), wanted)) from None
            lost = done if alone else -1
            alone = under_way


def suppress_replacement_warning() -> None:
    """Suppress joblib's warning when it replaces a process that has grown by 300 MB: no item is lost.

    If warnings are errors, the thread that replaces the process would die, and the caller would wait for its results forever.
    """
    warnings.filterwarnings("ignore", "A worker stopped while some jobs were given to the executor", UserWarning)


def _on_processes(
    function: Callable[[Item], Computed], items: Sequence[Item], processes: int, batch: int, under_way: int
) -> Iterator[Computed]:
    """Yield ``function(item)`` for each of *items* in order, with at most *under_way* in flight, in batches of *batch*.

    Batches are formed here because joblib divides its own last ones. Raise its TerminatedWorkerError if a process was killed.
    """
    from joblib import Parallel, delayed, parallel_config

    suppress_replacement_warning()
    with parallel_config("loky", initializer=gc.set_threshold, initargs=gc.get_threshold()):  # they collect garbage as rarely as this one
        parallel = Parallel(n_jobs=processes, batch_size=1, pre_dispatch=max(1, under_way // batch), return_as="generator")
    with _interrupts_blocked():
        results = parallel(delayed(_run_batch)(function, items[start : start + batch]) for start in range(0, len(items), batch))
    for of_batch in results:
        yield from of_batch


def _run_batch(function: Callable[[Item], Computed], items: Sequence[Item]) -> list[Computed]:
    return [function(item) for item in items]


@contextmanager
def _interrupts_blocked() -> Iterator[None]:
    """Block Ctrl-C meanwhile: processes started here inherit that, and leave it to this process to end them, without tracebacks."""
    from multiprocessing import resource_tracker

    from joblib.externals.loky.backend import resource_tracker as of_joblib

    resource_tracker.ensure_running()  # starting these two unblocks Ctrl-C, so they start first
    of_joblib.ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _killed_message(done: int, of: int, processes: int) -> str:
    """Return the error message for the item after *done*, whose process was killed again."""
    return (
        f"{done + 1} of {of}: its process was killed repeatedly, even when it ran alone (memory may be short; --jobs 1 needs the least, "
        f"this run had {processes}); the same command resumes from there, or starts over if it keeps no file"
    )
