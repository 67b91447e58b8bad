"""Does the page of the Stash study say what its JSON says? Oracles: the document, shades in proportion to figures."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from calibration.studies.stash2022.document import study_document
from calibration.studies.stash2022.page import study_page
from tests.calibration.studies.small_study import small_study
from tests.report.page.browser import browser
from tests.report.page.reading import Page, assert_figures_are_the_documents, assert_well_made, assert_words_are_the_figures, at
from tests.report.page.written import looked_at, read, tip, verdict


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("study") / "page.html"
    made.write_text(study_page(json.loads(json.dumps(study_document(small_study())))), encoding="utf-8")
    return made


def test_figures_are_the_document_s(path: Path) -> None:
    page = read(path)
    assert page.documents()["stash2022"] == json.loads(json.dumps(study_document(small_study())))
    assert assert_figures_are_the_documents(page) > 80
    assert assert_words_are_the_figures(page) > 50
    assert_well_made(page)


def test_the_verdict_counts_what_reappears(path: Path) -> None:
    answers = [finding["reappears"] for finding in read(path).documents()["stash2022"]["findings"]]
    assert verdict(read(path)).startswith(f"Of {len(answers)} published findings, {answers.count('yes')} are reproduced")


def test_every_finding_is_told_with_what_it_reached(path: Path) -> None:
    document, page = read(path).documents()["stash2022"], read(path)
    heads, items = {head.text for head in page.all("h3")}, {item.text for item in page.all("li")}
    for finding in document["findings"]:
        assert f"{finding['check']} {finding['published']}: {finding['reappears']}" in heads
        assert set(finding["reached"]) <= items


def test_shades_are_in_proportion_to_what_they_show(path: Path) -> None:
    page = read(path)
    documents = page.documents()
    for key in ("interconnect_stall_percent", "fetch_stall_percent", "network_slowdown"):
        cells = [cell for cell in page.all("td", class_="mark") if cell.inside[0].attributes["data-at"].endswith(key)]
        values = [at(documents, cell.inside[0].attributes["data-at"]) for cell in cells]
        shades = [float(cell.attributes["style"].removeprefix("--heat:").removesuffix("%")) for cell in cells]
        assert cells and shades == pytest.approx([50 * value / max(values) for value in values], abs=0.06)


def test_a_machine_of_one_gpu_has_no_interconnect_to_stall_at(path: Path) -> None:
    says = [cell.attributes["data-tip"] for cell in read(path).all("td", class_="mark")]
    assert any("p3.2xlarge" in words and "% of RUN3" in words for words in says)
    assert not any("p3.2xlarge" in words and "% of RUN1" in words for words in says)


def test_the_cheapest_can_be_rented(path: Path) -> None:
    rows = read(path).documents()["stash2022"]["rows"]
    real = [row for row in rows if not row["hypothetical"] and row["batch_per_gpu"] == 32]
    cheapest = min(real, key=lambda row: row["warm_cost_per_epoch_usd"])["hardware"]
    table = next(table for table in read(path).all("table") if table.text.startswith("Cheapest and fastest"))
    assert [cell.text for cell in table.inside if cell.name == "td"][1] == cheapest


def test_without_the_micro_study_it_says_so(path: Path) -> None:
    document = read(path).documents()["stash2022"]
    page = Page(study_page(document | {"micro": [], "left_out": ["a case that does not fit"]}))
    texts = {element.text for element in (*page.all("p"), *page.all("li"))}
    assert {"The micro study was left out.", "a case that does not fit"} <= texts
    assert_well_made(page)


@pytest.mark.skipif(browser() is None, reason="no Chromium or Chrome on this machine")
def test_it_works_in_a_browser(path: Path) -> None:
    with looked_at(path) as tab:
        assert "% of RUN1" in tip(tab, "#interconnect td.mark")
        assert "tensors" in tip(tab, "#layers circle")
