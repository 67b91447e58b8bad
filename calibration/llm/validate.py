"""How large are errors of predictions for tables of measured runs? Read, describe, predict and score; the result as document and text."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any, Final

from calibration.llm import closed_form
from calibration.llm.case import Case
from calibration.llm.constants import FittedConstants, fitted_constants
from calibration.llm.contradictions import contradictions, lines_text
from calibration.llm.describe import describe, unread_cells
from calibration.llm.prediction import LlmPrediction
from calibration.llm.priors import Constants, defaults
from calibration.llm.rules import ideal_time, rule_times
from calibration.llm.score import (
    PREDICTIONS,
    ScoredRun,
    coverage,
    errors_of,
    errors_with_one_row,
    feasibility,
    groups,
    is_scorable,
    memory_scores,
    pool_sources,
    ranking,
    reason_unscored,
    vote_by_source,
)
from calibration.llm.table import LlmRow, read_table
from calibration.run_records import SkippedRun
from calibration.validate.each_run import EachRun, each_run_lines
from calibration.validate.other_unit import IMPOSSIBLE
from calibration.validate.validation import reason_lines
from calibration.validate.validation_report import counted, legend_lines, number, pair, percent
from sim.spec.yaml import SpecError
from sim.study.pool import Progress, each
from sim.units import pluralized

PREDICTORS: Final = ("both", "closed-form", "simulator")
Predictor = Callable[[Case, Constants], LlmPrediction]
PUBLISHED: Final[Mapping[str, str]] = {
    "calculon": "3.65% mean, 8.87% most, of step time: Megatron on A100, 22B to 1T (Isaev and others, SC23, arXiv 2305.04232)",
    "vtrain": "8.37% mean on one node, 14.73% on 512 A100 (Bang and others, MICRO 2024, arXiv 2312.12391)",
}
"""Errors that others publish for such predictions, on runs that they chose themselves; from general knowledge of the papers."""


@dataclass(frozen=True)
class SkippedRow:
    """A row that cannot be predicted or scored, and why."""

    file: str
    line: int
    model: str
    reason: str


@dataclass(frozen=True)
class LlmValidation:
    """The result for one or more tables: scored rows, completed runs and failed runs with their predictions, and skipped rows."""

    scored: tuple[ScoredRun, ...]
    predictions: tuple[tuple[Case, LlmPrediction], ...]
    failed: tuple[tuple[Case, LlmPrediction], ...]
    not_described: tuple[SkippedRow, ...]
    row_count: int
    described_count: int
    non_numeric: tuple[str, ...] = field(default=())
    """Cells of number columns in which nothing could be read, with file and line."""
    not_scored: tuple[SkippedRow, ...] = field(default=())
    """Rows that are described and predicted but not scored, and why."""


def validate_tables(
    files: Sequence[Path],
    memory: Path | None = None,
    leave_out: bool = True,
    predictor: Predictor = closed_form.predict,
    progress: Progress = lambda done, of: None,
    processes: int = 1,
) -> LlmValidation:
    """Return the comparison of predictions with the runs in *files*, and with the failed runs in *memory*.

    If *leave_out* is true, each source is predicted with constants that were fitted without it. *progress* is called with the number of
    predicted runs and the total. Raise SpecError if a file lacks a column, or if no row can be predicted.
    """
    described: list[Case] = []
    skipped: list[SkippedRow] = []
    non_numeric: list[str] = []
    failed_rows = read_table(memory, failed=True) if memory is not None else []
    count = 0
    for path in files:
        rows = read_table(path)
        count += len(rows)
        for row in rows:
            _describe(path, row, described, skipped, non_numeric)
    if not count:
        raise SpecError(f"{files[0]}: contains no runs; write one per line below the header")
    constants_of = {source: fitted_constants(source, leave_out) for source in {case.row.source for case in described}}
    predicted = _predicted(files[0], described, constants_of, predictor, skipped, progress, processes)
    scored = [_scored(case, prediction, constants_of[case.row.source]) for case, prediction in predicted if is_scorable(case)]
    unscored_cases = [(case, why) for case, _ in predicted if (why := reason_unscored(case))]
    not_scored = [
        SkippedRow(files[0].name if len(files) == 1 else "", case.row.line, case.row.text["model"], why) for case, why in unscored_cases
    ]
    failed: list[Case] = []
    for row in failed_rows:
        _describe(memory or files[0], row, failed, skipped, non_numeric)
    constants_of |= {source: fitted_constants(source, leave_out) for source in {case.row.source for case in failed} - set(constants_of)}
    refused = _predicted(memory or files[0], failed, constants_of, closed_form.predict, skipped, processes=processes)
    if not predicted and not refused:
        reasons = reason_lines([SkippedRun(f"{one.file}:{one.line}", one.model, one.reason) for one in skipped])
        raise SpecError("\n".join(["no row can be predicted:", *reasons]))
    fits = [(case, prediction) for case, prediction in predicted if case.row.status in ("ok", "suspect")]
    return LlmValidation(
        tuple(scored), tuple(fits), tuple(refused), tuple(skipped), count, len(predicted), tuple(non_numeric), tuple(not_scored)
    )


def predictor_named(name: str) -> Predictor:
    """Return the predictor *name*. Raise SpecError if there is none of that name."""
    if name not in PREDICTORS:
        raise SpecError(f"--predictor {name}: write {', '.join(PREDICTORS[:-1])} or {PREDICTORS[-1]}")
    if name == "closed-form":
        return closed_form.predict
    from calibration.llm import combined, engine

    return engine.predict if name == "simulator" else combined.predict


def _predicted(
    path: Path,
    cases: Sequence[Case],
    constants_of: Mapping[str, FittedConstants],
    predictor: Predictor,
    skipped: list[SkippedRow],
    progress: Progress = lambda done, of: None,
    processes: int = 1,
) -> list[tuple[Case, LlmPrediction]]:
    """Return *cases* with the predictions of *predictor*; those that it refuses are added to *skipped*."""
    predicted = []
    tasks = [(case, constants_of[case.row.source].constants) for case in cases]
    for done, (case, outcome) in enumerate(zip(cases, each(partial(_predict_or_refuse, predictor), tasks, processes), strict=True), 1):
        if isinstance(outcome, LlmPrediction):
            predicted.append((case, outcome))
        else:
            skipped.append(SkippedRow(path.name, case.row.line, case.row.text["model"], outcome))
        progress(done, len(cases))
    return predicted


def _predict_or_refuse(predictor: Predictor, task: tuple[Case, Constants]) -> LlmPrediction | str:
    """Return the prediction of *predictor* for a case, or why it refuses.

    Cases that are not scored are predicted by the closed form: all predictors use the same model of memory.
    """
    try:
        return (predictor if is_scorable(task[0]) else closed_form.predict)(*task)
    except (SpecError, ValueError, ArithmeticError) as error:
        return (str(error).splitlines() or [type(error).__name__])[0]


def _describe(path: Path, row: LlmRow, described: list[Case], skipped: list[SkippedRow], non_numeric: list[str]) -> None:
    non_numeric += [f"{path.name}:{row.line}: {row.problem(name)}" for name in unread_cells(row)]
    case = describe(row)
    if isinstance(case, str):
        skipped.append(SkippedRow(path.name, row.line, row.text["model"], case))
    else:
        described.append(case)


def _scored(case: Case, prediction: LlmPrediction, constants: FittedConstants) -> ScoredRun:
    low, high = constants.interval(case)
    step_times = {
        "predicted": prediction.step_time,
        "zero_shot": closed_form.step(case, defaults())[0],
        **rule_times(case, constants.rules),
    }
    return ScoredRun(case, prediction, step_times, low * prediction.step_time, high * prediction.step_time, constants.shared_error)


def llm_document(validation: LlmValidation) -> dict[str, Any]:
    """Return the JSON document of *validation*."""
    rows = validation.scored
    of_source = pool_sources(rows)
    sources: list[dict[str, Any]] = [
        {
            "source": source,
            "rows_of": sorted({row.case.row.source for row in group}),
            "assumed": fmean(bool(row.case.assumptions) for row in group),
            **{name: errors_of(group, name) for name in PREDICTIONS},
            "one_row_known": errors_with_one_row(group),
            "coverage": coverage(group),
            "skill": _skill(group),
        }
        for source, group in sorted(of_source.items())
    ]
    overall: dict[str, Any] = {name: vote_by_source(rows, name) for name in PREDICTIONS}
    overall["calibrated"] = overall["predicted"]
    with_one_row = [source["one_row_known"] for source in sources if source["one_row_known"]["median"] is not None]
    overall["one_row_known"] = {key: fmean(one[key] for one in with_one_row) if with_one_row else None for key in ("median", "p90")}
    overall["coverage"] = fmean(source["coverage"] for source in sources) if sources else None
    overall["kendall_tau"] = ranking(rows)["kendall_tau_median"]
    return {
        "schema": 1,
        "kind": "llm",
        "rows": validation.row_count,
        "described": validation.described_count,
        "scored": len(rows),
        "overall": overall,
        "sources": sources,
        "groups": groups(rows),
        "coverage": {
            "overall": coverage(rows),
            "sources": {source["source"]: source["coverage"] for source in sources},
            "families": {family["name"]: family["coverage"] for family in groups(rows)["model_family"]},
        },
        "memory": memory_scores(validation.predictions),
        "feasibility": feasibility(validation.failed),
        "ranking": ranking(rows),
        "baselines": {"constant_mfu": overall["constant_mfu"], "six_pd": overall["six_pd"], "published": dict(PUBLISHED)},
        "not_described": [vars(one) for one in validation.not_described],
        "not_scored": [vars(one) for one in validation.not_scored],
        "notes": [*odd_times(rows), *contradictions([case for case, _ in validation.predictions])],
        "unread": list(validation.non_numeric),
    }


def odd_times(rows: Sequence[ScoredRun]) -> list[str]:
    """Return notes on *rows* whose measured step no slow machine explains, or is shorter than the GPUs' peak rate allows."""
    slow = [row.case.row.line for row in rows if row.measured > IMPOSSIBLE * row.step_times["predicted"]]
    fast = [row.case.row.line for row in rows if row.measured < ideal_time(row.case)]
    notes = []
    if slow:
        notes.append(
            f"{_measured_text(slow)} over {IMPOSSIBLE:g} times as long as predicted: step_time_s is in seconds; milliseconds need 'ms' "
            "after them"
        )
    if fast:
        notes.append(
            f"{_measured_text(fast)} shorter than the GPUs' peak rate allows: check gpus, global_batch, seq_len, precision and the time"
        )
    return notes


def _measured_text(lines: Sequence[int]) -> str:
    """Return the beginning of a note on the measured steps of *lines*."""
    return f"{lines_text(lines)}: measured step{'s are' if len(lines) > 1 else ' is'}"


def _skill(rows: Sequence[ScoredRun]) -> float | None:
    """Return 1 minus the ratio of the median error to that of the better simple rule."""
    best = min(errors_of(rows, rule)["median"] for rule in ("constant_mfu", "six_pd"))
    return 1 - errors_of(rows)["median"] / best if best else None


def llm_table(validation: LlmValidation) -> str:
    """Return the result as text with tables."""
    document = llm_document(validation)
    lines = [
        f"{document['scored']} of {pluralized(document['rows'], 'row')} scored; {len(validation.not_described)} not described, "
        f"{len(validation.not_scored)} described but not scored; step-time errors in percent",
        "",
        *each_run_lines([_each(row) for row in validation.scored]),
        f"{'source':34} {'rows':>5} {'assumed':>8}  {'median/p90':>12} {'bias':>6} {'one known':>12} {'cover':>6} {'skill':>6}  "
        f"{'MFU':>6} {'6PD':>6}",
    ]
    for source in document["sources"]:
        mine = source["predicted"]
        lines.append(
            f"{source['source'][-34:]:34} {mine['points']:5} {percent(source['assumed']):>8}  {pair(mine):>12} "
            f"{percent(mine['bias']):>6} {pair(source['one_row_known']):>12} {percent(source['coverage']):>6} "
            f"{number(source['skill']):>6}  {percent(source['constant_mfu']['median']):>6} {percent(source['six_pd']['median']):>6}"
        )
    overall = document["overall"]
    mine = overall["predicted"]
    lines.append(
        f"{'one vote per source':34} {document['scored']:5} {'':8}  {pair(mine):>12} {percent(mine['bias']):>6} "
        f"{pair(overall['one_row_known']):>12} {percent(overall['coverage']):>6} {'':6}  {percent(overall['constant_mfu']['median']):>6} "
        f"{percent(overall['six_pd']['median']):>6}"
    )
    for kind, parts in document["groups"].items():
        lines += ["", f"{kind:34} {'rows':>5} {'':8}  {'median/p90':>12} {'bias':>6} {'':12} {'cover':>6}"]
        lines += [
            f"{one['name'][:34]:34} {one['points']:5} {'':8}  {pair(one):>12} {percent(one['bias']):>6} "
            f"{'':12} {percent(one['coverage']):>6}"
            for one in parts
        ]
    lines += _memory_lines(document) + _ranking_lines(document) + _missing_lines(validation)
    lines += ["", *document["notes"]] if document["notes"] else []
    lines += ["", *legend_lines(_LEGEND)]
    return "\n".join(lines)


def _each(row: ScoredRun) -> EachRun:
    case = row.case
    what = f"{case.row.text['model']} on {pluralized(case.gpus, 'GPU')} ({case.chip.name}), {case.axes}"
    return EachRun(f"line {case.row.line}", what, row.measured, row.step_times["predicted"], row.low, row.high)


_LEGEND: Final = {
    "assumed": "percent of rows with an assumption (predictions.csv names them)",
    "bias": "median error with its sign: above zero if predicted too slow",
    "one known": "errors if one row of the source is measured",
    "cover": "percent of rows inside their 95% interval, whose width follows from errors on other sources; it is wider for mixtures of "
    "experts, micro-batches of 1 or 2 samples, exposed communication, and what no other source used",
    "skill": "share of the better simple rule's error that is avoided: 1 is all of it, below 0 the rule is better",
    "MFU, 6PD": "errors of the simple rules: constant utilization; 6 FLOP per parameter and token",
}
"""What the columns of `llm_table` mean."""


def _memory_lines(document: Mapping[str, Any]) -> list[str]:
    memory, failed = document["memory"], document["feasibility"]
    lines = ["", "peak memory" + " " * 23 + "  rows            median/p90   bias"]
    lines += [f"{one['source'][-34:]:34} {one['points']:5} {'':8}  {pair(one):>12} {percent(one['bias']):>6}" for one in memory["sources"]]
    fits, edge = memory["fitted"], memory["thrashes"]
    lines.append(f"successful runs predicted as does_not_fit: {counted(fits['called_does_not_fit'], fits['points'])}")
    alarms = "" if edge["false_alarms"] is None else f"; false alarms: {percent(edge['false_alarms'])}% of the others"
    lines.append(f"runs near the memory limit that are detected: {counted(edge['recalled'], edge['points'])}{alarms}")
    if failed["failed"]:
        lines.append(f"failed runs predicted as does_not_fit: {counted(failed['called_does_not_fit'], failed['failed'])}")
    return lines


def _ranking_lines(document: Mapping[str, Any]) -> list[str]:
    ranking = document["ranking"]
    return [
        "",
        f"{ranking['sweeps']} sweeps: Kendall's tau {number(ranking['kendall_tau_median'])} in the median; the predicted best is "
        f"{percent(ranking['regret_median'])} (p90 {percent(ranking['regret_p90'])}) slower than the measured best",
    ]


def _missing_lines(validation: LlmValidation, most: int = 20) -> list[str]:
    lines = _by_reason("not described", validation.not_described, most) + _by_reason(
        "described but not scored", validation.not_scored, most
    )
    if validation.non_numeric:
        lines += ["", "cells of number columns that are not numbers above 0:", *(f"  {cell}" for cell in validation.non_numeric[:most])]
    return lines + ([f"  and {len(validation.non_numeric) - most} more"] if len(validation.non_numeric) > most else [])


def _by_reason(what: str, rows: Sequence[SkippedRow], most: int) -> list[str]:
    """Return lines with *rows* grouped by reason, most frequent first, under the heading *what*."""
    reasons: dict[str, list[SkippedRow]] = {}
    for one in rows:
        reasons.setdefault(one.reason, []).append(one)
    lines = ["", f"{what}:"] if reasons else []
    for reason, group in sorted(reasons.items(), key=lambda item: -len(item[1]))[:most]:
        lines.append(f"  {len(group):4} rows, such as {group[0].file}:{group[0].line} ({group[0].model}): {reason}")
    if len(reasons) > most:
        lines.append(f"  and {len(reasons) - most} more reasons")
    return lines


COLUMNS: Final = (
    "source", "line", "set", "model", "gpu", "gpus", "precision", "axes", "step_time_s", "predicted_s", "low95_s", "high95_s",
    "zero_shot_s", "constant_mfu_s", "six_pd_s", "memory_GiB", "predicted_memory_GiB", "memory_verdict", "assumed",
)  # fmt: skip


def predictions_csv(validation: LlmValidation) -> str:
    """Return a CSV text of every scored row with its measurement and predictions."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(COLUMNS)
    for row in validation.scored:
        case, times = row.case, row.step_times
        text, measured = case.row.text, case.measured_memory
        figures = [row.measured, times["predicted"], row.low, row.high, times["zero_shot"], times["constant_mfu"], times["six_pd"]]
        writer.writerow(
            [
                text["source"], case.row.line, text["set"], text["model"], case.chip.name, case.gpus, text["precision"], case.axes,
                *(f"{figure:.6g}" for figure in figures), "" if measured is None else f"{measured / 2.0**30:.4g}",
                f"{row.prediction.memory / 2.0**30:.4g}", row.prediction.verdict, "; ".join(case.assumptions),
            ]
        )  # fmt: skip
    return out.getvalue()


def named_files(validation: LlmValidation, document_text: str) -> dict[str, str | bytes]:
    """Return the files of ``-o DIR`` by name."""
    return {
        "validation.json": document_text,
        "validation.txt": llm_table(validation) + "\n",
        "predictions.csv": predictions_csv(validation),
    }
