"""How long did the passes of a profiled step take? Kernels of each rank, by pass, by the gradient that they lead to, and by class.

A kernel belongs to the pass in which the host launched it: to backward while autograd ran, and there to the gradient accumulated next; to
the optimizer after the last operator of autograd; otherwise to forward. On a CPU the outermost operators count as kernels, and host time
between them counts with the next operator. A simulated trace names the pass and the bucket of each kernel. Compute that overlaps with a
collective is slower by a specified factor. This factor is removed, because the overlap is different on other hardware.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Final, Literal, NamedTuple

from calibration.traces.import_trace import EXCHANGE, ImportedJob
from calibration.traces.kineto import CPU, RankTrace, TraceSpan
from calibration.traces.late_ranks import WorkVariation, work_variation
from sim.analysis.stalls import Window
from sim.events import Cause
from sim.spec.fields import OperatorClass
from sim.spec.yaml import SpecError

Pass = Literal["forward", "backward", "copies", "optimizer"]
PassKey = tuple[Pass, int]
"""A pass, and in backward the index of the gradient (in a simulated trace: bucket) that the work leads to, in ready order; -1: none."""

_CLASSES: Final[tuple[tuple[OperatorClass, re.Pattern[str]], ...]] = (
    ("attention", re.compile(r"flash|fmha|attention", re.IGNORECASE)),
    ("conv", re.compile(r"conv|cudnn.*(?:grad|fprop)|fprop|dgrad|wgrad|winograd|implicit_", re.IGNORECASE)),
    ("gemm", re.compile(r"gemm|gemv|cutlass|nvjet|cublas|addmm|::b?mm$|matmul|linear|BmmBackward|MmBackward", re.IGNORECASE)),
)
"""Patterns for the names of kernels and operators of cuDNN, cuBLAS, CUTLASS and torch; all others count as memory bound."""
_WAITS: Final = (Cause.LAUNCH, Cause.GRADIENT, *EXCHANGE)
_INSTANT: Final = 1e-9
"""Kineto's resolution (s)."""
_SIMULATED: Final = re.compile(r"^(forward|backward|gradient copies|optimizer)(?: bucket \d+)?$")
_PASSES: Final[Mapping[str, Pass]] = {"forward": "forward", "backward": "backward", "gradient copies": "copies", "optimizer": "optimizer"}


@dataclass
class PassSeconds:
    """The times (s) of one part of a pass in one step."""

    by_class: dict[OperatorClass, float] = field(default_factory=lambda: defaultdict(float))
    """GPU time by class, without *upkeep*."""
    upkeep: float = 0.0
    """GPU time that does not depend on the batch: accumulating gradients."""
    host_wait: float = 0.0
    """Time for which its kernels waited for the host."""
    rank_wait: float = 0.0
    """Time for which its kernels waited for other ranks."""
    host: float = 0.0
    """Time that the host spent on launches; 0 if the trace does not contain it."""

    @property
    def seconds(self) -> float:
        """Return the total GPU time (s)."""
        return sum(self.by_class.values()) + self.upkeep


class Gradient(NamedTuple):
    """The gradient of one parameter: number of elements (-1: not recorded) and torch's name of their type."""

    elements: int
    dtype: str


@dataclass(frozen=True)
class PassTimes:
    """The profiled steps, averaged over steps and ranks."""

    parts: Mapping[PassKey, PassSeconds]
    gradients: tuple[Gradient, ...]
    """Gradients in the order in which they become ready; empty in a simulated trace."""
    micro_batches: int
    """Number of forward and backward passes of a step; ``parts`` of these passes are means over them. In a simulated trace it is 1 and
    ``parts`` are sums."""
    optimizer: str
    """Class of the optimizer; empty if the trace does not contain it."""
    copied_bytes: float
    """Bytes copied from host to device in a step."""
    input_wait: float
    variation: WorkVariation
    """How the compute of ranks varies from rank to rank and from step to step."""

    def total(self, which: Pass) -> PassSeconds:
        """Return the sum of all parts of one pass."""
        total = PassSeconds()
        for (name, _), part in self.parts.items():
            if name == which:
                _add(total, part, 1.0)
        return total


class _Launched(NamedTuple):
    """One kernel with the pass that it belongs to."""

    key: PassKey
    span: TraceSpan
    upkeep: bool


def measure_passes(imported: ImportedJob, slowdown: float = 1.0) -> PassTimes:
    """Return the times of the passes of *imported*; compute that overlapped with a collective took *slowdown* times as long.

    Raise SpecError if the trace does not show the passes.
    """
    pairs = zip(imported.traces, imported.windows, strict=True)
    steps = [[_step(trace, first, last) for first, last in _bounds(trace, window)] for trace, window in pairs]
    parts: dict[PassKey, PassSeconds] = defaultdict(PassSeconds)
    total = sum(trace.size for trace in imported.traces)
    compute: list[list[float]] = []
    for trace, window, own in zip(imported.traces, imported.windows, steps, strict=True):
        _require_equal_gradients(trace, own, steps[0][0])
        collectives = union(trace.collectives)
        compute.append([])
        for step in own:
            taken = _pass_times(trace, step, collectives, slowdown)
            compute[-1].append(sum(part.seconds for part in taken.values()))
            for key, part in taken.items():
                scale = trace.size / total / len(own) / (step.micro_batches if key[0] in ("forward", "backward") else 1)
                _add(parts[key], part, scale)
        _stalls(parts, imported, trace, window, own, total)
    first = steps[0][0]
    copied = fmean(_copied_bytes(trace, window) for trace, window in zip(imported.traces, imported.windows, strict=True))
    waits = imported.stalls[Cause.PREP] + imported.stalls[Cause.FETCH]
    optimizer = imported.traces[0].optimizer[0].name if imported.traces[0].optimizer else ""
    varies = WorkVariation(None, None) if imported.traces[0].simulated else work_variation([[[[each] for each in own] for own in compute]])
    return PassTimes(dict(parts), first.gradients, first.micro_batches, optimizer, copied, waits, varies)


class _ProfiledStep(NamedTuple):
    """One step of one rank."""

    items: list[_Launched]
    gradients: tuple[Gradient, ...]
    """Gradients of one micro-batch."""
    micro_batches: int


def _bounds(trace: RankTrace, window: Window) -> list[tuple[float, float]]:
    """Return begin and end of the host's work on each step that counts."""
    chosen = [trace.steps[number] for number in sorted(trace.steps)][-window.steps :]
    ends = [*(span.t0 for span in chosen[1:]), chosen[-1].t1 - _INSTANT]
    return [(span.t0, end) for span, end in zip(chosen, ends, strict=True)]


def _step(trace: RankTrace, start: float, end: float) -> _ProfiledStep:
    kernels = sorted((span for span in trace.compute if start <= span.launched < end), key=lambda span: (span.launched, span.t0))
    if trace.simulated:
        return _ProfiledStep([_Launched(_pass_key(trace, span), span, False) for span in kernels], (), 1)
    gradients = sorted((span for span in trace.gradients if start <= span.t0 < end), key=lambda span: span.t0)
    backward = sorted((span for span in trace.backward if start <= span.t0 < end), key=lambda span: span.t0)
    rounds = _backward_passes(kernels, backward, gradients)
    count = len(gradients) // rounds if rounds else 0
    if not count or count * rounds != len(gradients):
        raise SpecError(
            f"{trace.file}: a step of rank {trace.rank} keeps {len(gradients)} gradients in {rounds} backward passes; "
            "profile whole training steps, prof.step() after each optimizer step"
        )
    kept = tuple(Gradient(span.ident, span.resource) for span in gradients[:count])
    return _ProfiledStep(_with_passes(kernels, backward, gradients, count), kept, rounds)


def _pass_key(trace: RankTrace, span: TraceSpan) -> PassKey:
    """Return the pass that a simulated trace names."""
    match = _SIMULATED.match(span.name)
    if match is None:
        raise SpecError(f"{trace.file}: the kernel '{span.name}' belongs to no pass of a simulated step; export the trace again")
    return _PASSES[match[1]], span.ident if match[1] == "backward" else -1


def _backward_passes(kernels: Sequence[TraceSpan], backward: Sequence[TraceSpan], gradients: Sequence[TraceSpan]) -> int:
    """Return the number of backward passes of a step; each accumulates gradients, and forward compute separates them."""
    starts = [span.t0 for span in backward]
    forward = [span.launched for span in kernels if not _within(backward, starts, span.launched)]
    marks = sorted([(time, False) for time in forward] + [(span.t0, True) for span in gradients])
    return sum(keeps and not before for (_, before), (_, keeps) in zip([(0.0, False), *marks], marks, strict=False)) if gradients else 0


def _within(spans: Sequence[TraceSpan], starts: Sequence[float], time: float) -> bool:
    place = bisect_right(starts, time) - 1
    return place >= 0 and time < spans[place].t1


def _with_passes(
    kernels: Sequence[TraceSpan], backward: Sequence[TraceSpan], gradients: Sequence[TraceSpan], count: int
) -> list[_Launched]:
    """Return *kernels* with their passes; each backward pass accumulates *count* gradients."""
    starts, ends = [span.t0 for span in backward], [span.t1 for span in gradients]
    keeping = [span for span in backward if span.name == "torch::autograd::AccumulateGrad"]
    kept = [span.t0 for span in keeping]
    last = max(span.t1 for span in backward)
    items = []
    for span in kernels:
        if _within(backward, starts, span.launched):
            upkeep = _within(keeping, kept, span.launched)  # otherwise it leads to the gradient accumulated next
            place = bisect_right(kept, span.launched) - 1 if upkeep else bisect_right(ends, span.launched)
            items.append(_Launched(("backward", place % count if place < len(ends) else -1), span, upkeep))
        else:
            items.append(_Launched(("optimizer" if span.launched >= last else "forward", -1), span, False))
    return items


def _require_equal_gradients(trace: RankTrace, steps: Sequence[_ProfiledStep], first: _ProfiledStep) -> None:
    for step in steps:
        if step.gradients != first.gradients or step.micro_batches != first.micro_batches:
            raise SpecError(
                f"{trace.file}: the steps of rank {trace.rank} have different gradients than the first step of rank 0; profile steps "
                "that train the same parameters on every rank"
            )


# --- seconds -----------------------------------------------------------------------------------------------------------------


def _pass_times(
    trace: RankTrace, step: _ProfiledStep, collectives: Sequence[tuple[float, float]], slowdown: float
) -> dict[PassKey, PassSeconds]:
    """Return the times of each part of a step; time in which several kernels run concurrently counts once."""
    parts: dict[PassKey, PassSeconds] = defaultdict(PassSeconds)
    done = host = -1.0
    for key, span, upkeep in sorted(step.items, key=lambda item: item.span.t0):
        start = max(span.t0, done)
        done = max(done, span.t1)
        seconds = max(0.0, span.t1 - start)
        if slowdown > 1.0 and seconds:
            seconds -= overlap(collectives, start, span.t1) * (1.0 - 1.0 / slowdown)
        part = parts[key]
        if upkeep:
            part.upkeep += seconds
        else:
            part.by_class[kernel_class(span.name)] += seconds
        if trace.gpu != CPU:
            part.host += max(0.0, span.queued - max(span.launched, host))
            host = max(host, span.queued)
    return parts


def kernel_class(name: str) -> OperatorClass:
    """Return the operator class of the kernel or operator *name*: a class of products, or ``elementwise`` if it is memory bound."""
    return next((name_of_class for name_of_class, pattern in _CLASSES if pattern.search(name)), "elementwise")


def _stalls(
    parts: Mapping[PassKey, PassSeconds],
    imported: ImportedJob,
    trace: RankTrace,
    window: Window,
    steps: Sequence[_ProfiledStep],
    total: int,
) -> None:
    """Add each wait for the host or for other ranks to the part of the next kernel.

    On a CPU, waits for the host are compute between operators.
    """
    items = sorted((item for step in steps for item in step.items), key=lambda item: item.span.t0)
    starts = [item.span.t0 for item in items]
    rank = next(number for number, other in enumerate(imported.traces) if other is trace)
    for wait in imported.log.waits:
        if wait.rank != rank or wait.cause not in _WAITS or not items:
            continue
        item = items[min(bisect_right(starts, wait.t0), len(items) - 1)]
        passes = steps[0].micro_batches if item.key[0] in ("forward", "backward") else 1
        seconds = (wait.t1 - wait.t0) * trace.size / total / window.steps / passes
        if wait.cause is not Cause.LAUNCH:
            parts[item.key].rank_wait += seconds
        elif trace.gpu == CPU:
            parts[item.key].by_class[kernel_class(item.span.name)] += seconds
        else:
            parts[item.key].host_wait += seconds


def _add(part: PassSeconds, more: PassSeconds, scale: float) -> None:
    for name, seconds in more.by_class.items():
        part.by_class[name] += scale * seconds
    part.upkeep += scale * more.upkeep
    part.host_wait += scale * more.host_wait
    part.rank_wait += scale * more.rank_wait
    part.host += scale * more.host


def union(spans: Iterable[TraceSpan]) -> list[tuple[float, float]]:
    """Return the disjoint intervals in which any of *spans* is active, in order."""
    joined: list[tuple[float, float]] = []
    for span in sorted(spans, key=lambda span: span.t0):
        if joined and span.t0 <= joined[-1][1]:
            joined[-1] = joined[-1][0], max(joined[-1][1], span.t1)
        else:
            joined.append((span.t0, span.t1))
    return joined


def overlap(intervals: Sequence[tuple[float, float]], start: float, end: float) -> float:
    """Return the time (s) between *start* and *end* that *intervals* cover."""
    place = max(0, bisect_right(intervals, (start, float("inf"))) - 1)
    seconds = 0.0
    while place < len(intervals) and intervals[place][0] < end:
        seconds += max(0.0, min(end, intervals[place][1]) - max(start, intervals[place][0]))
        place += 1
    return seconds


# --- everything else ---------------------------------------------------------------------------------------------------------


def _copied_bytes(trace: RankTrace, window: Window) -> float:
    """Return the bytes per step that are copied from host to device."""
    copies = [span for span in trace.copies if "HtoD" in span.name and window.start <= span.t0 < window.end]
    return sum(max(0, span.nbytes) for span in copies) / window.steps
