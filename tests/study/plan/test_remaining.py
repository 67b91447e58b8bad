"""Is what a search says of the time left what it then takes? By a clock that only refining moves, and by closed forms."""

from __future__ import annotations

from itertools import pairwise

import pytest

from sim.study.plan.progress import progress_text
from sim.study.plan.question import PlanQuestion, prepare_plan
from sim.study.plan.refine import FLOOR, LEAST, LocalRefiner, LookAhead, RefineResult, RefineTask, StepBound
from sim.study.plan.remaining import Outlook, RemainingWork
from sim.study.plan.search import Limits, Tally, search
from sim.study.scenario import Scenario

SECONDS = {FLOOR: 0.1, LEAST: 1.0}


@pytest.mark.parametrize(("gpus", "fixed"), [(4, {}), pytest.param(8, {"cp": "1"}, marks=pytest.mark.nightly)])
def test_what_is_left_is_what_it_takes(gpus: int, fixed: dict[str, str]) -> None:
    """Oracle: what the clock says when the search ends. Of some 1,000 layouts most are excluded by bounds that are not known yet."""
    question = PlanQuestion(Scenario("hgx-h100", "gpt2", global_batch=16), (1,), gpus, fixed=fixed)
    now, alone = [0.0], LocalRefiner("time", None)
    heard: list[tuple[float, float]] = []

    def refine(task: RefineTask, ahead: LookAhead) -> RefineResult:
        now[0] += SECONDS[task.level]
        return alone(task, ahead)

    def hear(tally: Tally) -> None:
        if tally.remaining_work is None:  # before all layouts are bounded
            assert len(tally.outcomes) == 1 and not heard
            return
        heard.append((now[0], tally.remaining_work.seconds))

    tally = search(prepare_plan(question).layouts, Limits(), hear, refine, lambda: now[0])
    assert tally.complete and len(heard) >= 8
    assert len(tally.outcomes) < 0.1 * tally.candidates
    for then, left in heard:
        really = now[0] - then
        assert really / 2.5 - 2.0 <= left <= 2.5 * really + 2.0, (then, left, really)
    assert heard[-1][1] == pytest.approx(now[0] - heard[-1][0])  # bounds that follow the last simulation, if any


def test_progress_is_told_while_layouts_are_only_bounded() -> None:
    """Each bound takes 2 s by the clock, so that progress is told after three of them at the latest, before any simulation."""
    question = PlanQuestion(Scenario("hgx-h100", "gpt2", global_batch=16), (1,), 4)
    now, alone = [0.0], LocalRefiner("time", None)
    heard: list[tuple[float, int, str]] = []

    def refine(task: RefineTask, ahead: LookAhead) -> RefineResult:
        now[0] += 2.0
        return alone(task, ahead)

    def hear(tally: Tally) -> None:
        assert (tally.remaining_work is None) == (not tally.outcomes)  # nothing would be told of it
        heard.append((now[0], len(tally.outcomes), progress_text(tally)))

    search(prepare_plan(question).layouts, Limits(early=False, shown=10), hear, refine, lambda: now[0])
    assert max(after - before for (before, *_), (after, *_) in pairwise([(0.0, 0, ""), *heard])) < 7.0
    assert heard[0][1:] == (0, f"3 layouts of {len(prepare_plan(question).layouts[0][1]) + len(prepare_plan(question).layouts[1][1]):,}"
                            " bounded, none simulated so far")  # fmt: skip


def answered(refined: RefineResult) -> Outlook:
    ticks = iter(range(100))
    return Outlook(lambda task, ahead: refined, lambda: float(next(ticks)))


def ask(outlook: Outlook, level: int, value: float) -> None:
    outlook.answer(RefineTask(0, FLOOR if level == FLOOR else LEAST, None), lambda most: [], value)  # type: ignore[arg-type]


def test_layouts_that_thrash_make_the_search_longer_but_not_endless() -> None:
    """One in two simulated layouts is good, so that the ten rows need about 20 of the 1,000 bounds, a second each."""
    outlook = answered(None)
    for number in range(10):
        ask(outlook, LEAST, 1.0)
        outlook.record(1.0 + number / 100 if number % 2 else 3.0 + number / 100, 1.0 + number / 100, 1.0 if number % 2 else 3.0)
    queue = [(1.1 + number / 100, number, LEAST) for number in range(1000)]
    left = outlook.remaining_work(queue, 10, 200)
    assert left.bounds == 0 and 8 <= left.simulations <= 10
    assert left.seconds == left.simulations  # a second each by the clock
    assert outlook.remaining_work(queue, 10, 13).simulations == 3  # no more than may be simulated


def test_bounds_that_rise_exclude_what_floors_do_not() -> None:
    """Floors of 0.905, 0.915 ... rise by half: the tenth best will be one of 0.995, at 1.4925, which 59 floors and 9 bounds are below."""
    outlook = answered(StepBound(1.5, 1.5))
    for _ in range(10):
        ask(outlook, FLOOR, 1.0)
        ask(outlook, LEAST, 1.0)
        outlook.record(1.5, 1.5, 1.0)
    left = outlook.remaining_work([(0.905 + number / 100, number, FLOOR) for number in range(200)], 10, 200)
    assert (left.bounds, left.simulations) == (59, 9)


def test_no_time_is_told_before_there_is_one() -> None:
    assert "and none fits so far" in progress_text(Tally(candidates=10, infeasible=4))
    assert "left" not in progress_text(Tally(remaining_work=RemainingWork(0, 0, 0.5)))
