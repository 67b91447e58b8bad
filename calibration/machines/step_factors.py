"""How much longer does a step take than its layers? One factor of the software stack, fitted to measured steps without exchange.

A step of one rank is simulated on the description of its kernels and layers. The stack's ``compute_factor`` scales the layers but not the
optimizer, so two simulations give the time of both parts. The fitted factor is the one that makes their sum equal to the measured step. It
covers effects that single layers do not show: allocation, framework work between layers, and caches that other layers evicted. The typical
factor of all models goes into the description if there are at least three measurements and its interval excludes 1. A model's own steps
are compared with the factor of the others (`calibration.machines.step_comparison`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from calibration.machines.machine_fit import FACTOR, Fit, MergedRecords, is_disturbed
from calibration.machines.posterior import fit_mean
from calibration.machines.predicted_steps import WrittenFiles, measured_step, predicted_step
from calibration.measure.machine_record import AnswerRow
from sim.spec.yaml import SpecError

STEPS_SUBJECT: Final = "steps over their layers"
FACTOR_FIELD: Final = "compute_factor"
LEAST_STEPS: Final = 3
"""Measured steps, of one model or several: with fewer, their variation is unknown."""


def step_ratios(records: MergedRecords, written: WrittenFiles) -> dict[str, list[float]]:
    """Return, by model, the factors of its steps without exchange, relative to the *written* files without a factor."""
    ratios: dict[str, list[float]] = {}
    for row in records.rows("steps"):
        if row["exchange"] or (records.machine["device"] == "cpu" and is_disturbed(row)):
            continue
        try:
            ratio = _ratio(row, written)
        except SpecError:
            continue  # the model is no longer available
        if ratio is not None:
            ratios.setdefault(row["model"], []).append(ratio)
    return ratios


def _ratio(row: AnswerRow, written: WrittenFiles) -> float | None:
    once, twice = (predicted_step(row, written, stack={FACTOR_FIELD: factor}) for factor in (1.0, 2.0))
    layers = twice - once
    rest = once - layers
    time = measured_step(row) - rest
    return time / layers if layers > 0 and time > 0 else None


def step_fit(ratios: Mapping[str, Sequence[float]], excluded: str | None = None) -> Fit | None:
    """Fit the factor to the steps of all models except *excluded*. Return None if there are no steps."""
    values = [value for model, own in ratios.items() if model != excluded for value in own]
    return Fit(STEPS_SUBJECT, "steps", np.ones(len(values)), np.array(values), fit_mean(FACTOR, values)) if values else None


def is_significant(fit: Fit) -> bool:
    """Return whether *fit* shows that steps differ from their layers: at least `LEAST_STEPS` measurements, and an interval without 1."""
    return len(fit.times) >= LEAST_STEPS and not fit[FACTOR].low <= 1.0 <= fit[FACTOR].high


def with_factor(stack: Mapping[str, Any], fit: Fit, text: str) -> dict[str, Any]:
    """Return the *stack* block with the factor of *fit* and its source *text*."""
    source = {**stack["source"], FACTOR_FIELD: text}
    return {**stack, FACTOR_FIELD: float(f"{fit[FACTOR].value:.4g}"), "source": source}
