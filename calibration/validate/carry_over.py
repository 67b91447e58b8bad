"""Does what was learnt carry over? The rows of each source predicted as if it had never been measured, and larger scales from smaller ones.

*source*: every constant that rests on several sources is fitted anew without the scored one, or goes back to its prior
(`calibration.catalogue.left_out`, `Carried`); the source's own calibrating rows still calibrate its clusters, as a user's would. *nodes*:
one and two nodes calibrate, three and more are scored. *large-batches* and *small-batches*: the other half of each job's batches
calibrates.
"""

from __future__ import annotations

import math
import os
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import median
from typing import Final

from calibration.catalogue.left_out import KNOWN, PRIORS_OF_ONE
from calibration.clusters.cluster_fit import KNOWN as ALL_KNOWN
from calibration.clusters.cluster_fit import Carried
from calibration.questions import Folders, RunQuestion, questions
from calibration.validate.scores import Scored
from calibration.validate.splits import SPLITS, elsewhere, split
from calibration.validate.validation import Say, Validation, of_same_gpu, validate_clusters
from sim.spec.yaml import SpecError
from sim.units import counted

KINDS: Final = ("source", *SPLITS)
"""What can be left out."""
WIDE: Final = 0.7
"""Width of a prior that rests on one source alone, where that is left out: the widest of those with several sources but host memory's."""
_COVERED: Final = 0.9
_INTERVAL: Final = 0.95
"""Share of the truth that intervals say they hold."""
_GRID: Final = tuple(0.025 * step for step in range(25))


def kinds_of(text: str) -> list[str]:
    """Return what *text* lists with commas between. Raise SpecError where one of them cannot be left out."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    for name in names:
        if name not in KINDS:
            raise SpecError(f"--left-out {text}: '{name}' is unknown; choose from {','.join(KINDS)}")
    return names


def carried_over(
    validation: Validation, folders: Folders, kinds: Sequence[str], processes: int = 0, say: Say = lambda text: None
) -> Validation:
    """Return *validation* with its rows scored again without what each of *kinds* (of `KINDS`) leaves out."""
    made: dict[str, tuple[Scored, ...]] = {}
    processes = processes or os.cpu_count() or 1
    for kind in kinds:
        if kind == "source":
            made[kind] = _without_sources(validation, folders, processes, say)
        else:
            made[kind] = _beyond(validation.asked, folders, processes, say, kind)
    return replace(validation, left_out=made)


def _without_sources(validation: Validation, folders: Folders, processes: int, say: Say) -> tuple[Scored, ...]:
    """Return every prediction row, predicted without what its source told of constants that others share."""
    all_rows = validation.asked
    rows: dict[tuple[str, int], Scored] = {}
    for source in dict.fromkeys(row.asked.record.source for row in validation.scored):
        if source not in KNOWN:
            rows |= {_place(row): row for row in validation.scored if row.asked.record.source == source}
            continue
        names = list(dict.fromkeys(row.cluster for row in validation.scored if row.asked.record.source == source))
        here = [row for row in all_rows if row.record.hardware in names]
        there = [row for row in of_same_gpu(here, all_rows) if row.record.hardware not in names]
        without = replace(folders, without=source)
        again = questions([row.record for row in (*here, *there)], without)
        say(f"without {source}: {counted(len(here), 'row')}")
        clusters = validate_clusters(again, without, processes, say, carried_without(validation, source), names)
        rows |= {_place(row): row for cluster in clusters for row in cluster.scored if row.asked.record.source == source}
    return tuple(replace(rows[_place(row)], novelty=row.novelty) for row in validation.scored)


def _place(row: Scored) -> tuple[str, int]:
    return row.asked.record.file, row.asked.record.line


def _beyond(questions: Sequence[RunQuestion], folders: Folders, processes: int, say: Say, kind: str) -> tuple[Scored, ...]:
    """Return the rows on the far side of the split *kind*, and those prediction rows on its near side, marked by what is new of them."""
    made: list[Scored] = []
    for name in dict.fromkeys(row.record.hardware for row in questions):
        here = [row for row in questions if row.record.hardware == name]
        changed, far = split(here, kind)
        if not far:
            continue
        there = elsewhere((row for row in of_same_gpu(here, questions) if row.record.hardware != name), here, kind)
        [cluster] = validate_clusters([*changed, *there], folders, processes, say, names=[name])
        lines = {row.record.where for row in far}
        scored = [row for row in cluster.scored if row.asked.job.ranks > 1]
        made += [replace(row, novelty=(FAR if row.asked.record.where in lines else NEAR,)) for row in scored]
    return tuple(made)


FAR: Final = "beyond"
NEAR: Final = "within"
"""On which side of a split a row lies."""


def carried_without(validation: Validation, source: str) -> Carried:
    """Return what clusters tell of each other but for those of *source*: usual loss, widths of intervals, widths of priors."""
    others = [row for row in validation.scored if row.asked.record.source != source]
    carried = Carried(widths=tuple((name, WIDE) for name in PRIORS_OF_ONE.get(source, ())))
    losses: dict[str, list[float]] = defaultdict(list)
    for row in validation.fitted:
        if row.loss is not None and row.asked.record.source != source:
            losses[row.cluster].append(row.loss)
    if losses:
        carried = carried._replace(usual_loss=median(map(median, losses.values())))
    unseen = [row for row in others if row.unseen]
    if not others:
        return carried
    form = next((width for width in _GRID if _covered(others, width, carried.unseen) >= _COVERED), carried.form)
    narrow = carried._replace(form=form)
    told = next((width for width in _GRID if _covered(unseen, form, width) >= _COVERED), None) if unseen else None
    if told is not None:
        narrow = narrow._replace(unseen=told * of_few(len({row.asked.record.source for row in unseen})))
    return narrow._replace(widening=widening(others, narrow.form, narrow.unseen))


def of_few(sources: int) -> float:
    """Return how many times wider than a normal's the 95% interval is of a spread that so few *sources* tell (Student's t).

    Jobs of one source miss alike: what the next source's do is as uncertain as few sources make it, however many jobs each has.
    """
    from scipy.stats import norm, t

    tail = 0.5 + _INTERVAL / 2.0
    return float(t.ppf(tail, max(1, sources - 1)) / norm.ppf(tail))


def widening(rows: Sequence[Scored], form: float = ALL_KNOWN.form, unseen: float = ALL_KNOWN.unseen) -> float:
    """Return the factor on standard deviations, at least 1, with which 95% intervals of calibrated models hold 95% of a new cluster's rows.

    Clusters are what is drawn alike, so of n each weighs 1 / (n + 1) and the new one the rest, beyond all misses (split conformal
    prediction with hierarchical data: Lee, Barber and Willett, JRSS B 2025); of fewer than 19 clusters it is the largest miss of any.
    """
    sizes = _misses(rows, form, unseen)
    misses = sorted((miss, 1.0 / len(same) / (len(sizes) + 1)) for same in sizes.values() for miss in same)
    passed = 0.0
    for miss, weight in misses:
        passed += weight
        if passed >= _INTERVAL:
            return max(1.0, miss)
    return max(1.0, misses[-1][0]) if misses else 1.0


def _covered(rows: Sequence[Scored], form: float, unseen: float) -> float:
    """Return the share of *rows* inside 95% intervals with other widths of what no constant mends, clusters weighing alike."""
    by_cluster = _misses(rows, form, unseen)
    return sum(sum(miss <= 1.0 for miss in same) / len(same) for same in by_cluster.values()) / len(by_cluster)


def _misses(rows: Sequence[Scored], form: float, unseen: float) -> Mapping[str, list[float]]:
    """Return by cluster how far calibrated predictions miss, over half a 95% interval with other widths and not widened."""
    usual, by_cluster = ALL_KNOWN, defaultdict[str, list[float]](list)
    for row in rows:
        rest = (row.spread["calibrated"] / row.widened) ** 2 - (usual.form * row.waits) ** 2
        rest -= (usual.unseen * (1.0 - row.waits)) ** 2 if row.unseen else 0.0
        spread = math.sqrt(max(0.0, rest) + (form * row.waits) ** 2 + ((unseen * (1.0 - row.waits)) ** 2 if row.unseen else 0.0))
        by_cluster[row.cluster].append(abs(math.log(row.said["calibrated"] / row.asked.step_time)) / (1.96 * spread))
    return by_cluster
