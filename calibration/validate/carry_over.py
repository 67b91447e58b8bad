"""Does calibration carry over to new runs? Predict the rows of each source without that source, and large scales from small ones.

*source*: every constant that rests on several sources is refitted without the scored source, or reset to its prior
(`calibration.catalog.without_source`, `SharedConstants`). The source's calibrating rows still calibrate its clusters, as a user's would.
*nodes*: up to two nodes calibrate, three or more are scored. *large-batches* and *small-batches*: this half of each job's batches is
scored, and the other half calibrates.
"""

from __future__ import annotations

import math
import os
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import fmean, median, stdev
from typing import Final

from calibration.catalog.without_source import RUN_SOURCES, SINGLE_SOURCE_PRIORS
from calibration.clusters.cluster_fit import SHARED_CONSTANTS as ALL_KNOWN
from calibration.clusters.cluster_fit import SharedConstants
from calibration.clusters.network_parameters import DISTRIBUTED
from calibration.questions import Folders, RunQuestion, questions
from calibration.validate.scores import ScoredRow
from calibration.validate.splits import SPLITS, near_rows, split_rows
from calibration.validate.validation import Notify, Validation, compute_rows_of_gpus, validate_clusters
from sim.units import pluralized

KINDS: Final = ("source", *SPLITS)
"""Kinds of data that can be left out."""
SINGLE_SOURCE_WIDTH: Final = 0.7
"""Width of a prior that rests on a single source when that source is left out: the largest width of priors with several sources, except
host memory's. How much the loss next to other GPUs differs between clusters follows from the rows of other sources instead."""
_INTERVAL: Final = 0.95
"""Nominal coverage of intervals."""
_GRID: Final = tuple(0.025 * step for step in range(25))


def score_left_out(
    validation: Validation, folders: Folders, kinds: Sequence[str], processes: int = 0, notify: Notify = lambda text: None
) -> Validation:
    """Return *validation* with its rows scored again, once for each of *kinds* (from `KINDS`) left out."""
    rows: dict[str, tuple[ScoredRow, ...]] = {}
    processes = processes or os.cpu_count() or 1
    for kind in kinds:
        if kind == "source":
            rows[kind] = _without_sources(validation, folders, processes, notify)
        else:
            rows[kind] = _score_split(validation.questions, folders, processes, notify, kind)
    return replace(validation, left_out=rows)


def _without_sources(validation: Validation, folders: Folders, processes: int, notify: Notify) -> tuple[ScoredRow, ...]:
    """Return all prediction rows, each predicted with shared constants that do not use its source."""
    all_rows = validation.questions
    rows: dict[tuple[str, int], ScoredRow] = {}
    for source in dict.fromkeys(row.question.record.source for row in validation.scored_rows):
        if source not in RUN_SOURCES:
            rows |= {_row_key(row): row for row in validation.scored_rows if row.question.record.source == source}
            continue
        names = list(dict.fromkeys(row.cluster for row in validation.scored_rows if row.question.record.source == source))
        here = [row for row in all_rows if row.record.hardware in names]
        there = [row for row in compute_rows_of_gpus(here, all_rows) if row.record.hardware not in names]
        without = replace(folders, without=source)
        again = questions([row.record for row in (*here, *there)], without)
        notify(f"without {source}: {pluralized(len(here), 'row')}")
        clusters = validate_clusters(again, without, processes, notify, constants_without(validation, source), names)
        rows |= {_row_key(row): row for cluster in clusters for row in cluster.scored_rows if row.question.record.source == source}
    return tuple(replace(rows[_row_key(row)], novelty=row.novelty) for row in validation.scored_rows)


def _row_key(row: ScoredRow) -> tuple[str, int]:
    return row.question.record.file, row.question.record.line


def _score_split(questions: Sequence[RunQuestion], folders: Folders, processes: int, notify: Notify, kind: str) -> tuple[ScoredRow, ...]:
    """Return the scored rows of the split *kind* on both sides, marked as `FAR` or `NEAR` in their ``novelty``."""
    scored_rows: list[ScoredRow] = []
    for name in dict.fromkeys(row.record.hardware for row in questions):
        here = [row for row in questions if row.record.hardware == name]
        changed, far = split_rows(here, kind)
        if not far:
            continue
        there = near_rows((row for row in compute_rows_of_gpus(here, questions) if row.record.hardware != name), here, kind)
        [cluster] = validate_clusters([*changed, *there], folders, processes, notify, names=[name])
        lines = {row.record.where for row in far}
        scored = [row for row in cluster.scored_rows if row.question.job.ranks > 1]
        scored_rows += [replace(row, novelty=(FAR if row.question.record.where in lines else NEAR,)) for row in scored]
    return tuple(scored_rows)


FAR: Final = "beyond"
NEAR: Final = "within"
"""The side of a split that a row is on."""


def constants_without(validation: Validation, source: str) -> SharedConstants:
    """Return the constants that clusters share, from rows of all sources except *source*: losses beside other GPUs, and widths.

    With an empty *source* no row is left out, which derives the values of `calibration/clusters/priors.yaml` again.
    """
    others = [row for row in validation.scored_rows if row.question.record.source != source]
    shared = SharedConstants(widths=tuple((name, SINGLE_SOURCE_WIDTH) for name in SINGLE_SOURCE_PRIORS.get(source, ())))
    losses: dict[str, list[float]] = defaultdict(list)
    for row in validation.network_rows:
        if row.log_slowdown is not None and row.question.record.source != source:
            losses[row.cluster].append(row.log_slowdown)
    if losses:
        shared = shared._replace(usual_slowdown=median(map(median, losses.values())))
    if len(losses) > 1 and DISTRIBUTED in dict(shared.widths):
        sources = {row.question.record.source for row in validation.network_rows if row.cluster in losses}
        width = stdev(map(fmean, losses.values())) * few_sources_factor(len(sources))
        shared = shared._replace(widths=tuple({**dict(shared.widths), DISTRIBUTED: width}.items()))
    if freedom := sum(len(same) - 1 for same in losses.values()):
        squares = sum((one - fmean(same)) ** 2 for same in losses.values() for one in same)
        shared = shared._replace(job_width=math.sqrt(squares / freedom))
    unseen = [row for row in others if row.is_unseen_job]
    if not others:
        return shared
    form = min(_GRID, key=lambda width: interval_score(others, width, shared.unseen_job_deviation))
    narrow = shared._replace(exchange_deviation=form)
    if unseen:
        width = min(_GRID, key=lambda width: interval_score(unseen, form, width))
        narrow = narrow._replace(unseen_job_deviation=width * few_sources_factor(len({row.question.record.source for row in unseen})))
    return narrow._replace(widening=widening(others, narrow.exchange_deviation, narrow.unseen_job_deviation))


def few_sources_factor(sources: int) -> float:
    """Return the ratio of 95% intervals: Student's t, for a standard deviation estimated from few *sources*, over a normal distribution.

    The errors of jobs of one source are correlated. So the uncertainty for a new source depends on the number of sources, not of jobs.
    """
    from scipy.stats import norm, t

    tail = 0.5 + _INTERVAL / 2.0
    return float(t.ppf(tail, max(1, sources - 1)) / norm.ppf(tail))


def widening(
    rows: Sequence[ScoredRow], form: float = ALL_KNOWN.exchange_deviation, unseen: float = ALL_KNOWN.unseen_job_deviation
) -> float:
    """Return the factor, at least 1, on calibrated standard deviations with which 95% intervals cover 95% of the rows of a new cluster.

    Clusters are exchangeable, so each of n clusters has weight 1 / (n + 1), and the new one has the rest, beyond all errors (split
    conformal prediction with hierarchical data: Lee, Barber and Willett, JRSS B 2025). With fewer than 19 clusters it is the largest error.
    """
    sizes = _relative_errors(rows, form, unseen)
    misses = sorted((miss, 1.0 / len(same) / (len(sizes) + 1)) for same in sizes.values() for miss in same)
    passed = 0.0
    for miss, weight in misses:
        passed += weight
        if passed >= _INTERVAL:
            return max(1.0, miss)
    return max(1.0, misses[-1][0]) if misses else 1.0


def interval_score(rows: Sequence[ScoredRow], form: float, unseen: float) -> float:
    """Return the mean score of 95% intervals of *rows* with these widths for model errors, with equal weight per cluster; less is better.

    It is an interval's length plus 40 times (2 / 5%) the distance of what lies outside, both of log step times (Gneiting and Raftery, JASA
    102, 2007, section 6.2). A required coverage does not tell the widths of several kinds of error apart: wide intervals of one kind of row
    pay for narrow ones of another.
    """
    price = 2.0 / (1.0 - _INTERVAL)
    totals = [
        sum(2.0 * half + price * max(0.0, error - half) for error, half in same) / len(same)
        for same in _errors_and_halves(rows, form, unseen).values()
    ]
    return sum(totals) / len(totals)


def _relative_errors(rows: Sequence[ScoredRow], form: float, unseen: float) -> Mapping[str, list[float]]:
    """Return, by cluster, errors of calibrated predictions over half the 95% interval, with these widths and without widening."""
    halves = _errors_and_halves(rows, form, unseen)
    return {cluster: [error / half for error, half in same] for cluster, same in halves.items()}


def _errors_and_halves(rows: Sequence[ScoredRow], form: float, unseen: float) -> Mapping[str, list[tuple[float, float]]]:
    """Return, by cluster, log errors of calibrated predictions and half their 95% intervals, with these widths and without widening."""
    usual, by_cluster = ALL_KNOWN, defaultdict[str, list[tuple[float, float]]](list)
    for row in rows:
        rest = (row.deviations["calibrated"] / row.widening) ** 2 - (usual.exchange_deviation * row.wait_share) ** 2
        rest -= (usual.unseen_job_deviation * (1.0 - row.wait_share)) ** 2 if row.is_unseen_job else 0.0
        of_compute = (unseen * (1.0 - row.wait_share)) ** 2 if row.is_unseen_job else 0.0
        spread = math.sqrt(max(0.0, rest) + (form * row.wait_share) ** 2 + of_compute)
        by_cluster[row.cluster].append((abs(math.log(row.predictions["calibrated"] / row.question.step_time)), 1.96 * spread))
    return by_cluster
