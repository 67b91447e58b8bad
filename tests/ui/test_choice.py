"""Does the page have the controls that its command needs? Compared with the command line itself."""

from __future__ import annotations

import contextlib
import io
import json
import shlex
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

import pytest
import typer

from sim.cli import app, main
from sim.spec.yaml import SpecError
from sim.ui.choice import CONTROLS, OPTIONS, Choice, choice_of, command_of, comparison_command, query_of, scenario_of
from sim.ui.machines import machines_of
from sim.ui.view import outcome_of
from tests.ui.inline import views_of

CHOICES = (
    {"workload": "vgg16", "hardware": "p3.16xlarge", "nodes": "2", "batch": "32", "nic": "50", "price": "10", "epochs": "3"},
    {"workload": "resnet50", "hardware": "p4d.24xlarge", "market": "spot", "price": "9.5", "precision": "amp_fp16", "hours": "2",
     "set": "input.num_workers=8\ninput.pin_memory=false"},
    {"workload": "llama-3.1-8b", "hardware": "hgx-h100", "nodes": "2", "tp": "2", "pp": "2", "shard": "optimizer", "micro_batches": "8",
     "sequence": "4096", "checkpointing": "blocks", "tokens": "1B", "set": "price.on_demand=20 USD/h"},
)  # fmt: skip


def choice(**values: str) -> Choice:
    return choice_of(values.items())


def printed(words: list[str]) -> Any:
    """What the command line prints."""
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        assert main([*words, "--json"]) == 0
    return json.loads(said.getvalue())


def test_the_command_shown_prints_the_figures_shown() -> None:
    wrong = []
    for values in CHOICES:
        chosen = choice(**values)
        words = shlex.split(shlex.join(command_of(chosen)))
        shown = json.loads(json.dumps(outcome_of(scenario_of(chosen)).document))
        if printed(words) != shown:
            wrong.append(words)
    assert not wrong


def test_the_comparison_shown_prints_the_rows_shown() -> None:
    chosen = choice(workload="llama-3.1-8b", hardware="hgx-h100", tp="2", shard="parameters", micro_batches="2", sequence="2048", nic="50")
    names = ["p5.48xlarge", "gpu_8x_h100_sxm5", "p3.2xlarge"]
    words = comparison_command(chosen, names)
    assert "node.nic.bandwidth=50 Gbps" not in words, "a change of the machine that was chosen, not of these"
    rows = {row["hardware"]: row["step_time_s"] for row in printed([*words, "--jobs", "1"])["rows"]}
    shown = views_of(chosen, names)[-1]
    assert (shown["done"], shown["of"]) == (3, 3)
    assert set(rows) == {"p5.48xlarge", "gpu_8x_h100_sxm5"}
    assert all(repr(step) in shown["html"] for step in rows.values()), "each step, to the last digit"
    assert "p3.2xlarge" in shown["html"], "the reason why it cannot run"


def test_machines_are_compared_by_the_job_of_the_page() -> None:
    """Oracle: `compare` with the command shown; the job's length is that of the controls, in tokens too."""
    chosen = choice(workload="llama-3.2-1b", hardware="p4d.24xlarge", shard="optimizer", tokens="100M")
    words, names = comparison_command(chosen, ["p4d.24xlarge"]), ["p4d.24xlarge"]
    (row,) = printed([*words, "--jobs", "1"])["rows"]
    assert row["whole_job"]["tokens"] == 1e8
    (shown,) = views_of(chosen, names)
    assert all(repr(row["whole_job"][figure]) in shown["html"] for figure in ("time_s", "cost_usd"))
    of_run = printed(command_of(chosen))["whole_job"]
    assert row["whole_job"]["cost_usd"] == pytest.approx(of_run["cost_usd"])


def test_a_shared_address_means_the_same() -> None:
    for values in CHOICES:
        chosen = choice(**values)
        again = choice_of(parse_qsl(query_of(chosen)))
        assert scenario_of(again) == scenario_of(chosen)
        assert query_of(again) == query_of(chosen)


def test_controls_are_options_of_run() -> None:
    group: Any = typer.main.get_command(app)
    names = {name for option in group.commands["run"].params for name in option.opts}
    assert set(OPTIONS.values()) <= names


def test_what_is_wrong_is_one_sentence() -> None:
    wrong = {
        (("batchh", "4"),): "'batchh': no such control; did you mean batch?",
        (("nodes", "0"),): "--nodes 0: write 1 or more",
        (("nodes", "1..4"),): "--nodes 1..4: write one number here; only the command line accepts a range",
        (("batch", "many"),): "--batch many: write the samples per GPU, 1 or more, or max for as many as fit into its memory",
        (("epochs", "few"),): "--epochs few: write a number, for example 90",
        (("market", "sport"),): "--market sport: did you mean spot?",
        (("epochs", "2"), ("tokens", "1B")): "--tokens, --epochs and --hours: write one of the three",
        (("set", "x" * 3000),): "set 'xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx...: write at most 2,000 characters",
    }
    for parameters, sentence in wrong.items():
        with pytest.raises(SpecError) as caught:
            scenario_of(choice_of(parameters))
        assert str(caught.value) == sentence


def test_machines_are_rentable_and_as_large(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [
        {"name": "own", "gpus": 8, "nodes": 1, "price": None, "spot": None},
        {"name": "eight", "gpus": 8, "nodes": 1, "price": 3.0, "spot": None},
        {"name": "spot", "gpus": 8, "nodes": 1, "price": 3.0, "spot": 1.0},
        {"name": "one", "gpus": 1, "nodes": 1, "price": 1.0, "spot": 0.5},
        {"name": "pair", "gpus": 8, "nodes": 2, "price": 1.0, "spot": 0.5},
    ]
    chosen = choice(hardware="own")
    assert machines_of(chosen, rows) == ["own", "eight", "spot"]
    assert machines_of(choice(hardware="own", market="spot"), rows) == ["own", "spot"]
    assert machines_of(choice(hardware="own", among="priced"), rows) == ["own", "eight", "spot", "one"]
    own = tmp_path / "one-gpu.yaml"
    own.write_text("extends: p3.2xlarge\nname: one-gpu\n", encoding="utf-8")
    assert machines_of(choice(hardware=str(own)), rows) == [str(own), "one"]
    with pytest.raises(SpecError, match="other is not in the catalog"):
        machines_of(choice(hardware="other"), rows)
    assert machines_of(choice(among="none"), rows) == []
    with pytest.raises(SpecError, match="among all: write one of size, priced, none"):
        machines_of(choice(among="all"), rows)


def test_every_control_can_be_shared() -> None:
    everything = {name: "1" for name in CONTROLS}
    assert {name for name, _ in parse_qsl(query_of(choice(**everything)))} == set(CONTROLS)
