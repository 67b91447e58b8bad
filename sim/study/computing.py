"""Where are the points of a study computed, and which exist already? In processes or on a cluster; a journal keeps finished points.

A point is identified by its key, the fingerprint of its question and of every file that it reads (`sim.study.journal`), so that an
interrupted study can resume, and no point is computed twice.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

from sim import __version__
from sim.spec.library import fingerprint
from sim.study.cluster import each_on_cluster, task_files
from sim.study.journal import Journal, RowFigures
from sim.study.pool import each

Item = TypeVar("Item")
Task = tuple[str, Item]
"""The key of a point, and the input from which it is computed."""


@dataclass(frozen=True)
class Computing:
    """Where points are computed and kept, and which files they *read*."""

    processes: int | None = None
    """None: all cores."""
    cluster: str | None = None
    """Address of a dask scheduler, in place of processes."""
    journal: Journal | None = None
    question: str = ""
    """Fingerprint of the study that the points belong to, if there is a journal (`question_of`)."""
    read: Collection[Path] = ()
    notice: Callable[[str], None] = lambda text: None
    """Gets messages about problems of a cluster."""


ALL_CORES: Final = Computing()


def question_of(subject: Any, read: Iterable[Path]) -> str:
    """Return the fingerprint of *subject* (plain data), of the program's version, and of the contents of the files *read*."""
    return fingerprint([subject, __version__, sorted(hashlib.sha256(path.read_bytes()).hexdigest() for path in read)])


def compute(
    answer: Callable[[Task[Item]], tuple[str, RowFigures]], tasks: Sequence[Task[Item]], computing: Computing, group_size: int = 1
) -> Iterator[tuple[str, RowFigures]]:
    """Compute each of *tasks*, add it to the journal if there is one, and yield it; each *group_size* consecutive tasks share work.

    Raise SpecError if the journal, a process or the cluster fails.
    """
    if computing.cluster is None or not tasks:
        answers = each(answer, tasks, computing.processes, group_size)
    else:
        answers = each_on_cluster(computing.cluster, answer, tasks, task_files(computing.read), computing.notice)
    for key, figures in answers:
        if computing.journal is not None:
            computing.journal.note(key, figures)
        yield key, figures
