"""Which layout does a search refine next? The one with the least bound of its value, with messages priced for as few layouts as possible.

All layouts have a bound of their compute, which is computed quickly. Their bounds with messages are at least that, and take far longer. So
the messages of a layout are priced once its compute is below the first bound with messages. The order of layouts is the same as if all were
priced.
"""

from __future__ import annotations

import heapq
import math
from collections import defaultdict
from collections.abc import Iterable
from itertools import chain
from statistics import median
from typing import Final, Literal

import numpy

from sim.study.plan.floor import Floors
from sim.study.plan.refine import FLOOR, LEAST, Level, PlacedLayout

Entry = tuple[float, int, Level]
"""A lower bound of the value of a layout, the layout's number, and the source of that bound."""
Effort = Literal[0, 1, 2]
QUICK: Final[Effort] = 0
"""Layouts that may be simulated before their turn, because it takes little time."""
USUAL: Final[Effort] = 1
SLOW: Final[Effort] = 2
"""Layouts whose turn comes after all others, because a simulation takes much time."""
BATCH: Final = 8
"""Maximum number of layouts that are priced at once: numpy's calls then take a few percent of the time of the prices."""


class Pending:
    """Layouts that a search may still refine, numbered in the order in which they were added."""

    def __init__(self) -> None:
        self.layouts: list[PlacedLayout] = []
        """All layouts, by their numbers."""
        self._sources: list[tuple[int, int]] = []
        """For each layout, the number of its floors and its place in them."""
        self._floors: list[tuple[Floors, float]] = []
        """Floors, and the value of a second of their steps."""
        self._priced: list[Entry] = []
        """Layouts with a bound with messages, a heap."""
        self._evaluated: dict[Effort, list[Entry]] = {QUICK: [], USUAL: [], SLOW: []}
        """Layouts with a recurrence, a heap for each effort."""
        self._unpriced: list[tuple[float, int]] = []
        """The value of the compute, and the number, of the other layouts, in descending order."""
        self._rises: list[float] = []
        """For layouts that were priced, the bound with messages relative to that of compute."""

    def __len__(self) -> int:
        return len(self._priced) + sum(map(len, self._evaluated.values())) + len(self._unpriced)

    def add(self, layouts: Iterable[tuple[int, PlacedLayout]], floors: Floors, weight: float) -> None:
        """Add *layouts*, each with its place in *floors*; a second of their steps has the value *weight*."""
        new = []
        for place, placed_layout in layouts:
            new.append((weight * float(floors.compute[place]), len(self.layouts)))
            self._sources.append((len(self._floors), place))
            self.layouts.append(placed_layout)
        self._floors.append((floors, weight))
        self._unpriced = sorted([*self._unpriced, *new], reverse=True)

    @property
    def least(self) -> float:
        """Return a lower bound of the value of all layouts, infinite if there are none."""
        slow = self._evaluated[SLOW]
        return min(self.least_in_turn, slow[0][0]) if slow else self.least_in_turn

    @property
    def least_in_turn(self) -> float:
        """Return a lower bound of the value of all layouts except slow ones, infinite if there are none."""
        priced = min((heap[0][0] for heap in self._in_turn), default=math.inf)
        return min(priced, self._unpriced[-1][0]) if self._unpriced else priced

    @property
    def first(self) -> Entry:
        """Return the layout with the least bound of those that are priced and not slow: of all, after `settle`."""
        return min(heap[0] for heap in self._in_turn)

    @property
    def first_slow(self) -> Entry:
        """Return the slow layout with the least bound."""
        return self._evaluated[SLOW][0]

    @property
    def first_quick(self) -> Entry | None:
        """Return the quick layout with the least bound; None if there is none."""
        quick = self._evaluated[QUICK]
        return quick[0] if quick else None

    @property
    def _in_turn(self) -> list[list[Entry]]:
        """Return the heaps, except that of slow layouts, that are not empty."""
        return [heap for heap in (self._priced, self._evaluated[QUICK], self._evaluated[USUAL]) if heap]

    def settle(self, limit: float = math.inf) -> None:
        """Price layouts until no other whose compute is below *limit* may come before `first`."""
        while self._price_next(min([limit, *(heap[0][0] for heap in self._in_turn)])):
            pass

    def evaluate(self, entry: Entry, value: float, effort: Effort = USUAL) -> None:
        """Replace the bound of *entry*, which is `first`, by *value* by its recurrence, which is not less."""
        self.remove(entry)
        heapq.heappush(self._evaluated[effort], (value, entry[1], LEAST))

    def remove(self, entry: Entry) -> None:
        """Remove *entry*, which is `first`, `first_quick` or `first_slow`."""
        heapq.heappop(next(heap for heap in (self._priced, *self._evaluated.values()) if heap and heap[0] == entry))

    def leading(self, most: int, limit: float) -> list[Entry]:
        """Return up to *most* layouts with the least bounds, if these are below *limit*, without slow ones."""
        while True:
            entries = [entry for entry in heapq.nsmallest(most, chain.from_iterable(self._in_turn)) if entry[0] < limit]
            if not self._price_next(entries[-1][0] if len(entries) == most else limit):
                return entries

    def by_memory(self) -> list[PlacedLayout]:
        """Return all layouts in ascending order of the lower bounds of their memory."""
        priced = chain(self._priced, *self._evaluated.values())
        numbers = [number for _, number, _ in priced] + [number for _, number in self._unpriced]
        return [self.layouts[number] for number in sorted(numbers, key=self._memory)]

    def _memory(self, number: int) -> float:
        source, place = self._sources[number]
        return float(self._floors[source][0].memory[place])

    def estimates(self) -> list[Entry]:
        """Return all layouts except slow ones with their bounds, estimated for those that are not priced from those that are."""
        rise = median(self._rises or [1.0])
        return [*chain.from_iterable(self._in_turn)] + [(rise * value, number, FLOOR) for value, number in self._unpriced]

    def _price_next(self, limit: float) -> bool:
        """Price the next layouts whose compute is below *limit*; return False if there are none."""
        batch = [each for each in self._unpriced[: -BATCH - 1 : -1] if each[0] < limit]
        sources: dict[int, list[tuple[float, int]]] = defaultdict(list)
        for each in batch:
            sources[self._sources[each[1]][0]].append(each)
        new: list[Entry] = []
        for source, members in sources.items():
            floors, weight = self._floors[source]
            times = floors.time_of(numpy.array([self._sources[number][1] for _, number in members]))
            new += [(weight * float(time), number, FLOOR) for time, (_, number) in zip(times, members, strict=True)]
            self._rises += [weight * float(time) / value for time, (value, _) in zip(times, members, strict=True) if value > 0.0]
        for entry in new:
            heapq.heappush(self._priced, entry)
        del self._unpriced[len(self._unpriced) - len(batch) :]
        return bool(batch)
