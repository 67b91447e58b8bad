"""Do scaling tables continue if one point cannot run, state their assumptions, and keep jobs apart?"""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest

from sim.analysis.energy import power_model
from sim.cli import main
from sim.report.table import scaling_text

Capture = pytest.CaptureFixture[str]

STRONG = ["run", "p3.16xlarge", "vgg16", "--global-batch", "512", "--gpus", "4..8"]
"""512 images over 4 GPUs are 128 each, of which 119 fit."""
PAIR = ["run", "p3.16xlarge", "resnet18-and-vgg16", "--fast"]


def test_a_point_that_does_not_fit_marks_its_row(capsys: Capture) -> None:
    assert main([*STRONG, "--fast"]) == 0
    _, small, large, *_ = capsys.readouterr().out.splitlines()
    assert small.split(maxsplit=2) == ["1", "4", "does not fit: needs 16.9 GiB of 16 GiB"]
    assert large.split()[:2] == ["1", "8"]
    assert "100.0%" in large


def test_documents_and_rows_of_a_point_that_does_not_fit(capsys: Capture) -> None:
    assert main([*STRONG, "--fast", "--json"]) == 0
    small, large = json.loads(capsys.readouterr().out)["runs"]
    assert (small["nodes"], small["gpus"]) == (1, 4)
    assert small["infeasible"].startswith("--global-batch 512: batch 128 per GPU needs 16.9 GiB")
    assert large["batch_per_gpu"] == 64
    assert main([*STRONG, "--fast", "--csv"]) == 0
    small, large = csv.DictReader(io.StringIO(capsys.readouterr().out))
    assert (small["gpus"], small["step_time_s"], small["infeasible"][:12]) == ("4", "", "'--global-ba")
    assert (large["gpus"], large["infeasible"]) == ("8", "")


def test_a_table_without_any_row_that_runs_fails(capsys: Capture, tmp_path: Path) -> None:
    assert main(["run", "p3.16xlarge", "vgg16", "--batch", "512", "--nodes", "1..2", "-o", str(tmp_path)]) == 1
    assert capsys.readouterr().out.count("does not fit") == 2
    assert sorted(path.name for path in tmp_path.iterdir()) == ["report.html", "report.txt", "run.csv", "run.json"]


def test_bad_input_stops_a_table_before_it_begins(capsys: Capture) -> None:
    assert main([*STRONG, "--set", "node.nic.bandwith=1 Gbps"]) == 2
    assert capsys.readouterr().out == ""


def test_estimates_are_tried_at_the_last_point(capsys: Capture) -> None:
    """Oracle: the single run of that point."""
    assert main([*STRONG, "--json"]) == 0
    _, last = json.loads(capsys.readouterr().out)["runs"]
    assert main(["run", "p3.16xlarge", "vgg16", "--json"]) == 0
    alone = json.loads(capsys.readouterr().out)["warnings"]
    assert last["warnings"] == alone
    assert any("is an estimate" in text for text in alone)
    assert main(STRONG) == 0
    assert alone[0] in capsys.readouterr().out


def test_a_placement_brings_its_nodes(capsys: Capture) -> None:
    assert main(["run", "p3.16xlarge", "vgg16", "--fast", "--placement", "1+2", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["nodes"], document["gpus"]) == (2, 3)
    assert document["cost_per_epoch_usd"] == pytest.approx(2 * 24.48 / 3600 * document["epoch_time_s"])


def test_idle_nodes_are_not_paid_for(capsys: Capture) -> None:
    """Closed form: one of the two p3.8xlarge, 12.24 USD/h."""
    assert main(["run", "2x-p3.8xlarge", "vgg16", "--fast", "--placement", "4", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["cost_per_epoch_usd"] == pytest.approx(12.24 / 3600 * document["epoch_time_s"])
    assert "1 node without a job is not paid for" in document["assumptions"]


def test_the_global_batch_counts_micro_batches(capsys: Capture) -> None:
    """Definition: 512 samples a step = 8 GPUs x 2 micro-batches x 32."""
    options = ["--global-batch", "512", "--set", "training.gradient_accumulation_steps=2", "--fast", "--json"]
    assert main(["run", "p3.16xlarge", "vgg16", *options]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["batch_per_gpu"] == 32
    assert document["throughput_samples_per_s"] * document["step_time_s"] == pytest.approx(512)


def test_less_than_one_step_an_epoch_is_said(capsys: Capture) -> None:
    assert main(["run", "p3.16xlarge", "vgg16", "--fast", "--set", "dataset.samples=511", "--json"]) == 0
    assert "511 samples is less than one step of 512 on 8 GPUs" in json.loads(capsys.readouterr().out)["warnings"][0]
    assert main(["run", "p3.16xlarge", "vgg16", "--fast", "--set", "dataset.samples=512", "--json"]) == 0
    assert "less than one step" not in capsys.readouterr().out


# --- several jobs ----------------------------------------------------------------------------------------------------


def document_of_one(capsys: Capture) -> Any:
    """Return the document of one job on all GPUs of the machine of `PAIR`."""
    assert main(["run", "p3.16xlarge", "resnet18", "--fast", "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def host_power(document: dict[str, Any]) -> float:
    """The power (W) of the host without what power supplies lose of all that its node draws."""
    parts = document["energy"]["parts_w"]
    return float(parts["host"] - (1.0 - power_model().supply_efficiency) * (parts["gpus"] + parts["host"]))


def test_jobs_share_the_price_of_their_machine(capsys: Capture) -> None:
    """Closed form: 4 and 4 of the 8 GPUs in use, so half of 24.48 USD/h and of the host each."""
    assert main([*PAIR, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert list(document) == ["schema", "jobs"]
    assert [(job["job"], job["workload"]) for job in document["jobs"]] == [(0, "resnet18"), (1, "vgg16")]
    host = host_power(document_of_one(capsys))
    for job in document["jobs"]:
        assert host_power(job) == pytest.approx(host / 2)
        assert job["cost_per_epoch_usd"] == pytest.approx(24.48 / 2 / 3600 * job["epoch_time_s"])
        assert (
            "jobs share the price and the power of a node in proportion to their GPUs on it: this job has 4 of the 8 GPUs in use"
            in job["assumptions"]
        )


def test_tables_keep_jobs_apart(capsys: Capture) -> None:
    assert main([*PAIR, "--json"]) == 0
    jobs = json.loads(capsys.readouterr().out)["jobs"]
    head, *rows = scaling_text([*jobs, *jobs]).splitlines()
    assert head.split()[0] == "job"
    assert [row.split()[0] for row in rows[:4]] == ["0", "1", "0", "1"]
    assert all("100.0%" in row for row in rows[:4])  # each job against its own first row
    assert main([*PAIR, "--csv"]) == 0
    assert [(row["job"], row["workload"]) for row in csv.DictReader(io.StringIO(capsys.readouterr().out))] == [
        ("0", "resnet18"),
        ("1", "vgg16"),
    ]


def test_every_job_is_drawn(capsys: Capture, tmp_path: Path) -> None:
    assert main([*PAIR, "-o", str(tmp_path)]) == 0
    pictures = sorted(path.name for path in tmp_path.glob("*.png"))
    assert pictures == ["stalls-0.png", "stalls-1.png"]
    assert (tmp_path / pictures[0]).read_bytes() != (tmp_path / pictures[1]).read_bytes()


# --- what is said beside the result ----------------------------------------------------------------------------------


@pytest.mark.parametrize("place", [0, 1, 2, 6])
def test_quiet_stands_anywhere(capsys: Capture, tmp_path: Path, place: int) -> None:
    words = ["run", "p3.2xlarge", "alexnet", "--fast", "--trace", str(tmp_path / "run.json")]
    assert main([*words[:place], "--quiet", *words[place:]]) == 0
    assert capsys.readouterr().err == ""
    assert main(words) == 0
    assert "wrote" in capsys.readouterr().err


@pytest.mark.parametrize("words", [["--debug", "run", "nothing", "vgg16"], ["run", "nothing", "vgg16", "--debug"]])
def test_debug_stands_anywhere(words: list[str]) -> None:
    with pytest.raises(ValueError, match="nothing is not in the catalog"):
        main(words)


def test_progress_is_for_terminals(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    table = ["run", "p3.16xlarge", "vgg16", "--fast", "--nodes", "1..2"]
    assert main(table) == 0
    assert capsys.readouterr().err == ""
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    assert main(table) == 0
    said = capsys.readouterr().err
    assert "1 of 2 runs" in said
    assert "2 of 2 runs" in said
    assert said.endswith("\r\x1b[K")
    assert main([*table, "-q"]) == 0
    assert capsys.readouterr().err == ""


def test_a_table_of_layouts_shows_the_whole_job(capsys: Capture) -> None:
    """Oracle: tokens over tokens per second, and the price of each row's nodes; without a price, a dash."""
    layout = ["llama-3.2-1b", "--shard", "parameters", "--nodes", "1..2", "--tokens", "10B"]
    assert main(["run", "p5.48xlarge", *layout, "--json"]) == 0
    runs = json.loads(capsys.readouterr().out)["runs"]
    assert main(["run", "p5.48xlarge", *layout]) == 0
    head, *rows = capsys.readouterr().out.splitlines()
    assert head.split()[-5:] == ["whole", "job", "USD", "largest", "wait"]
    for row, run in zip(rows, runs, strict=True):
        hours = 10e9 / run["tokens_per_s"] / 3600
        cells = row.split()
        assert cells[-4] == "h" and float(cells[-5]) == pytest.approx(hours, rel=0.02)
        assert float(cells[-3].replace(",", "")) == pytest.approx(hours * run["price"]["usd_per_h"], rel=0.02)
    assert main(["run", "hgx-h100", *layout]) == 0
    assert capsys.readouterr().out.splitlines()[1].split()[-3] == "-"
    assert main(["run", "hgx-h100", *layout[:-2]]) == 0
    assert "whole job" not in capsys.readouterr().out
