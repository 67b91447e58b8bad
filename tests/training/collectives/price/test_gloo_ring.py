"""Does the recurrence play Gloo's protocol? Oracles: a discrete-event play of two posts in flight with notices, and closed forms."""

from __future__ import annotations

import heapq
from collections import deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.training.collectives.price.gloo_ring import LARGEST, cut_segments, segments_time

TIMES = st.floats(0.0, 1.0).map(lambda value: round(value, 3))


class Play:
    """Rank 0 and its mirror image, message by message: what 0 sends, the other sends at the same time."""

    def __init__(self, count: int, wire: float, one_way: float, one_line: bool) -> None:
        self.count, self.wire, self.one_way, self.one_line = count, wire, one_way, one_line
        self.events: list[tuple[float, int, str, int]] = []
        self.line: deque[tuple[str, int]] = deque()
        self.busy = False
        self.posted: set[int] = set()
        self.noticed: set[int] = set()
        self.arrived = 0
        self.now = 0.0

    def at(self, time: float, order: int, what: str, segment: int) -> None:
        heapq.heappush(self.events, (time, order, what, segment))

    def run(self) -> float:
        for segment in range(min(2, self.count)):
            self.post(segment)
        while self.arrived < self.count:
            self.now, _, what, segment = heapq.heappop(self.events)
            getattr(self, what)(segment)
        return self.now

    def post(self, segment: int) -> None:
        self.posted.add(segment)
        if self.one_line:
            self.line.append(("notice", segment))
            self.serve()
        else:
            self.at(self.now + self.one_way, 0, "notice", segment)
        self.let_go(segment)

    def notice(self, segment: int) -> None:
        self.noticed.add(segment)
        self.let_go(segment)

    def let_go(self, segment: int) -> None:
        if segment in self.posted and segment in self.noticed:
            self.line.append(("data", segment))
            self.serve()

    def serve(self) -> None:
        while self.line and not self.busy:
            what, segment = self.line.popleft()
            if what == "notice":
                self.at(self.now + self.one_way, 0, "notice", segment)
            else:
                self.busy = True
                self.at(self.now + self.wire, 1, "free", segment)

    def free(self, segment: int) -> None:
        self.busy = False
        self.at(self.now + self.one_way, 2, "came", segment)
        self.serve()

    def came(self, segment: int) -> None:
        self.arrived += 1
        if segment + 2 < self.count:
            self.post(segment + 2)


@given(st.integers(1, 30), TIMES.filter(lambda value: value > 0), TIMES, st.booleans())
def test_the_recurrence_is_the_protocol_played(count: int, wire: float, one_way: float, one_line: bool) -> None:
    """In one line, a notice and data that are due at the same instant may stand either way: such ties are left out."""
    played = Play(count, wire, one_way, one_line).run()
    if one_line and abs(wire - one_way) < 1e-9:
        return
    assert segments_time(count, wire, one_way, one_line) == pytest.approx(played)


def test_busy_wires_hide_notices_and_idle_ones_wait_for_them() -> None:
    """Closed forms: all segments in a row and one way out and in; or, for each two, one segment and both ways."""
    assert segments_time(10, 1.0, 0.1, False) == pytest.approx(10 * 1.0 + 0.2)
    assert segments_time(10, 0.1, 1.0, False) == pytest.approx(5 * (0.1 + 2.0) + 0.1)


@given(st.floats(1, 1e9), st.integers(2, 64))
def test_segments_are_small_and_at_least_two_a_rank(nbytes: float, ranks: int) -> None:
    """Definition (gloo/allreduce.cc); conservation: a pass carries (n-1)/n of the bytes."""
    segments = cut_segments(nbytes, ranks)
    assert segments.nbytes <= LARGEST + 1
    assert segments.per_pass >= 2 * (ranks - 1) and segments.per_pass % (ranks - 1) == 0
    assert segments.per_pass * segments.nbytes == pytest.approx((ranks - 1) / ranks * nbytes)
