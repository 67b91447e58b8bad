"""What does a trace of PyTorch's profiler contain? The kernels, copies, steps and waits of one rank; missing parts raise a SpecError.

Kineto writes one JSON object per process: ``traceEvents`` (Chrome's Trace Event Format, times in microseconds) and ``distributedInfo`` with
rank and world size. The reader uses complete events (``ph: X``): ``kernel``, ``gpu_memcpy``, ``gpu_memset`` with stream and correlation id,
``cuda_runtime`` and ``cuda_driver`` calls, ``cpu_op``, and ``user_annotation`` (``ProfilerStep#N``, the loader's ``__next__``). It also
reads the additions of `sim.report.trace.run_trace`: several ranks in one file, loader workers, and causes inside a collective. A job that
trained on CPUs has no kernels. There the outermost operators of each thread count as compute, and the ``gloo:`` annotations of Gloo's
threads are its collectives.
"""

from __future__ import annotations

import json
import math
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Final, NamedTuple, NotRequired

from pydantic import Field
from typing_extensions import TypedDict

from sim.events import Cause, WorkSpan
from sim.spec.json_stream import JsonText
from sim.spec.strict import TextDecoder, check_type, json_float, json_integer, reject_constant
from sim.spec.yaml import SpecError
from sim.units import shorten

_STEP = re.compile(r"ProfilerStep\s*#\s*(\d{1,12})$")
_NEXT_BATCH = re.compile(r"^enumerate\(DataLoader\)#.*__next__")
_NCCL = re.compile(r"^nccl.*Kernel|^gloo:|^parameter server: ")
CPU = "CPU"
"""Device name of a rank without a GPU."""
_GLOO = re.compile(r"^gloo:")
_OUTSIDE = re.compile(r"^enumerate\(DataLoader\)|^c10d::")
"""Operators in which a CPU does not compute: it waits for a batch, or passes a collective to Gloo's threads."""
_BACKWARD = "autograd::engine::evaluate_function: "
_GRADIENT = "torch::autograd::AccumulateGrad"
_DIVIDED = re.compile(
    r"^FSDP::|^_c10d_functional::|^gloo:(?:all_gather|reduce_scatter|all_to_all|send|recv)|^nccl.*(?:AllGather|ReduceScatter|SendRecv)"
)
"""Events of sharded, tensor-parallel and pipelined jobs (torch/distributed: fsdp/_fully_shard, tensor, pipelining)."""
_OPTIMIZER = re.compile(r"^Optimizer\.step#([A-Za-z0-9_]{1,40})\.step$")
_DECODE = re.compile(r"nvjpeg|dali", re.IGNORECASE)
_WAITS_FOR_GPU = re.compile(r"Synchronize|^cudaMemcpy$|^cuMemcpy[A-Za-z]*$")
"""Calls in which the host waits for the GPU and so launches nothing (CUDA Runtime API)."""
_GPU = frozenset({"kernel", "gpu_memcpy", "gpu_memset"})
_CALLS = frozenset({"cuda_runtime", "cuda_driver"})


class TraceSpan(NamedTuple):
    """An event *name* from *t0* to *t1* (s); on the GPU, the host began its launch at *launched* and finished it at *queued*."""

    name: str
    t0: float
    t1: float
    launched: float = 0.0
    queued: float = 0.0
    ident: int = -1
    resource: str = ""
    nbytes: int = -1
    """Bytes of a copy, or of the input of a collective over Gloo; -1 if the trace does not contain them."""


@dataclass
class RankTrace:
    """The profile of one rank, with times in seconds; it represents *size* equal ranks."""

    file: str
    rank: int
    world_size: int
    host: str
    gpu: str
    size: int = 1
    job_facts: Mapping[str, Any] = field(default_factory=dict)
    """The description of the job in a simulated trace."""
    steps: dict[int, TraceSpan] = field(default_factory=dict)
    compute: list[TraceSpan] = field(default_factory=list)
    collectives: list[TraceSpan] = field(default_factory=list)
    copies: list[TraceSpan] = field(default_factory=list)
    inputs: list[TraceSpan] = field(default_factory=list)
    """Waits for the next batch."""
    busy: list[TraceSpan] = field(default_factory=list)
    """Times at which the host is in an operator or a call."""
    blocked: list[TraceSpan] = field(default_factory=list)
    """Times at which the host waits for the GPU."""
    bounds: list[WorkSpan] = field(default_factory=list)
    loader: list[WorkSpan] = field(default_factory=list)
    backward: list[TraceSpan] = field(default_factory=list)
    """Times at which the host is in an operator of the backward pass."""
    gradients: list[TraceSpan] = field(default_factory=list)
    """Times at which the host accumulates the gradient of a parameter; *ident* is its number of elements (-1: not recorded), *resource* its
    data type."""
    optimizer: list[TraceSpan] = field(default_factory=list)
    """Times at which the host is in an optimizer's step; *name* is the class of the optimizer."""
    layout_event: str = ""
    """Name of an event that shows that ranks divide the model, such as ``FSDP::all_gather``; empty with data parallelism."""
    fsdp: bool = False
    """Whether FSDP annotated its work, so that ranks shard the model's weights."""

    @property
    def simulated(self) -> bool:
        """Return whether stallsim wrote the trace; if so, the trace describes its job."""
        return "pid" in self.job_facts


_WIDTHS: Final[Mapping[str, int]] = {
    "double": 8, "float": 4, "c10::Half": 2, "c10::BFloat16": 2, "long int": 8, "int": 4, "unsigned char": 1, "bool": 1,
}  # fmt: skip
"""Bytes of an element, by the name that the profiler gives its type (c10/core/ScalarType.h, toCppString)."""
MAX_BYTES: Final = 512 * 2**20
"""Largest size of an uncompressed trace: about a million events, or some hundred steps of a large model."""
MAX_EVENTS: Final = 2_000_000
"""Largest number of complete events, and half of that of all events."""
_DENSITY: Final = 8
"""Least bytes of text per value; a trace of PyTorch's profiler has about 20."""
_LATEST: Final = 1e17
"""Upper limit of times in microseconds: 3,000 years."""
_LONGEST: Final = 1e13
"""Upper limit of durations in microseconds: 115 days."""

_TraceCount = Annotated[int, Field(ge=1, le=1_000_000)]
_RankNumber = Annotated[int, Field(ge=0, lt=1_000_000)]


class _Distributed(TypedDict):
    rank: _RankNumber
    world_size: _TraceCount


class _Device(TypedDict):
    name: NotRequired[str]


class _Simulated(TypedDict):
    """One rank of a trace that stallsim wrote."""

    pid: int
    rank: _RankNumber
    stands_for: NotRequired[_TraceCount]
    world_size: NotRequired[_TraceCount]
    job: NotRequired[int]
    node: NotRequired[str]
    nodes: NotRequired[_TraceCount]
    hardware: NotRequired[str]
    workload: NotRequired[str]
    stack: NotRequired[str]
    batch_per_gpu: NotRequired[_TraceCount]
    precision: NotRequired[str]
    gradient_accumulation_steps: NotRequired[_TraceCount]
    activation_checkpointing: NotRequired[str]


class _SimulatedRanks(TypedDict):
    ranks: Annotated[list[_Simulated], Field(min_length=1)]


def read_trace(path: Path) -> list[RankTrace]:
    """Return the ranks in the trace at *path* (plain or gzip). Raise SpecError if it is not a trace or lacks required parts."""
    document, events = _document(path)
    if "stallsim" not in document:
        return [_rank_trace(path, events, document, _rank_of(path, document))]
    if isinstance(document["stallsim"], Mapping) and "ranks" not in document["stallsim"]:
        raise SpecError(
            f"{path}: is the trace of a simulated layout, which cannot be imported; the output of its run shows where the time goes"
        )
    try:
        simulated = check_type(_SimulatedRanks, document["stallsim"], "stallsim")["ranks"]
    except SpecError as error:
        raise SpecError(f"{path}: is not a trace that stallsim wrote: {error}") from None
    by_pid: dict[str, list[_UsedEvent]] = defaultdict(list)
    for event in events:
        by_pid[event.pid].append(event)
    return [_rank_trace(path, by_pid[str(rank["pid"])], document, dict(rank)) for rank in simulated]


# --- the file --------------------------------------------------------------------------------------------------------

_HINT: Final = "export the trace again"
_JSON: Final = TextDecoder(parse_float=json_float, parse_int=json_integer, parse_constant=reject_constant)
_USED_MEMBERS: Final = frozenset({"traceEvents", "stallsim", "distributedInfo", "deviceProperties", "host_name"})
_MAX_MEMBERS: Final = 10_000
_USED_CATEGORIES: Final = _GPU | _CALLS | {"cpu_op", "user_annotation", "loader", "gpu_user_annotation"}
_USED_ARGUMENTS: Final = ("correlation", "bucket", "bytes", "batch", "cause", "resource", "stream_name")
_SHAPES: Final = ("Input Dims", "Input type")
_NO_ARGUMENTS: Final[Mapping[str, Any]] = {}


class _UsedEvent(NamedTuple):
    """What is used of a complete event; a trace has a million of them."""

    pid: str
    category: str
    name: str
    thread: Any
    t0: float
    t1: float
    arguments: Mapping[str, Any]


def _document(path: Path) -> tuple[dict[str, Any], list[_UsedEvent]]:
    """Return what is used of the trace at *path*, without its events, and its complete events; the rest uses no memory."""
    text = JsonText(path, MAX_BYTES, _DENSITY, _HINT)
    members: dict[str, Any] = {}
    keys: set[str] = set()
    events: list[_UsedEvent] | None = None
    no_trace = f"{path}: is not a trace of PyTorch's profiler: expected a JSON object with a list 'traceEvents'"
    if text.peek() != "{":
        text.value(_JSON)
        raise SpecError(no_trace)
    text.expect("{")
    while text.peek() != "}":
        if keys:
            text.expect(",")
        key = text.value(_JSON)
        if not isinstance(key, str) or key in keys or len(keys) == _MAX_MEMBERS:
            raise SpecError(f"{path}: {shorten(key)} is not the name of a member, appears twice, or is one of too many; {_HINT}")
        keys.add(key)
        text.expect(":")
        if key == "traceEvents" and text.peek() == "[":
            events = _events(path, text.elements(_JSON))
            continue
        value = text.value(_JSON)
        if key in _USED_MEMBERS:
            members[key] = value
    text.expect("}")
    text.end()
    if events is None:
        raise SpecError(no_trace)
    return members, events


def _events(path: Path, listed: Iterable[Any]) -> list[_UsedEvent]:
    """Return what is used of the complete events among those *listed*."""
    events: list[_UsedEvent] = []
    complete = 0
    texts: dict[str, str] = {}
    """Each text once: names repeat."""
    for number, event in enumerate(listed):
        if complete > MAX_EVENTS or number > 2 * MAX_EVENTS:
            raise SpecError(f"{path}: holds more than {MAX_EVENTS:,} events; profile fewer steps")
        if not isinstance(event, dict) or event.get("ph") != "X":
            continue
        _check_event(path, event)
        complete += 1
        category, name, pid = event.get("cat", ""), event["name"], str(event.get("pid"))
        if category in _USED_CATEGORIES or _DIVIDED.match(name):
            category, name, pid = texts.setdefault(category, category), texts.setdefault(name, name), texts.setdefault(pid, pid)
            t0 = float(event["ts"]) * 1e-6
            t1 = t0 + float(event.get("dur", 0.0)) * 1e-6
            events.append(_UsedEvent(pid, category, name, event.get("tid"), t0, t1, _used_arguments(name, event.get("args"))))
    return events


def _used_arguments(name: str, arguments: Mapping[str, Any] | None) -> Mapping[str, Any]:
    if not arguments:
        return _NO_ARGUMENTS
    used = {
        key: arguments[key] for key in (*_USED_ARGUMENTS, *(_SHAPES if name == _GRADIENT or _GLOO.match(name) else ())) if key in arguments
    }
    return used or _NO_ARGUMENTS


def _check_event(path: Path, event: Mapping[str, Any]) -> None:
    """Raise SpecError if a time of *event* is invalid, or its name or arguments have the wrong type."""
    start, duration, arguments = event.get("ts"), event.get("dur", 0.0), event.get("args")
    if not _is_time(start, -_LATEST, _LATEST):
        raise _invalid_event(path, event, "ts: expected a time in microseconds")
    if not _is_time(duration, 0.0, _LONGEST):
        raise _invalid_event(path, event, "dur: expected a time of 0 or more microseconds")
    if not isinstance(event.get("name"), str):
        raise _invalid_event(path, event, "name: expected text")
    if arguments is not None and not isinstance(arguments, dict):
        raise _invalid_event(path, event, "args: expected an object")
    if not isinstance(event.get("cat", ""), str) or isinstance(event.get("tid"), dict | list):
        raise _invalid_event(path, event, "cat and tid: expected text and a number")


def _is_time(value: Any, least: float, most: float) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and least <= value <= most


def _invalid_event(path: Path, event: Mapping[str, Any], message: str) -> SpecError:
    return SpecError(f"{path}: the event {json.dumps(event)[:120]} is invalid: {message}")


# --- one rank --------------------------------------------------------------------------------------------------------


def _rank_of(path: Path, document: Mapping[str, Any]) -> dict[str, Any]:
    info = document.get("distributedInfo") or {}
    if not info:
        return {"rank": None}
    try:
        return dict(check_type(_Distributed, info, "distributedInfo"))
    except SpecError as error:
        raise SpecError(
            f"{path}: distributedInfo names no rank and world_size ({error}); profile after torch.distributed.init_process_group"
        ) from None


def _rank_trace(path: Path, events: Sequence[_UsedEvent], document: Mapping[str, Any], described: Mapping[str, Any]) -> RankTrace:
    devices = check_type(list[_Device], document.get("deviceProperties") or [], f"{path}: deviceProperties")
    shared = document.get("distributedInfo") or {}
    host = check_type(str, document.get("host_name", ""), f"{path}: host_name")
    rank = described["rank"]
    world = described.get("world_size") or (_rank_of(path, document)["world_size"] if shared else 1)
    trace = RankTrace(
        str(path), 0 if rank is None else rank, world, described.get("node") or host, devices[0].get("name", "GPU") if devices else "GPU",
        described.get("stands_for", 1), described,
    )  # fmt: skip
    launches = _launches(events)
    for event in events:
        try:
            _add_event(trace, event, launches)
        except (KeyError, TypeError, ValueError) as error:
            shown = {"cat": event.category, "name": event.name, "ts": 1e6 * event.t0, "args": event.arguments}
            raise _invalid_event(path, shown, str(error)) from None
    backend = str(shared.get("backend", ""))
    if not trace.compute and not devices and "nccl" not in backend.replace("cuda:nccl", ""):
        _compute_on_cpu(trace, events)
    _require_complete(trace)
    return trace


def _compute_on_cpu(trace: RankTrace, events: Sequence[_UsedEvent]) -> None:
    """Add the outermost operators of each thread to *trace* as compute, and Gloo's annotations as collectives."""
    ends: dict[Any, float] = {}
    operators = [event for event in events if event.category == "cpu_op"]
    for _, _, name, thread, start, end, _ in sorted(operators, key=lambda one: (one.t0, -one.t1)):
        if end <= ends.get(thread, -1.0) or _OUTSIDE.match(name):
            continue
        ends[thread] = end
        trace.compute.append(TraceSpan(name, start, end, start, start))
    spans = [event for event in events if event.category == "user_annotation" and _GLOO.match(event.name)]
    trace.collectives += [TraceSpan(span.name, span.t0, span.t1, span.t0, span.t0, nbytes=_bytes(span.arguments)) for span in spans]
    trace.busy, trace.gpu = [], CPU


def _launches(events: Sequence[_UsedEvent]) -> dict[str, tuple[float, float]]:
    """Return the begin and end (s) of each launch on the host, by correlation id."""
    calls = (event for event in events if event.category in _CALLS and "correlation" in event.arguments)
    return {str(event.arguments["correlation"]): (event.t0, event.t1) for event in calls}


def _add_event(trace: RankTrace, event: _UsedEvent, launches: Mapping[str, tuple[float, float]]) -> None:
    """Add *event* to the list of *trace* that it belongs to."""
    _, category, name, _, start, end, arguments = event
    trace.layout_event = trace.layout_event or (name if _DIVIDED.match(name) else "")
    trace.fsdp = trace.fsdp or name.startswith("FSDP::")
    if category in _GPU:
        launched = launches.get(str(arguments.get("correlation")), (start, start))
        span = TraceSpan(
            name, start, end, *launched, _number(arguments, "bucket"), str(arguments.get("resource", "")), _number(arguments, "bytes")
        )
        _add_gpu_event(trace, category, span)
    elif category == "user_annotation" and (step := _STEP.match(name)):
        trace.steps[int(step[1])] = TraceSpan(name, start, end)
    elif category == "user_annotation" and _NEXT_BATCH.match(name):
        trace.inputs.append(TraceSpan(name, start, end, ident=_number(arguments, "batch")))
    elif category == "user_annotation" and (rule := _OPTIMIZER.match(name)):
        trace.optimizer.append(TraceSpan(rule[1], start, end))
    elif category in _CALLS and _WAITS_FOR_GPU.search(name):
        trace.blocked.append(TraceSpan(name, start, end))
    elif category in _CALLS or category == "cpu_op":
        trace.busy.append(TraceSpan(name, start, end))
        if category == "cpu_op":
            _add_operator(trace, name, arguments, start, end)
    elif category == "loader" or (category == "gpu_user_annotation" and "cause" in arguments):
        stream = str(arguments.get("stream_name", "comm"))
        batch = _number(arguments, "batch")
        (trace.bounds if stream == "comm" else trace.loader).append(
            WorkSpan(0, stream, name, Cause(arguments["cause"]), str(arguments["resource"]), batch, 0.0, start, end)
        )


def _add_operator(trace: RankTrace, name: str, arguments: Mapping[str, Any], start: float, end: float) -> None:
    """Record an operator of the host if it belongs to backward or accumulates a gradient."""
    if name.startswith(_BACKWARD):
        trace.backward.append(TraceSpan(name.removeprefix(_BACKWARD), start, end))
    elif name == _GRADIENT:
        trace.gradients.append(TraceSpan(name, start, end, ident=_elements(arguments), resource=_first(arguments, "Input type")))


def _elements(arguments: Mapping[str, Any]) -> int:
    """Return the number of elements of the operator's first input; -1 if the profiler recorded no shapes."""
    shapes = arguments.get("Input Dims")
    if not isinstance(shapes, list) or not shapes or not isinstance(shapes[0], list):
        return -1
    if not all(isinstance(size, int) and 0 < size < _LATEST for size in shapes[0]):
        raise TypeError("args.Input Dims: expected lists of whole numbers")
    return math.prod(shapes[0])


def _bytes(arguments: Mapping[str, Any]) -> int:
    """Return the bytes of the operator's first input; -1 if the profiler recorded no shapes, or a type of unknown size."""
    width = _WIDTHS.get(_first(arguments, "Input type"), -1)
    return max(-1, width * _elements(arguments)) if width > 0 else -1


def _first(arguments: Mapping[str, Any], name: str) -> str:
    values = arguments.get(name)
    return str(values[0]) if isinstance(values, list) and values else ""


def _number(arguments: Mapping[str, Any], name: str) -> int:
    value = arguments.get(name, -1)
    if not isinstance(value, int):
        raise TypeError(f"args.{name}: expected a whole number")
    return value


def _add_gpu_event(trace: RankTrace, category: str, span: TraceSpan) -> None:
    if category != "kernel":
        trace.copies.append(span)
    elif _NCCL.match(span.name):
        trace.collectives.append(span)
    elif _DECODE.search(span.name):
        trace.loader.append(WorkSpan(0, "pipeline gpu", span.name, Cause.PREP, "GPU decode", -1, 0.0, span.t0, span.t1))
    else:
        trace.compute.append(span)


def _require_complete(trace: RankTrace) -> None:
    """Raise SpecError if *trace* lacks events that the analysis needs."""
    if not trace.compute:
        raise SpecError(
            f"{trace.file}: holds no GPU kernels of rank {trace.rank}; profile with ProfilerActivity.CUDA on a machine with a GPU"
        )
    if not trace.steps:
        raise SpecError(f"{trace.file}: holds no ProfilerStep#N of rank {trace.rank}; call prof.step() after each training step")
    numbers = sorted(trace.steps)
    missing = next((number for number in range(numbers[0], numbers[-1]) if number not in trace.steps), None)
    if missing is not None:
        raise SpecError(f"{trace.file}: ProfilerStep#{missing} is missing between #{numbers[0]} and #{numbers[-1]}")
