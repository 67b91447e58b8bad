"""Oracles: finish times worked by hand, and who is asked to be rated when."""

from __future__ import annotations

import math

import pytest

from sim.cluster import network as network_module
from sim.cluster.fairshare import max_min_rates
from sim.cluster.network import all_done
from tests.cluster.bench import Bench


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


def test_what_shares_nothing_takes_its_time():
    """Oracle: the same as an activity with a cap of 1 and no link; it is in progress until then, and logged in the same way."""
    logs = []
    for begin in (lambda net: net.start_unshared("x", 2.5), lambda net: net.start("x", 2.5, {}, cap=1.0)):
        bench = Bench(keep_rates=True)
        ended = []
        activity = begin(bench.network)
        activity.done.callbacks.append(lambda _, bench=bench, ended=ended: ended.append(bench.env.now))
        bench.env.run(until=1.0)
        assert bench.network.state() == (("x", 1.5),)
        assert activity.volume_left(1.0) == 1.5
        bench.env.run()
        assert (ended, bench.network.state()) == ([2.5], ())
        logs.append(bench.events.rates)
    assert logs[0] == logs[1]


def test_the_event_of_an_activity_fires_without_keeping_it_alive():
    """An event that had the activity as its value would be a circle of references: the activity has its event."""
    bench = Bench(a=1.0)
    ended = [bench.network.start("x", volume, {"a": 1.0}) for volume in (0.0, 1.0)]
    bench.env.run(all_done(bench.env, ended))
    assert [activity.done.processed for activity in ended] == [True, True] and bench.env.now == 1.0
    assert [activity.done.value for activity in ended] == [None, None]


def test_together_waits_for_the_last():
    bench = Bench(a=2.0)
    bench.env.run(all_done(bench.env, [bench.network.start(f"x{n}", float(n), {"a": 1.0}) for n in (1, 2, 3)]))
    assert bench.env.now == 3.0
    bench.env.run(all_done(bench.env, []))
    assert bench.env.now == 3.0


def test_left_counts_down_between_changes():
    bench = Bench(a=10.0)
    activity = bench.network.start("x", 30.0, {"a": 1.0})
    assert activity.volume_left(0.0) == 30.0
    bench.env.run(until=2.0)
    assert (activity.volume_left(2.0), activity.volume_left(2.5), activity.volume_left(9.0)) == (10.0, 5.0, 0.0)
    bench.env.run()
    assert activity.volume_left(9.0) == 0.0


def test_history_tells_when_each_bottleneck_began_to_bind():
    """x is held by its own cap, from 1 s by the link it shares, from 3 s by its cap again."""
    bench = Bench(a=10.0)
    bench.start("x", 100.0, {"a": 1.0}, cap=6.0)
    bench.start("y", 10.0, {"a": 1.0}, at=1.0)
    bench.run()
    assert bench.activities["x"].history == [(0.0, ""), (1.0, "a"), (3.0, "")]
    assert bench.activities["y"].history == [(1.0, "a")]
    assert list(bench.activities["x"].bottlenecks(7.0)) == [("", 0.0, 1.0), ("a", 1.0, 3.0), ("", 3.0, 7.0)]


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


def test_an_activity_that_shares_nothing_takes_time():
    with pytest.raises(ValueError, match="duration of x"):
        Bench().network.start_unshared("x", 0.0)


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


def test_a_question_that_recurs_is_answered_once_per_capacity(rated):
    """Two readers of one disk, three rounds; the disk is slower in the third."""
    bench, disk = Bench(a=4.0), {"a": 1.0}
    for begin in (0.0, 10.0, 20.0):
        bench.start(f"x{begin}", 4.0, disk, at=begin)
        bench.start(f"y{begin}", 8.0, disk, at=begin)
    bench.capacity_at(15.0, "a", 2.0)
    assert [time for time, _ in bench.run()] == [2.0, 3.0, 12.0, 13.0, 24.0, 26.0]
    assert rated == [2, 1, 2, 1]


def test_one_timer_runs_for_each_finish():
    """x ends at 10 s, six times interrupted by others that end before: 6 timers for them, and one for x."""
    bench = Bench(own=1.0, other=1.0)
    bench.start("x", 10.0, {"own": 1.0})
    for begin in range(6):
        bench.start(f"y{begin}", 0.5, {"other": 1.0}, at=float(begin))
    timers = []
    timeout = bench.env.timeout
    bench.env.timeout = lambda delay, value=None: timers.append(value) or timeout(delay, value)
    bench.run()
    assert sorted(value for value in timers if value is not None) == [0.5, 1.5, 2.5, 3.5, 4.5, 5.5, 10.0]


def test_ends_that_differ_by_rounding_only_are_one_instant(rated):
    """0.3 / 0.1 is a trifle less than 3 / 1."""
    bench = Bench(a=10.0)
    bench.start("x", 0.3, {"a": 1.0}, cap=0.1)
    bench.start("y", 3.0, {"a": 1.0}, cap=1.0)
    bench.start("z", 40.0, {"a": 1.0}, cap=2.0)
    (first, _), (second, _), _ = bench.run()
    assert 0.3 / 0.1 < 3.0 and first == second == pytest.approx(3.0)
    assert rated == [3, 1]


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
