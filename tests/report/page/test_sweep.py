"""Does the page of a sweep say what its table says? Oracles: the CSV beside the page, maxima by hand."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from sim.cli import main
from sim.report.page.sweep import verdict_of
from tests.report.page.browser import browser
from tests.report.page.reading import assert_figures_are_the_documents, assert_well_made, assert_words_are_the_figures
from tests.report.page.written import looked_at, read, tip, verdict


def swept(folder: Path, *varied: str) -> Path:
    options = [word for text in varied for word in ("--vary", text)]
    command = ["sweep", "p3.8xlarge", "alexnet", "--nodes", "2", *options, "-o", str(folder / "s.csv"), "--html", str(folder / "page.html")]
    assert main([*command, "--jobs", "1", "-q"]) == 0
    return folder / "page.html"


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return swept(tmp_path_factory.mktemp("sweep"), "node.nic.bandwidth=10..100 Gbps:3", "batch=64,128")


@pytest.fixture(scope="module")
def rows(path: Path) -> list[dict[str, str]]:
    with (path.parent / "s.csv").open() as file:
        return list(csv.DictReader(file))


def test_figures_are_the_document_s(path: Path) -> None:
    page = read(path)
    assert assert_figures_are_the_documents(page) > 40
    assert assert_words_are_the_figures(page) > 20
    assert_well_made(page)


def test_every_point_is_a_dot_over_every_field(path: Path, rows: list[dict[str, str]]) -> None:
    dots = read(path).all("circle")
    assert len(dots) == 2 * len(rows) == 12
    assert {float(dot.attributes["data-y"]) for dot in dots} == {float(row["throughput_samples_per_s"]) for row in rows}
    assert {float(dot.attributes["data-x"]) for dot in dots} == {10.0, 55.0, 100.0, 64.0, 128.0}


def test_the_verdict_is_the_fastest_point(path: Path, rows: list[dict[str, str]]) -> None:
    highest = max(float(row["throughput_samples_per_s"]) for row in rows)
    best = [row for row in rows if f"{float(row['throughput_samples_per_s']):,.0f}" == f"{highest:,.0f}"]
    one = f"bandwidth {best[0]['node.nic.bandwidth']}, batch {best[0]['batch']}, "
    assert verdict(read(path)).startswith(f"Fastest: {len(best)} equal points, such as {one}") and len(best) > 2
    assert sum("best" in dot.attributes["class"].split() for dot in read(path).all("circle")) == 2 * len(best)


def test_equal_points_are_not_told_apart() -> None:
    """By hand: which points share the largest rate and the least cost as they are shown."""

    def words(*points: tuple[str, float, float | None]) -> str:
        rows = [
            {"point": {"training.batch": name}, "throughput_samples_per_s": rate, "cost_per_epoch_usd": cost} for name, rate, cost in points
        ]
        return verdict_of({"rows": rows, "influence": {}}).replace("\u00a0", " ")

    assert words(("8", 100.0, 2.0), ("16", 200.0, 1.0)) == "Fastest: batch 16, 200 samples/s."
    assert words(("8", 200.01, 2.0), ("16", 200.0, 1.0)) == "Fastest: batch 8 and batch 16, 200 samples/s."
    assert words(("8", 200.0, 2.0), ("16", 200.0, 2.0), ("32", 100.0, 1.0), ("64", 100.0, 1.0)) == (
        "Fastest: batch 8 and batch 16, 200 samples/s. Cheapest: batch 32 and batch 64, $1.00 per epoch."
    )
    assert words(*[(str(size), 200.0, None) for size in (8, 16, 32)], ("64", 9.0, None)) == (
        "Fastest: 3 equal points, such as batch 8, 200 samples/s."
    )
    assert words(*[(str(size), 200.0, None) for size in (8, 16, 32)]) == "Fastest: all 3 equal points, such as batch 8, 200 samples/s."


def test_equal_points_are_all_marked(tmp_path: Path) -> None:
    """A disk that the step never waits for changes nothing: each point is the fastest."""
    page = read(swept(tmp_path, "node.storage.iops=64000..128000 IOPS:3"))
    dots = page.all("circle")
    assert len({f"{float(dot.attributes['data-y']):.4g}" for dot in dots}) == 1
    assert sum("best" in dot.attributes["class"].split() for dot in dots) == 3
    assert "the 3 fastest points, which are equal" in "".join(paragraph.text for paragraph in page.all("p"))


def test_rates_below_a_hundred_keep_three_digits(tmp_path: Path) -> None:
    # Whole numbers would write 7, 8, 8 in the table, and the same tick several times.
    varied = "node.gpu.memory_bandwidth=1.67..4.185 TB/s:3"
    command = ["sweep", "hgx-h100", "llama-3.1-8b", "--shard", "parameters", "--batch", "1", "--vary", varied, "--jobs", "1", "-q"]
    assert main([*command, "-o", str(tmp_path / "s.csv"), "--html", str(tmp_path / "page.html")]) == 0
    with (tmp_path / "s.csv").open() as file:
        rates = [float(row["throughput_samples_per_s"]) for row in csv.DictReader(file)]
    page = read(tmp_path / "page.html")
    shown = [f"{rate:.3g}" for rate in rates]
    assert max(rates) < 99.5 and len(set(shown)) == 3
    assert {*shown} <= {cell.text for cell in page.all("td")}
    assert f"{max(rates):.3g} samples/s" in verdict(page).replace("\u00a0", " ")
    ticks = [tick.text for tick in page.all("text") if tick.attributes.get("class", "") == "tick up"]
    assert len(ticks) == len(set(ticks)) > 2


def test_what_is_common_to_all_points_is_said(path: Path) -> None:
    page = read(path)
    assert "set for all points: nodes=2" in {item.text for item in page.all("li")}
    assert {"GPU V100-SXM2-16GB", "model alexnet"} <= {cell.text for cell in page.all("th")}


def test_fields_of_words_have_no_chart_and_what_cannot_run_is_listed(tmp_path: Path) -> None:
    page = read(swept(tmp_path, "stack=torch-1.13-ddp,apex-per-tensor", "batch=64,100000"))
    titles = {head.text for head in page.all("h2")}
    assert "Over stack" not in titles and "Points that cannot run" in titles
    assert len([item for item in page.all("li") if "batch 100000" in item.text]) == 2


@pytest.mark.skipif(browser() is None, reason="no Chromium or Chrome on this machine")
def test_it_works_in_a_browser(path: Path) -> None:
    with looked_at(path) as tab:
        assert "samples/s" in tip(tab, "circle")
