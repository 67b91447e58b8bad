"""Are schedules of the user candidates of a plan? Oracles: a single run, and the built-in schedule under another name."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

import stallsim
from sim.cli import main
from sim.report.layouts.layout_files import run_command
from sim.report.plan import plan_document
from sim.spec import extensions
from sim.spec.yaml import SpecError
from sim.study.plan.floor import floors
from sim.study.plan.question import PlanQuestion, plan, prepare_plan
from sim.study.plan.search import Limits
from sim.study.plan.space import _few, _runs
from sim.study.scenario import Scenario
from stallsim.protocols import PipelineSchedule
from tests.parallel.test_own_schedule import Again, OneForwardOneBackward, Passes
from tests.study.plan.planned import played

QUESTION = PlanQuestion(Scenario("hgx-h100", "llama-3.2-1b", global_batch=8, stack="torchtitan-2.x"), (1,), 4, fixed={"pp": "4"})

LARGER_QUESTION = replace(QUESTION, scenario=replace(QUESTION.scenario, global_batch=32), limits=Limits(3))


class Eager(OneForwardOneBackward):
    """1F1B with twice the warm-up."""

    name = "Eager-1F1B"
    waits_for_sends = False
    warm_up = 2


@pytest.fixture
def brought() -> Iterator[list[PipelineSchedule]]:
    """Schedules that this process has until the test ends."""
    schedules: list[PipelineSchedule] = [Eager(), Again("1f1b"), Again("interleaved_1f1b")]
    for schedule in schedules:
        extensions.register(extensions.SCHEDULES, schedule)
    yield schedules
    extensions._given.clear()


@pytest.mark.parametrize("apart", [4, pytest.param(1, marks=pytest.mark.nightly)])
def test_each_is_a_candidate_where_it_runs_and_no_bound_is_above_its_simulation(brought: list[PipelineSchedule], apart: int) -> None:
    """Oracle: its built-in twin has as many candidates; bounds against the simulation of every one, or of every fourth."""
    ((setting, every),) = prepare_plan(QUESTION).layouts
    of = {name: [each for each in every if each.schedule == name] for name in {each.schedule for each in every}}
    assert {each.name for each in brought} < set(of)
    assert {each.virtual_stages for each in of["Eager-1F1B"]} == {1}  # with more it leaves chunks out, and does not run
    for twin in ("1f1b", "interleaved_1f1b"):
        changed = [each._replace(schedule=twin) for each in of[f"my_{twin}"] if twin == "1f1b" or each.virtual_stages > 1]
        assert sorted(changed, key=str) == sorted(of[twin], key=str)
    own = [each for each in every if each.schedule not in ("1f1b", "interleaved_1f1b")]
    floor = floors(setting, own)
    for candidate, least, memory in list(zip(own, floor.time, floor.memory, strict=True))[::apart]:
        bound, time, needed = played(setting, candidate)
        assert least <= bound * (1 + 1e-9) <= time * (1 + 2e-9), candidate
        assert memory <= needed * (1 + 1e-9), candidate


def test_asked_about_few_micro_batches_a_schedule_says_what_it_says_of_many(brought: list[PipelineSchedule]) -> None:
    """Oracle: the check of all passes, on a grid of pipelines with rests of every size."""
    answers = set()
    for schedule in brought:
        for stages, chunks in ((2, 1), (2, 2), (4, 1), (4, 2), (8, 1)):
            for micro_batches in range(1, 5 * stages + 1):
                few = _few(micro_batches, stages)
                assert few % stages == micro_batches % stages and (few <= 2 * stages or micro_batches % stages)
                ask = partial(_runs, schedule.name, 0, stages, chunks, sends_ahead=False)
                assert ask(few) == ask(micro_batches), (schedule.name, stages, chunks, micro_batches)
                answers.add(ask(micro_batches))
    assert answers == {True, False}


def test_the_first_answer_does_not_wait_for_what_own_schedules_hold(brought: list[PipelineSchedule]) -> None:
    """Oracle: the first layout that is shown comes of a schedule that is built in, after a single bound."""
    seen: list[tuple[int, str]] = []
    plan(LARGER_QUESTION, progress=lambda tally: seen.append((tally.bounded, tally.outcomes[0].placed_layout.candidate.schedule)))
    assert seen[0][0] == 1 and seen[0][1] in ("1f1b", "interleaved_1f1b")


def test_one_that_runs_nowhere_is_named_with_a_command_that_says_why(
    brought: list[PipelineSchedule], capsys: pytest.CaptureFixture[str]
) -> None:
    """Without backward passes it is refused on any pipeline; on a single stage nothing is said of schedules."""

    class Half(Eager):
        name = "half"

        def passes(self, stage: int, stages: int, chunks: int, micro_batches: int) -> Passes:
            return [("F", 0, number) for number in range(micro_batches)]

    extensions.register(extensions.SCHEDULES, Half())
    question = replace(QUESTION, limits=Limits(1))
    [warning] = [text for text in plan_document(plan(question))["warnings"] if "schedule" in text]
    command = warning.removeprefix("the schedule half cannot run any of these pipelines; '").removesuffix("' shows why")
    assert main(shlex.split(command)[3:]) == 2
    assert "schedule half: stage 0 runs forward and no backward of chunk 0" in capsys.readouterr().err
    assert prepare_plan(replace(question, fixed={"pp": "1"})).refused_schedules == []
    assert prepare_plan(replace(question, allowed={"no-own_schedule"})).refused_schedules == []
    with pytest.raises(SpecError, match="half"):
        plan(replace(question, fixed={"pp": "4", "schedule": "half"}))


def test_the_answer_names_it_and_its_command_runs_it(brought: list[PipelineSchedule]) -> None:
    made = plan(QUESTION)
    built_in = {each.placed_layout.candidate: each.run.step_time for each in made.tally.outcomes}
    twins = [each for each in built_in if each.schedule == "my_1f1b" and each._replace(schedule="1f1b") in built_in]
    assert twins
    for twin in twins:
        assert built_in[twin] == pytest.approx(built_in[twin._replace(schedule="1f1b")], rel=1e-9)
    eager = next(each for each in made.tally.outcomes if each.placed_layout.candidate.schedule == "Eager-1F1B")
    assert "schedule=Eager-1F1B" in shlex.join(shlex.split(run_command(made, eager.placed_layout)))
    row = next(row for row in plan_document(made)["layouts"] if row["parallel"]["schedule"] == "Eager-1F1B")
    alone = stallsim.run(
        "hgx-h100", "llama-3.2-1b", gpus=4, stack="torchtitan-2.x", parallel={"pp": 4, "schedule": "Eager-1F1B"},
        batch=row["batch_per_gpu"], micro_batches=row["micro_batches"], precision=row["precision"],
        overrides={"training.activation_checkpointing": row["activation_checkpointing"]},
    )  # fmt: skip
    assert alone.document["step_time_s"] == pytest.approx(row["step_time_s"], rel=1e-9)


def test_a_journal_tells_schedules_of_one_name_apart(brought: list[PipelineSchedule], tmp_path: Path) -> None:
    """Oracle: the plans without a journal."""
    question = replace(QUESTION, fixed={"pp": "4", "schedule": "my_1f1b"})
    journal = tmp_path / "plan.journal"
    before = plan_document(plan(question, journal=journal))
    other = Again("gpipe")
    other.name = "my_1f1b"
    extensions.register(extensions.SCHEDULES, other)
    after = plan_document(plan(question, journal=journal))
    assert after == plan_document(plan(question))
    assert after["layouts"] != before["layouts"]


def test_python_hands_it_over_and_it_can_be_fixed_or_left_out() -> None:
    options = {"gpus": 4, "global_batch": 8, "stack": "torchtitan-2.x", "simulate": 2}
    try:
        tried = stallsim.plan("hgx-h100", "llama-3.2-1b", fix={"pp": 4, "schedule": Eager()}, **options)  # type: ignore[arg-type]
        assert {row["schedule"] for row in tried["parallel"]} == {"Eager-1F1B"}
        beside = stallsim.plan("hgx-h100", "llama-3.2-1b", fix={"pp": 4}, schedules=[Eager()], **options)  # type: ignore[arg-type]
        without = stallsim.plan("hgx-h100", "llama-3.2-1b", fix={"pp": 4}, allow=["no-own_schedule"], **options)  # type: ignore[arg-type]
        assert beside.attrs["candidates"] == without.attrs["candidates"] + tried.attrs["candidates"]
    finally:
        extensions._given.clear()
    with pytest.raises(SpecError, match=r"^--fix schedule=eager: found 'eager'; write one of gpipe"):
        plan(PlanQuestion(QUESTION.scenario, (1,), 4, fixed={"schedule": "eager"}, limits=Limits(1)))


def test_the_command_of_a_v_shaped_pipeline_names_its_schedule() -> None:
    made = plan(PlanQuestion(QUESTION.scenario, (1,), 4, fixed={"pp": "4", "schedule": "zbv"}, allowed={"zero_bubble"}, limits=Limits(1)))
    assert "schedule=zbv" in run_command(made, made.tally.outcomes[0].placed_layout)
