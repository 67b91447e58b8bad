"""Which rows read no data although their input is blank? All rows of a job with a calibrating row faster than the described input allows.

A blank cell ``input`` means the workload's own input, such as JPEG files decoded by CPU workers. Measurements of a GPU's speed seldom read
them. If a calibrating row takes less time than its input needs with GPUs that compute next to nothing, the input of its job is not the
described one, and all rows of the job with a blank cell are predicted without reading data. Rows that are only scored decide
nothing; a note names those that are faster than their input.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from calibration.clusters.compute_scale import LARGEST_MISS, LEAST_SCALE
from calibration.clusters.evaluate import Evaluator, SimulatedCase
from calibration.questions import Folders, RunQuestion, question
from calibration.validate.scores import ScoredRow

MARGIN: Final = 1.0 - LARGEST_MISS
"""Measured over least simulated step below which the input is not the described one: no factor reproduces such a row."""


def without_contradicted_input(questions: Sequence[RunQuestion], folders: Folders, processes: int) -> tuple[list[RunQuestion], list[str]]:
    """Return *questions*, those of contradicted inputs with synthetic data if their cell is blank, and a note on each such job."""
    calibrating = [one for one in questions if one.record.role != "prediction" and one.workload.input.loader != "synthetic"]
    stated = [one for one in calibrating if one.record.exposed_sync is None]
    notes: dict[tuple[str, str], str] = {}
    for one, least in _faster_than_input(stated, folders, processes):
        notes.setdefault(_job(one), _note(one, least))
    changed = [
        question(replace(one.record, input="synthetic"), folders) if _job(one) in notes and _is_blank(one) else one for one in questions
    ]
    return changed, list(notes.values())


def contradicted_predictions(rows: Sequence[ScoredRow], folders: Folders, processes: int) -> list[str]:
    """Return a note for each job with a blank input that has a scored row faster than the described input allows."""
    slow = [
        row.question
        for row in rows
        if _is_blank(row.question) and row.question.step_time < MARGIN * min(row.predictions["as_described"], row.predictions["calibrated"])
    ]
    notes: dict[tuple[str, str], str] = {}
    for one, least in _faster_than_input(slow, folders, processes):
        notes.setdefault(_job(one), f"{_faster(one, least)}; if it read no data, write synthetic in a column input")
    return list(notes.values())


def _faster_than_input(questions: Sequence[RunQuestion], folders: Folders, processes: int) -> list[tuple[RunQuestion, float]]:
    """Return those of *questions* whose input alone takes longer than the measured step, with its time (s).

    A step that is as long without reading data waits for something else, such as the network.
    """
    evaluator = Evaluator(folders, processes)
    least = evaluator.predict_all([SimulatedCase(one.record, LEAST_SCALE, ()) for one in questions])
    slow = [(one, each.step) for one, each in zip(questions, least, strict=True) if one.step_time < MARGIN * each.step]
    unread = evaluator.predict_all([SimulatedCase(replace(one.record, input="synthetic"), LEAST_SCALE, ()) for one, _ in slow])
    return [pair for pair, without in zip(slow, unread, strict=True) if without.step < MARGIN * pair[1]]


def _job(one: RunQuestion) -> tuple[str, str]:
    return one.record.hardware, one.record.workload


def _is_blank(one: RunQuestion) -> bool:
    return one.record.input is None and "input." not in one.record.overrides and one.workload.input.loader != "synthetic"


def _note(one: RunQuestion, least: float) -> str:
    """Return a note that *one* is faster than the *least* seconds that its input needs."""
    faster = _faster(one, least)
    if _is_blank(one):
        return (
            f"{faster}, so rows of {one.record.workload} on {one.record.hardware} with a blank input are predicted without reading data "
            "(input synthetic); write real to keep it"
        )
    return f"{faster}, so it calibrates nothing; correct the input, for example with set input.loader=dali_gpu"


def _faster(one: RunQuestion, least: float) -> str:
    return (
        f"{one.record.where}: {one.step_time * 1e3:.4g} ms are less than the {least * 1e3:.4g} ms in which the described input delivers "
        "the samples of a step"
    )
