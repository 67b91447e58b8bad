"""Oracles: processor sharing in closed form, and conservation on random scenes, read from the log of rates."""

from __future__ import annotations

import itertools
from collections import defaultdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.cluster.bench import Bench
from tests.cluster.systems import LINKS, amounts, capacities, caps, counts, usages
from tests.examples import examples

# --- many ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [250, pytest.param(1000, marks=pytest.mark.nightly)])
def test_hundreds_at_once_end_in_the_order_of_their_volume(count):
    """Processor sharing in closed form: the k-th smallest of n ends when sum(min(v_j, v_k)) has been served."""
    volumes = [float((7 * number) % 1009 + 1) for number in range(count)]
    bench = Bench(a=50.0)
    for number, volume in enumerate(volumes):
        bench.start(number, volume, {"a": 1.0})
    log = bench.run()
    assert [name for _, name in log] == sorted(range(count), key=lambda number: volumes[number])
    for time, name in log[::37]:
        assert time == pytest.approx(sum(min(volume, volumes[name]) for volume in volumes) / 50.0, rel=1e-9)


def test_thousands_one_after_another_keep_the_time():
    """4 streams of 1000 activities of equal volume on one link: each round takes 4 v / C, and no rounding piles up."""
    bench = Bench(a=3.0)

    def stream():
        for _ in range(1000):
            yield bench.network.start("x", 0.1, {"a": 1.0}).done
            bench.log.append(bench.env.now)

    for _ in range(4):
        bench.env.process(stream())
    log = bench.run()
    assert log == sorted(log) and len(log) == 4000
    assert log == pytest.approx([0.4 / 3.0 * (place // 4 + 1) for place in range(4000)], rel=1e-9)


def test_late_in_a_long_run_nothing_gets_stuck():
    """At 1e7 s a byte at 1e12 bytes/s takes less than the spacing of floating-point times."""
    bench = Bench(a=1e12)
    bench.start("byte", 1.0, {"a": 1.0}, at=1e7)
    bench.start("long", 1e12, {"a": 1.0}, at=1e7)
    assert bench.run() == [(1e7, "byte"), (1e7 + 1.0, "long")]


# --- properties ------------------------------------------------------------------------------------------------------

times = st.sampled_from([0.0, 0.0, 1.0, 2.0]) | st.floats(0, 10)


@st.composite
def starts(draw):
    """(start, volume, usage, cap, weight) of one activity."""
    usage = draw(usages(least=0))
    return draw(times), draw(st.just(0.0) | amounts), usage, draw(caps if usage else amounts), draw(counts)


changes = st.lists(st.tuples(times, st.sampled_from(LINKS), amounts), max_size=3)
cap_changes = st.lists(st.tuples(times, st.integers(0, 5), amounts), max_size=3)
scenes = st.tuples(st.lists(starts(), min_size=1, max_size=6), capacities, changes, cap_changes)


def play(scene):
    activities, capacity, new_capacities, new_caps = scene
    bench = Bench(keep_rates=True, **capacity)
    for number, (start, volume, usage, cap, weight) in enumerate(activities):
        bench.start(f"x{number}", volume, usage, at=start, cap=cap, weight=weight)
    for time, link, value in new_capacities:
        bench.capacity_at(time, link, value)
    for time, number, value in new_caps:
        bench.cap_at(time, f"x{number}", value)
    bench.run()
    return bench


def intervals(changes):
    """(start, end, rate by activity, changes in force) between each two instants of a log of rates."""
    rate, usage = {}, {}
    by_time = [(time, list(group)) for time, group in itertools.groupby(changes, key=lambda change: change.t)]
    for (time, group), following in itertools.zip_longest(by_time, by_time[1:]):
        for change in group:
            rate[change.name], usage[change.name] = change.rate, dict(change.usage)
        if following:
            yield time, following[0], dict(rate), usage


@examples(20, None, scenes)
def test_every_activity_gets_its_volume_and_no_link_carries_too_much(scene):
    """Conservation: the integral of the logged rates is the volume; at each instant the loads fit the capacity of that time."""
    activities, capacity, new_capacities, _ = scene
    bench = play(scene)
    assert sorted(name for _, name in bench.log) == sorted(f"x{number}" for number in range(len(activities)))
    moved = defaultdict(float)
    for start, end, rate, usage in intervals(bench.events.rates):
        now = dict(capacity)
        # of two changes of one link at one instant the later in the list is made later
        for _, link, value in sorted((change for change in new_capacities if change[0] <= start), key=lambda change: change[0]):
            now[link] = value
        for name, speed in rate.items():
            moved[name] += speed * (end - start)
        for link, most in now.items():
            assert sum(usage[name].get(link, 0.0) * speed for name, speed in rate.items()) <= most * (1 + 1e-9)
    for number, (_, volume, _, _, _) in enumerate(activities):
        assert moved[f"x{number}"] == pytest.approx(volume, rel=1e-9, abs=1e-9)


@given(scenes)
def test_the_same_inputs_give_the_same_log(scene):
    one, other = play(scene), play(scene)
    assert one.log == other.log and one.events.rates == other.events.rates


@given(usages(), amounts, capacities, st.sampled_from(LINKS), st.floats(1, 100))
def test_more_bandwidth_never_slows_a_single_activity(usage, volume, capacity, link, factor):
    """Alone it takes volume / min(capacity / load); a wider link can only help."""
    ends = []
    for widened in (1.0, factor):
        bench = Bench(**{name: value * (widened if name == link else 1.0) for name, value in capacity.items()})
        bench.start("x", volume, usage)
        ends.append(bench.run()[0][0])
    assert ends[0] == pytest.approx(volume / min(capacity[name] / load for name, load in usage.items()))
    assert ends[1] <= ends[0]


@given(st.lists(amounts, min_size=1, max_size=8), amounts)
def test_a_link_that_is_never_idle_serves_all_in_the_same_time(volumes, capacity):
    """Work conservation: however it is shared, the last ends when all volumes are through."""
    bench = Bench(a=capacity)
    for number, volume in enumerate(volumes):
        bench.start(number, volume, {"a": 1.0}, weight=1.0 + number)
    assert bench.run()[-1][0] == pytest.approx(sum(volumes) / capacity)
