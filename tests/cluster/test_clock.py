"""Do events happen in SimPy's order, at its times, and fail as they do there? Oracle: `simpy.Environment` itself."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Generator

import pytest
import simpy
from hypothesis import given
from hypothesis import strategies as st

from sim.cluster.clock import Clock

Plans = list[tuple[float, list[float]]]


def played(env: simpy.Environment, plans: Plans, end: float, step: bool) -> list[tuple[int, float]]:
    """Processes that each begin after a while and pause now and then; what was seen until *end*."""
    seen: list[tuple[int, float]] = []

    def process(number: int, begin: float, pauses: list[float]) -> Generator[simpy.Event, object, None]:
        yield env.timeout(begin)
        for pause in pauses:
            seen.append((number, env.now))
            yield env.all_of([env.timeout(pause), env.timeout(pause / 2)])
        seen.append((number, env.now))

    for number, (begin, pauses) in enumerate(plans):
        env.process(process(number, begin, pauses))
    last = env.timeout(end)
    if step:
        while not last.processed:
            env.step()
    elif isinstance(env, Clock):
        env.run_to(last)
    else:
        env.run(until=last)
    return [*seen, (-1, env.now)]


times = st.sampled_from([0.0, 0.5, 1.0, 1.5, 3.0])


@given(plans=st.lists(st.tuples(times, st.lists(times, max_size=4)), max_size=5), end=times)
def test_everything_happens_as_in_simpy(plans: Plans, end: float) -> None:
    expected = played(simpy.Environment(), plans, end, step=False)
    assert played(Clock(), plans, end, step=False) == expected
    assert played(Clock(), plans, end, step=True) == expected


def test_a_process_that_fails_ends_the_run() -> None:
    clock = Clock()

    def fails() -> Generator[simpy.Event, object, None]:
        yield clock.timeout(1.0)
        raise KeyError("lost")

    clock.process(fails())
    with pytest.raises(KeyError, match="lost"):
        clock.run_to(clock.timeout(2.0))
    assert clock.now == 1.0


def test_an_end_that_never_comes_is_an_error() -> None:
    clock = Clock()
    with pytest.raises(RuntimeError, match="the end was not reached"):
        clock.run_to(clock.event())


def test_a_closed_clock_is_freed_with_its_processes() -> None:
    """A process waits for an event that only it knows, and would keep itself alive; one that fails when it is closed does no harm."""
    clock, left = Clock(), []

    def waits() -> Generator[simpy.Event, object, None]:
        event = clock.event()
        try:
            yield event
        finally:
            left.append(clock.now)

    def protests() -> Generator[simpy.Event, object, None]:
        try:
            yield clock.timeout(5.0)
        finally:
            raise KeyError("lost")

    processes = [weakref.ref(clock.process(play())) for play in (waits, protests, waits)]
    clock.run_to(clock.timeout(1.0))
    assert all(process() is not None for process in processes)
    collects = gc.isenabled()
    gc.disable()
    try:
        clock.close()
        assert left == [1.0, 1.0] and [process() for process in processes] == [None] * 3
    finally:
        if collects:
            gc.enable()
