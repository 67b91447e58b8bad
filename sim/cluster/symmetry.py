"""Which activities and links are interchangeable? The coarsest equitable partition of their incidence graph, by color refinement.

Activities are colored by their demand, links by their capacity and use. Two activities stay in one class while they cross the same
number of links of every color; two links, while they carry the same number of activities of every color. The quotient of an equitable
partition has exactly the max-min rates of the full graph: by induction over saturations, equal members saturate together.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence


def refine(
    activities: Sequence[tuple[Hashable, Mapping[str, Hashable]]], links: Mapping[str, Hashable]
) -> tuple[list[int], dict[str, int]]:
    """Return the class of each of *activities* (color, load per link) and of each of *links* (name to color)."""
    activity_class = _number([color for color, _ in activities])
    link_class = dict(zip(links, _number(list(links.values())), strict=True))
    crossing: dict[str, list[int]] = {link: [] for link in links}
    for index, (_, usage) in enumerate(activities):
        for link in usage:
            crossing[link].append(index)
    while True:
        before = (len(set(activity_class)), len(set(link_class.values())))
        crosses = [_counted((link_class[link], load) for link, load in usage.items()) for _, usage in activities]
        activity_class = _number(list(zip(activity_class, crosses, strict=True)))
        carries = [_counted((activity_class[index], activities[index][1][link]) for index in crossing[link]) for link in links]
        link_class = dict(zip(links, _number(list(zip(link_class.values(), carries, strict=True))), strict=True))
        if (len(set(activity_class)), len(set(link_class.values()))) == before:
            return activity_class, link_class


def _counted(items: Iterable[Hashable]) -> frozenset[tuple[Hashable, int]]:
    return frozenset(Counter(items).items())


def _number(colors: Sequence[Hashable]) -> list[int]:
    """Return the colors as small integers, in order of first appearance."""
    numbers: dict[Hashable, int] = {}
    return [numbers.setdefault(color, len(numbers)) for color in colors]
