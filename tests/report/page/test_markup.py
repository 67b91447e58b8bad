"""Is text safe in HTML, and a figure readable again? Oracle: the standard library's own parser."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.cli import main
from sim.report.page.markup import Figures, command_line, join, note_box, table, tag, tiles
from sim.report.page.words import as_money, as_time
from tests.report.page.reading import Page, assert_figures_are_the_documents
from tests.spec.foreign.test_chakra_wire import ALL_REDUCE

# What the parser replaces itself (NUL, carriage return) cannot come back.
TEXT = st.text(st.characters(blacklist_characters="\x00\r", blacklist_categories=["Cs"]))


@given(TEXT, TEXT)
def test_whatever_is_written_comes_back(text: str, value: str) -> None:
    (element,) = Page(tag("p", text, data_tip=value)).elements
    assert element.text == text and element.attributes["data-tip"] == value


def test_elements_are_not_escaped_again_and_nothing_is_left_out() -> None:
    assert join(tag("b", "1 < 2"), None, " & ") == "<b>1 &lt; 2</b> &amp; "
    assert tag("td", "x", class_="figure", scope=None, hidden=True, width=1.5) == '<td class="figure" hidden width="1.5">x</td>'


def test_figures_say_where_they_stand() -> None:
    document = {"jobs": [{"a": {"b": 0.25}, "whole": 0.5, "none": None}]}
    figures = Figures(document, "run").subfigures("jobs/0")
    assert figures.format("a/b", as_time) == '<data value="0.25" data-at="run/jobs/0/a/b">250 ms</data>'
    assert figures.share("a/b", "whole") == '<data value="0.5" data-at="run/jobs/0/a/b" data-over="run/jobs/0/whole">50.0%</data>'
    assert figures.format("none", as_money) == "-"
    embedded = '<script type="application/json" id="json-run">{"jobs": [{"a": {"b": 0.25}, "whole": 0.5}]}</script>'
    assert assert_figures_are_the_documents(Page(embedded + figures.format("a/b", as_time) + figures.share("a/b", "whole"))) == 2


def test_a_table_has_heads_for_rows_and_columns() -> None:
    page = Page(table([("name", False), ("time", True)], [["a", "1 s"], ["b", "2 s"]], "Times"))
    assert [(head.attributes["scope"], head.text) for head in page.all("th")] == [
        ("col", "name"),
        ("col", "time"),
        ("row", "a"),
        ("row", "b"),
    ]
    assert [cell.text for cell in page.all("td", class_="figure")] == ["1 s", "2 s"]
    assert page.all("caption")[0].text == "Times"


def test_tiles_have_a_name_a_value_and_what_is_worth_saying() -> None:
    page = Page(tiles([("Step", "250 ms", None), ("Costs", "1 USD", "spot")]))
    assert [[part.text for part in tile.inside] for tile in page.all("div")] == [["Step", "250 ms"], ["Costs", "1 USD", "spot"]]


def test_a_box_of_notes_is_there_only_with_notes() -> None:
    assert note_box("Beware", []) is None
    box = note_box("Beware", ["a < b"])
    assert box is not None and [item.text for item in Page(box).all("li")] == ["a < b"]


def test_no_line_breaks_inside_an_option() -> None:
    """Browsers break lines after a hyphen: an option is kept whole, and the text is what was typed."""
    typed = "python -m sim plan p4d.24xlarge x--y.yaml --nodes 1..4 --html a&b.html"
    page = Page(tag("p", command_line(typed)))
    assert page.all("p")[0].text == typed
    assert [kept.text for kept in page.all("span", class_="kept")] == ["--nodes", "--html"]


def test_a_trace_that_takes_no_time_has_a_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A collective of one rank; shares of nothing are dashes. It ended in a division by zero."""
    assert Figures({"part": 0.0, "whole": 0.0}, "x").share("part", "whole") == "-"
    (tmp_path / "toy.0.et").write_bytes(ALL_REDUCE)
    monkeypatch.chdir(tmp_path)
    assert main(["run", "p3.2xlarge", "toy.0.et", "--html", "page.html"]) == 0
    assert "toy on p3.2xlarge" in (tmp_path / "page.html").read_text(encoding="utf-8")
