"""Oracle: finish times of work that is slowed down, or stands still, midway."""

from __future__ import annotations

import itertools

import pytest
import simpy
from hypothesis import given
from hypothesis import strategies as st

from sim.cluster.live_gpu import LiveGpu
from sim.cluster.network import Network
from sim.events import EventLog


@pytest.fixture
def env():
    return simpy.Environment()


@pytest.fixture
def network(env):
    return Network(env, EventLog(lambda: env.now))


def switch(env, live, *changes):
    """Tell *live* at each (time, active) whether a collective runs."""
    for time, active in changes:
        env.timeout(time).callbacks.append(lambda _, active=active: live.set_communicating(active))


def ends(env, live, *durations):
    end_times = []

    def compute():
        for duration in durations:
            yield live.compute(duration).done
            end_times.append(env.now)

    env.run(env.process(compute()))
    return end_times


def test_compute_alone_takes_its_time(env, network):
    assert ends(env, LiveGpu(network, "g", 2.0, None), 3.0, 0.0, 1.0) == [3.0, 3.0, 4.0]


def test_a_collective_beside_compute_slows_it_down_while_it_lasts(env, network):
    """Twice slower from 1 s to 5 s: 1 s of work before, 2 s worth in the 4 s, 1 s after."""
    live = LiveGpu(network, "g", 2.0, None)
    switch(env, live, (1.0, True), (5.0, False))
    assert ends(env, live, 4.0) == [6.0]


def test_work_that_begins_beside_a_collective_begins_slow(env, network):
    live = LiveGpu(network, "g", 1.25, None)
    switch(env, live, (0.0, True))
    assert ends(env, live, 1.0, 2.0) == [1.25, 3.75]


def test_a_collective_between_two_segments_slows_neither(env, network):
    live = LiveGpu(network, "g", 2.0, None)
    switch(env, live, (1.0, True), (1.0, False))
    assert ends(env, live, 1.0, 1.0) == [1.0, 2.0]


def test_compute_stands_still_from_a_kernel_that_does_not_end_before_the_collective(env, network):
    """Patience of 0.5 s: beside collectives from 1 to 3 s and from 3 to 5 s half a second each is done, 3 s of 5 are left then."""
    live = LiveGpu(network, "g", 1.0, None, patience=0.5)
    switch(env, live, (1.0, True), (3.0, False), (3.0, True), (5.0, False))
    assert ends(env, live, 5.0) == [pytest.approx(8.0)]
    assert live.stalled_spans == [(1.5, 3.0), (3.5, 5.0)]


def test_a_collective_that_is_over_before_holds_nothing_up(env, network):
    """Patience of 0.5 s outlasts one of 0.4 s, and is counted anew in the next."""
    live = LiveGpu(network, "g", 2.0, None, patience=0.5)
    switch(env, live, (1.0, True), (1.4, False), (1.6, True), (2.0, False))
    assert ends(env, live, 2.0) == [pytest.approx(2.4)]


def test_a_decoder_on_the_same_gpu_gets_half(env, network):
    """Compute of 4 s and decoding of 1 s share from the start: decoding ends at 2 s, compute has 3 s left."""
    network.add_link("gpu0", 1.0)
    decoding = network.start("decode", 1.0, {"gpu0": 1.0}, cap=1.0)
    assert ends(env, LiveGpu(network, "g", 1.0, "gpu0"), 4.0) == [5.0]
    assert decoding.history == [(0.0, "gpu0")]


def test_a_processor_that_trains_shares_its_cores_by_weight(env, network):
    """Compute of 2 s beside other work of 3 s with three times its weight on one core: that ends at 4 s, with 1 s of compute to go."""
    network.add_link("cores", 1.0)
    other = network.start("prep", 3.0, {"cores": 1.0}, cap=1.0, weight=3.0)
    assert ends(env, LiveGpu(network, "g", 1.0, None, {"cores": 1.0}, 1.0), 2.0) == [5.0]
    assert other.history == [(0.0, "cores")]


@given(st.floats(0.1, 20), st.lists(st.floats(0.01, 3), max_size=6), st.floats(1, 4))
def test_slowed_down_work_ends_when_its_seconds_are_through(duration, gaps, slowdown):
    """Oracle: full speed and 1/slowdown by turns, added up until the work is done."""
    env = simpy.Environment()
    live = LiveGpu(Network(env, EventLog(lambda: env.now)), "g", slowdown, None)
    turns = list(itertools.accumulate(gaps))
    switch(env, live, *((time, number % 2 == 0) for number, time in enumerate(turns)))
    left, now, speed = duration, 0.0, 1.0
    for time in turns:
        if left <= (time - now) * speed:
            break
        left -= (time - now) * speed
        now, speed = time, (1.0 / slowdown if speed == 1.0 else 1.0)
    assert ends(env, live, duration) == [pytest.approx(now + left / speed)]
