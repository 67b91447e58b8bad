"""Does the page of weeks say what its JSON says? Oracles: the printed document, sums, order of quantiles."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

from sim.report.goodput import NAMES
from tests.report.page.browser import browser
from tests.report.page.written import assert_page_is_the_document, document, looked_at, read, verdict, written

COMMAND = ["goodput", "p3.16xlarge", "resnet50", "--nodes", "32", "--days", "20", "--trials", "100", "--reliability", "high"]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(tmp_path_factory.mktemp("goodput"), COMMAND)


def test_figures_are_the_document_s(path: Path) -> None:
    assert_page_is_the_document(path, "goodput", 100)


def test_the_document_adds_up(path: Path) -> None:
    contents = document(path, "goodput")
    assert contents["work_s"] + sum(contents["lost_s"].values()) == pytest.approx(contents["elapsed_s"])
    assert contents["effective_share"] <= contents["ettr"] == contents["goodput"] <= 1
    assert contents["goodput_parts"]["scheduling"] * contents["goodput_parts"]["runtime"] == pytest.approx(contents["goodput"])
    for key in ("effective_share", "days", "interruptions", "cost_usd", "energy_kwh", "co2_kg"):
        (low95, high95), (low50, high50) = contents["interval95"][key], contents["interval50"][key]
        assert low95 <= low50 <= contents["median"][key] <= high50 <= high95
    shares = [step["effective_share"] for step in contents["distribution"]]
    assert all(before <= after for before, after in pairwise(shares))
    assert "\n2.5% of the simulated runs are below" in path.read_text(encoding="utf-8")  # of steps of 2.5%, none is rounded
    assert contents["co2_kg"] == pytest.approx(contents["energy_kwh"] * contents["energy"]["grid"]["kg_per_kwh"])
    assert f"{100 * contents['effective_share']:.1f}" in verdict(read(path))
    name, lost = max(contents["lost_s"].items(), key=lambda item: item[1])
    assert f"and the largest loss is {NAMES[name]} ({100 * lost / contents['elapsed_s']:.1f}%)." in verdict(read(path))


def test_a_job_that_may_die_is_a_page_without_infinities(tmp_path: Path) -> None:
    """Oracle: the document, read as strict JSON; copies to peers and a power cap have their figures."""
    command = [
        "goodput",
        "p3.16xlarge",
        "resnet50",
        "--nodes",
        "4",
        "--days",
        "20",
        "--trials",
        "100",
        "--spares",
        "0",
        "--no-repair",
        "--fast",
    ]
    path = written(tmp_path, [*command, "--failure-rate", "0.003 /d", "--checkpoint", "tiered", "--power-cap", "250 W"])
    assert_page_is_the_document(path, "goodput", 60)
    contents = document(path, "goodput")
    assert 0 < contents["died"]["share"] < 0.5 and not any(word in str(contents) for word in ("inf,", "nan"))
    assert "simulated runs run out of spares and die" in verdict(read(path))
    assert 0 < contents["interruptions"] < 1  # few are not rounded to none
    assert float(verdict(read(path)).split(" interruptions are expected")[0].split()[-1]) == pytest.approx(
        contents["interruptions"], rel=0.05
    )
    assert contents["checkpoint"]["memory"]["load_from_peer_s"] > contents["checkpoint"]["memory"]["load_s"] > 0
    assert contents["energy"]["power_cap"]["step_time_s"] > contents["energy"]["power_cap"]["step_time_without_s"]
    said_of_energy = read(path).all("section", id="energy")[0].text
    grid = contents["energy"]["grid"]
    for said in (grid["source"], grid["year"], "GPUs limited to 250 W", "while waiting or restarting"):
        assert said in said_of_energy


def said_in(path: Path) -> str:
    """Return the text of the page's body."""
    return read(path).all("body")[0].text


def test_a_cost_that_is_unknown_is_not_said_to_include_spares(path: Path, tmp_path: Path) -> None:
    unpriced = written(tmp_path, ["goodput", "hgx-h100", "resnet50", "--nodes", "2", "--days", "2", "--trials", "20", "--fast"])
    assert document(unpriced, "goodput")["cost_usd"] is None
    assert "no price" in said_in(unpriced) and "spares included" not in said_in(unpriced)
    assert "spares included" in said_in(path)


@pytest.mark.skipif(browser() is None, reason="no Chromium or Chrome on this machine")
def test_it_works_in_a_browser(path: Path, tmp_path: Path) -> None:
    """A machine of no region has the long name of a source in its text, which a phone breaks."""
    unpriced = written(tmp_path, ["goodput", "hgx-h100", "resnet50", "--nodes", "32", "--days", "20", "--trials", "50"])
    for page in (path, unpriced):
        with looked_at(page):
            pass
