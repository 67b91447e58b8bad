"""What do the closed form and the simulator predict together? The geometric mean of their steps.

Their errors have different causes, so they cancel in part (Bates and Granger, 1969: equal weights need no fit). If the simulator refuses a
row, the prediction is the closed form's, and a part of the prediction states that. Both use the same model of memory.
"""

from __future__ import annotations

from math import sqrt
from typing import Final

from calibration.llm import closed_form, engine
from calibration.llm.case import Case
from calibration.llm.prediction import LlmPrediction
from calibration.llm.priors import Constants
from sim.spec.yaml import SpecError

CLOSED_FORM_ONLY: Final = "closed form alone"
"""Name of the part that has the step if the simulator refuses a row."""


def predict(case: Case, constants: Constants) -> LlmPrediction:
    """Return the combined prediction of *case* with the constants *constants*."""
    closed = closed_form.predict(case, constants)
    try:
        simulated = engine.predict(case, constants)
    except (SpecError, ValueError):
        return LlmPrediction(closed.step_time, closed.memory, closed.verdict, {CLOSED_FORM_ONLY: closed.step_time})
    parts = {"closed form": closed.step_time, "simulator": simulated.step_time}
    return LlmPrediction(sqrt(closed.step_time * simulated.step_time), closed.memory, closed.verdict, parts)
