"""What does a plan say of a model without tokens? Samples a second and money for each sample. Oracle: the step, the batch and the price."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from sim.documents import document as described
from sim.report.page.layout_plan import plan_page
from sim.report.plan import plan_document
from sim.report.plan_text import plan_text
from sim.study.plan.question import PlanQuestion, plan
from sim.study.plan.search import Limits
from sim.study.scenario import Scenario
from tests.report.page.reading import Page


@pytest.mark.parametrize("objective", ["time", "energy"])
def test_samples_are_counted_where_there_are_no_tokens(objective: str) -> None:
    limits = Limits(simulations=3, objective=objective)  # type: ignore[arg-type]
    question = PlanQuestion(
        Scenario("p3.16xlarge", "vgg16", ("price={on_demand: 36 USD/h, date: '2026-01-01', source: quote}",)), limits=limits
    )
    document = plan_document(plan(question))
    row = document["layouts"][0]
    assert row["tokens_per_s_per_gpu"] is row["cost_per_token_usd"] is row["energy_per_token_j"] is None
    assert row["samples_per_s_per_gpu"] * row["step_time_s"] * row["gpus"] == pytest.approx(document["global_batch"])
    assert row["cost_per_sample_usd"] * document["global_batch"] == pytest.approx(0.01 * row["step_time_s"])
    assert row["energy_per_sample_j"] * document["global_batch"] == pytest.approx(row["energy_per_step_j"])
    head = next(line for line in plan_text(document).splitlines() if line.endswith("layout"))
    assert head.split() == ["step", "samples/s/GPU", "MFU", "free", "J/sample" if objective == "energy" else "USD/Msamples", "layout"]
    page = plan_page(document)
    assert "Samples per second and GPU" in page
    assert "Per million samples" in page


def test_a_traced_model_has_the_tokens_of_its_data_set() -> None:
    """Oracle: division by the 128 tokens of a sample, in plain data parallelism, in a layout and in a plan."""
    question = Scenario("p4d.24xlarge", "bert-large-seq128", ("input.loader=synthetic",), stack="torchtitan-2.x", global_batch=64)
    plain = described(replace(question, stack=None))
    laid = described(replace(question, layout=(("--shard", "parallel.shard", "optimizer"),), batch=8, global_batch=None))
    for document in (plain, laid):
        assert document["tokens_per_s"] == pytest.approx(128 * document["throughput_samples_per_s"])
        assert document["energy"]["energy_per_token_j"] == pytest.approx(document["energy"]["energy_per_sample_j"] / 128)
    planned = plan_document(plan(PlanQuestion(question, tokens=1e9, limits=Limits(simulations=1))))
    row = planned["layouts"][0]
    assert planned["sequence"] == 128
    assert row["tokens_per_s_per_gpu"] == pytest.approx(128 * row["samples_per_s_per_gpu"])
    assert row["job_time_s"] == pytest.approx(1e9 / (64 * 128) * row["step_time_s"])


def test_a_column_that_no_layout_has_a_figure_for_is_left_out() -> None:
    document = plan_document(plan(PlanQuestion(Scenario("hgx-h100", "llama-3.2-1b", global_batch=8), (1,), limits=Limits(simulations=1))))
    assert document["layouts"][0]["cost_per_token_usd"] is None
    head = next(line for line in plan_text(document).splitlines() if line.endswith("layout"))
    assert head.split() == ["step", "tok/s/GPU", "MFU", "free", "layout"]
    assert "Tokens per second and GPU" in plan_page(document)


def test_a_plan_says_how_far_off_it_may_be_and_what_its_names_mean() -> None:
    """Oracles: every bar and every point that nothing beats has its error; an axis writes no two values alike; full memory costs time."""
    document = plan_document(plan(PlanQuestion(Scenario("hgx-h100", "llama-3.2-1b", global_batch=8), limits=Limits(simulations=12))))
    rows = document["layouts"]
    page = Page(plan_page(document))
    off = document["expected_error"]["p90"]
    bars = page.all("i", class_="off")
    assert off > 0 and len(bars) == min(10, len(rows))
    assert len(page.all("path", class_="error")) == sum(place == 0 or row["pareto"] for place, row in enumerate(rows))
    longest = (1 + off) * max(row["step_time_s"] for row in rows[:10])
    left, width = map(float, re.findall(r"left:([\d.]+)%;width:([\d.]+)%", bars[0].attributes["style"])[0])
    assert left == pytest.approx(100 * (1 - off) * rows[0]["step_time_s"] / longest, abs=0.01)
    assert width == pytest.approx(200 * off * rows[0]["step_time_s"] / longest, abs=0.02)
    ticks = [tick.text for tick in page.all("text", class_="across")]
    assert len(ticks) >= 3 and len(set(ticks)) == len(ticks)
    drawn = sorted(float(dot.attributes["data-x"]) for dot in page.all("circle"))
    assert drawn == sorted(row["penalized_step_time_s"] for row in rows)
    listed = " ".join(cell.text for cell in page.all("th"))
    on_front = [place for place, row in enumerate(rows) if row["pareto"]]
    assert all(f"{place + 1}. {rows[place]['name']}" in listed for place in [*range(min(10, len(rows))), *on_front])
    text = plan_text(document)
    best = rows[0]
    assert f"'{best['micro_batches']} x {best['batch_per_gpu']}' in a layout's name: {best['micro_batches']} micro-batch" in text


def test_what_waits_for_input_is_named() -> None:
    """Oracle: twice the loader's work leaves compute as it is, so that the rest of the step is the wait."""
    slow = Scenario("hgx-h100", "resnet50", ("dataset.prep=40 ms",), global_batch=640)
    document = plan_document(plan(PlanQuestion(slow, limits=Limits(simulations=2))))
    row = document["layouts"][0]
    assert row["seconds"]["input"] > 0.2 * row["step_time_s"] and "waiting for input" in row["limit"]
    assert sum(row["seconds"].values()) == pytest.approx(row["step_time_s"], rel=1e-3)
