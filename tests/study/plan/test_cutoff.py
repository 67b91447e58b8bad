"""Does a search that needs only layouts below a cutoff find the same best one, and end early if there is none? Oracle: the whole search."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from functools import partial

import pytest

from sim.study.compare import ComparedMachine
from sim.study.infeasible import Infeasible
from sim.study.plan.machines import GAP, _row
from sim.study.plan.question import PlanQuestion, plan
from sim.study.plan.search import THRASH, Limits
from sim.study.scenario import Scenario
from tests.study.plan.planned import SMALL

TIGHT = PlanQuestion(
    Scenario("hgx-h100", "gpt2", ("node.gpu.memory=7 GiB;node.gpu.context_memory=50 MiB",), stack="torchtitan-2.x", global_batch=32),
    (1,), 4, fixed={"tp": "1", "cp": "1"},
)  # fmt: skip
"""Some of its layouts thrash."""
SLOW_LINKS = Scenario("", "llama-3.2-1b", stack="megatron-core", global_batch=16, sequence=2048)
"""On GPUs without NVLink, messages of several layouts take much longer together than their bounds, which are those of each alone."""


@pytest.mark.parametrize("question", [SMALL, TIGHT])
def test_a_cutoff_hides_no_layout_below_it(question: PlanQuestion) -> None:
    every = Limits(shown=1, early=False)
    best = plan(replace(question, limits=every)).tally.best
    assert best is not None
    for share in (0.2, 0.999, 1.001, 1.5):
        tally = plan(replace(question, limits=replace(every, cutoff=share * best.step_time))).tally
        if share > 1.0 or not tally.is_cut_off:
            assert tally.best is not None and tally.best.placed_layout.candidate == best.placed_layout.candidate
        else:
            assert tally.least_step is not None and share * best.step_time <= tally.least_step <= best.step_time
    least = plan(replace(question, limits=replace(every, cutoff=1e-9))).tally
    assert least.is_cut_off and least.bounded == 0 and least.excluded > 0


def test_a_layout_that_a_cutoff_keeps_from_being_compared_is_no_answer() -> None:
    """Its bound is below the cutoff and its step far above, so that the search ends before it comes to the best, which is in between."""
    fixed = {"tp": "2", "cp": "1", "pp": "2", "shard": "optimizer", "recompute": "none"}
    limits = Limits(40, shown=1, gap=GAP, early=False)
    question = PlanQuestion(replace(SLOW_LINKS, hardware="g5.12xlarge"), (2,), fixed=fixed, limits=limits)
    uncut = plan(question).tally
    assert uncut.best is not None and uncut.gap <= GAP
    first = min(uncut.outcomes, key=lambda outcome: outcome.bound)
    assert first.bound < uncut.best.bound < (1.0 - GAP) * first.step_time
    cutoff = (first.bound + uncut.best.bound) / 2
    cut = plan(replace(question, limits=replace(limits, cutoff=cutoff))).tally
    assert cut.is_cut_off and cut.outcomes and cut.open_bound >= cutoff
    row_of = partial(_row, SLOW_LINKS, fixed, lambda answer: {"step_time_s": answer.run.step_time}, None)
    row = row_of((("g5.12xlarge", 2), cutoff))
    assert row == ComparedMachine("g5.12xlarge", 2, None, least_step=cut.least_step)
    assert row.least_step is not None and cutoff <= row.least_step <= uncut.best.step_time
    planned = row_of((("g5.12xlarge", 2), 2 * cutoff)).document
    assert planned is not None and planned["step_time_s"] == uncut.best.step_time


def test_what_thrashes_is_not_cut_off_by_its_penalty() -> None:
    """The only one that fits thrashes, so that its value is three times its step, which is what others are compared with."""
    scenario = replace(TIGHT.scenario, overrides=("node.gpu.memory=3.29 GiB;node.gpu.context_memory=50 MiB",))
    question = replace(TIGHT, scenario=scenario, fixed={**TIGHT.fixed, "pp": "1", "shard": "none", "recompute": "none"})
    every = Limits(shown=1, early=False)
    best = plan(replace(question, limits=every)).tally.best
    assert best is not None and best.penalty > 1.0
    cut = plan(replace(question, limits=replace(every, cutoff=1.5 * best.step_time))).tally.best
    assert cut is not None and cut.step_time == best.step_time


def test_what_thrashes_keeps_no_search_going_that_has_found_a_better_layout() -> None:
    """Its bound is below the cutoff, but three times that is above a step that is known: the row would be of another layout anyway."""
    scenario = replace(TIGHT.scenario, overrides=("node.gpu.memory=4 GiB;node.gpu.context_memory=50 MiB",))
    every, question = Limits(shown=1, early=False), replace(TIGHT, scenario=scenario)
    uncut = plan(replace(question, limits=every)).tally
    best = uncut.best
    assert best is not None and best.penalty == 1.0 and uncut.least_thrashing < best.bound < THRASH * uncut.least_thrashing
    cutoff = (uncut.least_thrashing + best.bound) / 2
    cut = plan(replace(question, limits=replace(every, cutoff=cutoff))).tally
    assert cut.least_step is not None and cutoff <= cut.least_step <= best.step_time
    assert len(cut.outcomes) < len(uncut.outcomes)


def test_what_fits_nowhere_is_said_whatever_the_cutoff() -> None:
    scenario = replace(SMALL.scenario, overrides=("node.gpu.memory=1.9 GiB",))
    with pytest.raises(Infeasible, match="fits in none of"):
        plan(replace(SMALL, scenario=scenario, limits=Limits(shown=1, early=False, cutoff=1e-9)))


def test_what_would_fit_is_tried_on_the_most_nodes_only() -> None:
    """Fewer nodes say how much memory is missing; more are tried anyway."""
    row_of = partial(_row, Scenario("", "llama-3.1-70b", global_batch=64), {}, lambda answer: {}, None, advised=2)
    few, many = (row_of((("gpu_1x_h100_pcie", nodes), math.inf)).problem for nodes in (1, 2))
    assert re.search(r"fits in none of .* the nearest needs [\d.]+ GiB more$", few)
    assert re.search(r"the nearest needs [\d.]+ GiB more; --nodes \d+ would fit$", many)
