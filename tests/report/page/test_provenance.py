"""Does a page say where its numbers come from? Oracle: the descriptions themselves."""

from __future__ import annotations

from pathlib import Path

import pytest

from sim.cli import main
from sim.report.page.markup import Figures
from sim.report.page.provenance import prices, provenance
from sim.spec.library import load_hardware
from tests.report.page.cases import case_answer, document
from tests.report.page.reading import Page


@pytest.mark.parametrize("case", ["exchange", "one GPU", "servers"])
def test_inputs_come_with_their_sources(case: str) -> None:
    run = case_answer(case).run
    page = Page(provenance(run, 0, Figures(document(case), "run")))
    rows = {row.inside[0].text: row for row in page.all("tr")[1:]}
    node, workload = run.node(0), run.jobs[0].job.workload
    for name in (f"GPU {node.gpu.name}", "host", "network", f"model {workload.model.name}", f"stack {workload.training.stack.name}"):
        assert rows[name].text
    gpu = rows[f"GPU {node.gpu.name}"].text
    sources = node.gpu.source.values() if not isinstance(node.gpu.source, str) else [node.gpu.source]
    assert all(source in gpu for source in sources)
    prints = document(case)["inputs_sha256"]
    assert [element.text for element in page.all("code")] == list(prints.values())


def test_prices_have_their_date_region_and_market(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STALLSIM_TODAY", "2026-10-18")
    text = Page(provenance(case_answer("exchange").run, 0, Figures(document("exchange"), "run"))).all("tbody")[0].text
    assert (
        "price on demand12.24 USD/h (us-east-1, 2026-07-20)" in text
        and "2025-06, more than 90 days old" in text
        and "skypilot-catalog" in text
    )


def test_prices_come_with_day_region_and_source() -> None:
    row = {"hardware": "toy", "market": "spot", "node_usd_per_h": 1.5, "date": "2022-23", "region": None, "source": "a list"}
    (part,) = prices(Figures({"prices": [row]}, "recommend"))
    cells = [cell.text for cell in Page(part.html).all("tr")[1].inside if cell.name in ("th", "td")]
    assert cells == ["toy", "spot", "$1.50/h", "-", "2022-23, old", "a list"]
    assert prices(Figures({"prices": []}, "recommend")) == []


COMMANDS = {
    "run": ["run", "p3.2xlarge", "alexnet", "--fast"],
    "layout": ["run", "p4d.24xlarge", "llama-3.2-1b", "--tp", "8", "--fast"],
    "scaling": ["run", "p3.2xlarge", "alexnet", "--nodes", "1..2", "--fast"],
    "sweep": ["sweep", "p3.2xlarge", "alexnet", "--vary", "batch=16,32", "-o", "points.csv"],
    "goodput": ["goodput", "p4d.24xlarge", "llama-3.2-1b", "--tp", "8", "--days", "3", "--trials", "5", "--spares", "0"],
}


@pytest.mark.parametrize("command", COMMANDS)
def test_every_page_with_dollars_has_its_prices_and_marks_old_ones(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Oracle: the description's price of 2026-07-20, 90 days before 2026-10-18."""
    monkeypatch.chdir(tmp_path)
    for day, mark in (("2026-10-18", ""), ("2026-10-19", ", old")):
        monkeypatch.setenv("STALLSIM_TODAY", day)
        assert main([*COMMANDS[command], "--html", "page.html", *(["--force"] if command == "sweep" else [])]) == 0
        page = Page(Path("page.html").read_text(encoding="utf-8"))
        shown = next(row for row in page.all("tr") if "date" in row.text and "region" in row.text)
        first = page.all("tr")[page.all("tr").index(shown) + 1]
        cells = [cell.text for cell in first.inside if cell.name in ("th", "td")]
        own = load_hardware(COMMANDS[command][1]).spec.groups[0].price
        assert own is not None and cells[1:5] == ["on demand", f"${3600 * (own.on_demand or 0):.2f}/h", "us-east-1", f"2026-07-20{mark}"]


def test_a_price_without_a_day_is_undated() -> None:
    row = {"hardware": "toy", "market": "spot", "node_usd_per_h": 1.5, "date": "", "region": None, "source": "a list"}
    (part,) = prices(Figures({"prices": [row]}, "recommend"))
    assert "undated" in [cell.text for cell in Page(part.html).all("tr")[1].inside]
