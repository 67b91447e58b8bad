"""Are recorded resources said in words? Oracles: descriptions of the catalog's links, read by hand."""

from __future__ import annotations

import pytest

from sim.report.resources import describe_resource
from sim.study.scenario import Scenario, answer


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("dram0", "host memory of socket 0"), ("cores", "CPU cores"), ("disk", "disk, bandwidth"), ("disk iops", "disk, I/Os"),
        ("cpu.job0", "decoding on the GPU"), ("nothing of the kind", "nothing of the kind"),
    ],
)  # fmt: skip
def test_resources_of_a_node(name: str, words: str) -> None:
    run = answer(Scenario("p3.2xlarge", "alexnet")).run
    assert describe_resource(run, f"{run.cluster[0].name}.{name}")[0] == words


def test_a_link_says_where_it_leads_and_how_many_are_alike() -> None:
    """Oracle: the node's own links; those that share a recorded name are used alike."""
    run = answer(Scenario("p3.8xlarge", "alexnet")).run
    slot = run.cluster[0]
    live = run.log.links[slot.name]
    link = next(link for link in slot.graph.links if link.startswith("gpu0>") and link in live)
    words, alike = describe_resource(run, live[link])
    assert words.startswith(slot.graph.links[link].description) and "(GPU" in words
    assert alike == sum(name == live[link] for name in live.values())


def test_what_is_no_resource_of_a_node_is_said_as_it_is() -> None:
    run = answer(Scenario("p3.2xlarge", "alexnet")).run
    assert describe_resource(run, "double NVLink GPU0-GPU3") == ("double NVLink GPU0-GPU3", 1)
    assert describe_resource(run, "fabric.leaf 0.up") == ("leaf 0 up of the fabric", 1)
