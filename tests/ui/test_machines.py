"""Does the Pareto front appear first, and is it complete when the page says so? Against the table of all machines."""

from __future__ import annotations

import random
import re
from html import unescape
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim.documents import comparison_rows
from sim.report.comparison import comparison_document
from sim.report.page.comparison import comparison_parts
from sim.spec.yaml import SpecError
from sim.study.compare import ComparedMachine, front
from sim.study.least_epoch import LeastEpoch
from sim.ui import machines
from sim.ui.choice import choice_of, scenario_of
from sim.ui.machines import KeptResults, MachineResults, MachineSearch, MachineTask, in_order
from tests.ui.inline import InlineWorker, views_of

NAMES = [
    "p4d.24xlarge", "p3.16xlarge", "p3dn.24xlarge", "g4dn.metal", "g5.48xlarge", "gpu_8x_a100", "gpu_8x_v100", "a2-highgpu-8g",
    "n3-rtx-a6000x8", "n3-a100x8-nvlink", "hgx-h100",
]  # fmt: skip
"""Machines of several providers; the last one has no price."""


def starred(view: dict[str, Any]) -> list[str]:
    """Return the machines of the front in the table of *view*."""
    return re.findall(r">([\w.-]+)<span class=\"flag\" title=\"Pareto-optimal\"", view["html"])


def test_the_front_is_complete_before_the_table(monkeypatch: Any) -> None:
    """Oracle: the front of the last view, which has all machines."""
    monkeypatch.setattr(machines, "_BETWEEN", 1e9)
    for values in ({"workload": "resnet50"}, {"workload": "resnet50", "epochs": "90"}, {"workload": "llama-3.2-1b", "shard": "parameters"}):
        chosen, kept, again = choice_of(values.items()), KeptResults(), InlineWorker()
        views = views_of(chosen, NAMES, kept=kept)
        first = next(view for view in views if view["complete"])
        assert first["done"] < first["of"] == views[-1]["done"] == len(NAMES)
        assert starred(first) == starred(views[-1]) != []
        (returned,) = views_of(chosen, NAMES, [again], kept)
        assert returned == views[-1]
        assert again.tasks == [], "a slider that returns"


def test_the_chosen_machine_is_shown_at_once() -> None:
    views = views_of(choice_of([("workload", "alexnet")]), NAMES[:3])
    assert views[0]["done"] == 1
    assert NAMES[0] in views[0]["html"]


def test_machines_that_need_a_layout_have_the_rows_of_the_comparison() -> None:
    """Oracle: the rows of `compare`. A machine that no layout fits keeps its reason, and none is left out before it is planned."""
    names = ["p4d.24xlarge", "gpu_8x_v100", "p3.2xlarge"]
    chosen = choice_of([("workload", "llama-3.2-3b"), ("hardware", names[0])])
    (*_, last) = views_of(chosen, names)
    rows = comparison_rows(scenario_of(chosen), names, processes=1)
    document = comparison_document("llama-3.2-3b", rows)
    laid_out = [row for row in document["rows"] if row["layout_gap"] is not None]
    assert laid_out and document["left_out"]
    verdict, _ = comparison_parts(document)
    assert last["verdict"] == verdict
    assert starred(last) == [row["hardware"] for row in document["rows"] if row["pareto"]]
    assert all(row["layout"] in unescape(last["html"]) for row in laid_out)
    assert last["html"].count("</tr>") == 1 + len(document["rows"])


def test_a_job_of_some_hours_has_no_front_before_the_end() -> None:
    views = views_of(choice_of([("workload", "alexnet"), ("hours", "5")]), NAMES[:3])
    assert [view["complete"] for view in views if view["done"] < view["of"]] == [False] * (len(views) - 1)


def test_machines_that_may_be_on_the_front_come_first() -> None:
    bounds = {
        "slow": LeastEpoch(8.0, 8.0), "fast": LeastEpoch(1.0, 5.0), "cheap": LeastEpoch(5.0, 1.0),
        "middle": LeastEpoch(2.0, 2.0), "free": LeastEpoch(0.5, None), "small": None,
    }  # fmt: skip
    assert in_order(bounds) == ["fast", "middle", "cheap", "slow", "free", "small"]
    assert front([(1.0, 5.0), (8.0, 8.0)]) == [True, False]


def row(name: str, time: float, cost: float | None) -> ComparedMachine:
    return ComparedMachine(name, 1, {"whole_job": None, "epoch_time_s": time, "cost_per_epoch_usd": cost})


times, shares = st.integers(1, 6).map(float), st.sampled_from([0.0, 0.3, 0.9, 1.0])
truths = st.lists(st.tuples(times, st.none() | times, shares, st.booleans()), min_size=1, max_size=14)
"""Time, cost, how far below them the bounds are, and whether the machine can run the job."""


@given(truths, st.integers(1, 4), st.integers(0, 2**16), st.sets(st.integers(0, 13)))
@settings(max_examples=300)
def test_a_front_that_is_complete_is_that_of_all_machines(
    truths: list[tuple[float, float | None, float, bool]], workers: int, seed: int, before: set[int]
) -> None:
    """Random machines with many ties, answered by several workers in any order, some of them before. Oracle: `front` of all rows."""
    names = [f"m{number}" for number in range(len(truths))]
    results: dict[str, MachineResults] = {"row": {}, "bound": {}}
    for name, (time, cost, share, runs) in zip(names, truths, strict=True):
        results["row"][name] = row(name, time, cost) if runs else ComparedMachine(name, 1, None, "too small")
        results["bound"][name] = LeastEpoch(share * time, None if cost is None else share * cost) if runs else None
    search = MachineSearch(names, {name: name[-1] for name in names})
    search.rows.update({name: machine for name in names[1:] if int(name[1:]) in before and (machine := results["row"][name])})  # type: ignore[misc]
    order, tasks, running = random.Random(seed), list[MachineTask](), list[MachineTask]()

    def on_front() -> list[str]:
        answered = [machine for machine in search.known if machine.document is not None]
        marks = front([(machine.document["epoch_time_s"], machine.document["cost_per_epoch_usd"]) for machine in answered])  # type: ignore[index]
        return [machine.hardware for machine, mark in zip(answered, marks, strict=True) if mark]

    complete = []
    while True:
        while len(running) < workers and (task := search.next_task()) is not None:
            running.append(task)
            tasks.append(task)
        if search.front_is_complete:
            complete.append(on_front())
        if not running:
            break
        done = running.pop(order.randrange(len(running)))
        search.note(done, {name: results[done.kind][name] for name in done.names})
    assert [machine.hardware for machine in search.known] == names
    assert complete and all(names_on_front == complete[-1] for names_on_front in complete)
    rows = [name for task in tasks if task.kind == "row" for name in task.names]
    assert sorted(rows) == sorted({*names} - {name for name in names[1:] if int(name[1:]) in before}), "each once"
    assert rows[:1] == names[:1], "the chosen machine first"


def test_what_is_wrong_with_the_choice_is_raised_and_what_is_wrong_with_a_machine_is_its_row() -> None:
    with pytest.raises(SpecError, match="alexnett is not in the catalog"):
        views_of(choice_of([("workload", "alexnett")]), NAMES[:2])

    class Dies(InlineWorker):
        async def answers(self, task: str, *arguments: Any) -> Any:
            if arguments[1] == "row" and arguments[2] == (NAMES[1],):
                yield "refused", ["the process ended"]
                return
            async for message in super().answers(task, *arguments):
                yield message

    kept = KeptResults()
    chosen = choice_of([("workload", "alexnet")])
    (*_, last) = views_of(chosen, NAMES[:3], [Dies()], kept)
    assert "the process ended" in last["html"] and last["done"] == 3
    (*_, last) = views_of(chosen, NAMES[:3], [InlineWorker()], kept)
    assert "the process ended" not in last["html"], "it is not kept"
