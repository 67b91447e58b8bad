"""In which order are the points of a sweep computed? Those that share their epochs one after another, in one process.

Which fields decide no epoch (a price; the NIC of a job on one node) is asked at the first point, of each field's second value, without
simulating. A wrong guess costs time only: whether a point shares an epoch is asked again when its turn comes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Final, NamedTuple

from sim.simulate import decided_by
from sim.spec import shelf
from sim.spec.yaml import SpecError
from sim.study.scenario import Scenario, has_layout, prepare
from sim.study.space import Point

_MOST: Final = shelf.MOST // 16
"""Points of one epoch whose descriptions all stay on the shelf: one of hardware takes a dozen places."""


class ComputeOrder(NamedTuple):
    """The *fields* that decide epochs, and how many points in a row share theirs."""

    fields: Mapping[str, Mapping[str, int]]
    """By field, the place of each of its values."""
    together: int

    def place(self, point: Point) -> tuple[int, ...]:
        """Return where among others *point* is computed."""
        return tuple(self.fields[key][value] for key, value in point if key in self.fields)


def compute_order(points: Sequence[Point], at: Callable[[Point], Scenario]) -> ComputeOrder:
    """Return the order in which to compute *points*, each of which asks for the scenario *at* it."""
    columns = zip(*points, strict=True)
    values = {column[0][0]: list(dict.fromkeys(value for _, value in column)) for column in columns}
    idle = set[str]()
    if points and len(points) == math.prod(map(len, values.values())):  # in a grid points differ in one field only
        idle = {key for key, several in values.items() if len(several) > 1 and _decides_nothing(key, several[1], points[0], at)}
    together = math.prod(len(values[key]) for key in idle)
    if not idle or together > _MOST:
        return ComputeOrder({}, 1)
    return ComputeOrder({key: {value: place for place, value in enumerate(values[key])} for key in values if key not in idle}, together)


def _decides_nothing(key: str, value: str, point: Point, at: Callable[[Point], Scenario]) -> bool:
    """Tell whether the epochs of *point* are the same with *value* for *key*, as far as that is known."""
    first, other = (_made_of(at(each)) for each in (point, tuple({**dict(point), key: value}.items())))
    return first is not None and first == other


def _made_of(scenario: Scenario) -> Hashable:
    try:
        if has_layout(scenario):
            return None
        question = prepare(scenario)
        return decided_by(question.hardware, question.jobs)
    except SpecError:
        return None  # it is said when its turn comes
