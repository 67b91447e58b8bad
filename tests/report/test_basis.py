"""Are assumptions of many runs said once? Oracles: lines written by hand, and each run's own document."""

from __future__ import annotations

from sim.documents import document
from sim.report.basis import merged_basis, merged_by_machine, run_basis
from sim.study.scenario import Scenario, answer


def test_what_all_say_comes_first_and_bare() -> None:
    lines = {"a": ["a has no disk", "rest"], "b": ["rest", "b has no disk", "cold"]}
    assert merged_by_machine(lines) == ["each has no disk", "rest", "b: cold"]


def test_who_does_not_say_it_is_named_where_they_are_few() -> None:
    lines = {name: ["warm"] for name in "abcdefg"} | {"h": []}
    assert merged_by_machine(lines) == ["all but h: warm"]
    assert merged_by_machine({"a": ["x"], "b": ["x"], "c": []}) == ["a; b: x"]


def test_one_machine_says_its_own_words() -> None:
    assert merged_by_machine({"a": ["a has no disk"]}) == ["a has no disk"]
    assert merged_by_machine({}) == []


def test_a_line_of_one_machine_of_several_keeps_its_name() -> None:
    """The line of one machine does not say 'each', and names it once."""
    assert merged_by_machine({"a": ["a has no disk"], "b": ["cold in b"]}) == ["a has no disk", "b: cold in b"]
    assert merged_by_machine({"a, 2 nodes": ["a has no disk", "warm"], "b, 2 nodes": []}) == ["a has no disk", "a, 2 nodes: warm"]


def test_a_run_rests_on_what_its_document_says() -> None:
    scenario = Scenario("p3.2xlarge", "alexnet", seed=3)
    answered, full_document = answer(scenario), document(scenario)
    own = run_basis(answered.run, answered.inputs, ["odd"])
    assert own == {key: full_document[key] for key in own} | {"warnings": ["odd", *full_document["warnings"]]}


def test_several_machines_have_a_fingerprint_each() -> None:
    """Oracle: the documents of both; what both read has one entry."""
    documents = [document(Scenario(name, "alexnet", nodes=nodes)) for name, nodes in (("p3.2xlarge", None), ("p3.8xlarge", 2))]
    basis = merged_basis(documents)
    assert basis["inputs_sha256"].keys() == {"workload", "stack", "records", "p3.2xlarge", "p3.8xlarge, 2 nodes"}
    assert basis["inputs_sha256"]["p3.8xlarge, 2 nodes"] == documents[1]["inputs_sha256"]["hardware"]
    assert basis["assumptions"][0] == documents[0]["assumptions"][0] == documents[1]["assumptions"][0]
    assert any(line.startswith("each comes without a volume") for line in basis["assumptions"])


def test_jobs_of_one_machine_are_told_apart_by_their_workloads() -> None:
    documents = [document(Scenario("p3.2xlarge", name)) for name in ("alexnet", "resnet18")]
    basis = merged_basis(documents)
    assert [line for line in basis["assumptions"] if line.startswith("p3.2xlarge, resnet18: ")]
    assert {"p3.2xlarge, alexnet", "p3.2xlarge, resnet18"} <= basis["inputs_sha256"].keys()
