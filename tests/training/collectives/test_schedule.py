"""Replaying schedules: wrong ones are refused."""

from __future__ import annotations

import pytest

from sim.training.collectives.schedule import ScheduleError, Transfer, replay


def test_two_ranks_by_hand():
    """Oracle: by hand. Rank 0 adds its own to rank 1's, rank 1 sends the sum back."""
    held = replay([Transfer(0, 1, 8, (0,), (), 8), Transfer(1, 0, 8, (0,), (0,))], [0, 1], 1)
    assert held == {(0, 0): {0, 1}, (1, 0): {0, 1}}


@pytest.mark.parametrize(
    ("transfers", "words"),
    [
        ([Transfer(0, 1, 8, (0,), (), 8), Transfer(1, 0, 8, (0,))], "race for chunk 0 of rank"),  # the second may overtake the first
        ([Transfer(0, 1, 8, (0,), (), 8), Transfer(2, 1, 8, (0,), (), 8)], "race for chunk 0 of rank 1"),
        ([Transfer(0, 1, 8, (0,), (), 8), Transfer(0, 1, 8, (0,), (), 8)], "twice"),
        ([Transfer(0, 1, 8, (0,), (1,))], "does not come before"),
    ],
)
def test_schedules_that_could_go_wrong(transfers, words):
    with pytest.raises(ScheduleError, match=words):
        replay(transfers, [0, 1, 2], 1)


def test_one_pair_sends_in_order():
    """Definition: transfers of one pair arrive in list order, so the second is after the first without saying so."""
    held = replay([Transfer(0, 1, 8, (0,)), Transfer(0, 1, 8, (0,))], [0, 1], 1)
    assert held[1, 0] == {0}
