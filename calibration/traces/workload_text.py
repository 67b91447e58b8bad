"""How is a replayed job written? As the YAML of a workload with a layer table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from calibration.traces.profiled_job import JobMachine, ProfiledJob
from sim.extract.table import quote_word, render
from sim.spec.model import Model


def workload_text(fields: Mapping[str, Any], job: ProfiledJob) -> str:
    """Return the workload as YAML."""
    lines = [
        f"# Layers carry the times of {job.source}.",
        "# Elsewhere they are scaled: another GPU, batch or precision, more nodes, another network, other buckets.",
    ]
    for key, value in fields.items():
        if key == "model":
            lines += ["model:", *_model(value, job.machine), *(f"  {name}: null" for name in fields.get("dropped", ()))]
        elif value is not None and key != "dropped":
            lines.append(f"{key}: {_flow(value)}")
    return "\n".join(lines) + "\n"


def _model(model: Model, machine: JobMachine) -> Sequence[str]:
    """Return the lines of the block of *model*; its GPU is written as in the description of *machine*."""
    head, _, table = render(model.model_copy(update={"measured": None})).partition("layers:\n")
    on = model.measured
    assert on is not None
    place = {"gpu": machine.gpu_reference, "batch": on.batch, "precision": on.precision, "source": on.source}
    place |= {"tensor": on.tensor} if on.tensor > 1 else {}
    lines = [line for line in head.splitlines() if not line.startswith("#")]
    return [f"  {line}".rstrip() for line in (*lines, f"measured: {_flow(place)}", "layers:", *table.splitlines())]


def _flow(value: Any) -> str:
    """Return plain data as one line of YAML."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_flow(key)}: {_flow(inner)}" for key, inner in value.items()) + "}"
    return quote_word([*value] if isinstance(value, tuple) else value)
