"""Which measured steps are in another unit than seconds? Those that are far from what the description of their machine predicts.

A few rows may have a wrong unit, or all of them. If a prediction is wrong by a factor of x, a step with a wrong prefix is 1000 times too
long or too short, give or take x. The limit at the square root of 1000 tells both apart for every x below it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from calibration.clusters.evaluate import Evaluator, SimulatedCase
from calibration.questions import RunQuestion
from calibration.validate.scores import ScoredRow

IMPOSSIBLE: Final = 100.0
"""Measured over predicted step time that no slow machine or software explains, but a wrong unit does."""
NEARLY_ALL: Final = 0.9
"""Share of rows with impossible times from which a wrong unit of the whole column is suspected."""
FAR_OFF: Final = math.sqrt(1000.0)
"""Ratio of measured and predicted step from which a row has a note: halfway, in the logarithm, to a wrong prefix of its unit."""
MOST_ROWS: Final = 20
"""Most rows with a note of their own; the rest are counted."""


def other_unit(rows: Sequence[ScoredRow], compute: Sequence[RunQuestion], evaluator: Evaluator) -> list[str]:
    """Return notes on steps of *rows*, and of the *compute* rows that calibrate them, that may be in another unit.

    One note if that is so for nearly all *rows*.
    """
    stated = [row for row in rows if row.question.record.step_time is not None]
    too_long = sum(row.question.step_time > IMPOSSIBLE * row.predictions["as_described"] for row in stated)
    if stated and too_long >= NEARLY_ALL * len(stated):
        return [
            f"{too_long:,} of {len(stated):,} measured steps are over {IMPOSSIBLE:g} times as long as the machine's description predicts; "
            "step_time_s is in seconds: if these are milliseconds, name the column step_time_ms"
        ]
    described = evaluator.predict_all([SimulatedCase(row.record, 1.0, ()) for row in compute])
    pairs = [
        *((row, prediction.step) for row, prediction in zip(compute, described, strict=True)),
        *((row.question, row.predictions["as_described"]) for row in rows),
    ]
    notes = [_note(row, predicted) for row, predicted in pairs if not 1 / FAR_OFF < row.step_time / predicted < FAR_OFF]
    return [*notes[:MOST_ROWS], *([f"{len(notes) - MOST_ROWS:,} more rows are as far off"] if len(notes) > MOST_ROWS else [])]


def _note(row: RunQuestion, predicted: float) -> str:
    """Return a note that the step of *row* is far from the *predicted* one (s), with the likely mistake."""
    ratio = row.step_time / predicted
    apart = f"{_rounded(ratio)} times" if ratio > 1 else f"1/{_rounded(1 / ratio)} of"
    if row.record.step_time is None:
        mistake = "check its throughput_samples_per_s and batch"
    else:
        mistake = "milliseconds?" if ratio > 1 else "is it in seconds?"
    return f"{row.record.where}: the measured step of {row.step_time:.4g} s is {apart} the predicted {predicted:.3g} s; {mistake}"


def _rounded(ratio: float) -> str:
    return f"{float(f'{ratio:.2g}'):,.0f}"
