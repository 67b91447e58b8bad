"""Between which values does another layout take the lead? Oracles: worths that are known, and a search of all layouts on either side."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any, cast

import pytest

from sim.report.page.layout_plan import plan_page
from sim.report.plan import plan_document
from sim.report.plan_changes import flip_lines
from sim.report.plan_text import plan_text
from sim.study.plan.flips import Flip, Flips, Knob, _crossing, _nearest, flips, same_but_micro_batches
from sim.study.plan.question import LayoutPlan, PlanQuestion, plan, prepare_plan
from sim.study.plan.search import EQUAL, Limits, PlacedCandidates, best_by_recurrence, search
from sim.study.plan.sensitivity import DOUBLED, HALVED, NOT_SEARCHED, SLOWER, ChangeEffect, sensitivity
from sim.study.plan.space import LayoutCandidate
from sim.study.scenario import Scenario

Worth = Callable[[float], float]
EVERY = [float(value) for value in range(16, 65)]
"""Values from 16 to 64."""


def named(data: int) -> LayoutCandidate:
    """Return a layout that differs from others of these tests in its data ranks."""
    return LayoutCandidate(1, "s", "bf16", 1, False, 1, 1, 1, data, 1, "none", None, "1f1b", 1, 1, 1, "none", False)


PLAN, SECOND, THIRD = named(1), named(2), named(3)


@dataclass
class Worths:
    """Layouts whose worth is known: by recurrence and simulated."""

    by_recurrence: dict[LayoutCandidate, Worth]
    simulated_as: dict[LayoutCandidate, Worth]
    divides: Callable[[LayoutCandidate, float], bool] = lambda candidate, value: True

    def layouts(self, value: float) -> PlacedCandidates:
        return cast(PlacedCandidates, [(None, [each for each in self.by_recurrence if self.divides(each, value)])])

    def leader(self, value: float) -> LayoutCandidate:
        return min(self.by_recurrence, key=lambda each: self.least(each, value))

    def least(self, candidate: LayoutCandidate, value: float) -> float:
        return self.by_recurrence[candidate](value) if self.divides(candidate, value) else inf

    def simulated(self, candidate: LayoutCandidate, value: float) -> float:
        return self.simulated_as[candidate](value) if self.divides(candidate, value) else inf


def nearest(worths: Worths, values: Sequence[float] = EVERY) -> Flip | None:
    return _nearest(cast(Any, worths), PLAN, worths.leader(values[-1]), values)


@pytest.mark.parametrize("off", [0.0, 7.0, -7.0, 17.0])
def test_recurrences_that_are_off_do_not_move_where_it_flips(off: float) -> None:
    """Oracle: simulated, the second is worth less from 40 on; by recurrences from 40 + off."""
    worths = Worths({PLAN: lambda value: value, SECOND: lambda value: 39.5 + off}, {PLAN: lambda value: value, SECOND: lambda value: 39.5})
    assert nearest(worths) == Flip(39.0, 40.0, SECOND, 64.0, pytest.approx(64 / 39.5 - 1))


def test_one_that_leads_by_its_recurrence_alone_is_no_flip() -> None:
    assert (
        nearest(Worths({PLAN: lambda value: 2.0, SECOND: lambda value: 1.0}, {PLAN: lambda value: 2.0, SECOND: lambda value: 3.0})) is None
    )


def test_a_third_layout_may_take_the_lead_before() -> None:
    """Oracle: the second leads at the last value and is ahead of the plan's from 50; the third, which loses at the last, from 30."""
    worth = {PLAN: lambda value: value, SECOND: lambda value: 0.001 * value + 49.5, THIRD: lambda value: 0.6 * value + 11.9}
    flip = nearest(Worths(worth, worth))
    assert flip is not None and (flip.holding_value, flip.losing_value, flip.winner, flip.end) == (29.0, 30.0, THIRD, 64.0)
    assert flip.deficit == pytest.approx(64 / (0.064 + 49.5) - 1)


def test_values_that_one_of_both_does_not_divide_are_passed_over() -> None:
    """Oracle: the second is ahead from 41 on, at multiples of 8 alone; at 52, which halving looks at first, it does not run."""
    worth = {PLAN: lambda value: value, SECOND: lambda value: 40.5}
    flip = nearest(Worths(worth, worth, lambda each, value: each == PLAN or value % 8 == 0))
    assert flip is not None and (flip.holding_value, flip.losing_value) == (40.0, 48.0)


def test_where_the_plans_layout_ends_it_has_lost() -> None:
    """Oracle: the plan's is always better, and runs up to 32."""
    worth = {PLAN: lambda value: 1.0, SECOND: lambda value: 2.0}
    flip = nearest(Worths(worth, worth, lambda each, value: each == SECOND or value <= 32))
    assert flip is not None and (flip.holding_value, flip.losing_value, flip.deficit) == (32.0, 33.0, None)


def test_values_are_whole_and_end_at_a_quarter_and_four_times() -> None:
    knob = Knob(16, 8, lambda value: [])
    assert knob.values(True, 2) == [16, 18, 20, 22, 24, 26, 28, 30, 32, 36, 40, 44, 48, 52, 56, 60, 64]
    assert knob.values(False, 2) == [16, 15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4]
    assert Knob(3, 8, lambda value: []).values(False, 2) == [3]
    assert len(Knob(1.0, 32, lambda value: [], is_integer=False).values(False, 2)) == 65


def test_a_knob_at_whose_other_values_nothing_runs_has_no_flip() -> None:
    outcome = flips(Knob(16, 8, lambda value: []), PLAN, Limits(), {})
    assert outcome == (16, 16, 16, ())
    document = {"least_times": 1.0, "most_times": 1.0, "flips": []}
    assert flip_lines(document) == ["no layout can run at other values"]


@pytest.fixture(scope="module")
def made() -> LayoutPlan:
    scenario = Scenario("hgx-h100", "qwen3-0.6b", global_batch=64)
    return plan(PlanQuestion(scenario, (2,), fixed={"batch": "2", "tp": "1", "cp": "1"}, limits=Limits(shown=2)))


@pytest.mark.nightly
def test_the_quickest_by_recurrence_is_what_bounding_every_layout_finds(made: LayoutPlan) -> None:
    """Oracle: the least bound of a search that simulates all that may win, which none of its layouts is below."""
    first = best_by_recurrence(made.layouts, Limits(shown=1))
    assert first is not None
    assert first[0] <= min(outcome.bound for outcome in made.tally.outcomes) * (1 + 1e-9)
    every = search(made.layouts, Limits(1000, shown=1000)).outcomes
    assert first[0] == pytest.approx(min(outcome.bound * outcome.penalty for outcome in every))


@pytest.mark.parametrize(
    ("name", "field", "most"),
    [
        pytest.param(DOUBLED, "sequence", None, marks=pytest.mark.nightly),
        pytest.param(HALVED, "global_batch", None, marks=pytest.mark.nightly),
        (HALVED, "global_batch", 1),
    ],
)
def test_a_search_on_either_side_finds_who_leads(name: str, field: str, most: int | None, made: LayoutPlan) -> None:
    """Oracle: a search of all layouts at both values. Where there is no flip, the plan's layout leads at the ends too."""
    own = made.tally.outcomes[0].placed_layout.candidate
    turns = {turn.change: turn for turn in sensitivity(made)}
    assert set(turns) == {SLOWER, DOUBLED, HALVED}
    where = turns[name].flips
    assert where is not None and where.least < where.planned_value < where.most
    for flip in where.flips[:most]:
        for value, leads in ((flip.holding_value, True), (flip.losing_value, False)):
            question = PlanQuestion(
                Scenario("hgx-h100", "qwen3-0.6b", **({"global_batch": 64} | {field: int(value)})), (2,), fixed=made.question.fixed
            )
            best = search(prepare_plan(question).layouts, Limits(shown=1)).best
            assert best is not None and same_but_micro_batches(best.placed_layout.candidate, own) is leads


def test_flips_are_in_text_page_and_document(made: LayoutPlan) -> None:
    best, second = made.tally.outcomes[0], made.tally.outcomes[1].placed_layout.candidate
    where = Flips(64, 32, 256, (Flip(64, 60, second, 32, None), Flip(72, 80, second, 128, 0.01)))
    document = plan_document(made, [ChangeEffect(HALVED, best, True, best, "samples", where)])
    change = document["sensitivity"][0]
    assert change["unit"] == "samples" and (change["least_times"], change["most_times"]) == (0.5, 4.0)
    assert change["flips_at"] == pytest.approx(62 / 64)
    down, up = change["flips"]
    assert (down["holds"], down["lost"], down["end"], down["behind"], down["tie"]) == (64, 60, 32, None, False)
    assert (up["holds"], up["lost"], up["end"], up["behind"], up["tie"]) == (72, 80, 128, 0.01, True)
    lines = flip_lines(change)
    assert lines[0].startswith("flips between 64 and 60 samples: ") and lines[0].endswith(
        " is best beyond that; the planned layout is not among those searched at 32"
    )
    assert lines[1].endswith("; at 128 the planned layout is 1% worse, within the expected error")
    assert all(f"    {line}\n" in plan_text(document) for line in lines)
    assert "flips between 64 and 60 samples" in plan_page(document)
    assert flip_lines(change | {"flips": [up]})[1:] == ["no flip down to 1/2x"]
    assert flip_lines(change | {"flips": [down]})[1:] == ["no flip up to 4x"]
    assert flip_lines(change | {"flips": []}) == ["no flip within 1/2x to 4x"]


def test_ctrl_c_leaves_what_is_known(made: LayoutPlan, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*given: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("sim.study.plan.sensitivity.flips", interrupted)
    turns = sensitivity(made)
    assert [turn.problem for turn in turns] == [NOT_SEARCHED] * 3
    assert plan_text(plan_document(made, turns)).count(NOT_SEARCHED) == 3


def test_a_layout_that_is_equal_does_not_take_the_lead() -> None:
    """Layouts of the same work differ in the last digits: the NICs' speed seemed to matter where nothing is sent."""

    class Stand:
        def __init__(self, share: float) -> None:
            self.least = self.simulated = lambda candidate, value: 1.0 if candidate == PLAN else 1.0 - share

    values = [1.0, 0.75, 0.5]
    assert _crossing(cast(Any, Stand(0.9 * EQUAL)), PLAN, SECOND, values) is None
    flip = _crossing(cast(Any, Stand(2.0 * EQUAL)), PLAN, SECOND, values)
    assert flip is not None and (flip.holding_value, flip.losing_value) == (1.0, 0.75)
