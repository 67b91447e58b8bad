"""What step time does the simulator predict on a description that `calibration.machines.fit_run` wrote? It predicts one measured row.

A model is traced into a layer table on torch's meta device and simulated with synthetic data. A step without exchange is simulated with a
single rank; it was measured while the other ranks did the same. The measured step time is the median over steps of the slowest rank.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from calibration.machines.layer_factors import full_precision, trace_model
from calibration.measure.machine_record import AnswerRow
from sim.cluster.build import place
from sim.simulate import simulate
from sim.spec.library import load_hardware, load_workload
from sim.spec.model import Model
from sim.spec.workload import Workload
from sim.training.job import Job


class WrittenFiles(NamedTuple):
    """The files of a fit, with overrides of hardware and stack that undo the changes made by the measurements of whole layers."""

    hardware: Path
    stack: Path | None
    without_layers: tuple[str, ...] = ()
    stack_without_layers: Mapping[str, Any] = {}


def measured_step(row: AnswerRow) -> float:
    """Return the measured step time (s): the median over steps of the slowest rank."""
    return float(median(max(times) for times in zip(*row["times_by_rank_s"], strict=True)))


def predicted_step(row: AnswerRow, written: WrittenFiles, overrides: Sequence[str] = (), stack: Mapping[str, Any] | None = None) -> float:
    """Return the predicted step time (s) of *row* on the *written* files, with *overrides* of the hardware and fields of the *stack*."""
    machine = load_hardware(str(written.hardware.absolute()), overrides).spec
    table = trace_model(row["model"], tuple(row["inputs"]), tuple(row["arguments"]))
    workload = synthetic_workload(table, row["batch"], written.stack, stack or {})
    placed = place(machine, row["ranks"]) if row["exchange"] else place(machine, None, "1")
    return simulate(machine, [Job(workload, placed)], cold=False).jobs[0].warm.step_time


def synthetic_workload(model: Model, batch: int, stack: Path | None, changed: Mapping[str, Any]) -> Workload:
    """Return a workload that matches the steps of `calibration.measure.ddp_steps`: synthetic data, fp32, SGD with momentum."""
    overrides = ["input.loader=synthetic", f"training.batch={batch}", "training.precision=fp32"]
    overrides += [f"training.stack={stack.absolute()}"] if stack is not None else []
    workload = load_workload("alexnet", overrides).spec
    used = full_precision(workload.training.stack).model_copy(update=dict(changed))
    return workload.model_copy(
        update={"model": model, "name": model.name, "training": workload.training.model_copy(update={"stack": used})}
    )
