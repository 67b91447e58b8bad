"""Does a scaling page say what its table says? Oracles: the printed document and arithmetic."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sim.cli import main
from tests.report.page.reading import Page, assert_figures_are_the_documents, assert_well_made, assert_words_are_the_figures


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[Page, Path]:
    folder = tmp_path_factory.mktemp("scaling")
    command = ["run", "p3.8xlarge", "resnet50", "--nodes", "1..4", "--fast", "-q", "--html", str(folder / "page.html"), "-o", str(folder)]
    assert main(command) == 0
    return Page((folder / "page.html").read_text(encoding="utf-8")), folder


def test_figures_are_the_document_s(written: tuple[Page, Path]) -> None:
    page, folder = written
    assert page.documents()["run"] == json.loads((folder / "run.json").read_text())
    assert assert_figures_are_the_documents(page) > 30
    assert assert_words_are_the_figures(page) > 5
    assert_well_made(page)


def test_efficiency_is_speed_over_the_first_size_s(written: tuple[Page, Path]) -> None:
    runs = written[0].documents()["run"]["runs"]
    speeds = [run["throughput_samples_per_s"] / run["gpus"] for run in runs]
    tips = [dot.attributes["data-tip"].split("\n") for dot in written[0].all("circle")]
    assert [tip[2] for tip in tips] == [f"efficiency {100 * speed / speeds[0]:.0f}%" for speed in speeds]
    assert f"{100 * speeds[-1] / speeds[0]:.0f}% scaling efficiency from 4 to 16 GPUs" in written[0].all("p", class_="verdict")[
        0
    ].text.replace("\u00a0", " ")


def test_sizes_that_cannot_run_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "page.html"
    code = main(["run", "p3.8xlarge", "resnet50", "--gpus", "2..8", "--global-batch", "64", "--batch", "9999", "--html", str(path)])
    assert code == 2 and not path.exists()  # contradictory options: nothing is written
    main(["run", "p3.8xlarge", "resnet50", "--gpus", "1..6", "--global-batch", "96", "--fast", "-q", "--html", str(path)])
    page = Page(path.read_text(encoding="utf-8"))
    failed = [run["infeasible"] for run in page.documents()["run"]["runs"] if "infeasible" in run]
    assert failed and all(any(problem in item.text for item in page.all("li")) for problem in failed)
    capsys.readouterr()
