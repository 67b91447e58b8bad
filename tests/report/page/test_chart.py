"""Do points lie where their figures say? Oracle: the axes' own inverse, and geometry of labels."""

from __future__ import annotations

import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.report.page.chart import BOTTOM, HEIGHT, LEFT, RIGHT, TOP, WIDTH, Point, axis, chart
from tests.report.page.reading import Page

VALUES = st.floats(1e-3, 1e6)


@given(st.lists(st.tuples(VALUES, VALUES), min_size=1, max_size=30))
def test_points_are_inside_and_in_order(places: list[tuple[float, float]]) -> None:
    across, up = axis("x", [x for x, _ in places], str), axis("y", [y for _, y in places], str)
    points = [Point(x, y, "name", "says", (("a", x), ("b", y))) for x, y in places]
    dots = Page(chart(points, across, up, "label")).all("circle")
    for dot, (x, y) in zip(dots, places, strict=True):
        left, top = float(dot.attributes["cx"]), float(dot.attributes["cy"])
        assert LEFT <= left <= WIDTH - RIGHT and TOP <= top <= HEIGHT - BOTTOM
        share = (left - LEFT) / (WIDTH - RIGHT - LEFT)
        assert math.log(across.low) + share * math.log(across.high / across.low) == pytest.approx(math.log(x), abs=0.02)
        assert (float(dot.attributes["data-x"]), float(dot.attributes["data-y"])) == (x, y)


@given(VALUES, VALUES)
def test_ticks_are_round_and_inside(one: float, other: float) -> None:
    found = axis("x", [one, other], str)
    assert all(found.low <= tick <= found.high for tick in found.ticks)
    assert all(f"{tick:.6e}"[0] in "125" for tick in found.ticks)


def test_labels_do_not_lie_on_each_other() -> None:
    points = [Point(1 + place % 5, 1 + place / 3, f"machine-{place}", "says", (("a", 1.0), ("b", 1.0)), True, True) for place in range(15)]
    across, up = axis("x", [1, 5], str), axis("y", [1, 6], str)
    html = chart(points, across, up, "label")
    boxes = [
        (float(x) - (7.0 * len(name) if anchor == "end" else 0), float(y), 7.0 * len(name))
        for x, y, anchor, name in re.findall(r'<text x="([\d.]+)" y="([\d.]+)" text-anchor="(start|end)">(machine-\d+)', html)
    ]
    assert len(boxes) >= 10
    for place, (left, base, wide) in enumerate(boxes):
        for other, low, width in boxes[place + 1 :]:
            assert left + wide <= other + 0.1 or other + width <= left + 0.1 or abs(base - low) >= 12.9
