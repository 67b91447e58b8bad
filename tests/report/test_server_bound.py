"""Does the table of parameter servers say what it computes? Oracles: PHub's bounds by hand, sizes and ports of two placements."""

from __future__ import annotations

import pytest

from sim.report.server_bound import MEANINGS, bound_document, bound_rows, bound_text
from sim.study.server_bound import PLACEMENTS, BoundRow, BoundTable
from tests.harness import machine

THERE = dict(zip(PLACEMENTS, (1e9, 2e9, 3e9, 4e9), strict=True))


def table(**there: float) -> BoundTable:
    rows = tuple(BoundRow(size, {name: 10.0 * size for name in PLACEMENTS}) for size in (2**20, 2**28))
    return BoundTable("toys", 4, 0.1, {**THERE, **there}, rows, machine(), {"hardware": "f00"})  # type: ignore[dict-item]


def test_every_placement_has_its_words() -> None:
    assert tuple(MEANINGS) == PLACEMENTS


def test_what_ports_carry_is_hidden() -> None:
    """By hand: 10 MiB/s pass everywhere, 2.68 GB/s where ports carry 3 or 4 GB/s."""
    small, large = bound_document(table())["rows"]
    assert all(small["hidden"].values())
    assert [large["hidden"][name] for name in PLACEMENTS] == [False, False, True, True]


def test_rows_have_a_line_for_each_placement() -> None:
    rows = bound_rows(bound_document(table()))
    assert len(rows) == 2 * len(PLACEMENTS)
    assert rows[4] == {
        "bytes": 2**28, "placement": PLACEMENTS[0], "needed_bytes_per_s": 10.0 * 2**28, "port_bytes_per_s": 1e9, "hidden": False,
    }  # fmt: skip


def test_the_text_marks_what_is_too_much() -> None:
    text = bound_text(table())
    line = next(line for line in text.splitlines() if line.strip().startswith("256 MiB"))
    assert line.count("!") == 2 and "4 worker nodes; ports carry 1 GB/s (NCS), 2 GB/s (NCC)" in text


def test_equal_ports_are_said_once() -> None:
    text = bound_text(table(**dict.fromkeys(PLACEMENTS, 5e9)))
    assert "the ports of each carry 5 GB/s" in text


@pytest.mark.parametrize("key", ["assumptions", "version", "inputs_sha256"])
def test_it_says_on_what_it_rests(key: str) -> None:
    assert bound_document(table())[key]
