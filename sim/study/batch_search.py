"""Which division of a batch among groups of unequal GPUs has the shortest step? Found by simulating only a few divisions.

A step takes at least as long as the work of any one GPU (`Search.bound`). If every part of a GPU's work takes at least as long with more
samples (`Search.parts`), it also takes at least as long as any step in which no GPU has more samples, whatever their total. The search
simulates such smaller steps, with one group at its share and the others at the least that they may still have. They show how long each
group makes a step; linear interpolation between them selects the next share to simulate. A share is excluded only by a bound, so the
result is the best of all integer divisions.

Limit: it is assumed of the simulator, but not proven, that no step gets shorter if all GPUs have more work.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Final, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from sim.spec.yaml import SpecError

MOST: Final = 400
"""Maximum number of steps that a search simulates."""
SLACK: Final = 1e-9
"""Relative difference below which two steps count as equally long."""
MANY: Final = 200_000
"""Maximum number of divisions of a batch that are bounded."""

GroupBatches = tuple[int, ...]
"""The batch of each group's GPUs."""
_BatchValue = TypeVar("_BatchValue", np.float64, np.bool_)


class BatchShare(NamedTuple):
    """One group of workers: its number of GPUs, and the most samples that fit the memory of one."""

    gpus: int
    most: int


@dataclass
class Search:
    """The state of a search for the shortest step."""

    shares: Sequence[BatchShare]
    total: int
    """Samples of a step over all GPUs."""
    step_time: Callable[[GroupBatches], float]
    """Simulates a step and returns its seconds."""
    work: Callable[[int, int], float]
    """Seconds that a GPU of a group works at a batch, without waiting for others."""
    parts: Callable[[int, int], Sequence[float]] | None = None
    """Seconds of the parts of that work; None: a step may get shorter if GPUs have more samples, even if all parts get longer."""
    limit: int = MOST
    steps: int = 1
    """Accumulation steps, each of *total* samples."""
    simulated_times: dict[GroupBatches, float] = field(default_factory=dict)
    smaller_times: dict[GroupBatches, float] = field(default_factory=dict)
    """Seconds of steps with fewer samples, which bound others."""
    simulations_left: int = 0
    """Shares that were not simulated although they may be better."""

    @property
    def best(self) -> GroupBatches:
        """Return the batches of the shortest step."""
        return min(self.simulated_times, key=lambda sizes: (self.simulated_times[sizes], sizes))

    @property
    def simulated(self) -> int:
        """Return how many steps were simulated."""
        return len(self.simulated_times) + len(self.smaller_times)

    def bound(self, sizes: GroupBatches) -> float:
        """Return a lower bound of the seconds of a step."""
        return max(self.work(group, batch) for group, batch in enumerate(sizes))

    def time(self, sizes: GroupBatches) -> float:
        """Return the seconds of a step, simulated once."""
        if sizes not in self.simulated_times:
            self.simulated_times[sizes] = self.step_time(sizes)
        return self.simulated_times[sizes]

    def time_of_smaller(self, sizes: GroupBatches) -> float:
        """Return the seconds of a step with fewer samples than `total`, simulated once."""
        if sizes not in self.smaller_times:
            self.smaller_times[sizes] = self.step_time(sizes)
        return self.smaller_times[sizes]

    def choices(self) -> Iterator[GroupBatches]:
        """Yield the batches that add up to the total and fit."""
        return _choices([share.gpus for share in self.shares], [share.most for share in self.shares], self.total)


def _choices(gpus: list[int], ceilings: list[int], total: int) -> Iterator[GroupBatches]:
    if len(gpus) == 1:
        batch, rest = divmod(total, gpus[0])
        if not rest and 1 <= batch <= ceilings[0]:
            yield (batch,)
        return
    least = sum(gpus[1:])
    for batch in range(1, min(ceilings[0], (total - least) // gpus[0]) + 1):
        yield from ((batch, *rest) for rest in _choices(gpus[1:], ceilings[1:], total - gpus[0] * batch))


def all_choices(search: Search) -> list[GroupBatches]:
    """Return all shares that add up to the total. Raise SpecError if none do, or too many."""
    every = list(islice(search.choices(), MANY + 1))
    if not every:
        raise SpecError(_unreachable(search))
    if len(every) > MANY:
        ways = f"can be divided in more than {MANY:,} ways; write a smaller batch, or use fewer groups"
        raise SpecError(f"--global-batch {search.total * search.steps}: {ways}")
    return every


def _unreachable(search: Search) -> str:
    most = sum(share.gpus * share.most for share in search.shares)
    least = sum(share.gpus for share in search.shares)
    ceilings = [share.most for share in search.shares]
    gpus = [share.gpus for share in search.shares]
    near = sorted(range(least, most + 1), key=lambda total: abs(total - search.total))[:2000]
    would = next((total for total in near if next(_choices(gpus, ceilings, total), None)), least)
    return (
        f"--global-batch {search.total * search.steps}: groups of {' and '.join(map(str, gpus))} GPUs, with 1 to "
        f"{' or '.join(map(str, ceilings))} samples per GPU, cannot divide it; the nearest possible is {would * search.steps}"
    )


def find_shortest_step(search: Search) -> Search:
    """Simulate shares until none can be better. Raise SpecError if none add up to the total, or too many do."""
    table = _ShareTable(search)
    first = table.most_promising()
    for group in range(len(search.shares)):
        if search.parts is not None and table.open.any():
            table.simulate(table.corner(first, group), group)
    while table.open.any():
        if search.simulated >= search.limit and search.simulated_times:
            search.simulations_left = int(table.open.sum())
            break
        row = table.most_promising()
        group = int(np.argmax(table.expected(table.every[row : row + 1])))
        if search.parts is None or int(table.every[row, group]) in table.curves[group]:
            table.simulate(_sizes(table.every[row]))
        else:
            table.simulate(table.corner(row, group), group)
    return search


def _sizes(batches: NDArray[np.int64]) -> GroupBatches:
    return tuple(int(batch) for batch in batches)


class _ShareTable:
    """All shares, a lower bound of each, and how long each group makes a step."""

    def __init__(self, search: Search) -> None:
        self.search = search
        self.every: NDArray[np.int64] = np.array(all_choices(search))
        """One row per share."""
        self.batches = [np.unique(column) for column in self.every.T]
        """Batches of each group, ascending."""
        self.works = [np.array([search.work(group, int(batch)) for batch in batches]) for group, batches in enumerate(self.batches)]
        self.floor: NDArray[np.float64] = self._columns(self.works).max(axis=1)
        self.simulated: NDArray[np.bool_] = np.zeros(len(self.every), bool)
        self.curves: list[dict[int, float]] = [{} for _ in self.batches]
        """Seconds of a step by the batch of a group's GPUs, while the other groups have little work."""
        if search.parts is not None:
            rising = [_rising([search.parts(group, int(batch)) for batch in batches]) for group, batches in enumerate(self.batches)]
            self.rising = self._columns(rising)
            """Whether each group works at least as long, in every part, as at any smaller batch."""

    @property
    def open(self) -> NDArray[np.bool_]:
        """Return which shares may be better than the best simulated one."""
        search = self.search
        limit = search.simulated_times[search.best] * (1 - SLACK) if search.simulated_times else np.inf
        better: NDArray[np.bool_] = self.floor < limit
        return better & ~self.simulated

    def corner(self, row: int, group: int) -> GroupBatches:
        """Return batches with that of *group* in row *row*, and for the other groups the least batches of open shares."""
        least = self.every[self.open].min(axis=0)
        least[group] = self.every[row, group]
        return _sizes(least)

    def most_promising(self) -> int:
        """Return the number of the open share with the shortest expected step; of equal ones, the one with the least bound."""
        numbers = np.flatnonzero(self.open)
        expected = self.expected(self.every[numbers]).max(axis=1)
        return int(numbers[np.lexsort((self.floor[numbers], np.maximum(expected, self.floor[numbers])))[0]])

    def expected(self, some: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return how long each group is expected to make a step of the shares *some*: by its work, or by interpolation between steps."""
        curves = [self._expected(group) for group in range(some.shape[1])]
        return np.stack(
            [curve[np.searchsorted(batches, column)] for curve, batches, column in zip(curves, self.batches, some.T, strict=True)], axis=1
        )

    def _expected(self, group: int) -> NDArray[np.float64]:
        """Return how long *group* is expected to make a step, for all its batches."""
        curve, batches, work = self.curves[group], self.batches[group], self.works[group]
        if not curve:
            return work
        at = sorted(curve)
        expected: NDArray[np.float64] = curve[at[0]] + work - work[np.searchsorted(batches, at[0])]
        if len(at) > 1:
            times = np.array([curve[batch] for batch in at])
            slopes = np.diff(times) / np.diff(at)
            below, above = np.minimum(batches - at[0], 0), np.maximum(batches - at[-1], 0)
            expected = np.interp(batches, at, times) + slopes[0] * below + slopes[-1] * above
        return expected

    def simulate(self, sizes: GroupBatches, group: int | None = None) -> None:
        """Simulate a step of *sizes*, a share or fewer samples, and raise the bounds of the shares with at least these batches.

        The result is recorded as how long *group*, if given, makes a step while the others have little work.
        """
        same = (self.every == sizes).all(axis=1)
        self.simulated |= same
        time = self.search.time(sizes) if same.any() else self.search.time_of_smaller(sizes)
        if group is not None:
            self.curves[group][sizes[group]] = time
        if self.search.parts is not None:
            more = ((self.every == sizes) | ((self.every > sizes) & self.rising)).all(axis=1)
            self.floor[more] = np.maximum(self.floor[more], time)

    def _columns(self, of_batches: Sequence[NDArray[_BatchValue]]) -> NDArray[_BatchValue]:
        """Return a column for each group: the value in *of_batches* for its batch in each share."""
        columns = zip(of_batches, self.batches, self.every.T, strict=True)
        return np.stack([values[np.searchsorted(batches, column)] for values, batches, column in columns], axis=1)


def _rising(parts: Sequence[Sequence[float]]) -> NDArray[np.bool_]:
    """Return for each batch, in ascending order, whether all *parts* take at least as long as at any smaller batch."""
    table = np.array(parts)
    return np.asarray((table >= np.maximum.accumulate(table, axis=0) * (1 - SLACK)).all(axis=1))
