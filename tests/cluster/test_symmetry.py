"""The definition of an equitable partition, checked directly; known coarsest ones; and rates of the quotient = rates of the whole."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.cluster.fairshare import Flow, max_min_rates
from sim.cluster.symmetry import refine
from tests.cluster.systems import LINKS, capacities, flows, systems, usages


def classes(activities, links):
    """The partition as sets: of activity indices, of link names."""
    of_activity, of_link = refine(activities, links)
    return grouped(dict(enumerate(of_activity))), grouped(of_link)


def grouped(numbers):
    members_by_number = {}
    for member, number in numbers.items():
        members_by_number.setdefault(number, set()).add(member)
    return {frozenset(members) for members in members_by_number.values()}


# --- known cases -----------------------------------------------------------------------------------------------------


def copies(switch_of, ports="port", uplink=2):
    """A copy to each GPU through the uplink of its switch, its own port and one memory."""
    return [("copy", {"memory": 1.0, f"uplink{switch}": 1.0, f"{ports}{gpu}": 1.0}) for gpu, switch in enumerate(switch_of)]


def colors(activities, **odd):
    return {link: odd.get(link, link.rstrip("0123456789")) for _, usage in activities for link in usage}


EIGHT_ON_FOUR = copies([0, 0, 1, 1, 2, 2, 3, 3])


def test_eight_equal_gpus_on_four_switches_are_one_class():
    """By hand: one class of GPUs, one of ports, one of uplinks, the memory."""
    gpus, links = classes(EIGHT_ON_FOUR, colors(EIGHT_ON_FOUR))
    assert gpus == {frozenset(range(8))}
    assert sorted(map(len, links)) == [1, 4, 8]


def test_an_odd_uplink_splits_off_the_gpus_below_it_and_nothing_else():
    gpus, links = classes(EIGHT_ON_FOUR, colors(EIGHT_ON_FOUR, uplink2="narrow"))
    assert gpus == {frozenset({4, 5}), frozenset({0, 1, 2, 3, 6, 7})}
    assert sorted(map(len, links)) == [1, 1, 2, 3, 6]  # memory; the odd uplink and its ports; the others


def test_an_odd_port_splits_off_its_gpu_and_its_neighbor():
    """The neighbor shares an uplink with the odd one, the other six do not."""
    gpus, _ = classes(EIGHT_ON_FOUR, colors(EIGHT_ON_FOUR, port5="narrow"))
    assert gpus == {frozenset({5}), frozenset({4}), frozenset({0, 1, 2, 3, 6, 7})}


def test_gpus_under_a_crowded_switch_are_apart():
    """Four GPUs under one switch, two under each of two others."""
    activities = copies([0, 0, 0, 0, 1, 1, 2, 2])
    assert classes(activities, colors(activities))[0] == {frozenset({0, 1, 2, 3}), frozenset({4, 5, 6, 7})}


def test_ranks_of_two_jobs_are_apart_even_on_equal_paths():
    activities = [(f"job {number % 2}", usage) for number, (_, usage) in enumerate(EIGHT_ON_FOUR)]
    gpus, links = classes(activities, colors(activities))
    assert gpus == {frozenset({0, 2, 4, 6}), frozenset({1, 3, 5, 7})}
    assert sorted(map(len, links)) == [1, 4, 4, 4]  # each uplink carries one of either job


def test_unlike_loads_are_apart():
    activities = [("copy", {"port0": 1.0}), ("copy", {"port1": 1.0}), ("copy", {"port2": 2.0})]
    assert classes(activities, colors(activities))[0] == {frozenset({0, 1}), frozenset({2})}


def test_links_that_nobody_uses_stay_together_by_color():
    assert classes([], {"a": 1, "b": 1, "c": 2}) == (set(), {frozenset("ab"), frozenset("c")})


def test_classes_are_numbered_in_order_of_appearance():
    """Names of folded links and ranks come from the first member, so the numbering must not depend on hashing."""
    assert refine(EIGHT_ON_FOUR[::-1], {"x": 0} | colors(EIGHT_ON_FOUR))[0] == [0] * 8
    assert list(refine([], {"b": "z", "a": "y", "c": "z"})[1].items()) == [("b", 0), ("a", 1), ("c", 0)]


# --- properties ------------------------------------------------------------------------------------------------------

colored = st.tuples(
    st.lists(st.tuples(st.sampled_from("xy"), usages(least=0)), max_size=8),
    st.fixed_dictionaries({link: st.sampled_from([1, 1, 2]) for link in LINKS}),
)


@given(colored)
def test_the_partition_is_equitable(system):
    """The definition: members of a class have one color, and as many neighbors of each class and load as one another."""
    activities, links = system
    of_activity, of_link = refine(activities, links)

    def seen_by_activity(index):
        color, usage = activities[index]
        return color, Counter((of_link[link], load) for link, load in usage.items())

    def seen_by_link(link):
        return links[link], Counter((of_activity[index], usage[link]) for index, (_, usage) in enumerate(activities) if link in usage)

    for numbers, seen in ((dict(enumerate(of_activity)), seen_by_activity), (of_link, seen_by_link)):
        for members in grouped(numbers):
            views = [seen(member) for member in members]
            assert all(view == views[0] for view in views)


@given(colored, st.integers(2, 4))
def test_copies_of_a_system_fold_onto_one_another(system, count):
    """Coarsest: what is interchangeable by construction is never split, and copies add no class."""
    activities, links = system
    many = [(color, {f"{link}{copy}": load for link, load in usage.items()}) for copy in range(count) for color, usage in activities]
    of_activity, of_link = refine(many, {f"{link}{copy}": color for copy in range(count) for link, color in links.items()})
    alone_activity, alone_link = refine(activities, links)
    assert of_activity == alone_activity * count
    assert [of_link[f"{link}{copy}"] for copy in range(count) for link in links] == list(alone_link.values()) * count


@given(colored, st.randoms(use_true_random=False))
def test_the_order_of_activities_does_not_matter(system, random):
    activities, links = system
    order = list(range(len(activities)))
    random.shuffle(order)
    there, links_there = classes([activities[index] for index in order], links)
    here, links_here = classes(activities, links)
    assert {frozenset(order[place] for place in members) for members in there} == here and links_there == links_here


def quotient_rates(all_flows, capacity):
    """Rates on the quotient: one flow per class, which loads a link as often as members of its class cross one link of that class."""
    of_flow, of_link = refine([((flow.weight, flow.cap), flow.usage) for flow in all_flows], capacity)
    first_link = {number: link for link, number in reversed(of_link.items())}
    load = {number: Counter() for number in dict.fromkeys(of_flow)}
    for flow, number in zip(all_flows, of_flow, strict=True):
        for link in first_link.values():
            load[number][link] += flow.usage.get(link, 0.0)
    representative = {number: flow for flow, number in reversed(list(zip(all_flows, of_flow, strict=True)))}
    quotient = [
        Flow({link: use for link, use in load[number].items() if use}, representative[number].weight, representative[number].cap)
        for number in load
    ]
    shares = dict(zip(load, max_min_rates(quotient, capacity), strict=True))
    return [shares[number] for number in of_flow], of_link, len(quotient)


def check_folding(all_flows, capacity):
    folded, of_link, size = quotient_rates(all_flows, capacity)
    unfolded = max_min_rates(all_flows, capacity)
    assert [share.rate for share in folded] == pytest.approx([share.rate for share in unfolded], rel=1e-9)
    return folded, unfolded, of_link, size


def test_the_quotient_of_eight_copies_has_their_rates():
    """By hand: 12 through each uplink for two, 20 of memory for eight; each copy 2.5, held by the memory."""
    all_flows = [Flow(usage) for _, usage in EIGHT_ON_FOUR]
    capacity = {"memory": 20.0} | {f"uplink{number}": 12.0 for number in range(4)} | {f"port{number}": 8.0 for number in range(8)}
    folded, unfolded, _, size = check_folding(all_flows, capacity)
    assert size == 1 and folded == unfolded and folded[0] == (2.5, "memory")


@given(systems)
def test_rates_of_the_quotient_are_those_of_the_whole(system):
    """Any system; most fold little."""
    check_folding(*system)


@st.composite
def symmetric_systems(draw):
    """Several copies of a small system that share some of its links, perhaps with one capacity changed in one copy."""
    count = draw(st.integers(2, 4))
    pattern = draw(st.lists(flows(), min_size=1, max_size=3))
    capacity = draw(capacities)
    shared = draw(st.sets(st.sampled_from(LINKS)))

    def name(link, copy):
        return link if link in shared else f"{link}{copy}"

    all_flows = [
        flow._replace(usage={name(link, copy): use for link, use in flow.usage.items()}) for copy in range(count) for flow in pattern
    ]
    by_name = {name(link, copy): value for copy in range(count) for link, value in capacity.items()}
    if draw(st.booleans()):
        by_name[draw(st.sampled_from(sorted(by_name)))] /= 2
    return all_flows, by_name


@given(symmetric_systems())
def test_rates_of_the_quotient_are_those_of_the_whole_where_much_folds(system):
    """The proof of folding, on systems made of copies: same rates, and a bottleneck of the same class of links."""
    all_flows, capacity = system
    folded, unfolded, of_link, size = check_folding(all_flows, capacity)
    assert size <= len(all_flows)
    load = {link: sum(flow.usage.get(link, 0.0) * share.rate for flow, share in zip(all_flows, unfolded, strict=True)) for link in capacity}
    for flow, share in zip(all_flows, folded, strict=True):
        if share.bottleneck:
            held = [link for link in flow.usage if of_link[link] == of_link[share.bottleneck]]
            assert held and all(load[link] == pytest.approx(capacity[link], rel=1e-9) for link in held)


def test_systems_made_of_copies_do_fold():
    """Guards the property above: 4 equal copies of 2 flows become 2 classes."""
    all_flows = [flow for copy in range(4) for flow in (Flow({f"a{copy}": 1.0, "b": 1.0}), Flow({f"a{copy}": 2.0}))]
    assert quotient_rates(all_flows, {"b": 10.0} | {f"a{copy}": 3.0 for copy in range(4)})[2] == 2
