"""What becomes of nodes in a job of weeks: spares, elastic jobs, spot machines, power? Oracles: whole replicas, prices, draws of `spot`."""

from __future__ import annotations

import math
from dataclasses import replace
from operator import attrgetter

import numpy as np
import pytest

from sim.analysis.course import draw
from sim.analysis.long_run import ZERO_TIME, DrawnCause, LongRun, Saving
from sim.analysis.renewal import Uniform
from sim.analysis.transient import CrowdLives, lifetimes_of, survival
from sim.cli import main
from sim.documents import Documents, document, weeks_document
from sim.report.energy import energy_text
from sim.report.goodput import goodput_document, goodput_text
from sim.report.limited import under_power_cap
from sim.spec.library import load_hardware, load_workload
from sim.spec.node_prices import Prices
from sim.spec.yaml import SpecError
from sim.study.goodput import simulate_weeks
from sim.study.options import Weeks
from sim.study.power_cap import slower_runs
from sim.study.scenario import Scenario, answer
from sim.study.spot import SpotRequest, spot
from sim.study.transient import SpotJob, draw_courses, spread
from sim.study.weeks import long_run, reliability_of, steps_of
from tests.study.weeks_asked import DAY, SCENARIO, laid_out, steps, weeks


def test_a_small_rented_job_waits_for_another_node_and_not_for_a_repair() -> None:
    """Oracle: the same run whose nodes are all repaired in the time that renting one takes; nobody rents a node of an own cluster."""
    own = steps(2)
    rented = own._replace(usd_per_s=0.01, provider="AWS")
    priced = simulate_weeks(own._replace(usd_per_s=0.01), settings := Weeks(days=20.0, rate="0.2 /d", trials=300), changes=False)
    assert priced.run.spares == 1 and any("--set provider=NAME" in note for note in priced.notes)
    on_rented, alone = (simulate_weeks(each, settings, changes=False) for each in (rented, own))
    assert (on_rented.run.spares, alone.run.spares) == (0, 1)
    at_once = replace(alone.run, spares=0, saving=on_rented.run.saving, repair=[(0.0, 75.0), (1.0, 75.0)])
    at_once = replace(at_once, correlated=(*at_once.correlated[:2], Uniform(75.0, 75.0)))
    assert (on_rented.courses.elapsed == draw(at_once, 300, settings.seed).elapsed).all()
    waited = on_rented.courses.lost["spare_wait"] / np.maximum(on_rented.courses.replaced_nodes, 1)
    assert (waited <= 75.0 + 1e-6).all() and np.median(waited[on_rented.courses.replaced_nodes > 0]) == pytest.approx(
        75.0
    )  # faults may end a wait
    assert any("another is rented within 1.25 min" in note and note.endswith("keeps some ready)") for note in on_rented.notes)
    repaired = simulate_weeks(rented, replace(settings, spares=0), changes=False)
    assert repaired.courses.lost["spare_wait"].sum() > 10 * on_rented.courses.lost["spare_wait"].sum()
    assert simulate_weeks(rented, replace(settings, spares=1), changes=False).run == alone.run
    assert simulate_weeks(rented._replace(nodes=20, gpus=160), settings, changes=False).run.spares == 1


def test_a_machine_of_one_s_own_has_no_second_one_as_its_spare() -> None:
    """Oracle: without failures, the energy of the run itself; a machine that fails is missing until its repair."""
    own = replace(SCENARIO, nodes=1)
    quiet = weeks_document(own, Weeks(days=30.0, rate="0 /d", trials=2), changes=False)
    assert quiet["spares"] == 0 and not any("spare" in note for note in quiet["notes"])
    assert quiet["energy_per_sample_j"] == pytest.approx(document(own)["energy"]["energy_per_sample_j"], rel=1e-3)
    for repairs, then in ((True, "waits until it is repaired"), (False, "dies")):
        failing = simulate_weeks(steps(1), Weeks(days=30.0, rate="0.01 /d", trials=200, repairs=repairs), changes=False)
        assert any(then in note for note in failing.notes)
        assert (failing.courses.lost["spare_wait"].sum() > 0) == repairs
    assert simulate_weeks(steps(1), Weeks(days=1.0, trials=2, spares=1), changes=False).run.spares == 1


def test_planned_stops_are_of_a_job_and_last_one_restart_in_place() -> None:
    """Oracle: 47 stops in 54 days, 20 in 90 and BLOOM's 36 in 108.4; a hot update of 2,048 GPUs takes 46 s in all.

    Jobs of fewer nodes than BLOOM's 48 stop in proportion to them.
    """
    planned = reliability_of("middle").planned
    assert planned.rate * DAY == pytest.approx(math.prod([47 / 54, 20 / 90, 36 / 108.4]) ** (1 / 3), rel=0.01)
    rates = [long_run(steps(nodes), Weeks(days=20.0), reliability_of("middle")).planned[0] * DAY for nodes in (8, 16, 48, 128)]
    assert rates == pytest.approx([0.4 * 8 / 48, 0.4 * 16 / 48, 0.4, 0.4])
    large = long_run(steps(16), Weeks(days=20.0), reliability_of("middle"))
    assert 46 <= replace(large, restart_in_place=46.0).planned[1] + 46.0 <= 65


@pytest.mark.parametrize(
    ("nodes", "layout", "speeds"),
    [
        (64, {"tensor": 8, "pipeline": 16}, [0.75] * 16 + [0.5] * 16 + [0.25] * 16),
        (4, {"tensor": 8, "pipeline": 2}, [0.5, 0.5]),
        (4, {"tensor": 4}, [0.75, 0.5, 0.25]),
        (4, {"shard": "parameters", "replicate": 2}, [0.5, 0.5]),
        (4, {"shard": "parameters"}, [0.75, 0.5, 0.25]),
        (4, {"expert": 16}, [0.5, 0.5]),
        (4, {"tensor": 8, "expert": 2}, [0.75, 0.5, 0.25]),
    ],
)
def test_an_elastic_job_goes_on_with_whole_replicas(nodes: int, layout: dict[str, object], speeds: list[float]) -> None:
    """Oracle: replicas that are whole on the nodes left, counted by hand."""
    job_steps = laid_out(nodes, layout)
    run = long_run(job_steps, Weeks(days=1.0, elastic=True), reliability_of("middle"))
    assert run.elastic == pytest.approx(speeds)
    spot = long_run(job_steps, Weeks(days=1.0, elastic=True, mean_lifetime="9 h"), reliability_of("middle")).elastic_rules
    assert spot is not None and spot.speeds == pytest.approx([*[0.0] * (nodes - 1 - len(speeds)), *speeds[::-1], 1.0])


@pytest.mark.parametrize(("nodes", "layout"), [(16, {"tensor": 8, "pipeline": 16}), (1, {}), (4, {"expert": 32})])
def test_an_elastic_job_of_one_replica_is_refused(nodes: int, layout: dict[str, object]) -> None:
    with pytest.raises(SpecError, match="cannot continue without part of it"):
        long_run(laid_out(nodes, layout), Weeks(days=1.0, elastic=True), reliability_of("middle"))


def test_a_part_of_a_machine_draws_what_a_run_on_it_draws() -> None:
    """Oracle: the run's own energy of a sample; GPUs that the job leaves alone are idle, while it waits as well."""
    part = replace(SCENARIO, nodes=None, gpus=4)
    run, goodput = document(part), weeks_document(part, Weeks(epochs=1.0, rate="0 /d", spares=0, trials=2), changes=False)
    assert goodput["energy"]["node_power_w"]["working"] == pytest.approx(run["energy"]["node_power_w"])
    assert goodput["energy_per_sample_j"] == pytest.approx(run["energy"]["energy_per_sample_j"], rel=1e-3)
    powers = goodput_document(weeks())["energy"]["node_power_w"]
    spinning = 4 * (0.3 - 0.12) * 700.0 / 0.95  # hardware/parts/power/default.yaml
    assert powers["waiting"] - goodput["energy"]["node_power_w"]["waiting"] == pytest.approx(spinning + 8 * 50.0)  # one node needs no NICs
    assert goodput["energy"]["node_power_w"]["idle"] == pytest.approx(powers["idle"] - 8 * 50.0)


def test_nodes_of_several_kinds_have_their_own_power_and_price() -> None:
    """Oracle: the same weeks of each kind alone, in power and price; a run and weeks without failures draw the same."""
    prices = [Prices.model_construct(on_demand=usd_per_s) for usd_per_s in (1e-3, 3e-3)]
    mixed = load_hardware("256x-tpu-v2-v3").spec
    groups = [group.model_copy(update={"price": price}) for group, price in zip(mixed.groups, prices, strict=True)]
    described = document(Scenario("256x-tpu-v2-v3", "resnet50"))
    made = steps_of(described, mixed.model_copy(update={"groups": groups}), load_workload("resnet50").spec)
    assert made.usd_per_s == pytest.approx(2e-3) and [count for _, count in made.kinds] == [128, 128]
    mixed_weeks = simulate_weeks(made, Weeks(days=1.0, trials=2, rate="0 /d"), changes=False)
    working = mixed_weeks.power["working"]
    assert working is not None and working.total == pytest.approx(described["energy"]["node_power_w"])
    alone = [simulate_weeks(made._replace(node=node, others=()), Weeks(days=1.0, trials=2), changes=False).power for node, _ in made.kinds]
    for state in ("working", "waiting", "idle"):
        assert mixed_weeks.power[state].total == pytest.approx(sum(power[state].total for power in alone) / 2)  # type: ignore[union-attr]
    assert alone[0]["working"].total < working.total < alone[1]["working"].total  # type: ignore[union-attr]


def test_a_power_cap_costs_time_and_saves_energy() -> None:
    """Oracle: the run with that cap, step and energy of a sample; weeks without failures take as much longer and less.

    The caps of the run's own document are estimates, without the longer wait for the slowest GPU.
    """
    run = document(SCENARIO)
    estimated = run["energy"]["power_caps"][2]
    watts = f"{estimated['gpu_cap_w']} W"
    capped = Documents(power_cap=watts)(SCENARIO)
    cap = {"step_time_s": capped["step_time_s"], "energy_per_sample_j": capped["energy"]["energy_per_sample_j"]}
    assert cap == pytest.approx({name: estimated[name] for name in cap}, rel=5e-3)
    settings = Weeks(epochs=300.0, rate="0 /d", spares=0, trials=2)
    said = weeks_document(SCENARIO, replace(settings, power_cap=watts), changes=False)
    before = weeks_document(SCENARIO, settings, changes=False)
    assert said["step_time_s"] == pytest.approx(cap["step_time_s"]) and sum(said["stalls_s"].values()) == pytest.approx(cap["step_time_s"])
    assert said["energy"]["power_cap"]["energy_per_sample_j"] == pytest.approx(cap["energy_per_sample_j"])
    assert said["energy"]["power_cap"]["energy_per_sample_without_j"] == pytest.approx(run["energy"]["energy_per_sample_j"])
    assert said["days"] / before["days"] == pytest.approx(cap["step_time_s"] / run["step_time_s"], rel=1e-4)
    assert said["energy_per_sample_j"] / before["energy_per_sample_j"] == pytest.approx(
        cap["energy_per_sample_j"] / run["energy"]["energy_per_sample_j"], rel=1e-3
    )
    assert said["expected_error"] == run["expected_error"] and said["energy"]["with_errors"] is not None
    assert "GPUs limited to" in goodput_text(said) and before["energy"]["power_cap"] is None
    played = answer(SCENARIO).run
    shown = under_power_cap(run, played.hardware, played.jobs[0].job.workload, watts, slower=slower_runs(played))["energy"]
    assert shown["power_cap"] == pytest.approx(said["energy"]["power_cap"]) and "GPUs limited to" in energy_text(shown)
    assert "GPUs limited to" not in energy_text(run["energy"])
    assert f"(PUE {run['energy']['pue']:g})" in energy_text(run["energy"])
    assert "has no effect" in goodput_document(weeks(power_cap="900 W"))["notes"][-1]


def test_nodes_that_an_elastic_job_lost_draw_and_cost_nothing() -> None:
    """Oracle: without a node that returns, the speed that is left follows the nodes that are left, and so do node-seconds."""
    simulated = weeks(days=200.0, trials=200, spares=0, repairs=False, elastic=True)
    alive = ~np.isfinite(simulated.courses.death_times)
    there = simulated.courses.node_seconds[alive] / (16 * simulated.courses.elapsed[alive])
    missing = simulated.courses.lost["degraded"][alive] / simulated.courses.elapsed[alive]
    assert missing.mean() > 0.1
    assert there.mean() == pytest.approx(1.0 - missing.mean(), abs=0.02)


def test_spot_is_a_case_of_it() -> None:
    """Oracle: `sim.study.spot`, where all wait for a replacement, with lives at random around the same mean, and no other failures."""
    scenario = Scenario("p3.2xlarge", "resnet50", nodes=4)
    drawn = spot(scenario, SpotRequest(epochs=60.0, interval="1 h", policy="wait", trials=300, mean_lifetime="8 h"), document, processes=1)
    time = spread(drawn.outcomes, lambda outcome: outcome.time).mean
    job_steps = steps_of(document(scenario), load_hardware("p3.2xlarge").spec, load_workload("resnet50").spec)
    settings = Weeks(epochs=60.0, rate="0.000001 /y", mean_lifetime="8 h", interval="1 h", mode="sync", spares=0, trials=300)
    made = simulate_weeks(job_steps, settings, changes=False)
    assert made.courses.elapsed.mean() == pytest.approx(time, rel=0.02)
    assert made.courses.interruptions.mean() == pytest.approx(spread(drawn.outcomes, lambda outcome: outcome.revocations).mean, rel=0.1)


def test_measured_lives_of_spot_machines_are_drawn_as_spot_draws_them() -> None:
    """Oracle: `sim.study.transient` with the same measured lives, where all wait for a replacement; the same job in plain numbers."""
    gpu = load_hardware("p3.2xlarge").spec.groups[0].node.gpu
    measured_lives = lifetimes_of(gpu)
    assert measured_lives is not None
    lives, nodes, work, saves = survival(measured_lives), 4, 40 * 3600.0, 60.0
    job = SpotJob(work, (1.0,) * nodes, lives, "wait", replacement=90.0, checkpoint=saves, restore=30.0, in_step=True)
    drawn = draw_courses(job, 1800.0, 400)
    rate = nodes / lives.mean
    causes = [DrawnCause("revocation", 1.0, ZERO_TIME, ZERO_TIME, 1.0, repair=Uniform(90.0, 90.0))]
    run = LongRun(nodes, 0, Saving(1800.0, saves, saves, 30.0), causes, (rate,) * 3, work=work, lives=(lives, rate))
    made = draw(run, 400)
    for name, values in {"time": made.elapsed, "revocations": made.interruptions, "lost": made.lost["rework"]}.items():
        expected = spread(drawn, attrgetter(name))
        error = math.hypot(expected.error, float(values.std()) / math.sqrt(values.size))
        assert float(values.mean()) == pytest.approx(expected.mean, abs=3.5 * error), name


def test_more_revocations_do_not_save_time() -> None:
    """Revocations come on top of failures, which stay as unevenly distributed over fleets, and as often repeated, as without them."""
    settings = Weeks(days=20.0, trials=3000)
    waits, shares = [], []
    for lifetime in (None, "2000 h", "500 h"):
        courses = simulate_weeks(steps(), replace(settings, mean_lifetime=lifetime), changes=False).courses
        waits.append(float(courses.lost["spare_wait"].mean()))
        shares.append(float(courses.share.mean()))
    assert shares == sorted(shares, reverse=True)
    assert waits[1:] == pytest.approx([waits[0], waits[0]], rel=0.3)


def test_the_spot_market_draws_measured_lives() -> None:
    made = simulate_weeks(steps()._replace(market="spot"), Weeks(days=20.0, trials=20, mean_lifetime="20 h"), changes=False)
    assert made.run.lives is not None and "at random" in made.notes[-2] and "no spot price for hgx-h100" in made.notes[-1]
    mean = simulate_weeks(steps()._replace(market="spot"), Weeks(days=20.0, trials=20, mean_lifetime="20 h", elastic=True), changes=False)
    assert mean.run.lives is not None and "at random" in mean.notes[-2]
    node = load_hardware("p3.2xlarge").spec.groups[0].node
    volta = steps()._replace(node=node, nodes=4, gpus=4, market="spot")
    simulated = simulate_weeks(volta, Weeks(days=5.0, trials=20), changes=False)
    assert simulated.run.lives is not None and "at measured ages" in simulated.notes[-3]
    large = volta._replace(nodes=400, gpus=400)
    many = simulate_weeks(large, Weeks(days=1.0, trials=2, mean_lifetime="200 h"), changes=False).run.lives
    assert many is not None and isinstance(many[0], CrowdLives)


@pytest.mark.parametrize("elastic", [True, False])
def test_revoked_machines_of_a_large_job_have_measured_ages_too(elastic: bool) -> None:
    """Oracle: four nodes more change little. Until now, revocations of more than 256 nodes were spread evenly, and the job did nothing."""
    node = load_hardware("p3.2xlarge").spec.groups[0].node
    settings = Weeks(days=2.0, rate="0.0001 /d", trials=30, elastic=elastic)
    few, many = (
        simulate_weeks(steps()._replace(node=node, nodes=nodes, gpus=nodes, market="spot"), settings, changes=False) for nodes in (256, 260)
    )
    assert few.courses.share.mean() > 0.9
    assert many.courses.share.mean() == pytest.approx(few.courses.share.mean(), abs=0.01)
    assert (many.run.elastic_rules is not None) == elastic


@pytest.mark.parametrize("days", [0.5, pytest.param(5.0, marks=pytest.mark.nightly)])
def test_closed_forms_take_machines_that_are_revoked_together_as_one_interruption(days: float) -> None:
    """Oracle: drawn courses; until now, the closed form expected 16 to 21%, and checkpoints 12 times as often as is best.

    Half of the revocations do not cost work, although a burst is as frequent as before unless all of it is left out.
    """
    node = load_hardware("p3.2xlarge").spec.groups[0].node
    job = steps()._replace(node=node, nodes=64, gpus=64, market="spot")
    simulated = simulate_weeks(job, Weeks(days=days, rate="0.0001 /d", trials=200, mode="sync"))
    assert simulated.expected == pytest.approx(simulated.courses.share.mean(), abs=0.06)  # few intervals in half a day
    gains = {change.name: change.share - simulated.changes[0].share for change in simulated.changes}
    assert gains["half the failures"] > -0.001
    assert gains["checkpoints async"] > -0.001


def test_copies_go_to_the_store_as_often_as_machines_are_revoked_together() -> None:
    """Oracle: no copies, so that the store alone holds the work. With bursts left out, it is written twice a day, and half is lost."""
    node = load_hardware("p3.2xlarge").spec.groups[0].node
    job = steps()._replace(node=node, nodes=16, gpus=16, market="spot")
    tiered, without = (
        simulate_weeks(job, Weeks(days=10.0, rate="0.0001 /d", trials=60, mode=mode), changes=False) for mode in ("tiered", "async")
    )
    assert tiered.courses.share.mean() > without.courses.share.mean() - 0.01


def test_a_large_elastic_job_goes_on_with_the_others_if_machines_are_revoked_at_random() -> None:
    """Oracle: a job that waits for each replacement, on the same machines, does no more work."""
    job, settings = steps()._replace(nodes=300, gpus=2400), Weeks(days=1.0, rate="0.0001 /d", trials=20, mean_lifetime="300 h")
    goes_on, waits = (simulate_weeks(job, replace(settings, elastic=elastic), changes=False) for elastic in (True, False))
    assert goes_on.run.elastic_rules is not None
    assert goes_on.courses.share.mean() > waits.courses.share.mean()


@pytest.mark.parametrize(("nodes", "lifetime"), [(64, "100 h"), (256, "200 h")])
def test_the_closed_form_knows_that_elastic_jobs_restart_in_place(nodes: int, lifetime: str) -> None:
    """Oracle: drawn courses. With restarts of the whole job, as on lost nodes, the closed form was 1 and 5 points lower."""
    job = steps()._replace(nodes=nodes, gpus=8 * nodes)
    settings = Weeks(days=4.0, rate="0.000001 /y", mean_lifetime=lifetime, elastic=True, trials=60, store="tectonic")
    simulated = simulate_weeks(job, settings, changes=False)
    assert simulated.expected == pytest.approx(simulated.courses.share.mean(), abs=0.003)


@pytest.mark.parametrize("nodes", [200, 300])
def test_revocations_of_many_machines_are_independent_of_fleets_and_do_not_repeat(nodes: int) -> None:
    """Oracle: the counts are Poisson, whose variance is their mean, whether the lives of each node are drawn or those of all together."""
    job = steps()._replace(nodes=nodes, gpus=8 * nodes)
    settings = Weeks(days=2.0, rate="0.000001 /y", mean_lifetime="500 h", trials=2, in_place=True)
    run = simulate_weeks(job, settings, changes=False).run
    revoked = draw(run, 2000).interruptions
    assert revoked.mean() == pytest.approx(nodes * 48 / 500, rel=0.02)
    assert revoked.var() == pytest.approx(revoked.mean(), rel=0.15)  # five standard errors


def test_a_run_on_spot_machines_of_unknown_lives_names_the_commands_that_take_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "hgx-h100", "gpt2", "--batch", "4", "--epochs", "1", "--with-failures", "--market", "spot"]) == 2
    said = capsys.readouterr().err
    assert "write --mean-lifetime '20 h', an option of `goodput`, `recommend` and `spot`" in said and said.count("\n") == 1


def test_an_elastic_job_on_spot_machines_goes_on_with_the_others() -> None:
    """Oracle: `spot` itself, policy replace, workers in step, the same lives around the same mean; the same job in the terms of both."""
    node = load_hardware("p3.2xlarge").spec.groups[0].node
    volta = steps()._replace(node=node, nodes=4, gpus=4, market="spot")
    settings = Weeks(days=10.0, trials=200, rate="0.000001 /y", mean_lifetime="8 h", elastic=True, interval="1 h", mode="sync", spares=0)
    simulated = simulate_weeks(volta, settings, changes=False)
    run = simulated.run
    assert run.elastic_rules is not None and run.lives is not None
    recovery = run.restart_in_place + run.communicators.mean + run.saving.load
    replaced = run.causes[-1].repair
    assert replaced is not None
    job = SpotJob(
        10 * DAY, tuple((count + 1) / 4 for count in range(4)), run.lives[0], "replace", replacement=replaced.mean,
        checkpoint=run.saving.blocking, restore=recovery, in_step=True,
    )  # fmt: skip
    slower = spread(draw_courses(job, 3600.0, 200), attrgetter("time")).mean / (10 * DAY)
    assert float(simulated.courses.share.mean()) == pytest.approx(1 / slower, abs=0.015)
    assert simulated.courses.interruptions.mean() == pytest.approx(10 * 24 / 8 * 4, rel=0.05)
    waiting = simulate_weeks(volta, replace(settings, elastic=False), changes=False)
    assert simulated.courses.share.mean() > waiting.courses.share.mean() - 0.01
