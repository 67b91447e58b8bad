"""Does the page of a layout show energy and weeks as that of a data-parallel run does? Oracle: the JSON document of the same run."""

from __future__ import annotations

from pathlib import Path

import pytest

from sim.cli import main
from tests.report.page.reading import Element, Page, assert_figures_are_the_documents, assert_well_made, assert_words_are_the_figures
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


PIPELINE = ["--tp", "8", "--pp", "2", "--micro-batches", "8", "--nodes", "2"]


def _pieces(stack: Element) -> list[Element]:
    return [piece for piece in stack.inside if piece.name == "div"]


def _filled(path: Path, bars: int) -> list[float]:
    """Return the per cent of each of the first *bars* bars of the page at *path* that its pieces fill, widest as 100."""
    stacks = read(path).all("div", class_="stack")[:bars]
    widths = [
        sum(float(piece.attributes["style"].split(";")[0].removeprefix("width:").removesuffix("%")) for piece in _pieces(stack))
        for stack in stacks
    ]
    return [100 * width / max(widths) for width in widths]


def _key(path: Path) -> list[str]:
    return [item.text for key in read(path).all("ul", class_="key") for item in key.inside if item.name == "li"]


def test_a_difference_shows_time_in_the_pipeline(tmp_path: Path) -> None:
    for name, more in (("before", ["--shard", "parameters", "--nodes", "2"]), ("after", PIPELINE)):
        assert main(["run", "hgx-h100", "llama-3.1-8b", *more, "-q", "-o", str(tmp_path / name)]) == 0
    path = written(tmp_path, ["diff", str(tmp_path / "before"), str(tmp_path / "after")])
    page, steps = read(path), document(path, "diff")["step_time_s"]
    assert _filled(path, 2) == pytest.approx([100 * step / max(steps) for step in steps], abs=0.1)
    assert "pipeline" in _key(path)
    shown = {element.attributes["data-at"] for element in page.all("data") if "data-at" in element.attributes}
    assert {"diff/stalls_s/pipeline", "after/stalls_s/pipeline"} <= shown
    assert_figures_are_the_documents(page)


def test_a_comparison_and_a_sweep_show_time_in_the_pipeline(tmp_path: Path) -> None:
    compared, swept = tmp_path / "compare.html", tmp_path / "sweep.html"
    command = ["compare", "llama-3.1-8b", "hgx-h100", "dgx-a100", "--parallel", "tensor=8", "--parallel", "pipeline=2", "--nodes", "2"]
    assert main([*command, "--jobs", "1", "-q", "--html", str(compared)]) == 0
    command = ["sweep", "hgx-h100", "llama-3.1-8b", "--nodes", "2", "--vary", "training.parallel.pipeline=1,2"]
    command += ["--set", "training.parallel.tensor=8", "--jobs", "1", "-q", "-o", str(tmp_path / "s.csv"), "--html", str(swept)]
    assert main(command) == 0
    rows = read(swept).documents()["sweep"]["rows"]
    assert [sum(row["stalls_s"].values()) for row in rows] == pytest.approx([row["step_time_s"] for row in rows])
    steps = [row["step_time_s"] for row in rows]
    assert sorted(_filled(swept, 2)) == pytest.approx(sorted(100 * step / max(steps) for step in steps), abs=0.1)
    for path, count in ((compared, 2), (swept, 1)):
        pieces = [piece.attributes["data-at"] for stack in read(path).all("div", class_="stack") for piece in _pieces(stack)]
        assert sum(at.endswith("stalls_s/pipeline") for at in pieces) == count
        assert "pipeline" in _key(path)


@pytest.mark.parametrize("schedule", ["1f1b", "zb_h1"])
def test_stages_show_what_they_send_and_the_key_names_all_that_is_drawn(schedule: str, tmp_path: Path) -> None:
    """Oracle: of 4 stages and 8 micro-batches, 3 send 8 activations on, and 3 send 8 gradients back (arXiv 2104.04473, 2.2)."""
    command = ["run", "hgx-h100", "llama-3.2-1b", "--parallel", f"tp=2,pp=4,schedule={schedule},micro_batches=8", "--nodes", "2"]
    path = written(tmp_path, command)
    lanes = [lane for lane in read(path).all("div", class_="lane") if "high" not in lane.attributes["class"].split()]
    marks = [[mark for mark in lane.inside if "mark" in mark.attributes.get("class", "").split()] for lane in lanes]
    sent = [[mark.attributes["data-tip"] for mark in lane if "sent" in mark.attributes["class"].split()] for lane in marks]
    counts = [[sum(f"sends {what} between" in tip for tip in lane) for what in ("activations", "gradients")] for lane in sent]
    assert counts == [[8, 0], [8, 8], [8, 8], [0, 8]]
    worked = {
        mark.attributes["data-tip"].partition("\n")[0] for lane in marks for mark in lane if "background:#" in mark.attributes["style"]
    }
    drawn = {mark.attributes["style"].partition("var(--")[2].partition(")")[0] for lane in marks for mark in lane} - {""}
    assert {"forward", "optimizer", "backward of weights" if schedule == "zb_h1" else "backward"} <= worked and "pipeline" in drawn
    assert worked | drawn <= {*_key(path)}


def test_weeks_are_on_the_page_of_a_data_parallel_run(tmp_path: Path) -> None:
    path = written(tmp_path, ["run", "p4d.24xlarge", "resnet18", "--epochs", "9", "--with-failures", "--fast"])
    page = checked(path)
    assert any(element.attributes.get("data-at") == "run/with_failures/effective_share" for element in page.all("data"))


@pytest.mark.parametrize(
    ("more", "problem"),
    [([], "set the length of the job"), (["--tokens", "1B", "--gpus", "1..2"], "write one number of nodes or GPUs")],
)  # fmt: skip
def test_weeks_of_a_layout_need_a_length_and_one_size(more: list[str], problem: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*LAYOUT, "--with-failures", *more]) == 2
    assert problem in capsys.readouterr().err
