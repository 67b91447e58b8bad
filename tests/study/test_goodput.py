"""Do weeks of a described job come out? Oracles: the run itself without failures, the closed form, one sentence for each bad input."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache
from operator import attrgetter
from pathlib import Path

import pytest

from sim.analysis.course import draw
from sim.analysis.long_run import AT_ONCE, Cause, LongRun, Saving
from sim.analysis.renewal import Uniform
from sim.analysis.transient import lifetimes_of, survival
from sim.documents import document, weeks_document
from sim.spec.library import load_hardware, load_workload
from sim.spec.yaml import SpecError
from sim.study.goodput import Goodput, closed_form, expected_share, weeks_of
from sim.study.saving import saved_beside
from sim.study.scenario import Scenario, answer
from sim.study.spot import Wanted, spot
from sim.study.transient import SpotJob, courses, spread
from sim.study.weeks import Steps, Weeks, reliability_of, steps_of

DAY = 86400.0
SCENARIO = Scenario("hgx-h100", "gpt2-xl", nodes=16, batch=4, precision="amp_bf16")


@cache
def steps(nodes: int = 16) -> Steps:
    found = document(replace(SCENARIO, nodes=nodes))
    return steps_of(found, load_hardware("hgx-h100").spec, load_workload("gpt2-xl").spec)


def weeks(**keys: object) -> Goodput:
    return weeks_of(steps(), Weeks(**({"days": 20.0, "trials": 60} | keys)), changes=False)  # type: ignore[arg-type]


def test_without_failures_weeks_are_the_run() -> None:
    """Failures that are 1e9 years apart: the epochs take their steps, saves, and the start."""
    found = weeks_of(steps(), Weeks(epochs=300.0, rate="0.000000001 /y", trials=3, interval="1 h"), changes=False)
    quiet = replace(found.run, planned=(0.0, 1.0), slow=(0.0, 1.0, 0.0), correlated=(0.0, 4, found.run.correlated[2]))
    courses = draw(quiet, 3)
    work = 300 * 1.0 * load_workload("gpt2-xl").spec.dataset.samples / steps().samples * steps().step_time
    saves = math.ceil(work / 3600) * found.run.saving.blocking
    started = courses.lost["restart"]
    assert courses.interruptions.sum() == 0
    assert courses.elapsed == pytest.approx(work + saves + started, rel=1e-9)
    assert (started < 60).all()


def test_drawn_is_near_the_closed_form_where_it_holds() -> None:
    found = weeks(rate="0.05 /d", spares=40, trials=200)
    plain = replace(
        found.run, planned=(0.0, 1.0), slow=(0.0, 1.0, 0.0), correlated=(0.0, 4, found.run.correlated[2]), repeats=(0.0, 1.0),
        causes=[replace(cause, silent_for=0.0) for cause in found.run.causes], shape=math.inf,
    )  # fmt: skip
    drawn = draw(plain, 400, 1).share
    assert abs(drawn.mean() - closed_form(plain)) < 4 * drawn.std() / 20 + 5e-4
    assert found.expected == pytest.approx(found.meta, abs=0.01)


def test_steps_are_slower_while_a_checkpoint_is_written() -> None:
    """Oracle: what `run --store` says that a checkpoint takes; one that training waits for slows nothing."""
    slow = replace(SCENARIO, nodes=2, overrides=("node.nic.bandwidth=10 Gbps",))
    run = answer(slow).run
    saved = saved_beside(run, "tectonic")
    found = weeks_document(slow, Weeks(days=20.0, trials=20, store="tectonic"), changes=False)["checkpoint"]
    assert found["slowed_s"] == pytest.approx(saved.slowed) and saved.slowed > saved.blocking
    assert found["blocking_s"] == pytest.approx(saved.costs)
    waits = weeks_document(slow, Weeks(days=20.0, trials=20, store="tectonic", mode="sync"), changes=False)["checkpoint"]
    assert waits["slowed_s"] == 0.0 and waits["blocking_s"] == pytest.approx(waits["persist_s"])
    tiered = weeks_of(steps(), Weeks(days=20.0, trials=20, mode="tiered"), changes=False, slowed=lambda store: 3.0).run.saving
    plain = weeks(mode="tiered").run.saving
    assert tiered.memory_interval is not None and plain.memory_interval is not None
    every = tiered.interval / tiered.memory_interval
    assert every * (tiered.memory_blocking - plain.memory_blocking) == pytest.approx(3.0)


def test_a_store_twice_as_fast_never_costs_more() -> None:
    """Writing faster may slow steps more than it saves; a fast store can be written to slowly."""
    worse = weeks_of(steps(), Weeks(days=20.0, trials=60), slowed=lambda store: 0.0 if store and store.bandwidth < 3e12 else 60.0)
    as_it_is, faster = (next(one for one in worse.changes if one.name == name) for name in ("as it is", "a store twice as fast"))
    assert faster.expected >= as_it_is.expected


def test_what_is_asked_for_arrives() -> None:
    base = weeks()
    assert base.run.spares == 1 and weeks(spares=3).run.spares == 3
    assert base.run.horizon == 20 * DAY and weeks(days=None, epochs=2.0).run.work == pytest.approx(
        2 * load_workload("gpt2-xl").spec.dataset.samples / steps().samples * steps().step_time
    )
    assert weeks(mode="sync").run.saving.blocking > base.run.saving.blocking
    assert weeks(mode="tiered").run.saving.memory_interval is not None
    assert weeks(in_place=True).run.restart == base.run.restart_in_place < base.run.restart
    assert weeks(elastic=True).run.elastic == pytest.approx(1 / 16)
    assert weeks(new_fleet=True).run.new_fleet[0] == pytest.approx(0.055 * 128)
    assert [reliability_of(name).rate.value * DAY for name in ("low", "middle", "high")] == pytest.approx([0.00179, 0.00315, 0.00555])
    spot = weeks(mean_lifetime="20 h")
    revocation = spot.run.causes[-1]
    assert spot.run.rate[1] == pytest.approx(base.run.rate[1] + 16 / (20 * 3600))
    assert revocation.name == "revocation" and sum(cause.share for cause in spot.run.causes) == pytest.approx(1.0, abs=0.005)
    assert 0.9 < expected_share(steps()) < 1


def test_spot_is_a_case_of_it() -> None:
    """Oracle: `sim.study.spot`, where all wait for a replacement, with lives at random around the same mean, and no other failures."""
    scenario = Scenario("p3.2xlarge", "resnet50", nodes=4)
    drawn = spot(scenario, Wanted(epochs=60.0, interval="1 h", policy="wait", trials=300, mean_lifetime="8 h"), document, processes=1)
    time = spread(drawn.outcomes, lambda outcome: outcome.time).mean
    found = steps_of(document(scenario), load_hardware("p3.2xlarge").spec, load_workload("resnet50").spec)
    asked = Weeks(epochs=60.0, rate="0.000001 /y", mean_lifetime="8 h", interval="1 h", mode="sync", spares=0, trials=300)
    made = weeks_of(found, asked, changes=False)
    assert made.courses.elapsed.mean() == pytest.approx(time, rel=0.02)
    assert made.courses.interruptions.mean() == pytest.approx(spread(drawn.outcomes, lambda outcome: outcome.revocations).mean, rel=0.1)


def test_measured_lives_of_spot_machines_are_drawn_as_spot_draws_them() -> None:
    """Oracle: `sim.study.transient` with the same measured lives, where all wait for a replacement; the same job in plain numbers."""
    gpu = load_hardware("p3.2xlarge").spec.groups[0].node.gpu
    known = lifetimes_of(gpu)
    assert known is not None
    lives, nodes, work, saves = survival(known), 4, 40 * 3600.0, 60.0
    job = SpotJob(work, (1.0,) * nodes, lives, "wait", replacement=90.0, checkpoint=saves, restore=30.0, in_step=True)
    drawn = courses(job, 1800.0, 400)
    rate = nodes / lives.mean
    causes = [Cause("revocation", 1.0, AT_ONCE, AT_ONCE, 1.0, repair=Uniform(90.0, 90.0))]
    run = LongRun(nodes, 0, Saving(1800.0, saves, saves, 30.0), causes, (rate,) * 3, work=work, lives=(lives, rate))
    made = draw(run, 400)
    for name, values in {"time": made.elapsed, "revocations": made.interruptions, "lost": made.lost["rework"]}.items():
        expected = spread(drawn, attrgetter(name))
        error = math.hypot(expected.error, float(values.std()) / math.sqrt(values.size))
        assert float(values.mean()) == pytest.approx(expected.mean, abs=3.5 * error), name


def test_the_spot_market_draws_measured_lives() -> None:
    made = weeks_of(steps()._replace(market="spot"), Weeks(days=20.0, trials=20, mean_lifetime="20 h"), changes=False)
    assert made.run.lives is None
    node = load_hardware("p3.2xlarge").spec.groups[0].node
    volta = steps()._replace(node=node, nodes=4, gpus=4, market="spot")
    found = weeks_of(volta, Weeks(days=5.0, trials=20), changes=False)
    assert found.run.lives is not None and "at the ages that were measured" in found.notes[-1]
    assert weeks_of(volta._replace(nodes=400, gpus=400), Weeks(days=1.0, trials=2), changes=False).run.lives is None


def test_an_elastic_job_on_spot_machines_goes_on_with_the_others() -> None:
    """Oracle: `spot` itself, policy replace, workers in step, the same lives around the same mean; the same job in the terms of both."""
    node = load_hardware("p3.2xlarge").spec.groups[0].node
    volta = steps()._replace(node=node, nodes=4, gpus=4, market="spot")
    asked = Weeks(days=30.0, trials=300, rate="0.000001 /y", mean_lifetime="8 h", elastic=True, interval="1 h", mode="sync", spares=0)
    found = weeks_of(volta, asked, changes=False)
    run = found.run
    assert run.members is not None and run.lives is not None
    recovery = run.restart_in_place + run.communicators.mean + run.saving.load
    replaced = run.causes[-1].repair
    assert replaced is not None
    job = SpotJob(
        30 * DAY, tuple((count + 1) / 4 for count in range(4)), run.lives[0], "replace", replacement=replaced.mean,
        checkpoint=run.saving.blocking, restore=recovery, in_step=True,
    )  # fmt: skip
    slower = spread(courses(job, 3600.0, 300), attrgetter("time")).mean / (30 * DAY)
    assert float(found.courses.share.mean()) == pytest.approx(1 / slower, abs=0.015)
    assert found.courses.interruptions.mean() == pytest.approx(30 * 24 / 8 * 4, rel=0.05)
    waiting = weeks_of(volta, replace(asked, elastic=False), changes=False)
    assert found.courses.share.mean() > waiting.courses.share.mean() - 0.01


def test_a_layout_has_weeks_too() -> None:
    scenario = Scenario("hgx-h100", "llama-3.1-70b", nodes=16, layout=(("--tp", "parallel.tensor", 8), ("--pp", "parallel.pipeline", 4)))
    found = weeks_document(scenario, Weeks(tokens=1e11, trials=20), changes=False)
    assert found["tokens"] == pytest.approx(1e11) and found["checkpoint"]["writers"] == 32
    assert found["days"] * DAY == pytest.approx(found["work_s"] + sum(found["lost_s"].values()), rel=1e-9)


def test_what_helps_never_lowers_the_effective_share(tmp_path: Path) -> None:
    """Oracle: on the same faults, each at its best interval, more spares, rarer failures and a faster store keep no less, in the mean."""
    asked = {"days": 10.0, "trials": 300, "rate": "0.02 /d", "spares": 2}
    stores = []
    for speed in (0.2, 1, 5, 25):
        stores.append(tmp_path / f"store{speed}.yaml")
        stores[-1].write_text(f"name: s\nbandwidth: {speed} GB/s\nsize: 1 PB\nsource: test\n", encoding="utf-8")
    rising: dict[str, list[object]] = {
        "spares": [0, 1, 2, 4, 8], "rate": ["0.08 /d", "0.04 /d", "0.02 /d", "0.005 /d"], "store": [str(path) for path in stores],
    }  # fmt: skip
    for mode in ("async", "sync"):
        for key, values in rising.items():
            made = [weeks(**(asked | {"mode": mode, key: value})) for value in values]
            shares = [float(found.courses.share.mean()) for found in made]
            assert shares == sorted(shares), (mode, key, shares)
            closed = [found.expected for found in made]
            assert closed == sorted(closed), (mode, key, closed)
            assert shares[-1] > shares[0], (mode, key)


def test_each_bad_input_has_one_sentence(tmp_path: Path) -> None:
    text = Path("hardware/parts/reliability/middle.yaml").read_text(encoding="utf-8")
    bare, unsourced = tmp_path / "bare.yaml", tmp_path / "unsourced.yaml"
    bare.write_text(text.replace("value: 0.00315 /d", "value: 0.00315"), encoding="utf-8")
    start = text.index('  source: "geometric')
    unsourced.write_text(text[:start] + text[text.index("\n", start) + 1 :], encoding="utf-8")
    small = tmp_path / "small.yaml"
    small.write_text("name: small\nbandwidth: 1 GB/s\nsize: 20 GB\nsource: test\n", encoding="utf-8")
    cases = {
        "has no unit": {"level": str(bare)},
        "source": {"level": str(unsourced)},
        "'0.004' has no unit": {"rate": "0.004"},
        "a checkpoint has 18.7 GB, and 2 at once do not fit into 20 GB": {"store": str(small)},
        "until it is complete, and the next would begin before": {"interval": "1 s"},
        "half of the jobs die within": {"spares": 0, "repairs": False, "rate": "0.05 /d"},
        "is not in the catalogue": {"store": "nowhere"},
        "the job never ends": {"rate": "9000 /d"},
        "write one of sync, async, tiered": {"mode": "never"},
        "write one of the three": {"epochs": 3.0},
        "no grid intensity": {"region": "atlantis"},
    }
    wrong = []
    for sentence, keys in cases.items():
        asked = Weeks(**({"days": 20.0, "trials": 20} | keys))  # type: ignore[arg-type]
        try:
            asked.checked()
            weeks_of(steps(), asked, changes=False)
        except SpecError as error:
            if sentence not in str(error) or len(error.problems) != 1:
                wrong.append((sentence, str(error)))
        else:
            wrong.append((sentence, "nothing was said"))
    assert wrong == []
