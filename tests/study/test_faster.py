"""What is a machine with one resource k times as fast? Oracles: closed forms of toys; factors that undo each other."""

from __future__ import annotations

import pytest

from sim.analysis.bottleneck import RESOURCES
from sim.cluster.build import place
from sim.events import Cause
from sim.simulate import simulate
from sim.study.faster import faster, resources_behind
from sim.study.scenario import Scenario, prepare
from sim.training.job import Job
from tests.harness import layer, machine, toy_workload, volume


def step(hardware, workload, resource, factor):
    scaled, jobs = faster(hardware, [Job(workload, place(hardware))], [resource], factor)
    return simulate(scaled, jobs).jobs[0].warm.step_time


@pytest.mark.parametrize("factor", [0.5, 2.0, 10.0])
@pytest.mark.parametrize(
    ("resource", "keys"),
    [
        ("gpu", {}), ("disk", {"loader": "dali_cpu", "sample": 2e6, "inputs": {"num_threads": 9}}),
        ("cpu", {"loader": "dali_cpu", "prep": 2.0, "sample": 1.0, "inputs": {"num_threads": 1}}), ("copy", {"prepared": 20e9}),
        ("pcie", {"prepared": 20e9}),
    ],
)  # fmt: skip
def test_a_step_of_nothing_else_scales_with_it(resource, keys, factor) -> None:
    """Closed form: compute of 0.3 s, a read of 2 s, a preparation of 2 s, a copy of 2 s; the longer of loader and GPU is the step."""
    hardware = machine(1, disk=volume(bandwidth=1e6), pcie=10e9)
    compute = 0.0 if keys else 0.3
    workload = toy_workload([layer(compute / 3, 2 * compute / 3)], samples=100, **keys)
    assert step(hardware, workload, resource, factor) == pytest.approx((2.0 if keys else 0.3) / factor, rel=1e-3)


def test_the_network_scales_with_its_fabric() -> None:
    """Closed form: a ring over two nodes of one GPU, 2 x 1/2 x 4 x 10^7 bytes at 10^8 bytes/s through a core as wide."""
    hardware = machine(1, 2, nic=1e8)
    workload = toy_workload([layer(0.0, 0.0, 10**7)], samples=100)
    assert step(hardware, workload, "network", 4.0) == pytest.approx(0.1, rel=1e-2)


@pytest.mark.parametrize("resource", RESOURCES)
def test_a_factor_and_its_inverse_undo_each_other(resource) -> None:
    """A whole catalog machine, back where it was to rounding: nothing is scaled twice or not at all on the way back."""
    question = prepare(Scenario("p3.8xlarge", "resnet18", nodes=2))
    there = faster(question.hardware, question.jobs, [resource], 4.0)
    back = faster(*there, [resource], 0.25)
    assert back[0] == question.hardware
    assert back[1][0].workload == question.jobs[0].workload
    assert there[0] != question.hardware or there[1][0].workload != question.jobs[0].workload


def test_several_resources_are_scaled_together() -> None:
    question = prepare(Scenario("p3.8xlarge", "resnet18"))
    one = faster(*faster(question.hardware, question.jobs, ["gpu"], 2.0), ["disk"], 2.0)
    assert faster(question.hardware, question.jobs, ["gpu", "disk"], 2.0)[0] == one[0]


@pytest.mark.parametrize(
    ("cause", "resource", "loader", "sped"),
    [
        (Cause.COPY, "n0.dram0", "pytorch", ("copy", "pcie")), (Cause.COPY, "n0.dram0", "dali_gpu", ("pcie",)),
        (Cause.INTERCONNECT, "double NVLink GPU0-GPU3", "pytorch", ("nvlink",)), (Cause.INTERCONNECT, "PCIe port of GPU0", "", ("pcie",)),
        (Cause.PREP, "pin thread", "pytorch", ("copy",)), (Cause.PREP, "cpu cores", "pytorch", ("cpu",)),
        (Cause.FETCH, "memory of other nodes", "pytorch", ("network",)),
        (Cause.NETWORK, "CPU cores that copy for the network", "", ("cpu",)),
        (Cause.NETWORK, "Horovod's cycle", "", ()),
    ],
)  # fmt: skip
def test_what_speeds_up_a_wait(cause, resource, loader, sped) -> None:
    assert resources_behind(cause, resource, loader) == sped
