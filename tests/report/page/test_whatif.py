"""Does the page of a what-if say what its JSON says? Oracles: the printed document, widths of bars."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from sim.cli import main
from sim.report.page.whatif import whatif_page
from sim.report.whatif import has_effect
from tests.report.page.browser import browser, opened
from tests.report.page.reading import Page, assert_figures_are_the_documents, assert_well_made, assert_words_are_the_figures, at


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whatif")
    assert main(["whatif", "p3.8xlarge", "vgg11", "--nodes", "2", "-q", "--html", str(folder / "page.html"), "-o", str(folder)]) == 0
    return folder / "page.html"


def test_figures_are_the_document_s(written: Path) -> None:
    page = Page(written.read_text(encoding="utf-8"))
    assert page.documents()["whatif"] == json.loads((written.parent / "whatif.json").read_text())
    assert assert_figures_are_the_documents(page) > 20
    assert assert_words_are_the_figures(page) > 20
    assert_well_made(page)


def test_bars_are_step_times(written: Path) -> None:
    page, documents = Page(written.read_text(encoding="utf-8")), {"whatif": json.loads((written.parent / "whatif.json").read_text())}
    bars = page.all("div", class_="piece")
    widths = [float(re.findall(r"width:([\d.]+)%", mark.attributes["style"])[0]) for mark in bars]
    times = [at(documents, mark.attributes["data-at"]) for mark in bars]
    off = documents["whatif"]["expected_error"]["p90"]
    scale = max(*((1 + off) * time for time in times), documents["whatif"]["step_time_s"])
    assert widths == pytest.approx([100 * time / scale for time in times], abs=1e-3)
    assert len(bars) == 2 * sum(has_effect(row) for row in documents["whatif"]["resources"])
    errors = [re.findall(r"left:([\d.]+)%;width:([\d.]+)%", bar.attributes["style"])[0] for bar in page.all("i", class_="off")]
    by_hand = [(100 * (1 - off) * time / scale, 200 * off * time / scale) for time in times]
    assert [tuple(map(float, ends)) for ends in errors] == [pytest.approx(ends, abs=0.02) for ends in by_hand]
    assert "90% of similar predictions were within them" in written.read_text(encoding="utf-8")


def test_the_verdict_is_the_first_resource(written: Path) -> None:
    document = json.loads((written.parent / "whatif.json").read_text())
    first = document["resources"][0]
    verdict = Page(written.read_text(encoding="utf-8")).all("p", class_="verdict")[0].text.replace("\u00a0", " ")
    gain = f"{first['twice']['throughput_gain_percent']:.0f}%"
    article = "A faster" if first["resource"] in ("cpu", "disk", "network") else "Faster"
    assert verdict.startswith(f"{article} {first['resource']} helps most: 2x speed gives +{gain} throughput")
    assert f"worth paying up to ${first['twice']['break_even_price_usd_per_h']:.2f}/h" in verdict


def test_where_nothing_helps_it_says_so(written: Path) -> None:
    document = json.loads((written.parent / "whatif.json").read_text())
    document["resources"] = [row for row in document["resources"] if not has_effect(row)]
    page = Page(whatif_page(document))
    assert "No resource makes the step more than 0.1% faster" in page.all("p", class_="verdict")[0].text


@pytest.mark.skipif(browser() is None, reason="no Chromium or Chrome on this machine")
def test_bars_tell_what_they_are(written: Path) -> None:
    with opened(written) as tab:
        tab.size(1200, 900)
        tab.point(".piece")
        assert "% throughput" in tab.evaluate("document.getElementById('tip').textContent")
        assert tab.complaints() == [] and tab.requests() == []
