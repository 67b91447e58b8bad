"""Does a document say at what prices its costs are, and where jobs are? Oracles: the hardware files, time times price; by hand."""

from __future__ import annotations

import json
from collections.abc import Mapping

import pytest

from sim.cli import main
from sim.cluster.build import Placement
from sim.documents import document as described
from sim.report.document import placement_text, run_document
from sim.spec.library import load_hardware, load_workload
from sim.study.scenario import Scenario, answer


@pytest.mark.parametrize("market", ["on-demand", "spot"])
def test_costs_are_the_market_s(market: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "p3.16xlarge", "resnet50", "--nodes", "2", "--fast", "--json", "--market", market]) == 0
    document = json.loads(capsys.readouterr().out)
    prices = load_hardware("p3.16xlarge").spec.groups[0].price
    assert prices is not None
    rate = prices.spot if market == "spot" else prices.on_demand
    assert rate is not None
    date = "2022-23" if market == "spot" else "2026-07-20"
    assert document["price"] == {
        "market": market.replace("-", "_"),
        "usd_per_h": pytest.approx(2 * 3600 * rate),
        "date": date,
        "region": "us-east-1",
        "source": prices.source[market if market == "spot" else "*"] if isinstance(prices.source, Mapping) else prices.source,
    }
    assert document["cost_per_epoch_usd"] == pytest.approx(2 * rate * document["epoch_time_s"])
    assert document["first_epoch"]["cost_usd"] == pytest.approx(2 * rate * document["first_epoch"]["epoch_time_s"])
    assert any("without interruptions" in text for text in document["assumptions"]) == (market == "spot")


@pytest.mark.parametrize("layout", [(), ("--stack", "torchtitan-2.x", "--shard", "parameters")])
def test_the_global_batch_is_the_samples_of_a_step(layout: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    """Oracle: samples per second times the seconds of a step; 2 nodes of 8 GPUs with 3 micro-batches of 5."""
    assert (
        main(["run", "p3.16xlarge", "resnet50", "--nodes", "2", "--batch", "5", "--micro-batches", "3", "--fast", "--json", *layout]) == 0
    )
    document = json.loads(capsys.readouterr().out)
    assert document["global_batch"] == 2 * 8 * 3 * 5
    assert document["global_batch"] == pytest.approx(document["throughput_samples_per_s"] * document["step_time_s"])


@pytest.mark.parametrize("layout", [(), ("--shard", "parameters")])
def test_one_token_is_singular(layout: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "hgx-h100", "gpt2", "--sequence", "1", "--fast", *layout]) == 0
    text = capsys.readouterr().out
    assert "1 tokens" not in text and ("1 token per" in text if layout else "8 samples of 1 token per GPU" in text)


def test_a_machine_without_a_spot_price_says_how_to_give_one() -> None:
    answered = answer(Scenario("p2.xlarge", "resnet18", market="spot"))
    document = run_document(answered.run, answered.inputs, answered.warnings, market=answered.market)
    assert document["cost_per_epoch_usd"] is None and document["price"]["usd_per_h"] is None
    assert any("no spot price for p2.xlarge" in text for text in document["warnings"])
    given = answer(Scenario("p2.xlarge", "resnet18", ("price.spot=0.27 USD/h",), market="spot"))
    assert run_document(given.run, given.inputs, market="spot")["price"]["usd_per_h"] == pytest.approx(0.27)


def test_compare_sorts_by_the_market_s_cost(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", "resnet50", "p3.2xlarge", "p3.16xlarge", "p2.xlarge", "--market", "spot", "--sort", "cost", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    costs = [row["cost_per_epoch_usd"] for row in rows]
    assert costs[:2] == sorted(costs[:2]) and costs[2] is None and rows[2]["hardware"] == "p2.xlarge"
    assert all(row["cost_per_epoch_usd"] == pytest.approx(row["price"]["usd_per_h"] / 3600 * row["epoch_time_s"]) for row in rows[:2])


@pytest.mark.parametrize(("written", "said"), [("sport", "did you mean spot?"), ("x", "write on-demand or spot")])
def test_an_unknown_market_is_refused(written: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "p3.2xlarge", "resnet50", "--market", written]) == 2
    assert said in capsys.readouterr().err


def test_decoders_tell_tokens_and_model_flops_utilization() -> None:
    """Oracle: 6 FLOP a weight of products and token, and 6 for each layer, width and pair of tokens (half of them, causal)."""
    document = described(Scenario("hgx-h100", "llama-3.2-1b", nodes=2))
    shape = load_workload("llama-3.2-1b").spec.model.transformer
    assert shape is not None and shape.kv_heads is not None and shape.ffn is not None
    heads = shape.hidden // shape.heads * (2 * shape.heads + 2 * shape.kv_heads)
    weights = shape.layers * shape.hidden * (heads + 3 * shape.ffn) + shape.vocab * shape.hidden
    flop = 6 * weights + 6 * shape.layers * shape.hidden * 8192
    peak = load_hardware("hgx-h100").spec.groups[0].node.gpu.peak["bf16"]
    assert document["tokens_per_s"] == pytest.approx(8192 * document["throughput_samples_per_s"])
    assert document["model_flops_utilization"] == pytest.approx(flop * document["tokens_per_s"] / (16 * peak), rel=2e-3)
    images, text = described(Scenario("p3.2xlarge", "resnet50")), described(Scenario("p4d.24xlarge", "gpt2"))
    assert not {"tokens_per_s", "model_flops_utilization"} & set(images)
    assert text["tokens_per_s"] == pytest.approx(1024 * text["throughput_samples_per_s"])


@pytest.mark.parametrize(
    ("placed", "text"),
    [
        ([(0, (0,))], "node 0, GPU 0"),
        ([(0, (0, 1, 2)), (1, (0, 1, 2)), (5, (0, 1, 2))], "nodes 0..1+5, GPUs 0..2"),
        ([(0, (3, 0, 2)), (1, (4,)), (2, (0, 2, 3))], "nodes 0+2, GPUs 0+2..3; node 1, GPU 4"),
        ([(node, (0,)) for node in range(100) if node % 3], "nodes 1..2+4..5+... 97..98 (66 in all), GPU 0"),
    ],
)
def test_a_placement_in_words(placed: list[tuple[int, tuple[int, ...]]], text: str) -> None:
    assert placement_text([Placement(*part) for part in placed]) == text
