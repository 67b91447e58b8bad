"""Oracles: finish times worked by hand, processor sharing in closed form, and conservation read from the log of rates."""

from __future__ import annotations

import itertools
import math
from collections import defaultdict

import pytest
import simpy
from hypothesis import given
from hypothesis import strategies as st

from sim.cluster import network as network_module
from sim.cluster.fairshare import max_min_rates
from sim.cluster.network import Network, together
from sim.events import EventLog
from tests.cluster.systems import LINKS, amounts, capacities, caps, counts, usages


class Bench:
    """A network on which activities start at set times, with ``log == [(t, what)]`` of what ended when."""

    def __init__(self, keep_rates=False, **capacity):
        self.env = simpy.Environment()
        self.events = EventLog(lambda: self.env.now, keep_rates)
        self.network = Network(self.env, self.events)
        self.log = []
        self.activities = {}
        for link, value in capacity.items():
            self.network.add_link(link, value)

    def start(self, name, volume, usage, at=0.0, **keys):
        def run():
            yield self.env.timeout(at)
            activity = self.activities[name] = self.network.start(name, volume, usage, **keys)
            yield activity.done
            self.log.append((self.env.now, name))

        self.env.process(run())

    def capacity_at(self, time, link, capacity):
        self.env.timeout(time).callbacks.append(lambda _: self.network.set_capacity(link, capacity))

    def cap_at(self, time, name, cap):
        """Cap an activity at *time*, if it has begun by then."""
        self.env.timeout(time).callbacks.append(lambda _: name in self.activities and self.network.set_cap(self.activities[name], cap))

    def run(self):
        self.env.run()
        return self.log


@pytest.fixture
def rated(monkeypatch):
    """How many activities each call of the solver was asked to rate."""
    calls = []

    def count(flows, capacity):
        calls.append(len(flows))
        return max_min_rates(flows, capacity)

    monkeypatch.setattr(network_module, "max_min_rates", count)
    return calls


# --- worked by hand --------------------------------------------------------------------------------------------------


def test_one_activity_has_the_link_to_itself():
    bench = Bench(a=4.0)
    bench.start("x", 10.0, {"a": 1.0})
    assert bench.run() == [(2.5, "x")]


def test_two_activities_share_while_both_run():
    """Half the link each until x has its 8 units at 2 s; then all of it for the 4 that y has left."""
    bench = Bench(a=8.0)
    bench.start("x", 8.0, {"a": 1.0})
    bench.start("y", 12.0, {"a": 1.0})
    assert bench.run() == [(2.0, "x"), (2.5, "y")]


def test_a_later_one_slows_the_earlier_down():
    """x: 10 units in the first second, 5/s until y ends at 3 s, then its last 10 at 10/s."""
    bench = Bench(a=10.0)
    bench.start("x", 30.0, {"a": 1.0})
    bench.start("y", 10.0, {"a": 1.0}, at=1.0)
    assert bench.run() == [(3.0, "y"), (4.0, "x")]


def test_what_a_cap_leaves_goes_to_the_other():
    bench = Bench(a=10.0)
    bench.start("capped", 4.0, {"a": 1.0}, cap=2.0)
    bench.start("other", 16.0, {"a": 1.0})
    assert bench.run() == [(2.0, "capped"), (2.0, "other")]


def test_weights_share_in_proportion():
    bench = Bench(a=9.0)
    bench.start("light", 3.0, {"a": 1.0})
    bench.start("heavy", 12.0, {"a": 1.0}, weight=2.0)
    assert bench.run() == [(1.0, "light"), (1.0 + 6.0 / 9.0, "heavy")]


def test_three_activities_on_two_links():
    """The case SimGrid was first checked on: x at 8 on a, y and z at 2 on b."""
    bench = Bench(a=10.0, b=4.0)
    bench.start("x", 10.0, {"a": 1.0})
    bench.start("y", 10.0, {"a": 1.0, "b": 1.0})
    bench.start("z", 10.0, {"b": 1.0})
    assert bench.run() == [(1.25, "x"), (5.0, "y"), (5.0, "z")]


def test_a_ring_that_crosses_a_link_twice():
    """Beside a copy each crossing gets a third of the link; alone the ring gets half of the link per crossing."""
    bench = Bench(a=9.0)
    bench.start("ring", 12.0, {"a": 2.0})
    bench.start("copy", 6.0, {"a": 1.0})
    assert bench.run() == [(2.0, "copy"), (2.0 + 6.0 / 4.5, "ring")]


def test_a_new_cap_counts_from_now_on():
    """10 units at 10/s, then 2/s: 20 more take 10 s."""
    bench = Bench(a=10.0)
    bench.start("x", 30.0, {"a": 1.0})
    bench.cap_at(1.0, "x", 2.0)
    assert bench.run() == [(11.0, "x")]


def test_a_new_cap_frees_the_link_for_others():
    """y: 5 in the first second, then 8/s beside x at 2/s: 16 more take 2 s."""
    bench = Bench(a=10.0)
    bench.start("x", 50.0, {"a": 1.0})
    bench.start("y", 21.0, {"a": 1.0})
    bench.cap_at(1.0, "x", 2.0)
    assert bench.run()[0] == (3.0, "y")


def test_a_cap_of_zero_pauses():
    """2 s of work with a pause from 1 s to 5 s; nothing is lost."""
    bench = Bench(keep_rates=True, a=10.0)
    bench.start("x", 20.0, {"a": 1.0})
    bench.cap_at(1.0, "x", 0.0)
    bench.cap_at(5.0, "x", math.inf)
    assert bench.run() == [(6.0, "x")]
    assert [(change.t, change.rate) for change in bench.events.rates] == [(0.0, 10.0), (1.0, 0.0), (5.0, 10.0), (6.0, 0.0)]


def test_a_cap_set_after_the_end_changes_nothing():
    bench = Bench(a=10.0)
    bench.start("x", 10.0, {"a": 1.0})
    bench.cap_at(2.0, "x", 1.0)
    assert bench.run() == [(1.0, "x")]


def test_a_new_capacity_counts_from_now_on():
    """10 units at 10/s, then 5/s."""
    bench = Bench(a=10.0)
    bench.start("x", 30.0, {"a": 1.0})
    bench.capacity_at(1.0, "a", 5.0)
    assert bench.run() == [(5.0, "x")]


def test_nothing_to_do_takes_no_time():
    bench = Bench(a=1.0)
    bench.start("nothing", 0.0, {"a": 1.0}, at=3.0)
    bench.start("something", 1.0, {"a": 1.0}, at=3.0)
    assert bench.run() == [(3.0, "nothing"), (4.0, "something")]


def test_the_event_gives_the_activity():
    bench = Bench(a=1.0)
    ended = [bench.network.start("x", volume, {"a": 1.0}) for volume in (0.0, 1.0)]
    bench.env.run(together(bench.env, ended))
    assert [activity.done.value for activity in ended] == ended and bench.env.now == 1.0


def test_together_waits_for_the_last():
    bench = Bench(a=2.0)
    bench.env.run(together(bench.env, [bench.network.start(f"x{n}", float(n), {"a": 1.0}) for n in (1, 2, 3)]))
    assert bench.env.now == 3.0
    bench.env.run(together(bench.env, []))
    assert bench.env.now == 3.0


def test_left_counts_down_between_changes():
    bench = Bench(a=10.0)
    activity = bench.network.start("x", 30.0, {"a": 1.0})
    assert activity.left(0.0) == 30.0
    bench.env.run(until=2.0)
    assert (activity.left(2.0), activity.left(2.5), activity.left(9.0)) == (10.0, 5.0, 0.0)
    bench.env.run()
    assert activity.left(9.0) == 0.0


def test_history_tells_when_each_bottleneck_began_to_bind():
    """x is held by its own cap, from 1 s by the link it shares, from 3 s by its cap again."""
    bench = Bench(a=10.0)
    bench.start("x", 100.0, {"a": 1.0}, cap=6.0)
    bench.start("y", 10.0, {"a": 1.0}, at=1.0)
    bench.run()
    assert bench.activities["x"].history == [(0.0, ""), (1.0, "a"), (3.0, "")]
    assert bench.activities["y"].history == [(1.0, "a")]


def test_state_is_what_is_in_progress_and_the_seconds_it_has_left():
    """An activity of this very instant has no rate yet: its volume stands, negative, for the seconds it cannot know."""
    bench = Bench(a=10.0)
    bench.start("x", 30.0, {"a": 1.0})
    bench.env.run(until=1.0)
    assert bench.network.state() == (("x", 2.0),)
    bench.network.start("y", 7.0, {"a": 1.0})
    assert bench.network.state() == (("x", 2.0), ("y", -7.0))
    bench.env.run(until=2.0)
    assert bench.network.state() == (("x", pytest.approx(15.0 / 5.0)), ("y", pytest.approx(2.0 / 5.0)))
    bench.env.run()
    assert bench.network.state() == ()


# --- refused ---------------------------------------------------------------------------------------------------------


def test_what_makes_no_sense_is_refused():
    bench = Bench(a=1.0)
    for refused, sentence in (
        (lambda: bench.network.add_link("b", 0.0), "capacity of b (=0.0) must be > 0"),
        (lambda: bench.network.add_link("b", math.nan), "capacity of b (=nan) must be > 0"),
        (lambda: bench.network.set_capacity("a", -1.0), "capacity of a (=-1.0) must be > 0"),
        (lambda: bench.network.start("x", -1.0, {"a": 1.0}), "volume of x (=-1.0) must be >= 0"),
        (lambda: bench.network.start("x", math.nan, {"a": 1.0}), "volume of x (=nan) must be >= 0"),
        (lambda: bench.network.start("x", 1.0, {}), "x: uses no resource and has no cap, so it would take no time"),
        (lambda: bench.network.start("x", 1.0, {"a": 0.0}), "x: uses no resource and has no cap, so it would take no time"),
    ):
        with pytest.raises(ValueError) as error:
            refused()
        assert str(error.value) == sentence
    assert bench.network.state() == ()


def test_a_link_that_nobody_described_is_an_error_and_leaves_nothing_behind():
    bench = Bench(a=1.0)
    with pytest.raises(KeyError, match="b"):
        bench.network.start("x", 1.0, {"b": 1.0})
    assert bench.network.state() == ()


# --- who is rated when -----------------------------------------------------------------------------------------------


def test_only_what_is_connected_to_a_change_is_rated_again(rated):
    """Five activities on island a-b, joined through one that crosses both; three on island c."""
    bench = Bench(a=10.0, b=10.0, c=10.0)
    for number, usage in enumerate(
        [{"a": 1.0}, {"a": 1.0}, {"a": 1.0, "b": 1.0}, {"b": 1.0}, {"b": 1.0}, {"c": 1.0}, {"c": 1.0}, {"c": 1.0}]
    ):
        bench.network.start(f"x{number}", 1000.0, usage)
    bench.env.run(until=1.0)
    bench.network.start("late", 1.0, {"c": 1.0})
    bench.env.run(until=1.0 + 1.0)
    bench.network.set_capacity("a", 20.0)
    bench.env.run(until=3.0)
    assert rated == [8, 4, 3, 5]


def test_all_changes_of_one_instant_are_taken_together(rated):
    """100 begin at 0 s: one rating. They end together at 10 s, where 50 others begin: one more."""
    bench = Bench(a=10.0)
    for number in range(100):
        bench.start(f"x{number}", 1.0, {"a": 1.0})

    def follow():
        yield bench.activities["x0"].done
        for number in range(50):
            bench.network.start(f"y{number}", 1.0, {"a": 1.0})

    bench.env.run(until=5.0)
    bench.env.process(follow())
    bench.run()
    assert rated == [100, 50] and bench.env.now == pytest.approx(15.0)


def test_a_cap_set_back_at_once_changes_nothing():
    bench = Bench(keep_rates=True, a=10.0)
    bench.start("x", 20.0, {"a": 1.0})
    for cap in (1.0, 2.0, math.inf):
        bench.cap_at(1.0, "x", cap)
    assert bench.run() == [(2.0, "x")]
    assert [change.t for change in bench.events.rates] == [0.0, 2.0]


def test_an_ended_wait_does_not_end_anything_early():
    """The planned end moves from 2 s to 15.5 s, to 2.09 s and to 14.6 s; the wake-ups of earlier plans do nothing."""
    bench = Bench(a=10.0)
    bench.start("x", 20.0, {"a": 1.0})
    bench.cap_at(0.5, "x", 1.0)
    bench.cap_at(0.6, "x", 10.0)
    bench.cap_at(0.7, "x", 1.0)
    # 5 + 0.1 + 1 units by 0.7 s
    assert bench.run() == [(pytest.approx(0.7 + 13.9), "x")]


# --- many ------------------------------------------------------------------------------------------------------------


def test_a_thousand_at_once_end_in_the_order_of_their_volume():
    """Processor sharing in closed form: the k-th smallest of n ends when sum(min(v_j, v_k)) has been served."""
    volumes = [float((7 * number) % 1009 + 1) for number in range(1000)]
    bench = Bench(a=50.0)
    for number, volume in enumerate(volumes):
        bench.start(number, volume, {"a": 1.0})
    log = bench.run()
    assert [name for _, name in log] == sorted(range(1000), key=lambda number: volumes[number])
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


@given(scenes)
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
