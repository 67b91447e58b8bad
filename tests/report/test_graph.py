"""Oracles: the example of docs/how-to/chakra.md by hand, and that text, page, trace and CSV say what the JSON does."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest

from sim.cli import main
from tests.parallel import example
from tests.report.page.reading import Page

RUN = ["run", "p3.8xlarge", "examples/chakra"]
SECONDS = 1e-3


@pytest.fixture
def document(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    assert main([*RUN, "--json"]) == 0
    contents: dict[str, Any] = json.loads(capsys.readouterr().out)
    return contents


def test_the_example_is_the_one_that_is_described() -> None:
    assert {path.name: path.read_bytes() for path in sorted(example.FOLDER.iterdir())} == example.files()


def test_the_example_by_hand(document: dict[str, Any]) -> None:
    """Rank 3 computes 24 ms and then waits for the second exchange alone; the first hides behind its backward."""
    first, second = (nbytes for nbytes in (256 * example.MB, 64 * example.MB))
    (row,) = document["communication"]
    assert (row["operations"], row["bytes"], row["ranks"]) == (2, first + second, 4)
    slow, fast = document["by_rank"][3], document["by_rank"][0]
    exchange = document["step_time_s"] - 25e-3
    assert slow["stalls_s"]["compute"] == pytest.approx(25e-3)
    assert slow["stalls_s"]["interconnect"] == pytest.approx(exchange)
    assert 0 < exchange < row["time_s"] < 8e-3
    assert fast["stalls_s"]["compute"] == pytest.approx(13e-3)
    assert fast["stalls_s"]["straggler"] == pytest.approx((16 - 12 + 8) * SECONDS - (row["time_s"] - exchange))
    assert row["exposed_s"] == pytest.approx((3 * (document["step_time_s"] - 13e-3) + exchange) / 4)
    assert sum(document["stalls_s"].values()) == pytest.approx(document["step_time_s"])


def test_text_names_what_is_waited_for(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(RUN) == 0
    text = capsys.readouterr().out
    assert "two-layers on p3.8xlarge: 4 x V100-SXM2-16GB, 1 node; 28 operations of 4 ranks" in text
    assert "the longest wait is 21%, for rank 3, the last to arrive at all_reduce of all ranks." in text
    assert "durations of compute are from the trace (20 of 20 operations)" in text


def test_files_say_the_same(tmp_path: Path, document: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*RUN, "--trace", str(tmp_path / "trace.json"), "--html", str(tmp_path / "page.html"), "--csv"]) == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert [float(row["compute_s"]) for row in rows] == [rank["stalls_s"]["compute"] for rank in document["by_rank"]]
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    kernels = [event for event in events if event.get("cat") == "kernel" and event["pid"] == 3]
    assert sum(event["dur"] for event in kernels if event["tid"] == 7) == pytest.approx(25_000)
    waits = [event for event in events if event.get("cat") == "wait" and event["pid"] == 3]
    assert sum(event["dur"] for event in waits) == pytest.approx(1e6 * document["step_time_s"] - 25_000, abs=1e-3)
    read = Page((tmp_path / "page.html").read_text())
    assert "26.2 ms" in read.all("body")[0].text
    assert len(read.all("div", class_="lane")) == 4


def test_a_folder_has_a_file_a_rank(tmp_path: Path) -> None:
    assert main([*RUN, "--trace", str(tmp_path / "ranks"), "-o", str(tmp_path / "out")]) == 0
    assert sorted(path.name for path in (tmp_path / "ranks").iterdir()) == [f"rank{rank}.json" for rank in range(4)]
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["report.html", "report.txt", "run.csv", "run.json"]


def test_out_and_in_on_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    alike = "node.gpu.compute_cv=0; node.gpu.kernels.sustained_cv=0"
    layout = ["run", "hgx-h100", "llama-3.2-1b", "--parallel", "shard=parameters", "--set", alike]
    assert main([*layout, "--json", "--chakra", str(tmp_path)]) == 0
    written = json.loads(capsys.readouterr().out)
    assert main(["run", "hgx-h100", str(tmp_path), "--stack", written["stack"], "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["step_time_s"] == pytest.approx(written["step_time_s"], rel=1e-9)


WRONG = {
    "batch": ([*RUN, "--batch", "4"], "--batch: examples/chakra is a Chakra trace, which fixes what each rank does; leave --batch out"),
    "layout": ([*RUN, "--tp", "2"], "--tp: examples/chakra is a Chakra trace"),
    "failures": ([*RUN, "--with-failures"], "--with-failures: examples/chakra is a Chakra trace"),
    "several sizes": ([*RUN, "--nodes", "1..4"], "a Chakra trace has a fixed number of ranks; write one number of nodes or GPUs"),
    "ranks": (
        [*RUN, "--nodes", "2"],
        "two-layers: the trace has 4 ranks, but p3.8xlarge provides 8 GPUs, and each rank needs one; write --nodes",
    ),
    "groups": (["run", "p3.8xlarge", "alexnet", "--comm-groups", "x.json"], "--comm-groups x.json: applies only to a Chakra trace"),
    "absent": (["run", "p3.8xlarge", "absent.et"], "absent.et: no such trace; expected files named absent.0.et"),
    "no groups": ([*RUN, "--comm-groups", "absent.json"], "absent.json: no such file"),
    "two runs": (["run", "p3.8xlarge", "alexnet", "--nodes", "1..2", "--chakra", "x"], "--chakra: a trace holds one run"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_a_trace_says_itself_is_refused(capsys: pytest.CaptureFixture[str], case: str) -> None:
    words, said = WRONG[case]
    assert main(words) == 2
    captured = capsys.readouterr()
    assert said in captured.err
    assert captured.out == ""
    assert len(captured.err.strip().splitlines()) == 1
