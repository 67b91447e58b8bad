"""Oracle: a clock moved by hand, so that what should be in the log is known."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.events import STALLS, Cause, EventLog, WaitSpan, WorkSpan


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def log(clock):
    return EventLog(clock)


def test_the_stalls_are_the_closed_list_of_the_document():
    """DESIGN of the JSON document: these keys, in this order."""
    assert [cause.value for cause in STALLS] == ["compute", "fetch", "prep", "copy", "interconnect", "network", "straggler", "launch"]
    assert set(Cause) - set(STALLS) == {Cause.PIPELINE, Cause.INPUT, Cause.GRADIENT}


def test_a_wait_lasts_as_long_as_its_block(log, clock):
    clock.now = 2.0
    with log.waiting(0, Cause.COPY, "pcie", 7):
        clock.now = 5.0
    assert log.waits == [WaitSpan(0, Cause.COPY, "pcie", 7, 2.0, 5.0)]


def test_a_wait_is_open_until_its_block_ends(log, clock):
    clock.now = 2.0
    with log.waiting(3, Cause.FETCH):
        assert log.waiting_since == {3: (Cause.FETCH, 2.0)} and log.waits == []
        clock.now = 4.0
    assert log.waiting_since == {}


def test_what_takes_no_time_is_no_wait_and_no_work(log):
    with log.waiting(0, Cause.COPY):
        pass
    log.add_work(0, "copy", "host to device", Cause.COPY, 0.0)
    assert log.waits == [] and log.work == [] and log.waiting_since == {}


def test_a_rank_waits_for_one_thing_at_a_time(log, clock):
    """Two open waits of a rank would count the same seconds twice."""
    with log.waiting(0, Cause.INPUT), log.waiting(1, Cause.GRADIENT):
        with pytest.raises(RuntimeError, match="rank 0 waits for input already"), log.waiting(0, Cause.FETCH):
            pass
        clock.now = 1.0
    assert [(wait.rank, wait.cause) for wait in log.waits] == [(1, Cause.GRADIENT), (0, Cause.INPUT)]


def test_a_simulation_that_is_given_up_leaves_its_log_alone(log, clock):
    """The interpreter closes abandoned processes whenever it likes; the log must not depend on when."""

    def process():
        with log.waiting(0, Cause.COMPUTE):
            yield

    running = process()
    next(running)
    clock.now = 9.0
    running.close()
    assert log.waits == [] and log.waiting_since == {0: (Cause.COMPUTE, 0.0)}


def test_work_ends_now_or_when_told(log, clock):
    clock.now = 6.0
    log.add_work(1, "gpu", "forward", Cause.COMPUTE, 4.0, "gpu 0", 2)
    log.add_work(1, "comm", "bucket 0", Cause.NETWORK, 1.0, "nic", 0, 25.0, end=3.0)
    assert log.work == [
        WorkSpan(1, "gpu", "forward", Cause.COMPUTE, "gpu 0", 2, 0.0, 4.0, 6.0),
        WorkSpan(1, "comm", "bucket 0", Cause.NETWORK, "nic", 0, 25.0, 1.0, 3.0),
    ]


def test_a_wait_is_for_something_else_in_its_pauses(log, clock):
    """By hand: of 6 s of compute the third and the last second stand still."""
    with log.waiting(0, Cause.COMPUTE, "gpu 0"):
        clock.now += 6.0
    end = clock.now
    assert log.interrupt([(end - 4, end - 3), (end - 1, end)], Cause.GRADIENT) == [(end - 6, end - 4), (end - 3, end - 1)]
    assert [(wait.cause, wait.t1 - wait.t0) for wait in log.waits] == [
        (Cause.COMPUTE, 2.0), (Cause.GRADIENT, 1.0), (Cause.COMPUTE, 2.0), (Cause.GRADIENT, 1.0),
    ]  # fmt: skip


@given(st.lists(st.tuples(st.sampled_from(list(Cause)), st.sampled_from([0.0, 0.5, 1.0]) | st.floats(0.01, 10)), max_size=20))
def test_waits_one_after_another_tile_the_time(blocks):
    """Conservation: a rank that does nothing but wait has waited for all the time there was, without gap or overlap."""
    clock = Clock()
    log = EventLog(clock)
    for cause, duration in blocks:
        with log.waiting(0, cause):
            clock.now += duration
    edges = [0.0, *(wait.t1 for wait in log.waits)]
    assert [wait.t0 for wait in log.waits] == edges[:-1] and edges[-1] == clock.now
    assert [wait.cause for wait in log.waits] == [cause for cause, duration in blocks if duration > 0]
