"""How accurate are predictions on a file of measured runs? Calibrate each cluster on its calibration rows, predict the others, score.

``compute`` rows determine how fast a job computes, ``network`` rows the constants of their cluster's network, and ``prediction`` rows are
only scored. The model *zero_shot* uses only the compute rows, *calibrated* both. Nothing is ever fitted to a prediction row.
`calibration.validate.carry_over` also scores predictions with more left out: a source of shared constants, scales, or batches.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from calibration.catalog_names import with_catalog_names
from calibration.clusters.cluster_fit import SHARED_CONSTANTS, ClusterModel, SharedConstants, fit_model, predictions, prior_model
from calibration.clusters.compute_scale import FactorByRecord, measured_scale, solve_factors
from calibration.clusters.evaluate import Evaluator, SimulatedCase
from calibration.questions import Folders, RunQuestion, assumptions, describe_runs, with_names_checked
from calibration.run_records import SkippedRun, read_table, row_name
from calibration.validate.baselines import RunCompute, closed_form, copy_row, fit_closed_form, free_communication
from calibration.validate.blank_input import contradicted_predictions, without_contradicted_input
from calibration.validate.groups import novelty
from calibration.validate.memory import without_room
from calibration.validate.other_unit import other_unit
from calibration.validate.scores import ScoredRow
from calibration.validate.splits import DISAGREEMENT, contradicting_repeats
from sim.spec.yaml import SpecError
from sim.study.pool import Progress, suppress_replacement_warning
from sim.units import pluralized

Notify = Callable[[str], None]
MOST_REASONS: Final = 20
"""Most reasons shown why rows cannot be predicted; the rest are counted."""
NEGLIGIBLE_WAIT: Final = 0.03
"""Share of a step spent waiting for the exchange below which a row shows the slowdown of compute by other GPUs."""


@dataclass(frozen=True)
class ClusterOutcome:
    """The models of one cluster and its scored rows; *network_rows* are predicted by the model that was fitted to them."""

    name: str
    zero_shot: ClusterModel
    calibrated: ClusterModel
    scored_rows: tuple[ScoredRow, ...]
    network_rows: tuple[ScoredRow, ...]


@dataclass(frozen=True)
class Validation:
    """The outcome for all clusters of the files, and notes on problems with the files."""

    clusters: tuple[ClusterOutcome, ...]
    notes: tuple[str, ...]
    left_out: Mapping[str, tuple[ScoredRow, ...]] = field(default_factory=dict)
    """Prediction rows, predicted with some calibration data left out, by the kind left out (`calibration.validate.carry_over`)."""
    questions: tuple[RunQuestion, ...] = ()
    """All rows that calibrate or are scored."""
    not_described: tuple[SkippedRun, ...] = ()
    """Rows that cannot be predicted."""

    @property
    def scored_rows(self) -> list[ScoredRow]:
        """Return the prediction rows of all clusters."""
        return [row for cluster in self.clusters for row in cluster.scored_rows]

    @property
    def network_rows(self) -> list[ScoredRow]:
        """Return the network rows of all clusters."""
        return [row for cluster in self.clusters for row in cluster.network_rows]


def validate(
    files: Sequence[Path],
    folders: Folders,
    processes: int = 0,
    notify: Notify = lambda text: None,
    progress: Progress = lambda done, of: None,
) -> Validation:
    """Compare predictions with the measurements in *files*; *notify* gets a message per cluster, *progress* the number of finished ones.

    Rows that cannot be read or described are listed in the result. Raise SpecError if there are no others.
    """
    tables = [read_table(path) for path in files]
    records, renamed = with_catalog_names([record for table in tables for record in table.records], folders)
    runs, undescribed = describe_runs(records, folders)
    invalid, _ = with_catalog_names([record for table in tables for record in table.unread], folders)
    skipped = [row for table in tables for row in table.skipped]
    missing = [with_names_checked(row, record, folders) for row, record in zip(skipped, invalid, strict=True)] + undescribed
    processes = processes or os.cpu_count() or 1
    try:
        runs, unread = without_contradicted_input(_require_rows(runs, missing), folders, processes)
        questions, contradictions = _consistent(runs)
        clusters = validate_clusters(questions, folders, processes, notify, progress=progress)
    except SpecError:
        runs, unplayed = split_playable(runs, folders)
        missing += unplayed
        runs, unread = without_contradicted_input(_require_rows(runs, missing), folders, processes)
        questions, contradictions = _consistent(runs)
        clusters = validate_clusters(questions, folders, processes, notify, progress=progress)
    notes = (
        *(note for table in tables for note in table.notes),
        *renamed,
        *assumptions(questions),
        *unread,
        *contradicted_predictions([row for cluster in clusters for row in cluster.scored_rows], folders, processes),
        *contradictions,
        *_likely_mistakes(questions),
        *without_room(questions),
        *_other_unit(questions, clusters, Evaluator(folders, processes)),
    )
    return Validation(tuple(clusters), notes, questions=tuple(questions), not_described=tuple(missing))


def _require_rows(runs: list[RunQuestion], missing: Sequence[SkippedRun]) -> list[RunQuestion]:
    """Return *runs*. Raise SpecError with the reasons if it is empty."""
    if not runs:
        raise SpecError("\n".join(["no row can be predicted:", *reason_lines(missing)]))
    return runs


def split_playable(questions: Sequence[RunQuestion], folders: Folders) -> tuple[list[RunQuestion], list[SkippedRun]]:
    """Return the *questions* that the simulator can run, and why it rejects the others."""
    evaluator, played, refused = Evaluator(folders, 1), [], []
    for row in questions:
        try:
            evaluator.predict(SimulatedCase(row.record, 1.0, ()))
        except SpecError as error:
            refused.append(SkippedRun(row.record.where, row_name(row.record.hardware, row.record.workload), str(error)))
        else:
            played.append(row)
    return played, refused


def reason_lines(rows: Sequence[SkippedRun], most: int = MOST_REASONS) -> list[str]:
    """Return lines of text on the reasons of *rows*, most frequent first."""
    reasons: dict[str, list[SkippedRun]] = {}
    for one in rows:
        for reason in one.reason.splitlines():
            reasons.setdefault(reason, []).append(one)
    lines = []
    for reason, same in sorted(reasons.items(), key=lambda item: -len(item[1]))[:most]:
        more = f" and {len(same) - 1} more" if len(same) > 1 else ""
        lines.append(f"  {same[0].where} ({same[0].row}){more}: {reason}")
    return [*lines, *([f"  and {len(reasons) - most} more reasons"] if len(reasons) > most else [])]


def _consistent(questions: Sequence[RunQuestion]) -> tuple[list[RunQuestion], list[str]]:
    """Return *questions* without calibrating rows that contradict their own repeats, and a note on every run with contradictions."""
    notes, dropped = [], set()
    for same in contradicting_repeats(questions):
        times = [row.step_time for row in same]
        calibrating = [row for row in same if row.record.role != "prediction"]
        dropped |= {id(row) for row in calibrating}
        apart = f"repeats of one run differ by {100 * (max(times) / min(times) - 1):.0f}%, more than {100 * DISAGREEMENT:g}%"
        outcome = "; they are not used for calibration" if calibrating else ""
        notes.append(f"{', '.join(row.record.where for row in same)}: {apart}{outcome}")
    return [row for row in questions if id(row) not in dropped], notes


def validate_clusters(
    questions: Sequence[RunQuestion],
    folders: Folders,
    processes: int,
    notify: Notify,
    shared: SharedConstants = SHARED_CONSTANTS,
    names: Sequence[str] = (),
    progress: Progress = lambda done, of: None,
) -> list[ClusterOutcome]:
    """Return the outcome for each cluster of *questions*, or those in *names*.

    Many clusters are validated concurrently, one per process; a few are validated sequentially, each on all processes.
    """
    names = names or list(dict.fromkeys(row.record.hardware for row in questions))
    rows = {name: [row for row in questions if row.record.hardware == name] for name in names}
    near = {name: compute_rows_of_gpus(rows[name], questions) for name in names}
    wanted = {id(row) for same in near.values() for row in same}
    solved_scales = solve_factors([row for row in questions if id(row) in wanted], Evaluator(folders, processes))
    if processes == 1 or len(names) < 2 * processes:
        clusters = []
        progress(0, len(names))
        for name in names:
            notify(f"{name}: {pluralized(len(rows[name]), 'row')}")
            clusters.append(_validate_cluster(name, rows[name], near[name], solved_scales, Evaluator(folders, processes), shared))
            progress(len(clusters), len(names))
    else:
        from joblib import Parallel, delayed

        suppress_replacement_warning()
        longest_first = sorted(names, key=lambda name: -len(rows[name]))
        tasks = (
            delayed(_validate_cluster)(
                name, rows[name], near[name], {row.record: solved_scales[row.record] for row in near[name]}, Evaluator(folders, 1), shared
            )
            for name in longest_first
        )
        by_name: dict[str, ClusterOutcome] = {}
        outcomes = Parallel(n_jobs=processes, batch_size=1, max_nbytes=None, return_as="generator")(tasks)
        for name, cluster in zip(longest_first, outcomes, strict=True):
            by_name[name] = cluster
            progress(len(by_name), len(names))
        clusters = [by_name[name] for name in names]
    return [
        replace(cluster, scored_rows=tuple(replace(row, novelty=novelty(row.question, questions)) for row in cluster.scored_rows))
        for cluster in clusters
    ]


def compute_rows_of_gpus(rows: Sequence[RunQuestion], questions: Sequence[RunQuestion]) -> list[RunQuestion]:
    """Return the compute rows of *questions* on the GPUs of *rows*, which may determine how fast *rows* compute."""
    gpus = {row.gpu.name for row in rows}
    return [row for row in questions if row.record.role == "compute" and row.gpu.name in gpus]


def _validate_cluster(
    name: str,
    rows: Sequence[RunQuestion],
    compute: Sequence[RunQuestion],
    solved_scales: FactorByRecord,
    evaluator: Evaluator,
    shared: SharedConstants,
) -> ClusterOutcome:
    """Return the outcome for one cluster; *compute* are the compute rows of this and other clusters with the same GPU.

    *solved_scales* holds their factors on compute.
    """
    network = [row for row in rows if row.record.role == "network"]
    predicted = [row for row in rows if row.record.role == "prediction"]
    with_sync = [row for row in network if row.record.exposed_sync is not None and row.job.ranks > 1]
    zero_shot = prior_model(measured_scale(compute, evaluator, solved_scales, rows), rows, shared=shared)
    calibrated = fit_model(measured_scale([*compute, *with_sync], evaluator, solved_scales, rows), network, rows, evaluator, shared)
    calibration = _with_compute(calibrated, [row for row in rows if row.record.role != "prediction"], evaluator)
    constants = fit_closed_form([row for row in calibration if row.question.record.role == "network"])
    # predict both kinds in one call, so that the relevant directions of the covariance are determined only once
    scored = _scored(zero_shot, calibrated, [*predicted, *network], calibration, constants, evaluator)
    return ClusterOutcome(name, zero_shot, calibrated, tuple(scored[: len(predicted)]), tuple(scored[len(predicted) :]))


def _with_compute(model: ClusterModel, rows: Sequence[RunQuestion], evaluator: Evaluator) -> list[RunCompute]:
    predictions = evaluator.predict_all([model.simulated_case(row) for row in rows])
    return [RunCompute(row, prediction.compute / model.slowdown(row)) for row, prediction in zip(rows, predictions, strict=True)]


def _scored(
    zero_shot: ClusterModel,
    calibrated: ClusterModel,
    rows: Sequence[RunQuestion],
    calibration: Sequence[RunCompute],
    constants: Sequence[float] | None,
    evaluator: Evaluator,
) -> list[ScoredRow]:
    import numpy as np

    before, after = (predictions(model, rows, evaluator) for model in (zero_shot, calibrated))
    described = evaluator.predict_all([SimulatedCase(row.record, 1.0, ()) for row in rows])
    fitted = sum(row.question.record.role == "network" for row in calibration)
    rows_scored = []
    for row, bare, (early, early_spread), (late, late_spread) in zip(rows, described, before, after, strict=True):
        measured = RunCompute(row, late.compute / calibrated.slowdown(row))  # as the compute rows measured it
        predicted = {
            "as_described": bare.step,
            "zero_shot": early.step,
            "calibrated": late.step,
            "free_communication": free_communication(measured),
            "closed_form": closed_form(measured, constants) if constants else None,
            "copy_row": copy_row(measured, calibration),
        }
        joins = calibrated.compute.needs_slowdown(row)
        rows_scored.append(
            ScoredRow(
                row,
                measured.compute - late.input,
                {name: value for name, value in predicted.items() if value is not None},
                {"zero_shot": early_spread, "calibrated": late_spread},
                fitted,
                max(0.0, late.exposed) / late.step,
                calibrated.compute.needs_slowdown(row) and not calibrated.has_job_parameter(row),
                math.log(row.step_time * zero_shot.slowdown(row) / early.step)
                if joins and early.exposed < NEGLIGIBLE_WAIT * early.step
                else None,
                math.log(late.step / row.step_time) / float(calibrated.noise.deviations(np.array([late.step]))[0]),
                calibrated.widening,
            )
        )
    return rows_scored


def _other_unit(questions: Sequence[RunQuestion], clusters: Sequence[ClusterOutcome], evaluator: Evaluator) -> list[str]:
    """Return notes on rows of *questions* that may be in another unit than seconds; those of *clusters* are predicted already."""
    rows = [row for cluster in clusters for row in (*cluster.scored_rows, *cluster.network_rows)]
    return other_unit(rows, [row for row in questions if row.record.role == "compute"], evaluator)


def _likely_mistakes(questions: Sequence[RunQuestion]) -> list[str]:
    """Return notes on likely mistakes in the rows: there is nothing to score."""
    scored = any(row.record.role == "prediction" for row in questions)
    return [] if scored else ["no row has the role 'prediction', so nothing is scored"]
