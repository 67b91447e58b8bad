"""How accurate is GPU power predicted from the simulated mix of kernels and idle gaps? Scored on an H100, which was not used in the fit."""

from __future__ import annotations

from typing import Final

from calibration import RECORDS
from calibration.blind.predictions import predict_answer
from calibration.blind.questions import questions
from calibration.blind.table import question_key, read_table, row_key
from calibration.energy import ScoredFigure
from sim.spec.library import load_hardware

MACHINE: Final = "gpu-h100-sxm_1gpu-16vcpu-200gb"
STEP_RECORDS: Final = RECORDS / "blind" / "2026-11-23-h100.csv"


def score_steps() -> list[ScoredFigure]:
    """Return the measured GPU power (W) in each training step, and what the machine's description predicts now. Takes a minute."""
    measured = {row_key(row): float(row["measured"]) for row in read_table(STEP_RECORDS) if row["kind"] == "power" and row["measured"]}
    power = load_hardware(MACHINE).spec.groups[0].node.gpu.power
    scored = []
    for question in questions():
        watts = measured.get(question_key(question))
        if watts is not None and (prediction := predict_answer(question, MACHINE)) is not None:
            name = f"{question.name}, {question.precision}, batch {question.batch}"
            scored.append(ScoredFigure(name, watts, prediction.value, power))
    return scored
