"""Which runs does an expected error quote? Oracle: the groups that `hardware/validated.json` has."""

from __future__ import annotations

import pytest

from sim.cluster.build import place
from sim.report.document import run_document
from sim.report.expected_error import traffic
from sim.report.table import run_text
from sim.spec.catalogue import locate
from sim.spec.hardware import Hardware
from sim.spec.library import load
from sim.spec.workload import Workload
from sim.study.scenario import Scenario, answer
from sim.training.job import Job


def test_what_computes_on_processors_quotes_no_gpu() -> None:
    found = answer(Scenario("p3.2xlarge", "resnet18", ("node.gpu.host_cores=1", "node.gpu.name=my-processor")))
    document = run_document(found.run, found.inputs)
    assert document["expected_error"] is None
    assert "expected error: unknown, since no run on this kind of machine was measured" in run_text(found.run, document)


def test_a_gpu_that_nobody_measured_quotes_others() -> None:
    found = answer(Scenario("p3.2xlarge", "resnet18", ("node.gpu.name=my-gpu",)))
    assert "measured runs on one GPU" in run_document(found.run, found.inputs)["expected_error"]["basis"]


@pytest.mark.parametrize(
    ("machine", "gpus", "overrides", "said"),
    [
        ("p4d.24xlarge", "8", (), "NVLink"),
        ("p4d.24xlarge", "1", (), "one GPU"),
        ("p4d.24xlarge", "8", ("node.topology.nvlink=null", "node.topology.peer_to_peer=none"), "host memory"),
        ("p4d.24xlarge", "8", ("node.topology.isolated=nic",), "efa inside a node"),
        ("p4d.24xlarge", "8", ("node.topology.nvlink=null", "node.topology.peer_to_peer=sys"), "PCIe"),
        ("p4d.24xlarge", "8", ("node.topology.nvlink=null", "node.topology.peer_to_peer=phb"), "host memory"),
        ("p4d.24xlarge", "4", ("node.topology.nvlink=null", "node.topology.peer_to_peer=phb"), "PCIe"),
    ],
)
def test_gpus_that_cannot_address_each_other_are_a_group_of_their_own(
    machine: str, gpus: str, overrides: tuple[str, ...], said: str
) -> None:
    """The descriptions: four GPUs of p4d.24xlarge lie below each socket."""
    hardware = load(Hardware, locate(machine, "hardware"), overrides).spec
    workload = load(Workload, locate("resnet18", "workloads")).spec
    assert traffic(hardware.groups[0].node, Job(workload, place(hardware, None, gpus))) == said
