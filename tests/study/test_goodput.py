"""Do weeks of a described job come out? Oracles: the run itself without failures, the closed form, and the same courses with one change."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sim.analysis.course import draw
from sim.analysis.expected_share import closed_form
from sim.analysis.fleet_law import FleetInterval
from sim.analysis.long_run import OTHERS, ZERO_TIME, Saving
from sim.analysis.renewal import Uniform
from sim.analysis.whole_job import START_UP
from sim.cli import main
from sim.documents import document, weeks_document
from sim.report.goodput import gain_text, goodput_document, goodput_text
from sim.spec.library import load_part, load_workload
from sim.spec.sections import with_fields
from sim.spec.stack import Stack
from sim.study.goodput import simulate_weeks, time_of_changes
from sim.study.layout import layout_answer
from sim.study.options import Weeks
from sim.study.scenario import Scenario
from sim.study.weeks import long_run, reliability_of, steps_of
from sim.study.whole_job import plan_of
from tests.study.weeks_asked import DAY, SCENARIO, steps, weeks


def _layout(**axes: str | int) -> tuple[tuple[str, str, str | int], ...]:
    return tuple(("--parallel", f"parallel.{axis}", value) for axis, value in axes.items())


def test_without_failures_weeks_are_the_run() -> None:
    """Failures that are 1e9 years apart: the epochs take their steps, saves, and the start."""
    simulated = simulate_weeks(steps(), Weeks(epochs=300.0, rate="0.000000001 /y", trials=3, interval="1 h"), changes=False)
    quiet = replace(simulated.run, planned=(0.0, 1.0), slow=(0.0, 1.0, 0.0), correlated=(0.0, 4, simulated.run.correlated[2]))
    courses = draw(quiet, 3)
    work = 300 * document(replace(SCENARIO, nodes=16))["epoch_time_s"] + sum(steps().cold)
    saves = math.ceil(work / 3600) * simulated.run.saving.blocking
    started = courses.lost["restart"]
    assert courses.interruptions.sum() == 0
    assert courses.elapsed == pytest.approx(work + saves + started, rel=1e-9)
    assert (started == START_UP).all()


@pytest.mark.parametrize(
    ("scenario", "epochs", "tokens"),
    [
        (Scenario("dgx-a100", "resnet50", nodes=2), 3.5, None),
        (Scenario("dgx-a100", "resnet50", nodes=64), 0.25, None),
        (Scenario("p3.8xlarge", "alexnet", nodes=4), 3.5, None),
        (Scenario("hgx-h100", "llama-3.1-8b", nodes=2, layout=(("--parallel", "parallel.shard", "parameters"),)), None, 1e10),
        pytest.param(
            Scenario("hgx-h100", "llama-3.1-70b", nodes=8, layout=_layout(tensor=8, pipeline=4, micro_batches=16, shard="optimizer")),
            None,
            1e10,
            marks=pytest.mark.nightly,
        ),
        (Scenario("hgx-h200", "deepseek-v2-lite", nodes=2, layout=_layout(expert=8, shard="optimizer")), None, 1e10),
    ],
)
def test_without_failures_goodput_is_that_of_run(scenario: Scenario, epochs: float | None, tokens: float | None) -> None:
    """Oracle: the whole job of `run`, start-up and first epoch included, without the checkpoints of which each has its own."""
    ran = document(replace(scenario, plan=plan_of(epochs, None, tokens=None if tokens is None else f"{tokens:g}")))["whole_job"]
    parts = ran["parts_s"]
    goodput = weeks_document(scenario, Weeks(epochs=epochs, tokens=tokens, rate="0 /d", trials=2), changes=False)
    job = ran["time_s"] - parts["checkpoints"]
    work = parts["first_epoch"] + parts["later_epochs"]
    saved = goodput["lost_s"]["checkpoint"]
    assert goodput["elapsed_s"] - saved == pytest.approx(job, rel=1e-12)
    assert goodput["work_s"] == pytest.approx(work, rel=1e-12)
    assert goodput["lost_s"]["restart"] == pytest.approx(parts["start_up"])
    assert goodput["effective_share"] == goodput["goodput"] == pytest.approx(work / (job + saved), rel=1e-12)
    assert goodput["closed_form"]["effective_share"] == pytest.approx(goodput["effective_share"], rel=1e-12)
    assert goodput["samples"] == pytest.approx(ran["epochs"] * load_workload(scenario.workload).spec.dataset.samples, rel=1e-12)


def test_without_failures_as_much_is_trained_in_a_time_as_by_run() -> None:
    """Oracle: the epochs that `run --hours` tells, without checkpoints."""
    scenario = Scenario("dgx-a100", "resnet50", nodes=2)
    ran = document(replace(scenario, plan=plan_of(None, 1.0, checkpoints=False)))["whole_job"]
    goodput = weeks_document(scenario, Weeks(days=1 / 24, rate="0 /d", trials=2), changes=False)
    assert goodput["samples"] == pytest.approx(ran["epochs"] * load_workload("resnet50").spec.dataset.samples, rel=1e-12)
    assert goodput["closed_form"]["effective_share"] == pytest.approx(goodput["effective_share"], rel=1e-12)


def test_without_failures_the_job_takes_as_long_as_that_of_run() -> None:
    """Oracle: `run --epochs`, on so many nodes that the wait for an epoch's first batch is a tenth of it; starts and saves apart."""
    scenario = Scenario("dgx-a100", "resnet50", nodes=64, plan=plan_of(300.0, None))
    ran = document(scenario)
    epochs = ran["whole_job"]["parts_s"]
    assert ran["epoch_time_s"] > 1.05 * ran["step_time_s"] * load_workload("resnet50").spec.dataset.samples / (512 * 80)
    goodput = weeks_document(replace(scenario, plan=None), Weeks(epochs=300.0, rate="0 /d", trials=2), changes=False)
    assert goodput["work_s"] == pytest.approx(epochs["first_epoch"] + epochs["later_epochs"], rel=1e-3)
    assert goodput["samples"] == pytest.approx(300 * load_workload("resnet50").spec.dataset.samples)


def test_each_start_compiles_and_captures_graphs() -> None:
    """Oracles: the same faults without compiling, whose restarts are shorter by what was drawn for each; the file of the stack."""
    settings = Weeks(days=20.0, trials=60, rate="0.05 /d", spares=100)  # no recovery waits, to be interrupted by the next fault
    eager = simulate_weeks(steps(), settings, changes=False)
    workload = steps().workload
    stack = workload.training.stack
    assert eager.run.compilation == ZERO_TIME
    for changed, low, high in (
        ({"compilation": (240.0, 240.0)}, 240.0, 240.0),
        ({"cuda_graphs": True}, 11.0, 58.0),
        ({"cuda_graphs": True, "compilation": (4.0, 15.0), "capture": (1.0, 1.0)}, 5.0, 16.0),
    ):
        slow = simulate_weeks(
            steps()._replace(workload=workload.with_training(stack=with_fields(stack, **changed))), settings, changes=False
        )
        assert slow.run.compilation == Uniform(low, high)
        assert "each start compiles" in " ".join(slow.notes)
        assert slow.expected < eager.expected
        starts = 1 + slow.courses.interruptions
        longer = slow.courses.lost["restart"] - eager.courses.lost["restart"]
        assert longer.sum() == pytest.approx(starts.sum() * (low + high) / 2, rel=0.1)
    assert load_workload("llama-3.1-8b", ["training.stack=torchtitan-2.x"]).spec.training.stack.kernels.compilation == (4.0, 15.0)


def test_no_failures_are_the_run() -> None:
    """At a rate of 0 the epochs take their steps, one checkpoint, and the start; nothing waits, and no other set-up is better."""
    simulated = simulate_weeks(steps(), Weeks(epochs=300.0, rate="0 /d", trials=3))
    work = 300 * document(replace(SCENARIO, nodes=16))["epoch_time_s"] + sum(steps().cold)
    assert simulated.intervals[:4] == pytest.approx([work] * 4)
    assert simulated.courses.elapsed == pytest.approx(work + simulated.run.saving.blocking + simulated.courses.lost["restart"], rel=1e-12)
    assert {name for name, lost in simulated.courses.lost.items() if lost.any()} == {"restart", "checkpoint"}
    assert next(one for one in simulated.changes if one.name == "half the failures").share == simulated.changes[0].share


def test_what_sums_leave_over_is_no_lost_time() -> None:
    """A part that never happens is zero, not the rounding of the sums that it is the rest of."""
    for seed in range(6):
        goodput = goodput_document(weeks(days=0.31, seed=seed))
        assert all(seconds == 0.0 or seconds > 1e-9 for seconds in goodput["lost_s"].values())


def test_shares_and_days_of_a_table_agree() -> None:
    """One share for all: what is kept of all drawn runs over the time of all; the energy of a sample is that of all over all samples."""
    document = goodput_document(weeks(days=None, epochs=300.0, rate="0.05 /d", spares=12))
    assert document["effective_share"] == pytest.approx(document["work_s"] / document["elapsed_s"])
    assert document["energy_per_sample_j"] == pytest.approx(document["energy_kwh"] * 3.6e6 / document["samples"])
    assert document["elapsed_s"] == pytest.approx(document["days"] * DAY)


def test_energy_for_each_token_and_mfu_stand_apart() -> None:
    scenario = Scenario("hgx-h100", "llama-3.1-8b", nodes=2, layout=(("--parallel", "parallel.shard", "parameters"),))
    run, goodput = document(scenario), weeks_document(scenario, Weeks(tokens=1e10, rate="0 /d", trials=3, spares=0), changes=False)
    assert goodput["model_flops_utilization"] == pytest.approx(run["model_flops_utilization"])
    assert goodput["energy_per_token_j"] * 1e10 == pytest.approx(goodput["energy_kwh"] * 3.6e6)
    assert goodput["energy_per_token_j"] == pytest.approx(run["energy"]["energy_per_token_j"], rel=0.01)
    laid_out = layout_answer(scenario).run
    assert steps_of(run, laid_out.hardware, laid_out.workload).model_flops_utilization == pytest.approx(run["model_flops_utilization"])
    text = goodput_text(goodput)
    assert "energy per token" in text and f"at {100 * run['model_flops_utilization']:.1f}% MFU" in text


def test_a_rate_of_one_s_own_is_that_of_all_interruptions() -> None:
    """Oracle: rate x nodes x time, however low the rate is; of it events of several nodes are the share that they are of the level's."""
    level = reliability_of("middle")
    for rate in (1e-5, 1e-3):
        run = long_run(steps(), Weeks(rate=f"{rate:f} /d", days=20.0 / rate / 16, spares=16), level)
        assert run.correlated[0] / run.rate[1] == pytest.approx(level.correlated.rate / level.rate.value)
        drawn = draw(replace(run, saving=Saving(3600.0, 1.0, 1.0, 1.0), planned=(0.0, 1.0)), 400)
        assert drawn.interruptions.mean() == pytest.approx(20.0, rel=0.05)
    own = weeks(rate="0.02 /d")
    assert "0.02 /d per 8 GPUs" in own.notes[0]
    assert "Closed form at the given rate" in goodput_text(goodput_document(own))
    assert "Closed form at the middle rate" in goodput_text(goodput_document(weeks()))


def test_intervals_of_other_rates_reach_the_draws() -> None:
    """Oracle: the file's numbers; the same weeks without intervals, or with wider ones, have figures that spread less, or more."""
    level, job = reliability_of("middle"), steps(128)
    assert level.planned.interval == pytest.approx((0.0696 / DAY, 2.31 / DAY)) and level.new_fleet.interval == (0.03, 0.10)
    run = simulate_weeks(job, Weeks(days=18.0, trials=2, rate="0.003 /d", new_fleet=True, spares=40), changes=False).run
    assert run.spreads["planned"] == pytest.approx((0.0696 / 0.4, 2.31 / 0.4, 6)) and run.degrees_of_freedom == 4
    assert run.spreads["cause silent"] == pytest.approx((0.000717 / 0.0065, 0.0589 / 0.0065, 6))
    assert run.spreads["cause gpu"] == pytest.approx((0.0526 / 0.4767, 1 / 0.4767, 6))
    assert set(run.spreads) == {*OTHERS, *(f"cause {cause.name}" for cause in level.causes)}
    before = {"share": 0.0, "interruptions": 0.0, "stops": 0.0}
    run = replace(run, planned=(0.4 / DAY, 0.0))  # a few more, so that counts show their spread
    for power in (0.0, 1.0, 2.0):
        wide = replace(run, spreads={name: FleetInterval(low**power, high**power, law) for name, (low, high, law) in run.spreads.items()})
        courses = draw(wide, 150)
        width = {name: float(np.ptp(np.quantile(getattr(courses, name), [0.025, 0.975]))) for name in before}
        assert all(width[name] > before[name] for name in width)
        before = width


def test_shares_of_causes_are_of_unplanned_incidents() -> None:
    """By hand, of ByteRobust and StepFun: 128 explicit, 15 implicit incidents and 12 rollbacks; 20 hot updates are planned."""
    explicit, implicit, rollbacks = (count / (128 + 15 + 12) for count in (128, 15, 12))
    shares = {
        "gpu": explicit * 104 / 199 + implicit * 21 / 45, "network": explicit * 48 / 199, "host": explicit * 47 / 199,
        "software": rollbacks, "hang": implicit * 21 / 45, "silent": implicit * 3 / 45,
    }  # fmt: skip
    for level in ("low", "middle", "high"):
        assert {cause.name: cause.share for cause in reliability_of(level).causes} == pytest.approx(shares, abs=5e-5)


@pytest.mark.parametrize(
    ("stack", "seconds"), [("torchtitan-2.x", 100.0), ("torch-2.x-ddp", 600.0), ("gloo-ddp", 1800.0), ("horovod-0.21", None)]
)
def test_timeouts_of_the_stack_end_hangs(stack: str, seconds: float | None) -> None:
    """At the levels at which somebody notices; without a timeout that is known, those of the level."""
    workload = steps().workload
    job = steps()._replace(workload=workload.with_training(stack=load_part(Stack, stack)))
    for name, unknown in (("low", (100.0, 600.0)), ("middle", (600.0, 600.0)), ("high", None)):
        level = reliability_of(name)
        causes = {cause.name: cause.detection for cause in long_run(job, Weeks(days=1.0), level).causes}
        own = {cause.name: cause.detection for cause in level.causes}
        assert causes.pop("hang") == (unknown or own["hang"] if seconds is None or unknown is None else (seconds, seconds))
        assert causes == {cause: span for cause, span in own.items() if cause != "hang"}


def test_what_changes_bring_is_told_of_the_job_or_of_its_first_faults() -> None:
    """54 days on 16,384 GPUs are drawn in whole: spares run short late."""
    middle = reliability_of("middle").rate.value
    job = weeks(days=54.0).run
    assert time_of_changes(replace(job, rate=(2048 * middle,) * 3)) == 54 * DAY
    simulated = simulate_weeks(steps(), Weeks(days=20.0, trials=2))
    contents = goodput_document(simulated)
    assert [one["gain_points"] for one in contents["sensitivities"]] == [
        100 * (one.share - simulated.changes[0].share) for one in simulated.changes
    ]
    assert "Effect of one change (percentage points of effective share ± standard error):" in goodput_text(contents)
    assert "as it is" not in goodput_text(contents)  # one figure of the effective share: the outcome's


@pytest.mark.parametrize("trials", [2, 500, 1000])
def test_changes_are_compared_with_the_outcome(trials: int) -> None:
    """The set-up as it is has the share of the result, from the same draws; no effect is larger than what is left to gain."""
    contents = goodput_document(simulate_weeks(steps(), Weeks(days=20.0, trials=trials)))
    as_it_is, *others = contents["sensitivities"]
    assert as_it_is["effective_share"] == contents["effective_share"]
    assert as_it_is["gain_points"] == as_it_is["gain_standard_error_points"] == 0.0
    assert max(one["gain_points"] for one in others) <= 100 * (1 - contents["effective_share"])


def test_an_effect_is_what_the_changed_job_alone_has() -> None:
    """Of a job with a given amount of work. Oracle: the same job simulated with that many spares."""
    job = Weeks(tokens=2e13, trials=60, spares=2)
    contents = goodput_document(simulate_weeks(steps(), job))
    assert contents["sensitivities"][0]["effective_share"] == contents["effective_share"]
    for change, spares in (("one spare more", 3), ("half the spares", 1)):
        effect = next(one for one in contents["sensitivities"] if one["change"] == change)
        rerun = goodput_document(simulate_weeks(steps(), replace(job, spares=spares), False))
        assert effect["effective_share"] == rerun["effective_share"] != contents["effective_share"]
        assert effect["gain_points"] == 100 * (rerun["effective_share"] - contents["effective_share"])


def test_a_job_that_waits_for_spares_says_how_long_repairs_take() -> None:
    """Oracle: the quantiles of repairs in the data of the level."""
    waits = goodput_text(goodput_document(simulate_weeks(steps(), Weeks(tokens=2e13, trials=300, spares=1), False)))
    assert "half of the repairs of failed nodes take up to 20.4 h, 90% up to 12.5 d, and the longest 131 d" in waits
    works = goodput_text(goodput_document(simulate_weeks(steps(), Weeks(tokens=2e13, trials=300, spares=16), False)))
    assert "repairs of failed nodes" not in works


def test_progress_goes_up_to_what_there_is_to_do() -> None:
    """Courses and changes are counted once each, so that the last number is the total."""
    heard: list[tuple[int, int]] = []
    simulate_weeks(steps(), Weeks(days=20.0, trials=2), progress=lambda done, of: heard.append((done, of)))
    [total] = {of for _, of in heard}
    counts = [done for done, _ in heard]
    assert counts == sorted(counts) and counts[-1] == total


@pytest.mark.nightly
def test_gains_have_the_standard_error_of_paired_courses() -> None:
    """Bootstrap oracle: gains in 30 sets of other courses scatter by the standard error of one."""
    sets = [simulate_weeks(steps(), Weeks(days=20.0, trials=150, seed=seed)).changes for seed in range(30)]
    place = next(number for number, change in enumerate(sets[0]) if change.name == "half the failures")
    gains = [changes[place].share - changes[0].share for changes in sets]
    errors = [changes[place].gain_error or 0.0 for changes in sets]
    assert float(np.std(gains, ddof=1)) == pytest.approx(float(np.mean(errors)), rel=0.4)


def test_a_gain_below_its_standard_error_is_told_as_such() -> None:
    change = {"gain_points": 0.01, "gain_standard_error_points": 0.02}
    assert gain_text(change) == " +0.01 ± 0.02, less than its standard error"
    assert gain_text(change | {"gain_points": 0.5}) == " +0.50 ± 0.02"
    assert gain_text({"gain_points": 0.001, "gain_standard_error_points": 0.004}) == " +0.00 ± 0.00"  # nothing to say of two zeros
    assert gain_text({"gain_points": 0.5, "gain_standard_error_points": None}) == " +0.50"
    assert gain_text({"gain_points": -0.004, "gain_standard_error_points": None}) == " +0.00"
    assert gain_text({"gain_points": -0.006, "gain_standard_error_points": None}) == " -0.01"


@pytest.mark.nightly
def test_of_longer_jobs_the_text_says_how_much_is_drawn() -> None:
    longer = goodput_document(simulate_weeks(steps(), Weeks(days=2000.0, rate="0.1 /d", spares=20, trials=2)))
    assert longer["sensitivities_over_s"] == pytest.approx(400 / (16 * 0.1) * DAY)
    text = goodput_text(longer)
    assert "Effect of one change (percentage points of effective share ± standard error over the first 250.0 days):" in text
    assert re.search(r"compared with \d\d\.\d\d ± \d+\.\d\d% as it is", text)


@pytest.mark.parametrize("keys", [{}, {"days": 100.0, "spares": 0, "repairs": False, "rate": "0.0002 /d"}, {"days": None, "tokens": 1e11}])
def test_rows_of_the_distribution_are_runs(keys: dict[str, Any]) -> None:
    """Each row is found among the drawn courses as a whole; shares go from the lowest to the highest."""
    simulated = weeks(**keys)
    courses, rows = simulated.courses, goodput_document(simulated)["distribution"]
    times = np.where(courses.finished, courses.elapsed, simulated.run.horizon)
    drawn = set(zip(courses.work / times, courses.elapsed / DAY, courses.interruptions, strict=True))
    assert {(row["effective_share"], row["days"], row["interruptions"]) for row in rows} <= drawn
    shares = [row["effective_share"] for row in rows]
    assert shares == sorted(shares) and (shares[0], shares[-1]) == (min(courses.work / times), max(courses.work / times))
    assert [row["share"] for row in rows] == pytest.approx(np.linspace(0.0, 1.0, 41))


def test_half_the_failures_are_half_of_the_same_failures() -> None:
    """On one node without spares, where a fault more or less is seen: fewer of the same faults never lower the share."""
    one = steps()._replace(nodes=1, gpus=8)
    for seed in range(4):
        changes = {each.name: each.share for each in simulate_weeks(one, Weeks(days=30.0, spares=0, trials=200, seed=seed)).changes}
        assert changes["half the failures"] >= changes["as it is"]


def test_drawn_is_near_the_closed_form_where_it_holds() -> None:
    simulated = weeks(rate="0.05 /d", spares=40, trials=200)
    plain = replace(
        simulated.run, planned=(0.0, 1.0), slow=(0.0, 1.0, 0.0), correlated=(0.0, 4, simulated.run.correlated[2]), repeats=(0.0, 1.0),
        causes=[replace(cause, silent_for=0.0) for cause in simulated.run.causes], shape=math.inf,
    )  # fmt: skip
    drawn = draw(plain, 400, 1).share
    assert abs(drawn.mean() - closed_form(plain)) < 4 * drawn.std() / 20 + 5e-4
    assert simulated.expected == pytest.approx(simulated.meta, abs=0.01)


def test_failures_beside_a_run_use_its_store_and_power_cap(capsys: pytest.CaptureFixture[str]) -> None:
    command = ["run", "p3.16xlarge", "resnet50", "--nodes", "2", "--epochs", "9", "--fast", "--json", "--with-failures"]
    assert main([*command, "--store", "fsx-lustre-125", "--power-cap", "200 W"]) == 0
    capped = json.loads(capsys.readouterr().out)["with_failures"]
    assert main(command) == 0
    free = json.loads(capsys.readouterr().out)["with_failures"]
    assert (capped["checkpoint"]["store"], free["checkpoint"]["store"]) == ("fsx-lustre-125", "object-store")
    assert capped["step_time_s"] > free["step_time_s"] and capped["energy_kwh"] < free["energy_kwh"]


def test_failures_beside_a_run_are_of_any_level(capsys: pytest.CaptureFixture[str]) -> None:
    """Oracle: `goodput` of the same job; rates and spares without failures say what they are of."""
    job = ["hgx-h100", "gpt2-xl", "--nodes", "4", "--batch", "4", "--precision", "amp_bf16", "--json"]
    failing = ["--with-failures", "--reliability", "high", "--spares", "2"]
    assert main(["run", *job, "--hours", "200", *failing]) == 0
    beside = json.loads(capsys.readouterr().out)["with_failures"]
    assert main(["goodput", *job, "--days", f"{200 / 24!r}", "--reliability", "high", "--spares", "2", "--fast"]) == 0
    alone = json.loads(capsys.readouterr().out)
    assert beside["reliability"]["level"] == "high" and beside["spares"] == 2
    assert {key: beside[key] for key in ("effective_share", "interruptions", "energy_kwh")} == {
        key: alone[key] for key in ("effective_share", "interruptions", "energy_kwh")
    }
    assert main(["run", *job, "--hours", "200", "--reliability", "high"]) == 2
    assert "--reliability high: applies only to failures; add --with-failures" in capsys.readouterr().err
    assert main(["run", *job, "--hours", "200", "--with-failures", "--reliability", "best"]) == 2
    assert "known: high, low, middle" in capsys.readouterr().err


def test_what_is_asked_for_arrives() -> None:
    base = weeks()
    assert base.run.spares == 1 and weeks(spares=3).run.spares == 3
    assert base.run.horizon == 20 * DAY and weeks(days=None, epochs=2.0).run.work == pytest.approx(
        2 * document(replace(SCENARIO, nodes=16))["epoch_time_s"]
    )
    assert weeks(mode="sync").run.saving.blocking > base.run.saving.blocking
    assert weeks(mode="tiered").run.saving.memory_interval is not None
    assert weeks(in_place=True).run.restart == base.run.restart_in_place < base.run.restart
    assert any("at 93.8% speed with one node missing" in note for note in weeks(elastic=True).notes)
    assert weeks(elastic=True).run.elastic == pytest.approx([there / 16 for there in range(15, 0, -1)])
    assert weeks(new_fleet=True).run.new_fleet[0] == pytest.approx(0.055 * 128)
    assert [reliability_of(name).rate.value * DAY for name in ("low", "middle", "high")] == pytest.approx([0.00154, 0.00308, 0.00615])
    spot = weeks(mean_lifetime="20 h")
    revocation = spot.run.causes[-1]
    assert spot.run.rate[1] == pytest.approx(base.run.rate[1] + 16 / (20 * 3600))
    assert revocation.name == "revocation" and sum(cause.share for cause in spot.run.causes) == pytest.approx(1.0, abs=0.005)


@pytest.mark.parametrize("length", [{"days": 0.0009}, {"days": 0.002}, {"days": 0.2}, {"days": None, "epochs": 0.001}])
def test_the_closed_form_begins_with_the_first_start(length: dict[str, Any]) -> None:
    """Oracle: drawn courses of jobs so short that hardly one fails. Meta's formula has no start, and the text says so."""
    simulated = weeks(**length, trials=400, rate="0.001 /d")
    assert simulated.expected == pytest.approx(float(simulated.courses.share.mean()), abs=0.005)
    assert simulated.expected < 0.9 * simulated.meta or length == {"days": 0.2}
    assert "without the first start (" in goodput_text(goodput_document(simulated))


@pytest.mark.parametrize("rate", [None, "0 /d"])
def test_a_job_shorter_than_its_start_does_no_work(rate: str | None) -> None:
    simulated = weeks(days=0.0001, trials=2, rate=rate)
    assert simulated.expected == 0.0 and goodput_document(simulated)["effective_share"] == 0.0


def test_a_layout_has_weeks_too() -> None:
    scenario = Scenario("hgx-h100", "llama-3.1-70b", nodes=16, layout=(("--tp", "parallel.tensor", 8), ("--pp", "parallel.pipeline", 4)))
    goodput = weeks_document(scenario, Weeks(tokens=1e11, trials=20), changes=False)
    assert goodput["tokens"] == pytest.approx(1e11) and goodput["checkpoint"]["writers"] == 32
    assert goodput["days"] * DAY == pytest.approx(goodput["work_s"] + sum(goodput["lost_s"].values()), rel=1e-9)


def test_what_helps_never_lowers_the_effective_share(tmp_path: Path) -> None:
    """Oracle: on the same faults, each at its best interval, more spares, rarer failures and a faster store keep no less, in the mean."""
    options = {"days": 10.0, "trials": 300, "rate": "0.02 /d", "spares": 2}
    stores = []
    for speed in (0.2, 1, 5, 25):
        stores.append(tmp_path / f"store{speed}.yaml")
        stores[-1].write_text(f"name: s\nbandwidth: {speed} GB/s\nsize: 1 PB\nsource: test\n", encoding="utf-8")
    rising: dict[str, list[object]] = {
        "spares": [0, 1, 2, 4, 8], "rate": ["0.08 /d", "0.04 /d", "0.02 /d", "0.005 /d"], "store": [str(path) for path in stores],
    }  # fmt: skip
    for mode in ("async", "sync"):
        for key, values in rising.items():
            made = [weeks(**(options | {"mode": mode, key: value})) for value in values]
            shares = [float(simulated.courses.share.mean()) for simulated in made]
            assert shares == sorted(shares), (mode, key, shares)
            closed = [simulated.expected for simulated in made]
            assert closed == sorted(closed), (mode, key, closed)
            assert shares[-1] > shares[0], (mode, key)
