"""Do the commands that decide run at all, and refuse bad input with one sentence, exit 2 and nothing written?"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sim.cli import main
from sim.documents import row
from sim.study.scenario import Scenario
from sim.study.space import axis, grid
from sim.study.sweep import sweep


def test_profile(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["profile", "p3.16xlarge", "resnet18", "--stack", "apex-per-tensor", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["runs"]["twin_synthetic"]["hardware"] == "p3.8xlarge"
    assert main(["profile", "p3.16xlarge", "resnet18"]) == 0
    text = capsys.readouterr().out
    assert f"{document['steps_per_epoch']:,} steps per epoch" in text
    assert "RUN3  real data, warm page cache" in text


def test_compare_writes_all_its_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", "resnet18", "p3.2xlarge", "p3.8xlarge", "-o", str(tmp_path), "--csv"]) == 0
    rows = capsys.readouterr().out.splitlines()
    assert len(rows) == 3
    assert {path.name for path in tmp_path.iterdir()} == {f"compare.{kind}" for kind in ("json", "txt", "csv", "html", "png", "svg")}
    assert (tmp_path / "compare.csv").read_text().splitlines() == rows


@pytest.mark.parametrize(
    "words", ["compare p3.2xlarge p3.8xlarge resnet18", "plan hgx-h100 llama-3.2-1b", "whatif p3.2xlarge resnet18", "collective p3.8xlarge"]
)
def test_two_formats_are_refused_before_anything_is_computed(words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for formats in (["--json", "--csv"], ["--csv", "--json"]):
        assert main([*words.split(), *formats, "-o", str(tmp_path / "out")]) == 2
        assert capsys.readouterr().err == "--json and --csv: write one of the two\n"
    assert not (tmp_path / "out").exists()


def test_compare_says_when_nothing_can_run_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", "vgg16", "p3.2xlarge", "p2.xlarge", "--batch", "100000"]) == 1
    said = capsys.readouterr().out
    assert said.startswith("No machine can run vgg16.") and "  - p2.xlarge: " in said
    assert "largest batch that fits" in said and "The catalog machine with the largest GPUs cannot either" in said
    assert main(["compare", "vgg16", "p2.xlarge", "--batch", "150"]) == 1
    assert "Nearest that can: " in capsys.readouterr().out


def test_compare_names_machines_without_a_spot_price(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", "resnet18", "p3.2xlarge", "g4dn.xlarge", "--market", "spot"]) == 0
    assert "No spot price for g4dn.xlarge; set one with --set price.spot=" in capsys.readouterr().out


def test_recommend(capsys: pytest.CaptureFixture[str]) -> None:
    command = ["recommend", "resnet18", "p3.2xlarge", "p3.8xlarge", "--nodes", "1", "--epochs", "3"]
    assert main([*command, "--budget-hours", "2"]) == 0
    said = capsys.readouterr().out
    assert said.startswith("Rent 1 x p3") and "3 epochs of resnet18 in " in said
    assert main([*command, "--budget-hours", "0.001", "--json"]) == 1
    document = json.loads(capsys.readouterr().out)
    assert document["best"] is None
    assert document["nearest"]["hardware"] == "p3.8xlarge"


def test_recommend_tries_one_to_four_nodes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["recommend", "resnet18", "p3.8xlarge", "--budget-hours", "2", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert {row["nodes"] for row in document["candidates"]} == {1, 2, 3, 4}
    assert any(note.startswith("tried with 1, 2, 3 and 4 nodes") for note in document["notes"])


def test_whole_jobs_are_the_same_in_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    given = ["--epochs", "7", "--evaluation", "0.04", "--batch", "64", "--json"]
    assert main(["run", "p3.8xlarge", "resnet18", "--fast", *given]) == 0
    job = json.loads(capsys.readouterr().out)["whole_job"]
    assert main(["compare", "resnet18", "p3.8xlarge", *given]) == 0
    assert json.loads(capsys.readouterr().out)["rows"][0]["whole_job"] == job
    assert main(["recommend", "resnet18", "p3.8xlarge", "--nodes", "1", "--on-demand", "--budget-usd", "1000", *given]) == 0
    best = json.loads(capsys.readouterr().out)["best"]
    assert (best["parts_s"], best["total_cost_usd"]) == (job["parts_s"], pytest.approx(job["cost_usd"]))


def test_whole_jobs_in_words(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "p3.8xlarge", "resnet18", "--fast", "--hours", "2"]) == 0
    assert "whole job, " in (said := capsys.readouterr().out) and ": 2 h, $24.48 (startup 1.25 min" in said
    assert main(["run", "p3.8xlarge", "resnet18", "--nodes", "1..2", "--epochs", "2"]) == 0
    assert "whole job        USD   epochs" in capsys.readouterr().out
    assert main(["compare", "resnet18", "p3.8xlarge", "--hours", "2"]) == 0
    assert "epochs done" in capsys.readouterr().out
    assert main(["recommend", "resnet18", "p3.8xlarge", "--hours", "2", "--budget-usd", "100", "--nodes", "1"]) == 0
    assert " epochs of resnet18 in 2 h and " in capsys.readouterr().out


def test_sweep(tmp_path: Path) -> None:
    file = tmp_path / "batches.csv"
    command = ["sweep", "p3.2xlarge", "resnet18", "--vary", "batch=16,32", "-o", str(file)]
    assert main(command) == 0
    assert [line.split(",")[0] for line in file.read_text().splitlines()] == ["batch", "16", "32"]
    assert list(tmp_path.iterdir()) == [file]
    assert main(command) == 2  # never replaces a table unasked


def test_a_sweep_loses_nothing_of_another_that_was_stopped(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, journal = tmp_path / "batches.csv", tmp_path / "batches.csv.journal"
    command = ["sweep", "p3.2xlarge", "resnet18", "-o", str(file), "--jobs", "1", "--vary"]
    sweep(Scenario("p3.2xlarge", "resnet18"), grid([axis("batch=8,16")]), row, journal=journal, processes=1)
    kept = journal.read_bytes()
    assert main([*command, "batch=32,64"]) == 2
    assert "holds 2 points of another, unfinished sweep" in capsys.readouterr().err
    assert journal.read_bytes().strip() == kept.strip() and not file.exists()
    assert main([*command, "batch=8,16"]) == 0  # the one that was stopped ends
    assert not journal.exists()
    journal.write_bytes(kept)
    assert main([*command, "batch=32,64", "--force"]) == 0
    assert list(tmp_path.iterdir()) == [file]


def test_diff(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, machine in (("a.json", "p3.8xlarge"), ("b.json", "p3.8xlarge-two-islands")):
        assert main(["run", machine, "vgg16", "--fast", "--json"]) == 0
        (tmp_path / name).write_text(capsys.readouterr().out)
    assert main(["diff", str(tmp_path / "a.json"), str(tmp_path / "b.json")]) == 0
    assert "hardware: p3.8xlarge -> p3.8xlarge-two-islands" in capsys.readouterr().out
    assert main(["diff", str(tmp_path / "a.json"), str(tmp_path / "a.json")]) == 0
    assert "The two runs are identical." in capsys.readouterr().out
    assert main(["run", "p3.8xlarge", "vgg16", "--fast", "-o", str(tmp_path / "run")]) == 0
    capsys.readouterr()
    assert main(["diff", str(tmp_path / "a.json"), str(tmp_path / "run")]) == 0
    assert "The two runs are identical." in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["profile", "p3.16xlarge", "resnet18", "--twin", "p3.800xlarge"], "p3.800xlarge"),
        (["profile", "p3.16xlarge", "resnet18", "--nodes", "1..4"], "expected one number, such as --nodes 4"),
        (["profile", "p3.16xlarge", "resnet18-and-vgg16"], "resnet18-and-vgg16: lists several jobs; the Stash procedure profiles one"),
        (["profile", "p3.16xlarge", "resnet18", "--twin", "p2.8xlarge"], "--twin p2.8xlarge: has K80, p3.16xlarge V100-SXM2-16GB"),
        (["compare", "resnet18", "--where", "gpus=3"], "--where: no row matches gpus=3; gpus ranges from 1 to"),
        (["compare", "resnet18", "p3.2xlarge", "--sort", "color"], "write one of time, cost"),
        (["compare", "resnet18", "p3.2xlarge", "p3.16xlrge"], "did you mean p3.16xlarge"),
        (["compare", "resnet18", "nowhere.yaml"], "nowhere.yaml: no such file"),
        (["compare", "resnet81", "p3.2xlarge"], "did you mean resnet18"),
        (["compare", "resnet18", "p3.2xlarge", "g5.xlarge", "--set", "node.nic.bandwith=1 Gbps"], "did you mean 'bandwidth'"),
        (["compare", "resnet18", "p3.2xlarge", "--precision", "fp31"], "write one of fp32"),
        (["compare", "resnet18-and-vgg16", "p3.16xlarge"], "expected one workload"),
        (["recommend", "resnet18", "p3.16xlrge", "--budget-hours", "1"], "did you mean p3.16xlarge"),
        (["recommend", "resnet18"], "write one of the two"),
        (["recommend", "resnet18", "--budget-hours", "-1"], "write more than 0"),
        (["recommend", "resnet18", "--budget-hours", "1", "--hours", "2"], "--hours and --budget-hours"),
        (["run", "p3.8xlarge", "resnet18", "--hours", "2", "--epochs", "2"], "--epochs and --hours"),
        (["run", "p3.16xlarge", "resnet18-and-vgg16", "--epochs", "2"], "sets this for each job"),
        (
            ["compare", "resnet18", "p3.2xlarge", "--no-checkpoints"],
            "--no-checkpoints: belongs to a whole job; add --epochs, --hours or --tokens as well",
        ),
        (["sweep", "p3.2xlarge", "resnet18", "--vary", "node.nic.bandwith=1..2 Gbps:2", "-o", "never.csv"], "did you mean 'bandwidth'"),
        (["sweep", "p3.2xlarge", "resnet18", "--vary", "batch=1..2:2", "-o", "never.txt"], "write FILE.csv or FILE.parquet"),
        (["sweep", "p3.2xlarge", "resnet18", "-o", "never.csv"], "name at least one field"),
        (["diff", "nowhere.json", "nowhere.json"], "no such file"),
        (["diff", ".", "."], "has no run.json; write one with: python -m sim run HW WL -o ."),
    ],
)
def test_bad_input(
    arguments: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == 2
    assert said in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


SPOT = ["spot", "p3.2xlarge", "resnet18", "--workers", "2", "--epochs", "10", "--trials", "50"]


def test_spot(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*SPOT, "--json", "-o", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    document = json.loads(out)
    assert (tmp_path / "spot.json").read_text() == out
    assert (document["workers"], document["trials"], document["policy"]) == (2, 50, "wait")
    time, cost = document["spot"]["time_s"], document["spot"]["cost_usd"]
    assert document["on_demand"]["time_s"] < time["low_95"] <= time["p50"] <= time["p90"] <= time["high_95"]
    assert document["saving"] == pytest.approx(1 - cost["mean"] / document["on_demand"]["cost_usd"])
    assert main(SPOT) == 0
    assert f"Spot saves {100 * document['saving']:.0f}% of the cost" in capsys.readouterr().out


def test_spot_through_servers_goes_on_with_fewer(capsys: pytest.CaptureFixture[str]) -> None:
    command = ["spot", "cm-dare-k80", "resnet32-cifar", "--workers", "2", "--steps", "64000", "--stack", "tf-parameter-server", "--json"]
    assert main([*command, "--trials", "200", "--checkpoint-interval", "none"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["policy"] == "shrink"
    assert document["spot"]["lost_s"] == 0
    assert document["work_samples"] == 64_000 * 128


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (["p2.xlarge"], "has no spot price; add one, for example --set price.spot="),
        (["p4d.24xlarge"], "no interruption data for spot machines with A100-SXM4-40GB; add a mean, for example --mean-lifetime"),
        (["--policy", "hope"], "write one of shrink, replace, wait"),
        (["--steps", "5"], "--epochs or --steps"),
        (["--checkpoint-interval", "5"], "has no unit"),
        (["--mean-lifetime", "0 h"], "write more than 0"),
    ],
)
def test_spot_refuses(change: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    command = [SPOT[0], change[0], *SPOT[2:]] if not change[0].startswith("-") else [*SPOT, *change]
    assert main(command) == 2
    assert said in capsys.readouterr().err
