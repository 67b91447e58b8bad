"""How is a run shown in a profiler's viewer? As a Chrome trace of a few warm steps, laid out as PyTorch's profiler (Kineto) writes it.

One process per rank, one track per thread and stream: kernels (category ``kernel``, collectives under NCCL's names), copies
(``gpu_memcpy``), host operators and launches with correlation ids, ``ProfilerStep#N`` and the loader's ``__next__`` as ``user_annotation``.
Beyond Kineto: waits of a rank and the work that builds its batches on separate tracks, with ``cause`` and ``resource`` as arguments; what
bounds a collective, as ``gpu_user_annotation`` within it; an arrow from each ready gradient bucket to its collective; and a counter for
the use of each resource. Format: Chrome's Trace Event Format; pytorch/kineto ``output_json.cpp``. Limits: a kernel is a whole pass, because
nothing finer is simulated; exchanges over Gloo and with parameter servers are kernels under other names, which HolisticTraceAnalysis
counts as compute, like decoding on the GPU.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sim.events import Cause, EventLog, WaitSpan, WorkSpan
from sim.report.nccl_kernels import collective_kernel
from sim.report.trace.chrome_trace import TraceEvent, kineto_document, write_traces
from sim.report.trace.excerpt import Excerpt, RankExcerpt, excerpt
from sim.simulate import Run
from sim.spec.yaml import SpecError

HOST, WAITS, LOADER = 1, 2, 100
"""Threads of a rank: the training loop, its waits, and the first number of the loader's threads."""
COMPUTE, COPIES, COMM, DECODE = 7, 14, 20, 24
"""Streams; 7 is the number of torch's default stream in traces, the others are as arbitrary as there."""
_DIGITS = 6
"""Decimal digits of a microsecond: enough that stalls can be recomputed from the file."""


def write_trace(run: Run, path: Path, steps: int = 3) -> str:
    """Write the trace of *steps* warm steps to *path* (``.json``, ``.json.gz``, or a folder); return what it shows.

    A folder gets a file for each rank; identical ranks share that of the first. Raise SpecError if writing fails.
    """
    if steps < 1:
        raise SpecError(f"a trace of {steps} steps: write 1 or more")
    chosen = excerpt(run, steps)
    numbers = _numbers(run.log)
    parts = ((f"rank{numbers[rank.index]}.json", trace_document(run, chosen, rank)) for rank in chosen.ranks)
    files = write_traces(path, lambda: trace_document(run, chosen), parts, "per rank")
    alike = sum(rank.size - 1 for rank in run.log.ranks) if files else 0
    shared = f"; {alike:,} more rank{'s are' if alike > 1 else ' is'} identical to these" if alike else ""
    return f"{path}{'/' * bool(files)}{', '.join(files)}: {chosen.note}{shared}"


def trace_document(run: Run, chosen: Excerpt, only: RankExcerpt | None = None) -> dict[str, Any]:
    """Return the trace of *chosen* as Kineto's JSON object; with *only*, that of one rank and without counters."""
    numbers, origin = _numbers(run.log), _origin(chosen)
    shown = [rank for rank in chosen.ranks if only is None or rank is only]
    events: list[TraceEvent] = []
    for rank in shown:
        track = _Track(run, rank, numbers[rank.index], origin)
        events += [*track.names(), *track.host(), *track.device(), *track.loader(), *track.arrows()]
    if only is None:
        events += _counters(run.log, chosen, origin, max(numbers) + 1)
    described = [_described(run, rank, numbers[rank.index]) for rank in shown]
    shows = {"hardware": run.hardware.name, "shows": chosen.note, "ranks": described}
    return kineto_document(numbers[shown[0].index], _world(run, shown[0]), shows, events)


def _numbers(log: EventLog) -> list[int]:
    """Return the rank that represents each class: the first of its ranks."""
    numbers, count = [], 0
    for rank in log.ranks:
        numbers.append(count)
        count += rank.size
    return numbers


def _world(run: Run, rank: RankExcerpt) -> int:
    return run.jobs[run.log.ranks[rank.index].job].job.ranks


def _origin(chosen: Excerpt) -> float:
    return min(min([rank.boundaries[0], *(work.t0 for work in rank.loader)]) for rank in chosen.ranks)


def _described(run: Run, rank: RankExcerpt, number: int) -> dict[str, Any]:
    of_log = run.log.ranks[rank.index]
    workload = run.jobs[of_log.job].job.workload
    return {
        "pid": number, "rank": number, "stands_for": of_log.size, "job": of_log.job, "node": of_log.node, "gpus": list(of_log.gpus),
        "nodes": len(run.jobs[of_log.job].job.placement), "hardware": run.hardware.name, "workload": workload.name,
        "stack": workload.training.stack.name,
        **({} if workload.training.batches else {"batch_per_gpu": workload.training.batch}), "precision": workload.training.precision,
        "gradient_accumulation_steps": workload.training.gradient_accumulation_steps,
        "activation_checkpointing": workload.training.activation_checkpointing,
    }  # fmt: skip


@dataclass(frozen=True)
class _Track:
    """The events of one rank, under process *pid*; times count from *origin* (s)."""

    run: Run
    rank: RankExcerpt
    pid: int
    origin: float

    def names(self) -> Iterator[TraceEvent]:
        """Yield the names of the process, its threads and its streams."""
        of_log = self.run.log.ranks[self.rank.index]
        others = f" (represents {of_log.size} ranks)" if of_log.size > 1 else ""
        yield _meta("process_name", self.pid, 0, f"rank {self.pid}{others}: {of_log.node} GPU {','.join(map(str, of_log.gpus))}")
        threads = {HOST: "training loop", WAITS: "waits for", COMPUTE: "stream 7: compute", COPIES: "stream 14: copies"}
        threads |= {COMM: "stream 20: collectives"} | {_tid(work.stream): work.stream for work in self.rank.loader}
        for tid, name in sorted(threads.items()):
            yield _meta("thread_name", self.pid, tid, name)

    def host(self) -> Iterator[TraceEvent]:
        """Yield what the training loop does (steps, waiting for batches), and all waits with their causes."""
        for step, (start, end) in enumerate(zip(self.rank.boundaries, self.rank.boundaries[1:], strict=False)):
            yield self._slice("user_annotation", f"ProfilerStep#{step}", HOST, start, end)
        for wait in self.rank.waits:
            if wait.cause is Cause.INPUT:
                yield self._slice("user_annotation", self._next_batch(), HOST, wait.t0, wait.t1, batch=wait.ident)
            if wait.cause is not Cause.COMPUTE:
                cause = {"cause": wait.cause.value, "resource": wait.resource}
                yield self._slice("wait", f"wait: {wait.cause.value}", WAITS, wait.t0, wait.t1, **cause)

    def device(self) -> Iterator[TraceEvent]:
        """Yield kernels, copies and collectives, each with its launch, and what bounds the collectives."""
        correlation = 1
        launches = [wait for wait in self.rank.waits if wait.cause is Cause.LAUNCH]
        for work, launch in _launched(self.rank.compute, launches):
            yield from self._launch(work.name if work else "launch", "cudaLaunchKernel", launch, correlation)
            if work:
                name = f"{work.name} bucket {work.ident}" if work.ident >= 0 else work.name
                yield self._kernel(work, "kernel", name, COMPUTE, correlation)
            correlation += 1
        for work in self.rank.copies:
            yield from self._launch("aten::to", "cudaMemcpyAsync", (work.t0, work.t0), correlation)
            yield self._kernel(work, "gpu_memcpy", self._copy_name(), COPIES, correlation)
            correlation += 1
        for work in self.rank.collectives:
            yield from self._launch(f"exchange {work.name}", "cudaLaunchKernelExC", (work.t0, work.t0), correlation)
            kernel = collective_kernel(self.run, self.run.log.ranks[self.rank.index].job, work.name, work.nbytes)
            shown = self._kernel(work, "kernel", kernel.name, COMM, correlation)
            yield {**shown, "args": shown["args"] | {"operation": work.name} | kernel.arguments}
            correlation += 1
        for work in self.rank.bounds:
            yield self._slice("gpu_user_annotation", work.resource, COMM, work.t0, work.t1, cause=work.cause.value, resource=work.resource)

    def loader(self) -> Iterator[TraceEvent]:
        """Yield the work that builds batches."""
        for work in self.rank.loader:
            arguments = {"cause": work.cause.value, "resource": work.resource, "batch": work.ident, "stream_name": work.stream}
            yield self._slice("loader", work.name, _tid(work.stream), work.t0, work.t1, **arguments)

    def arrows(self) -> Iterator[TraceEvent]:
        """Yield an arrow from each bucket's gradients to its collective."""
        for number, work in enumerate(self.rank.collectives):
            ready = [done for done in self.rank.compute if done.ident == work.ident and done.t1 <= work.t0 + 1e-12]
            if work.ident < 0 or not ready:
                continue
            leaves = max(self._micros(ready[-1].t0), self._micros(ready[-1].t1) - 1e-3)  # inside the slice where the arrow starts
            flow = {"cat": "gradient", "name": "gradient ready", "id": (self.pid + 1) * 1_000_000 + number, "pid": self.pid}
            yield {"ph": "s", **flow, "tid": COMPUTE, "ts": leaves}
            yield {"ph": "f", "bp": "e", **flow, "tid": COMM, "ts": self._micros(work.t0)}

    def _next_batch(self) -> str:
        options = self.run.jobs[self.run.log.ranks[self.rank.index].job].job.workload.input
        if options.loader.startswith("dali"):
            return "enumerate(DataLoader)#DALIGenericIterator.__next__"
        kind = "MultiProcessing" if options.num_workers else "SingleProcess"
        return f"enumerate(DataLoader)#_{kind}DataLoaderIter.__next__"

    def _copy_name(self) -> str:
        pinned = self.run.jobs[self.run.log.ranks[self.rank.index].job].job.workload.input.pin_memory
        return f"Memcpy HtoD ({'Pinned' if pinned else 'Pageable'} -> Device)"

    def _launch(self, operator: str, call: str, between: tuple[float, float], correlation: int) -> Iterator[TraceEvent]:
        yield self._slice("cpu_op", operator, HOST, *between, **{"External id": correlation})
        yield self._slice("cuda_runtime", call, HOST, *between, correlation=correlation, **{"External id": correlation})

    def _kernel(self, work: WorkSpan, category: str, name: str, stream: int, correlation: int) -> TraceEvent:
        arguments: dict[str, Any] = {"device": self.pid, "stream": stream, "correlation": correlation, "External id": correlation}
        arguments |= {"resource": work.resource}
        arguments |= {"bytes": round(work.nbytes)} if work.nbytes else {}
        arguments |= {"bucket": work.ident} if work.ident >= 0 else {}
        return self._slice(category, name, stream, work.t0, work.t1, **arguments)

    def _slice(self, category: str, name: str, tid: int, start: float, end: float, **arguments: Any) -> TraceEvent:
        begin = self._micros(start)
        duration = round(self._micros(end) - begin, _DIGITS)
        event = {"ph": "X", "cat": category, "name": name, "pid": self.pid, "tid": tid, "ts": begin, "dur": duration}
        return event | {"args": arguments} if arguments else event

    def _micros(self, time: float) -> float:
        return round(1e6 * (time - self.origin), _DIGITS)


def _launched(works: Sequence[WorkSpan], launches: Sequence[WaitSpan]) -> Iterator[tuple[WorkSpan | None, tuple[float, float]]]:
    """Yield each of *works* with the time of its launch, the wait for the host right before it; None for a launch without a kernel."""
    waiting = list(launches)[::-1]
    for work in works:
        begun = (work.t0, work.t0)
        while waiting and waiting[-1].t0 < work.t0:
            wait = waiting.pop()
            if waiting and waiting[-1].t0 < work.t0:
                yield None, (wait.t0, wait.t1)
            else:
                begun = (wait.t0, wait.t1)
        yield work, begun
    yield from ((None, (wait.t0, wait.t1)) for wait in reversed(waiting))


def _tid(stream: str) -> int:
    if stream == "pipeline gpu":
        return DECODE
    return LOADER + 2 + int(stream.split()[1]) if stream.startswith("worker") else LOADER + (stream == "pin")


def _meta(kind: str, pid: int, tid: int, name: str) -> TraceEvent:
    return {"ph": "M", "name": kind, "pid": pid, "tid": tid, "ts": 0, "args": {"name": name}}


def _counters(log: EventLog, chosen: Excerpt, origin: float, pid: int) -> Iterator[TraceEvent]:
    """Yield the use of each resource as a percentage of its capacity."""
    yield _meta("process_name", pid, 0, "use of resources, per cent")
    for link, steps in sorted(chosen.loads.items()):
        if any(load > 0 for _, load in steps):
            yield from (
                {"ph": "C", "name": link, "pid": pid, "tid": 0, "ts": round(1e6 * (time - origin), _DIGITS),
                 "args": {"per cent": round(100 * load / log.capacity[link], 4)}}
                for time, load in steps
            )  # fmt: skip
