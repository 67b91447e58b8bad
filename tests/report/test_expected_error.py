"""Which runs does an expected error quote? Oracle: the groups that `hardware/validated.json` has."""

from __future__ import annotations

from sim.report.document import run_document
from sim.report.table import run_text
from sim.study.scenario import Scenario, answer


def test_what_computes_on_processors_quotes_no_gpu() -> None:
    found = answer(Scenario("p3.2xlarge", "resnet18", ("node.gpu.host_cores=1", "node.gpu.name=my-processor")))
    document = run_document(found.run, found.inputs)
    assert document["expected_error"] is None
    assert "expected error: unknown, since no run on this kind of machine was measured" in run_text(found.run, document)


def test_a_gpu_that_nobody_measured_quotes_others() -> None:
    found = answer(Scenario("p3.2xlarge", "resnet18", ("node.gpu.name=my-gpu",)))
    assert "measured runs on one GPU" in run_document(found.run, found.inputs)["expected_error"]["basis"]
