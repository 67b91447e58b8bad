"""What does a plan say of a model without tokens? Samples a second and money for each sample. Oracle: the step, the batch and the price."""

from __future__ import annotations

import pytest

from sim.report.page.layout_plan import plan_page
from sim.report.plan import plan_document, plan_text
from sim.study.plan.question import Question, plan
from sim.study.plan.search import Limits
from sim.study.scenario import Scenario


@pytest.mark.parametrize("objective", ["time", "energy"])
def test_samples_are_counted_where_there_are_no_tokens(objective: str) -> None:
    limits = Limits(simulations=3, objective=objective)  # type: ignore[arg-type]
    asked = Question(Scenario("p3.16xlarge", "vgg16", ("price={on_demand: 36 USD/h, date: '2026-01-01', source: quote}",)), limits=limits)
    document = plan_document(plan(asked))
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


def test_a_column_that_no_layout_has_a_figure_for_is_left_out() -> None:
    document = plan_document(plan(Question(Scenario("hgx-h100", "llama-3.2-1b", global_batch=8), (1,), limits=Limits(simulations=1))))
    assert document["layouts"][0]["cost_per_token_usd"] is None
    head = next(line for line in plan_text(document).splitlines() if line.endswith("layout"))
    assert head.split() == ["step", "tok/s/GPU", "MFU", "free", "layout"]
    assert "Tokens per second and GPU" in plan_page(document)
