"""Which rows may calibrate? None with contradicting repeats and, in a split, only those of some scales or batches.

A split calibrates with rows on one side of a cluster and scores the other: up to two nodes and more, or the smaller and the larger half of
a job's batches, in both directions. Rows of the scored side that could calibrate are scored as well.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from calibration.questions import RunQuestion

DISAGREEMENT: Final = 0.2
"""Largest relative difference between repeats of a run that may calibrate; repeats on undisturbed machines differ by 2 to 4%
(`calibration.clusters.scatter`)."""
MOST_NODES: Final = 2
"""Most nodes of runs that calibrate if larger scales are left out."""
SPLITS: Final = ("nodes", "small-batches", "large-batches")
"""Splits by what they leave out: three or more nodes, the smaller batches, the larger batches."""

JobName = tuple[str, str, str]


def contradicting_repeats(questions: Iterable[RunQuestion]) -> list[list[RunQuestion]]:
    """Return the runs with repeats that differ by more than `DISAGREEMENT` in step time, each as the list of its rows."""
    repeats: dict[object, list[RunQuestion]] = defaultdict(list)
    for row in questions:
        described = replace(row.record, file="", line=0, step_time=None, exposed_sync=None, throughput=None, role="prediction", note="")
        repeats[described].append(row)
    times = [([row.step_time for row in same], same) for same in repeats.values()]
    return [same for times_of, same in times if max(times_of) > (1.0 + DISAGREEMENT) * min(times_of)]


def split_rows(rows: Sequence[RunQuestion], name: str) -> tuple[list[RunQuestion], list[RunQuestion]]:
    """Return the rows of one cluster with their roles in the split *name*, and the rows to be scored on the far side.

    Both are empty if no network row is on the near side or there are no rows to score on the far side.
    """
    near = _near(rows, name)
    changed = [row if near(row) or row.record.role == "prediction" else _as_prediction(row) for row in rows]
    far = [row for row in changed if not near(row) and row.record.role == "prediction" and row.job.ranks > 1]
    calibrates = any(row.record.role == "network" for row in changed)
    return (changed, far) if calibrates and far else ([], [])


def near_rows(rows: Iterable[RunQuestion], here: Sequence[RunQuestion], name: str) -> list[RunQuestion]:
    """Return the compute *rows* of other clusters that may calibrate in the split *name* of the cluster's rows *here*."""
    near = _near(here, name)
    return [row for row in rows if near(row)]


def _near(rows: Sequence[RunQuestion], name: str) -> Callable[[RunQuestion], bool]:
    if name == "nodes":
        return lambda row: row.nodes <= MOST_NODES
    limits = _middle_batches(rows)
    if name == "large-batches":
        return lambda row: row.batch <= limits.get(_job(row), row.batch)
    return lambda row: row.batch > limits.get(_job(row), 0)


def _middle_batches(rows: Sequence[RunQuestion]) -> Mapping[JobName, int]:
    """Return, by job, the largest batch in the smaller half of its batches, without jobs that have only one batch."""
    batches: dict[JobName, set[int]] = defaultdict(set)
    for row in rows:
        batches[_job(row)].add(row.batch)
    return {job: sorted(sizes)[(len(sizes) - 1) // 2] for job, sizes in batches.items() if len(sizes) > 1}


def _job(row: RunQuestion) -> JobName:
    training = row.workload.training
    return row.record.workload, training.stack.name, training.precision


def _as_prediction(row: RunQuestion) -> RunQuestion:
    return replace(row, record=replace(row.record, role="prediction", exposed_sync=None))
