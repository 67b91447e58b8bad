"""Does the page of a layout show energy and weeks as that of a data-parallel run does? Oracle: the JSON document of the same run."""

from __future__ import annotations

from pathlib import Path

import pytest

from sim.cli import main
from tests.report.page.reading import Page, assert_figures_are_the_documents, assert_well_made, assert_words_are_the_figures
from tests.report.page.written import document, read, written

LAYOUT = ["run", "hgx-h100", "llama-3.2-1b", "--shard", "parameters", "--nodes", "2"]


def checked(path: Path) -> Page:
    """Return the page at *path*, every figure of which is that of the document which the command wrote beside it."""
    page = read(path)
    assert page.documents()["run"] == document(path, "run")
    assert assert_figures_are_the_documents(page) >= 40
    assert assert_words_are_the_figures(page) > 0
    assert_well_made(page)
    return page


def test_energy_and_weeks_are_on_the_page_of_a_layout(tmp_path: Path) -> None:
    path = written(tmp_path, [*LAYOUT, "--tokens", "100B", "--with-failures"])
    page = checked(path)
    shown = {element.attributes["data-at"] for element in page.all("data") if "data-at" in element.attributes}
    assert {"run/energy/kwh_per_epoch", "run/energy/co2_per_epoch_kg", "run/energy/power_caps/0/energy_per_sample_j"} <= shown
    assert {"run/with_failures/effective_share", "run/with_failures/co2_kg", "run/with_failures/lost_s/rework"} <= shown
    run = document(path, "run")
    assert "100 billion tokens" in path.read_text(encoding="utf-8").split('"schema"')[0], "an epoch, of the stream of tokens"
    weeks = run["with_failures"]
    assert weeks["step_time_s"] == run["step_time_s"] and 0 < weeks["effective_share"] < 1


def test_weeks_are_on_the_page_of_a_data_parallel_run(tmp_path: Path) -> None:
    path = written(tmp_path, ["run", "p4d.24xlarge", "resnet18", "--epochs", "9", "--with-failures", "--fast"])
    page = checked(path)
    assert any(element.attributes.get("data-at") == "run/with_failures/effective_share" for element in page.all("data"))


@pytest.mark.parametrize(
    ("more", "problem"),
    [([], "say how long the job is"), (["--tokens", "1B", "--nodes", "1..2"], "write one number of nodes or GPUs")],
)  # fmt: skip
def test_weeks_of_a_layout_need_a_length_and_one_size(more: list[str], problem: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*LAYOUT, "--with-failures", *more]) == 2
    assert problem in capsys.readouterr().err
