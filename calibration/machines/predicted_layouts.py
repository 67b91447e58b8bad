"""What step time does the simulator predict for ranks that divide the small decoder? It predicts one measured row of the probe ``layouts``.

The decoder is described by its shape, so that its products, attention and passes use the constants of the description that a fit wrote.
The written software stack gets options that match torch's `fully_shard`, `parallelize_module` and pipelining. Over Gloo, collectives do not
run on a stream of the device: the host waits for each of them (`calibration/lab/workloads/stacks/lab-gloo-mesh.yaml`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from calibration.machines.predicted_steps import WrittenFiles, synthetic_workload
from calibration.measure.division import Division
from calibration.measure.machine_record import AnswerRow
from sim.cluster.build import place, with_nodes
from sim.mesh import run_layout
from sim.spec.library import load_hardware
from sim.spec.model import Model
from sim.spec.parallel import MeshOptions, Parallel
from sim.spec.workload import Workload

_SOURCE: Final = "calibration/measure/layout_steps.py"


def predicted_layout(row: AnswerRow, written: WrittenFiles, overrides: Sequence[str] = (), stack: Mapping[str, Any] | None = None) -> float:
    """Return the predicted step time (s) of *row* on the *written* files, with *overrides* of the hardware and fields of the *stack*."""
    machine = load_hardware(str(written.hardware.absolute()), overrides).spec
    layout = Division.model_validate(row["layout"])
    base = synthetic_workload(_decoder(row), row["batch"], written.stack, {"gradient_clipping": False, **(stack or {})})
    gloo = base.training.stack.backend == "gloo"
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
    workload: Workload = base.model_copy(update={"training": base.training.model_copy(update=changes)})
    placed = place(machine, row["ranks"])
    return run_layout(with_nodes(machine, len(placed)), workload, len(placed[0].gpus)).step_time


def _decoder(row: AnswerRow) -> Model:
    """Return the description of `calibration.measure.decoder` in the measured shape."""
    from calibration.measure.decoder import HEAD_DIM

    arguments = {name: int(value) for name, value in (text.split("=") for text in row["arguments"])}
    width, tokens = arguments["width"], int(row["inputs"][0].partition(":")[0])
    shape = {
        "layers": arguments["depth"], "hidden": width, "heads": width // HEAD_DIM, "ffn": 4 * width, "vocab": arguments["vocabulary"],
        "activation": "gelu", "norm": "rmsnorm", "positions": "none",
    }  # fmt: skip
    return Model.model_validate({"name": "decoder", "transformer": shape, "sequence": tokens, "source": "calibration/measure/decoder.py"})
