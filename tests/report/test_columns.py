"""Are columns aligned? Oracle: the place of every cell."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from sim.report.columns import Title, align

CELLS = st.lists(st.text("abc", max_size=9), min_size=3, max_size=3)


@given(st.lists(CELLS, max_size=6))
def test_cells_end_or_begin_below_their_title(rows: list[list[str]]) -> None:
    titles = [Title("left", True), Title("right"), Title("last", True)]
    lines = align(titles, rows).split("\n")
    widths = [max(len(cell) for cell in column) for column in zip([title.text for title in titles], *rows, strict=True)]
    for line, cells in zip(lines, [[title.text for title in titles], *rows], strict=True):
        line = line.ljust(sum(widths) + 4)
        assert line[: widths[0]] == cells[0].ljust(widths[0])
        assert line[widths[0] + 2 : widths[0] + 2 + widths[1]] == cells[1].rjust(widths[1])
        assert line[widths[0] + widths[1] + 4 :].rstrip() == cells[2]
