"""In which order is a machine predicted and measured? `predict` writes a table to commit; `measure` then fills it in on the machine."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from calibration.blind.answers import QuestionRunner
from calibration.blind.predictions import predict_answer
from calibration.blind.questions import questions
from calibration.blind.table import prediction_row, question_key, read_table, row_key, write_table
from sim.spec.library import load_hardware
from sim.spec.whole_file import write_file
from sim.spec.yaml import SpecError
from sim.study.pool import Progress


def predict(machine: str, output: Path, progress: Progress = lambda done, count: None) -> int:
    """Write the predictions for *machine* to *output*, and return how many questions have one.

    A case that the machine cannot run, such as a batch beyond its memory, has a note instead. Raise SpecError if there is no such machine.
    """
    load_hardware(machine)
    all_questions = questions()
    rows = []
    for number, question in enumerate(all_questions):
        progress(number, len(all_questions))
        try:
            rows.append(prediction_row(question, predict_answer(question, machine)))
        except (SpecError, ValueError) as error:  # ValueError: kernels of this GPU are not described
            reason = str(error).splitlines()[0].partition("; ")[0].removeprefix(f"--batch {question.batch}: ")
            rows.append(prediction_row(question, None) | {"note": f"not predicted: {reason}"})
    write_table(output, rows, f"Predicted for {machine}.")
    return sum(row["predicted"] != "" for row in rows)


def measure(path: Path, output: Path, progress: Progress = lambda done, count: None) -> int:
    """Measure the questions of the table at *path* on this machine's GPU, write the answers to *output* and return their number.

    Failures are noted in their row. Raise SpecError if there is no GPU, or if the table contains an unknown question.
    """
    rows = read_table(path)
    by_key = {question_key(question): question for question in questions()}
    if unknown := [row for row in rows if row_key(row) not in by_key]:
        raise SpecError(f"{path}: {unknown[0]['kind']} '{unknown[0]['name']}' is not one of the cases; repeat the prediction")
    runner = QuestionRunner()
    for number, row in enumerate(rows):
        progress(number, len(rows))
        if row["measured"]:
            continue
        value, note = runner.answer(by_key[row_key(row)])
        row["measured"] = "" if value is None else f"{value:.5g}"
        row["note"] = "; ".join(part for part in (row["note"], note) if part)
        if number % 8 == 7:
            _write(output, rows, runner)
    _write(output, rows, runner)
    return sum(row["measured"] != "" for row in rows)


def _write(output: Path, rows: list[dict[str, str]], runner: QuestionRunner) -> None:
    """Write the answers so far to *output*, and the kernel times of the training runs to a second file next to it."""
    write_table(output, rows, f"Measured on {runner.device}.")
    if runner.kernels:
        frame = pd.DataFrame(runner.kernels)
        write_file(output.with_name(f"{output.stem}-kernels.csv"), frame.to_csv(index=False, float_format="%.4g"))
