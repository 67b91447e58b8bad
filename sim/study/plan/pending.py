"""Which layout does a search refine next? The one with the least bound of its value, with messages priced for as few layouts as possible.

All layouts have a bound of their compute, which is computed quickly. Their bounds with messages are at least that, and take far longer; a
sketch of them, with fewer messages, is in between. So a layout is sketched once its compute, and its messages are priced once its sketch,
is below the first bound with messages. The order of layouts is the same as if all were priced.
"""

from __future__ import annotations

import heapq
import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import chain
from statistics import median
from typing import Final, Literal

import numpy

from sim.study.plan.block_sums import FloatRow
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
        self._floors: list[tuple[Floors, float, FloatRow]] = []
        """Floors, the value of a second of their steps, and what is added to it for each of their layouts."""
        self._priced: list[Entry] = []
        """Layouts with a bound with messages, a heap."""
        self._evaluated: dict[Effort, list[Entry]] = {QUICK: [], USUAL: [], SLOW: []}
        """Layouts with a recurrence, a heap for each effort."""
        self._unpriced: list[tuple[float, int]] = []
        """The value of the compute, and the number, of the other layouts, in descending order."""
        self._sketched: list[tuple[float, int]] = []
        """The value of the sketch, and the number, of layouts that have one but no price, a heap."""
        self._rises: list[float] = []
        """For layouts that were priced, the bound with messages relative to that of compute."""

    def __len__(self) -> int:
        return len(self._priced) + sum(map(len, self._evaluated.values())) + len(self._sketched) + len(self._unpriced)

    def add(self, layouts: Iterable[tuple[int, PlacedLayout]], floors: Floors, weight: float, added: FloatRow | None = None) -> None:
        """Add *layouts*, each with its place in *floors*; the value of a step is *weight* for each second, and *added*."""
        first = len(self.layouts)
        self._floors.append((floors, weight, numpy.zeros(len(floors.compute)) if added is None else added))
        for place, placed_layout in layouts:
            self._sources.append((len(self._floors) - 1, place))
            self.layouts.append(placed_layout)
        new = [(self._compute(number), number) for number in range(first, len(self.layouts))]
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
        return min(priced, self._next_unpriced, self._next_sketched)

    @property
    def _next_unpriced(self) -> float:
        return self._unpriced[-1][0] if self._unpriced else math.inf

    @property
    def _next_sketched(self) -> float:
        return self._sketched[0][0] if self._sketched else math.inf

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
        """Price layouts until no other that is below *limit* may come before `first`."""
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
        numbers = [number for _, number, _ in priced] + [number for _, number in (*self._sketched, *self._unpriced)]
        return [self.layouts[number] for number in sorted(numbers, key=self._memory)]

    def _memory(self, number: int) -> float:
        source, place = self._sources[number]
        return float(self._floors[source][0].memory[place])

    def estimates(self) -> list[Entry]:
        """Return all layouts except slow ones with their bounds, estimated for those that are not priced from those that are."""
        rises = self._rises + [value / least for value, number in self._sketched if (least := self._compute(number)) > 0.0]
        rise = median(rises or [1.0])
        rest = [(max(value, rise * self._compute(number)), number, FLOOR) for value, number in self._sketched]
        return [*chain.from_iterable(self._in_turn), *rest, *((rise * value, number, FLOOR) for value, number in self._unpriced)]

    def _compute(self, number: int) -> float:
        """Return the value of the compute of layout *number*."""
        source, place = self._sources[number]
        return self._value(source, place, float(self._floors[source][0].compute[place]))

    def _value(self, source: int, place: int, time: float) -> float:
        """Return the value of a step of *time* seconds of the layout at *place* of the floors *source*."""
        _, weight, added = self._floors[source]
        return weight * time + float(added[place])

    def _price_next(self, limit: float) -> bool:
        """Sketch or price the next layouts that are below *limit*; return False if there are none."""
        if self._next_unpriced <= self._next_sketched:
            batch = [each for each in self._unpriced[: -BATCH - 1 : -1] if each[0] < limit]
            del self._unpriced[len(self._unpriced) - len(batch) :]
            for (value, number), sketch in zip(batch, self._bounds_of(batch, sketched=True), strict=True):
                heapq.heappush(self._sketched, (max(value, sketch), number))
            return bool(batch)
        batch = []
        while len(batch) < BATCH and self._next_sketched < limit:
            batch.append(heapq.heappop(self._sketched))
        for (value, number), price in zip(batch, self._bounds_of(batch), strict=True):
            heapq.heappush(self._priced, (max(value, price), number, FLOOR))
            compute = self._compute(number)
            self._rises += [price / compute] if compute > 0.0 else []
        return bool(batch)

    def _bounds_of(self, batch: Sequence[tuple[float, int]], sketched: bool = False) -> list[float]:
        """Return the bounds with messages of the layouts of *batch*; if *sketched*, their sketches, or what they have without any."""
        sources: dict[int, list[int]] = defaultdict(list)
        for row, (_, number) in enumerate(batch):
            sources[self._sources[number][0]].append(row)
        values = [value for value, _ in batch]
        for source, rows in sources.items():
            floors = self._floors[source][0]
            bounds_at = floors.sketch_of if sketched else floors.time_of
            if bounds_at is not None:
                places = [self._sources[batch[row][1]][1] for row in rows]
                for row, place, time in zip(rows, places, bounds_at(numpy.array(places)), strict=True):
                    values[row] = self._value(source, place, float(time))
        return values
