"""Does the page of a spot job say what its JSON says? Oracles: the printed document, order and counts of quantiles."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from sim.report.page.spot import spot_page
from tests.report.page.browser import browser
from tests.report.page.reading import Page
from tests.report.page.written import assert_page_is_the_document, document, looked_at, read, tip, verdict, written


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    command = ["spot", "p3.2xlarge", "resnet18", "--workers", "2", "--epochs", "60", "--trials", "200", "--jobs", "1"]
    return written(tmp_path_factory.mktemp("spot"), command)


def test_figures_are_the_document_s(path: Path) -> None:
    assert_page_is_the_document(path, "spot", 50)  # 41 quantiles stand at few turns of the curves


def test_the_verdict_compares_with_on_demand(path: Path) -> None:
    contents = document(path, "spot")
    saved = 1 - contents["spot"]["cost_usd"]["mean"] / contents["on_demand"]["cost_usd"]
    longer = contents["spot"]["time_s"]["mean"] / contents["on_demand"]["time_s"] - 1
    assert saved > 0 and longer > 0
    assert verdict(read(path)) == f"Spot saves {100 * saved:.0f}% of the cost and takes {100 * longer:.0f}% longer."


def test_curves_rise_to_all_runs_through_every_quantile(path: Path) -> None:
    """Oracle: a distribution rises, from the least to all; between its turns lie all quantiles of the document, and the table's middle."""
    contents, dots = document(path, "spot"), read(path).all("circle")
    quantiles = contents["distribution"]
    assert len(quantiles) > 20
    for key in ("time_s", "cost_usd"):
        drawn = [
            (float(dot.attributes["data-x"]), float(dot.attributes["data-y"]))
            for dot in dots if dot.attributes["data-x-at"].endswith(key)
        ]  # fmt: skip
        assert all(one <= other for one, other in pairwise(drawn)) and drawn[-1][1] == 1.0
        xs, shares = zip(*drawn, strict=True)
        met = np.interp([quantile["share"] for quantile in quantiles], shares, xs)
        assert met == pytest.approx([quantile[key] for quantile in quantiles], rel=1e-9)
        assert np.interp(0.5, shares, xs) == pytest.approx(contents["spot"][key]["p50"], rel=0.01)


def test_without_a_price_or_a_revocation_it_still_tells(path: Path) -> None:
    contents = document(path, "spot")
    unpriced = contents | {"saving": None, "on_demand": {"time_s": contents["on_demand"]["time_s"], "cost_usd": None}}
    assert "there is no on-demand price" in verdict(Page(spot_page(unpriced)))
    calm = contents | {"distribution": [quantile | {"time_s": 9.0, "cost_usd": 1.0} for quantile in contents["distribution"]]}
    page = Page(spot_page(calm))
    assert not page.all("circle") and any("none is interrupted" in text.text for text in page.all("p"))


@pytest.mark.skipif(browser() is None, reason="no Chromium or Chrome on this machine")
def test_it_works_in_a_browser(path: Path) -> None:
    with looked_at(path) as tab:
        assert "of the simulated runs stay within it" in tip(tab, "circle")
