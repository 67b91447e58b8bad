"""Bundles of links, against their definition."""

from collections import defaultdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.cluster.bundles import Bundles

LINKS = [f"link {number}" for number in range(8)]


@given(sets=st.lists(st.sets(st.sampled_from(LINKS)), max_size=12), data=st.data())
def test_links_are_one_bundle_if_every_set_so_far_has_either_all_or_none_of_them(sets: list[set[str]], data: st.DataObject) -> None:
    bundles = Bundles[int]()
    for link in LINKS:
        bundles.add_link(link)
    active: dict[int, set[str]] = {}
    for number, links in enumerate(sets, 1):
        of_set = bundles.of(dict.fromkeys(links, 1.0))
        if data.draw(st.booleans()):
            active[number] = links
            for bundle in of_set:
                bundle.active[number] = number
        members: dict[tuple[bool, ...], set[str]] = defaultdict(set)
        for link in LINKS:
            members[tuple(link in each for each in sets[:number])].add(link)
        for pattern, together in members.items():
            (bundle,) = {bundles.containing(link) for link in together}
            assert bundle.links == together
            assert set(bundle.active) == {one for one, links in active.items() if together <= links}
            assert len(bundle.sets) == len({frozenset(each) for each, member in zip(sets, pattern, strict=False) if member})
        for each in sets[:number]:
            parts = bundles.of(dict.fromkeys(each, 2.0))
            assert sorted(link for part in parts for link in part.links) == sorted(each)


def test_a_link_that_is_added_later_is_in_no_bundle_of_the_others() -> None:
    bundles = Bundles[int]()
    for link in LINKS[:2]:
        bundles.add_link(link)
    (both,) = bundles.of(dict.fromkeys(LINKS[:2], 1.0))
    bundles.add_link(LINKS[2])
    assert both.links == set(LINKS[:2])
    assert bundles.containing(LINKS[2]) is not both
    with pytest.raises(KeyError):
        bundles.of({"unknown": 1.0})
