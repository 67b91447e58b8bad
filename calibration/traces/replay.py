"""What would this profiled job take elsewhere? A workload whose layers carry the times that the profile showed, for ``sim run``.

With a layer table (a catalogue workload, one of ``sim extract``, or the one that a simulated trace names) the times of a pass, up to each
bucket where the trace tells buckets, are shared among its layers in the ratio of their computed times. Without one the trace alone makes
the table: one layer for each gradient and class of kernel, in the order gradients become ready, which needs ``record_shapes=True``.
Launches are those with which the host falls behind as far as it did; the optimizer's time goes into ``optimizer_factor``.
Of jobs that shard or split the model, `calibration.traces.divided` tells the times, with a workload that says the layout.
Limits: no pipelines; where the GPU never waits for the host, a simulated trace does not tell by how much. A trace alone tells neither
activations, so that GPU memory is not counted, nor samples of an epoch, and its times grow with the batch in proportion.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, NamedTuple

from calibration.questions import Folders
from calibration.traces.divided import optimizer_factor, own_passes, timed_layers
from calibration.traces.import_trace import Imported
from calibration.traces.kineto import CPU
from calibration.traces.passes_seen import Gradient, Part, Seen, passes_seen
from calibration.traces.trace_report import MUCH_INPUT, gpus, nodes
from sim.cluster.build import with_nodes
from sim.extract.table import render, word
from sim.parallel.split import units
from sim.spec.catalogue import catalogue, locate
from sim.spec.fields import Dtype, OperatorClass
from sim.spec.hardware import Gpu, Node
from sim.spec.library import load_hardware, load_part, load_workload
from sim.spec.measured import MeasuredOn, MeasuredTimes
from sim.spec.segments import recomputed, segments
from sim.spec.workload import Layer, Model, Optimizer, Workload
from sim.spec.yaml import SpecError
from sim.training.cuts import programs
from sim.training.layer_times import layer_times
from sim.training.step_plan import Pass, Timeline, asked_of, one_pass, optimizer_work, plan_step

_SET_UP: Final = ("gradient_accumulation_steps", "activation_checkpointing")
"""Of the training, what a simulated trace tells beside batch and precision."""
_HALVINGS: Final = 60
_LEAST_FACTOR: Final = 1e-6
_MOST_SCALE: Final = 1e6
_STACKS: Final = {True: "gloo-ddp", False: "torch-2.x-ddp"}
"""Stacks of jobs on processors, and on GPUs, where none is named: what torch's DistributedDataParallel does."""
_DTYPES: Final[Mapping[str, Dtype]] = {"float": "fp32", "double": "fp64", "c10::Half": "fp16", "c10::BFloat16": "bf16"}
_OPTIMIZERS: Final = {"SGD": "momentum", "Adam": "adam", "AdamW": "adam", "Adafactor": "adafactor", "Muon": "muon", "LAMB": "lamb"}
_SAMPLES: Final = 1_000_000
_SECONDS: Final = ("distributed_overhead", "launch_cpu")


@dataclass(frozen=True)
class Asked:
    """What a user says of a profiled job, where the trace does not; empty and None: nothing."""

    hardware: str = ""
    workload: str = ""
    stack: str = ""
    batch: int | None = None
    precision: str = ""
    folders: Folders = field(default_factory=Folders)


class _Machine(NamedTuple):
    """On what the job ran."""

    gpu: Gpu
    said: Any
    """The GPU as a workload may name it: by its name in the catalogue, or all that its description says."""
    cpu_speed: float
    name: str


def replayed(found: Imported, asked: Asked, path: Path) -> str:
    """Return the text of a workload, to be written to *path*, that replays the job of *found*.

    Raise SpecError where the job is no data-parallel one, or the trace and *asked* leave open what it takes.
    """
    if found.traces[0].simulated:
        told = found.traces[0].described
        known = {"hardware": told.get("hardware"), "workload": told.get("workload"), "stack": told.get("stack")}
        known |= {"batch": told.get("batch_per_gpu"), "precision": told.get("precision")}
        asked = replace(asked, **{name: value for name, value in known.items() if value and not getattr(asked, name)})
    _require(found, asked)
    machine = _machine(asked)
    if any(trace.divided and not trace.simulated for trace in found.traces):
        return _text(_of_layout(found, asked, machine, path), found, machine)
    if asked.workload:
        return _text(_of_table(found, asked, machine, path), found, machine)
    return _text(_of_trace(found, asked, machine, path), found, machine)


def _require(found: Imported, asked: Asked) -> None:
    file = found.traces[0].file
    divided = next((trace for trace in found.traces if trace.divided), None)
    if divided is not None and not divided.simulated and not asked.workload:
        raise SpecError(
            f"{divided.file}: shows {divided.divided}, so that ranks divide the model among them; add --workload, one whose "
            "training.parallel says how"
        )
    if not asked.hardware:
        raise SpecError(f"{file}: does not tell the machine; add --hardware, the one on which it was profiled")
    if not asked.workload and asked.batch is None:
        raise SpecError(f"{file}: does not tell the samples per GPU; add --batch")


def _machine(asked: Asked) -> _Machine:
    loaded = load_hardware(asked.hardware, library=asked.folders.hardware)
    for index, group in enumerate(loaded.spec.groups):
        if group.role == "worker" and group.node.gpu_count:
            said = loaded.document.value["groups"][index]["node"]["gpu"]
            return _Machine(group.node.gpu, _named(group.node) or said, group.node.host.cpu.speed, loaded.spec.name)
    raise SpecError(f"{asked.hardware}: has no GPU on which the trace could have been made; name another --hardware")


def _named(node: Node) -> str | None:
    """Return the catalogue's name of the GPU of *node*, where that is just what the catalogue says."""
    try:
        return node.gpu.name if load_part(Gpu, node.gpu.name, "hardware/parts/gpus") == node.gpu else None
    except SpecError:
        return None


# --- with a layer table ----------------------------------------------------------------------------------------------------


def _of_table(found: Imported, asked: Asked, machine: _Machine, path: Path) -> dict[str, Any]:
    """Return the workload that *asked* names, its layers with the times of *found*."""
    told = found.traces[0].described
    changed = [f"training.batch={asked.batch}"] if asked.batch else []
    changed += [f"training.precision={asked.precision}"] if asked.precision else []
    changed += [f"training.stack={asked.stack}"] if asked.stack else []
    set_up = {name: told[name] for name in _SET_UP if name in told}
    changed += [f"training.{name}={value}" for name, value in set_up.items()]
    base = load_workload(asked.workload, (*changed, "training.compute_factor=1"), asked.folders.workloads).spec
    seen = passes_seen(found, base.training.stack.overlap_slowdown)
    computed = one_pass(asked_of(base, machine.gpu, machine.cpu_speed))
    factor = _optimizer_factor(base, machine.gpu, seen, gpus(found))
    timed = base.model.model_copy(
        update={"layers": _shared(base, machine, computed, seen, gpus(found)), "measured": _on(found, base, machine)}
    )
    stack = base.training.stack.model_copy(update={"optimizer_factor": factor})
    draft = base.model_copy(update={"model": timed, "training": base.training.model_copy(update={"stack": stack})})
    draft = _launching(draft, machine, seen, gpus(found))
    training: dict[str, Any] = {"batch": base.training.batch, "precision": base.training.precision, "compute_factor": 1.0}
    fitted = {"optimizer_factor": factor, "launch_cpu": f"{draft.training.stack.launch_cpu!r} s"}
    training["stack"] = {
        "extends": _reference(asked.stack or base.training.stack.name, "workloads/stacks", asked, path),
        **fitted,
        "source": dict.fromkeys(fitted, f"{_source(found, machine)}"),
    }
    model = draft.model.model_copy(update={"command": ""})
    dropped = dict.fromkeys(("transformer", "sequence", "lora", "lengths", "frozen")) if base.model.transformer is not None else {}
    return {
        "extends": _reference(asked.workload, "workloads", asked, path),
        "name": f"{base.name}-measured",
        "model": model,
        "dropped": dropped,
        "dataset": _cut(base) if base.model.sequence is not None else None,
        "training": training | set_up | _noise(seen),
    }


def _of_layout(found: Imported, asked: Asked, machine: _Machine, path: Path) -> dict[str, Any]:
    """Return the workload that *asked* names, whose layout the ranks of *found* have, its layers with their times."""
    passes = own_passes(found)
    changed = [f"training.batch={asked.batch}"] if asked.batch else []
    changed += [f"training.precision={asked.precision}"] if asked.precision else []
    changed += [f"training.stack={asked.stack}"] if asked.stack else []
    base = load_workload(asked.workload, (*changed, "training.compute_factor=1"), asked.folders.workloads).spec
    parallel = base.training.parallel
    if parallel.trivial or parallel.pipeline > 1:
        raise SpecError(
            f"{asked.workload}: training.parallel does not say how the {gpus(found)} ranks of {found.traces[0].file} divide the model; "
            "write for example parallel: {shard: parameters}, or tensor: 2"
        )
    everything = range(len(units(base.model)))
    layers = timed_layers(base, machine.gpu, [(everything, {"F": passes.forward, "B": passes.backward})])
    on = _on(found, base, machine).model_copy(update={"tensor": parallel.tensor})
    model = base.model.model_copy(update={"layers": layers, "measured": on, "command": ""})
    timed = base.model_copy(update={"model": model})
    hardware = load_hardware(asked.hardware, library=asked.folders.hardware).spec
    each = next(group.node.gpu_count for group in hardware.groups if group.node.gpu_count)
    factor = optimizer_factor(with_nodes(hardware, max(1, gpus(found) // each)), timed, passes.update)
    stack = {"extends": _reference(asked.stack or base.training.stack.name, "workloads/stacks", asked, path), "optimizer_factor": factor}
    stack["source"] = {"optimizer_factor": _source(found, machine)}
    dropped = dict.fromkeys(("transformer", "sequence", "lora", "lengths", "frozen")) if base.model.transformer is not None else {}
    return {
        "extends": _reference(asked.workload, "workloads", asked, path),
        "name": f"{base.name}-measured",
        "model": model,
        "dropped": dropped,
        "dataset": _cut(base) if base.model.sequence is not None else None,
        "training": {"batch": base.training.batch, "precision": base.training.precision, "compute_factor": 1.0, "stack": stack},
    }


def _reference(name: str, folder: str, asked: Asked, path: Path) -> str:
    """Return how the file *path* names what *name* stands for in *folder*: what is no part of the catalogue, by its place."""
    found = locate(name, folder, asked.folders.workloads)
    own = found not in catalogue(folder).values()
    return os.path.relpath(found.resolve(), path.resolve().parent) if own else name


def _on(found: Imported, base: Workload, machine: _Machine) -> MeasuredOn:
    return MeasuredOn(gpu=machine.gpu, batch=base.training.batch, precision=base.training.precision, source=_source(found, machine))


def _source(found: Imported, machine: _Machine) -> str:
    steps, names = found.windows[0].steps, sorted({Path(trace.file).name for trace in found.traces})
    more = f" and {len(names) - 1} more" if len(names) > 1 else ""
    return f"{names[0]}{more}: {steps} steps of {gpus(found)} ranks on {nodes(found)} of {machine.name}"


class _Group(NamedTuple):
    """Layers (places in the table, in the order they run) of one pass whose time is shared, and what was seen of them."""

    places: Sequence[int]
    seen: Part
    beside: float
    """Seconds of it that are no layer's: gradients copied into buckets."""


def _shared(base: Workload, machine: _Machine, computed: Pass, seen: Seen, ranks: int) -> tuple[Layer, ...]:
    """Return the layers of *base* with the times *seen*, shared in the ratio of those *computed*."""
    layers, count = base.model.layers, len(base.model.layers)
    times, rounds = layer_times(base, machine.gpu), base.training.gradient_accumulation_steps if seen.micro_batches == 1 else 1
    launch = base.training.stack.launch_cpu / machine.cpu_speed
    timeline = Timeline(launch)
    forward = _Group(range(count), seen.total("forward"), 0.0)
    ahead = _scaled(forward, times.forward, times.forward_launches, rounds, timeline)
    again = {place: sum(ahead[0][other] for other in others) for place, others in recomputed(segments(base)).items()}
    back: tuple[dict[int, float], dict[int, float]] = ({}, {})
    for group in _backward_groups(base, machine, computed, seen, ranks):
        recompute = sum(again.get(place, 0.0) for place in group.places) * rounds
        found = _scaled(group._replace(beside=group.beside + recompute), times.backward, times.backward_launches, rounds, timeline)
        back[0].update(found[0])
        back[1].update(found[1])
    return tuple(
        layer.model_copy(update={"measured": _times(ahead[0][place], back[0][place], ahead[1][place], back[1][place])})
        for place, layer in enumerate(layers)
    )


def _times(forward: float, backward: float, forward_launches: float, backward_launches: float, upkeep: float = 0.0) -> MeasuredTimes:
    """Return times of a layer, in seconds and launches."""
    times = {"forward": f"{forward!r} s", "backward": f"{backward!r} s", "upkeep": f"{upkeep!r} s"}
    return MeasuredTimes.model_validate(times | {"forward_launches": forward_launches, "backward_launches": backward_launches})


def _backward_groups(base: Workload, machine: _Machine, computed: Pass, seen: Seen, ranks: int) -> list[_Group]:
    """Return backward's layers by bucket, where the trace tells what led to each; else all together."""
    plan = plan_step(base, machine.gpu, machine.cpu_speed, ranks).micro_batches[-1].backward
    count = len(base.model.layers)
    cuts = [(cut.layers, cut.operation.bucket) for cut in programs(base, computed.ready, ranks)[-1].backward]
    cuts += [(count, -1)] if not cuts or cuts[-1][0] < count else []
    copied, done = [], 0
    for (until, _), segment in zip(cuts, plan, strict=True):
        copied.append(segment.compute - sum(part.compute for part in computed.backward[done:until]))
        done = until
    told = {place for which, place in seen.parts if which == "backward"}
    if base.training.gradient_accumulation_steps > 1 or {bucket for _, bucket in cuts} != told or len({*cuts}) != len(told):
        rounds = base.training.gradient_accumulation_steps if seen.micro_batches == 1 and not base.training.stack.no_sync else 1
        return [_Group(range(count - 1, -1, -1), seen.total("backward"), sum(copied) * rounds)]
    starts = [0, *(until for until, _ in cuts)]
    return [
        _Group([count - 1 - place for place in range(start, until)], seen.parts["backward", bucket], beside)
        for start, (until, bucket), beside in zip(starts, cuts, copied, strict=False)
    ]


def _scaled(
    group: _Group, times: Sequence[float], launches: Sequence[float], rounds: int, timeline: Timeline
) -> tuple[dict[int, float], dict[int, float]]:
    """Return seconds and launches of each layer of *group*, whose *rounds* passes a step took what was seen; *timeline* goes on."""
    computed = sum(times[place] for place in group.places)
    seconds = max(0.0, group.seen.seconds - group.beside) / rounds
    scale = seconds / computed if computed else 0.0
    taken = {place: times[place] * scale for place in group.places}
    stall = group.seen.stall / rounds
    beside = group.beside / rounds
    launched = _host_scale([(taken[place], launches[place]) for place in group.places], stall, timeline)
    for place in group.places:
        timeline.run(taken[place], launches[place] * launched)
    timeline.gpu += beside
    return taken, {place: launches[place] * launched for place in group.places}


def _host_scale(kernels: Sequence[tuple[float, float]], stall: float, timeline: Timeline) -> float:
    """Return how many times their launches *kernels* (seconds, launches) must have, so that the GPU waits *stall* seconds for them."""

    def waits(scale: float) -> float:
        clock = Timeline(timeline.launch_cpu)
        clock.host, clock.gpu = timeline.host, timeline.gpu
        return sum(clock.run(seconds, launches * scale).launch for seconds, launches in kernels)

    if timeline.launch_cpu <= 0 or not any(launches for _, launches in kernels):
        return 1.0
    if abs(waits(1.0) - stall) <= 1e-9 + 1e-6 * stall:
        return 1.0
    low, high = 0.0, 1.0
    while waits(high) < stall and high < _MOST_SCALE:
        high *= 2.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if waits(middle) <= stall else (low, middle)
    return low


def _optimizer_factor(base: Workload, gpu: Gpu, seen: Seen, ranks: int) -> float:
    """Return the stack's ``optimizer_factor`` with which the optimizer takes as long as seen."""
    stack = base.training.stack
    plain_stack = stack.model_copy(update={"optimizer_factor": 1.0})
    bare = base.model_copy(update={"training": base.training.model_copy(update={"stack": plain_stack})})
    part = seen.total("optimizer")
    once, twice = (
        optimizer_work(bare.model_copy(update={"training": bare.training.model_copy(update={"stack": changed})}), gpu, ranks).time
        for changed in (plain_stack, plain_stack.model_copy(update={"optimizer_factor": 2.0}))
    )
    rate = twice - once
    plan_extra = _extra(base, gpu, ranks)
    return (
        max(_LEAST_FACTOR, (part.seconds - plan_extra - (once - rate)) / rate) if rate > 0 and part.seconds > 0 else stack.optimizer_factor
    )


def _launching(draft: Workload, machine: _Machine, seen: Seen, ranks: int) -> Workload:
    """Return *draft* with the ``launch_cpu`` for which the optimizer waits for the host as long as was seen; what layers cost it stays."""
    if draft.training.stack.uses_servers or draft.training.stack.cuda_graphs or not draft.training.stack.launch_cpu:
        return draft
    wanted = seen.total("optimizer").stall

    def waits(scale: float) -> float:
        return plan_step(_relaunched(draft, scale), machine.gpu, machine.cpu_speed, ranks).optimizer.launch

    if abs(waits(1.0) - wanted) <= 1e-9 + 1e-6 * wanted:
        return draft
    low, high = _LEAST_FACTOR, 1.0
    while waits(high) < wanted and high < _MOST_SCALE:
        high *= 2.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if waits(middle) <= wanted else (low, middle)
    return _relaunched(draft, low)


def _relaunched(draft: Workload, scale: float) -> Workload:
    """Return *draft* with *scale* times its ``launch_cpu``, and as many launches less in its layers."""

    def changed(layer: Layer) -> Layer:
        times = layer.measured or MeasuredTimes()
        fewer = {"forward_launches": times.forward_launches / scale, "backward_launches": times.backward_launches / scale}
        return layer.model_copy(update={"measured": times.model_copy(update=fewer)})

    stack = draft.training.stack.model_copy(update={"launch_cpu": draft.training.stack.launch_cpu * scale})
    model = draft.model.model_copy(update={"layers": tuple(changed(layer) for layer in draft.model.layers)})
    return draft.model_copy(update={"model": model, "training": draft.training.model_copy(update={"stack": stack})})


def _extra(base: Workload, gpu: Gpu, ranks: int) -> float:
    """Return what the optimizer's part of a step holds beside the optimizer: the stack's overhead of going distributed, clipping."""
    plan = plan_step(base, gpu, 1.0, ranks)
    return plan.optimizer.compute - optimizer_work(base, gpu, ranks).time if not base.training.stack.uses_servers else 0.0


def _cut(base: Workload) -> dict[str, Any]:
    """Return the data set of a stream of tokens, cut into the samples of *base*."""
    data = base.dataset
    return {"samples": data.samples, "sample": f"{data.sample!r} B", "prepared": f"{data.prepared!r} B", "prep": f"{data.prep!r} s"}


def _noise(seen: Seen) -> dict[str, Any]:
    """Return how steps and ranks differed, where the trace tells."""
    told = {"compute_cv": seen.compute_cv, "persistent_cv": seen.persistent_cv}
    known = {name: round(min(1.0, value), 5) for name, value in told.items() if value is not None}
    return {"noise": known} if known else {}


# --- of the trace alone ----------------------------------------------------------------------------------------------------


def _of_trace(found: Imported, asked: Asked, machine: _Machine, path: Path) -> dict[str, Any]:
    """Return a workload that is made of *found* alone."""
    on_cpu = found.traces[0].gpu == CPU
    stack = asked.stack or _STACKS[on_cpu]
    said = [f"training.batch={asked.batch}", f"training.precision={asked.precision or 'fp32'}"]
    said += [f"training.stack={stack}", "input.loader=synthetic"]
    base = load_workload("alexnet", said, asked.folders.workloads).spec  # for its set-up: the model is replaced
    seen = passes_seen(found, base.training.stack.overlap_slowdown)
    if any(gradient.elements < 0 for gradient in seen.gradients):
        raise SpecError(
            f"{found.traces[0].file}: holds no shapes of gradients; profile with record_shapes=True, or add --workload, "
            "whose layers tell them"
        )
    layers = _made(seen, Timeline(base.training.stack.launch_cpu / machine.cpu_speed))
    copied = max(1, round(seen.copied / seen.micro_batches / base.training.batch))
    model = Model.model_validate({
        "name": "profiled", "parameters": sum(sum(layer.gradients) for layer in layers), "input": f"{copied} B", "layers": layers,
        "measured": _on(found, base, machine), "source": f"{_source(found, machine)}; made of the trace alone",
    })  # fmt: skip
    changed: dict[str, Any] = {"gradient_copy_passes": 0.0, "distributed_overhead": 0.0} | ({"launch_cpu": 0.0} if on_cpu else {})
    changed_stack = base.training.stack.model_copy(update=changed)
    rule = _OPTIMIZERS.get(seen.optimizer, "sgd")
    update = {
        "stack": changed_stack,
        "gradient_accumulation_steps": seen.micro_batches,
        "optimizer": Optimizer.model_validate({"name": rule}),
    }
    draft = base.model_copy(update={"model": model, "training": base.training.model_copy(update=update)})
    changed["optimizer_factor"] = _optimizer_factor(draft, machine.gpu, seen, gpus(found))
    batches = seen.micro_batches * base.training.batch
    prep = found.step_time * machine.cpu_speed / batches if _input(found, seen) else 0.0
    fitted = {name: f"{value} s" if name in _SECONDS else value for name, value in changed.items()}
    sources = {"*": f"of {stack}", **dict.fromkeys(changed, "inside the measured layers, or measured")}
    return {
        "name": "profiled",
        "model": model,
        "dataset": {
            "name": "profiled", "samples": _SAMPLES, "sample": "1 kB", "prepared": f"{copied} B", "prep": f"{prep!r} s",
            "source": {"*": "estimate (a trace does not tell samples of an epoch, nor what they cost)", "prepared": "copies in the trace"},
        },
        "input": _input(found, seen) or {"loader": "synthetic", "source": "no waits for input in the trace"},
        "training": {
            "batch": base.training.batch, "precision": base.training.precision, "gradient_accumulation_steps": seen.micro_batches,
            "optimizer": {"name": rule},
            "stack": {"extends": _reference(stack, "workloads/stacks", asked, path), **fitted, "source": sources},
            **_noise(seen), "source": "the profiled job",
        },
    }  # fmt: skip


def _made(seen: Seen, timeline: Timeline) -> tuple[Layer, ...]:
    """Return a table of what was *seen*, in forward order: one layer for each class of kernel up to each gradient."""
    none = Part()
    ahead = seen.parts.get(("forward", -1), none)
    launched = _launches(ahead, timeline)
    behind = [seen.parts.get(("backward", place), none) for place in range(len(seen.gradients))]
    segments_launched = [_launches(part, timeline) for part in behind]
    rest = seen.parts.get(("backward", -1), none)
    rest_launched = _launches(rest, timeline)
    layers = []
    for place in reversed(range(len(seen.gradients))):
        layers += _segment(place, seen.gradients[place], behind[place], segments_launched[place])
    first = []
    for op in sorted({*ahead.by_class, *rest.by_class}):
        seconds = ahead.by_class.get(op, 0.0), rest.by_class.get(op, 0.0)
        times = _times(*seconds, launched * _share(ahead, op), rest_launched * _share(rest, op))
        first.append(Layer(name=f"forward {op}", op=op, measured=times))
    return tuple([*first, *layers])


def _segment(place: int, gradient: Gradient, part: Part, launches: float) -> list[Layer]:
    """Return the layers of backward that lead to one gradient, which the first of them, as it runs last, makes ready."""
    classes: list[OperatorClass] = sorted(part.by_class) or ["elementwise"]
    kind = _DTYPES.get(gradient.dtype, "fp32")
    found = []
    for number, op in enumerate(classes):
        own_launches = launches * (_share(part, op) if part.by_class else 1.0)
        times = _times(0.0, part.by_class.get(op, 0.0), 0.0, own_launches, 0.0 if number else part.upkeep)
        own: dict[str, Any] = {} if number else {"gradients": (gradient.elements,), "dtypes": () if kind == "fp32" else (kind,)}
        found.append(Layer(name=f"gradient {place} {op}", op=op, measured=times, **own))
    return found


def _share(part: Part, op: OperatorClass) -> float:
    whole = sum(part.by_class.values())
    return part.by_class.get(op, 0.0) / whole if whole else 0.0


def _launches(part: Part, timeline: Timeline) -> float:
    """Return what the kernels of *part* cost the host, in launches, so that the GPU waits for them as it did; *timeline* goes on."""
    if timeline.launch_cpu <= 0:
        return 0.0
    count = max(part.host, part.stall) / timeline.launch_cpu
    count *= _host_scale([(part.seconds, count)], part.stall, timeline)
    timeline.run(part.seconds, count)
    return count


# --- both ------------------------------------------------------------------------------------------------------------------


def _input(found: Imported, seen: Seen) -> dict[str, Any] | None:
    """Return a loader that makes a batch in the measured step where the ranks waited for input; None where they did not."""
    if seen.input_wait <= MUCH_INPUT * found.step_time:
        return None
    return {
        "loader": "pytorch", "num_workers": 1, "compute_cv": 0.0,
        "source": "the trace: ranks wait for input, so that all loader workers of a rank together make a batch in a step",
    }  # fmt: skip


def _text(said: dict[str, Any], found: Imported, machine: _Machine) -> str:
    """Return the workload as YAML."""
    lines = [
        f"# Layers carry the times of {_source(found, machine)}.",
        "# Elsewhere they are scaled: another GPU, batch or precision, more nodes, another network, other buckets.",
    ]
    for key, value in said.items():
        if key == "model":
            lines += ["model:", *_model(value, machine), *(f"  {name}: null" for name in said.get("dropped", ()))]
        elif value is not None and key != "dropped":
            lines.append(f"{key}: {_flow(value)}")
    return "\n".join(lines) + "\n"


def _model(model: Model, machine: _Machine) -> Sequence[str]:
    """Return the lines of the block of *model*; its GPU is said as the machine's description says it."""
    head, _, table = render(model.model_copy(update={"measured": None})).partition("layers:\n")
    on = model.measured
    assert on is not None
    place = {"gpu": machine.said, "batch": on.batch, "precision": on.precision, "source": on.source}
    place |= {"tensor": on.tensor} if on.tensor > 1 else {}
    lines = [line for line in head.splitlines() if not line.startswith("#")]
    return [f"  {line}".rstrip() for line in (*lines, f"measured: {_flow(place)}", "layers:", *table.splitlines())]


def _flow(value: Any) -> str:
    """Return plain data as one line of YAML."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_flow(key)}: {_flow(inner)}" for key, inner in value.items()) + "}"
    return word([*value] if isinstance(value, tuple) else value)
