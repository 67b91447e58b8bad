"""Oracle: the runs themselves, one by one, and what was changed by hand: memory for the page cache, the number of GPUs, jitter."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest

from sim.events import STALLS
from sim.report.attribution import gaps_document, gaps_lines
from sim.study.profile import profile
from sim.study.scenario import Scenario

CASES = {
    "all cached": Scenario("p3.16xlarge", "resnet18"),
    "little cached": Scenario("p3.16xlarge", "resnet18", ("node.host.memory=64 GiB",)),
    "no jitter": Scenario("p3.16xlarge", "resnet18", ("training.noise.compute_cv=0",)),
    "one GPU": Scenario("p3.2xlarge", "resnet18", ("node.host.memory=500 GiB", "input.compute_cv=0")),
}


@cache
def case(name: str) -> tuple[dict[str, Any], dict[str, dict[str, float]]]:
    profiled = profile(CASES[name])
    runs = {"RUN0": profiled.one_gpu.jobs[0].warm, "RUN1": profiled.synthetic.jobs[0].warm, "RUN2": profiled.real.jobs[0].first}
    runs["RUN3"] = profiled.real.jobs[0].warm
    return gaps_document(profiled), {name: {cause.value: run.stalls[cause] for cause in STALLS} for name, run in runs.items()}


@pytest.mark.parametrize("name", CASES)
def test_gaps_lead_from_the_waits_of_one_run_to_the_difference_of_two(name: str) -> None:
    document, runs = case(name)
    for stall, before, after in (("interconnect", "RUN0", "RUN1"), ("prep", "RUN1", "RUN3"), ("fetch", "RUN3", "RUN2")):
        both = document["stalls"][stall]
        assert both["subtraction_s"] == pytest.approx(sum(runs[after].values()) - sum(runs[before].values()), abs=1e-12)
        assert both["direct_s"] == runs[after][stall]
        assert both["subtraction_s"] == pytest.approx(both["direct_s"] + sum(gap["difference_s"] for gap in both["gaps"]), abs=1e-12)
        for gap in both["gaps"]:
            assert (gap["before_s"], gap["after_s"]) == (runs[before][gap["cause"]], runs[after][gap["cause"]])
    every = document["all"]
    assert every["direct_s"] - every["subtraction_s"] == pytest.approx(every["run0_waits_s"] - every["compute_grows_s"])


def why(name: str, stall: str, cause: str) -> str:
    document, _ = case(name)
    return next((str(gap["why"]) for gap in document["stalls"][stall]["gaps"] if gap["cause"] == cause), "")


def test_reasons_are_those_of_the_runs() -> None:
    assert "8 GPUs copy at once, not 1" in why("all cached", "interconnect", "copy")
    assert "also waits for fetch" in why("little cached", "fetch", "fetch") and "26% of reads" in why("little cached", "fetch", "fetch")
    assert not why("all cached", "fetch", "fetch")  # nothing is read in RUN3
    assert "overlaps with other waits" in why("all cached", "fetch", "prep")
    assert "vary by 2% more" in why("all cached", "prep", "straggler")
    assert not why("no jitter", "prep", "straggler") and not why("no jitter", "interconnect", "straggler")
    assert case("one GPU")[0]["stalls"]["interconnect"] == {"subtraction_s": 0.0, "direct_s": 0.0, "gaps": []}


def test_lines_name_the_large_gaps_only() -> None:
    lines = gaps_lines(case("little cached")[0])
    assert lines[0] == "why the two methods differ (per step):"
    assert any(line.startswith("    -") and " fetch: RUN3" in line for line in lines)
    assert not any("launch" in line for line in lines)
    assert lines[-1].startswith("interconnect, prep and fetch add up to RUN2 - RUN0, ")
    assert "RUN0, which subtraction counts as compute, waits 6.4" in lines[-1] and "(copy)" in lines[-1]
