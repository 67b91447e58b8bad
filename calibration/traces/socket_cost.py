"""What did collectives over Gloo cost in a profile? The constants of the sockets with which the simulator's collectives take the same time.

A collective lasts from the begin of the last rank to the end of the last rank, and moves the bytes of its input. These times, without
latencies, are compared with those that the simulator computes for the line: ``seconds = launch + slowness * line``, by least squares, which
keeps the mean. The slowness becomes the share of the line that the sockets reach (``total_efficiency``), which cannot exceed 1; the
rest is the fixed cost. With collectives of one size only, the two cannot be told apart, so the fixed cost stays that of the stack.
Limits: collectives must be of all ranks, all with a trace, and follow each other; messages of a pipeline are not used.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from itertools import pairwise
from statistics import fmean, linear_regression
from typing import Final, NamedTuple, cast

from calibration.traces.import_trace import ImportedJob
from calibration.traces.kineto import CPU, RankTrace, TraceSpan
from sim.parallel.program import Op
from sim.spec.transport import Transport

_COLLECTIVE: Final = re.compile(r"^gloo:(all_reduce|all_gather|reduce_scatter)$")

SocketPrice = Callable[[Transport, Op, float], float]
"""Returns the simulated time (s) of an operation on a number of bytes over a transport."""


class SeenCollective(NamedTuple):
    """A collective of all ranks: *nbytes* as in `sim.parallel.program.Message`, *seconds* from the last begin to the last end."""

    op: Op
    nbytes: float
    seconds: float


def seen_collectives(profile: ImportedJob) -> list[SeenCollective]:
    """Return the collectives of the steps that count; none if ranks lack a trace, sizes are unknown, or collectives overlap."""
    first = profile.traces[0]
    by_rank = [_counted(trace) for trace in profile.traces]
    if first.gpu != CPU or first.simulated or len(profile.traces) != first.world_size or len({len(spans) for spans in by_rank}) > 1:
        return []
    seen = []
    for spans in zip(*by_rank, strict=True):
        match = _COLLECTIVE.match(spans[0].name)
        if match is None or len({(span.name, span.nbytes) for span in spans}) > 1 or spans[0].nbytes <= 0:
            return []
        op = cast("Op", match[1])
        parts = first.world_size if op == "all_gather" else 1  # its input is a rank's part
        seconds = max(span.t1 for span in spans) - max(span.t0 for span in spans)
        seen.append(SeenCollective(op, float(parts * spans[0].nbytes), seconds))
    return seen


def _counted(trace: RankTrace) -> Sequence[TraceSpan]:
    """Return the collectives of a rank in the steps that count, in order; none if they overlap."""
    steps = sorted(trace.steps)
    begin = trace.steps[steps[1 if len(steps) > 1 else 0]].t0
    spans = sorted((span for span in trace.collectives if span.t0 >= begin), key=lambda span: span.t0)
    return spans if all(one.t1 <= other.t0 for one, other in pairwise(spans)) else []


def fitted_sockets(transport: Transport, seen: Sequence[SeenCollective], price: SocketPrice) -> Transport:
    """Return *transport* with the fixed cost and the share of the line with which collectives take the times *seen* on average."""
    seconds = [each.seconds for each in seen]

    def computed(efficiency: float) -> list[float]:
        free = transport.model_copy(update={"launch": 0.0, "total_efficiency": efficiency})
        return [price(free, each.op, each.nbytes) for each in seen]

    full, half = computed(transport.total_efficiency), computed(transport.total_efficiency / 2)
    on_line = [slower - faster for faster, slower in zip(full, half, strict=True)]
    left = [time - faster + line for time, faster, line in zip(seconds, full, on_line, strict=True)]  # without latencies
    launch, slowness = transport.launch, 1.0
    if max(on_line) > min(on_line):
        slowness, launch = linear_regression(on_line, left)
    if launch < 0.0 or max(on_line) == min(on_line) > 0.0:
        slowness = max(0.0, fmean(left) - max(0.0, launch)) / fmean(on_line)
    efficiency = min(1.0, transport.total_efficiency / slowness) if slowness > 0 else 1.0
    launch = max(0.0, fmean(seconds) - fmean(computed(efficiency)))
    return transport.model_copy(update={"launch": launch, "total_efficiency": efficiency})
