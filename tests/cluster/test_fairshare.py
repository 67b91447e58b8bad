"""Each worked case writes its system of inequalities first; the properties are those that define max-min fairness."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.cluster.fairshare import Flow, FlowShare, max_min_rates
from tests.cluster.bench import Bench
from tests.cluster.systems import amounts, systems


def rates(flows, capacity):
    return [share.rate for share in max_min_rates(flows, capacity)]


# --- worked cases ----------------------------------------------------------------------------------------------------


def test_one_flow_takes_the_whole_link():
    # x1 <= 10
    # x1 = 10, held by a
    assert max_min_rates([Flow({"a": 1.0})], {"a": 10.0}) == [FlowShare(10.0, "a")]


@pytest.mark.parametrize(
    ("cap", "share"),
    [
        (10.5, FlowShare(10.0, "a")),  # a little above the link: the link holds the flow
        (9.5, FlowShare(9.5, "")),  # a little below: its own cap does
        (10.0, FlowShare(10.0, "")),  # the same: the cap, which is met without the link
    ],
)
def test_a_lone_flow_with_a_cap_near_its_link(cap, share):
    # x1 <= 10, x1 <= cap, alone and beside a flow on a link of its own (x2 <= 4)
    # x1 = min(10, cap); 190 units end at 190 / x1
    flow = Flow({"a": 1.0}, cap=cap)
    assert max_min_rates([flow], {"a": 10.0}) == [share]
    assert rates([flow, Flow({"b": 1.0})], {"a": 10.0, "b": 4.0}) == [share.rate, 4.0]
    bench = Bench(a=10.0)
    bench.start("one", 190.0, {"a": 1.0}, cap=cap)
    assert bench.run() == [(19.0 if cap >= 10.0 else 20.0, "one")]


def test_a_lone_flow_with_a_cap_near_the_narrower_of_its_links():
    # 2 x1 <= 10 (a), x1 <= 6 (b), x1 <= cap, with any weight: a level of 5 per unit of rate
    # with a cap of 5.5 a holds it at 5, with one of 4.5 its own cap does
    for weight in (0.25, 1.0, 4.0):
        above, below = (Flow({"b": 1.0, "a": 2.0}, weight, cap) for cap in (5.5, 4.5))
        assert max_min_rates([above], {"a": 10.0, "b": 6.0}) == [FlowShare(5.0, "a")]
        assert max_min_rates([below], {"a": 10.0, "b": 6.0}) == [FlowShare(4.5, "")]


def test_equal_flows_share_equally():
    # x1 + x2 + x3 + x4 <= 10
    # all 2.5
    assert max_min_rates([Flow({"a": 1.0})] * 4, {"a": 10.0}) == [FlowShare(2.5, "a")] * 4


def test_what_a_capped_flow_leaves_goes_to_the_others():
    # x1 + x2 + x3 <= 10, x2 <= 1
    # x2 = 1, the others 4.5; nothing but its own cap holds x2
    assert max_min_rates([Flow({"a": 1.0}), Flow({"a": 1.0}, cap=1.0), Flow({"a": 1.0})], {"a": 10.0}) == [
        FlowShare(4.5, "a"),
        FlowShare(1.0, ""),
        FlowShare(4.5, "a"),
    ]


def test_a_cap_above_the_fair_share_changes_nothing():
    # x1 + x2 <= 10, x2 <= 7
    # both 5
    assert max_min_rates([Flow({"a": 1.0}), Flow({"a": 1.0}, cap=7.0)], {"a": 10.0}) == [FlowShare(5.0, "a")] * 2


def test_a_flow_held_elsewhere_leaves_room():
    # x1 + x2 <= 10, x2 <= 3 (a link of its own)
    # x2 = 3 on b, x1 = 7 on a
    assert max_min_rates([Flow({"a": 1.0}), Flow({"a": 1.0, "b": 1.0})], {"a": 10.0, "b": 3.0}) == [
        FlowShare(7.0, "a"),
        FlowShare(3.0, "b"),
    ]


def test_a_long_path_gets_the_least_of_its_links():
    # x0 + x1 <= 10, x0 + x2 <= 10, x0 + x3 <= 6 (SimGrid's and Bertsekas-Gallager's "parking lot")
    # x0 = x3 = 3, x1 = x2 = 7
    flows = [Flow({"a": 1.0, "b": 1.0, "c": 1.0}), Flow({"a": 1.0}), Flow({"b": 1.0}), Flow({"c": 1.0})]
    assert max_min_rates(flows, {"a": 10.0, "b": 10.0, "c": 6.0}) == [
        FlowShare(3.0, "c"),
        FlowShare(7.0, "a"),
        FlowShare(7.0, "b"),
        FlowShare(3.0, "c"),
    ]


def test_saturations_follow_one_another():
    # x1 + x2 <= 2, x2 + x3 <= 6, x3 + x4 <= 20
    # x1 = x2 = 1, then x3 = 5, then x4 = 15
    flows = [Flow({"a": 1.0}), Flow({"a": 1.0, "b": 1.0}), Flow({"b": 1.0, "c": 1.0}), Flow({"c": 1.0})]
    assert max_min_rates(flows, {"a": 2.0, "b": 6.0, "c": 20.0}) == [
        FlowShare(1.0, "a"),
        FlowShare(1.0, "a"),
        FlowShare(5.0, "b"),
        FlowShare(15.0, "c"),
    ]


def test_links_that_fill_together():
    # x1 + x2 <= 4, x2 + x3 <= 4
    # all 2; x2 names the first of its full links
    flows = [Flow({"a": 1.0}), Flow({"b": 1.0, "a": 1.0}), Flow({"b": 1.0})]
    assert max_min_rates(flows, {"a": 4.0, "b": 4.0}) == [FlowShare(2.0, "a"), FlowShare(2.0, "b"), FlowShare(2.0, "b")]


def test_weights_share_in_proportion():
    # x1 + x2 <= 9, x1 : x2 = 1 : 2
    # 3 and 6
    assert rates([Flow({"a": 1.0}, 1.0), Flow({"a": 1.0}, 2.0)], {"a": 9.0}) == [3.0, 6.0]


def test_a_ring_and_a_copy_on_one_link_get_half_each():
    # x1 + x2 <= 10; the ring's one hop over the link beside a copy
    # 5 and 5
    assert rates([Flow({"a": 1.0, "b": 1.0, "c": 1.0}), Flow({"a": 1.0})], {"a": 10.0, "b": 100.0, "c": 100.0}) == [5.0, 5.0]


def test_a_ring_with_two_hops_over_a_link_counts_twice():
    # 2 x1 + x2 <= 9; two hops of the ring and one copy, each a third of the link
    # x1 = 3 (6 on the link), x2 = 3
    assert rates([Flow({"a": 2.0}), Flow({"a": 1.0})], {"a": 9.0}) == [3.0, 3.0]


def test_equal_loads_on_unlike_resources():
    # 1e9 x1 + x2 <= 3e9 bytes/s of memory: one core copies 1e9 bytes a second, fair beside a copy of as many bytes
    # with weight 1e-9 the core gets 1.5, the copy 1.5e9
    assert rates([Flow({"memory": 1e9}, 1e-9), Flow({"memory": 1.0}, 1.0)], {"memory": 3e9}) == pytest.approx([1.5, 1.5e9])


def test_a_cap_without_a_link():
    # x1 <= 3
    assert max_min_rates([Flow({}, cap=3.0)], {}) == [FlowShare(3.0, "")]


def test_a_link_that_is_only_named_holds_nothing():
    # 0 x1 + x2 <= 10, x1 <= 30
    # x1 = 30 by its cap although its link is full, x2 = 10
    assert max_min_rates([Flow({"a": 0.0}, cap=30.0), Flow({"a": 1.0})], {"a": 10.0}) == [FlowShare(30.0, ""), FlowShare(10.0, "a")]
    # 0 x1 + x2 <= 10, x1 + x3 <= 20 (b)
    # all 10; a and b fill together, but only b holds x1
    flows = [Flow({"a": 0.0, "b": 1.0}), Flow({"a": 1.0}), Flow({"b": 1.0})]
    assert max_min_rates(flows, {"a": 10.0, "b": 20.0}) == [FlowShare(10.0, "b"), FlowShare(10.0, "a"), FlowShare(10.0, "b")]


def test_a_stopped_flow_leaves_everything():
    # x1 + x2 <= 10, x1 <= 0
    assert max_min_rates([Flow({"a": 1.0}, cap=0.0), Flow({"a": 1.0})], {"a": 10.0}) == [FlowShare(0.0, ""), FlowShare(10.0, "a")]


def test_a_cap_and_a_link_that_bind_together():
    # x1 + x2 <= 10, x1 <= 5
    # both 5
    assert rates([Flow({"a": 1.0}, cap=5.0), Flow({"a": 1.0})], {"a": 10.0}) == [5.0, 5.0]


def test_a_flow_of_little_weight_is_not_starved():
    # x1 + x2 <= 10, x1 <= 10, x1 : x2 = 1 : 1e-13
    # x2 = 1e-12: the link is full to rounding when x1 reaches its cap, and yet x2 keeps its part
    assert rates([Flow({"a": 1.0}, 1.0, cap=10.0), Flow({"a": 1.0}, 1e-13)], {"a": 10.0}) == pytest.approx([10.0, 1e-12], rel=1e-9, abs=0)


def test_nothing_asked_nothing_shared():
    assert max_min_rates([], {"a": 1.0}) == []


# --- properties ------------------------------------------------------------------------------------------------------


def loads(flows, got):
    """Load on each link."""
    return {
        link: sum(flow.usage.get(link, 0.0) * rate for flow, rate in zip(flows, got, strict=True)) for flow in flows for link in flow.usage
    }


def is_full(link, load, capacity):
    return load[link] >= capacity[link] * (1 - 1e-9)


@given(systems)
def test_no_link_carries_more_than_its_capacity_and_no_flow_exceeds_its_cap(system):
    flows, capacity = system
    got = rates(flows, capacity)
    assert all(load <= capacity[link] * (1 + 1e-9) for link, load in loads(flows, got).items())
    assert all(0 < rate <= flow.cap for flow, rate in zip(flows, got, strict=True))


@given(systems)
def test_nobody_can_get_more_without_taking_from_the_poorer(system):
    """The definition (Bertsekas and Gallager 6.5.2): at its cap, or largest rate per weight on some full link that it loads."""
    flows, capacity = system
    got = rates(flows, capacity)
    load = loads(flows, got)
    level = [rate / flow.weight for flow, rate in zip(flows, got, strict=True)]
    highest = {link: max(own for flow, own in zip(flows, level, strict=True) if flow.usage.get(link)) for link in load}
    for flow, rate, own in zip(flows, got, level, strict=True):
        assert rate == flow.cap or any(is_full(link, load, capacity) and own >= highest[link] * (1 - 1e-9) for link in flow.usage)


@given(systems)
def test_the_bottleneck_is_a_full_link_of_the_flow_or_its_cap(system):
    flows, capacity = system
    shares = max_min_rates(flows, capacity)
    load = loads(flows, [share.rate for share in shares])
    for flow, (rate, bottleneck) in zip(flows, shares, strict=True):
        if bottleneck:
            assert flow.usage[bottleneck] > 0 and is_full(bottleneck, load, capacity)
        else:
            assert rate == flow.cap


@given(systems, st.floats(1e-6, 1e9))
def test_scaling_all_capacities_and_caps_scales_all_rates(system, factor):
    flows, capacity = system
    scaled = [flow._replace(cap=flow.cap * factor) for flow in flows]
    expected = [rate * factor for rate in rates(flows, capacity)]
    assert rates(scaled, {link: value * factor for link, value in capacity.items()}) == pytest.approx(expected, rel=1e-9)


@given(systems, st.floats(1e-12, 1e12))
def test_only_the_ratio_of_weights_counts(system, factor):
    flows, capacity = system
    assert rates([flow._replace(weight=flow.weight * factor) for flow in flows], capacity) == pytest.approx(
        rates(flows, capacity), rel=1e-9
    )


@given(systems, st.randoms(use_true_random=False))
def test_the_order_of_flows_does_not_matter(system, random):
    flows, capacity = system
    order = list(range(len(flows)))
    random.shuffle(order)
    shuffled = rates([flows[index] for index in order], capacity)
    assert shuffled == pytest.approx([rates(flows, capacity)[index] for index in order], rel=1e-9)


@given(systems, st.integers(2, 5))
def test_a_ring_of_n_hops_over_a_link_is_n_flows_in_step(system, hops):
    """One activity that crosses everything n times gets the rate of each of n equal flows."""
    flows, capacity = system
    first, *others = flows
    together = first._replace(usage={link: use * hops for link, use in first.usage.items()})
    apart = rates([first] * hops + others, capacity)
    assert rates([together, *others], capacity) == pytest.approx(apart[hops - 1 :], rel=1e-9)


@given(amounts, amounts, st.floats(1, 10))
def test_more_bandwidth_never_slows_a_single_flow(one, other, factor):
    alone = Flow({"a": 1.0, "b": 2.0})
    before = rates([alone], {"a": one, "b": other})
    assert before == pytest.approx([min(one, other / 2)])
    for link in "ab":
        wider = {"a": one, "b": other}
        wider[link] *= factor
        assert rates([alone], wider) >= before


@given(systems)
def test_rates_are_finite_and_found_for_everyone(system):
    flows, capacity = system
    got = rates(flows, capacity)
    assert len(got) == len(flows) and all(math.isfinite(rate) for rate in got)


@given(systems)
def test_a_flow_alone_gets_what_filling_by_rounds_gives_it(system):
    """Oracle: the same flow beside one on a link of its own, to the last digit."""
    flows, capacity = system
    apart = Flow({"apart": 1.0})
    for flow in flows:
        assert max_min_rates([flow], capacity) == max_min_rates([flow, apart], capacity | {"apart": 1e9})[:1]
