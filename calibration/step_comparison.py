"""How far off are training steps that are predicted from kernels, copies and collectives? Each measured step beside its prediction.

Of whole steps only their scatter went into the description. Predictions are made twice: from single kernels alone, and with the factors
that the time of whole layers adds to them. A model is traced into a layer table on torch's meta device, and simulated with synthetic
data. A step without exchange is one rank's, beside ranks that do the same. Measured is the median over steps of the slowest rank. On a
CPU, a step without exchange in which a rank had its core for less than `calibration.machine_fit.OWN` of the time was disturbed by other
programs: it is shown, and not counted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from calibration.layer_factors import full_precision, traced
from calibration.machine_fit import Measured, is_disturbed
from calibration.machine_record import Row
from sim.cluster.build import place
from sim.simulate import simulate
from sim.spec.library import load_hardware, load_workload
from sim.spec.workload import Model, Workload
from sim.spec.yaml import SpecError
from sim.training.job import Job


class Written(NamedTuple):
    """The files of a fit, and the overrides that undo what whole layers changed in them."""

    hardware: Path
    stack: Path | None
    without_layers: tuple[str, ...] = ()


class Comparison(NamedTuple):
    """One kind of step: seconds measured and predicted."""

    model: str
    batch: int
    ranks: int
    exchange: bool
    measured: float
    kernels: float
    """Predicted without what whole layers add."""
    predicted: float
    disturbed: bool = False

    @property
    def error(self) -> float:
        """Return predicted over measured, less 1."""
        return self.predicted / self.measured - 1.0


def compare(measured: Measured, written: Written) -> tuple[list[Comparison], list[str]]:
    """Return the steps of the records beside their predictions, and why others have none."""
    found: list[Comparison] = []
    notes: list[str] = []
    for row in measured.rows("steps"):
        try:
            kernels, predicted = (predicted_step(row, written, overrides) for overrides in (written.without_layers, ()))
        except SpecError as error:
            notes.append(f"{row['model']}: not predicted: {error}")
            continue
        ranks = row["ranks"] if row["exchange"] else 1
        name = row["model"].rpartition(":")[2]
        disturbed = measured.machine["device"] == "cpu" and is_disturbed(row)
        found.append(Comparison(name, row["batch"], ranks, row["exchange"], measured_step(row), kernels, predicted, disturbed))
    return found, list(dict.fromkeys(notes))


def measured_step(row: Row) -> float:
    """Return the median over steps of the slowest rank, seconds."""
    return float(median(max(times) for times in zip(*row["times_by_rank_s"], strict=True)))


def predicted_step(row: Row, written: Written, overrides: Sequence[str] = ()) -> float:
    """Return the step that the simulator predicts on what was *written*, with *overrides* of the hardware, seconds."""
    machine = load_hardware(str(written.hardware.absolute()), overrides).spec
    workload = _workload(traced(row["model"], tuple(row["inputs"]), tuple(row["arguments"])), row["batch"], written.stack)
    job = Job(workload, place(machine, row["ranks"] if row["exchange"] else 1))
    return simulate(machine, [job], cold=False).jobs[0].warm.step_time


def _workload(model: Model, batch: int, stack: Path | None) -> Workload:
    """Return what the steps of `calibration.ddp_steps` are: synthetic data, fp32, SGD with momentum."""
    overrides = ["input.loader=synthetic", f"training.batch={batch}", "training.precision=fp32"]
    overrides += [f"training.stack={stack.absolute()}"] if stack is not None else []
    found = load_workload("alexnet", overrides).spec
    training = found.training.model_copy(update={"stack": full_precision(found.training.stack)})
    return found.model_copy(update={"model": model, "name": model.name, "training": training})


def comparison_table(rows: Sequence[Comparison]) -> str:
    """Return the comparison, a step a line, and the median error."""
    lines = [f"{'step':28} {'batch':>5} {'ranks':>5} {'measured':>11} {'from kernels':>20} {'and layers':>20}"]
    for row in rows:
        name = row.model + ("" if row.exchange else ", no exchange")
        told = "".join(f"{1e3 * time:9.1f} ms {100 * (time / row.measured - 1):+7.1f} %" for time in (row.kernels, row.predicted))
        lines.append(f"{name:28} {row.batch:5} {row.ranks:5} {1e3 * row.measured:8.1f} ms{told}" + "  disturbed" * row.disturbed)
    middles = [100 * median(abs(time / row.measured - 1) for row, time in pairs) for pairs in _by_way(rows)]
    return "\n".join([*lines, f"{'median error, no step was fitted':51}" + "".join(f"{middle:19.1f} %" for middle in middles)])


def _by_way(rows: Sequence[Comparison]) -> list[list[tuple[Comparison, float]]]:
    counted = [row for row in rows if not row.disturbed] or rows
    return [[(row, row.kernels) for row in counted], [(row, row.predicted) for row in counted]]


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
            "predicted_s": row.predicted,
            "error": row.error,
            "disturbed": row.disturbed,
        }
        for row in rows
    ]
