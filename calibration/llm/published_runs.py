"""What was predicted for each committed run of a transformer? Writes and reads ``records/llm/predictions.csv``.

The file has a line for each scored run: what was measured, what each predictor says with the run's source left out, and the simulated step
with a digest of the machine and workload that were simulated. A step with the same digest need not be simulated again, if the simulator has
not changed.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from calibration.llm.score import ScoredRun
from calibration.llm.simulated import SimulatedRun
from sim.spec.yaml import SpecError

PREDICTIONS: Final = "calibration/records/llm/predictions.csv"
COLUMNS: Final = (
    "line", "source", "set", "model", "gpu", "gpus", "precision", "axes", "step_time_s", "predicted_s", "low95_s", "high95_s",
    "closed_form_s", "simulator_s", "simulated_s", "simulated_compute_s", "inputs_sha256",
)  # fmt: skip
"""``predicted_s`` is the geometric mean of ``closed_form_s`` and ``simulator_s``; the latter is ``simulated_s`` with compute as the other
sources require it. ``line`` is that of ``training.csv``."""


def predictions_csv(runs: Sequence[SimulatedRun], scored: Sequence[ScoredRun]) -> str:
    """Return the CSV text of *runs* and of the predictions *scored* from them, in order."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(COLUMNS)
    for run, row in zip(runs, scored, strict=True):
        case, text, times = run.case, run.case.row.text, row.step_times
        seconds = (row.measured, times["predicted"], row.low, row.high, times["closed form"], times["simulator"])
        writer.writerow(
            [
                case.row.line, text["source"], text["set"], text["model"], case.chip.name, case.gpus, text["precision"], case.axes,
                *(f"{value:.6g}" for value in seconds), repr(run.step), repr(run.compute), run.inputs,
            ]
        )  # fmt: skip
    return out.getvalue()


def kept_steps(path: Path) -> Mapping[str, tuple[float, float]]:
    """Return the simulated seconds of a step, and of its compute, by the digest of their inputs, from the file at *path*.

    Raise SpecError if there is no such file, or a line lacks them.
    """
    try:
        with path.open(encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file))
    except OSError as error:
        raise SpecError(f"{path}: {error.strerror}; without --keep-steps, all runs are simulated") from None
    steps = {}
    for line, row in enumerate(rows, 2):
        try:
            steps[row["inputs_sha256"]] = (float(row["simulated_s"]), float(row["simulated_compute_s"]))
        except (KeyError, TypeError, ValueError):
            raise SpecError(f"{path}:{line}: has no simulated step; without --keep-steps, all runs are simulated") from None
    return steps
