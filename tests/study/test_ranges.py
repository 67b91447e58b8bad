"""Which numbers does a range mean? Oracles: doublings and even steps by hand, properties of any range."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.spec.yaml import SpecError
from sim.study.ranges import whole_numbers


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("4", [4]), ("1..16", [1, 2, 4, 8, 16]), ("3..20", [3, 6, 12, 20]), ("1..16:4", [1, 6, 11, 16]), ("2..2", [2]),
        ("1..3:9", [1, 2, 3]),
        (" 1 .. 4 ", [1, 2, 4]), ("5..9:1", [5]),
    ],
)  # fmt: skip
def test_numbers(text: str, numbers: list[int]) -> None:
    assert whole_numbers(text, "--nodes") == numbers


@given(st.integers(1, 10_000), st.integers(0, 10_000), st.integers(2, 50))
def test_ranges_go_up_and_have_both_ends(low: int, more: int, count: int) -> None:
    for text in (f"{low}..{low + more}", f"{low}..{low + more}:{count}"):
        numbers = whole_numbers(text, "--nodes")
        assert (numbers[0], numbers[-1]) == (low, low + more)
        assert numbers == sorted(set(numbers)) and len(numbers) <= max(count, 15)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "--nodes '': write a number"), ("0", "write 1 or more"), ("0..4", "write 1 or more"), ("8..2", "write 2..8"),
        ("1..8:0", "1 or more values"),
        ("1...8", "write a number"), ("-1", "write a number"), ("1..", "write a number"), ("2.5", "write a number"),
    ],
)  # fmt: skip
def test_what_is_no_range_is_told(text: str, words: str) -> None:
    with pytest.raises(SpecError, match=words):
        whole_numbers(text, "--nodes")
