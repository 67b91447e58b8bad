"""Does a plan that was stopped go on where it was? Oracles: the same plan without a journal, and what is simulated again."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sim.report.plan import plan_document
from sim.study.plan import refine
from sim.study.plan.question import PlanQuestion, plan
from sim.study.plan.search import Limits, Tally
from sim.study.plan.step_cache import JournalError
from sim.study.scenario import Scenario
from sim.training.layouts.play import play

QUESTION = PlanQuestion(Scenario("hgx-h100", "gpt2", global_batch=8, stack="megatron-core"), (1,), 4)


def test_a_stopped_plan_goes_on_and_answers_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Oracle: the plan without a journal, figure by figure; only layouts that were not simulated before are simulated."""
    expected = plan_document(plan(QUESTION))
    played: list[object] = []

    def counted(scene: Any) -> Any:
        played.append(scene)
        return play(scene)

    monkeypatch.setattr(refine, "play_steadily", counted)
    journal = tmp_path / "plan.journal"

    def stop(tally: Tally) -> None:
        if len(tally.outcomes) == 3:
            raise KeyboardInterrupt

    assert plan(QUESTION, stop, journal).tally.interrupted
    first = len(played)
    assert first >= 3
    resumed = plan_document(plan(QUESTION, journal=journal))
    assert resumed == expected
    assert len(played) == expected["simulated"]
    again = len(played)
    assert plan_document(plan(QUESTION, journal=journal)) == expected
    assert len(played) == again
    other = replace(
        QUESTION, scenario=replace(QUESTION.scenario, overrides=("node.nic.bandwidth=100 Gbps", "node.gpu.memory_bandwidth=2 TB/s"))
    )
    plan(replace(other, limits=Limits(simulations=2)), journal=journal)
    assert len(played) == again + 2


def test_a_journal_that_fails_is_said_and_no_layout_blamed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from sim.spec.yaml import SpecError
    from sim.study.journal import Journal

    def full(self: Journal, key: str, figures: object) -> None:
        raise SpecError("plan.journal: cannot be written: No space left on device")

    monkeypatch.setattr(Journal, "note", full)
    with pytest.raises(JournalError, match="No space left"):
        plan(QUESTION, journal=tmp_path / "plan.journal")
    with pytest.raises(SpecError, match="cannot be written"):
        plan(QUESTION, journal=tmp_path / "missing" / "plan.journal")
