"""Replaying schedules: wrong ones are refused."""

from __future__ import annotations

import pytest

from tests.oracle.collectives.schedule import ScheduleError, Transfer, check_collective, check_timed, pipeline_time, replay


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


def test_one_pair_sends_in_order_on_each_channel_alone():
    """Definition: two channels of one pair are two streams, so that nothing orders them."""
    with pytest.raises(ScheduleError, match="race for chunk 0 of rank 1"):
        replay([Transfer(0, 1, 8, (0,)), Transfer(0, 1, 8, (0,), channel=1)], [0, 1], 1)
    assert replay([Transfer(0, 1, 8, (0,), channel=1), Transfer(0, 1, 8, (0,), channel=1)], [0, 1], 1)[1, 0] == {0}


def test_a_reducer_adds_in_any_order():
    """Oracle: by hand. Number 9 takes part without a contribution."""
    arrivals = [Transfer(0, 9, 8, (0,), (), 8), Transfer(1, 9, 8, (0,), (), 8)]
    assert replay([*arrivals, Transfer(9, 0, 8, (0,), (0, 1))], [0, 1], 1, reducers=[9])[0, 0] == {0, 1}
    with pytest.raises(ScheduleError, match="race for chunk 0 of rank 9"):
        replay(arrivals, [0, 1], 1)


@pytest.mark.parametrize(
    ("after", "words"),
    [
        (Transfer(9, 0, 8, (0,), (0,)), "transfers 1 and 2 race for chunk 0 of rank 9"),  # reads before the second has been added
        (Transfer(2, 9, 8, (0,), (0,)), "transfers 1 and 2 race for chunk 0 of rank 9"),  # replaces what is being added to
        (Transfer(1, 9, 8, (0,), (0,), 8, 1), "adds the contribution of ranks .1. to chunk 0 twice"),
    ],
)
def test_a_reducer_is_read_and_replaced_in_order_only(after, words):
    with pytest.raises(ScheduleError, match=words):
        replay([Transfer(0, 9, 8, (0,), (), 8), Transfer(1, 9, 8, (0,), (), 8), after], [0, 1, 2], 1, reducers=[9])


def test_a_pipeline_by_hand():
    """Oracle: by hand. Two pieces of 3 s over two hops with 1 s of latency: 0-3-4, 4-7-8; 3-6-7, 7-10-11."""
    assert pipeline_time(2, 2, 3, 1) == 11
    assert pipeline_time(0, 2, 3, 1) == 0


@pytest.mark.parametrize("nbytes", [0, -1, float("nan"), float("inf")])
def test_what_no_collective_moves(nbytes):
    with pytest.raises(ValueError, match="moves more than 0 bytes"):
        check_collective([0, 1], nbytes)
    with pytest.raises(ValueError, match="moves more than 0 bytes"):
        check_timed(2, nbytes, 1, 0)


def test_what_no_link_has():
    for bandwidth, latency in ((0, 0), (float("nan"), 0), (1, -1), (1, float("nan"))):
        with pytest.raises(ValueError, match="a bandwidth above zero and a latency of zero or more"):
            check_timed(2, 8, bandwidth, latency)
