"""How far off are predictions on a file of measured runs? Calibrate each cluster on its calibration rows, predict the others, score.

``compute`` rows tell how fast a job computes, ``network`` rows the constants of their cluster's network, ``prediction`` rows are only
scored. *zero_shot* uses the compute rows alone, *calibrated* both. Nothing is ever fitted on a prediction row.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from calibration.baselines import Known, closed_form, copy_row, fit_closed_form, free_communication
from calibration.cluster_fit import Model, fit_model, predictions, prior_model
from calibration.compute_scale import Solved, measured_scale, solved
from calibration.evaluate import Case, Evaluator
from calibration.questions import Folders, Question, questions
from calibration.run_records import read_records
from calibration.scores import Scored
from sim.study.pool import replaced_quietly

Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Cluster:
    """One cluster's models and its scored rows; *fitted* are its network rows, predicted by the model that saw them."""

    name: str
    zero_shot: Model
    calibrated: Model
    scored: tuple[Scored, ...]
    fitted: tuple[Scored, ...]


@dataclass(frozen=True)
class Validation:
    """The outcome for every cluster of a file, and what is odd about the file."""

    clusters: tuple[Cluster, ...]
    notes: tuple[str, ...]

    @property
    def scored(self) -> list[Scored]:
        """Return the prediction rows of all clusters."""
        return [row for cluster in self.clusters for row in cluster.scored]


def validate(files: Sequence[Path], folders: Folders, processes: int = 0, progress: Progress = lambda done, of: None) -> Validation:
    """Return how predictions compare with the measurements in *files*; *progress* hears how many clusters are done.

    Raise SpecError with everything that is wrong.
    """
    read = [read_records(path) for path in files]
    asked = questions([record for found in read for record in found.records], folders)
    names = list(dict.fromkeys(row.record.hardware for row in asked))
    clusters = _validate_clusters(names, asked, folders, processes or os.cpu_count() or 1, progress)
    notes = [note for found in read for note in found.notes]
    return Validation(tuple(clusters), (*notes, *_odd(asked)))


def _validate_clusters(
    names: Sequence[str], asked: Sequence[Question], folders: Folders, processes: int, progress: Progress
) -> list[Cluster]:
    """Return the outcome for each of *names*: side by side where there are many clusters, else each with all processes."""
    rows = {name: [row for row in asked if row.record.hardware == name] for name in names}
    known = solved([row for row in asked if row.record.role == "compute"], Evaluator(folders, processes))
    if processes == 1 or len(names) < 2 * processes:
        clusters = []
        for name in names:
            clusters.append(_validate_cluster(name, rows[name], asked, known, Evaluator(folders, processes)))
            progress(len(clusters), len(names))
        return clusters
    from joblib import Parallel, delayed

    replaced_quietly()
    longest_first = sorted(names, key=lambda name: -len(rows[name]))
    tasks = (
        delayed(_validate_cluster)(name, rows[name], near, {row.record: known[row.record] for row in near}, Evaluator(folders, 1))
        for name in longest_first
        for near in [_of_same_gpu(rows[name], asked)]
    )
    found: dict[str, Cluster] = {}
    outcomes = Parallel(n_jobs=processes, batch_size=1, max_nbytes=None, return_as="generator")(tasks)
    for name, cluster in zip(longest_first, outcomes, strict=True):
        found[name] = cluster
        progress(len(found), len(names))
    return [found[name] for name in names]


def _of_same_gpu(rows: Sequence[Question], asked: Sequence[Question]) -> list[Question]:
    """Return the compute rows of *asked* that may tell how fast *rows* compute."""
    gpus = {row.gpu.name for row in rows}
    return [row for row in asked if row.record.role == "compute" and row.gpu.name in gpus]


def _validate_cluster(name: str, rows: Sequence[Question], everywhere: Sequence[Question], known: Solved, evaluator: Evaluator) -> Cluster:
    """Return the outcome for one cluster; among *everywhere* are the compute rows of others, which may tell of the same GPU.

    *known* holds the factors on compute of those.
    """
    compute = _of_same_gpu(rows, everywhere)
    network = [row for row in rows if row.record.role == "network"]
    asked = [row for row in rows if row.record.role == "prediction"]
    with_sync = [row for row in network if row.record.exposed_sync is not None and row.job.ranks > 1]
    zero_shot = prior_model(measured_scale(compute, evaluator, known), rows)
    calibrated = fit_model(measured_scale([*compute, *with_sync], evaluator, known), network, rows, evaluator)
    calibration = _known(calibrated, [row for row in rows if row.record.role != "prediction"], evaluator)
    constants = fit_closed_form([row for row in calibration if row.asked.record.role == "network"])
    # both kinds at once: which directions of the covariance matter is asked once
    scored = _scored(zero_shot, calibrated, [*asked, *network], calibration, constants, evaluator)
    return Cluster(name, zero_shot, calibrated, tuple(scored[: len(asked)]), tuple(scored[len(asked) :]))


def _known(model: Model, rows: Sequence[Question], evaluator: Evaluator) -> list[Known]:
    found = evaluator.all([model.case(row) for row in rows])
    return [Known(row, prediction.compute / model.slowdown(row)) for row, prediction in zip(rows, found, strict=True)]


def _scored(
    zero_shot: Model,
    calibrated: Model,
    rows: Sequence[Question],
    calibration: Sequence[Known],
    constants: Sequence[float],
    evaluator: Evaluator,
) -> list[Scored]:
    before, after = (predictions(model, rows, evaluator) for model in (zero_shot, calibrated))
    described = evaluator.all([Case(row.record, 1.0, ()) for row in rows])
    made = []
    for row, bare, (early, early_spread), (late, late_spread) in zip(rows, described, before, after, strict=True):
        known = Known(row, late.compute / calibrated.slowdown(row))  # as measured
        said = {
            "as_described": bare.step,
            "zero_shot": early.step,
            "calibrated": late.step,
            "free_communication": free_communication(known),
            "closed_form": closed_form(known, constants),
            "copy_row": copy_row(known, calibration),
        }
        made.append(Scored(row, known.compute - late.input, said, {"zero_shot": early_spread, "calibrated": late_spread}))
    return made


def _odd(asked: Sequence[Question]) -> list[str]:
    """Return what may be a slip in rows that can be read: nothing to score."""
    scored = any(row.record.role == "prediction" for row in asked)
    return [] if scored else ["no row has the role 'prediction': nothing is scored"]
