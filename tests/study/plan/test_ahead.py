"""Does a plan whose layouts many processes refine ahead answer as one that refines them one by one? Oracle: the plan of one process."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from sim.cli import main
from sim.report.plan import plan_document
from sim.study.plan import ahead
from sim.study.plan.ahead import SIMULATIONS, TASKS, Workers, workers
from sim.study.plan.question import LayoutPlan, PlanQuestion, plan
from sim.study.plan.refine import FLOOR, LEAST
from sim.study.plan.search import Limits
from sim.study.scenario import Scenario

QUESTION = PlanQuestion(Scenario("hgx-h100", "gpt2", global_batch=8), (1,), 4)
SHORT = PlanQuestion(QUESTION.scenario, (1,), 4, limits=Limits(simulations=4))
"""A search that ends before its answer is proven."""


class Crew:
    """Two processes that are this one; answers come in any order, and Ctrl-C after a number of simulations."""

    def __init__(self, interrupted_after: int | None = None) -> None:
        self.waves: list[list[tuple[int, int]]] = []
        self.simulated: list[tuple[int, int]] = []
        self.interrupted_after = interrupted_after
        self.draw = random.Random(5)
        self.workers = Workers(2, self.each, remote=True)

    def each(self, function: Callable[[Any], Any], items: Sequence[Any]) -> Iterator[Any]:
        self.waves.append([item.name for item in items])
        for item in self.draw.sample(items, len(items)):
            if len(self.simulated) == self.interrupted_after:
                raise KeyboardInterrupt
            self.simulated += [item.name] if item.name[1] == LEAST else []
            yield function(item)


@pytest.fixture(scope="module")
def alone() -> LayoutPlan:
    return plan(QUESTION)


@pytest.mark.parametrize("question", [QUESTION, SHORT])
def test_waves_answer_as_one_process_and_count_nothing_that_was_not_asked_for(question: PlanQuestion) -> None:
    """Oracle: the document of one process, figure by figure, with its counts, ties and gap."""
    crew = Crew()
    assert plan_document(plan(question, crew=crew.workers)) == plan_document(plan(question))
    sent = [name for wave in crew.waves for name in wave]
    assert len(sent) == len(set(sent))  # nothing twice
    for wave in crew.waves:
        assert len(wave) <= 2 * TASKS + 1
        assert sum(level == LEAST for _, level in wave) <= 2 * SIMULATIONS + 1


def test_what_a_simulated_layout_beats_is_not_refined_ahead(alone: LayoutPlan) -> None:
    """Oracle: the bounds that the plan of one process evaluates; a wave has at most its own length beyond them."""
    crew = Crew()
    plan(QUESTION, crew=crew.workers)
    sent = [level for wave in crew.waves for _, level in wave]
    assert len(crew.waves) > 3
    assert alone.tally.bounded - 1 <= sent.count(FLOOR) <= alone.tally.bounded + 2 * TASKS < alone.tally.candidates
    assert sent.count(LEAST) <= len(alone.tally.outcomes) + 2 * SIMULATIONS


@pytest.mark.nightly
def test_a_plan_stopped_in_a_wave_goes_on_with_all_that_was_simulated(alone: LayoutPlan, tmp_path: Path) -> None:
    """Oracle: the plan without interruption; what came before Ctrl-C, asked for or not, is simulated never again."""
    journal = tmp_path / "plan.journal"
    stopped, resumed, last = Crew(interrupted_after=4), Crew(), Crew()
    assert plan(QUESTION, journal=journal, crew=stopped.workers).tally.interrupted
    assert len(stopped.simulated) == 4
    assert len(journal.read_text().splitlines()) >= len(stopped.simulated)
    assert plan_document(plan(QUESTION, journal=journal, crew=resumed.workers)) == plan_document(alone)
    assert plan_document(plan(QUESTION, journal=journal, crew=last.workers)) == plan_document(alone)
    every = [*stopped.simulated, *resumed.simulated, *last.simulated]
    assert len(every) == len(set(every))


def test_processes_answer_as_one(alone: LayoutPlan, monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes take two seconds to start."""
    monkeypatch.setattr(ahead, "START", 0.0)
    with workers(2, None, print) as crew:
        assert plan_document(plan(QUESTION, crew=crew)) == plan_document(alone)


def test_bad_options_are_a_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    cases = {
        ("--jobs", "2", "--cluster", "dask://127.0.0.1:1"): "write one of the two",
        ("--cluster", "127.0.0.1"): "write dask://HOST:PORT",
    }
    for words, said in cases.items():
        assert main(["plan", "hgx-h100", "gpt2", "--gpus", "2", *words]) == 2
        assert said in capsys.readouterr().err
