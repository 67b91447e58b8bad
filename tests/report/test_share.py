"""Does a division of workers say who gains what? Oracles: two policies and two jobs by hand."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from sim.report.share import share_document, share_plot, share_rows, share_text, workers_of
from sim.study.share import PolicyOutcome
from tests.harness import machine, toy_workload


def divided() -> dict[str, Any]:
    jobs = [SimpleNamespace(workload=toy_workload().model_copy(update={"name": name}), ranks=2) for name in ("fast", "slow")]
    outcomes = (PolicyOutcome("even", (4, 4), (100.0, 50.0), (60.0, 200.0)), PolicyOutcome("greedy", (7, 1), (150.0, 50.0), (40.0, 150.0)))
    answer: Any = SimpleNamespace(
        hardware="toy", cores=(16, 16), jobs=jobs, arrivals=(0.0, 20.0), epochs=(1.0, 0.5), outcomes=outcomes, machine=machine(),
        inputs={"hardware": "f00"},
    )  # fmt: skip
    return share_document(answer)


def test_gains_are_against_the_first_policy() -> None:
    even, greedy = divided()["policies"]
    assert (even["throughput_gain"], even["makespan_gain"]) == (0.0, 0.0)
    assert greedy["throughput_gain"] == pytest.approx(0.25) and greedy["makespan_gain"] == pytest.approx(0.25)
    assert [job["throughput_gain"] for job in greedy["jobs"]] == pytest.approx([0.5, 0.0])


def test_rows_and_text_have_a_line_a_job() -> None:
    document = divided()
    assert [(row["policy"], row["workload"], row["workers_per_gpu"]) for row in share_rows(document)] == [
        ("even", "fast", 4), ("even", "slow", 4), ("greedy", "fast", 7), ("greedy", "slow", 1),
    ]  # fmt: skip
    text = share_text(document)
    assert text.startswith("16 loader workers of each node of toy among 2 jobs")
    assert "throughput +25.0% (mean of jobs), makespan -25.0% compared with an even division" in text


def test_nodes_with_other_numbers_of_workers() -> None:
    assert workers_of({"workers": 8, "most_workers": 32}) == "8 to 32" and workers_of(divided()) == "16"


def test_the_picture_has_every_policy() -> None:
    svg = share_plot(divided()).svg.decode()
    assert all(words in svg for words in ("even, throughput +0.0%", "greedy, throughput +25.0%", "7 per GPU", "minutes"))
