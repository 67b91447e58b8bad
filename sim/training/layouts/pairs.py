"""How long do a forward and a backward pass take together if the messages of one are hidden behind the compute of the other?

The passes of a pair share one compute stream and one communication stream, on which they take turns; each runs its own kernels and messages
in order. DualPipe (DeepSeek-V3, arXiv 2412.19437, section 3.2.1) and Megatron-LM (core/models/common/model_chunk_schedule_plan.py,
``TransformerLayerSchedulePlan.run``) order a block's parts like this:

    messages   combine backward | dispatch forward, dispatch backward | combine forward
    compute    attention forward | experts backward, experts forward  | attention backward

While a message moves, its kernel occupies multiprocessors, so compute takes *slowdown* times as long. With C seconds of compute and M of
messages, a pair takes at least max(C, M) and at most C + M. Limit: weight gradients do not move (``delay_wgrad_compute``).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import zip_longest
from typing import NamedTuple


class PassSegment(NamedTuple):
    """What a pass computes (s) before it waits for a message, and the message (s), which is 0 after the last one."""

    compute: float
    message: float


class PairTime(NamedTuple):
    """The time (s) of a pair: its compute, slowed by messages, and what compute waits for messages."""

    compute: float
    exposed: float


def pair_time(forward: Sequence[PassSegment], backward: Sequence[PassSegment], slowdown: float = 1.0) -> PairTime:
    """Return the time of a *forward* and a *backward* pass that run as a pair; *slowdown*: of compute while a message moves."""
    turns = list(_in_turns(backward, forward))
    computed, sent = 0, 0  # turns whose compute, and whose message, are over
    compute = elapsed = 0.0
    computing, sending = turns[0].segment.compute if turns else 0.0, 0.0
    while sent < len(turns):
        may_compute = computed < len(turns) and turns[computed].before < sent
        may_send = sent < computed
        pace = slowdown if may_send and sending > 0.0 else 1.0
        step = min(([computing * pace] if may_compute else []) + ([sending] if may_send else []))
        elapsed += step
        if may_compute:
            compute += step
            computing = 0.0 if step == computing * pace else computing - step / pace
        if may_send:
            sending -= step
        if may_compute and computing == 0.0:
            computed += 1
            sending = turns[sent].segment.message if sent == computed - 1 else sending
            computing = turns[computed].segment.compute if computed < len(turns) else 0.0
        if may_send and sending == 0.0:
            sent += 1
            sending = turns[sent].segment.message if sent < computed else 0.0
    return PairTime(compute, elapsed - compute)


class _Turn(NamedTuple):
    segment: PassSegment
    before: int
    """The turn of the same pass before this one, whose message must be over before this one computes; -1 for none."""


def _in_turns(*passes: Sequence[PassSegment]) -> Iterator[_Turn]:
    """Yield the segments of *passes* in turns, in which they use both streams."""
    last = [-1] * len(passes)
    count = 0
    for row in zip_longest(*passes):
        for own, segment in enumerate(row):
            if segment is not None:
                yield _Turn(segment, last[own])
                last[own], count = count, count + 1
