"""Do points lie where their figures say? Oracle: the axes' own inverse, and geometry of labels."""

from __future__ import annotations

import math
import re
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sim.report.page.chart import (
    BOTTOM,
    HEIGHT,
    LEFT,
    RIGHT,
    TOP,
    WIDTH,
    ChartPoint,
    axis,
    chart,
    error_bars,
    linear_axis,
    turning_points,
    with_errors,
)
from tests.report.page.reading import Page

ROOT = Path(__file__).resolve().parents[3]

VALUES = st.floats(1e-3, 1e6)


@given(st.lists(st.tuples(VALUES, VALUES), min_size=1, max_size=30))
def test_points_are_inside_and_in_order(places: list[tuple[float, float]]) -> None:
    across, up = axis("x", [x for x, _ in places], str), axis("y", [y for _, y in places], str)
    points = [ChartPoint(x, y, "name", "says", (("a", x), ("b", y))) for x, y in places]
    dots = Page(chart(points, across, up, "label")).all("circle")
    assert len(dots) == len(places)
    for dot, (x, y) in zip(dots, places, strict=True):
        left, top = float(dot.attributes["cx"]), float(dot.attributes["cy"])
        assert LEFT <= left <= WIDTH - RIGHT and TOP <= top <= HEIGHT - BOTTOM
        share = (left - LEFT) / (WIDTH - RIGHT - LEFT)
        assert math.log(across.low) + share * math.log(across.high / across.low) == pytest.approx(math.log(x), abs=0.02)
        assert (float(dot.attributes["data-x"]), float(dot.attributes["data-y"])) == (x, y)


@given(VALUES, VALUES)
@example(1.0, 1.0)  # 23 x 0.05 is 2e-16 beyond the end at 1.15
def test_ticks_are_round_and_inside(one: float, other: float) -> None:
    x_axis = axis("x", [one, other], str)
    assert all(x_axis.low <= tick <= x_axis.high for tick in x_axis.ticks)
    assert all(float(f"{tick:.2e}") == pytest.approx(tick, rel=1e-9) for tick in x_axis.ticks)
    assert len(x_axis.ticks) >= (2 if x_axis.high > 300 * x_axis.low else 3)


@given(VALUES, VALUES)
def test_a_linear_axis_is_even(one: float, other: float) -> None:
    """Oracle: shares of a length; ticks stand equally far apart, and there are enough to read by."""
    x_axis = linear_axis("x", [one, other], str)
    assert x_axis.low <= min(one, other) <= max(one, other) <= x_axis.high
    assert x_axis.place(one, 0.0, 1.0) * (x_axis.high - x_axis.low) + x_axis.low == pytest.approx(one, rel=1e-6)
    apart = {round(later - earlier, 9) for earlier, later in pairwise(x_axis.ticks)}
    assert 3 <= len(x_axis.ticks) <= 10
    assert max(apart) == pytest.approx(min(apart), rel=1e-6)


def test_the_best_have_their_name_whatever_is_in_the_way() -> None:
    crowd = [ChartPoint(1 + place % 10 / 10, 1 + place // 10 / 10, "another", "", (("a", 1.0), ("b", 1.0))) for place in range(100)]
    best = ChartPoint(1.45, 1.45, "the best", "", (("a", 1.0), ("b", 1.0)), best=True, is_labeled=True)
    page = Page(chart([*crowd, best], axis("x", [1, 2], str), axis("y", [1, 2], str), "label"))
    assert [text.text for text in page.all("text", class_="label")] == ["the best"]
    assert "best" in page.all("circle")[-1].attributes["class"].split()  # it lies on top


def test_labels_do_not_lie_on_each_other() -> None:
    points = [
        ChartPoint(1 + place % 5, 1 + place / 3, f"machine-{place}", "says", (("a", 1.0), ("b", 1.0)), True, True) for place in range(15)
    ]
    across, up = axis("x", [1, 5], str), axis("y", [1, 6], str)
    html = chart(points, across, up, "label")
    boxes = [
        (float(x) - (6.6 * len(name) if anchor == "end" else 0), float(y), 6.6 * len(name))
        for x, y, anchor, name in re.findall(r'<text x="([\d.]+)" y="([\d.]+)" text-anchor="(start|end)" class="label">(machine-\d+)', html)
    ]
    assert len(boxes) >= 10
    for place, (left, base, wide) in enumerate(boxes):
        for other, low, width in boxes[place + 1 :]:
            assert left + wide <= other + 0.1 or other + width <= left + 0.1 or abs(base - low) >= 12.9


def _labels(points: list[ChartPoint]) -> list[str]:
    across, up = axis("x", [1, 5], str), axis("y", [1, 6], str)
    return [text.text for text in Page(chart(points, across, up, "label")).all("text", class_="label")]


def test_points_on_one_place_share_a_name() -> None:
    """Oracle: two dots whose centers are nearer than two radii overlap, so a name of one alone would hide the other."""
    at = (("a", 1.0), ("b", 1.0))
    one, same, near, far = (
        ChartPoint(x, 2.0, name, "", at, is_labeled=True) for name, x in zip("1234", (2.0, 2.0, 2.01, 4.0), strict=True)
    )
    assert _labels([one, far]) == ["1", "4"]
    assert _labels([one, same, far]) == ["1, 2", "4"]
    assert _labels([one, same, near, far]) == ["1, 2 and 1 more", "4"]
    unnamed = ChartPoint(2.0, 2.0, "5", "", at)
    assert _labels([one, unnamed, far]) == ["1", "4"]
    best = ChartPoint(2.0, 2.0, "6", "", at, best=True, is_labeled=True)
    assert _labels([one, best, far]) == ["6, 1", "4"]
    assert _labels([one, one, far]) == ["1", "4"]


def test_few_names_fit_a_phone_too() -> None:
    """Oracle: a narrow chart writes its few names in letters of 23 instead of 13 (page.css), which must end before the chart does."""
    css = (ROOT / "sim/report/page/page.css").read_text(encoding="utf-8")
    [size] = re.findall(r"\.chart\.few \.label\{[^}]*font-size:(\d+)px", css)
    point = ChartPoint(5.0, 2.0, "batch 64", "", (("a", 1.0), ("b", 1.0)), is_labeled=True)
    [label] = Page(chart([point], axis("x", [1, 5], str), axis("y", [1, 6], str), "label")).all("text", class_="label")
    wide = 6.6 * len(point.name) * int(size) / 13
    at = float(label.attributes["x"])
    assert (at + wide if label.attributes["text-anchor"] == "start" else at) <= WIDTH


def test_a_long_name_ends_before_the_chart_in_a_wide_font() -> None:
    """Oracle: in DejaVu Sans, the default of many Linux systems, a letter of 13 is 7.8 wide (34 letters of a rented machine measured)."""
    for at in (1.5, 1.8, 2.0, 2.5, 3.5, 4.5):
        point = ChartPoint(at, 2.0, "gpu_8x_a100_80gb_sxm4 (on demand)", "", (("a", 1.0), ("b", 1.0)), best=True, is_labeled=True)
        others = [ChartPoint(1.0 + 0.3 * number, 4.0, f"{number}", "", (("a", 1.0), ("b", 1.0)), is_labeled=True) for number in range(9)]
        labels = Page(chart([point, *others], axis("x", [1, 5], str), axis("y", [1, 6], str), "label")).all("text")
        for label in (label for label in labels if label.text == point.name):
            size = 23 if "narrow" in label.attributes["class"].split() else 13
            long, x = 7.8 / 13 * size * len(point.name), float(label.attributes["x"])
            assert (x + long <= WIDTH) if label.attributes["text-anchor"] == "start" else x - long >= 0


def test_a_name_keeps_off_lines_where_there_is_room() -> None:
    """Oracle: without the line the name stands at the dot's right, on its height; the line takes that place, and the one at its left."""
    point = ChartPoint(3.0, 2.0, "name", "", (("a", 1.0), ("b", 1.0)), is_labeled=True)
    across, up = axis("x", [1, 5], str), axis("y", [1, 6], str)
    free, crossed = (
        Page(chart([point], across, up, "label", lines)).all("text", class_="label")[0].attributes
        for lines in ((), [("ideal", [(1.0, 2.0), (5.0, 2.0)])])
    )
    line = HEIGHT - BOTTOM - (HEIGHT - BOTTOM - TOP) * math.log(2.0 / up.low) / math.log(up.high / up.low)
    assert abs(float(free["y"]) - line) < 5
    assert float(crossed["y"]) < line - 5


def test_error_bars_are_whole_and_their_axis_holds_them() -> None:
    """Oracle: the axis' own inverse. Ends are at -20% and +20%; a bar that the axis cuts off has no end mark there."""
    point = ChartPoint(10.0, 5.0, "name", "says", (("a", 10.0), ("b", 5.0)), error=0.2, error_up=0.2)
    across, up = axis("x", with_errors([point]), str), linear_axis("y", [0.0, 6.0], str)
    flat, upright = (path.attributes["d"] for path in Page(chart([point], across, up, "label")).all("path", class_="error"))
    left, right = (float(number) for number in re.findall(r"[MH]([\d.]+)", flat))
    ends = [across.low * (across.high / across.low) ** ((end - LEFT) / (WIDTH - RIGHT - LEFT)) for end in (left, right)]
    assert ends == pytest.approx([8.0, 12.0], rel=2e-3)
    bottom, top = float(re.findall(r",([\d.]+)", upright)[0]), float(re.findall(r"V([\d.]+)", upright)[0])
    heights = [up.high * (HEIGHT - BOTTOM - end) / (HEIGHT - BOTTOM - TOP) for end in (bottom, top)]
    assert heights == pytest.approx([4.0, 6.0], abs=0.02)
    cut = Page(chart([point], axis("x", [10.0], str), up, "label")).all("path", class_="error")[0].attributes["d"]
    assert flat.count("v8") == 2 and cut.count("v8") == 0


@pytest.mark.parametrize(("low", "high", "kept"), [(3.5, 80.0, 4), (1.0, 100.0, 5), (0.001, 250.0, 4)])
def test_a_narrow_axis_leaves_out_only_the_numbers_that_have_no_room(low: float, high: float, kept: int) -> None:
    """In a narrow chart letters are 23 of the chart's units high and up to 16 wide; of four numbers on an axis, two were left out."""
    point = ChartPoint(low, 1.0, "name", "says", (("a", low), ("b", 1.0)))
    across = axis("x", [low, high], lambda value: f"{value:g}")
    ticks = [
        tick for tick in Page(chart([point], across, axis("y", [1.0], str), "label")).all("text") if "across" in tick.attributes["class"]
    ]
    shown = [tick for tick in ticks if "spare" not in tick.attributes["class"].split()]
    ends = [(float(tick.attributes["x"]), 8 * len(tick.text)) for tick in shown]
    assert len(shown) >= kept and all(x + half < other - next_half for (x, half), (other, next_half) in pairwise(ends))


def test_error_bars_of_a_crowd_are_faint_but_for_the_best() -> None:
    """Every point has its bar; more points than a chart has lines of names would lie behind bars as strong as those of the best."""

    def drawn(count: int) -> tuple[int, int, str]:
        points = [
            ChartPoint(1.0 + place, 5.0, "name", "says", (("a", 1.0), ("b", 5.0)), best=place < 2, error=0.2) for place in range(count)
        ]
        page = Page(chart(points, axis("x", with_errors(points), str), linear_axis("y", [0.0, 6.0], str), "label"))
        return len(page.all("path", class_="error")), len(page.all("path", class_="faint")), error_bars(points)

    assert drawn(10) == (10, 0, "Error bars: 90% of similar predictions were within them.")
    assert drawn(60) == (60, 58, "Error bars (faint except the orange ones): 90% of similar predictions were within them.")


def test_numbers_fit_a_phone_in_any_number() -> None:
    """Lines of a table are named by their numbers: those are large enough to read on a phone, and lie on nothing there either."""
    points = [
        ChartPoint(2.0**place, float(place % 5), str(place + 1), "says", (("a", 1.0), ("b", 5.0)), is_labeled=True) for place in range(11)
    ]
    page = Page(chart(points, axis("x", [point.x for point in points], str), linear_axis("y", [0.0, 4.0], str), "label"))
    assert "few" in page.all("div")[0].attributes["class"].split()
    assert {label.text for label in page.all("text", class_="label")} == {point.name for point in points}


def crowd() -> str:
    """Twelve machines of long names at each of seven prices, the fastest of the cheapest first, as a chart."""
    xs, prices = [1.1**power for power in range(12)], [10.0 * 1.05**power for power in range(7)]
    points = [
        ChartPoint(
            x, y, f"{place} x gpu_8x_h100_sxm5 (on demand)", "", (("", x), ("", y)), front and place == 11, front, front and place < 3
        )
        for y, front in zip(prices, [True] + [False] * 6, strict=True)
        for place, x in enumerate(xs)
    ]
    return chart(points, axis("hours", [0.5, *xs], str), axis("USD", [5.0, 20.0], str), "label")


def test_the_front_has_its_names_in_a_crowd_at_the_end_of_lines() -> None:
    page = Page(crowd())
    wide = [text.text for text in page.all("text") if text.attributes.get("class") == "label"]
    assert {f"{place} x gpu_8x_h100_sxm5 (on demand)" for place in (0, 1, 2, 11)} <= set(wide)
    lines = [path.attributes["d"] for path in page.all("path") if path.attributes.get("class") == "leader"]
    ends = [tuple(float(number) for number in re.findall(r"[\d.]+", line)) for line in lines]
    dots = {(float(dot.attributes["cx"]), float(dot.attributes["cy"])) for dot in page.all("circle")}
    assert lines and all((x, y) in dots and (x, y) != (to_x, to_y) for x, y, to_x, to_y in ends)


def test_a_phone_shows_the_best_and_the_front_of_a_crowd() -> None:
    narrow = [text.text for text in Page(crowd()).all("text") if "narrow" in text.attributes.get("class", "").split()]
    assert narrow[0] == "11 x gpu_8x_h100_sxm5 (on demand)" and len(narrow) == 4


def test_a_phone_names_both_ends_of_the_front_next_to_them() -> None:
    """A front of eight below a crowd: the fastest and the cheapest, which the headline names, are among the four names, none far away."""
    front = [(2 + place, 9.0 - place) for place in range(8)]
    others = [(2.1 + 0.3 * number, 10.0 + number) for number in range(30)]
    points = [
        ChartPoint(x, y, f"machine-{number}", "", (("a", x), ("b", y)), best=(x, y) in front, is_labeled=True)
        for number, (x, y) in enumerate([*front, *others])
    ]
    page = Page(chart(points, axis("x", [2.0, 11.0], str), axis("y", [2.0, 40.0], str), "label"))
    names = {text.text: text for text in page.all("text") if "narrow" in text.attributes.get("class", "").split()}
    assert len(names) == 4 and {"machine-0", "machine-7"} <= set(names)
    heights = {
        (float(dot.attributes["data-x"]), float(dot.attributes["data-y"])): float(dot.attributes["cy"]) for dot in page.all("circle")
    }
    for name, text in names.items():
        assert abs(float(text.attributes["y"]) - heights[front[int(name.removeprefix("machine-"))]]) < 5 * 13 * 23 / 13


def test_a_curve_has_dots_where_it_turns_and_none_in_an_upright_part() -> None:
    """By hand: of 20 shares at 12.2 hours and two beyond, the first, the last of the upright part and both others."""
    xs = [12.2] * 20 + [12.7, 13.8]
    points = [ChartPoint(x, float(place), "", "", (("", x), ("", 0.0))) for place, x in enumerate(xs)]
    assert [point.y for point in turning_points(points)] == [0.0, 19.0, 20.0, 21.0]
