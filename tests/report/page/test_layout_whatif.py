"""Does the page of a layout's what-if have the ranking that the terminal shows? Oracles: its text and its JSON."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sim.cli import main
from sim.report.layouts.layout_whatif import NAMES
from tests.report.page.reading import assert_figures_are_the_documents, assert_well_made, assert_words_are_the_figures
from tests.report.page.written import read


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
    cells = [cell.text for cell in page.all("td")]
    assert NAMES[best["resource"]] in [*cells, *(cell.text for cell in page.all("th"))]
    assert f"{100 * best['twice_gain']:+.1f}%" in cells
    sentences = [line.strip() for line in text.splitlines() if line.strip().startswith(("No effect", "Each resource"))]
    assert len(sentences) == 2 and {*sentences} <= {paragraph.text for paragraph in page.all("p")}
