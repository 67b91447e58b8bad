"""Does the page of a recommendation say what its JSON says? Oracles: the printed document, brute force over its candidates."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sim.analysis.whole_job import WholeJob
from sim.report.page.colors import PARTS
from sim.report.page.recommendation import recommendation_page
from tests.report.page.browser import browser
from tests.report.page.reading import Page
from tests.report.page.written import assert_page_is_the_document, document, looked_at, read, tip, verdict, written

MACHINES = ["p3.2xlarge", "p3.8xlarge", "g4dn.xlarge", "dgx-2"]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    command = ["recommend", "resnet18", *MACHINES, "--budget-hours", "3", "--epochs", "4", "--nodes", "1..2", "--jobs", "1"]
    return written(tmp_path_factory.mktemp("recommend"), command)


def test_figures_are_the_document_s(path: Path) -> None:
    assert_page_is_the_document(path, "recommend", 60)


def test_the_verdict_is_the_cheapest_within_the_time(path: Path) -> None:
    answer = document(path, "recommend")
    met = [candidate for candidate in answer["candidates"] if candidate["total_time_s"] <= 3 * 3600]
    cheapest = min(met, key=lambda candidate: candidate["total_cost_usd"])
    assert f"{cheapest['hardware']} ({cheapest['provider']}, {cheapest['market'].replace('_', ' ')})" in verdict(read(path))
    assert f"${cheapest['total_cost_usd']:.2f}" in verdict(read(path))


def test_every_candidate_is_a_point_and_the_best_is_marked(path: Path) -> None:
    answer, page = document(path, "recommend"), read(path)
    dots = page.all("circle")
    assert sorted(float(dot.attributes["data-x"]) for dot in dots) == sorted(row["total_time_s"] for row in answer["candidates"])
    chosen = [dot for dot in dots if "chosen" in dot.attributes["class"].split()]
    assert [float(dot.attributes["data-y"]) for dot in chosen] == [answer["best"]["total_cost_usd"]]


def test_every_candidate_has_error_bars_for_time_and_cost(path: Path) -> None:
    answer, bars = document(path, "recommend"), [bar.attributes["d"] for bar in read(path).all("path", class_="error")]
    told = sum(row["expected_error"] is not None for row in answer["candidates"])
    assert sum("H" in bar for bar in bars) == sum("V" in bar for bar in bars) == told > 0


def test_the_pareto_front_is_orange_and_a_line(path: Path) -> None:
    """Oracle: no other candidate is faster and cheaper."""
    answer, page = document(path, "recommend"), read(path)
    points = [(row["total_time_s"], row["total_cost_usd"]) for row in answer["candidates"]]
    best = {point for point in points if not any(x <= point[0] and y <= point[1] and (x, y) != point for x, y in points)}
    orange = [dot for dot in page.all("circle") if "best" in dot.attributes["class"].split()]
    assert {(float(dot.attributes["data-x"]), float(dot.attributes["data-y"])) for dot in orange} == best
    [line] = page.all("polyline", class_="front")
    assert len(line.attributes["points"].split()) == len(best) > 1


def test_a_long_page_is_folded(path: Path) -> None:
    """What holds for all stays open; folded: candidates beyond the 25th, prices and assumptions of some machines."""
    answer = document(path, "recommend")
    each = [answer["candidates"][0] | {"hardware": f"m{number}"} for number in range(40)]
    names = [f"m{number}" for number in range(40)]
    lines = ["of all", *(f"{'; '.join(names[number:])}: batch {number}" for number in range(1, 20))]
    prints = answer["inputs_sha256"] | dict.fromkeys(names, "f00")
    left_out = {name: f"{name}: no price; --price {name}='10 USD/h' sets it" for name in names}
    many = answer | {"candidates": each, "assumptions": lines, "inputs_sha256": prints, "left_out": left_out}
    page = Page(recommendation_page(many | {"prices": answer["prices"] * 10}))
    folds = {fold.text for fold in page.all("summary")}
    assert {"All 40 candidates", f"{10 * len(answer['prices'])} prices", "19 assumptions about some machines"} <= folds
    assert "batch 1 (39 machines)" in folds and "of all" in {item.text for item in page.all("li")}
    assert sum(item.text.endswith("no price; --price HW='10 USD/h' sets it") for item in page.all("li")) == 1


def test_parts_of_a_bar_are_the_whole_job(path: Path) -> None:
    answer, page = document(path, "recommend"), read(path)
    pieces = [piece for piece in page.all("div", class_="piece") if "candidates/0/" in piece.attributes["data-at"]]
    assert sum(float(piece.attributes["data-value"]) for piece in pieces) == pytest.approx(answer["best"]["total_time_s"], rel=1e-3)
    assert set(WholeJob._fields) == set(PARTS)  # every part has a color


def test_notes_and_machines_left_out_are_said(path: Path) -> None:
    answer, items = document(path, "recommend"), {item.text for item in read(path).all("li")}
    assert answer["notes"] and set(answer["notes"]) <= items
    assert answer["left_out"] and all(any(name in item for item in items) for name in answer["left_out"])


def test_a_budget_that_nothing_meets_names_the_nearest(path: Path) -> None:
    answer = document(path, "recommend")
    near = answer["candidates"][0] | {"within_budget": False}
    count = f"{near['nodes']} x " if near["nodes"] > 1 else ""
    missed = answer | {"best": None, "runner_up": None, "nearest": near, "candidates": [near], "budget": {"time_s": None, "money_usd": 0.5}}
    page = Page(recommendation_page(json.loads(json.dumps(missed))))
    assert verdict(page).startswith(f"Nothing meets $0.50. Closest is {count}{near['hardware']} ({near['provider']}, ")
    assert not [dot for dot in page.all("circle") if "chosen" in dot.attributes["class"].split()]
    assert not any("the recommendation" in caption.text for caption in page.all("figcaption"))


def test_where_nothing_runs_it_says_so(path: Path) -> None:
    nothing = document(path, "recommend") | {
        "best": None,
        "runner_up": None,
        "nearest": None,
        "candidates": [],
        "left_out": {"x": "x: no GPU"},
    }
    page = Page(recommendation_page(nothing | {"named": []}))
    assert verdict(page) == "No rentable machine in the catalog can run resnet18." and "x: no GPU" in {item.text for item in page.all("li")}
    assert verdict(Page(recommendation_page(nothing | {"named": ["x"]}))) == "None of these machines can be rented to run resnet18."


@pytest.mark.skipif(browser() is None, reason="no Chromium or Chrome on this machine")
def test_it_works_in_a_browser(path: Path) -> None:
    with looked_at(path) as tab:
        assert "within the budget" in tip(tab, "circle.best")
        assert "epoch" in tip(tab, "#parts .piece:nth-child(2)")
