"""When do operations begin and end, and what do they say held them back? Oracles: by hand, and a recurrence in place of events."""

from __future__ import annotations

import heapq
from typing import NamedTuple

import pytest
import simpy
from hypothesis import given
from hypothesis import strategies as st

from sim.cluster.network import Network
from sim.events import Cause, EventLog
from sim.training.communicator import Communicator, FluidCost, LimitPiece, Operation, play_on_network

SECONDS = st.integers(0, 20).map(lambda tenths: tenths / 8)


class Planned(NamedTuple):
    """An operation to be played: seconds between this one and the one before for each member, its members' lags, and its length."""

    gaps: tuple[float, float]
    lags: tuple[float, float]
    delay: float
    lasts: float


def planned() -> st.SearchStrategy[Planned]:
    pair = st.tuples(SECONDS, SECONDS)
    return st.builds(Planned, pair, pair, SECONDS, SECONDS)


def played(plan: list[Planned], streams: int) -> list[tuple[float, float]]:
    """Return when each operation of *plan* began and ended."""
    env = simpy.Environment()
    operations = [Operation(env, 2) for _ in plan]
    ends = [0.0] * len(plan)

    def play(operation: Operation, _: int):
        yield operation.all_ready
        operation.begin = env.now
        yield env.timeout(plan[operations.index(operation)].lasts)
        ends[operations.index(operation)] = env.now

    communicator = Communicator(env, play, streams)

    def member(number: int):
        for operation, each in zip(operations, plan, strict=True):
            yield env.timeout(each.gaps[number])
            if operation.arrive(each.lags[number]):
                operation.allow_begin(each.delay)
                communicator.enter(operation)

    for number in range(2):
        env.process(member(number))
    env.run()
    assert all(operation.is_over and not operation.missing_members for operation in operations)
    return [(operation.begin, end) for operation, end in zip(operations, ends, strict=True)]


@given(st.lists(planned(), min_size=1, max_size=8), st.integers(1, 3))
def test_operations_begin_when_all_have_come_and_a_stream_is_free(plan: list[Planned], streams: int) -> None:
    """Recurrence: begin(k) = max(slowest rank of the members + delay, the stream that is free first), in order."""
    free, came, expected = [0.0] * streams, [0.0, 0.0], []
    for each in plan:
        came = [time + gap for time, gap in zip(came, each.gaps, strict=True)]
        ready = max(time + lag for time, lag in zip(came, each.lags, strict=True)) + each.delay
        begin = max(ready, heapq.heappop(free))
        heapq.heappush(free, begin + each.lasts)
        expected.append((begin, begin + each.lasts))
    assert played(plan, streams) == expected


def test_an_operation_entered_before_its_members_have_come_keeps_its_turn() -> None:
    """By hand: the first is entered first and comes at 5 s; the second has come at 1 s and waits behind it."""
    env = simpy.Environment()
    begun = []

    def play(operation: Operation, _: int):
        if not operation.all_ready.processed:
            yield operation.all_ready
        begun.append((operations.index(operation), env.now))
        yield env.timeout(1.0)

    operations = [Operation(env, 1), Operation(env, 1)]
    communicator = Communicator(env, play)
    for operation in operations:
        communicator.enter(operation)

    def comes(number: int, time: float):
        yield env.timeout(time)
        operations[number].arrive()
        operations[number].allow_begin()

    for number, time in enumerate((5.0, 1.0)):
        env.process(comes(number, time))
    env.run()
    assert begun == [(0, 5.0), (1, 6.0)]


def test_whoever_waits_for_an_end_goes_on_at_once_where_it_has_come() -> None:
    """By hand: an operation from 0 to 1 s; two wait for it from 0.5 s on, one asks at 3 s."""
    env = simpy.Environment()
    went_on = []

    def play(operation: Operation, _: int):
        yield operation.all_ready
        yield env.timeout(1.0)

    operation = Operation(env, 1)
    operation.arrive()
    operation.allow_begin()
    Communicator(env, play).enter(operation)

    def waits(since: float):
        yield env.timeout(since)
        yield from operation.until_over()
        went_on.append(env.now)

    for since in (0.5, 0.5, 3.0):
        env.process(waits(since))
    env.run()
    assert went_on == [1.0, 1.0, 3.0]


def fluid(volume: float) -> FluidCost:
    """Return *volume* units at 2 a second over a wire, after 1 s."""
    return FluidCost(1.0, volume, 2.0, {"wire": 1.0}, Cause.INTERCONNECT, "its own pace")


def test_pieces_tile_an_operation_and_name_the_link_that_binds() -> None:
    """By hand: 10 units at 2 a second after 1 s; from 3 to 5 s another flow takes half of a link of 2, so that 6 units are left at 3 s,
    4 at 5 s, and the end is at 7 s.
    """
    env = simpy.Environment()
    network = Network(env, EventLog(lambda: env.now))
    network.add_link("wire", 2.0)
    operation = Operation(env, 1)
    operation.arrive()

    def other():
        yield env.timeout(3.0)
        yield network.start("other", 2.0, {"wire": 1.0}).done

    env.process(other())
    meanings = {"wire": (Cause.NETWORK, "the wire")}
    env.process(play_on_network(network, operation, fluid(10.0), "mine", meanings))
    env.run()
    assert env.now == pytest.approx(7.0)
    assert operation.pieces[0].t0 == 0.0 and operation.pieces[-1].t1 == env.now
    assert all(before.t1 == after.t0 for before, after in zip(operation.pieces, operation.pieces[1:], strict=False))
    assert LimitPiece(Cause.NETWORK, "the wire", 3.0, 5.0) in operation.pieces


@pytest.mark.parametrize(("volume", "end"), [(10.0, 6.0), (0.0, 1.0)])
def test_what_nothing_holds_back_is_one_piece_of_its_own_cause(volume: float, end: float) -> None:
    """By hand: 1 s of launch and 5 s of moving, below what the wire carries; nothing that moves takes the launch alone."""
    env = simpy.Environment()
    network = Network(env, EventLog(lambda: env.now))
    network.add_link("wire", 100.0)
    operation = Operation(env, 1)
    env.process(play_on_network(network, operation, fluid(volume), "mine", {}))
    env.run()
    assert operation.pieces == (LimitPiece(Cause.INTERCONNECT, "its own pace", 0.0, end),)
