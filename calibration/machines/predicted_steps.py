"""What step time does the simulator predict on a description that `calibration.machines.fit_run` wrote? It predicts one measured row.

A model's layer table (`calibration.machines.layer_factors.trace_model`) is simulated with synthetic data. A step without exchange is
simulated with a single rank; it was measured while the other ranks did the same. The measured step time is the median over steps of the
slowest rank.

The small decoder of the probe ``layouts`` is described by its shape, so that its products, attention and passes use the constants of the
description that a fit wrote. The written software stack gets options that match torch's `fully_shard`, `parallelize_module` and pipelining.
Over Gloo, the host waits for each collective (`calibration/lab/workloads/stacks/lab-gloo-mesh.yaml`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any, Final, NamedTuple

from calibration.machines.layer_factors import full_precision, trace_model
from calibration.measure.division import HEAD_DIM, Division
from calibration.measure.machine_record import AnswerRow
from sim.cluster.build import place, with_nodes
from sim.mesh import run_layout
from sim.simulate import simulate
from sim.spec.library import load_hardware, load_workload
from sim.spec.model import Model
from sim.spec.parallel import MeshOptions, Parallel
from sim.spec.sections import with_fields
from sim.spec.workload import Workload
from sim.training.job import Job

_SOURCE: Final = "calibration/measure/layout_steps.py"


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
    used = with_fields(full_precision(workload.training.stack), **changed)
    return workload.model_copy(
        update={"model": model, "name": model.name, "training": workload.training.model_copy(update={"stack": used})}
    )


def predicted_layout(row: AnswerRow, written: WrittenFiles, overrides: Sequence[str] = (), stack: Mapping[str, Any] | None = None) -> float:
    """Return the predicted step time (s) of the layout in *row*; the other arguments are those of `predicted_step`."""
    machine = load_hardware(str(written.hardware.absolute()), overrides).spec
    layout = Division.model_validate(row["layout"])
    base = synthetic_workload(_decoder(row), row["batch"], written.stack, {"gradient_clipping": False, **(stack or {})})
    gloo = base.training.stack.library.backend == "gloo"
    waits = "reductions" if layout.asynchronous else "everything"
    # the measured times of the units include FSDP's copies
    options = MeshOptions(
        framework="fsdp2", copies=False, forward_prefetch=not gloo, host_waits=waits if gloo else "nothing", source=_SOURCE
    )
    changes = {
        "stack": base.training.stack.model_copy(update={"mesh": options}),
        "parallel": Parallel.model_validate(layout.parallel),
        "gradient_accumulation_steps": layout.micro_batches,
    }
    workload: Workload = base.with_training(**changes)
    placed = place(machine, row["ranks"])
    return run_layout(with_nodes(machine, len(placed)), workload, len(placed[0].gpus)).step_time


def _decoder(row: AnswerRow) -> Model:
    """Return the description of `calibration.measure.decoder` in the measured shape."""
    arguments = {name: int(value) for name, value in (text.split("=") for text in row["arguments"])}
    width, tokens = arguments["width"], int(row["inputs"][0].partition(":")[0])
    shape = {
        "layers": arguments["depth"], "hidden": width, "heads": width // HEAD_DIM, "ffn": 4 * width, "vocab": arguments["vocabulary"],
        "activation": "gelu", "norm": "rmsnorm", "positions": "none",
    }  # fmt: skip
    return Model.model_validate({"name": "decoder", "transformer": shape, "sequence": tokens, "source": "calibration/measure/decoder.py"})
