"""Which links are always used together? Links that every activity so far uses either all or none of are one bundle.

A collective of a large group uses hundreds of links. To find the activities that share one with it, a few bundles take their place. Each
new set of links splits the bundles of which it has a part (partition refinement: Paige and Tarjan, "Three partition refinement algorithms",
1987).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, Generic, TypeVar

A = TypeVar("A")

_MOST_CACHED: Final = 4096
"""Size limit of the cache by identity; activities that repeat share their usage, others fill it."""


class Bundle(Generic[A]):
    """Links that are always used together, and the activities in progress on them by number."""

    __slots__ = ("active", "links", "sets")

    def __init__(self, links: set[str], sets: Iterable[list[Bundle[A]]] = (), active: Mapping[int, A] = {}) -> None:
        self.links = links
        self.sets = list(sets)
        """The sets of links that contain these, each as its bundles."""
        self.active = dict(active)


class Bundles(Generic[A]):
    """All links of a network as bundles."""

    def __init__(self) -> None:
        self._unused: Bundle[A] = Bundle(set())
        self._containing: dict[str, Bundle[A]] = {}
        self._of_links: dict[frozenset[str], list[Bundle[A]]] = {}
        self._of_usage: dict[int, tuple[Mapping[str, float], list[Bundle[A]]]] = {}
        """Cache by identity of a usage, which it keeps, so that no identity is reused."""

    def add_link(self, link: str) -> None:
        """Add *link*, which no activity uses yet."""
        self._containing[link] = self._unused
        self._unused.links.add(link)

    def containing(self, link: str) -> Bundle[A]:
        """Return the bundle of *link*."""
        return self._containing[link]

    def of(self, usage: Mapping[str, float]) -> list[Bundle[A]]:
        """Return the bundles of the links of *usage*. Later splits change the returned list. Raise KeyError for an unknown link."""
        cached = self._of_usage.get(id(usage))
        if cached is None:
            if len(self._of_usage) >= _MOST_CACHED:
                self._of_usage.clear()
            links = frozenset(usage)
            if links not in self._of_links:
                self._of_links[links] = self._refine(links)
            cached = self._of_usage[id(usage)] = (usage, self._of_links[links])
        return cached[1]

    def close(self) -> None:
        """Break the references between bundles and the sets that contain them, which keep all of them alive."""
        for bundles in self._of_links.values():
            bundles.clear()

    def _refine(self, links: frozenset[str]) -> list[Bundle[A]]:
        """Split bundles so that each has all or none of *links*, and return those that have them."""
        parts: dict[Bundle[A], set[str]] = {}
        for link in links:
            parts.setdefault(self._containing[link], set()).add(link)
        bundles = [
            self._split(bundle, part) if bundle is self._unused or part != bundle.links else bundle for bundle, part in parts.items()
        ]
        for bundle in bundles:
            bundle.sets.append(bundles)
        return bundles

    def _split(self, bundle: Bundle[A], links: set[str]) -> Bundle[A]:
        """Return a new bundle of *links*, some of those of *bundle*, for which the others remain."""
        split = Bundle(links, bundle.sets, bundle.active)
        bundle.links -= links
        self._containing.update(dict.fromkeys(links, split))
        for bundles in split.sets:
            bundles.append(split)
        return split
