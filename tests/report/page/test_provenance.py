"""Does a page say where its numbers come from? Oracle: the descriptions themselves."""

from __future__ import annotations

import pytest

from sim.report.page.markup import Figures
from sim.report.page.provenance import prices, provenance
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


def test_prices_have_their_date_region_and_market() -> None:
    text = Page(provenance(case_answer("exchange").run, 0, Figures(document("exchange"), "run"))).all("tbody")[0].text
    assert "price on demand12.24 USD/h (us-east-1, 2026-07-20)" in text and "price spot" in text and "skypilot-catalog" in text


def test_prices_come_with_day_region_and_source() -> None:
    row = {"hardware": "toy", "market": "spot", "node_usd_per_h": 1.5, "date": "2022-23", "region": None, "source": "a list"}
    (part,) = prices(Figures({"prices": [row]}, "recommend"))
    cells = [cell.text for cell in Page(part.html).all("tr")[1].inside if cell.name in ("th", "td")]
    assert cells == ["toy", "spot", "$1.50/h", "-", "2022-23", "a list"]
    assert prices(Figures({"prices": []}, "recommend")) == []
