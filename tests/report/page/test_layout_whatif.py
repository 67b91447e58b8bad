"""Does the page of a layout's what-if have the ranking that the terminal shows? Oracles: its text and its JSON."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sim.cli import main
from sim.report.layouts.layout_whatif import NAMES
from sim.report.page.layout_whatif import _verdict
from tests.report.page.reading import assert_figures_are_the_documents, assert_well_made, assert_words_are_the_figures
from tests.report.page.written import read, verdict


def test_the_ranking_is_on_the_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["whatif", "hgx-h100", "llama-3.1-8b", "--shard", "parameters", "--batch", "1", "-q"]
    assert main([*command, "--html", str(tmp_path / "page.html"), "-o", str(tmp_path)]) == 0
    text = capsys.readouterr().out
    page, document = read(tmp_path / "page.html"), json.loads((tmp_path / "whatif.json").read_text())
    assert page.documents()["run"] == document
    assert_figures_are_the_documents(page)
    assert_words_are_the_figures(page)
    assert_well_made(page)
    best = document["resources"][0]
    assert verdict(page) == f"Faster GPUs help most: 2x speed gives +{100 * best['twice_gain']:.0f}% throughput." != document["verdict"]
    assert [head.text for head in page.all("h1")] == ["llama-3.1-8b on hgx-h100: what if?"]
    cells = [cell.text for cell in page.all("td")]
    assert NAMES[best["resource"]] in [*cells, *(cell.text for cell in page.all("th"))]
    assert f"{100 * best['twice_gain']:+.1f}%" in cells
    sentences = [line.strip() for line in text.splitlines() if line.strip().startswith(("No effect", "Each resource"))]
    assert len(sentences) == 2 and {*sentences} <= {paragraph.text for paragraph in page.all("p")}


def test_the_headline_is_the_best_upgrade_of_the_table() -> None:
    """By hand: all links at once gain most; then one that gains little; then nothing at all."""

    def row(resource: str, twice: float, infinite: float) -> dict[str, object]:
        return {"resource": resource, "twice_gain": twice, "infinite_gain": infinite}

    others = [row("network", 0.02, 0.05), row("spread", 0.0, 0.0)]
    all_links = {"resources": others, "links": row("links", 0.3, 0.6)}
    assert _verdict(all_links) == "Making all links faster at once helps most: 2x speed gives +30% throughput."
    as_much = {"resources": [row("network", 0.8159, 1.16), row("spread", 0.0, 0.0)], "links": row("links", 0.8163, 1.22)}
    assert _verdict(as_much) == "A faster network helps most: 2x speed gives +82% throughput."
    network = {"resources": others, "links": row("links", 0.02, 0.05)}
    assert _verdict(network) == "A faster network helps most: 2x speed gives +2% throughput."
    little = {"resources": [row("spread", 0.004, 0.02), row("network", 0.0, 0.0)], "links": row("links", 0.0, 0.0)}
    assert _verdict(little) == "No single upgrade helps much: the best, 2x rank variation, gives +0.4% throughput."
    nothing = {"resources": [row("network", 0.0, 0.0)], "links": row("links", 0.0, 0.0)}
    assert _verdict(nothing) == "No resource makes the step more than 0.1% faster, even if it were infinitely fast."
