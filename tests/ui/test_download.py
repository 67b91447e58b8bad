"""Are the files of the page those of the command line, and do the descriptions give the same run again?"""

from __future__ import annotations

import contextlib
import gzip
import io
import json
from pathlib import Path

import pytest

from sim.cli import main
from sim.spec.yaml import SpecError
from sim.ui.choice import Choice, choice_of, command_of
from sim.ui.download import FILES, file_of

RUNS = (
    {"workload": "vgg16", "hardware": "p3.16xlarge", "nodes": "2", "batch": "max", "nic": "50", "price": "10"},
    {"workload": "llama-3.1-8b", "hardware": "hgx-h100", "shard": "parameters", "tp": "2"},
)


def printed(words: list[str]) -> str:
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        assert main(words) == 0
    return said.getvalue()


@pytest.fixture(scope="module", params=RUNS, ids=["data parallel", "layout"])
def choice(request: pytest.FixtureRequest) -> Choice:
    return choice_of(request.param.items())


def test_json_and_csv_are_what_the_command_prints(choice: Choice) -> None:
    for name in ("json", "csv"):
        assert file_of(choice, f"run.{name}").content.decode().rstrip("\n") == printed([*command_of(choice), f"--{name}"]).rstrip("\n")


def test_the_descriptions_give_the_same_run(choice: Choice, tmp_path: Path) -> None:
    for name in ("hardware.yaml", "workload.yaml"):
        (tmp_path / name).write_bytes(file_of(choice, name).content)
    again = json.loads(printed(["run", str(tmp_path / "hardware.yaml"), str(tmp_path / "workload.yaml"), "--fast", "--json"]))
    shown = json.loads(file_of(choice, "run.json").content)
    assert again["step_time_s"] == shown["step_time_s"]
    assert again["stalls_s"] == shown["stalls_s"]
    assert again["cost_per_epoch_usd"] == shown["cost_per_epoch_usd"]


def test_the_trace_is_one(choice: Choice) -> None:
    events = json.loads(gzip.decompress(file_of(choice, "trace.json.gz").content))["traceEvents"]
    assert any(event.get("cat") == "kernel" and event["dur"] > 0 for event in events)


def test_the_report_says_its_command(choice: Choice) -> None:
    page = file_of(choice, "report.html").content.decode()
    assert page.startswith("<!doctype html>")
    assert " ".join(command_of(choice)[:3]) in page


def test_other_names_are_refused() -> None:
    with pytest.raises(SpecError, match=f"passwd: no such file; write one of {', '.join(FILES)}"):
        file_of(choice_of([]), "passwd")
