"""Does the page of a difference say what its JSON says? Oracles: the documents of both runs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sim.cli import main
from tests.report.page.browser import browser
from tests.report.page.written import assert_page_is_the_document, document, looked_at, read, tip, verdict, written


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("diff")
    for name, more in (("before", []), ("after", ["--set", "node.nic.bandwidth=25 Gbps"])):
        assert main(["run", "p3.8xlarge", "vgg11", "--nodes", "2", "--fast", "-q", *more, "-o", str(folder / name)]) == 0
    return written(folder, ["diff", str(folder / "before"), str(folder / "after")])


def test_figures_are_the_document_s(path: Path) -> None:
    assert_page_is_the_document(path, "diff", 20)


def test_both_runs_are_on_it(path: Path) -> None:
    documents = read(path).documents()
    for name in ("before", "after"):
        assert documents[name] == json.loads((path.parent / name / "run.json").read_text())


def test_the_verdict_names_the_cause(path: Path) -> None:
    contents = document(path, "diff")
    assert contents["cause"] == "network" and "network -" in verdict(read(path))


def test_bars_are_as_long_as_steps(path: Path) -> None:
    """Of one chart: widths of a bar's pieces sum to its step over the longer one."""
    step_times = document(path, "diff")["step_time_s"]
    bars = [bar for bar in read(path).all("div", class_="stack")][:2]
    for bar, step in zip(bars, step_times, strict=True):
        styles = [piece.attributes["style"] for piece in bar.inside if piece.name == "div"]
        widths = [float(style.split(";")[0].removeprefix("width:").removesuffix("%")) for style in styles]
        assert sum(widths) == pytest.approx(100 * step / max(step_times), abs=0.1)


def test_inputs_that_differ_are_listed(path: Path) -> None:
    assert "node.nic.bandwidth: 10 Gbps -> 25 Gbps" in {item.text for item in read(path).all("li")}


def test_equal_runs_say_so(path: Path, tmp_path: Path) -> None:
    before = str(path.parent / "before")
    page = read(written(tmp_path, ["diff", before, before]))
    assert verdict(page) == "The two runs are identical."


@pytest.mark.skipif(browser() is None, reason="no Chromium or Chrome on this machine")
def test_it_works_in_a_browser(path: Path) -> None:
    with looked_at(path) as tab:
        assert "of each step" in tip(tab, "div.mark")
