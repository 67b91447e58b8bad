"""Do faster stores, more spares and rarer failures never lower the effective share of a described job? Simulated steps, best intervals.

Oracle: common random numbers; the mean difference of paired courses is not below zero by more than its standard error allows, and the
closed form is not lower by more than the gain below which no other rate of writing is tried.
"""

from __future__ import annotations

import itertools
import math
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim.documents import document
from sim.report.layouts.layout import layout_document
from sim.study.goodput import Goodput, simulate_weeks
from sim.study.layout import layout_answer
from sim.study.options import Weeks
from sim.study.saving import slowdown_by_store
from sim.study.scenario import Scenario, answer
from sim.study.weeks import Slowed, Steps, steps_of

COURSES = 60
FAULTS = 30
SHARDS = (("--shard", "parallel.shard", "parameters"),)
SLOW = ("node.nic.bandwidth=25 Gbps",)
JOBS = {
    "images on TCP": Scenario("p3.16xlarge", "resnet50", nodes=2, batch=8),
    "decoder": Scenario("hgx-h100", "gpt2-xl", nodes=16, batch=4, precision="amp_bf16"),
    "decoder, slow NICs": Scenario("hgx-h100", "gpt2-xl", ("node.nic.bandwidth=10 Gbps",), nodes=4, batch=4, precision="amp_bf16"),
    "images, slow NICs": Scenario("hgx-h100", "vgg16", SLOW, nodes=2, batch=8),
    "many nodes": Scenario("hgx-h100", "gpt2-xl", nodes=128, batch=4, precision="amp_bf16"),
    "shards": Scenario("hgx-h100", "llama-3.1-8b", nodes=16, batch=1, layout=SHARDS),
    "shards, slow NICs": Scenario("hgx-h100", "llama-3.2-1b", SLOW, nodes=2, batch=1, layout=SHARDS),
}


class Speed(NamedTuple):
    """A store: bytes/s of all writers and, if limited, of each; seconds of each checkpoint."""

    total: float
    per_writer: float | None
    start: float

    def times(self, factor: float) -> Speed:
        return self._replace(total=factor * self.total, per_writer=self.per_writer and factor * self.per_writer)

    def write(self, folder: Path) -> str:
        file = folder / f"{hash(self)}.yaml"
        limit = f"per_writer: {self.per_writer!r} B/s\n" if self.per_writer else ""
        file.write_text(f"name: s\nbandwidth: {self.total!r} B/s\n{limit}start: {self.start!r} s\nsource: test\n", encoding="utf-8")
        return str(file)


@cache
def job(name: str) -> tuple[Steps, Slowed]:
    scenario = JOBS[name]
    if scenario.layout:
        laid_out = layout_answer(scenario)
        return steps_of(layout_document(laid_out), laid_out.run.hardware, laid_out.run.workload), slowdown_by_store(laid_out.run)
    run = answer(scenario).run
    return steps_of(document(scenario), run.hardware, run.jobs[0].job.workload), slowdown_by_store(run)


def simulated(name: str, weeks: Weeks) -> Goodput:
    steps, slowed = job(name)
    return simulate_weeks(steps, weeks, changes=False, slowed=slowed)


def no_worse(name: str, before: Weeks, after: Weeks) -> None:
    worse, better = simulated(name, before), simulated(name, after)
    gain = (better.courses.work - worse.courses.work) / worse.run.horizon
    assert better.expected >= worse.expected - 2e-6
    if worse.courses.interruptions.sum() < FAULTS:  # too few to pay for a save more
        return
    assert gain.mean() >= -4 * gain.std() / math.sqrt(COURSES) - 1e-4


def _powers(low: float, high: float) -> st.SearchStrategy[float]:
    return st.floats(math.log10(low), math.log10(high)).map(lambda power: float(f"{10.0**power:.4g}"))


requests = st.fixed_dictionaries(
    {
        "days": _powers(0.3, 100.0), "mode": st.sampled_from(["sync", "async", "tiered"]), "spares": st.integers(0, 4),
        "rate": st.one_of(st.none(), _powers(5e-4, 0.3).map(lambda rate: f"{rate} /d")), "seed": st.integers(0, 1000),
    }
)  # fmt: skip
speeds = st.builds(Speed, _powers(2e8, 3e12), st.one_of(st.none(), _powers(2e7, 3e10)), st.sampled_from([0.0, 0.6, 3.75]))


@settings(max_examples=2, deadline=None)
@given(name=st.sampled_from(sorted(JOBS)), keys=requests, speed=speeds, factor=st.sampled_from([1.3, 2.0, 5.0, 30.0]))
def test_what_helps_never_lowers_the_share(
    name: str, keys: dict[str, object], speed: Speed, factor: float, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("stores")
    before = Weeks(**({"trials": COURSES, "store": speed.write(folder)} | keys))  # type: ignore[arg-type]
    no_worse(name, before, Weeks(**(vars(before) | {"store": speed.times(factor).write(folder)})))
    no_worse(name, before, Weeks(**(vars(before) | {"spares": (before.spares or 0) + 1})))
    rarer = "0.0002 /d" if before.rate is None else f"{float(before.rate.split()[0]) / factor!r} /d"
    given_rate = Weeks(**(vars(before) | {"rate": before.rate or "0.003 /d"}))
    no_worse(name, given_rate, Weeks(**(vars(before) | {"rate": rarer})))


@pytest.mark.nightly
@settings(max_examples=100, deadline=None)
@given(name=st.sampled_from(sorted(JOBS)), keys=requests, speed=speeds, factor=st.sampled_from([1.3, 2.0, 5.0, 30.0]))
def test_what_helps_never_lowers_the_share_of_many_jobs(
    name: str, keys: dict[str, object], speed: Speed, factor: float, tmp_path_factory: pytest.TempPathFactory
) -> None:
    test_what_helps_never_lowers_the_share.hypothesis.inner_test(name, keys, speed, factor, tmp_path_factory)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("name", "mode"),
    [
        ("images, slow NICs", "async"),
        pytest.param("images, slow NICs", "tiered", marks=pytest.mark.nightly),
        pytest.param("decoder, slow NICs", "async", marks=pytest.mark.nightly),
        ("many nodes", "async"),
    ],
)
def test_a_faster_store_is_not_written_to_faster_than_helps(name: str, mode: str, tmp_path: Path) -> None:
    """Stores 1 to 1,000 times as fast; a run with one and the what-if of one that is half as fast have the same share."""
    speed, closed, limits = Speed(1e9, None, 0.6), [], []
    for power in range(0, 11, 2):
        made = simulated(name, Weeks(days=20.0, trials=2, mode=mode, store=speed.times(2.0**power).write(tmp_path)))
        closed.append(made.expected)
        limits.append(made.write_limits[0])
    assert all(faster >= slower - 1e-6 for slower, faster in itertools.pairwise(closed))
    assert limits[-1] is not None and limits[-1] == limits[-2]
    steps, slowed = job(name)
    weeks = Weeks(days=20.0, trials=20, mode=mode, store=speed.times(2.0**8).write(tmp_path))
    told = simulate_weeks(steps, weeks, slowed=slowed).changes[1]
    doubled = simulated(name, Weeks(**(vars(weeks) | {"store": speed.times(2.0**9).write(tmp_path)})))
    assert told.name == "a store twice as fast"
    assert told.expected == pytest.approx(doubled.expected, abs=1e-12)
    assert told.share == pytest.approx(float(doubled.courses.share.mean()), abs=1e-12)
