"""How accurate are training steps predicted from kernels, copies and collectives? A table of measured steps and their predictions.

Each step is predicted in three ways: from single kernels only; also with the factors from the times of whole layers; and also with the
factor from steps of the *other* models. The steps of a model are never used for its own prediction. On a CPU, a step without exchange is
disturbed by other programs if a rank had its core for less than `calibration.machines.machine_fit.OWN` of the time. Disturbed steps are
listed but do not count in the median error.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import Any, NamedTuple

from calibration.machines.machine_fit import FACTOR, MergedRecords, is_disturbed
from calibration.machines.predicted_steps import WrittenFiles, measured_step, predicted_layout, predicted_step
from calibration.machines.step_factors import FACTOR_FIELD, is_significant, step_fit
from calibration.measure.division import Division
from calibration.measure.machine_record import AnswerRow
from sim.spec.yaml import SpecError


class StepComparison(NamedTuple):
    """Measured and predicted times (s) of one kind of step."""

    model: str
    batch: int
    ranks: int
    exchange: bool
    measured: float
    from_kernels: float
    """Predicted from kernels only."""
    from_layers: float
    """Predicted also with the factors from whole layers."""
    predicted: float
    """Predicted also with the factor from steps of other models."""
    disturbed: bool = False

    @property
    def error(self) -> float:
        """Return predicted over measured time, minus 1."""
        return self.predicted / self.measured - 1.0


def compare(records: MergedRecords, written: WrittenFiles, ratios: Mapping[str, Sequence[float]]) -> tuple[list[StepComparison], list[str]]:
    """Return the measured steps with their predictions, and notes on steps without one; *ratios* are from `step_factors.step_ratios`."""
    comparisons: list[StepComparison] = []
    notes: list[str] = []
    for kind, predicted in (("steps", predicted_step), ("layouts", predicted_layout)):
        for row in records.rows(kind):
            try:
                times = _predictions(row, written, ratios, predicted)
            except SpecError as error:
                notes.append(f"{row['model']}: not predicted: {error}")
                continue
            model, batch, ranks, exchange = _labels(row)
            disturbed = records.machine["device"] == "cpu" and not exchange and is_disturbed(row)
            comparisons.append(StepComparison(model, batch, ranks, exchange, measured_step(row), *times, disturbed))
    return comparisons, list(dict.fromkeys(notes))


def _labels(row: AnswerRow) -> tuple[str, int, int, bool]:
    """Return name, batch, number of ranks of a measured step, and whether the ranks exchange gradients."""
    if "layout" in row:
        return f"decoder, {Division.model_validate(row['layout']).text}", row["batch"], row["ranks"], True
    return row["model"].rpartition(":")[2], row["batch"], row["ranks"] if row["exchange"] else 1, row["exchange"]


def _predictions(
    row: AnswerRow, written: WrittenFiles, ratios: Mapping[str, Sequence[float]], predicted: Callable[..., float]
) -> tuple[float, float, float]:
    """Return the times (s) that *predicted* gives from kernels, with layers, and with steps of the other models."""
    kernels = predicted(row, written, written.without_layers, {FACTOR_FIELD: 1.0, **written.stack_without_layers})
    layers = predicted(row, written, stack={FACTOR_FIELD: 1.0})
    others = step_fit(ratios, excluded=row["model"])
    return (
        kernels,
        layers,
        predicted(row, written, stack={FACTOR_FIELD: others[FACTOR].value}) if others and is_significant(others) else layers,
    )


_WAYS = ("from kernels", "and layers", "and other steps")


def comparison_table(rows: Sequence[StepComparison]) -> str:
    """Return a table with one line per step, and the median error."""
    lines = [f"{'step':42} {'batch':>5} {'ranks':>5} {'measured':>11}" + "".join(f"{way:>21}" for way in _WAYS)]
    for row in rows:
        name = row.model + ("" if row.exchange else ", no exchange")
        cells = "".join(f"{1e3 * time:9.1f} ms {100 * (time / row.measured - 1):+6.1f}%" for time in _times(row))
        lines.append(f"{name:42} {row.batch:5} {row.ranks:5} {1e3 * row.measured:8.1f} ms{cells}" + "  disturbed" * row.disturbed)
    label = "median error, own model left out of the fit"
    return "\n".join([*lines, f"{label:65}" + "".join(f"{100 * middle:19.1f}%" for middle in median_errors(rows))])


def _times(row: StepComparison) -> tuple[float, float, float]:
    return row.from_kernels, row.from_layers, row.predicted


def median_errors(rows: Sequence[StepComparison]) -> list[float]:
    """Return the median error of each way of predicting, over the undisturbed steps (over all steps if there are none)."""
    counted = [row for row in rows if not row.disturbed] or rows
    return [median(abs(_times(row)[way] / row.measured - 1) for row in counted) for way in range(len(_WAYS))]


def comparison_rows(rows: Sequence[StepComparison]) -> list[Mapping[str, Any]]:
    """Return the comparison for JSON."""
    return [
        {
            "model": row.model,
            "batch": row.batch,
            "ranks": row.ranks,
            "exchange": row.exchange,
            "measured_s": row.measured,
            "predicted_from_kernels_s": row.from_kernels,
            "predicted_from_layers_s": row.from_layers,
            "predicted_s": row.predicted,
            "error": row.error,
            "disturbed": row.disturbed,
        }
        for row in rows
    ]
