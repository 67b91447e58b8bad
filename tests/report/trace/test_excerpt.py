"""Do a few steps represent a warm epoch? Oracles: the log's own steps, tiles of waits, loads recomputed from all rates."""

from __future__ import annotations

from itertools import pairwise

import pytest

from sim.events import Cause
from sim.report.trace.excerpt import excerpt, loads
from tests import harness
from tests.report.page.cases import CASES, case_answer


@pytest.mark.parametrize("case", CASES)
def test_steps_are_as_long_as_the_warm_epoch_s(case: str) -> None:
    run = case_answer(case).run
    chosen = excerpt(run, steps=4)
    for rank in chosen.ranks:
        assert len(rank.boundaries) - 1 >= 4 and list(rank.boundaries) == sorted(rank.boundaries)
        if "period" in chosen.note:
            warm = run.jobs[run.log.ranks[rank.index].job].warm
            mean = (rank.boundaries[-1] - rank.boundaries[0]) / (len(rank.boundaries) - 1)
            assert mean == pytest.approx(warm.step_time, rel=1e-6)


@pytest.mark.parametrize("case", CASES)
def test_waits_tile_the_steps(case: str) -> None:
    for rank in excerpt(case_answer(case).run).ranks:
        waits = sorted(rank.waits, key=lambda wait: wait.t0)
        assert waits[0].t0 == pytest.approx(rank.boundaries[0]) and waits[-1].t1 == pytest.approx(rank.boundaries[-1])
        assert sum(wait.t1 - wait.t0 for wait in waits) == pytest.approx(rank.boundaries[-1] - rank.boundaries[0])


def test_streams_of_a_rank_do_not_overlap() -> None:
    for rank in excerpt(case_answer("exchange").run).ranks:
        for stream in (rank.compute, rank.collectives, rank.bounds, rank.copies):
            assert all(one.t1 <= other.t0 + 1e-12 for one, other in pairwise(stream))
        assert {work.cause for work in rank.compute} == {Cause.COMPUTE}


def test_loads_are_the_sums_of_rates() -> None:
    """Oracle: the same from the log, written for tests."""
    log = case_answer("exchange").run.log
    own, theirs = loads(log), harness.loads(log)
    assert own.keys() == theirs.keys() and own
    for link, steps in own.items():
        assert [time for time, _ in steps] == [time for time, _ in theirs[link]]
        assert [load for _, load in steps] == pytest.approx([load for _, load in theirs[link]], abs=1e-3)


def test_an_epoch_without_a_period_shows_its_last_steps() -> None:
    chosen = excerpt(case_answer("drawn").run)
    assert "the last simulated steps" in chosen.note
