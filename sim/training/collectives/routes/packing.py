"""How many rings fit on a set of NVLinks? The largest packing of edge-disjoint directed Hamiltonian cycles, or paths.

A link between two GPUs carries one ring per *slot* in each direction. The search is depth-first with a step budget. It is exact if the
budget suffices, as it does for every subset of a DGX-1; otherwise the result is the best packing found. NVIDIA/nccl
`src/graph/search.cc` searches in a similar way, with bandwidth instead of slots. The known numbers of rings on a DGX-1V check this search.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache

Slots = Mapping[tuple[int, int], int]
"""Free slots of each directed pair of GPUs."""
Ends = frozenset[tuple[int, int]]
"""Pairs of a first and a last vertex."""

STEP_BUDGET = 50_000
"""Maximum steps of one search; NCCL gives up after a similar number (search.cc)."""


class _StepBudget:
    """A budget of steps: each call of ``spent`` uses one step and returns whether none was left."""

    def __init__(self, steps: int = STEP_BUDGET) -> None:
        self.left = steps

    def spent(self) -> bool:
        self.left -= 1
        return self.left < 0


def pack_cycles(slots: Slots) -> tuple[tuple[int, ...], ...]:
    """Return the largest set of directed cycles through all GPUs of *slots* that uses no pair more often than its slots allow."""
    return _pack_cycles(tuple(sorted(slots.items())))


@lru_cache(maxsize=256)
def _pack_cycles(slots: tuple[tuple[tuple[int, int], int], ...]) -> tuple[tuple[int, ...], ...]:
    free = Counter(dict(slots))
    vertices = sorted({vertex for pair, _ in slots for vertex in pair})
    if len(vertices) < 2:
        return ()
    cycles = [path for path in _paths(vertices[0], _following(vertices, free), _StepBudget()) if free[path[-1], path[0]]]
    bound = min(_degrees(vertices, free))
    return _Packing(cycles, free, vertices, bound).best


class _Packing:
    """Depth-first search for the most cycles: each cycle is used as often as it fits, then the following ones, then once less."""

    def __init__(self, cycles: Sequence[tuple[int, ...]], free: Counter[tuple[int, int]], vertices: Sequence[int], bound: int) -> None:
        self.best: tuple[tuple[int, ...], ...] = ()
        self._cycles = cycles
        self._free = free
        self._vertices = vertices
        self._bound = bound
        self._budget = _StepBudget()
        self._extend(0, [])

    def _extend(self, first: int, chosen: list[tuple[int, ...]]) -> None:
        if len(chosen) > len(self.best):
            self.best = tuple(chosen)
        for index in range(first, len(self._cycles)):
            if self._is_done(len(chosen)):
                return
            cycle = self._cycles[index]
            pairs = _pairs(cycle, closed=True)
            if all(self._free[pair] for pair in pairs):
                self._free.subtract(pairs)
                self._extend(index, [*chosen, cycle])
                self._free.update(pairs)

    def _is_done(self, chosen: int) -> bool:
        if len(self.best) == self._bound or self._budget.spent():
            return True
        return chosen + min(_degrees(self._vertices, self._free)) <= len(self.best)


def pack_paths(slots: Slots, vertices: Sequence[int], ends: Sequence[Ends]) -> tuple[tuple[int, ...], ...] | None:
    """Return one path through all *vertices* for each of *ends*, which are those that the path may have, or None if there are none.

    No directed pair is used more often than its *slots* allow.
    """
    return _pack_paths(tuple(sorted(slots.items())), tuple(vertices), tuple(ends))


@lru_cache(maxsize=256)
def _pack_paths(
    slots: tuple[tuple[tuple[int, int], int], ...], vertices: tuple[int, ...], ends: tuple[Ends, ...]
) -> tuple[tuple[int, ...], ...] | None:
    return _chosen_paths(Counter(dict(slots)), vertices, ends, _StepBudget())


def _chosen_paths(
    free: Counter[tuple[int, int]], vertices: tuple[int, ...], ends: tuple[Ends, ...], budget: _StepBudget
) -> tuple[tuple[int, ...], ...] | None:
    if not ends:
        return ()
    following = _following(vertices, free)
    for path in (path for start in vertices for path in _paths(start, following, budget) if (path[0], path[-1]) in ends[0]):
        pairs = _pairs(path, closed=False)
        free.subtract(pairs)
        rest = _chosen_paths(free, vertices, ends[1:], budget)
        free.update(pairs)
        if rest is not None:
            return (path, *rest)
    return None


def _following(vertices: Sequence[int], free: Mapping[tuple[int, int], int]) -> dict[int, list[int]]:
    """Return the vertices that follow each over pairs with free slots, the last first."""
    return {vertex: [other for other in reversed(vertices) if free.get((vertex, other), 0)] for vertex in vertices}


def _paths(start: int, following: Mapping[int, Sequence[int]], budget: _StepBudget) -> Iterator[tuple[int, ...]]:
    """Yield the paths from *start* through all vertices, each of which one of *following* follows, in lexicographic order."""
    stack: list[tuple[int, ...]] = [(start,)]
    while stack:
        if budget.spent():
            return
        path = stack.pop()
        if len(path) == len(following):
            yield path
        stack += [(*path, vertex) for vertex in following[path[-1]] if vertex not in path]


def _pairs(order: Sequence[int], closed: bool) -> list[tuple[int, int]]:
    following = [*order[1:], *order[:1]] if closed else order[1:]
    return list(zip(order, following, strict=False))


def _degrees(vertices: Sequence[int], free: Mapping[tuple[int, int], int]) -> Iterator[int]:
    return (sum(free[vertex, other] for other in vertices if other != vertex) for vertex in vertices)
