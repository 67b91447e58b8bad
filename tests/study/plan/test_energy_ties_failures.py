"""Does a plan find the least energy, show ties within the expected error, and count failures? Oracles: every layout, and single runs."""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import replace
from itertools import pairwise
from random import Random
from statistics import median
from typing import Any

import pytest

import stallsim
from sim.analysis.layout_memory import memory_by_stage
from sim.cli import main
from sim.events import Cause
from sim.mesh import LayoutRun, layout_scene, prepare, worker_node
from sim.report import plan as report
from sim.report.goodput import goodput_of
from sim.report.layouts.layout import layout_document
from sim.report.layouts.layout_error import expected_layout_error
from sim.report.plan import plan_document
from sim.report.plan_text import plan_text
from sim.report.prices import price_rows
from sim.report.whole_job import job_time, long_time
from sim.spec.yaml import SpecError
from sim.study.layout import LayoutAnswer
from sim.study.options import Weeks
from sim.study.plan.floor import floors
from sim.study.plan.objective import joules_of_step, least_added, scale
from sim.study.plan.question import LayoutPlan, PlanQuestion, plan, prepare_plan
from sim.study.plan.refine import PlacedLayout, least_step, workload_and_layout
from sim.study.plan.search import EQUAL, Limits, complexity, in_order
from sim.study.power_cap import limit_run
from sim.study.saving import slowdown_by_store
from sim.study.scenario import Scenario
from sim.training.layouts.bound import least_work
from sim.training.layouts.play import play

QUESTION = PlanQuestion(
    Scenario("hgx-h100", "llama-3.2-1b", global_batch=4, stack="megatron-core", sequence=1024),
    (1,),
    2,
    tokens="300B",
    limits=Limits(objective="energy"),
)
"""A few dozen layouts of a small decoder on two GPUs, by energy."""


@pytest.fixture(scope="module")
def made() -> LayoutPlan:
    return plan(QUESTION)


def test_money_and_carbon_say_what_they_are_counted_with(made: LayoutPlan) -> None:
    """Oracle: the price and the grid of a single run with the same machine: 1 000 g a kg, and the day of the price."""
    answer = plan(replace(QUESTION, scenario=replace(QUESTION.scenario, hardware="gpu_8x_h100_sxm5")))
    best, document = answer.tally.outcomes[0].run, plan_document(answer)
    grid = layout_document(LayoutAnswer(best, {}))["energy"]["grid"]
    [row] = price_rows(best.hardware)
    assert [text for text in document["assumptions"] if row["date"] in text and row["source"] in text]
    assert [text for text in document["assumptions"] if f"CO2 at {1000 * grid['kg_per_kwh']:.0f} g/kWh" in text]
    assert not any(text.startswith("Prices") for text in plan_document(made)["assumptions"])  # nobody knows a price of hgx-h100


def test_the_least_energy_is_that_of_every_layout_simulated(made: LayoutPlan) -> None:
    """Oracle: every layout simulated; its joules by the document of a single run; no bound of work or of power is above it."""
    joules = []
    for setting, every in prepare_plan(QUESTION).layouts:
        for candidate in every:
            workload = setting.workload_in(candidate)
            layout = prepare(setting.hardware, workload, setting.gpus_per_node)
            scene = layout_scene(setting.hardware, workload, layout, setting.book)
            run = LayoutRun(setting.hardware, workload, layout, play(scene), ())
            joules.append(joules_of_step(setting, run))
            assert scale(setting, "energy") * run.step_time <= joules[-1] * (1 + 1e-9)
            assert least_work(scene) <= run.stalls[Cause.COMPUTE] * (1 + 1e-6), candidate
    assert made.tally.complete
    assert len(joules) == made.tally.candidates > 20
    best = made.tally.outcomes[0]
    assert best.value == pytest.approx(min(joules), rel=1e-9)
    assert all(one.value <= after.value * (1 + EQUAL) for one, after in pairwise(made.tally.outcomes)), "equal ones by how simple they are"
    document = layout_document(LayoutAnswer(best.run, {}))
    assert best.value == pytest.approx(document["energy"]["energy_per_sample_j"] * best.run.global_batch)
    row = plan_document(made)["layouts"][0]
    assert row["energy_per_step_j"] == best.value
    assert row["job_energy_kwh"] == pytest.approx(best.value * (made.steps or 0.0) / 3.6e6)
    assert "J/tok" in plan_text(plan_document(made))
    assert worker_node(best.run.hardware).gpu.power


@pytest.mark.parametrize(("workload", "share"), [("llama-3.2-1b", 0.8), ("qwen3-30b-a3b", 0.5)])
def test_bounds_of_energy_count_what_gpus_compute(workload: str, share: float) -> None:
    """Oracle: the recurrence of each layout; it computes no less, and its energy is not below the bound, of which most have a *share*."""
    question = replace(QUESTION, scenario=replace(QUESTION.scenario, workload=workload, stack="torchtitan-2.x", global_batch=16), gpus=8)
    shares, draw = [], Random(2)
    for setting, every in prepare_plan(question).layouts:
        chosen = draw.sample(every, 25)
        floor = floors(setting, chosen)
        least = scale(setting, "energy") * floor.time + least_added(setting, chosen, floor, "energy")
        assert not least_added(setting, chosen, floor, "time").any()
        for candidate, work, joules in zip(chosen, floor.work, least, strict=True):
            placed_layout = PlacedLayout(setting, candidate)
            scene = layout_scene(setting.hardware, *workload_and_layout(placed_layout), setting.book)
            assert 0.0 < work <= least_work(scene) * (1 + 1e-9), candidate
            assert joules <= least_step(placed_layout, "energy").value * (1 + 1e-9), candidate
            shares.append(joules / least_step(placed_layout, "energy").value)
    assert median(shares) > share


@pytest.mark.nightly
@pytest.mark.parametrize("objective", ["time", "energy"])
def test_under_a_power_cap_the_best_is_that_of_every_layout_limited(objective: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Oracle: every layout simulated and then limited; `run --power-cap` of the best one's command; no bound is above its value."""
    question = replace(QUESTION, limits=Limits(objective=objective, power_cap="250 W"))  # type: ignore[arg-type]
    planned = plan(question)
    values = []
    for setting, every in prepare_plan(question).layouts:
        for candidate in every:
            workload = setting.workload_in(candidate)
            layout = prepare(setting.hardware, workload, setting.gpus_per_node)
            scene = layout_scene(setting.hardware, workload, layout, setting.book)
            memory = memory_by_stage(layout, workload, worker_node(setting.hardware).gpu)
            run = LayoutRun(setting.hardware, workload, layout, play(scene), memory)
            limit = limit_run(run, "250 W")
            value = limit.steps.step_time if objective == "time" else limit.joules * run.global_batch
            values.append(value * (3.0 if run.memory_verdict == "thrashes" else 1.0))
            bound = least_step(PlacedLayout(setting, candidate), objective).value  # type: ignore[arg-type]
            assert question.limits.share(PlacedLayout(setting, candidate)) * bound <= value * (1 + 1e-9)
    assert planned.tally.complete and planned.tally.outcomes[0].value == pytest.approx(min(values), rel=1e-9)
    document = plan_document(planned)
    best = document["layouts"][0]
    assert main([*shlex.split(best["command"])[3:], "--json"]) == 0
    alone = json.loads(capsys.readouterr().out)["energy"]["power_cap"]
    assert alone["step_time_s"] == pytest.approx(best["step_time_s"]) and alone["step_time_s"] > 1.05 * alone["step_time_without_s"]
    assert alone["energy_per_sample_j"] == pytest.approx(best["energy_per_sample_j"]) and document["power_cap"] == pytest.approx(alone)
    limit = planned.tally.outcomes[0].limit
    assert limit is not None and best["seconds"]["compute"] == pytest.approx(limit.steps.stalls["compute"])


def test_ties_are_within_the_expected_error_of_each_layout(made: LayoutPlan, monkeypatch: pytest.MonkeyPatch) -> None:
    """Oracle: values beside the best, by the median error that a single run of the layout, or of the best, would show."""
    document = plan_document(made)
    best, errors = made.tally.outcomes[0].value, [expected_layout_error(outcome.run) for outcome in made.tally.outcomes]
    assert errors[0] is not None
    for row, outcome, expected in zip(document["layouts"], made.tally.outcomes, errors, strict=True):
        assert expected is not None
        within = max(expected["median"], errors[0]["median"])
        assert row["tie_within"] == within
        assert row["tie"] == (outcome.value <= best * (1 + within))
    assert document["ties"] == sum(row["tie"] for row in document["layouts"])
    assert document["expected_error"] == expected_layout_error(made.tally.outcomes[0].run)
    widest = max(row["tie_within"] for row in document["layouts"] if row["tie"])
    assert document["ties"] == 1 or f"within the expected error ({100 * widest:.0f}%)" in document["verdict"]
    monkeypatch.setattr(report, "expected_layout_error", lambda run: None)
    assert {row["tie_within"] for row in plan_document(made)["layouts"]} == {report.TIE}


def test_a_best_layout_beyond_the_measured_runs_names_the_best_within(made: LayoutPlan, monkeypatch: pytest.MonkeyPatch) -> None:
    """Oracle: errors by hand, with which all layouts tie, and of which those of some layouts are extrapolated."""
    runs, beyond = [outcome.run for outcome in made.tally.outcomes], set[int]()

    def error_of(run: LayoutRun) -> Any:
        reasons = ["4 context ranks, measured up to 2"] if runs.index(run) in beyond else []
        ends = {"low": 0.5, "high": 2.0}
        error = {"median": 9.0, "p90": 9.0, "basis": "10 runs", "extrapolates": bool(reasons), "beyond": reasons, "not_validated": []}
        return error | {"measured_over_predicted_95": ends}

    monkeypatch.setattr(report, "expected_layout_error", error_of)
    assert "extrapolated" not in plan_document(made)["verdict"] and "Run row" not in plan_text(plan_document(made))
    beyond |= {0, 1}
    document = plan_document(made)
    place = next(number for number, row in enumerate(document["layouts"]) if number > 1 and row["memory_verdict"] == "fits")
    lost = document["layouts"][place]["step_time_s"] / document["layouts"][0]["step_time_s"] - 1.0
    told = f"row {place + 1}, the best within the sizes measured, ties with it at {100 * lost:+.1f}%."
    assert document["verdict"].endswith(f"Its error is extrapolated (4 context ranks, measured up to 2); {told}")
    assert f"  Run row {place + 1}, which is like measured runs: {document['layouts'][place]['command']}\n" in plan_text(document)
    assert [row["extrapolated"] for row in document["layouts"][:3]] == ["4 context ranks, measured up to 2"] * 2 + [""]
    beyond |= set(range(len(runs)))
    assert plan_document(made)["verdict"].endswith("as are those of all simulated layouts that tie with it.")
    monkeypatch.setattr(report, "expected_layout_error", lambda run: None)
    assert "extrapolated" not in plan_document(made)["verdict"]


def test_equal_layouts_are_ordered_by_how_simple_they_are(made: LayoutPlan) -> None:
    """Of values within 0.05%, the layout with the fewest axes, recomputed blocks and chunks is first, in whatever order they were found."""
    near = [replace(each, value=1.0 + 1e-4 * number) for number, each in enumerate(made.tally.outcomes[:5])]
    outcomes = [*near, replace(near[0], value=1.0006), replace(near[0], value=0.9994)]
    ordered = in_order(outcomes)
    assert [each.value for each in (ordered[0], ordered[-1])] == [0.9994, 1.0006]
    ranks = [complexity(each.placed_layout.candidate) for each in ordered[1:-1]]
    assert ranks == sorted(ranks)
    assert len(set(ranks)) > 1
    assert in_order(outcomes[::-1]) == ordered
    first = made.tally.outcomes[0].placed_layout.candidate
    simple = first._replace(tensor=1, context=1, pipeline=1, expert=1, replicate=1, virtual_stages=1, shard="none", micro_batches=1)
    more: list[dict[str, Any]] = [{"pipeline": 2}, {"checkpointing": "blocks"}, {"pipeline": 2, "virtual_stages": 2}, {"near": True}]
    more += [{"shard": "optimizer"}, {"micro_batches": 2}]
    for fields in more:
        assert complexity(simple) < complexity(simple._replace(**fields)), fields


def test_failures_are_those_of_goodput(made: LayoutPlan) -> None:
    """Oracle: `goodput` of the best layout's own document; a fleet that never fails is wholly effective but for its checkpoints."""
    best = made.tally.outcomes[0].run
    weeks = plan_document(made, with_failures=True)["with_failures"]
    described, slowed = layout_document(LayoutAnswer(best, made.inputs)), slowdown_by_store(best)
    expected = goodput_of(described, best.hardware, best.workload, Weeks(tokens=3e11), changes=False, slowed=slowed)
    assert (weeks["ettr"], weeks["days"], weeks["interruptions"]) == (expected["ettr"], expected["days"], expected["interruptions"])
    assert weeks["days"] * 86400 > (made.steps or 0.0) * best.step_time
    text = plan_text(plan_document(made, with_failures=True))
    assert f"{100 * weeks['effective_share']:.1f}% effective" in text
    low, high = (job_time(86400 * days) for days in weeks["interval95"]["days"])
    assert f"With failures: {long_time(86400 * weeks['days'])}, {low} to {high} in 95% of simulated runs; " in text and low != high
    assert "failure rate 'middle' (--reliability), 0 spare nodes" in text
    assert plan_document(made)["with_failures"] is None
    rarely = goodput_of(described, best.hardware, best.workload, Weeks(tokens=3e11, level="low", spares=2), changes=False, slowed=slowed)
    at_low_rate = plan_document(made, with_failures=True, reliability="low", spares=2)["with_failures"]
    assert (at_low_rate["interruptions"], at_low_rate["spares"], at_low_rate["days"]) == (rarely["interruptions"], 2, rarely["days"])


def test_bad_input_is_a_sentence(made: LayoutPlan, capsys: pytest.CaptureFixture[str]) -> None:
    cases = {
        ("--with-failures",): "--tokens",
        ("--spares", "2"): "--spares 2: applies only to failures; add --with-failures",
        ("--tokens", "1T", "--with-failures", "--reliability", "best"): "known: high, low, middle",
        ("--objective", "joy"): "write time, cost or energy",
        ("--objective", "energy", "--set", "node.gpu.power=null"): "has no power",
        ("--fix", "tp=2", "--fix", "tensor=4"): "--fix tensor=4: contradicts tp=2; write one of the two",
        ("--fix", "vp=2,pp=1"): "--fix vp=2,pp=1: no layout has all of these",
        ("--fix", "near=true"): "near may be false with the others",
    }
    for words, said in cases.items():
        assert main(["plan", "hgx-h100", "gpt2", "--gpus", "2", *words]) == 2
        assert said in capsys.readouterr().err
    for arguments, problem in (
        ({"simulate": 0}, "simulate=0: write 1 or more"),
        ({"simulate": "3"}, "simulate='3': expected a whole number"),
        ({"simulate": None}, "simulate=None: expected a whole number"),
        ({"global_batch": 0}, "global_batch=0: write 1 or more"),
        ({"fix": {"tp": 2, "tensor": 4}}, "fix['tensor']=4: contradicts tp=2; write one of the two"),
    ):
        with pytest.raises(SpecError, match=f"^{re.escape(problem)}$"):
            stallsim.plan("hgx-h100", "gpt2", gpus=2, **arguments)
    timed = plan(replace(QUESTION, limits=Limits(simulations=1), tokens=None))
    json.dumps(plan_document(timed))
    assert plan_document(timed)["layouts"][0]["job_energy_kwh"] is None
