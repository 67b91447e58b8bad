"""Do pages say on what they rest? Oracles: the document beside the page, descriptions as the catalog has them."""

from __future__ import annotations

from pathlib import Path

import pytest

from sim.report.page.basis import basis
from sim.report.page.markup import Figures
from sim.study.descriptions import descriptions
from sim.study.scenario import Scenario
from tests.report.page.reading import Page
from tests.report.page.written import document, read, written

COMMANDS = {
    "profile": ["profile", "p3.8xlarge", "alexnet"],
    "compare": ["compare", "alexnet", "p3.2xlarge", "p3.8xlarge", "--jobs", "1"],
    "recommend": ["recommend", "alexnet", "p3.2xlarge", "p3.8xlarge", "--budget-hours", "9", "--nodes", "1", "--jobs", "1"],
    "spot": ["spot", "p3.2xlarge", "alexnet", "--epochs", "2", "--trials", "20", "--jobs", "1"],
    "whatif": ["whatif", "p3.8xlarge", "alexnet"],
    "collective": ["collective", "p3.8xlarge", "--bytes", "1MiB"],
    "share": ["share", "p3.16xlarge", "four-on-eight-gpus", "--policy", "even"],
}


@pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.nightly) if name == "share" else name for name in COMMANDS])
def test_a_page_has_assumptions_inputs_sources_and_fingerprints(name: str, tmp_path: Path) -> None:
    """Every line of the document's, the machine's GPU with its source, and each SHA-256 stand on the page."""
    path = written(tmp_path, COMMANDS[name])
    page, contents = read(path), document(path, name)
    lines = {item.text for item in page.all("li")}
    assert contents["assumptions"] and {*contents["assumptions"], *contents["warnings"]} <= lines
    assert {code.text for code in page.all("code")} == set(contents["inputs_sha256"].values())
    heads = {cell.text for cell in page.all("th")}
    assert {"GPU V100-SXM2-16GB", "links between GPUs", "host"} <= heads
    assert ("model alexnet" in heads) == (name != "collective")
    assert any("Lightning-AI" in cell.text for cell in page.all("td"))


def test_several_descriptions_are_folded_away_by_name() -> None:
    contents = {"assumptions": ["as it is"], "warnings": ["odd"], "version": "1", "inputs_sha256": {"a": "f00"}}
    both = descriptions(Scenario("", "alexnet"), ["p3.8xlarge", "p3.2xlarge"])
    assumed, inputs = basis(Figures(contents, "whole"), both)
    assert [item.text for item in Page(str(assumed.html)).all("li")] == ["as it is", "odd"]
    assert {"p3.8xlarge", "p3.2xlarge"} <= {summary.text for summary in Page(str(inputs.html)).all("summary")}


def test_groups_of_a_machine_are_told_apart() -> None:
    contents = {"assumptions": [], "warnings": [], "version": "1", "inputs_sha256": {}}
    _, inputs = basis(Figures(contents, "whole"), descriptions(Scenario("cm-dare-p100", "resnet50", stack="tf-parameter-server")))
    assert {"worker: host", "server: host"} <= {cell.text for cell in Page(str(inputs.html)).all("th")}
