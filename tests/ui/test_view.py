"""Does the page show what the run's document says, and does what it suggests help?"""

from __future__ import annotations

import re
from urllib.parse import parse_qsl

import pytest

from sim.cli import main
from sim.study.scenario import loaded_hardware
from sim.ui.choice import Choice, choice_of, command_of, scenario_of
from sim.ui.view import described_values, fitting, outcome_of, remedies, summary_line, view_of


def test_figures_on_the_page_are_those_of_the_document() -> None:
    wrong = []
    for values in (
        {"workload": "vgg16", "hardware": "p3.16xlarge"},
        {"workload": "llama-3.1-8b", "hardware": "hgx-h100", "shard": "parameters"},
    ):
        choice = choice_of(values.items())
        view, document = view_of(choice), outcome_of(scenario_of(choice)).document
        assert view["problems"] == []
        assert view["verdict"] == document["verdict"]
        html = view["result"] + view["parts"]
        for key in ("step_time_s", "epoch_time_s"):
            if f'value="{document[key]!r}" data-at="run/{key}"' not in html:
                wrong.append(key)
        for cause, seconds in document["stalls_s"].items():
            if seconds > 0.001 * document["step_time_s"] and f'data-at="run/stalls_s/{cause}" data-value="{seconds!r}"' not in html:
                wrong.append(cause)
        assert re.search(r'id="memory"', html)
        assert re.search(r'id="(steps|stages)"', html), "a timeline"
    assert not wrong


def test_the_brief_line_names_what_is_paid() -> None:
    run = {"step_time_s": 0.25, "throughput_samples_per_s": 1000.0, "cost_per_epoch_usd": 4.5, "whole_job": None}
    assert summary_line(run) == "step 250 ms, 1,000 samples/s, $4.50 per epoch"
    assert (
        summary_line(run | {"tokens_per_s": 2e6, "whole_job": {"cost_usd": 90.0}})
        == "step 250 ms, 2,000,000 tokens/s, $90.00 per whole job"
    )
    assert summary_line(run | {"cost_per_epoch_usd": None}) == "step 250 ms, 1,000 samples/s"


def test_empty_controls_say_what_they_mean() -> None:
    values = described_values(
        choice_of([("hardware", "p4d.24xlarge"), ("workload", "resnet50"), ("nodes", "7"), ("nic", "9"), ("batch", "3")])
    )
    assert (values["nodes"], values["nic"], values["batch"], values["tp"]) == ("1", "100", "80", "1"), "as the files say, not as set"
    spot = described_values(choice_of([("hardware", "p3.16xlarge"), ("market", "spot")]))
    assert float(spot["price"]) < float(described_values(choice_of([("hardware", "p3.16xlarge")]))["price"])


def test_a_problem_is_the_sentence_of_the_simulator_and_its_remedy_runs() -> None:
    view = view_of(choice_of([("workload", "llama-3.1-8b"), ("hardware", "hgx-h100")]))
    assert len(view["problems"]) == 1
    assert "needs 107 GiB" in view["problems"][0]
    assert [remedy["text"] for remedy in view["remedies"]] == ["--shard parameters"]
    again = view_of(choice_of(parse_qsl(view["remedies"][0]["query"])))
    assert again["problems"] == []


def test_remedies_are_options_in_the_sentence() -> None:
    choice = choice_of([("workload", "vgg16"), ("batch", "64")])
    sentence = "vgg16 does not fit: needs 90 GiB; --batch 1 --micro-batches 64 would fit"
    assert [remedy["text"] for remedy in remedies(choice, sentence)] == ["--batch 1 --micro-batches 64"]
    assert dict(parse_qsl(remedies(choice, sentence)[0]["query"]))["micro_batches"] == "64"
    field = remedies(choice, "x does not fit; --shard parameters --set training.activation_checkpointing=blocks would fit")[0]
    assert dict(parse_qsl(field["query"])) == {
        "workload": "vgg16", "hardware": "p4d.24xlarge", "batch": "64", "shard": "parameters",
        "set": "training.activation_checkpointing=blocks",
    }  # fmt: skip
    assert remedies(choice, "--batch x: write the samples per GPU") == [], "what was typed is not a remedy"
    assert remedies(choice, "needs --batch 64") == [], "nor what is set already"


def test_nodes_of_several_groups_are_told_apart() -> None:
    """Oracle: the remedy itself runs, on as many nodes as were asked for; the slider that cannot say it is off."""
    view = view_of(Choice({"hardware": "256x-tpu-v2-v3", "workload": "resnet50", "nodes": "4"}))
    assert [remedy["text"] for remedy in view["remedies"]] == ["--set groups.0.count=2 --set groups.1.count=2"]
    again = view_of(choice_of(parse_qsl(view["remedies"][0]["query"])))
    assert again["problems"] == [] and again["described"]["nodes"] == "4"
    assert list(again["fixed"]) == ["nodes", "sequence"]


def test_controls_that_change_nothing_are_off() -> None:
    assert list(view_of(Choice({"hardware": "p4d.24xlarge", "workload": "resnet50"}))["fixed"]) == ["sequence"]
    assert view_of(Choice({"hardware": "hgx-h100", "workload": "llama-3.2-1b"}))["fixed"] == {}
    refused = view_of(Choice({"hardware": "p4d.24xlarge", "workload": "resnet50", "sequence": "512"}))
    assert refused["problems"][0].endswith("is a traced layer table: leave sequence out, or trace the model again")


def test_a_word_that_is_no_value_of_its_option_is_no_remedy() -> None:
    plain = Choice({"hardware": "p4d.24xlarge", "workload": "resnet50"})
    for words in ("--precision is", "--stack wants", "--shard goes", "--market has"):
        assert remedies(plain, f"it cannot be: {words} another") == [], words


def test_sliders_of_nodes_reach_every_group_of_workers() -> None:
    """Oracle: the fields of the scenario's own machine, and the command, which says the same."""
    for hardware, workers in (("256x-tpu-v2-v3", 2), ("cm-dare-k80", 1)):
        choice = Choice({"hardware": hardware, "workload": "resnet50", "nic": "50", "price": "3"})
        assert view_of(choice)["problems"] == []
        groups = [group for group in loaded_hardware(scenario_of(choice)).spec.groups if group.role == "worker"]
        assert [(group.node.nic.bandwidth, group.price and group.price.on_demand) for group in groups] == [(50e9 / 8, 3 / 3600)] * workers
        assert main([*command_of(choice), "--json"]) == 0


@pytest.mark.parametrize(
    ("hardware", "workload"), [("hgx-h100", "llama-3.1-8b"), ("p4d.24xlarge", "resnet50"), ("hgx-h100", "llama-3.2-1b")]
)
def test_what_a_page_opens_on_has_figures(hardware: str, workload: str) -> None:
    """The example of `ui --help` does not fit as it is; what fits stays as it is."""
    plain = Choice({"hardware": hardware, "workload": workload})
    opened = fitting(plain)
    assert view_of(opened)["problems"] == []
    assert (opened == plain) == (view_of(plain)["problems"] == [])


def test_what_no_change_makes_fit_stays_as_it_is() -> None:
    for choice in (Choice({"hardware": "p3.2xlarge", "workload": "llama-3.1-405b"}), Choice({"hardware": "nosuch"})):
        assert fitting(choice) == choice
