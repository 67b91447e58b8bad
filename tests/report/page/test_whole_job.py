"""Do pages show the requested whole job? Oracles: the printed documents, sums of parts, brute force over machines."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.report.page.written import assert_page_is_the_document, document, read, verdict, written

MACHINES = ["p3.2xlarge", "p3.16xlarge", "g4dn.xlarge"]


def test_parts_of_a_run_s_job_sum_to_it(tmp_path: Path) -> None:
    path = written(tmp_path, ["run", "p3.2xlarge", "resnet18", "--epochs", "5", "--evaluation", "0.1", "--fast"])
    page = read(path)
    job = page.documents()["run"]["whole_job"]
    (section,) = page.all("section", id="job")
    pieces = [float(mark.attributes["data-value"]) for mark in section.inside if mark.attributes.get("class") == "mark piece"]
    assert sum(pieces) == pytest.approx(job["time_s"], rel=1e-3)
    assert "5 epochs" in section.text and f"${job['cost_usd']:.2f}" in section.text
    assert any(tile.text.startswith("Whole job") for tile in page.all("div"))


@pytest.mark.parametrize(("length", "bars"), [(("--epochs", "5"), 1), (("--hours", "3"), 0)])
def test_the_time_of_a_job_has_an_error_bar_unless_it_is_given(tmp_path: Path, length: tuple[str, str], bars: int) -> None:
    for command in (["run", "p3.2xlarge", "resnet18", "--fast"], ["run", "hgx-h100", "llama-3.2-1b", "--shard", "parameters"]):
        (section,) = read(written(tmp_path, [*command, *length])).all("section", id="job")
        assert sum(mark.attributes.get("class") == "off" for mark in section.inside) == bars


def test_a_run_without_a_job_has_no_such_part(tmp_path: Path) -> None:
    page = read(written(tmp_path, ["run", "p3.2xlarge", "resnet18", "--fast"]))
    assert not page.all("section", id="job")


@pytest.mark.parametrize(
    ("options", "key", "words"), [(("--epochs", "4"), "time_s", "for 4 epochs"), (("--hours", "3"), "epochs", "epochs")]
)
def test_machines_are_compared_by_the_whole_job(tmp_path: Path, options: tuple[str, str], key: str, words: str) -> None:
    path = written(tmp_path, ["compare", "resnet18", *MACHINES, *options, "--jobs", "1"])
    assert_page_is_the_document(path, "compare", 40)
    page, rows = read(path), document(path, "compare")["rows"]
    dots = {dot.attributes["data-tip"].split("\n")[0]: float(dot.attributes["data-x"]) for dot in page.all("circle")}
    assert dots == {row["hardware"]: row["whole_job"][key] for row in rows}
    cheapest = min(rows, key=lambda row: row["whole_job"]["cost_usd"])
    assert f"{cheapest['hardware']} is" in verdict(page) and words in verdict(page)
    fastest = (max if key == "epochs" else min)(rows, key=lambda row: row["whole_job"][key])
    assert verdict(page).startswith(f"{fastest['hardware']} is fastest")


def test_candidates_of_a_job_of_a_given_time_lie_by_what_they_get_done(tmp_path: Path) -> None:
    path = written(tmp_path, ["recommend", "resnet18", *MACHINES, "--budget-usd", "5", "--hours", "2", "--jobs", "1", "--nodes", "1"])
    page = assert_page_is_the_document(path, "recommend", 40)
    candidates = document(path, "recommend")["candidates"]
    assert sorted(float(dot.attributes["data-x"]) for dot in page.all("circle")) == sorted(row["epochs"] for row in candidates)


def test_energy_is_that_of_the_whole_job_as_in_the_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = written(tmp_path, ["run", "p3.2xlarge", "resnet18", "--epochs", "5", "--fast"])
    said = re.search(r"energy: (\S+ kWh) \(PUE \S+\) and (\S+ \w+) CO2 for the whole job", capsys.readouterr().out)
    assert said
    cells = [cell.text.replace("\u00a0", " ") for cell in read(path).all("td")]
    assert {said[1], said[2]} <= {*cells}
    text = path.read_text(encoding="utf-8").replace("\u00a0", " ")
    assert "Energy of the whole job" in text and f"{said[2]} CO2" in text
