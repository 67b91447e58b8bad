"""Do weeks of a described job come out? Oracles: the run itself without failures, the closed form, one sentence for each bad input."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from functools import cache
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sim.analysis import course
from sim.analysis.course import draw
from sim.analysis.expected_share import closed_form
from sim.analysis.long_run import OTHERS, ZERO_TIME, DrawnCause, LongRun, Saving
from sim.analysis.renewal import Uniform, best_interval, effective_share
from sim.analysis.transient import lifetimes_of, survival
from sim.analysis.whole_job import START_UP
from sim.cli import main
from sim.cluster.topology import node_graph
from sim.documents import Documents, document, weeks_document
from sim.report.energy import energy_text
from sim.report.goodput import gain_text, goodput_document, goodput_text
from sim.report.limited import under_power_cap
from sim.spec.library import load_hardware, load_workload
from sim.spec.node_prices import Prices
from sim.spec.parallel import Parallel
from sim.spec.sections import with_fields
from sim.spec.yaml import SpecError
from sim.study import checkpoint_intervals
from sim.study.goodput import Goodput, simulate_weeks, time_of_changes
from sim.study.layout import layout_answer
from sim.study.power_cap import slower_runs
from sim.study.saved_parts import saved_parts
from sim.study.saving import saved_during_run
from sim.study.scenario import Scenario, answer
from sim.study.spot import SpotRequest, spot
from sim.study.transient import SpotJob, draw_courses, spread
from sim.study.weeks import Steps, Weeks, long_run, reliability_of, steps_of
from sim.study.whole_job import plan_of

DAY = 86400.0
SCENARIO = Scenario("hgx-h100", "gpt2-xl", nodes=16, batch=4, precision="amp_bf16")


@cache
def steps(nodes: int = 16) -> Steps:
    described = document(replace(SCENARIO, nodes=nodes))
    return steps_of(described, load_hardware("hgx-h100").spec, load_workload("gpt2-xl").spec)


def weeks(**keys: object) -> Goodput:
    return simulate_weeks(steps(), Weeks(**({"days": 20.0, "trials": 60} | keys)), changes=False)  # type: ignore[arg-type]


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
        training = workload.training.model_copy(update={"stack": with_fields(stack, **changed)})
        slow = simulate_weeks(steps()._replace(workload=workload.model_copy(update={"training": training})), settings, changes=False)
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


def test_checkpoints_are_between_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Oracle: of all intervals of whole steps the one that keeps most in closed form; none is shorter than a step of the layout."""
    monkeypatch.setattr(checkpoint_intervals, "SHORTEST_INTERVAL", 0.0)
    slow = steps()._replace(step_time=100.0)
    for mode in ("sync", "async", "tiered"):
        simulated = simulate_weeks(slow, Weeks(days=1.0, trials=2, rate="0.5 /d", store="tectonic", mode=mode), changes=False)
        saving, rate = simulated.run.saving, simulated.run.rate[1]
        apart = simulated.intervals.used if mode != "tiered" else saving.memory_interval
        costs = (saving.blocking, saving.persist) if mode != "tiered" else (saving.memory_blocking, saving.memory_persist)
        tried = [effective_share(1 / rate, count * 100.0, *costs, 1.0) for count in range(1, 400)]
        assert apart == pytest.approx(100.0 * (1 + int(np.argmax(tried)))), mode
        copies = saving.interval / (saving.memory_interval or saving.interval)
        assert copies == pytest.approx(round(copies))
    simulated = simulate_weeks(slow, Weeks(days=0.1, trials=2, rate="50 /d", store="tectonic"), changes=False)
    assert simulated.intervals.exact < simulated.intervals.young < 100.0 == simulated.intervals.used
    with_interval = simulate_weeks(slow, Weeks(days=20.0, trials=2, interval="1000 s", store="tectonic"), changes=False)
    assert with_interval.run.saving.interval == 1000.0
    assert "every 16.7 min of work, or 10 steps (best" in goodput_text(goodput_document(with_interval))
    with pytest.raises(SpecError, match=r"a step takes 1\.67 min, and checkpoints are taken between steps"):
        simulate_weeks(slow, Weeks(days=20.0, interval="60 s", store="tectonic"), changes=False)


def test_a_small_rented_job_waits_for_another_node_and_not_for_a_repair() -> None:
    """Oracle: the same run whose nodes are all repaired in the time that renting one takes; nobody rents a node of an own cluster."""
    own = steps(2)
    rented = own._replace(usd_per_s=0.01)
    settings = Weeks(days=20.0, rate="0.2 /d", trials=300)
    on_rented, alone = (simulate_weeks(each, settings, changes=False) for each in (rented, own))
    assert (on_rented.run.spares, alone.run.spares) == (0, 1)
    at_once = replace(alone.run, spares=0, saving=on_rented.run.saving, repair=[(0.0, 75.0), (1.0, 75.0)])
    at_once = replace(at_once, correlated=(*at_once.correlated[:2], Uniform(75.0, 75.0)))
    assert (on_rented.courses.elapsed == draw(at_once, 300, settings.seed).elapsed).all()
    waited = on_rented.courses.lost["spare_wait"] / np.maximum(on_rented.courses.replaced_nodes, 1)
    assert (waited <= 75.0 + 1e-6).all() and np.median(waited[on_rented.courses.replaced_nodes > 0]) == pytest.approx(
        75.0
    )  # faults may end a wait
    assert any("another is rented within 1.25 min" in note for note in on_rented.notes)
    assert simulate_weeks(rented, replace(settings, spares=1), changes=False).run == alone.run
    assert simulate_weeks(rented._replace(nodes=20, gpus=160), settings, changes=False).run.spares == 1


def test_a_job_that_may_die_says_which_share_does_and_when() -> None:
    """Oracle: without repairs or spares a job lives until the first fault that takes a node, at random: an exponential life."""
    settings = Weeks(epochs=300.0, rate="0.002 /d", spares=0, repairs=False, trials=4000)
    outcome = simulate_weeks(steps(), settings, changes=False)
    quiet = replace(
        outcome.run, shape=math.inf, repeats=(0.0, 1.0), correlated=(0.0, 4, outcome.run.correlated[2]), causes=outcome.run.causes[:1],
        planned=(0.0, 0.0),
    )  # fmt: skip
    work = quiet.work
    courses = draw(quiet, 4000)
    died = courses.death_times[np.isfinite(courses.death_times)]
    expected = -math.expm1(-quiet.rate[1] * work)
    assert died.size / 4000 == pytest.approx(expected, abs=3 * math.sqrt(expected * (1 - expected) / 4000))
    document = goodput_document(outcome)
    json.dumps(document, allow_nan=False)
    assert 0.1 < document["died"]["share"] == np.isfinite(outcome.courses.death_times).mean() < 0.5
    alive = ~np.isfinite(outcome.courses.death_times)
    assert document["days"] * DAY == pytest.approx(outcome.courses.elapsed[alive].mean())
    assert document["work_s"] == pytest.approx(work) and document["lost_s"]["spare_wait"] == 0.0
    assert f"{100 * document['died']['share']:.3g}% of 4,000 simulated runs run out of spares and die" in goodput_text(document)
    daily = goodput_document(weeks(repairs=False, spares=0, rate="0.0005 /d", trials=400))
    assert daily["died"]["share"] > 0 and daily["lost_s"]["spare_wait"] == 0.0 and daily["days"] == pytest.approx(20.0)
    safe = goodput_document(weeks(repairs=False, spares=16))
    assert safe["died"] == {"share": 0.0, "median_days": None, "interval50": None, "interval95": None}
    assert "none of 60 simulated runs runs out of spares" in goodput_text(safe) and goodput_document(weeks())["died"] is None


def test_runs_that_die_count_as_zero_from_then_on() -> None:
    """Oracle: the work of all over the time of all; more spares, which let more runs live, never lower it on the same faults."""
    shares = []
    for spares in (0, 1, 2, 4, 8):
        outcome = weeks(repairs=False, spares=spares, rate="0.0015 /d", trials=400)
        document = goodput_document(outcome)
        assert document["effective_share"] == pytest.approx(outcome.courses.work.mean() / (20 * DAY))
        assert document["interval95"]["effective_share"][0] < 0.9 or document["died"]["share"] < 0.025
        shares.append(document["effective_share"])
    assert shares == sorted(shares) and shares[0] < shares[-1]
    job = {"days": None, "epochs": 300.0, "repairs": False, "rate": "0.0015 /d", "trials": 400}
    few, many = (goodput_document(weeks(**job, spares=spares)) for spares in (1, 8))
    assert few["died"]["share"] > 0.02 and few["effective_share"] < many["effective_share"]


def test_a_run_that_never_ends_leaves_the_others_their_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    """One fleet in many fails faster than it saves: a share of runs is named and counts as zero, and half of them are refused."""
    monkeypatch.setattr(course, "FRUITLESS", 100)  # interruptions; 1,000 take half a minute
    outcome = weeks(days=None, epochs=3.0, trials=100)
    run = replace(outcome.run, rate=(outcome.run.rate[0], outcome.run.rate[1], 0.01))
    mixed = replace(outcome, run=run, courses=draw(run, 100))
    document = goodput_document(mixed)
    json.dumps(document, allow_nan=False)
    endless = np.isinf(mixed.courses.elapsed)
    assert 0.0 < document["endless_share"] == endless.mean() < 0.5
    ended = mixed.courses.only(~endless)
    assert document["effective_share"] == pytest.approx((1 - endless.mean()) * ended.work.sum() / ended.elapsed.sum())
    assert document["days"] == pytest.approx(ended.elapsed.mean() / DAY) and document["interval95"]["effective_share"][0] == 0.0
    assert f"{100 * endless.mean():.3g}% of 100 simulated runs never end" in goodput_text(document)


def test_half_of_the_runs_without_an_end_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """96 faults a day of 16 nodes, whose repair takes days: the job never has all of its nodes."""
    monkeypatch.setattr(course, "MOST", 5_000)
    with pytest.raises(SpecError, match=r"% of 20 simulated runs never end: .* write more --spares"):
        weeks(days=None, epochs=300.0, rate="6 /d", spares=1, trials=20)


def test_planned_stops_are_in_proportion_to_nodes_and_last_one_restart_in_place() -> None:
    """Oracle: 47 stops in 54 days on 2,048 nodes and 20 in 90 days on 1,200; a hot update of 2,048 GPUs takes 46 s in all."""
    planned, updates = reliability_of("middle").planned, [47 / 54 / 2048, 20 / 90 / 1200]
    assert planned.rate * DAY == pytest.approx(math.sqrt(updates[0] * updates[1]), rel=0.01)
    assert (planned.interval or (0, 0))[0] * DAY == pytest.approx(updates[1], rel=0.01)
    large, small = (long_run(steps(nodes), Weeks(days=20.0), reliability_of("middle")) for nodes in (16, 8))
    assert large.planned == (2 * small.planned[0], 0.0)
    assert 46 <= replace(large, restart_in_place=46.0).planned[1] + 46.0 <= 65


def test_what_sums_leave_over_is_no_lost_time() -> None:
    """A part that never happens is zero, not the rounding of the sums that it is the rest of."""
    for seed in range(6):
        goodput = goodput_document(weeks(days=0.31, seed=seed))
        assert all(seconds == 0.0 or seconds > 1e-9 for seconds in goodput["lost_s"].values())


def test_shares_and_days_of_a_table_agree() -> None:
    """One share for all: what is kept of all drawn runs over the time of all; the energy of a sample is that of all over all samples."""
    document = goodput_document(weeks(days=None, epochs=300.0, rate="0.05 /d", spares=1))
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


def laid_out(nodes: int, layout: dict[str, object]) -> Steps:
    workload = steps().workload
    training = workload.training.model_copy(update={"parallel": Parallel.model_validate(layout)})
    return steps()._replace(nodes=nodes, gpus=8 * nodes, workload=workload.model_copy(update={"training": training}))


def test_a_node_that_leaves_takes_its_disk_along() -> None:
    """Oracle: with every fault taking a node that has a part, what is kept at the end is the work since the last fault."""
    simulated = weeks(store="disk", rate="0.02 /d", spares=40)
    assert simulated.run.saving.on_nodes == pytest.approx(1 / 16) and weeks().run.saving.on_nodes == 0.0
    assert "the disks of 1 of 16 nodes" in simulated.notes[-1] and "from zero" in simulated.notes[-1]
    plain = replace(
        simulated.run, planned=(0.0, 0.0), slow=(0.0, 1.0, 0.0), correlated=(0.0, 4, simulated.run.correlated[2]), repeats=(0.0, 1.0),
        shape=math.inf, causes=simulated.run.causes[:1], saving=replace(simulated.run.saving, on_nodes=1.0),
    )  # fmt: skip
    courses, rate = draw(plain, 4000, 2), plain.rate[1]
    since = -math.expm1(-rate * plain.horizon) / rate  # E[min(time since the last fault, horizon)], faults at random
    recovery = (closed_form(replace(plain, saving=replace(plain.saving, interval=1e3))) < 1) * 300.0
    assert courses.work.mean() == pytest.approx(since, abs=recovery + 4 * courses.work.std() / math.sqrt(4000))
    stored = simulate_weeks(steps(), Weeks(days=20.0, trials=60, rate="0.02 /d", spares=40, store="tectonic"), changes=False)
    assert simulated.courses.share.mean() < stored.courses.share.mean() - 0.05
    tiered = weeks(store="disk", rate="0.02 /d", spares=40, mode="tiered")
    assert tiered.courses.share.mean() > stored.courses.share.mean() - 0.02 and "peer memory" in tiered.notes[-1]
    with pytest.raises(SpecError, match="write a --store that outlives nodes"):
        weeks(days=None, epochs=30000.0, store="disk", rate="0.5 /d", spares=40)


def test_copies_cross_the_network_to_peers() -> None:
    """Oracle: the bytes of a part over the slowest link of its way, out of one node and into another."""
    saving = weeks(mode="tiered").run.saving
    graph = node_graph(steps().node)
    parts = saved_parts(steps().workload, 128, 16, steps().step_time)
    part = parts.nbytes
    way = min(graph.links[link].capacity for link in (*graph.memory_to_network(0), *graph.memory_from_network(0)))
    training = parts.traffic / steps().node.nic.count
    assert 0 < training < way / 2  # what training leaves of a NIC
    assert saving.memory_persist - saving.memory_blocking == pytest.approx(part / (way - training), rel=1e-6)
    assert saving.peer_load == pytest.approx(saving.memory_load + part / way, rel=1e-6)
    slowly = simulate_weeks(
        steps(), Weeks(days=20.0, trials=20, mode="tiered"), changes=False, slowed=lambda store: 3.0 * (store is not None)
    )
    assert slowly.slower.peers == 3.0 and slowly.run.saving.memory_blocking > saving.memory_blocking + 3.0
    alone = simulate_weeks(steps()._replace(nodes=1, gpus=8), Weeks(days=20.0, trials=20, mode="tiered"), changes=False)
    assert alone.slower.peers == 0.0 and alone.checkpoint.to_peer_time == 0.0


def test_a_part_of_a_machine_draws_what_a_run_on_it_draws() -> None:
    """Oracle: the run's own energy of a sample; GPUs that the job leaves alone are idle, while it waits as well."""
    part = replace(SCENARIO, nodes=None, gpus=4)
    run, goodput = document(part), weeks_document(part, Weeks(epochs=1.0, rate="0 /d", spares=0, trials=2), changes=False)
    assert goodput["energy"]["node_power_w"]["working"] == pytest.approx(run["energy"]["node_power_w"])
    assert goodput["energy_per_sample_j"] == pytest.approx(run["energy"]["energy_per_sample_j"], rel=1e-3)
    powers = goodput_document(weeks())["energy"]["node_power_w"]
    spinning = 4 * (0.3 - 0.12) * 700.0  # hardware/parts/power/default.yaml
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
    assert "GPUs limited to" in goodput_text(said) and before["energy"]["power_cap"] is None
    played = answer(SCENARIO).run
    shown = under_power_cap(run, played.hardware, played.jobs[0].job.workload, watts, slower=slower_runs(played))["energy"]
    assert shown["power_cap"] == pytest.approx(said["energy"]["power_cap"]) and "GPUs limited to" in energy_text(shown)
    assert "GPUs limited to" not in energy_text(run["energy"])
    assert f"(PUE {run['energy']['pue']:g})" in energy_text(run["energy"])
    assert "has no effect" in goodput_document(weeks(power_cap="900 W"))["notes"][-1]


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
    assert level.planned.interval == pytest.approx((0.000185 / DAY, 0.000425 / DAY)) and level.new_fleet.interval == (0.03, 0.10)
    run = simulate_weeks(job, Weeks(days=54.0, trials=2, rate="0.003 /d", new_fleet=True, spares=40), changes=False).run
    assert run.spreads["planned"] == pytest.approx((0.185 / 0.28, 0.425 / 0.28))
    assert run.spreads["cause silent"] == pytest.approx((0.0016 / 0.006, 0.0219 / 0.006))
    assert run.spreads["cause gpu"] == pytest.approx((0.132 / 0.48, 1 / 0.48))
    apart = [math.log(one / other) for one, other in ((61.0, 100 * 104 / 199), (34.1, 100 * 48 / 199), (4.9, 100 * 47 / 199))]
    spread = math.sqrt(sum(each**2 for each in apart) / len(apart) / 2)  # of two draws, whose difference has twice the variance
    assert run.spreads["cause network"] == pytest.approx((math.exp(-1.96 * spread), math.exp(1.96 * spread)), rel=0.01)
    assert set(run.spreads) == {*OTHERS, *(f"cause {cause.name}" for cause in level.causes)}
    before = {"share": 0.0, "interruptions": 0.0, "stops": 0.0}
    run = replace(run, planned=(0.4 / DAY, 0.0))  # a few more, so that counts show their spread
    for power in (0.0, 1.0, 2.0):
        wide = replace(run, spreads={name: (low**power, high**power) for name, (low, high) in run.spreads.items()})
        courses = draw(wide, 300)
        width = {name: float(np.ptp(np.quantile(getattr(courses, name), [0.025, 0.975]))) for name in before}
        assert all(width[name] > before[name] for name in width)
        before = width


def test_meta_s_formula_takes_the_copies_that_failures_go_back_to() -> None:
    """Oracles: the formula by hand, and the closed form, which is near where failures are rare and copies fast."""
    simulated = weeks(mode="tiered", rate="0.05 /d", store="object-store")
    saving, overhead = simulated.run.saving, 0.0
    for cause in simulated.run.causes:
        fixed = cause.detection.mean + cause.localisation.mean + simulated.run.communicators.mean
        stays, leaves = (
            simulated.run.restart_in_place + saving.memory_load,
            simulated.run.restart + simulated.run.spare.mean + saving.peer_load,
        )
        overhead += cause.share * (fixed + (1 - cause.replaces) * stays + cause.replaces * leaves)
    apart = saving.memory_interval or 0.0
    rate = 16 * 0.05 / DAY
    assert saving.interval > apart
    assert simulated.meta == pytest.approx((1 - rate * (overhead + apart / 2)) / (1 + saving.memory_blocking / apart), rel=1e-9)
    assert simulated.meta == pytest.approx(simulated.expected, abs=1e-4)


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
    assert gain_text({"gain_points": 0.5, "gain_standard_error_points": None}) == " +0.50"


@pytest.mark.nightly
def test_of_longer_jobs_the_text_says_how_much_is_drawn() -> None:
    longer = goodput_document(simulate_weeks(steps(), Weeks(days=2000.0, rate="0.1 /d", trials=2)))
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


def test_steps_are_slower_while_a_checkpoint_is_written() -> None:
    """Oracle: what `run --store` says that a checkpoint takes; one that training waits for slows nothing."""
    slow = replace(SCENARIO, nodes=2, overrides=("node.nic.bandwidth=10 Gbps",))
    run = answer(slow).run
    saved = saved_during_run(run, "tectonic")
    checkpoint = weeks_document(slow, Weeks(days=20.0, trials=20, store="tectonic"), changes=False)["checkpoint"]
    assert checkpoint["slowed_s"] == pytest.approx(saved.slowdown_cost) and saved.slowdown_cost > saved.blocking
    assert checkpoint["blocking_s"] == pytest.approx(saved.cost)
    waits = weeks_document(slow, Weeks(days=20.0, trials=20, store="tectonic", mode="sync"), changes=False)["checkpoint"]
    assert waits["slowed_s"] == 0.0 and waits["blocking_s"] == pytest.approx(waits["persist_s"])
    slowed = {"object-store": 3.0, "memory of peers": 0.0}
    settings = Weeks(days=20.0, trials=20, mode="tiered")
    tiered = simulate_weeks(steps(), settings, changes=False, slowed=lambda store: slowed[store.name if store else ""]).run.saving
    plain = weeks(mode="tiered").run.saving
    assert tiered.memory_interval is not None and plain.memory_interval is not None
    every = tiered.interval / tiered.memory_interval
    assert every * (tiered.memory_blocking - plain.memory_blocking) == pytest.approx(3.0)


@pytest.mark.parametrize("mode", ["async", "tiered"])
def test_nobody_saves_to_a_store_every_few_seconds(mode: str) -> None:
    """Cheap checkpoints are 5 min apart or more, in whole steps; those asked for and copies to peers are as close as is best."""
    often = simulate_weeks(steps(), Weeks(days=20.0, trials=2, rate="0.2 /d", store="tectonic", mode=mode), changes=False)
    used, shortest = often.intervals.used, often.intervals.shortest
    assert shortest == 300.0 and 300.0 <= used < 300.0 + (often.run.saving.memory_interval or steps().step_time)
    assert (often.run.saving.memory_interval or 0.0) < used / 2
    text = goodput_text(goodput_document(often))
    assert "shortest interval used: 5 min, --checkpoint-interval takes any" in text
    every_minute = Weeks(days=20.0, trials=2, rate="0.2 /d", store="tectonic", mode=mode, interval="1 min")
    specified = simulate_weeks(steps(), every_minute, changes=False)
    assert specified.intervals.used == pytest.approx(60.0, abs=2 * steps().step_time)
    assert "shortest interval" not in goodput_text(goodput_document(specified))
    hourly = simulate_weeks(steps(), replace(every_minute, rate="1.5 /d", interval="auto"), changes=False)
    assert hourly.intervals.shortest == pytest.approx(300.0 * 3600.0 / (54 * DAY / 466))  # in proportion, from Llama 3's rate on


@pytest.mark.parametrize("mode", ["sync", "async", "tiered"])
@pytest.mark.parametrize("stretched", [0.0, 20.0])
def test_the_interval_used_is_the_best(mode: str, stretched: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Within the steps, and the copies, that an interval is a whole number of; what writing to the store costs is part of it."""
    monkeypatch.setattr(checkpoint_intervals, "SHORTEST_INTERVAL", 0.0)
    simulated = simulate_weeks(
        steps(), Weeks(days=20.0, trials=2, rate="0.05 /d", store="tectonic", mode=mode), changes=False,
        slowed=lambda store: stretched if store and store.name == "tectonic" else 0.0,
    )  # fmt: skip
    used, best, *_ = simulated.intervals
    copies = round(used / (simulated.run.saving.memory_interval or used))
    assert used == pytest.approx(best, abs=copies * steps().step_time)
    hourly = simulate_weeks(steps(), Weeks(days=20.0, trials=2, interval="1 h", store="tectonic", mode=mode), changes=False).intervals
    assert hourly.used == pytest.approx(3600.0, abs=10 * steps().step_time)


@pytest.mark.parametrize("mode", ["sync", "async", "tiered"])
def test_the_best_interval_is_the_same_whatever_was_asked(mode: str) -> None:
    choices = [
        Weeks(days=20.0, trials=2, rate="0.05 /d", interval=interval, store="tectonic", mode=mode) for interval in ("auto", "1 h", "7 h")
    ]
    best = [simulate_weeks(steps(), one, changes=False).intervals[1:] for one in choices]
    assert best[0] == best[1] == best[2]


def test_of_copies_as_many_go_to_the_store_as_is_best() -> None:
    """Oracle: the drawn share with a half and with twice the copies for each checkpoint, on the same faults; the cost is shared by them."""
    simulated = simulate_weeks(
        steps(), Weeks(days=100.0, trials=2, rate="0.05 /d", spares=30, mode="tiered"), changes=False,
        slowed=lambda store: 20.0 if store and store.name == "object-store" else 0.0,
    )  # fmt: skip
    saving, rate = simulated.run.saving, simulated.run.rate[1]
    copies = round(saving.interval / (saving.memory_interval or 0.0))

    def kept(count: int) -> float:
        blocking = saving.memory_blocking + 20.0 * (1 / count - 1 / copies)
        apart = best_interval(1 / rate, blocking, saving.memory_persist)
        changed = replace(saving, interval=count * apart, memory_interval=apart, memory_blocking=blocking)
        courses = draw(replace(simulated.run, saving=changed), 1000, 3)
        return float(courses.work.sum() / courses.elapsed.sum())

    assert copies > 8
    assert kept(copies) > max(kept(copies // 4), kept(4 * copies))


def test_nodes_that_an_elastic_job_lost_draw_and_cost_nothing() -> None:
    """Oracle: without a node that returns, the speed that is left follows the nodes that are left, and so do node-seconds."""
    simulated = weeks(days=200.0, trials=200, spares=0, repairs=False, elastic=True)
    alive = ~np.isfinite(simulated.courses.death_times)
    there = simulated.courses.node_seconds[alive] / (16 * simulated.courses.elapsed[alive])
    missing = simulated.courses.lost["degraded"][alive] / simulated.courses.elapsed[alive]
    assert missing.mean() > 0.1
    assert there.mean() == pytest.approx(1.0 - missing.mean(), abs=0.02)


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


def test_a_store_twice_as_fast_never_costs_more() -> None:
    """Writing faster may slow steps more than it saves; a fast store can be written to slowly."""
    worse = simulate_weeks(steps(), Weeks(days=20.0, trials=60), slowed=lambda store: 0.0 if store and store.bandwidth < 3e12 else 60.0)
    as_it_is, faster = (next(one for one in worse.changes if one.name == name) for name in ("as it is", "a store twice as fast"))
    assert faster.expected >= as_it_is.expected


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
    assert [reliability_of(name).rate.value * DAY for name in ("low", "middle", "high")] == pytest.approx([0.00179, 0.00315, 0.00555])
    spot = weeks(mean_lifetime="20 h")
    revocation = spot.run.causes[-1]
    assert spot.run.rate[1] == pytest.approx(base.run.rate[1] + 16 / (20 * 3600))
    assert revocation.name == "revocation" and sum(cause.share for cause in spot.run.causes) == pytest.approx(1.0, abs=0.005)


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


def test_the_spot_market_draws_measured_lives() -> None:
    made = simulate_weeks(steps()._replace(market="spot"), Weeks(days=20.0, trials=20, mean_lifetime="20 h"), changes=False)
    assert made.run.lives is None and "at random" in made.notes[-2] and "no spot price for hgx-h100" in made.notes[-1]
    mean = simulate_weeks(steps()._replace(market="spot"), Weeks(days=20.0, trials=20, mean_lifetime="20 h", elastic=True), changes=False)
    assert mean.run.lives is not None and "at random" in mean.notes[-2]
    node = load_hardware("p3.2xlarge").spec.groups[0].node
    volta = steps()._replace(node=node, nodes=4, gpus=4, market="spot")
    simulated = simulate_weeks(volta, Weeks(days=5.0, trials=20), changes=False)
    assert simulated.run.lives is not None and "at measured ages" in simulated.notes[-2]
    assert simulate_weeks(volta._replace(nodes=400, gpus=400), Weeks(days=1.0, trials=2), changes=False).run.lives is None


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


def test_each_bad_input_has_one_sentence(tmp_path: Path) -> None:
    text = Path("hardware/parts/reliability/middle.yaml").read_text(encoding="utf-8")
    bare, unsourced = tmp_path / "bare.yaml", tmp_path / "unsourced.yaml"
    bare.write_text(text.replace("value: 0.00315 /d", "value: 0.00315"), encoding="utf-8")
    start = text.index('  source: "geometric')
    unsourced.write_text(text[:start] + text[text.index("\n", start) + 1 :], encoding="utf-8")
    inherited = tmp_path / "inherited.yaml"
    inherited.write_text("extends: middle\nrate: {value: 0.003 /d}\n", encoding="utf-8")
    small = tmp_path / "small.yaml"
    small.write_text("name: small\nbandwidth: 1 GB/s\nsize: 20 GB\nsource: test\n", encoding="utf-8")
    edited = {
        "detection: [2 s, 5 min]": "detection: [5 min, 2 s]", "  share: 0.2\n  interval: [0.17, 0.26]\n": "  share: 1\n",
        "factor: 1.34": "factor: 0.5", "within: 30 d": "within: 0 d", "name: hang": "name: gpu",
        "rate: 0.00003 /d\n  interval: [0.000024 /d, 0.000039 /d]": "rate: 0.03 /d",
        "interval: [0.000185 /d, 0.000425 /d]": "interval: [0.0003 /d, 0.000425 /d]",
    }  # fmt: skip
    levels = []
    for number, (old, new) in enumerate(edited.items()):
        levels.append(tmp_path / f"edited{number}.yaml")
        levels[-1].write_text(text.replace(old, new, 1), encoding="utf-8")
    cases = {
        "edited0.yaml:36:5: causes.0.detection: the shorter time must come first": {"level": str(levels[0])},
        "edited1.yaml:9:1: repeats: with a share of 1, every fault would be followed by another one without end": {"level": str(levels[1])},
        "slow: a slow node makes steps longer, which a factor of 0.5 does not": {"level": str(levels[2])},
        "new_fleet: early failures need a time above zero": {"level": str(levels[3])},
        "two causes have the same name": {"level": str(levels[4])},
        "write a correlated.rate of at most rate.value": {"level": str(levels[5])},
        "planned: the middle must be inside its interval": {"level": str(levels[6])},
        "--spares 1000000000: write 100,000 or less": {"spares": 10**9},
        "--trials 1000000000: write 1,000,000 or less": {"trials": 10**9},
        "write a shorter --checkpoint-interval": {"interval": "100000 d"},
        "has no unit": {"level": str(bare)},
        "source": {"level": str(unsourced)},
        "inherited.yaml:2:1: rate: its numbers differ from those of middle, so they need their own source; add source": {
            "level": str(inherited)
        },
        "'0.004' has no unit": {"rate": "0.004"},
        "2 checkpoints of 18.7 GB do not fit into 20 GB": {"store": str(small)},
        "to complete, and the next would begin before that": {"interval": "1 s"},
        "--days 1e+09: write 36,500 or less": {"days": 1e9},
        "--days 36500: ": {"days": 36_500.0, "rate": "0.2 /d"},
        "can be simulated; write a job of ": {"days": 36_500.0, "rate": "0.2 /d"},
        "no measurements cover limits so far below": {"power_cap": "100 W"},
        "'500' has no unit": {"power_cap": "500"},
        "--spares -1: write 0 or more": {"spares": -1},
        "--trials 1: write 2 or more": {"trials": 1},
        "spares=1.5: expected a whole number": {"spares": 1.5},
        "write 0 or more": {"rate": "-1 /d"},
        "half of the jobs run out of spares within": {"spares": 0, "repairs": False, "rate": "0.05 /d"},
        "is not in the catalog": {"store": "nowhere"},
        "the job never ends": {"rate": "9000 /d"},
        "write one of sync, async, tiered": {"mode": "never"},
        "write one of the three": {"epochs": 3.0},
        "no grid intensity": {"region": "atlantis"},
        "--tokens 1: one step takes 524,288; write at least that many": {"days": None, "tokens": 1.0},
    }
    wrong = []
    for sentence, keys in cases.items():
        settings = Weeks(**({"days": 20.0, "trials": 20} | keys))  # type: ignore[arg-type]
        try:
            settings.check()
            simulate_weeks(steps(), settings, changes=False)
        except SpecError as error:
            if sentence not in str(error) or len(error.problems) != 1:
                wrong.append((sentence, str(error)))
        else:
            wrong.append((sentence, "nothing was said"))
    assert wrong == []


def test_a_job_of_too_many_events_is_refused_before_it_is_drawn(capsys: pytest.CaptureFixture[str]) -> None:
    """By hand, of the middle level: 0.00315 faults and 0.00028 planned stops per node a day; 20,000 of both are drawn at most."""
    assert main(["goodput", "hgx-h100", "gpt2-xl", "--nodes", "256", "--days", "30000"]) == 2
    a_day = 256 * (0.00315 + 0.00028)
    assert capsys.readouterr().err == (
        f"--days 30000: {30_000 * a_day:,.0f} interruptions and planned stops are expected in 30,000 days, but at most 20,000 can be "
        f"simulated; write a job of {math.floor(20_000 / a_day):,} days or less\n"
    )


@pytest.mark.parametrize(
    ("options", "advice"),
    [
        ("--failure-rate 1e9/h", "write --in-place or a lower --failure-rate"),
        ("--mean-lifetime 1s", "write a longer --mean-lifetime or --in-place"),
        ("--failure-rate 1e9/h --nodes 2 --in-place", "write fewer --nodes or a lower --failure-rate"),
    ],
)
def test_a_job_that_never_ends_is_answered_with_what_would_help(options: str, advice: str, capsys: pytest.CaptureFixture[str]) -> None:
    """One node cannot be fewer, and revocations do not follow the failure rate."""
    assert main(["goodput", "p3.16xlarge", "vgg16", "--days", "3", *options.split()]) == 2
    assert capsys.readouterr().err.endswith(f"before it saves much work; {advice}\n")
