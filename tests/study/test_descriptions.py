"""Which descriptions are read? Oracles: names and overrides as given."""

from __future__ import annotations

import pytest

from sim.spec.yaml import SpecError
from sim.study.descriptions import descriptions
from sim.study.scenario import Scenario


def test_overrides_reach_machine_and_workload() -> None:
    read = descriptions(Scenario("p3.2xlarge", "alexnet", ("node.nic.bandwidth=7 Gbps", "input.num_workers=3"), precision="amp_fp16"))
    assert [machine.groups[0].node.nic.bandwidth for machine in read.hardware] == [7e9 / 8]
    assert [(workload.input.num_workers, workload.training.precision) for workload in read.workloads] == [(3, "amp_fp16")]


def test_several_machines_stand_once_each_and_in_order() -> None:
    read = descriptions(Scenario("", "alexnet"), ["p3.8xlarge", "p3.2xlarge", "p3.8xlarge"])
    assert [machine.name for machine in read.hardware] == ["p3.8xlarge", "p3.2xlarge"]


def test_a_file_of_jobs_reads_each_workload_once() -> None:
    read = descriptions(Scenario("p3.16xlarge", "four-on-eight-gpus"))
    assert [workload.name for workload in read.workloads] == ["alexnet", "vgg16", "resnet50", "shufflenet_v2_x0_5"]


def test_what_cannot_be_read_is_refused() -> None:
    with pytest.raises(SpecError, match=r"p3\.2xlarg"):
        descriptions(Scenario("p3.2xlarg", "alexnet"))
