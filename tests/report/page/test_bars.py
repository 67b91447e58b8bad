"""Do widths of a bar's pieces match their values? Oracle: arithmetic."""

from __future__ import annotations

import re

from sim.report.page.bars import ERROR_BARS, BarPiece, bar, bar_scale, p90_error, stalls
from sim.report.page.markup import Figures
from tests.report.page.reading import Page, assert_figures_are_the_documents

STALLS = {"compute": 0.6, "fetch": 0.0, "prep": 0.0, "copy": 0.3, "interconnect": 0.0, "network": 0.1, "straggler": 0.0, "launch": 0.0}
DOCUMENT = {
    "step_time_s": 1.0, "stalls_s": STALLS,
    "first_epoch": {"step_time_s": 2.0, "stalls_s": {**STALLS, "fetch": 1.0}},
}  # fmt: skip


def widths(html: str) -> list[float]:
    return [float(width) for width in re.findall(r"width:([\d.]+)%", html)]


def test_pieces_are_parts_of_the_scale() -> None:
    figures = Figures(DOCUMENT, "run")
    pieces = [BarPiece("stalls_s/compute", "compute", "compute", "says"), BarPiece("stalls_s/fetch", "fetch", "fetch", "says")]
    drawn = Page(bar(figures, pieces, "step_time_s", 2.0))
    assert [(mark.text, mark.attributes["data-tip"]) for mark in drawn.all("div", class_="mark")] == [
        ("compute", "compute\nsays\n60.0% of the whole")
    ]
    assert widths(bar(figures, pieces, "step_time_s", 2.0)) == [30.0]


def test_both_epochs_share_one_scale() -> None:
    html = stalls(Figures(DOCUMENT, "run"))
    assert widths(html) == [30.0, 15.0, 5.0, 30.0, 50.0, 15.0, 5.0]
    page = Page(html)
    assert [row.text for row in page.all("tbody")[0].inside if row.name == "th"] == ["compute", "fetch", "copy", "network"]
    embedded = Page(html)
    embedded.documents = lambda: {"run": DOCUMENT}  # type: ignore[method-assign]
    assert assert_figures_are_the_documents(embedded) == 4 * 4 + 7 + 2


def test_an_error_bar_ends_where_nine_in_ten_predictions_do() -> None:
    """Oracle: by hand. A second that may be wrong by a quarter ends at 0.75 and 1.25 s of the 2.5 s that fill the width."""
    figures = Figures({**DOCUMENT, "expected_error": {"p90": 0.25}}, "run")
    assert p90_error(figures) == 0.25 and p90_error(Figures(DOCUMENT, "run")) == 0.0
    assert bar_scale([figures, Figures({"step_time_s": 2.0, "expected_error": None}, "run")], "step_time_s") == 2.0
    drawn = bar(figures, [BarPiece("stalls_s/compute", "compute", "compute", "says")], "step_time_s", 2.5, p90_error(figures))
    assert 'class="off" style="left:30.00%;width:20.00%"' in drawn
    assert 'class="off"' not in bar(figures, [], "step_time_s", 2.5)
    assert stalls(figures).count('class="off"') == 2 and ERROR_BARS in stalls(figures)
    assert "Error bars" not in stalls(Figures(DOCUMENT, "run"))
