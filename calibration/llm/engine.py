"""What does the simulator say of a measured run? A `Case` as hardware and workload, and one simulated step (`sim.mesh.predict`).

What a case knows becomes a workload document: the shape, the layout, the stack of its source. Limits: FP4 is FP8; a GPU without a
described machine, or a layout that the engine refuses, raises `SpecError`.
"""

from __future__ import annotations

import json
import math
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from calibration.llm.case import Case
from calibration.llm.closed_form import Constants, Prediction
from sim.spec.hardware import Hardware
from sim.spec.library import load, load_hardware
from sim.spec.workload import Workload
from sim.spec.yaml import SpecError

if TYPE_CHECKING:
    from sim.mesh import LayoutRun

_RECOMPUTE: Final = {"none": "none", "full": "blocks", "attention": "selective", "operators": "operators"}
_SHARD: Final = {0: "none", 1: "optimizer", 2: "gradients", 3: "parameters"}
_PRECISION: Final = {"16bit": "bf16", "fp8": "fp8", "fp4": "fp8"}


def workload_document(case: Case) -> dict[str, Any]:
    """Return the workload of *case* as plain data."""
    parallel: dict[str, Any] = {
        "tensor": case.tensor,
        "pipeline": case.pipeline,
        "context": case.context,
        "expert": case.expert,
        "virtual_stages": case.virtual,
        "shard": _SHARD[case.zero],
    }
    if case.tensor > 1:
        parallel["sequence"] = case.sequence_parallel
    model: dict[str, Any] = {"name": "measured", "transformer": case.shape.model_dump(exclude_none=True), "sequence": case.seq}
    if case.lora:
        model["lora"] = {"rank": 16}
    precision = _PRECISION[case.products]
    if case.chip.generation == "volta" or case.row.text["precision"].startswith("fp16"):
        precision = "fp16"
    return {
        "name": "measured",
        "model": {**model, "source": "a table of measured runs"},
        "training": {
            "batch": case.micro_batch,
            "gradient_accumulation_steps": case.micro_batches,
            "precision": precision,
            "optimizer": {"name": "adam"},
            "stack": case.stack,
            "activation_checkpointing": _RECOMPUTE[case.recompute],
            "parallel": parallel,
        },
    }


def workload_of(case: Case) -> Workload:
    """Return the workload of *case*. Raise SpecError where it is none that can be."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "measured.yaml"
        path.write_text(json.dumps(workload_document(case)), encoding="utf-8")
        return load(Workload, path).spec


def hardware_of(case: Case) -> Hardware:
    """Return the machine of *case*, with its NICs. Raise SpecError where none is described."""
    if not case.chip.machine:
        raise SpecError(f"{case.chip.name}: no machine with it is described")
    hardware = load_hardware(case.chip.machine).spec
    node = hardware.groups[0].node
    per_node = case.nic * node.gpu_count / node.nic.count
    return load_hardware(case.chip.machine, [f"node.nic.bandwidth={per_node * 8 / 1e9:g} Gbps"]).spec


def simulated(case: Case) -> LayoutRun:
    """Return the simulated step of *case*. Raise SpecError where the simulator refuses it."""
    from sim.mesh import predict as simulate

    hardware = hardware_of(case)
    here = hardware.groups[0].node.gpu_count
    each = next(count for count in range(min(here, case.gpus), 0, -1) if case.gpus % count == 0)
    return simulate(hardware, workload_of(case), math.ceil(case.gpus / each), each)


def predict(case: Case, at: Constants) -> Prediction:
    """Return what the simulator says of *case*; of the constants *at* none is used."""
    del at
    run = simulated(case)
    return Prediction(run.step_time, run.memory_peak_bytes, run.memory_verdict)
