"""Oracle: the identity that the two methods are tied by, over any two tables of causes; three cases written by hand."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.analysis.attribution import StallGap, compare_methods
from sim.events import STALLS, Cause

tables = st.fixed_dictionaries({cause: st.floats(0.0, 10.0) for cause in STALLS})


@given(st.sampled_from(STALLS), tables, tables)
def test_gaps_lead_from_one_method_to_the_other(own: Cause, before: dict[Cause, float], after: dict[Cause, float]) -> None:
    comparison = compare_methods(own, before, after)
    assert comparison.subtraction == pytest.approx(sum(after.values()) - sum(before.values()), abs=1e-9)
    assert comparison.subtraction == pytest.approx(comparison.direct + sum(gap.seconds for gap in comparison.gaps), abs=1e-9)
    for gap in comparison.gaps:
        assert (gap.kind == "as well") == (gap.cause == own)
        assert gap.kind == "as well" or (gap.seconds > 0) == (gap.kind == "grows")


def table(**seconds: float) -> dict[Cause, float]:
    return {cause: seconds.get(cause.value, 0.0) for cause in STALLS}


def test_a_wait_that_overlaps_is_counted_once() -> None:
    """3 s of preparation pass behind 5 s of reading: subtraction leaves 2 s of the 5 to the disk, direct attribution all."""
    comparison = compare_methods(Cause.FETCH, table(compute=1, prep=3), table(compute=1, fetch=5))
    assert (comparison.subtraction, comparison.direct) == (2, 5)
    assert comparison.gaps == (StallGap(Cause.PREP, "hidden", 3, 0),)


def test_what_both_runs_wait_for_is_not_seen_by_subtraction() -> None:
    comparison = compare_methods(Cause.FETCH, table(compute=1, fetch=4), table(compute=1, fetch=5))
    assert (comparison.subtraction, comparison.direct, comparison.gaps) == (1, 5, (StallGap(Cause.FETCH, "as well", 4, 5),))


def test_copies_that_get_in_each_others_way_pass_for_the_exchange() -> None:
    comparison = compare_methods(Cause.INTERCONNECT, table(compute=9, copy=1), table(compute=9, copy=3, interconnect=1))
    assert (comparison.subtraction, comparison.direct, comparison.gaps) == (3, 1, (StallGap(Cause.COPY, "grows", 1, 3),))
