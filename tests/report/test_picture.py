"""Does a plot reach its files, the same each time? Oracles: file signatures, the XML parser, equal bytes."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.report.picture import NamedPoint, Picture, figure, log_ticks, name_points, picture, picture_due, plain_logarithm
from sim.spec.yaml import SpecError


def drawn() -> Picture:
    made, (axes,) = figure(1, (3, 2))
    axes.plot([1, 2], [3, 4], label="a label")
    axes.legend()
    return picture(made)


def test_one_figure_is_one_picture() -> None:
    assert drawn() == drawn()
    assert drawn().png.startswith(b"\x89PNG") and drawn()._repr_png_() == drawn().png
    texts = [element.text for element in ElementTree.fromstring(drawn().svg).iter("{http://www.w3.org/2000/svg}text")]
    assert "a label" in texts  # as text, not as shapes of letters


def test_the_name_tells_the_kind(tmp_path: Path) -> None:
    for name in ("a.png", "a.svg"):
        drawn().save(tmp_path / name)
        assert (tmp_path / name).read_bytes() == drawn().files("a")[name]
    with pytest.raises(SpecError, match=r"a\.jpg: a picture in a file '\*\.jpg'; write \.png or \.svg"):
        drawn().save(tmp_path / "a.jpg")
    with pytest.raises(SpecError, match=r"a\.jpg: a picture in a file '\*\.jpg'"):
        picture_due(tmp_path / "a.jpg")
    assert picture_due(tmp_path / "b.png") == tmp_path / "b.png"


def test_names_lie_neither_on_each_other_nor_beyond_the_axes() -> None:
    """Oracle: boxes of the drawn text; the bold name comes first, one of two at the same place is left out or beside."""
    drawn, (axes,) = figure(1, (4, 3))
    points = [NamedPoint(1.0 + 0.02 * (number % 6), 1.0 + 0.02 * (number // 6), f"machine-{number}") for number in range(30)]
    points.append(NamedPoint(1.05, 1.04, "the-best", bold=True))
    axes.scatter([point.x for point in points], [point.y for point in points])
    name_points(axes, points)
    drawn.draw_without_rendering()
    names = [text.get_text() for text in axes.texts]
    boxes = [text.get_window_extent() for text in axes.texts]
    assert names[0] == "the-best" and 3 < len(names) < len(points)
    assert all(not one.overlaps(other) for place, one in enumerate(boxes) for other in boxes[:place])
    inside = axes.get_window_extent()
    assert all(inside.x0 <= box.x0 and box.x1 <= inside.x1 for box in boxes)


def test_a_plain_logarithm_writes_plain_numbers() -> None:
    drawn, (axes,) = figure(1, (6, 4))
    axes.loglog([0.4, 30.0], [1.0, 2.0])
    plain_logarithm(axes.xaxis)
    plain_logarithm(axes.yaxis)
    drawn.draw_without_rendering()
    across = {label.get_text() for label in axes.get_xticklabels(which="both") if 0.4 <= label.get_position()[0] <= 30}
    assert {"0.5", "1", "2", "5", "10", "20"} <= across and not any("10^" in text for text in across)


@given(st.floats(1e-9, 1e12), st.floats(1.2, 1e12))
def test_ticks_are_few_and_inside(low: float, ratio: float) -> None:
    ticks = log_ticks(low, low * ratio)
    assert 2 <= len(ticks) <= 7 and ticks == sorted(set(ticks))
    assert low <= ticks[0] and ticks[-1] <= low * ratio


def test_ticks_over_a_small_range_are_equal_steps() -> None:
    assert log_ticks(0.173, 0.187) == [0.175, 0.18, 0.185]
    assert log_ticks(0.03, 0.8) == pytest.approx([0.05, 0.1, 0.2, 0.5])


@pytest.mark.parametrize(("low", "high"), [(0.15, 0.21), (0.04, 0.7), (0.0026, 35.0), (1e-6, 1e6)])
def test_labels_of_ticks_do_not_collide(low: float, high: float) -> None:
    """Oracle: boxes of the drawn labels."""
    drawn, (axes,) = figure(1, (6, 6))
    axes.set(xscale="log", yscale="log", xlim=(low, high), ylim=(low, high))
    for axis in (axes.xaxis, axes.yaxis):
        plain_logarithm(axis, "s")
    drawn.draw_without_rendering()
    for labels in (axes.get_xticklabels(which="both"), axes.get_yticklabels(which="both")):
        boxes = [label.get_window_extent() for label in labels if label.get_text()]
        assert len(boxes) >= 2
        assert all(not one.overlaps(other) for place, one in enumerate(boxes) for other in boxes[:place])
        assert all(label.get_text().endswith("s") for label in labels if label.get_text())
