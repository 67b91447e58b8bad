"""How are points drawn over two axes, linear or logarithmic? As an SVG scatter plot with lines; each point has a tooltip."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, pairwise, product

from sim.report.page.bars import ERROR_BARS
from sim.report.page.markup import Html, join, tag

WIDTH, HEIGHT = 820.0, 470.0
LEFT, RIGHT, TOP, BOTTOM = 88.0, 24.0, 14.0, 52.0
_LABEL_HEIGHT, _LABEL_WIDTH = 13.0, 6.6
"""Room of a label: its height, and the width of a letter."""
_WIDE_FONT = 7.8 / 6.6
"""How much longer a name is in DejaVu Sans, the widest of the fonts that browsers choose: it must still end before the chart does."""

_FACTORS = ((1.0, 2.0, 5.0), (1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 7.0))
"""Multiples of powers of ten that an axis may write as ticks; the first set that gives enough of them is used."""
_FEWEST = 3
"""Minimum number of ticks of an axis."""

_FEW = 4
"""Number of names of points that a narrow chart has room for."""
_SHORT = 6
"""Maximum letters of a short name, such as two line numbers of a table; a narrow chart writes all short names that fit."""
_NARROW = 23 / 13
"""Factor by which letters of names are larger in a narrow chart (page.css)."""

_NARROW_LETTER = 15.9
"""Width of a letter of a tick in a narrow chart: 25 (page.css) times that of a digit of DejaVu Sans; others are left out there."""

_LONG = 5
"""Maximum letters of a tick of the vertical axis; if one is longer, a narrow chart writes the ticks smaller."""

_FURTHEST, _NEARER = 12, 5
"""Distance in lines of text from which a name is too far from its point: in a wide chart, and in a narrow one, where points are dense."""

_DOT = 5.5
"""Radius of a dot."""

_NAMED = 2
"""Maximum number of names written for points at one place; the others are counted."""

_Rectangle = tuple[float, float, float, float]
"""Left, top, right, bottom."""


@dataclass(frozen=True)
class ChartPoint:
    """A point at *x*, *y* with its *tooltip*; *figures* has the place and value of both figures; *best* draws it in the accent color."""

    x: float
    y: float
    name: str
    tooltip: str
    figures: tuple[tuple[str, float], tuple[str, float]]
    best: bool = False
    is_labeled: bool = False
    """Whether its name is written next to it, if there is room."""
    has_priority: bool = False
    """Whether its name gets room before those of other points."""
    error: float = 0.0
    """Relative error of the horizontal figure, for an error bar; 0 for none."""
    error_up: float = 0.0
    """Relative error of the vertical figure."""
    is_chosen: bool = False
    """Whether a ring marks it, and its name comes first."""


@dataclass(frozen=True)
class ChartAxis:
    """An axis from *low* to *high*, logarithmic unless *linear*; *write* formats a value."""

    title: str
    low: float
    high: float
    write: Callable[[float], str]
    own: tuple[float, ...] = ()
    """Values to write instead of round ones."""
    linear: bool = False

    @property
    def ticks(self) -> list[float]:
        """Return *own*, or round values: 1, 2 and 5 times powers of ten, only the powers on a long axis, more values on a short one."""
        if self.own:
            return list(self.own)
        if self.linear:
            return self._even()
        if self.high / self.low >= 300:
            return self._powers((1.0,))
        return next((powers for factors in _FACTORS if len(powers := self._powers(factors)) >= _FEWEST), None) or self._even()

    def _powers(self, factors: Sequence[float]) -> list[float]:
        """Return the powers of ten on the axis, each times every one of *factors*."""
        powers = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
        return [tick for power in powers for factor in factors if self.low <= (tick := factor * 10.0**power) <= self.high]

    def _even(self) -> list[float]:
        """Return four to eight evenly spaced round values."""
        rough = (self.high - self.low) / 8
        power = 10.0 ** math.floor(math.log10(rough))
        step = next(factor * power for factor in (1.0, 2.0, 5.0, 10.0) if factor * power >= rough)
        counts = range(math.ceil(self.low / step - 1e-9), math.floor(self.high / step + 1e-9) + 1)
        return [min(max(count * step, self.low), self.high) for count in counts]  # rounding may put the outer two beyond the ends

    def place(self, value: float, start: float, end: float) -> float:
        """Return the position of *value* between *start* and *end*."""
        if self.linear:
            return start + (end - start) * (value - self.low) / (self.high - self.low)
        return start + (end - start) * math.log(value / self.low) / math.log(self.high / self.low)


def axis(title: str, values: Sequence[float], write: Callable[[float], str], own: bool = False) -> ChartAxis:
    """Return a logarithmic axis with a margin around *values*, all positive; *own* writes these values instead of round ones."""
    low, high = min(values), max(values)
    room = max((high / low) ** 0.07, 1.15)
    return ChartAxis(title, low / room, high * room, write, tuple(sorted(set(values))) if own else ())


def linear_axis(title: str, values: Sequence[float], write: Callable[[float], str]) -> ChartAxis:
    """Return a linear axis with a margin around *values*; it begins at 0 if the smallest is below half of the largest."""
    low, high = min(values), max(values)
    room = 0.07 * (high - low) or 0.07 * abs(high) or 1.0
    return ChartAxis(title, 0.0 if 0.0 <= low < 0.5 * high else low - room, high + room, write, linear=True)


def with_errors(points: Sequence[ChartPoint]) -> list[float]:
    """Return the horizontal figures of *points* and of the ends of their error bars, for an axis that holds them all."""
    return [point.x * factor for point in points for factor in (1.0, 1 - point.error, 1 + point.error) if factor > _SHORTEST]


def with_errors_up(points: Sequence[ChartPoint]) -> list[float]:
    """Return the vertical figures of *points* and of the ends of their error bars, as `with_errors` does for the horizontal ones."""
    return [point.y * factor for point in points for factor in (1.0, 1 - point.error_up, 1 + point.error_up) if factor > _SHORTEST]


_SHORTEST = 0.1
"""Share of a figure up to which an axis does not extend to the end of its error bar."""


def _error(point: ChartPoint, across: ChartAxis, up: ChartAxis, look: str) -> tuple[Html, _Rectangle]:
    """Return the error bar of *point*, cut off at the axis, and the room it takes; an end that is cut off has no cap."""
    ends = (max(across.low, point.x * (1 - point.error)), min(across.high, point.x * (1 + point.error)))
    left, right = (across.place(end, LEFT, WIDTH - RIGHT) for end in ends)
    y = up.place(point.y, HEIGHT - BOTTOM, TOP)
    first, last = (
        "m0,-4v8m0,-4" if end == point.x * factor else "" for end, factor in zip(ends, (1 - point.error, 1 + point.error), strict=True)
    )
    return tag("path", d=f"M{left:.1f},{y:.1f}{first}H{right:.1f}{last}", class_=look), (left, y - 4, right, y + 4)


def _error_up(point: ChartPoint, across: ChartAxis, up: ChartAxis, look: str) -> tuple[Html, _Rectangle]:
    """Return the vertical error bar of *point*, as `_error` does for the horizontal one."""
    ends = (max(up.low, point.y * (1 - point.error_up)), min(up.high, point.y * (1 + point.error_up)))
    floor, top = (up.place(end, HEIGHT - BOTTOM, TOP) for end in ends)
    x = across.place(point.x, LEFT, WIDTH - RIGHT)
    first, last = (
        "m-4,0h8m-4,0" if end == point.y * factor else ""
        for end, factor in zip(ends, (1 - point.error_up, 1 + point.error_up), strict=True)
    )
    return tag("path", d=f"M{x:.1f},{floor:.1f}{first}V{top:.1f}{last}", class_=look), (x - 4, top, x + 4, floor)


def _errors(points: Sequence[ChartPoint], across: ChartAxis, up: ChartAxis, look: str) -> list[tuple[Html, _Rectangle]]:
    bars = [_error(point, across, up, look) for point in points if point.error > 0]
    return bars + [_error_up(point, across, up, look) for point in points if point.error_up > 0]


def chart(
    points: Sequence[ChartPoint],
    across: ChartAxis,
    up: ChartAxis,
    label: str,
    lines: Sequence[tuple[str, Sequence[tuple[float, float]]]] = (),
) -> Html:
    """Return *points* over two axes, with *lines* (class, corners) behind them; *label* describes the chart."""

    def place(x: float, y: float) -> tuple[float, float]:
        return across.place(x, LEFT, WIDTH - RIGHT), up.place(y, HEIGHT - BOTTOM, TOP)

    traced = [(look, [place(*corner) for corner in line]) for look, line in lines]
    drawn = [tag("polyline", points=" ".join(f"{px:.1f},{py:.1f}" for px, py in line), class_=look) for look, line in traced]
    faint = [point for point in points if is_crowded(points) and not point.best]
    drawn += [bar for bar, _ in _errors(faint, across, up, "error faint")]
    errors = _errors([point for point in points if point not in faint], across, up, "error")
    drawn += [bar for bar, _ in errors]
    dots = []
    occupied: list[_Rectangle] = []
    for point in sorted(points, key=lambda point: (point.is_chosen, point.best)):  # the best ones lie on top
        x, y = place(point.x, point.y)
        occupied.append((x - 7, y - 7, x + 7, y + 7))
        look = f"dot mark{' best' * point.best}{' chosen' * point.is_chosen}"
        dots.append(
            tag(
                "circle",
                cx=f"{x:.1f}",
                cy=f"{y:.1f}",
                r="7" if point.best or point.is_chosen else f"{_DOT:g}",
                class_=look,
                data_tip=point.tooltip,
                data_x=repr(point.figures[0][1]),
                data_y=repr(point.figures[1][1]),
                data_x_at=point.figures[0][0],
                data_y_at=point.figures[1][0],
            )
        )
    labeled = [point for point in points if point.is_labeled]
    first = sorted(labeled, key=lambda point: (not point.is_chosen, not point.best, not point.has_priority))
    written: list[_Rectangle] = []
    barred = [room for _, room in errors] + [room for _, line in traced for room in _along(line)]
    names = []
    groups = _group_overlapping(first, [place(point.x, point.y) for point in first])
    few = len(groups) <= _FEW or all(min(map(len, _texts(group))) <= _SHORT for group in groups)
    scale = _NARROW if few else 1.0
    for group in groups:
        at = place(group[0].x, group[0].y)
        texts = [text for text in _texts(group) if len(groups) <= _FEW or not few or len(text) <= _SHORT]
        candidates = (_name(group[0], text, scale, *at, occupied, barred, written) for text in texts)
        names += [name for name in islice(filter(None, candidates), 1)]
    if not few:
        foremost = _ends_first([group[0] for group in groups if group[0].best or group[0].has_priority])[:_FEW]
        names += _names_of_narrow([(point, place(point.x, point.y)) for point in foremost], occupied, barred)
    svg = tag("svg", *_grid(across, up), *drawn, *dots, *names, viewBox=f"0 0 {WIDTH:g} {HEIGHT:g}", role="group", aria_label=label)
    axes = tag("p", f"Vertical: {up.title}. Horizontal: {across.title}.", class_="axes", aria_hidden="true")  # shown on a narrow page
    long = any(len(up.write(value)) > _LONG for value in up.ticks)
    look = f"chart marks{' few' * (few or len(names) <= _FEW)}{' long' * long}"
    return tag("div", axes, svg, class_=look, tabindex="0", role="group", aria_label=f"{label}; arrow keys move between points")


def turning_points(points: Sequence[ChartPoint]) -> list[ChartPoint]:
    """Return the ends and the turns of a curve of *points* in order: those next to which it moves horizontally, not only vertically."""
    xs = [point.x for point in points]
    threshold = _UPRIGHT * (max(xs) - min(xs))
    steps = [True, *(later - before > threshold for before, later in pairwise(xs)), True]
    return [point for point, before, after in zip(points, steps[:-1], steps[1:], strict=True) if before or after]


_UPRIGHT = 0.02
"""Share of a curve's width up to which a step of it counts as vertical: about the width of a dot."""


def is_crowded(points: Sequence[ChartPoint]) -> bool:
    """Return whether there are more *points* than a chart has lines of text; if so, error bars of all but the best are faint."""
    return len(points) * _LABEL_HEIGHT > HEIGHT - TOP - BOTTOM


def error_bars(points: Sequence[ChartPoint]) -> str:
    """Return the explanation of the error bars of *points* in a chart, and which of them are not faint."""
    return ERROR_BARS.replace(":", " (faint except the orange ones):") if is_crowded(points) else ERROR_BARS


def _ends_first(points: Sequence[ChartPoint]) -> list[ChartPoint]:
    """Return *points* with the chosen one, and the leftmost and the rightmost of the best, before the others: a verdict names those."""
    best = sorted((point for point in points if point.best), key=lambda point: point.x)
    ends = [best[0], best[-1]] if best else []
    return sorted(points, key=lambda point: (not point.is_chosen, point not in ends))


def _names_of_narrow(
    points: Sequence[tuple[ChartPoint, tuple[float, float]]], occupied: Sequence[_Rectangle], barred: Sequence[_Rectangle]
) -> list[Html]:
    """Return the names of *points* at their places for a narrow chart, as many as find room."""
    written: list[_Rectangle] = []
    candidates = (_name(point, point.name, _NARROW, *at, occupied, barred, written, "label narrow", _NEARER) for point, at in points)
    return list(filter(None, candidates))


def _along(line: Sequence[tuple[float, float]]) -> Iterator[_Rectangle]:
    """Yield the room of positions along *line* that are at most half the height of a name apart."""
    for (left, y), (right, other) in pairwise(line):
        parts = max(1, math.ceil(math.dist((left, y), (right, other)) / (_LABEL_HEIGHT / 2)))
        for part in range(parts + 1):
            x, height = left + (right - left) * part / parts, y + (other - y) * part / parts
            yield x - 1, height - 1, x + 1, height + 1


def _group_overlapping(points: Sequence[ChartPoint], places: Sequence[tuple[float, float]]) -> list[list[ChartPoint]]:
    """Return *points*, each grouped with later ones whose dots at *places* overlap its own; a group shares one name."""
    groups: list[tuple[tuple[float, float], list[ChartPoint]]] = []
    for point, at in zip(points, places, strict=True):
        overlapping = next((group for leader, group in groups if math.dist(leader, at) < 2 * _DOT), None)
        if overlapping is None:
            groups.append((at, [point]))
        else:
            overlapping.append(point)
    return [group for _, group in groups]


def _texts(group: Sequence[ChartPoint]) -> list[str]:
    """Return possible names of *group*, the fullest first: its first names, or only one, and how many more there are."""
    names = list(dict.fromkeys(point.name for point in group))
    if len(names) == 1:
        return names
    more = len(names) - _NAMED
    return [", ".join(names[:_NAMED]) + (f" and {more} more" if more > 0 else ""), f"{names[0]} and {len(names) - 1} more"]


def _name(
    point: ChartPoint,
    text: str,
    scale: float,
    x: float,
    y: float,
    dots: Sequence[_Rectangle],
    errors: Sequence[_Rectangle],
    written: list[_Rectangle],
    look: str = "label",
    furthest: int = _FURTHEST,
) -> Html | None:
    """Place the label *text* near *point* without overlapping *dots*, *errors* or labels in *written*; return None if there is no room.

    *scale* is the size of the letters. If necessary, the label covers error bars and lines, or has less space above and below than
    *scale* requires. Labels of points with priority, and of the best, may also be less than *furthest* lines of text away, at the end of
    a line; those of the best may cover dots.
    """
    wide = scale * _LABEL_WIDTH * len(text)
    near = [(x + 10, y + 4), (x - 10 - wide, y + 4), (x + 6, y - 9), (x + 6, y + 19), (x - 6 - wide, y - 9), (x - 6 - wide, y + 19)]
    far = [
        (left, y + side * step * scale * _LABEL_HEIGHT)
        for step, side, left in product(range(2, furthest), (-1, 1), (x + 14, x - wide / 2, x - 14 - wide))
    ]
    tries = [(tall, blocked, near) for tall in (scale * _LABEL_HEIGHT, _LABEL_HEIGHT) for blocked in ((*dots, *errors), dots)]
    tries += [(scale * _LABEL_HEIGHT, dots, far)] if point.has_priority or point.best else []
    tries += [(_LABEL_HEIGHT, (), near)] if point.best else []
    for tall, blocked, places in tries:
        for left, base in places:
            room = (left, base - tall + 2, left + wide, base + 2)
            reach = (room[0], left + wide * _WIDE_FONT) if room[0] > x else (room[2] - wide * _WIDE_FONT, room[2])
            inside = room[0] > LEFT and reach[0] > 0 and reach[1] < WIDTH - 2 and room[1] > 0 and room[3] < HEIGHT - BOTTOM
            if inside and not any(_overlap(room, other) for other in (*blocked, *written)):
                written.append(room)
                return _written(text, room, base, (x, y), look, led=places is far)
    return None


def _written(text: str, room: _Rectangle, base: float, at: tuple[float, float], look: str, led: bool) -> Html:
    """Return *text* in its *room* on the baseline *base*; *led* adds a line from the point *at*."""
    start = room[0] > at[0]
    label = tag(
        "text", text, x=f"{room[0] if start else room[2]:.1f}", y=f"{base:.1f}", text_anchor="start" if start else "end", class_=look,
    )  # fmt: skip
    end = (min(max(at[0], room[0]), room[2]), room[3] if base < at[1] else room[1])
    line = f"M{at[0]:.1f},{at[1]:.1f}L{end[0]:.1f},{end[1]:.1f}"
    return join(tag("path", d=line, class_=f"leader{look.removeprefix('label')}"), label) if led else label


def _overlap(one: _Rectangle, other: _Rectangle) -> bool:
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]


def _grid(across: ChartAxis, up: ChartAxis) -> list[Html]:
    floor, edge = HEIGHT - BOTTOM, WIDTH - RIGHT
    drawn = []
    end = -math.inf
    for value in across.ticks:
        x = across.place(value, LEFT, edge)
        half = _NARROW_LETTER * len(across.write(value)) / 2
        spare = x - half < end + _NARROW_LETTER
        end = end if spare else x + half
        drawn += [
            tag("line", x1=f"{x:.1f}", x2=f"{x:.1f}", y1=TOP, y2=floor, class_="grid-line"),
            _tick(x, floor + 17, across.write(value), "middle", "tick across spare" if spare else "tick across"),
        ]
    for value in up.ticks:
        y = up.place(value, floor, TOP)
        drawn += [
            tag("line", x1=LEFT, x2=edge, y1=f"{y:.1f}", y2=f"{y:.1f}", class_="grid-line"),
            _tick(LEFT - 8, y + 4, up.write(value), "end", "tick up"),
        ]
    corner = TOP + (floor - TOP) / 2
    titles = join(
        tag("text", across.title, x=LEFT + (edge - LEFT) / 2, y=HEIGHT - 8, class_="axis-title", text_anchor="middle"),
        tag("text", up.title, x=14, y=corner, class_="axis-title", text_anchor="middle", transform=f"rotate(-90 14 {corner:g})"),
    )
    return [*drawn, tag("path", d=f"M{LEFT:g},{TOP:g} V{floor:g} H{edge:g}", class_="frame"), titles]


def _tick(x: float, y: float, text: str, anchor: str, look: str = "tick") -> Html:
    return tag("text", text, x=f"{x:.1f}", y=f"{y:.1f}", class_=look, text_anchor=anchor)
