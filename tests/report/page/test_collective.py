"""Does the page of collectives say what its JSON says? Oracles: the printed document, bus bandwidth by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from sim.report.page.collective import collective_page
from tests.report.page.browser import browser
from tests.report.page.reading import Page
from tests.report.page.written import assert_page_is_the_document, document, looked_at, read, tip, verdict, written


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(tmp_path_factory.mktemp("collective"), ["collective", "p3.16xlarge", "--bytes", "1KiB..1GiB"])


def test_figures_are_the_document_s(path: Path) -> None:
    assert_page_is_the_document(path, "collective", 150)


def test_the_verdict_is_the_best_bus_bandwidth(path: Path) -> None:
    rows = document(path, "collective")["rows"]
    best = max(rows, key=lambda row: 2 * 7 / 8 * row["bytes"] / row["time_s"])
    assert f"{2 * 7 / 8 * best['bytes'] / best['time_s'] / 1e9:.0f} GB/s" in verdict(read(path))
    assert best["bottleneck"] in verdict(read(path))


def test_no_error_bar_is_cut_off_at_the_axis(path: Path) -> None:
    """Both ends of a bar have a cap, also those of the shortest time. From errors of 90%, bars may be cut off (`with_errors_up`)."""
    contents = document(path, "collective")
    for band in contents["expected_error"]["bands"]:
        band["p90"] = 0.8
    bars = [each.attributes["d"] for each in Page(collective_page(contents)).all("path", class_="error")]
    assert len(bars) == 2 * len(contents["rows"])
    assert all(bar.count("m-4,0h8m-4,0") == 2 for bar in bars)


def test_choices_are_named_where_they_change(path: Path) -> None:
    rows = document(path, "collective")["rows"]
    choices = [f"{row['algorithm']} {row['protocol']}" for row in rows]
    changes = [now for before, now in zip(["", *choices], choices, strict=False) if before != now]
    assert len(changes) > 1
    labels = [text.text for text in read(path).all("text", class_="label")]
    assert set(labels) == set(changes)


def test_a_single_size_is_a_page_as_well(tmp_path: Path) -> None:
    page = read(written(tmp_path, ["collective", "p3.16xlarge", "--bytes", "25MiB", "--op", "broadcast", "--nodes", "2"]))
    assert len(page.all("circle")) == 2 and "25 MiB" in verdict(page).replace("\u00a0", " ")


@pytest.mark.skipif(browser() is None, reason="no Chromium or Chrome on this machine")
def test_it_works_in_a_browser(path: Path) -> None:
    with looked_at(path) as tab:
        assert "bound by" in tip(tab, "circle")
