"""How well does the simulator predict steps of divided models? Compute comes from isolated ranks; points over a network are predicted.

A rank in isolation (`calibration.measure.layout_steps`) shows the time of each unit of the model, or of each pass of its stage. The layers
of the description carry these times. The rest, when each message is sent and how long it takes, is the simulator's: programs of
`sim.parallel`, Gloo's rules in `collectives.play.gloo`, and the socket constants of ``lab-gloo``, which come from a data-parallel point.
The cost of an operation beyond its bytes (`launch_of`) comes from a tensor-parallel point of role network, with many small operations.
Nothing is fitted to a predicted point. Points with more hosts than the two cores are only used to count bytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, Final, NamedTuple

from calibration import RECORDS
from calibration.lab.network import BURST_SECONDS, LEAST_BURST_BYTES
from calibration.lab.plan import WORKLOADS
from calibration.lab.records import RecordLine, read_lines
from calibration.measure.division import Division
from calibration.questions import machine_named, workload_named
from calibration.traces.layout_passes import layout_optimizer_factor, with_unit_times
from calibration.traces.profiled_job import with_stack
from calibration.validate.scores import weighted_quantile
from sim.cluster.build import with_nodes
from sim.mesh import LayoutRun, prepare, run_layout
from sim.parallel.lower.layouts import program
from sim.parallel.program import Send, Start, Work
from sim.parallel.stages import stages
from sim.parallel.units import units
from sim.spec.hardware import Hardware
from sim.spec.measured import MeasuredOn
from sim.spec.parallel import Parallel
from sim.spec.workload import Workload
from sim.spec.yaml import SpecError

COMMITTED_POINTS: Final = RECORDS / "lab-layouts.jsonl"
PLAN: Final = Path(__file__).parent / "plans" / "layouts.yaml"
HARDWARE: Final = "lab-two-cores"
WORKLOAD: Final = "lab-decoder"
STACK: Final = "lab-gloo-mesh"
_HOSTS: Final = 2
"""The number of cores of the machine of the committed records."""


class LayoutPoint(NamedTuple):
    """One measured point and its prediction."""

    layout: Division
    line: RecordLine
    run: LayoutRun

    @property
    def measured(self) -> float:
        """Return the measured step, seconds."""
        return float(self.line["step_time_s"])

    @property
    def error(self) -> float:
        """Return predicted / measured - 1."""
        return self.run.step_time / self.measured - 1.0

    @property
    def kind(self) -> str:
        """Return the axis along which the layout divides the model: FSDP2, tensor or pipeline."""
        return "pipeline" if self.layout.pipeline > 1 else "tensor" if self.layout.tensor > 1 else "FSDP2"

    @property
    def text(self) -> str:
        """Return the point in words."""
        point = self.line["point"]
        delay = f", {1e3 * point['delay_s']:g} ms one way" if point["delay_s"] else ""
        return f"{self.layout.text}, batch {point['batch']}, {8e-6 * point['rate_bytes_per_s']:g} Mbps{delay}"


def score_layouts(path: Path = COMMITTED_POINTS) -> list[LayoutPoint]:
    """Return the points of *path* over a network with their predictions.

    Raise SpecError if there are none, or if one has no ranks measured in isolation.
    """
    lines = measured_lines(path)
    isolated = {_key(line): line for line in lines if line["role"] == "compute"}
    points = []
    for line in lines:
        if line["role"] == "prediction" and line["point"]["hosts"] == _HOSTS:
            if _key(line) not in isolated:
                raise SpecError(
                    f"{path}: no measurement of single ranks of {_layout(line).text}, batch {line['point']['batch']}; measure them first"
                )
            points.append(LayoutPoint(_layout(line), line, simulate_point(line, isolated[_key(line)])))
    if not points:
        raise SpecError(
            f"{path}: has no measured layout of role prediction on {_HOSTS} hosts; pass lines that "
            "'python -m calibration lab --layouts' wrote"
        )
    return points


def measured_lines(path: Path = COMMITTED_POINTS) -> list[RecordLine]:
    """Return the measured points of *path* whose ranks divide the model."""
    return [line for line in read_lines(path) if line["state"] == "measured" and "layout" in line["point"]]


def _layout(line: RecordLine) -> Division:
    return Division.model_validate(line["point"]["layout"])


def _key(line: RecordLine) -> tuple[object, ...]:
    """Return what a point has in common with the isolated ranks that calibrate it; the number of micro-batches may differ in a pipeline."""
    layout = _layout(line)
    changed = {"micro_batches": 1, "schedule": "1f1b"} if layout.pipeline > 1 else {}
    return line["point"]["model"], line["point"]["batch"], line["point"]["hosts"], layout.model_copy(update=changed)


def simulate_point(line: RecordLine, isolated: RecordLine, overrides: tuple[str, ...] = ()) -> LayoutRun:
    """Return the simulated step of the point *line*, with the compute times of its *isolated* ranks."""
    point = line["point"]
    hardware = _machine(line)
    return run_layout(hardware, timed_workload(hardware, _layout(line), point["batch"], isolated, overrides))


def _machine(line: RecordLine) -> Hardware:
    """Return the hosts of the point *line*, with its rate, its delay and the burst size of its token buckets."""
    point = line["point"]
    rate = point["rate_bytes_per_s"]
    changes = [f"node.nic.bandwidth={8e-6 * rate:g} Mbps", f"node.nic.burst={max(LEAST_BURST_BYTES, rate * BURST_SECONDS):g} B"]
    changes += [f"fabric.latency={1e3 * point['delay_s']:g} ms"] if point["delay_s"] else []
    return with_nodes(machine_named(HARDWARE, tuple(changes)), point["hosts"])


def layout_workload(layout: Division, batch: int, overrides: tuple[str, ...] = ()) -> Workload:
    """Return the workload of *layout* as the catalog describes it, with modeled layer times."""
    fields = layout.parallel
    changes = [f"training.batch={batch}", f"training.stack={STACK}"]
    changes += [f"training.parallel.{name}={str(value).lower() if isinstance(value, bool) else value}" for name, value in fields.items()]
    changes += [f"training.gradient_accumulation_steps={layout.micro_batches}"] if layout.micro_batches > 1 else []
    changes += ["training.stack.mesh.host_waits=reductions"] if layout.asynchronous else []
    return workload_named(WORKLOAD, (*changes, *overrides), WORKLOADS)


def timed_workload(hardware: Hardware, layout: Division, batch: int, isolated: RecordLine, overrides: tuple[str, ...] = ()) -> Workload:
    """Return the workload whose layers have the times that the ranks of *layout* took in isolation."""
    base = layout_workload(layout, batch, overrides)
    gpu, parallel = hardware.groups[0].node.gpu, base.training.parallel
    measured = MeasuredOn(gpu=gpu, batch=batch, precision=base.training.precision, tensor=parallel.tensor, source="ranks alone")
    layers = with_unit_times(base, gpu, _unit_times(base, layout, isolated))
    timed = base.model_copy(update={"model": base.model.model_copy(update={"layers": layers, "measured": measured})})
    seconds = sum(rank["parts_s"]["update"] for rank in isolated["ranks"]) / len(isolated["ranks"])
    return with_stack(timed, optimizer_factor=layout_optimizer_factor(hardware, None, timed, seconds))


def _unit_times(base: Workload, layout: Division, isolated: RecordLine) -> list[tuple[Sequence[int], dict[str, float]]]:
    """Return the seconds of each pass, by unit of the model or, in a pipeline, for all units of a chunk together.

    Raise SpecError if ranks hold several chunks: a rank's time between passes was measured in total, not by chunk.
    """
    if layout.virtual_stages > 1:
        raise SpecError(f"{layout.text} with {layout.virtual_stages} virtual stages cannot be scored; write virtual_stages: 1")
    kinds = [kind for _, kind, _ in units(base.model)]
    if layout.pipeline == 1:
        parts = isolated["ranks"][0]["parts_s"]
        return [([number], {part: parts[f"{part}{number}"] for part in "FB"}) for number in range(len(kinds))]
    chunks = stages(kinds, Parallel.model_validate(layout.parallel))
    return [(numbers, {part: _pass_time(isolated, chunk, part) for part in "FB"}) for chunk, numbers in enumerate(chunks)]


def _pass_time(isolated: RecordLine, chunk: int, part: str) -> float:
    """Return the seconds of one pass of *chunk*, including its rank's time between passes: on the last stage, the loss after forward."""
    ranks = isolated["ranks"]
    own, passes = ranks[chunk % len(ranks)]["parts_s"], isolated["point"]["layout"]["micro_batches"]
    last = chunk == len(ranks) - 1
    between = {"F": own["idle"] if last else own["idle"] / 2, "B": 0.0 if last else own["idle"] / 2}[part]
    return (float(own[f"{part} of stage {chunk}"]) + float(between)) / int(passes)


def sent_bytes(line: RecordLine, stage: int) -> float:
    """Return the payload (bytes) that a rank of *stage* sends in a step of the point *line*, from its program and Gloo's rings."""
    workload = layout_workload(_layout(line), line["point"]["batch"])
    layout, total = prepare(_machine(line), workload), 0.0
    for instruction in program(layout, stage):
        if isinstance(instruction, Send):
            total += instruction.nbytes
        elif isinstance(instruction, Start):
            total += _ring_share(instruction.op, layout.mesh.group_size(instruction.axis)) * instruction.nbytes
        elif isinstance(instruction, Work):
            for piece in chain.from_iterable(layout.units[unit].pieces for unit in range(instruction.first, instruction.last + 1)):
                for message in piece.forward if instruction.part == "F" else piece.backward:
                    own = message.nbytes * workload.training.batch
                    total += _ring_share(message.op, layout.mesh.group_size(message.axis)) * own
    return total


def _ring_share(op: str, ranks: int) -> float:
    """Return the ratio of the bytes that each rank sends to an operation's bytes: a gather goes around once, a reduction twice."""
    return (1.0 if op == "all_gather" else 2.0) * (ranks - 1) / ranks


def layout_rows(points: Sequence[LayoutPoint]) -> Iterator[dict[str, Any]]:
    """Yield the errors by axis and of all points: median and 90th percentile, as fractions."""
    for kind in (*dict.fromkeys(point.kind for point in points), "all"):
        errors = [abs(point.error) for point in points if kind in (point.kind, "all")]
        quantiles = {name: weighted_quantile(errors, [1.0] * len(errors), share) for name, share in (("median", 0.5), ("p90", 0.9))}
        yield {"group": kind, "points": len(errors), **quantiles}


def layout_document(points: Sequence[LayoutPoint]) -> dict[str, Any]:
    """Return points and errors as one JSON document; errors are fractions."""
    rows = [
        {"point": point.text, "measured_s": point.measured, "predicted_s": point.run.step_time, "error": point.error} for point in points
    ]
    return {"schema": 1, "points": rows, "rows": list(layout_rows(points))}


def layout_table(points: Sequence[LayoutPoint]) -> str:
    """Return points and errors as text."""
    lines = [f"{'':66} {'measured':>9} {'predicted':>9} {'error':>7}"]
    for point in points:
        lines.append(f"{point.text:66} {1e3 * point.measured:6.0f} ms {1e3 * point.run.step_time:6.0f} ms {100 * point.error:+6.1f}%")
    lines.append(f"\n{'':66} {'points':>9} {'median/p90%':>17}")
    for row in layout_rows(points):
        lines.append(f"{row['group']:66} {row['points']:9} {100 * row['median']:10.1f} / {100 * row['p90']:4.1f}")
    return "\n".join(lines)
