"""How far off are training steps that are predicted from kernels, copies and collectives? Each measured step beside its predictions.

Predictions are made three times: from single kernels alone, with the factors that the time of whole layers adds to them, and with the
factor that steps of the *other* models add to layers. No step of a model goes into what is said of it. On a CPU, a step without exchange in
which a rank had its core for less than `calibration.machines.machine_fit.OWN` of the time was disturbed by other programs: it is shown,
and not counted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import Any, NamedTuple

from calibration.machines.machine_fit import FACTOR, Measured, is_disturbed
from calibration.machines.predicted_layouts import predicted_layout
from calibration.machines.predicted_steps import Written, measured_step, predicted_step
from calibration.machines.step_factors import FIELD, step_fit, tells
from calibration.measure.division import Division
from calibration.measure.machine_record import AnswerRow
from sim.spec.yaml import SpecError


class Comparison(NamedTuple):
    """One kind of step: seconds measured and predicted."""

    model: str
    batch: int
    ranks: int
    exchange: bool
    measured: float
    kernels: float
    """Predicted from kernels alone."""
    layers: float
    """Predicted with what whole layers add."""
    predicted: float
    """Predicted also with what steps of other models add."""
    disturbed: bool = False

    @property
    def error(self) -> float:
        """Return predicted over measured, less 1."""
        return self.predicted / self.measured - 1.0


def compare(measured: Measured, written: Written, ratios: Mapping[str, Sequence[float]]) -> tuple[list[Comparison], list[str]]:
    """Return the steps of the records beside their predictions, and why others have none; *ratios* of `step_factors.step_ratios`."""
    comparisons: list[Comparison] = []
    notes: list[str] = []
    for kind, predicted in (("steps", predicted_step), ("layouts", predicted_layout)):
        for row in measured.rows(kind):
            try:
                times = _predictions(row, written, ratios, predicted)
            except SpecError as error:
                notes.append(f"{row['model']}: not predicted: {error}")
                continue
            model, batch, ranks, exchange = _described(row)
            disturbed = measured.machine["device"] == "cpu" and not exchange and is_disturbed(row)
            comparisons.append(Comparison(model, batch, ranks, exchange, measured_step(row), *times, disturbed))
    return comparisons, list(dict.fromkeys(notes))


def _described(row: AnswerRow) -> tuple[str, int, int, bool]:
    """Return the name, the batch and the ranks of a measured step, and whether the ranks exchange."""
    if "layout" in row:
        return f"decoder, {Division.model_validate(row['layout']).text}", row["batch"], row["ranks"], True
    return row["model"].rpartition(":")[2], row["batch"], row["ranks"] if row["exchange"] else 1, row["exchange"]


def _predictions(
    row: AnswerRow, written: Written, ratios: Mapping[str, Sequence[float]], predicted: Callable[..., float]
) -> tuple[float, float, float]:
    """Return the seconds *predicted* from kernels, with layers, and with steps of the other models."""
    kernels = predicted(row, written, written.without_layers, {FIELD: 1.0, **written.stack_without_layers})
    layers = predicted(row, written, stack={FIELD: 1.0})
    others = step_fit(ratios, but=row["model"])
    return kernels, layers, predicted(row, written, stack={FIELD: others[FACTOR].value}) if others and tells(others) else layers


_WAYS = ("from kernels", "and layers", "and other steps")


def comparison_table(rows: Sequence[Comparison]) -> str:
    """Return the comparison, a step a line, and the median error."""
    lines = [f"{'step':42} {'batch':>5} {'ranks':>5} {'measured':>11}" + "".join(f"{way:>21}" for way in _WAYS)]
    for row in rows:
        name = row.model + ("" if row.exchange else ", no exchange")
        told = "".join(f"{1e3 * time:9.1f} ms {100 * (time / row.measured - 1):+6.1f}%" for time in _times(row))
        lines.append(f"{name:42} {row.batch:5} {row.ranks:5} {1e3 * row.measured:8.1f} ms{told}" + "  disturbed" * row.disturbed)
    last = "median error, own model left out of the fit"
    return "\n".join([*lines, f"{last:65}" + "".join(f"{100 * middle:19.1f}%" for middle in median_errors(rows))])


def _times(row: Comparison) -> tuple[float, float, float]:
    return row.kernels, row.layers, row.predicted


def median_errors(rows: Sequence[Comparison]) -> list[float]:
    """Return the median error of each way of predicting, over the steps that nothing disturbed."""
    counted = [row for row in rows if not row.disturbed] or rows
    return [median(abs(_times(row)[way] / row.measured - 1) for row in counted) for way in range(len(_WAYS))]


def comparison_rows(rows: Sequence[Comparison]) -> list[Mapping[str, Any]]:
    """Return the comparison for JSON."""
    return [
        {
            "model": row.model,
            "batch": row.batch,
            "ranks": row.ranks,
            "exchange": row.exchange,
            "measured_s": row.measured,
            "predicted_from_kernels_s": row.kernels,
            "predicted_from_layers_s": row.layers,
            "predicted_s": row.predicted,
            "error": row.error,
            "disturbed": row.disturbed,
        }
        for row in rows
    ]
