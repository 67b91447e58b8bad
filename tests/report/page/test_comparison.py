"""Does the page of a comparison say what its JSON says? Oracles: the printed document and geometry of points."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest

from sim.cli import main
from sim.report.basis import merged_basis
from sim.report.comparison import comparison_document, comparison_text
from sim.report.page.comparison import comparison_page
from sim.spec.parallel import Parallel
from tests.report.page.browser import browser, opened
from tests.report.page.reading import Page, assert_figures_are_the_documents, assert_well_made, assert_words_are_the_figures
from tests.report.test_comparison import job, machine

MACHINES = ["p3.2xlarge", "p3.16xlarge", "p4d.24xlarge", "g4dn.xlarge", "p2.xlarge", "dgx-2"]


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("comparison")
    command = ["compare", "resnet50", *MACHINES, "--batch", "150", "-q", "--jobs", "1"]
    assert main([*command, "--html", str(folder / "page.html"), "-o", str(folder)]) == 0
    return folder / "page.html"


def test_figures_are_the_document_s(written: Path) -> None:
    page = Page(written.read_text(encoding="utf-8"))
    assert page.documents()["compare"] == json.loads((written.parent / "compare.json").read_text())
    assert assert_figures_are_the_documents(page) > 60
    assert assert_words_are_the_figures(page) > 20
    assert_well_made(page)


def test_the_verdict_names_the_fastest_and_the_cheapest(written: Path) -> None:
    rows = json.loads((written.parent / "compare.json").read_text())["rows"]
    fastest = min(rows, key=lambda row: row["epoch_time_s"])["hardware"]
    cheapest = min((row for row in rows if row["cost_per_epoch_usd"] is not None), key=lambda row: row["cost_per_epoch_usd"])["hardware"]
    verdict = Page(written.read_text(encoding="utf-8")).all("p", class_="verdict")[0].text
    assert f"{fastest} is fastest" in verdict and f"{cheapest} is cheapest" in verdict


def test_every_priced_machine_is_a_point(written: Path) -> None:
    page, document = Page(written.read_text(encoding="utf-8")), json.loads((written.parent / "compare.json").read_text())
    priced = [row for row in document["rows"] if row["cost_per_epoch_usd"] is not None]
    dots = page.all("circle")
    assert len(dots) == len(priced) < len(document["rows"])  # a DGX has no price
    best = {dot.attributes["data-tip"].split("\n")[0] for dot in dots if "best" in dot.attributes["class"].split()}
    assert best == {row["hardware"] for row in priced if row["pareto"]}
    problems = [row["problem"] for row in document["left_out"]]
    said = [item.text for item in page.all("li")]
    assert problems and all(
        any(text.startswith(row["hardware"]) and row["problem"] in text for text in said) for row in document["left_out"]
    )


def test_time_and_cost_have_error_bars_of_the_same_share(written: Path) -> None:
    """Oracle: the expected errors of the document, and the places of the dots on logarithmic axes."""
    page, document = Page(written.read_text(encoding="utf-8")), json.loads((written.parent / "compare.json").read_text())
    rows = {row["hardware"]: row for row in document["rows"] if row["cost_per_epoch_usd"] is not None}
    bars = [bar.attributes["d"] for bar in page.all("path", class_="error")]
    assert len(bars) == 2 * sum(row["expected_error"] is not None for row in rows.values()) > 6
    dots = {dot.attributes["data-tip"].split("\n")[0]: dot.attributes for dot in page.all("circle")}
    (one, other) = sorted(rows, key=lambda name: rows[name]["cost_per_epoch_usd"])[:: len(rows) - 1]
    height = float(dots[one]["cy"]) - float(dots[other]["cy"])
    for name in (one, other):
        off = rows[name]["expected_error"]["p90"]
        upright = next(bar for bar in bars if "V" in bar and bar.startswith(f"M{dots[name]['cx']},"))
        start, end = float(upright.split("m")[0].split(",")[1]), float(upright.split("V")[1].split("m")[0])
        decades = height / math.log(rows[other]["cost_per_epoch_usd"] / rows[one]["cost_per_epoch_usd"])
        assert (start - end) / decades == pytest.approx(math.log((1 + off) / (1 - off)), rel=0.02)
    assert "both are off by the same share" in next(caption.text for caption in page.all("figcaption"))


def test_without_any_machine_it_says_so() -> None:
    left_out = [{"hardware": "x", "nodes": None, "problem": "x is too small"}]
    page = Page(
        comparison_page({"schema": 1, "workload": "w", "rows": [], "left_out": left_out, "note": "", "prices": [], **merged_basis([])})
    )
    assert page.all("p", class_="verdict")[0].text == "No machine can run it."
    assert "x is too small" in {item.text for item in page.all("li")}


@pytest.mark.skipif(browser() is None, reason="no Chromium or Chrome on this machine")
def test_points_tell_what_they_are(written: Path) -> None:
    with opened(written) as tab:
        tab.size(1200, 900)
        tab.point("circle.best")
        assert "per epoch" in tab.evaluate("document.getElementById('tip').textContent")
        order = "[...document.querySelectorAll('#table tbody tr')].map(row => +row.cells[4].querySelector('data').value)"
        before = tab.evaluate(order)
        tab.click("#table th:nth-child(5) button")
        assert tab.evaluate(order) == sorted(before)
        assert tab.complaints() == [] and tab.requests() == []


def test_a_budget_of_tokens_is_no_share_of_an_epoch() -> None:
    """Oracle: the text of the same document, whose table has no epochs; of two that are as fast, the cheaper is named."""
    rows = [machine(name, 1e6, 4.0, job("tokens", 0.01, 7200.0, usd) | {"tokens": 1e9}) for name, usd in (("a", 9.0), ("b", 8.0))]
    page = Page(comparison_page({**comparison_document("w", rows), **merged_basis([])}))
    assert (
        page.all("p", class_="verdict")[0].text.replace("\u00a0", " ") == "b is fastest and cheapest: 2 h and $8.00 for 1 billion tokens."
    )
    heads = [head.text for head in page.all("th")]
    assert "whole job" in heads and not any("epoch" in head for head in heads)


def test_the_page_notes_what_the_table_in_the_terminal_notes() -> None:
    """Oracle: the text of the same document: a machine that runs a layout because the job does not fit, and one without a price."""
    plain, planned = machine("a", 10.0, 4.0), machine("b", 20.0, None)
    price = {"market": "on_demand", "usd_per_h": 1.0, "date": "", "region": "", "source": ""}
    laid = {"parallel": Parallel(shard="optimizer").model_dump() | {"data": 8}, "micro_batches": 4, "activation_checkpointing": "none"}
    rows = [
        replace(plain, document={**(plain.document or {}), "precision": "bf16", "price": price}),
        replace(planned, document={**(planned.document or {}), **laid, "precision": "bf16", "stack": "other", "layout_gap": 0.01}),
    ]
    document = {**comparison_document("w", rows), **merged_basis([])}
    text = comparison_text(document)
    noted = [item.text.replace("\u00a0", " ") for item in Page(comparison_page(document)).all("li")]
    for start in ("The job as described does not fit", "b: ", "bf16 differs between machines", "No price for b"):
        (line,) = (line.strip().removeprefix("- ") for line in text.splitlines() if line.strip().removeprefix("- ").startswith(start))
        assert line in noted, start
