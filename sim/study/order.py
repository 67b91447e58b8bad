"""In which order are the points of a sweep computed? Points that share their epochs are computed consecutively, in one process.

Fields that affect no epoch (a price; the NIC of a job on one node) are found at the first point, by the second value of each field,
without simulating. A wrong guess only costs time: whether a point shares an epoch is checked again when it is computed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Final, NamedTuple

from sim.simulate import epochs_cache_key
from sim.spec import memo
from sim.spec.yaml import SpecError
from sim.study.scenario import Scenario, has_layout, prepare
from sim.study.space import Point

_MOST: Final = memo.MOST // 16
"""Maximum number of points of one epoch whose descriptions all stay cached: one hardware description takes a dozen entries."""


class ComputeOrder(NamedTuple):
    """The *fields* that affect epochs, and how many consecutive points share theirs."""

    fields: Mapping[str, Mapping[str, int]]
    """By field, the position of each of its values."""
    group_size: int

    def place(self, point: Point) -> tuple[int, ...]:
        """Return the sort key of *point* in the order of computation."""
        return tuple(self.fields[key][value] for key, value in point if key in self.fields)


def compute_order(points: Sequence[Point], at: Callable[[Point], Scenario]) -> ComputeOrder:
    """Return the order in which to compute *points*; *at* returns the scenario of a point."""
    columns = zip(*points, strict=True)
    values = {column[0][0]: list(dict.fromkeys(value for _, value in column)) for column in columns}
    idle = set[str]()
    if points and len(points) == math.prod(map(len, values.values())):  # in a grid points differ in one field only
        idle = {key for key, several in values.items() if len(several) > 1 and _keeps_epochs(key, several[1], points[0], at)}
    together = math.prod(len(values[key]) for key in idle)
    if not idle or together > _MOST:
        return ComputeOrder({}, 1)
    return ComputeOrder({key: {value: place for place, value in enumerate(values[key])} for key in values if key not in idle}, together)


def _keeps_epochs(key: str, value: str, point: Point, at: Callable[[Point], Scenario]) -> bool:
    """Return whether the epochs of *point* are known to be the same with *value* for *key*."""
    first, other = (_epoch_key(at(each)) for each in (point, tuple({**dict(point), key: value}.items())))
    return first is not None and first == other


def _epoch_key(scenario: Scenario) -> Hashable:
    try:
        if has_layout(scenario):
            return None
        question = prepare(scenario)
        return epochs_cache_key(question.hardware, question.jobs)
    except SpecError:
        return None  # reported when the point is computed
