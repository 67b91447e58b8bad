"""Which jobs of weeks are refused, or never end, and what is said? Oracles: one sentence for each bad input, and advice that works."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from sim.analysis import course
from sim.analysis.course import draw
from sim.cli import main
from sim.report.goodput import goodput_document, goodput_text
from sim.spec.yaml import SpecError
from sim.study.goodput import simulate_weeks
from sim.study.options import Weeks
from sim.study.weeks import check_weeks
from tests.study.weeks_asked import DAY, steps, weeks


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
        assert document["interval95"]["effective_share"][0] < 0.9 or document["died"]["share"] <= 0.025
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


def test_each_bad_input_has_one_sentence(tmp_path: Path) -> None:
    text = Path("hardware/parts/reliability/middle.yaml").read_text(encoding="utf-8")
    bare, unsourced = tmp_path / "bare.yaml", tmp_path / "unsourced.yaml"
    bare.write_text(text.replace("value: 0.00308 /d", "value: 0.00308"), encoding="utf-8")
    start = text.index('  source: "geometric')
    unsourced.write_text(text[:start] + text[text.index("\n", start) + 1 :], encoding="utf-8")
    inherited = tmp_path / "inherited.yaml"
    inherited.write_text("extends: middle\nrate: {value: 0.003 /d}\n", encoding="utf-8")
    small = tmp_path / "small.yaml"
    small.write_text("name: small\nbandwidth: 1 GB/s\nsize: 20 GB\nsource: test\n", encoding="utf-8")
    slow = tmp_path / "slow.yaml"
    slow.write_text("name: slow\nbandwidth: 1 kB/s\nsource: test\n", encoding="utf-8")
    edited = {
        "detection: [2 s, 5 min]": "detection: [5 min, 2 s]", "  share: 0.2\n  interval: [0.17, 0.26]\n": "  share: 1\n",
        "factor: 1.34": "factor: 0.5", "within: 30 d": "within: 0 d", "name: hang": "name: gpu",
        "rate: 0.00003 /d\n  interval: [0.000023 /d, 0.0000385 /d]": "rate: 0.03 /d",
        "interval: [0.0696 /d, 2.31 /d]": "interval: [0.5 /d, 2.31 /d]", "degrees_of_freedom: 4": "degrees_of_freedom: 0",
        "nodes: 48": "nodes: 0",
    }  # fmt: skip
    levels = []
    for number, (old, new) in enumerate(edited.items()):
        levels.append(tmp_path / f"edited{number}.yaml")
        levels[-1].write_text(text.replace(old, new, 1), encoding="utf-8")
    cases = {
        "edited0.yaml:38:5: causes.0.detection: the shorter time must come first": {"level": str(levels[0])},
        "edited1.yaml:10:1: repeats: with a share of 1, every fault would be followed by another one without end": {
            "level": str(levels[1])
        },
        "slow: a slow node makes steps longer, which a factor of 0.5 does not": {"level": str(levels[2])},
        "new_fleet: early failures need a time above zero": {"level": str(levels[3])},
        "two causes have the same name": {"level": str(levels[4])},
        "write a correlated.rate of at most rate.value": {"level": str(levels[5])},
        "planned: the middle must be inside its interval": {"level": str(levels[6])},
        "rate.degrees_of_freedom: 0 is too small; write a whole number, 1 or more": {"level": str(levels[7])},
        "planned.nodes: 0 is too small; write a whole number, 1 or more": {"level": str(levels[8])},
        "--spares 1000000000: write 100,000 or less": {"spares": 10**9},
        "--trials 1000000000: write 1,000,000 or less": {"trials": 10**9},
        "write a shorter --checkpoint-interval": {"interval": "100000 d", "days": None, "epochs": 3000.0, "rate": "0.05 /d"},
        "days or less, or a shorter --checkpoint-interval": {
            "interval": "100000 d",
            "days": None,
            "epochs": 350.0,
            "rate": "0.05 /d",
            "spares": 10,
        },
        "has no unit": {"level": str(bare)},
        "source": {"level": str(unsourced)},
        "inherited.yaml:2:1: rate: its numbers differ from those of middle, so they need their own source; add source": {
            "level": str(inherited)
        },
        "'0.004' has no unit": {"rate": "0.004"},
        "2 checkpoints of 18.7 GB do not fit into 20 GB": {"store": str(small)},
        "to complete, and the next would begin before that": {"interval": "1 s"},
        "a checkpoint takes 5,192 h to complete and 83,073 h to load; write a faster --store, fewer --nodes": {"store": str(slow)},
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
        "; disk is the disk of each node": {"store": "nowhere"},
        "did you mean tectonic? disk is the disk of each node": {"store": "tectonik"},
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
            check_weeks(settings)
            simulate_weeks(steps(), settings, changes=False)
        except SpecError as error:
            if sentence not in str(error) or len(error.problems) != 1:
                wrong.append((sentence, str(error)))
        else:
            wrong.append((sentence, "nothing was said"))
    assert wrong == []


def test_a_job_of_too_many_events_is_refused_before_it_is_drawn(capsys: pytest.CaptureFixture[str]) -> None:
    """By hand, of the middle level: 0.00308 faults per node and 0.4 planned stops a day; 20,000 of both are drawn at most."""
    assert main(["goodput", "hgx-h100", "gpt2-xl", "--nodes", "256", "--days", "30000"]) == 2
    a_day = 256 * 0.00308 + 0.4
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


def test_planned_stops_of_a_file_that_counts_them_by_node_are_explained(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Files had a rate of each node; read as that of a job, it would be far too low, so it is not enough to add nodes."""
    before, planned, after = Path("hardware/parts/reliability/middle.yaml").read_text(encoding="utf-8").partition("planned:\n")
    mine = tmp_path / "mine.yaml"
    mine.write_text(before + planned + "".join(line for line in after.splitlines(keepends=True) if "nodes:" not in line), encoding="utf-8")
    line = 1 + before.count("\n")
    assert main(["goodput", "p4d.24xlarge", "resnet50", "--days", "10", "--reliability", str(mine)]) == 2
    said = capsys.readouterr().err.strip()
    assert said.startswith(f"{mine}:{line}:1: planned: nodes is missing; ") and said.endswith("write rate: 0.4 /d and nodes: 1000")
    assert "\n" not in said
