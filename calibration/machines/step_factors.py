"""How much longer does a step take than its layers? One factor of the software stack, by measured steps without exchange.

A step of one rank is simulated on the description of its kernels and layers; what takes the stack's ``compute_factor`` times as long in it
is layers, what does not is the optimizer, so two simulations tell both parts. The factor is what makes their sum the measured step; in it
is what no layer shows by itself: allocation, the framework between layers, caches that other layers emptied. The typical one of all models
goes into the description where three models or more agree on it and its interval leaves 1 out. A model's own steps are compared with the
factor of the others (`calibration.machines.step_comparison`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from calibration.machines.machine_fit import FACTOR, Fit, Measured, is_disturbed
from calibration.machines.posterior import mean_of
from calibration.machines.predicted_steps import Written, measured_step, predicted_step
from calibration.measure.machine_record import AnswerRow
from sim.spec.yaml import SpecError

WHOLE: Final = "steps over their layers"
FIELD: Final = "compute_factor"
LEAST_MODELS: Final = 3
"""Fewer say nothing of how much models differ."""


def step_ratios(measured: Measured, written: Written) -> dict[str, list[float]]:
    """Return by model the factors that its steps without exchange tell, on what was *written* without one."""
    ratios: dict[str, list[float]] = {}
    for row in measured.rows("steps"):
        if row["exchange"] or (measured.machine["device"] == "cpu" and is_disturbed(row)):
            continue
        try:
            ratio = _ratio(row, written)
        except SpecError:
            continue  # a model that is not here any more tells nothing
        if ratio is not None:
            ratios.setdefault(row["model"], []).append(ratio)
    return ratios


def _ratio(row: AnswerRow, written: Written) -> float | None:
    once, twice = (predicted_step(row, written, stack={FIELD: factor}) for factor in (1.0, 2.0))
    layers = twice - once
    rest = once - layers
    time = measured_step(row) - rest
    return time / layers if layers > 0 and time > 0 else None


def step_fit(ratios: Mapping[str, Sequence[float]], but: str | None = None) -> Fit | None:
    """Return the factor that steps of all models tell, *but* one's; None where no step does."""
    values = [value for model, own in ratios.items() if model != but for value in own]
    return Fit(WHOLE, "steps", np.ones(len(values)), np.array(values), mean_of(FACTOR, values)) if values else None


def tells(fit: Fit) -> bool:
    """Tell whether *fit* says that steps take another time than layers: three models or more agree, and the interval leaves 1 out."""
    return len(fit.times) >= LEAST_MODELS and not fit[FACTOR].low <= 1.0 <= fit[FACTOR].high


def with_factor(stack: Mapping[str, Any], fit: Fit, text: str) -> dict[str, Any]:
    """Return the *stack* block with the factor that *fit* found, and the source *text*."""
    source = {**stack["source"], FIELD: text}
    return {**stack, FIELD: float(f"{fit[FACTOR].value:.4g}"), "source": source}
