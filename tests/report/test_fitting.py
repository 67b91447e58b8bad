"""Does a report fit the terminal and keep every word and figure? Oracles: its width, and the words of the text that was given."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from sim.report.columns import Title, aligned
from sim.report.fitting import coloured, fitted, plain

CELL = st.text("abcdefgh0123456789", min_size=1, max_size=14)


@given(
    st.lists(st.tuples(CELL, st.lists(CELL, min_size=3, max_size=3)), min_size=1, max_size=6, unique_by=lambda row: row[0]),
    st.integers(40, 120),
)
def test_a_table_keeps_every_cell_and_fits(rows: list[tuple[str, list[str]]], width: int) -> None:
    titles = [Title("name", left=True), *(Title(f"{column}{number}") for number in range(4) for column in "xyz")]
    text = aligned(titles, [[name, *(cell for _ in range(4) for cell in cells)] for name, cells in rows])
    shown = fitted(text, width)
    assert max(map(len, shown.split("\n"))) <= width
    names = {name for name, _ in rows}
    before, after = (Counter(word for word in said.split() if word not in names and word != "name") for said in (text, shown))
    assert before == after
    if max(map(len, text.split("\n"))) <= width:
        assert shown == text


@given(st.lists(CELL, min_size=1, max_size=60), st.integers(40, 100))
def test_a_sentence_wraps_at_words_below_its_own_indent(words: list[str], width: int) -> None:
    shown = fitted(f"    - {' '.join(words)}", width).split("\n")
    assert max(map(len, shown)) <= width
    assert [word for line in shown for word in line.split()] == ["-", *words]
    assert all(line.startswith("      ") for line in shown[1:])


def test_a_table_of_bars_by_hand() -> None:
    """Bars of 40 columns shrink to what is left of 50, in proportion: 40 columns by 3 + 2 + 4 + 2 + 2 + 4 beside them."""
    text = "\n".join(
        f"{name:8} {share:4d}%  {'█' * (share * 40 // 100):40}  {said}" for name, share, said in (("one", 100, "all"), ("two", 50, "half"))
    )
    shown = fitted(text, 50).split("\n")
    assert [line.count("█") for line in shown] == [33, 16]
    assert max(map(len, shown)) <= 50


def test_what_is_too_wide_goes_on_below_with_the_names_of_its_rows() -> None:
    columns = [Title("machine", left=True), Title("nodes"), *(Title(f"column-{number}") for number in range(6))]
    rows = [["p3", "1", *"abcdef"], ["", "2", *"ghijkl"], ["p4", "1", *"mnopqr"], ["", "2", *"stuvwx"]]
    shown = fitted(aligned(columns, rows), 44).split("\n")
    assert shown[0].split() == ["machine", "nodes", "column-0", "column-1", "column-2"]
    assert shown[5:8] == ["", "machine  nodes  column-3  column-4  column-5", "p3           1         d         e         f"]


def test_colours_change_no_character() -> None:
    text = "head\n\n  compute  ███  1\n*  best  1\n  Assumed:\n    - a\n  Warnings:\n    - b"
    shown = coloured(text)
    assert plain(shown) == text and shown.count("\x1b[33m") == 2 and "\x1b[36m███" in shown
