"""Does a report fit the terminal and keep every word and figure? Oracles: its width, and the words of the text that was given."""

from __future__ import annotations

import re
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.causes import BRIEF
from sim.documents import document
from sim.events import Cause
from sim.report.columns import Title, align
from sim.report.fitting import color_text, fit_text
from sim.report.table import run_text
from sim.study.scenario import Scenario, answer

CELL = st.text("abcdefgh0123456789", min_size=1, max_size=14)


@given(
    st.lists(st.tuples(CELL, st.lists(CELL, min_size=3, max_size=3)), min_size=1, max_size=6, unique_by=lambda row: row[0]),
    st.integers(40, 120),
)
def test_a_table_keeps_every_cell_and_fits(rows: list[tuple[str, list[str]]], width: int) -> None:
    titles = [Title("name", left=True), *(Title(f"{column}{number}") for number in range(4) for column in "xyz")]
    text = align(titles, [[name, *(cell for _ in range(4) for cell in cells)] for name, cells in rows])
    shown = fit_text(text, width)
    assert max(map(len, shown.split("\n"))) <= width
    names = {name for name, _ in rows}
    before, after = (Counter(word for word in said.split() if word not in names and word != "name") for said in (text, shown))
    assert before == after
    if max(map(len, text.split("\n"))) <= width:
        assert shown == text


@given(st.lists(CELL, min_size=1, max_size=60), st.integers(40, 100))
def test_a_sentence_wraps_at_words_below_its_own_indent(words: list[str], width: int) -> None:
    shown = fit_text(f"    - {' '.join(words)}", width).split("\n")
    assert max(map(len, shown)) <= width
    assert [word for line in shown for word in line.split()] == ["-", *words]
    assert all(line.startswith("      ") for line in shown[1:])


@pytest.mark.parametrize("program", ["python -m sim", "stallsim"])
def test_a_command_stays_on_one_line(program: str) -> None:
    """Oracle: what a shell reads; a newline in it would end the command."""
    command = f"{program} run hgx-h100 llama-3.1-8b --nodes 4 --set price.on_demand='10 USD/h'"
    assert fit_text(f"  Run the best: {command}", 60).split("\n") == ["  Run the best:", f"  {command}"]
    assert fit_text(f"  {command}", 60) == f"  {command}"
    assert fit_text(f"  Run the best: {command}", 200) == f"  Run the best: {command}"
    said = f"  spot prices without interruptions, of this machine ({program} spot simulates them, as nothing else does here)"
    assert max(map(len, fit_text(said, 60).split("\n"))) <= 60


def test_a_table_of_bars_by_hand() -> None:
    """Bars of 40 columns shrink to what is left of 50, in proportion: 40 columns by 3 + 2 + 4 + 2 + 2 + 4 beside them."""
    text = "\n".join(
        f"{name:8} {share:4d}%  {'█' * (share * 40 // 100):40}  {said}" for name, share, said in (("one", 100, "all"), ("two", 50, "half"))
    )
    shown = fit_text(text, 50).split("\n")
    assert [line.count("█") for line in shown] == [33, 16]
    assert max(map(len, shown)) <= 50


def test_what_is_too_wide_goes_on_below_with_the_names_of_its_rows() -> None:
    columns = [Title("machine", left=True), Title("nodes"), *(Title(f"column-{number}") for number in range(6))]
    rows = [["p3", "1", *"abcdef"], ["", "2", *"ghijkl"], ["p4", "1", *"mnopqr"], ["", "2", *"stuvwx"]]
    shown = fit_text(align(columns, rows), 44).split("\n")
    assert shown[0].split() == ["machine", "nodes", "column-0", "column-1", "column-2"]
    assert shown[5:8] == ["", "machine  nodes  column-3  column-4  column-5", "p3           1         d         e         f"]


def test_colors_change_no_character() -> None:
    text = "head\n\n  compute  ███  1\n*  best  1\n  Assumed:\n    - a\n  Warnings:\n    - b"
    shown = color_text(text)
    assert re.sub(r"\x1b\[\d+m", "", shown) == text and shown.count("\x1b[33m") == 2 and "\x1b[36m███" in shown


def test_titles_of_two_words_stay_together() -> None:
    """A title that is wider than its column is not split over the columns next to it."""
    table = align([Title("", left=True), Title("2x step"), Title("gain"), Title("enough at")], [["CPU", "263 ms", "+91.5%", "1.91x"]])
    heads = [line for line in fit_text(f"{'.' * 50}\n{table}\n{'. ' * 30}", 40).split("\n") if "step" in line]
    assert heads and all("2x step" in line for line in heads)
    narrow = fit_text("\n".join(f"{line}   {'x' * 30}" for line in table.split("\n")), 40).split("\n")
    assert "2x step" in narrow[0] and narrow[1].startswith("CPU")


def test_what_a_row_says_more_stays_below_it() -> None:
    """The table is one, whatever lines stand between its rows; oracle: the order of the words."""
    rows = [
        f"  {number:2}{tie}  {step} ms  {9 * number},324  layout {number} of {'many ' * 9}"
        for number, tie, step in ((1, " ", 879), (2, "~", 880))
    ]
    text = "\n".join(["        step  tok/s  layout", rows[0], "     compute 93%", rows[1], "     compute 99%", "", "  end"])
    shown = fit_text(text, 60).split("\n")
    assert max(map(len, shown)) <= 60
    assert " ".join(shown).split() == text.split()
    first, second = (next(place for place, line in enumerate(shown) if f"{step} ms" in line) for step in (879, 880))
    assert shown[first].index("879") == shown[second].index("880")
    assert "compute 93%" in shown[second - 1]


def test_each_cause_of_a_run_has_one_line_in_80_columns() -> None:
    """Oracle: the lines of the report as it is piped."""
    done = answer(Scenario("p4d.24xlarge", "resnet50", nodes=2))
    piped = run_text(done.run, document(Scenario("p4d.24xlarge", "resnet50", nodes=2)))
    shown = fit_text(piped, 80).split("\n")
    causes = [line.split()[0] for line in piped.split("\n\n")[2].split("\n")[1:]]
    assert len(causes) > 5
    for cause in causes:
        [line] = [line for line in shown if line.startswith(f"  {cause} ")]
        assert len(line) <= 80 and line.endswith(BRIEF[Cause(cause)])
