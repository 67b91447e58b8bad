"""When and where does a job of weeks save? Oracles: the best of all intervals, bytes over bandwidth, and Meta's formula."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from sim.analysis.course import draw
from sim.analysis.expected_share import closed_form
from sim.analysis.long_run import LongRun
from sim.analysis.renewal import best_interval, effective_share
from sim.cluster.topology import node_graph
from sim.documents import weeks_document
from sim.report.goodput import goodput_document, goodput_text
from sim.spec.yaml import SpecError
from sim.study import checkpoint_intervals
from sim.study.goodput import simulate_weeks
from sim.study.options import Weeks
from sim.study.saved_parts import saved_parts
from sim.study.saving import saved_during_run
from sim.study.scenario import answer
from tests.study.weeks_asked import DAY, SCENARIO, steps, weeks


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


def test_meta_s_formula_takes_the_copies_that_failures_go_back_to() -> None:
    """Oracles: the formula by hand, and the closed form, which is near where failures are rare and copies fast."""
    simulated = weeks(mode="tiered", rate="0.05 /d", store="object-store")
    saving, overhead = simulated.run.saving, 0.0
    for cause in simulated.run.causes:
        fixed = cause.detection.mean + cause.localization.mean + simulated.run.communicators.mean
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


def test_steps_are_slower_while_a_checkpoint_is_written(tmp_path: Path) -> None:
    """Oracle: what `run --store` says that a checkpoint takes, at the rate chosen; one that training waits for slows nothing."""
    slow = replace(SCENARIO, nodes=2, overrides=("node.nic.bandwidth=10 Gbps",))
    run = answer(slow).run
    full = saved_during_run(run, "tectonic")
    checkpoint = weeks_document(slow, Weeks(days=20.0, trials=20, store="tectonic"), changes=False)["checkpoint"]
    limit = checkpoint["write_limit_bytes_per_s"]
    limited = tmp_path / "limited.yaml"
    limited.write_text(f"name: tectonic\nbandwidth: {limit!r} B/s\nstart: 0.6 s\nsource: test\n", encoding="utf-8")
    saved = saved_during_run(run, str(limited))
    assert checkpoint["slowed_s"] == pytest.approx(saved.slowdown_cost) and 0.0 < saved.slowdown_cost < full.slowdown_cost / 10
    assert checkpoint["blocking_s"] == pytest.approx(saved.cost)
    fast = weeks_document(replace(slow, overrides=()), Weeks(days=20.0, trials=20), changes=False)["checkpoint"]
    assert fast["write_limit_bytes_per_s"] is None  # a writer of the object store slows nothing
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


def test_a_store_twice_as_fast_never_costs_more() -> None:
    """Writing faster may slow steps more than it saves; a fast store can be written to slowly."""
    worse = simulate_weeks(steps(), Weeks(days=20.0, trials=60), slowed=lambda store: 0.0 if store and store.bandwidth < 3e12 else 60.0)
    as_it_is, faster = (next(one for one in worse.changes if one.name == name) for name in ("as it is", "a store twice as fast"))
    assert faster.expected >= as_it_is.expected


@pytest.mark.parametrize("interval", ["6 d", "19 d", "20 d", "100000 d"])
@pytest.mark.parametrize("rate", ["0 /d", "0.003 /d", "0.02 /d"])
def test_an_interval_may_be_as_long_as_the_job(interval: str, rate: str) -> None:
    """Oracle: the closed form. In a given time, work since the last failure is kept; without a checkpoint before the end, only that."""
    outcome = weeks(interval=interval, rate=rate, spares=200)
    run = _plain(outcome.run)
    share = draw(run, 3000, 1).share
    assert abs(share.mean() - closed_form(run)) < 4 * share.std() / math.sqrt(3000) + 5e-4
    assert outcome.expected == pytest.approx(closed_form(run), abs=1e-9)
    lost = "the job ends before its first checkpoint is due, so a failure loses all work before it"
    assert (lost in outcome.notes) == (interval in ("20 d", "100000 d") and rate != "0 /d")
    if interval == "100000 d" and rate != "0 /d":
        frequency = run.rate[1] * run.horizon
        assert share.mean() == pytest.approx(-math.expm1(-frequency) / frequency, abs=0.03)  # by hand, without recoveries


@pytest.mark.parametrize("interval", [0.6, 0.95, 1.0, 3.0])
def test_a_job_saves_when_its_work_is_done(interval: float) -> None:
    """Oracle: the closed form, also for an interval just below the length of the job, of which the rest is saved at the end, and beyond."""
    work = steps().time_of(300 * steps().workload.dataset.samples)
    outcome = weeks(days=None, epochs=300.0, interval=f"{interval * work / 3600:.6f} h", rate="0.01 /d", spares=200)
    run = _plain(outcome.run)
    elapsed = draw(run, 3000, 1).elapsed
    mean = elapsed.mean()
    assert abs(mean - work / closed_form(run)) < 4 * elapsed.std() / math.sqrt(3000)
    assert any("before its first checkpoint is due" in note for note in outcome.notes) == (interval >= 1.0)


def _plain(run: LongRun) -> LongRun:
    """Return *run* with only that which closed forms include: single random faults of known nodes, without waits."""
    return replace(
        run, planned=(0.0, 1.0), slow=(0.0, 1.0, 0.0), correlated=(0.0, 4, run.correlated[2]), repeats=(0.0, 1.0), shape=math.inf,
        causes=[replace(cause, silent_for=0.0) for cause in run.causes], spreads={},
    )  # fmt: skip


@pytest.mark.parametrize(
    ("length", "mode"),
    [
        ({"days": 0.4}, "async"),
        pytest.param({"days": 0.4}, "sync", marks=pytest.mark.nightly),
        pytest.param({"days": 2.0}, "async", marks=pytest.mark.nightly),
        pytest.param({"days": 2.0}, "sync", marks=pytest.mark.nightly),
        pytest.param({"days": None, "epochs": 30.0}, "async", marks=pytest.mark.nightly),
        ({"days": None, "epochs": 30.0}, "sync"),
    ],
)
def test_the_few_saves_of_a_short_job_are_spread_over_it(mode: str, length: dict[str, float | None], tmp_path: Path) -> None:
    """Oracle: of all intervals the one that keeps most in closed form; with a slow store that may be none before the end."""
    shares = []
    for speed in (20, 60, 200, 600):
        store = tmp_path / f"{speed}.yaml"
        store.write_text(f"name: s\nbandwidth: {speed} MB/s\nsize: 1 PB\nsource: test\n", encoding="utf-8")
        run = weeks(**length, mode=mode, store=str(store), trials=2, rate="0.05 /d").run
        saving, longest = run.saving, min(run.work, run.horizon)
        least = max(saving.persist - saving.blocking, min(300.0, longest))
        apart = np.geomspace(least, max(1.01 * longest, least), 2000)
        best = max(closed_form(replace(run, saving=replace(saving, interval=float(one)))) for one in apart)
        assert closed_form(run) > best - 2e-4
        shares.append(closed_form(run))
    assert shares == sorted(shares)


def test_what_an_interval_of_one_s_own_costs_is_told_apart() -> None:
    """Changes that affect the interval take the best one, so that this alone is a change as well."""
    settings = Weeks(days=20.0, trials=20, rate="0.05 /d", interval="2 d")
    gains = {one.name: one.expected for one in simulate_weeks(steps(), settings).changes}
    assert gains["the best checkpoint interval"] > gains["as it is"] + 0.1
    assert gains["the best checkpoint interval"] <= gains["a store twice as fast"] < gains["the best checkpoint interval"] + 0.01
    assert "the best checkpoint interval" not in {one.name for one in simulate_weeks(steps(), replace(settings, interval="auto")).changes}
