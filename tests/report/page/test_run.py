"""Does the page of a run say what its JSON says? Oracles: the embedded and the printed document, the event log, geometry of marks."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from sim.cli import main
from sim.events import STALLS
from sim.report.expected_error import interval_text
from sim.report.trace.excerpt import excerpt
from tests.report.page.cases import CASES, case_answer, document, html
from tests.report.page.reading import Page, assert_figures_are_the_documents, assert_well_made, assert_words_are_the_figures, at


@pytest.mark.parametrize("case", CASES)
def test_every_figure_is_the_document_s(case: str) -> None:
    page = Page(html(case))
    assert page.documents()["run"] == document(case)
    assert assert_figures_are_the_documents(page) > 30


@pytest.mark.parametrize("case", CASES)
def test_the_words_are_the_figures(case: str) -> None:
    assert assert_words_are_the_figures(Page(html(case))) > 25


@pytest.mark.parametrize("case", CASES)
def test_it_is_a_well_made_page(case: str) -> None:
    page = Page(html(case))
    assert_well_made(page)
    own = document(case)
    for job in own.get("jobs", [own]):
        assert job["verdict"] in [element.text.replace("\u00a0", " ") for element in page.all("p", class_="verdict")]
        items = {element.text for element in page.all("li")}
        assert {*job["assumptions"], *job["warnings"]} <= items
        assert set(job["inputs_sha256"].values()) <= {element.text for element in page.all("data")}


def test_the_interval_of_the_step_stands_beside_the_expected_error() -> None:
    contents = document("exchange")
    said = interval_text(contents["expected_error"], contents["step_time_s"])
    assert f"{said}." in {element.text for element in Page(html("exchange")).all("p")}


def test_bars_are_as_long_as_their_figures() -> None:
    """Oracle: a piece's width over the whole bar is its figure over the longest step's and its error; the error bar ends there."""
    page, documents = Page(html("exchange")), {"run": document("exchange")}
    error = documents["run"]["expected_error"]["p90"]
    scale = max(documents["run"]["step_time_s"], documents["run"]["first_epoch"]["step_time_s"]) * (1 + error)
    for below in ("run/stalls_s", "run/first_epoch/stalls_s"):
        pieces = [mark for mark in page.all("div", class_="piece") if mark.attributes.get("data-at", "").startswith(f"{below}/")]
        widths = {mark.attributes["data-at"]: float(re.findall(r"width:([\d.]+)%", mark.attributes["style"])[0]) for mark in pieces}
        for place, width in widths.items():
            assert width == pytest.approx(100 * at(documents, place) / scale, abs=1e-3)
        assert set(widths) == {f"{below}/{cause}" for cause in STALLS if at(documents, f"{below}/{cause}") > 1e-4 * scale}


def test_what_would_help_is_ranked() -> None:
    page, freed = Page(html("exchange")), document("exchange")["freed_step_time_s"]
    places = [mark.attributes["data-at"] for mark in page.all("div", class_="piece") if "freed" in mark.attributes.get("data-at", "")]
    assert [place.rpartition("/")[2] for place in places] == sorted(freed, key=lambda name: freed[name])


def test_several_jobs_have_their_own_parts() -> None:
    page = Page(html("several jobs"))
    assert [element.text.partition(":")[0] for element in page.all("h1")] == ["Job 0", "Job 1"]
    assert {f"{part}-{number}" for part in ("time", "steps", "machine", "memory") for number in (0, 1)} <= {
        section.attributes["id"] for section in page.all("section")
    }


def test_a_run_without_kept_rates_has_no_use_of_links() -> None:
    from sim.report.page.run import run_page
    from sim.study.scenario import answer

    plain = answer(CASES["exchange"])
    page = Page(run_page(plain.run, document("exchange")))
    assert page.documents()["view"]["jobs"][0]["links"] == []
    assert_figures_are_the_documents(page)


def test_the_command_writes_the_page_it_describes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "page.html"
    assert main(["run", "p3.2xlarge", "resnet50", "--fast", "--json", "--html", str(path), "-o", str(tmp_path / "out")]) == 0
    said = capsys.readouterr()
    page = Page(path.read_text(encoding="utf-8"))
    assert page.documents()["run"] == json.loads(said.out) == json.loads((tmp_path / "out" / "run.json").read_text())
    assert str(path) in said.err
    assert (tmp_path / "out" / "report.html").read_text(encoding="utf-8") == path.read_text(encoding="utf-8")


def test_a_page_that_cannot_be_written_is_said_before_anything_is_simulated(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sim.study.scaling.answers", lambda *_, **__: pytest.fail("simulated for nothing"))
    for option in ("--html", "--trace"):
        assert main(["run", "p3.2xlarge", "resnet50", "--fast", option, str(tmp_path / "no" / "page.json")]) == 2
        assert f"page.json: cannot be written: there is no folder {tmp_path / 'no'}; make it first" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_pages_of_one_run_are_the_same() -> None:
    from sim.report.page.run import run_page

    own = case_answer("one GPU")
    assert run_page(own.run, document("one GPU"), own.bottlenecks) == html("one GPU")
    assert excerpt(own.run, 2).note in html("one GPU")
