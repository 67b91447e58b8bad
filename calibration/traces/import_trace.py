"""Where did the time of a measured job go? Profiles of its ranks become the spans of an event log, which is analyzed like a simulation's.

Each moment of a rank has the first cause that applies. Compute: a kernel of a compute stream runs. Launch: the host is in an operator or a
call, the next kernel is not launched yet, and the host waits neither for the GPU nor the loader nor a copy. Gradient exchange: a collective
runs; it is blamed on the straggler until the last rank has joined and then on its tier. Over Gloo, the operators of a job that divides the
model wait inside for their collectives, which is gradient exchange, too. Input (prep, because a profile cannot separate disk
from decode): the host waits in the loader's ``__next__``. Copy: a copy runs. Otherwise launch. A step ends when the host has begun the next
one and the GPU has finished all work launched before. If there are several steps, the first is skipped, because the GPU is still busy with
unrecorded work. Clocks of hosts are aligned at the ends of collectives.
Limits: all ranks take part in the same collectives, or send each other messages; for messages, late ranks are not identified and clocks are
not aligned.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

from calibration.traces.kineto import CPU, RankTrace, TraceSpan, read_trace
from sim.analysis.stalls import Blame, Window, blame
from sim.events import STALLS, Cause, EventLog, LoggedRank, WaitSpan, WorkSpan
from sim.spec.yaml import SpecError

_INSTANT = 1e-9  # seconds: Kineto's resolution
MESSAGE = re.compile(r"^gloo:(?:send|recv)|^nccl.*SendRecv")
"""Messages between the stages of a pipeline."""
EXCHANGE = (Cause.INTERCONNECT, Cause.NETWORK, Cause.STRAGGLER)
"""Causes of waiting for gradients."""


@dataclass(frozen=True)
class ImportedJob:
    """A measured job: its event log, the window of each rank, and the resulting times per step (s)."""

    traces: Sequence[RankTrace]
    log: EventLog
    windows: Sequence[Window]
    step_time: float
    resources: Sequence[Blame]
    """Time per step (s) by cause and resource, mean over ranks, largest first."""
    by_rank: Sequence[dict[Cause, float]]

    @property
    def traced_ranks(self) -> int:
        """Return the number of ranks whose traces were given; other ranks are taken to be like them."""
        return sum(1 if not trace.simulated else trace.size for trace in self.traces)

    @property
    def stalls(self) -> dict[Cause, float]:
        """Return the time per step (s) by cause; the values sum to ``step_time``."""
        table = dict.fromkeys(STALLS, 0.0)
        for row in self.resources:
            table[row.cause] += row.seconds
        return table

    @property
    def exposed_sync(self) -> float:
        """Return the time per step (s) spent waiting for the gradient exchange."""
        return sum(self.stalls[cause] for cause in EXCHANGE)


def import_traces(files: Iterable[Path | str]) -> ImportedJob:
    """Return the job with the ranks in *files*, one file per rank; of a folder, all its traces. Raise SpecError if one is missing."""
    named = (trace for file in files for trace in _traces_of(Path(file)))
    traces = sorted((trace for path in named for trace in read_trace(path)), key=lambda trace: trace.rank)
    traces = _aligned(_representing_all(traces))
    log = EventLog(lambda: 0.0, ranks=[LoggedRank(0, number, trace.size, trace.host, ()) for number, trace in enumerate(traces)])
    windows = [_window(trace) for trace in traces]
    joined = _join_times(traces)
    tier = Cause.NETWORK if len({trace.host for trace in traces}) > 1 or traces[0].job_facts.get("nodes", 1) > 1 else Cause.INTERCONNECT
    for number, (trace, window) in enumerate(zip(traces, windows, strict=True)):
        log.waits += _waits(trace, number, window)
        log.work += [work._replace(rank=number) for work in (*trace.loader, *_exchange_spans(trace, joined[number], tier))]
    return _analyzed(traces, log, windows)


def _traces_of(path: Path) -> list[Path]:
    """Return *path*, or the traces in it if it is a folder, as TensorBoard's handler writes one. Raise SpecError if it has none."""
    if not path.is_dir():
        return [path]
    if not (traces := sorted(file for file in path.iterdir() if file.name.endswith((".json", ".json.gz")))):
        raise SpecError(f"{path}: is a folder without traces; their names end in .json or .json.gz")
    return traces


def _analyzed(traces: Sequence[RankTrace], log: EventLog, windows: Sequence[Window]) -> ImportedJob:
    total = sum(trace.size for trace in traces)
    mean: dict[tuple[Cause, str], float] = defaultdict(float)
    for trace, own in zip(traces, windows, strict=True):
        if own.end <= own.start:
            raise SpecError(f"{trace.file}: the profiled steps of rank {trace.rank} take no time; export the trace again")
    by_rank = []
    for number, rows in enumerate(blame(log, windows)):
        table = dict.fromkeys(STALLS, 0.0)
        for row in rows:
            if row.rank == number:
                table[row.cause] += row.seconds / windows[number].steps
                mean[row.cause, row.resource] += row.seconds / windows[number].steps * traces[number].size / total
        by_rank.append(table)
    step_time = sum(trace.size / total * (own.end - own.start) / own.steps for trace, own in zip(traces, windows, strict=True))
    resources = sorted((Blame(-1, *key, seconds) for key, seconds in mean.items()), key=lambda row: (-row.seconds, row.cause, row.resource))
    return ImportedJob(traces, log, windows, step_time, resources, by_rank)


# --- all ranks, all steps --------------------------------------------------------------------------------------------


def _representing_all(traces: Sequence[RankTrace]) -> list[RankTrace]:
    """Return *traces*, which together represent all ranks of their job; ranks without a trace are like those that have one.

    Raise SpecError unless they are ranks of one job, each once, in the same steps, or if a simulated job lacks ranks.
    """
    first = traces[0]
    for trace, other in pairwise(traces):
        if trace.rank == other.rank:
            raise SpecError(
                f"{other.file}: rank {other.rank} is already in {trace.file}; pass one file per rank, each with its own distributedInfo"
            )
    if len({trace.job_facts.get("job", 0) for trace in traces}) > 1:
        raise SpecError(f"{first.file}: shows several jobs; trace each one separately")
    present = {trace.rank + member for trace in traces for member in range(trace.size)}
    missing = [str(rank) for rank in range(first.world_size) if rank not in present]
    if missing and first.simulated:
        more = ", ..." if len(missing) > 8 else ""
        raise SpecError(f"{first.file}: only {len(present)} of {first.world_size} ranks given; missing: {', '.join(missing[:8])}{more}")
    for trace in traces:
        odd = sorted(trace.steps.keys() ^ first.steps.keys())
        if odd:
            lacks, has = (trace, first) if odd[0] in first.steps else (first, trace)
            raise SpecError(f"{lacks.file}: lacks ProfilerStep#{odd[0]}, which {has.file} has; profile the same steps on every rank")
    each, over = divmod(len(missing), len(traces))
    return [replace(trace, size=trace.size + each + (number < over)) for number, trace in enumerate(traces)]


def _staged(traces: Sequence[RankTrace]) -> bool:
    """Return whether ranks send each other messages, as stages of a pipeline do; then not all ranks take part in all of them."""
    return any(MESSAGE.match(span.name) for trace in traces for span in trace.collectives)


def _aligned(traces: Sequence[RankTrace]) -> list[RankTrace]:
    """Return *traces* with the clocks of other hosts aligned to the first, because a collective ends on all ranks at the same time."""
    first = traces[0]
    if _staged(traces):
        return list(traces)
    aligned = [first]
    for trace in traces[1:]:
        ends = [own.t1 - other.t1 for own, other in zip(trace.collectives, first.collectives, strict=False)]
        aligned.append(trace if trace.host == first.host or not ends else _shifted(trace, -median(ends)))
    return aligned


def _shifted(trace: RankTrace, by: float) -> RankTrace:
    def move(spans: Iterable[TraceSpan]) -> list[TraceSpan]:
        return [span._replace(t0=span.t0 + by, t1=span.t1 + by, launched=span.launched + by, queued=span.queued + by) for span in spans]

    def work(spans: Iterable[WorkSpan]) -> list[WorkSpan]:
        return [span._replace(t0=span.t0 + by, t1=span.t1 + by) for span in spans]

    steps = dict(zip(trace.steps, move(trace.steps.values()), strict=True))
    return replace(
        trace, steps=steps, compute=move(trace.compute), collectives=move(trace.collectives), copies=move(trace.copies),
        inputs=move(trace.inputs), busy=move(trace.busy), blocked=move(trace.blocked), bounds=work(trace.bounds), loader=work(trace.loader),
        backward=move(trace.backward), gradients=move(trace.gradients), optimizer=move(trace.optimizer),
    )  # fmt: skip


def _window(trace: RankTrace) -> Window:
    """Return the window of the steps that count; it begins when the GPU has finished all work launched before the first of them."""
    numbers = sorted(trace.steps)
    first = 0 if trace.job_facts.get("stands_for") or len(numbers) == 1 else 1  # a simulated trace includes all work before its steps
    work = [*trace.compute, *trace.collectives, *trace.copies]

    def done(when: float) -> float:
        return max([when, *(span.t1 for span in work if span.launched < when - _INSTANT)])

    return Window(done(trace.steps[numbers[first]].t0), done(trace.steps[numbers[-1]].t1), len(numbers) - first)


# --- collectives -----------------------------------------------------------------------------------------------------


def _join_times(traces: Sequence[RankTrace]) -> list[list[float]]:
    """Return, by rank, the time (s) at which the last rank joined each of its collectives."""
    simulated = any(trace.bounds for trace in traces)
    counts = {len(trace.collectives) for trace in traces}
    if simulated or len(traces) == 1 or _staged(traces):
        return [[span.t0 for span in trace.collectives] for trace in traces]
    if len(counts) > 1:
        few, many = (pick(traces, key=lambda trace: len(trace.collectives)) for pick in (min, max))
        raise SpecError(
            f"{few.file}: shows {len(few.collectives)} collectives, {many.file} {len(many.collectives)}; "
            "profile the same steps of a data-parallel job on every rank"
        )
    spans = [sorted(trace.collectives, key=lambda span: span.t0) for trace in traces]
    last = [max(span.t0 for span in same) for same in zip(*spans, strict=True)]
    return [last for _ in traces]


def _exchange_spans(trace: RankTrace, joined: Sequence[float], tier: Cause) -> list[WorkSpan]:
    """Return the spans in which the collectives of a rank move data, with their causes."""
    if trace.bounds:
        return trace.bounds
    spans = sorted(trace.collectives, key=lambda span: span.t0)
    works: list[WorkSpan] = []
    for span, start in zip(spans, joined, strict=True):
        begin = max(min(start, span.t1), works[-1].t1 if works else span.t0)
        if span.t1 > begin:
            works.append(WorkSpan(0, "comm", span.name, tier, span.name.partition("(")[0], span.ident, 0.0, begin, span.t1))
    return works


# --- waits of a rank -------------------------------------------------------------------------------------------------


def _waits(trace: RankTrace, rank: int, window: Window) -> list[WaitSpan]:
    """Return the waits of *rank* in *window*, without gaps."""
    waits: list[WaitSpan] = []
    for start, end, running, place in _moments(trace, window):
        cause, resource, ident = _cause(trace, end, running, place)
        last = waits[-1] if waits else None
        if last and (last.cause, last.resource, last.ident) == (cause, resource, ident):
            waits[-1] = last._replace(t1=end)
        else:
            waits.append(WaitSpan(rank, cause, resource, ident, start, end))
    return waits


def awaited(trace: RankTrace) -> list[TraceSpan]:
    """Return the collectives for which operators of *trace* wait inside: over Gloo, those of a divided model, but no messages."""
    if trace.gpu != CPU or not trace.layout_event or trace.simulated:
        return []
    return [span for span in trace.collectives if not MESSAGE.match(span.name)]


_TraceMoment = tuple[float, float, dict[str, int], tuple[int, int]]
"""Begin, end, number of active spans of each kind, and the indices of the current or next kernel and of the current or next loader wait."""


def _moments(trace: RankTrace, window: Window) -> Iterable[_TraceMoment]:
    """Yield the intervals of *window* between events: the begin or end of a span, or the launch of a kernel."""
    kinds = {
        "compute": trace.compute, "exchange": trace.collectives, "copy": trace.copies, "input": trace.inputs, "busy": trace.busy,
        "blocked": trace.blocked, "waiting": awaited(trace),
    }  # fmt: skip
    trace.compute.sort(key=lambda span: span.t0)
    trace.inputs.sort(key=lambda span: span.t0)
    edges = [(time, kind, change) for kind, spans in kinds.items() for span in spans for time, change in ((span.t0, 1), (span.t1, -1))]
    edges += [(span.queued, "", 0) for span in trace.compute]
    edges += [(window.start, "", 0), (window.end, "", 0)]
    edges.sort(key=lambda edge: edge[0])
    running = dict.fromkeys((*kinds, ""), 0)
    kernel = wait = 0
    for (time, kind, change), (until, _, _) in pairwise(edges):
        running[kind] += change
        if until <= time or time < window.start or until > window.end:
            continue
        while kernel < len(trace.compute) and trace.compute[kernel].t1 <= time:
            kernel += 1
        while wait < len(trace.inputs) and trace.inputs[wait].t1 <= time:
            wait += 1
        yield time, until, running, (kernel, wait)


def _cause(trace: RankTrace, end: float, running: dict[str, int], place: tuple[int, int]) -> tuple[Cause, str, int]:
    """Return cause, resource and batch of a rank's wait up to *end*."""
    kernel = trace.compute[place[0]] if place[0] < len(trace.compute) else None
    if running["compute"] and not running["waiting"]:
        return Cause.COMPUTE, (kernel.resource if kernel and kernel.resource else f"{trace.gpu} compute"), -1
    launching = running["busy"] and not running["blocked"] and not running["copy"] and not running["input"]
    if launching and kernel is not None and kernel.queued >= end:
        return Cause.LAUNCH, "host", -1
    if running["exchange"]:
        return Cause.GRADIENT, "", -1
    if running["input"]:
        return Cause.INPUT, "", trace.inputs[place[1]].ident
    if running["copy"]:
        return Cause.COPY, "host to device", -1
    return Cause.LAUNCH, "host" if running["busy"] else "host outside any operator", -1


def kernel_times(imported: ImportedJob, most: int = 20) -> list[dict[str, Any]]:
    """Return the kernels, collectives and copies that take most of the first rank's time, with calls and time (s) per step."""
    trace, window = imported.traces[0], imported.windows[0]
    times_of: dict[tuple[str, str], list[float]] = defaultdict(list)
    for kind, spans in (("compute", trace.compute), ("exchange", trace.collectives), ("copy", trace.copies)):
        for span in spans:
            if window.start <= span.t0 < window.end:
                times_of[kind, span.name].append(span.t1 - span.t0)
    rows: list[dict[str, Any]] = [
        {"kind": kind, "name": name, "calls_per_step": len(times) / window.steps, "time_s": sum(times) / window.steps}
        for (kind, name), times in times_of.items()
    ]
    return sorted(rows, key=lambda row: (-row["time_s"], row["name"]))[:most]
