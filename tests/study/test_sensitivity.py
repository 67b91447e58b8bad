"""Which guesses move the answer? Oracle: the same run with the guess written otherwise, one by one."""

from __future__ import annotations

import pytest

from sim.check import count_estimates
from sim.study.scenario import Scenario, answer, prepare
from sim.study.sensitivity import CHANGE, NOTICEABLE, estimate_warnings, sensitivities

PREP_BOUND = Scenario("p3.2xlarge", "resnet18", ("dataset.samples=200000",))


def step(*overrides: str) -> float:
    return answer(Scenario("p3.2xlarge", "resnet18", ("dataset.samples=200000", *overrides))).run.jobs[0].warm.step_time


def test_a_guess_moves_the_step_as_a_run_with_another_value_says() -> None:
    """The speed of the processor is an estimate, and prepares what this job waits for."""
    question = prepare(PREP_BOUND)
    by_key = {row.key: row for row in sensitivities(question.hardware, question.jobs[0])}
    speed = question.hardware.groups[0].node.host.cpu.speed
    base = step()
    moved = [step(f"node.host.cpu.speed={factor * speed!r}") for factor in (1 - CHANGE, 1 + CHANGE)]
    assert by_key["node.host.cpu.speed"].share == pytest.approx(max(abs(time - base) for time in moved) / base)
    assert by_key["node.host.cpu.speed"].reason


def test_the_largest_come_first_and_small_ones_are_left_out() -> None:
    question = prepare(PREP_BOUND)
    shares = [row.share for row in sensitivities(question.hardware, question.jobs[0])]
    assert shares == sorted(shares, reverse=True) and all(share > NOTICEABLE for share in shares)


def test_warnings_tell_the_key_and_how_far_it_goes() -> None:
    question = prepare(PREP_BOUND)
    rows, said = sensitivities(question.hardware, question.jobs[0]), estimate_warnings(question.hardware, question.jobs[0])
    assert said == [f"{row.key} is an estimate; 30% more or less would change the step time by {100 * row.share:.0f}%" for row in rows]


def test_only_estimates_are_told() -> None:
    """Oracle: `check -v` lists every estimate of a description."""
    question = prepare(PREP_BOUND)
    estimates = {estimate.key for spec in (question.hardware, question.jobs[0].workload) for estimate in count_estimates(spec)}
    assert {row.key for row in sensitivities(question.hardware, question.jobs[0])} <= estimates


def test_shared_among_processes_the_answer_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    question = prepare(PREP_BOUND)
    alone = sensitivities(question.hardware, question.jobs[0])
    monkeypatch.setattr("sim.study.sensitivity.LONG", 0.0)
    monkeypatch.setattr("sim.study.sensitivity.CORES", 1)
    heard: list[tuple[int, int]] = []
    shared = sensitivities(question.hardware, question.jobs[0], lambda done, of: heard.append((done, of)))
    assert shared == alone
    assert heard == [(number, len(heard)) for number in range(1, len(heard) + 1)] and len(heard) > len(alone)
