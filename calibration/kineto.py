"""What does a trace of PyTorch's profiler hold? The kernels, copies, steps and waits of one rank; anything missing is said in a sentence.

Kineto writes one JSON object a process: ``traceEvents`` (Chrome's Trace Event Format, times in microseconds) and ``distributedInfo`` with
rank and world size. Read are complete events (``ph: X``): ``kernel``, ``gpu_memcpy``, ``gpu_memset`` with stream and correlation id,
``cuda_runtime`` and ``cuda_driver`` calls, ``cpu_op``, and ``user_annotation`` (``ProfilerStep#N``, the loader's ``__next__``). What
`sim.report.trace` adds (several ranks in one file, loader workers, who is to blame inside a collective) is read where it stands. A job that
trained on CPUs has no kernels: there the outermost operators of each thread are what computes, and ``gloo:`` annotations, which Gloo's
own threads leave, are its collectives.
"""

from __future__ import annotations

import gzip
import json
import re
import zlib
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from sim.events import Cause, Work
from sim.spec.yaml import SpecError

_STEP = re.compile(r"ProfilerStep\s*#\s*(\d+)$")
_NEXT_BATCH = re.compile(r"^enumerate\(DataLoader\)#.*__next__")
_NCCL = re.compile(r"^nccl.*Kernel|^gloo:|^parameter server: ")
CPU = "CPU"
"""What a rank without a GPU computes on."""
_GLOO = re.compile(r"^gloo:")
_OUTSIDE = re.compile(r"^enumerate\(DataLoader\)|^c10d::")
"""Operators in which a CPU does not compute: it waits for a batch, or hands a collective to Gloo's threads."""
_DECODE = re.compile(r"nvjpeg|dali", re.IGNORECASE)
_WAITS_FOR_GPU = re.compile(r"Synchronize|^cudaMemcpy$|^cuMemcpy[A-Za-z]*$")
"""Calls in which the host waits for the GPU, so that it launches nothing (CUDA Runtime API)."""
_GPU = frozenset({"kernel", "gpu_memcpy", "gpu_memset"})
_CALLS = frozenset({"cuda_runtime", "cuda_driver"})


class Span(NamedTuple):
    """*name* from *t0* to *t1* (s); on the GPU *launched* is when the host began to launch it, *queued* when it was done with that."""

    name: str
    t0: float
    t1: float
    launched: float = 0.0
    queued: float = 0.0
    ident: int = -1
    resource: str = ""


@dataclass
class RankTrace:
    """What one rank's profile shows, times in seconds; *size* ranks are alike and shown once."""

    file: str
    rank: int
    world_size: int
    host: str
    gpu: str
    size: int = 1
    described: Mapping[str, Any] = field(default_factory=dict)
    """What a simulated trace says of the job."""
    steps: dict[int, Span] = field(default_factory=dict)
    compute: list[Span] = field(default_factory=list)
    collectives: list[Span] = field(default_factory=list)
    copies: list[Span] = field(default_factory=list)
    inputs: list[Span] = field(default_factory=list)
    """Waits for the next batch."""
    busy: list[Span] = field(default_factory=list)
    """The host in an operator or a call."""
    blocked: list[Span] = field(default_factory=list)
    """The host waiting for the GPU."""
    bounds: list[Work] = field(default_factory=list)
    loader: list[Work] = field(default_factory=list)


def read_trace(path: Path) -> list[RankTrace]:
    """Return the ranks whose profile *path* (plain or gzip) holds. Raise SpecError where it is no trace, or lacks what it takes."""
    document = _document(path)
    events = [event for event in document["traceEvents"] if isinstance(event, dict) and event.get("ph") == "X"]
    if "stallsim" not in document:
        return [_rank_trace(path, events, document, _rank_of(path, document))]
    simulated = document["stallsim"].get("ranks") if isinstance(document["stallsim"], dict) else None
    if not isinstance(simulated, list) or not all(isinstance(known, dict) and {"pid", "rank"} <= known.keys() for known in simulated):
        raise SpecError(f"{path}: is no trace that stallsim wrote: stallsim.ranks is to list its ranks")
    by_pid: dict[Any, list[dict[str, Any]]] = defaultdict(list)
    for event in events:
        by_pid[event.get("pid")].append(event)
    return [_rank_trace(path, by_pid[known["pid"]], document, known) for known in simulated]


def _document(path: Path) -> dict[str, Any]:
    try:
        content = path.read_bytes()
        text = gzip.decompress(content) if content[:2] == b"\x1f\x8b" else content
        document = json.loads(text)
    except OSError as error:
        raise SpecError(f"{path}: cannot be read: {error.strerror or error}") from None
    except (EOFError, zlib.error):
        raise SpecError(f"{path}: the gzip file is cut short; export the trace again") from None
    except UnicodeDecodeError as error:
        raise SpecError(f"{path}: is no JSON text (byte {error.start})") from None
    except json.JSONDecodeError as error:
        raise SpecError(
            f"{path}:{error.lineno}:{error.colno}: the JSON is cut short or broken ({error.msg}); export the trace again"
        ) from None
    if not isinstance(document, dict) or not isinstance(document.get("traceEvents"), list):
        raise SpecError(f"{path}: is no trace of PyTorch's profiler: a JSON object with a list 'traceEvents' is due")
    return document


def _rank_of(path: Path, document: Mapping[str, Any]) -> dict[str, Any]:
    known = document.get("distributedInfo") or {}
    if not known:
        return {"rank": None}
    if not isinstance(known.get("rank"), int) or not isinstance(known.get("world_size"), int):
        raise SpecError(f"{path}: distributedInfo names no rank and world_size; profile after torch.distributed.init_process_group")
    return {"rank": known["rank"], "world_size": known["world_size"]}


def _rank_trace(path: Path, events: Sequence[dict[str, Any]], document: Mapping[str, Any], known: Mapping[str, Any]) -> RankTrace:
    devices = document.get("deviceProperties") or [{}]
    rank = known["rank"]
    found = RankTrace(
        str(path), 0 if rank is None else rank, known.get("world_size") or (document.get("distributedInfo") or {}).get("world_size", 1),
        known.get("node") or document.get("host_name", ""), devices[0].get("name", "GPU"), known.get("stands_for", 1), known,
    )  # fmt: skip
    launches = _launches(path, events)
    for event in events:
        try:
            _sort(found, event, launches)
        except (KeyError, TypeError, ValueError) as error:
            raise SpecError(f"{path}: the event {json.dumps(event)[:120]} lacks what it takes: {error}") from None
    backend = str((document.get("distributedInfo") or {}).get("backend", ""))
    if not found.compute and not document.get("deviceProperties") and "nccl" not in backend.replace("cuda:nccl", ""):
        _compute_on_cpu(found, events)
    _require(found)
    return found


def _compute_on_cpu(found: RankTrace, events: Sequence[Mapping[str, Any]]) -> None:
    """Take the outermost operators of each thread as what the processor computes, and Gloo's annotations as collectives."""
    ends: dict[Any, float] = {}
    operators = [(*_times(event), str(event["name"]), event.get("tid")) for event in events if event.get("cat") == "cpu_op"]
    for start, end, name, thread in sorted(operators, key=lambda one: (one[0], -one[1])):
        if end <= ends.get(thread, -1.0) or _OUTSIDE.match(name):
            continue
        ends[thread] = end
        found.compute.append(Span(name, start, end, start, start))
    spans = [(*_times(event), str(event["name"])) for event in events if event.get("cat") == "user_annotation"]
    found.collectives += [Span(name, start, end, start, start) for start, end, name in spans if _GLOO.match(name)]
    found.busy, found.gpu = [], CPU


def _launches(path: Path, events: Sequence[Mapping[str, Any]]) -> dict[int, tuple[float, float]]:
    """Return when the host began and ended each launch (s), by correlation id."""
    found = {}
    for event in events:
        if event.get("cat") in _CALLS and "correlation" in event.get("args", {}):
            start, end = _times(event)
            found[event["args"]["correlation"]] = (start, end)
    return found


def _times(event: Mapping[str, Any]) -> tuple[float, float]:
    start = float(event["ts"]) * 1e-6
    return start, start + float(event.get("dur", 0.0)) * 1e-6


def _sort(found: RankTrace, event: Mapping[str, Any], launches: Mapping[int, tuple[float, float]]) -> None:
    """Put *event* where it belongs in *found*."""
    category, name, arguments = event.get("cat", ""), str(event["name"]), event.get("args", {})
    start, end = _times(event)
    if category in _GPU:
        launched = launches.get(arguments.get("correlation"), (start, start))
        span = Span(name, start, end, *launched, arguments.get("bucket", -1), arguments.get("resource", ""))
        _sort_gpu(found, category, span)
    elif category == "user_annotation" and (step := _STEP.match(name)):
        found.steps[int(step[1])] = Span(name, start, end)
    elif category == "user_annotation" and _NEXT_BATCH.match(name):
        found.inputs.append(Span(name, start, end, ident=arguments.get("batch", -1)))
    elif category in _CALLS and _WAITS_FOR_GPU.search(name):
        found.blocked.append(Span(name, start, end))
    elif category in _CALLS or category == "cpu_op":
        found.busy.append(Span(name, start, end))
    elif category == "loader" or (category == "gpu_user_annotation" and "cause" in arguments):
        stream = arguments.get("stream_name", "comm")
        batch = arguments.get("batch", -1)
        (found.bounds if stream == "comm" else found.loader).append(
            Work(0, stream, name, Cause(arguments["cause"]), arguments["resource"], batch, 0.0, start, end)
        )


def _sort_gpu(found: RankTrace, category: str, span: Span) -> None:
    if category != "kernel":
        found.copies.append(span)
    elif _NCCL.match(span.name):
        found.collectives.append(span)
    elif _DECODE.search(span.name):
        found.loader.append(Work(0, "pipeline gpu", span.name, Cause.PREP, "GPU decode", -1, 0.0, span.t0, span.t1))
    else:
        found.compute.append(span)


def _require(found: RankTrace) -> None:
    """Raise SpecError where a trace cannot tell where time went."""
    if not found.compute:
        raise SpecError(
            f"{found.file}: holds no GPU kernels of rank {found.rank}; profile with ProfilerActivity.CUDA on a machine with a GPU"
        )
    if not found.steps:
        raise SpecError(f"{found.file}: holds no ProfilerStep#N of rank {found.rank}; call prof.step() after each training step")
    numbers = sorted(found.steps)
    missing = next((number for number in range(numbers[0], numbers[-1]) if number not in found.steps), None)
    if missing is not None:
        raise SpecError(f"{found.file}: ProfilerStep#{missing} is missing between #{numbers[0]} and #{numbers[-1]}")
