"""Does a search that needs only layouts below a cutoff find the same best one, and end early if there is none? Oracle: the whole search."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sim.study.plan.question import PlanQuestion, plan
from sim.study.plan.search import Limits
from sim.study.scenario import Infeasible, Scenario
from tests.study.plan.planned import SMALL

TIGHT = PlanQuestion(
    Scenario("hgx-h100", "gpt2", ("node.gpu.memory=7 GiB;node.gpu.context_memory=50 MiB",), stack="torchtitan-2.x", global_batch=32),
    (1,), 4, fixed={"tp": "1", "cp": "1"},
)  # fmt: skip
"""Some of its layouts thrash."""


@pytest.mark.parametrize("question", [SMALL, TIGHT])
def test_a_cutoff_hides_no_layout_below_it(question: PlanQuestion) -> None:
    every = Limits(shown=1, early=False)
    best = plan(replace(question, limits=every)).tally.best
    assert best is not None
    for share in (0.2, 0.999, 1.001, 1.5):
        tally = plan(replace(question, limits=replace(every, cutoff=share * best.step_time))).tally
        if share > 1.0:
            assert tally.best is not None and tally.best.placed_layout.candidate == best.placed_layout.candidate
        else:
            assert tally.is_cut_off or (tally.best is not None and tally.best.step_time >= share * best.step_time)
    least = plan(replace(question, limits=replace(every, cutoff=1e-9))).tally
    assert least.is_cut_off and least.bounded == 0 and least.excluded > 0


def test_what_thrashes_is_not_cut_off_by_its_penalty() -> None:
    """The only one that fits thrashes, so that its value is three times its step, which is what others are compared with."""
    scenario = replace(TIGHT.scenario, overrides=("node.gpu.memory=3.29 GiB;node.gpu.context_memory=50 MiB",))
    question = replace(TIGHT, scenario=scenario, fixed={**TIGHT.fixed, "pp": "1", "shard": "none", "recompute": "none"})
    every = Limits(shown=1, early=False)
    best = plan(replace(question, limits=every)).tally.best
    assert best is not None and best.penalty > 1.0
    cut = plan(replace(question, limits=replace(every, cutoff=1.5 * best.step_time))).tally.best
    assert cut is not None and cut.step_time == best.step_time


def test_what_fits_nowhere_is_said_whatever_the_cutoff() -> None:
    scenario = replace(SMALL.scenario, overrides=("node.gpu.memory=1.9 GiB",))
    with pytest.raises(Infeasible, match="fits in none of"):
        plan(replace(SMALL, scenario=scenario, limits=Limits(shown=1, early=False, cutoff=1e-9)))
