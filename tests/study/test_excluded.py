"""Does what `recommend` does not plan change its answer? Oracle: all machines planned, as if they were named."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from sim.analysis.whole_job import JobPlan
from sim.documents import RentalOptions, recommendation
from sim.spec.library import load_hardware
from sim.spec.memo import caching_inside
from sim.study import excluded
from sim.study.compare import ComparedMachine, front, machines
from sim.study.excluded import PATIENCE, SHOWN, Contest, Exclusion
from sim.study.plan.least_work import LeastWork
from sim.study.plan.question import PlanQuestion, prepare_plan
from sim.study.plan.refine import bounds
from sim.study.recommend import Budget
from sim.study.scenario import Scenario

JOB = Scenario("", "llama-3.2-1b", ("node.gpu.memory=16 GiB",), global_batch=4, sequence=2048, plan=JobPlan(None, tokens=10**9))
"""A decoder that needs a layout on every machine."""
SOME = ("p5.48xlarge", "g5.12xlarge")
"""A machine with NVSwitch and one with PCIe."""
WHERE = ["provider=lambda,gcp,aws", "gpus=1..2"]


def _table(document: dict[str, Any]) -> list[dict[str, Any]]:
    return document["candidates"][:SHOWN]


def _on_front(document: dict[str, Any]) -> list[dict[str, Any]]:
    rows = document["candidates"]
    marks = front([(row["total_time_s"], row["total_cost_usd"]) for row in rows])
    return sorted((row for row, first in zip(rows, marks, strict=True) if first), key=lambda row: row["total_cost_usd"])


@pytest.mark.parametrize(
    "budget",
    [
        Budget(time=3e5),
        pytest.param(Budget(time=1e3), marks=pytest.mark.nightly),
        pytest.param(Budget(money=100.0), marks=pytest.mark.nightly),
    ],
)
def test_the_answer_is_that_of_all_machines(budget: Budget) -> None:
    """Also the nearest to a budget that none meets."""
    names = machines([], [*WHERE, "nodes=1"])
    with caching_inside():
        renting = RentalOptions(budget, where=WHERE, nodes=[1], processes=1)
        some, _ = recommendation(JOB, renting)
        every, _ = recommendation(JOB, replace(renting, hardware=names, where=[]))
        for key in ("best", "runner_up", "nearest"):
            assert some[key] == every[key]
        assert _table(some) == _table(every)
        assert _on_front(some) == _on_front(every)
        assert some["excluded_by_bound"] and not every["excluded_by_bound"]
        planned = {(row["hardware"], row["nodes"]) for row in every["candidates"]}
        actual = {(row["hardware"], row["nodes"], row["market"]): row for row in every["candidates"]}
        for least in some["excluded_by_bound"]:
            if (least["hardware"], least["nodes"]) in planned:
                row = actual[least["hardware"], least["nodes"], least["market"]]
                assert least["least_time_s"] <= row["total_time_s"] and least["least_cost_usd"] <= row["total_cost_usd"]


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("where", "nodes", "batch", "patience"),
    [
        (["provider=lambda", "gpus=1..2"], [1, 2], 4, (1.1, 1.5)),
        (["provider=lambda", "gpus=2..8"], [1, 4], 16, PATIENCE),
    ],
)
def test_searches_that_end_early_do_not_change_the_answer(
    where: list[str], nodes: list[int], batch: int, patience: tuple[float, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bounds of a GPU say little about many nodes, so some searches end early; with less *patience* than usual on few machines."""
    job = replace(JOB, global_batch=batch)
    noted: list[ComparedMachine] = []
    own = Exclusion.note

    def note(self: Exclusion, rows: Iterable[ComparedMachine]) -> None:
        noted.extend(kept := list(rows))
        own(self, kept)

    monkeypatch.setattr(Exclusion, "note", note)
    monkeypatch.setattr(excluded, "PATIENCE", patience)
    renting = RentalOptions(Budget(time=3e5), where=where, nodes=nodes, processes=1)
    with caching_inside():
        some, _ = recommendation(job, renting)
        assert any(row.least_step is not None for row in noted)
        every, _ = recommendation(job, replace(renting, hardware=machines([], [*where, "nodes=1"]), where=[]))
    for key in ("best", "runner_up", "nearest"):
        assert some[key] == every[key]
    assert _table(some) == _table(every)
    assert _on_front(some) == _on_front(every)
    assert [row for row in every["candidates"] if row in some["candidates"]] == some["candidates"]
    assert some["left_out"].keys() == every["left_out"].keys()


REPLICAS = Scenario("", "resnet50", plan=JobPlan(3.0))
"""A job that every machine runs as it is."""


@pytest.mark.parametrize(
    ("where", "budget", "options"),
    [
        pytest.param(where, budget, options, marks=pytest.mark.nightly if nightly or where is WHERE else ())
        for where in (["provider=lambda,gcp", "gpus=1..2"], WHERE)
        for budget, options, nightly in (
            (Budget(time=86400.0), {}, False),
            (Budget(time=3600.0), {}, True),
            (Budget(money=20.0), {"power_cap": "250 W"}, False),
            (Budget(money=20.0), {"with_failures": True, "mean_lifetime": "20 h"}, True),
        )
        if where is WHERE or not nightly
    ],
)
def test_machines_that_cannot_change_the_answer_are_not_simulated(where: list[str], budget: Budget, options: dict[str, Any]) -> None:
    """Of 708 choices for resnet50, all 626 with a price had been simulated, most to no effect. Nightly: machines of three providers."""
    job = REPLICAS if options else replace(REPLICAS, plan=JobPlan(None, time=7200.0) if budget.money else JobPlan(3.0))
    with caching_inside():
        renting = RentalOptions(budget, where=where, nodes=[1, 2], processes=1, **options)
        some, ran = recommendation(job, renting)
        every, all_ran = recommendation(job, replace(renting, hardware=machines([], [*where, "nodes=1"]), where=[]))
    for key in ("best", "runner_up", "nearest"):
        assert some[key] == every[key]
    assert _table(some) == _table(every)
    assert _on_front(some) == _on_front(every)
    assert [row for row in every["candidates"] if row in some["candidates"]] == some["candidates"]
    assert 2 * len(ran) < len(all_ran)
    assert some["left_out"].items() <= every["left_out"].items()  # less what a power cap does not suit, if it is beaten anyway
    actual = {(row["hardware"], row["nodes"], row["market"]): row for row in every["candidates"]}
    for least in some["excluded_by_bound"]:
        row = actual.get((least["hardware"], least["nodes"], least["market"]))
        if row is None:
            assert least["hardware"] in every["left_out"]
            continue
        assert least["least_time_s"] <= row["total_time_s"] and least["least_cost_usd"] <= row["total_cost_usd"]
        assert least["most_epochs"] >= row["epochs"]


def test_what_runs_needs_no_bounds_of_layouts(monkeypatch: pytest.MonkeyPatch) -> None:
    """They took as long as half of the simulations, and nothing was planned."""
    monkeypatch.setattr(LeastWork, "step_time", None)
    renting = RentalOptions(Budget(time=86400.0), where=["provider=lambda", "gpus=1"], nodes=[1], processes=1)
    heard: list[tuple[int, int]] = []
    with caching_inside():
        document, _ = recommendation(REPLICAS, renting, lambda what: lambda done, of: heard.append((done, of)))
    assert document["best"] is not None and heard[0][0] == 0 < heard[-1][0] <= heard[-1][1]


@pytest.mark.nightly
def test_the_replicas_that_are_left_out_do_not_depend_on_the_number_of_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two processes simulate 32 machines at once, one 4. A table of three is soon full."""
    monkeypatch.setattr(excluded, "SHOWN", 3)
    renting = RentalOptions(Budget(time=86400.0), where=["provider=lambda,aws"], nodes=[1, 2])
    alone, together = (recommendation(REPLICAS, replace(renting, processes=count)) for count in (1, 2))
    assert alone == together
    assert alone[0]["excluded_by_bound"] and len(alone[0]["candidates"]) > 3


def test_the_answer_does_not_depend_on_the_number_of_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two processes plan five machines before others are excluded, one plans each after the one before. A table of three is soon full."""
    monkeypatch.setattr(excluded, "SHOWN", 3)
    renting = RentalOptions(Budget(time=3e5), where=["provider=lambda", "gpus=1..2"], nodes=[1, 2])
    job = replace(JOB, overrides=("node.gpu.memory=14 GiB",))
    alone, together = (recommendation(job, replace(renting, processes=count)) for count in (1, 2))
    assert alone == together
    document, _ = alone
    assert document["excluded_by_bound"] and len(document["candidates"]) >= 3
    assert all(row["layout_gap"] is not None for row in document["candidates"])


def test_a_cutoff_is_the_least_step_that_is_beaten_or_a_few_times_the_bound() -> None:
    names = ["gpu_8x_b200_sxm6", "gpu_1x_h100_sxm5", "gpu_1x_gh200", "gpu_4x_a6000", "gpu_8x_a100", "no-such-machine"]
    contest = Contest(JOB, JobPlan(None, tokens=10**9), Budget(time=1e5), ("on_demand",), None)
    document = {
        "nodes": 1, "gpus": 8, "throughput_samples_per_s": 4.0, "step_time_s": 1.0, "epoch_time_s": 1.0,
        "stalls_s": {"compute": 1.0, "prep": 0.0}, "first_epoch": {"epoch_time_s": 1.0}, "stack": contest.workload.training.stack.name,
    }  # fmt: skip
    exclusion = Exclusion(contest, [ComparedMachine("gpu_8x_a100", 1, document)] * SHOWN)
    checked = []
    with caching_inside():
        for point in product(names, (1, 16)):
            if exclusion.excludes(point):
                continue
            bound, cutoff = LeastWork(JOB).step_time(*point), exclusion.cutoff(point)
            if bound == 0.0:
                assert cutoff == math.inf
                continue
            assert bound < cutoff < PATIENCE[0] * bound
            for share, beaten in ((0.99999, False), (1.0, True), (1.5, True)):
                exclusion.note([ComparedMachine(*point, None, least_step=share * cutoff)])
                assert exclusion.excludes(point) == beaten
            checked.append(point)
        alone, bound = Exclusion(contest), LeastWork(JOB).step_time("gpu_8x_a100", 1)
        assert alone.cutoff(("gpu_8x_a100", 1)) == PATIENCE[0] * bound  # nothing beats it
        alone.note([ComparedMachine("gpu_8x_a100", 1, None, least_step=3 * bound)])
        assert alone.cutoff(("gpu_8x_a100", 1)) == PATIENCE[1] * 3 * bound  # it has waited once
    assert checked == [("gpu_8x_b200_sxm6", 16)]  # all others are slower than what already ran on the A100s, or have no bound


@pytest.mark.parametrize(
    ("workload", "name"),
    [
        pytest.param(workload, name, marks=pytest.mark.nightly if workload != "llama-3.2-1b" and name not in SOME else ())
        for name in (*SOME, "gpu_8x_a100", "g6.48xlarge", "gpu_8x_b200_sxm6")
        for workload in ("llama-3.1-8b", "mixtral-8x7b", "llama-3.2-1b")
    ],
)
@pytest.mark.parametrize("counts", [(1, 3), pytest.param((2,), marks=pytest.mark.nightly)])
def test_no_layout_works_less_than_a_whole_batch_on_one_gpu(workload: str, name: str, counts: tuple[int, ...]) -> None:
    """Oracle: the bounds of all layouts of a cluster, with unlimited memory.

    Nightly: experts and a larger model on the three other machines. They have more layouts, but how these depend on a machine, the smallest
    model shows on all five. So are two nodes, which have half of all layouts: one node is divided as evenly, and three are not.
    """
    scenario = Scenario(name, workload, global_batch=32)
    plan, work = prepare_plan(PlanQuestion(scenario, counts, allowed=frozenset({"recompute"}))), LeastWork(scenario)
    least = dict.fromkeys(counts, math.inf)
    for setting, each in plan.layouts:
        if each:
            least[each[0].nodes] = min(least[each[0].nodes], float(bounds(setting, each, math.inf).compute.min()))
    for nodes, step_time in least.items():
        assert 0.5 * step_time < work.step_time(name, nodes) <= step_time


@pytest.mark.parametrize(
    ("workload", "stack", "samples", "sequence"),
    [
        pytest.param("qwen3-30b-a3b", None, 1024, 512, marks=pytest.mark.nightly),
        pytest.param("gpt-oss-20b", None, 1024, 512, marks=pytest.mark.nightly),
        ("deepseek-v2-lite", "megatron-core", 512, 1024),
    ],
)
def test_experts_that_multiply_the_tokens_of_many_ranks_work_no_less(workload: str, stack: str | None, samples: int, sequence: int) -> None:
    """An expert has few tokens of a micro-batch, but many of its group's, and a rank with one expert sorts none."""
    scenario = Scenario("p5.48xlarge", workload, global_batch=samples, sequence=sequence, stack=stack)
    plan = prepare_plan(PlanQuestion(scenario, (8,)))
    least = min(float(bounds(setting, each, float("inf")).compute.min()) for setting, each in plan.layouts if each)
    assert 0.5 * least < LeastWork(scenario).step_time("p5.48xlarge", 8) <= least


@pytest.mark.parametrize("workload", ["mixtral-8x7b", "llama-3.2-1b"])
@pytest.mark.parametrize("name", ["p5.48xlarge", pytest.param("gpu_8x_a100", marks=pytest.mark.nightly)])
def test_experts_that_serve_the_short_samples_of_several_ranks_do_not_work_less(workload: str, name: str) -> None:
    """A micro-batch of short samples reads weights for few tokens, unless ranks share experts or each has only one micro-batch."""
    scenario = Scenario(name, workload, global_batch=256, sequence=128)
    plan = prepare_plan(PlanQuestion(scenario, (2,)))
    least = min(float(bounds(setting, each, float("inf")).compute.min()) for setting, each in plan.layouts if each)
    assert 0.5 * least < LeastWork(scenario).step_time(name, 2) <= least


def test_a_gpu_with_one_expert_does_not_work_less() -> None:
    """Kernels of one expert may be faster than those of many."""
    scenario = Scenario("p5.48xlarge", "qwen3-30b-a3b", global_batch=4096, sequence=1024)
    plan = prepare_plan(PlanQuestion(scenario, (16,), fixed={"ep": "128"}))
    least = min(float(bounds(setting, each, float("inf")).compute.min()) for setting, each in plan.layouts if each)
    assert 0.5 * least < LeastWork(scenario).step_time("p5.48xlarge", 16) <= least


def test_a_slow_host_bounds_no_machine_with_a_fast_one(tmp_path: Path) -> None:
    """Steps of few tokens wait for launches. Oracle: the bounds of all layouts of each machine, with unlimited memory."""
    scenario, least = Scenario("", "gpt2", global_batch=8, sequence=128, stack="torch-2.x-ddp"), {}
    work = LeastWork(scenario)
    for speed in (0.2, 1.0, 5.0):
        path = tmp_path / f"host-{speed}.yaml"
        host = f"{{cpu: {{speed: {speed}, source: test}}}}"
        path.write_text(f"name: host-{speed}\nextends: hgx-h100\nnode: {{host: {host}}}\n", encoding="utf-8")
        plan = prepare_plan(PlanQuestion(replace(scenario, hardware=str(path)), (1,)))
        least[speed] = min(float(bounds(setting, each, math.inf).compute.min()) for setting, each in plan.layouts if each)
        assert work.step_time(str(path), 1) <= least[speed]
    assert least[0.2] > least[1.0] > least[5.0]


def test_a_machine_without_a_bound_is_planned() -> None:
    contest = Contest(JOB, JobPlan(None, tokens=10**9), Budget(time=1e5), ("on_demand",), None)
    exclusion = Exclusion(contest)
    assert LeastWork(JOB).step_time("no-such-machine", 1) == 0.0
    assert not exclusion.excludes(("no-such-machine", 1))
    assert exclusion.in_order([("gpu_8x_a100", 1), ("no-such-machine", 1)])[0] == ("no-such-machine", 1)


def test_a_machine_is_excluded_once_others_fill_the_table_and_one_is_better_in_time_and_cost() -> None:
    contest = Contest(JOB, JobPlan(1.0), Budget(time=1e9), ("on_demand",), None)
    rate = contest.least("gpu_8x_a100", 1, 1.0)[0]
    document = {
        "nodes": 1, "gpus": 8, "throughput_samples_per_s": 1e9, "step_time_s": 8e-9, "epoch_time_s": 1.0,
        "stalls_s": {"compute": 1.0, "prep": 0.0},
        "first_epoch": {"epoch_time_s": 1.0}, "stack": contest.workload.training.stack.name,
    }  # fmt: skip
    fast = ComparedMachine("gpu_8x_a100", 1, document)
    exclusion = Exclusion(contest, [fast] * (SHOWN - 1))
    assert rate.hardware == load_hardware("gpu_8x_a100").spec.name
    assert not exclusion.excludes(("gpu_8x_a100", 2))
    exclusion.note([fast])
    assert exclusion.excludes(("gpu_8x_a100", 2))


def test_what_is_expected_to_be_planned_is_what_bounds_do_not_exclude() -> None:
    """Oracle: candidates as good as the bounds, or a bit worse, exclude the others; machines without a bound count."""
    contest = Contest(JOB, JobPlan(None, tokens=10**9), Budget(time=1e5), ("on_demand",), None)
    points = [(name, nodes) for name in machines([], ["provider=lambda,gcp", "nodes=1"]) for nodes in (1, 2, 4)]
    with caching_inside():
        exclusion = Exclusion(contest)
        bounded = [point for point in points if exclusion.is_bounded(point)]
        expected = exclusion.expected(points)
        least = [(contest.key(each), point) for point in bounded for each in exclusion.least(point)]
        marks = front([(each.epoch_time, each.cost) for point in bounded for each in exclusion.least(point)])
        wanted = {point for _, point in sorted(least)[:SHOWN]} | {
            point for (_, point), is_first in zip(least, marks, strict=True) if is_first
        }
        assert len(wanted) <= expected - (len(points) - len(bounded)) <= len(wanted) + 1  # two at equal places
        assert expected < len(points) / 2
        assert exclusion.best is None and exclusion.expected([]) == 0


def test_the_best_candidate_so_far_is_shown_and_choices_are_counted() -> None:
    """Oracle: the answer; each notice is better than the one before, and the last is the best."""
    notices: list[str] = []
    counted: list[tuple[int, int]] = []
    renting = RentalOptions(Budget(time=3e5), where=["provider=lambda", "gpus=1..2"], nodes=[1, 2], processes=1, notice=notices.append)
    with caching_inside():
        document, _ = recommendation(JOB, renting, lambda what: lambda done, of: counted.append((done, of)))
    best = document["best"]
    assert notices and len(set(notices)) == len(notices)
    assert notices[-1].startswith(f"best so far: {best['nodes']} x {best['hardware']} ({best['provider']}, on-demand), ")
    names = machines([], ["provider=lambda", "gpus=1..2", "nodes=1"])
    (note,) = [text for text in document["notes"] if "choices of machine and nodes" in text]
    every, ran, unable, excluded_ = (int(word) for word in note.replace(",", "").split() if word.isdigit())
    assert every == 2 * len(names) == ran + unable + excluded_
    assert ran == len({(row["hardware"], row["nodes"]) for row in document["candidates"]})
    assert excluded_ == len({(row["hardware"], row["nodes"]) for row in document["excluded_by_bound"]})
