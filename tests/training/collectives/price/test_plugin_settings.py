"""What does a network's plug-in change of NCCL's choices? Oracle: the settings that the plug-ins' sources and setups state."""

from __future__ import annotations

import pytest

from sim.cluster.build import place, slots, with_nodes
from sim.spec.library import load_hardware
from sim.training.collectives.nccl.cost import ChannelPattern
from sim.training.collectives.price.collective_plan import CollectivePlan, Op, Tuning, plan_collectives
from sim.training.collectives.price.machine import machine_of
from sim.training.job import job_slots

SIZES = tuple(2.0**power for power in range(8, 33, 2))


def plan(name: str, nodes: int, tuning: Tuning | None = None, *overrides: str) -> CollectivePlan:
    machine = with_nodes(load_hardware(name, list(overrides)).spec, nodes)
    gpus = machine.groups[0].node.gpu_count * nodes
    return plan_collectives(job_slots(0, slots(machine, [place(machine, gpus)])), machine.fabric, tuning or Tuning("2.30"))


def chosen(of: CollectivePlan, op: Op = "all_reduce") -> set[tuple[str, str]]:
    return {of.choice(size, op)[:2] for size in SIZES}


@pytest.mark.parametrize("name", ["p4d.24xlarge", "p4de.24xlarge"])
@pytest.mark.parametrize("op", ["all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce"])
def test_efa_with_sends_and_receives_allows_only_simple(name: str, op: Op) -> None:
    """aws/aws-ofi-nccl issue 76: EFA supports neither LL nor LL128; one node of them has no network."""
    assert {protocol for _, protocol in chosen(plan(name, 2), op)} == {"Simple"}
    assert {protocol for _, protocol in chosen(plan(name, 1), op)} > {"Simple"}


def test_efa_with_rdma_writes_allows_all_protocols() -> None:
    """aws/aws-ofi-nccl pull request 280: p5 writes data in order often enough for LL and LL128."""
    assert {protocol for _, protocol in chosen(plan("p5.48xlarge", 2))} == {"LL", "LL128", "Simple"}


@pytest.mark.parametrize(
    ("name", "algorithms"), [("a3-megagpu-8g", {"Ring", "Tree"}), ("a3-highgpu-8g", {"Ring"}), ("p4d.24xlarge", {"Ring", "Tree"})]
)
def test_googles_setups_name_their_algorithms(name: str, algorithms: set[str]) -> None:
    """Without a setting, H100s would reduce in NVSwitch. Operations that only a ring can run are unaffected."""
    between = plan(name, 2)
    assert {algorithm for algorithm, _ in chosen(between)} <= algorithms
    assert {algorithm for algorithm, _ in chosen(between, "all_gather")} == {"Ring"}
    assert set(between.considered_costs(2.0**20)) == algorithms


def test_a_stack_overrides_what_a_plugin_sets() -> None:
    """A plug-in leaves a variable alone that is set (setenv without overwriting)."""
    assert {protocol for _, protocol in chosen(plan("p4d.24xlarge", 2, Tuning("2.30", protocols="LL128")))} == {"LL128"}
    assert {algorithm for algorithm, _ in chosen(plan("a3-megagpu-8g", 2, Tuning("2.30", "NVLSTree")))} == {"NVLSTree"}


@pytest.mark.parametrize("version", ["2.3", "2.4"])
def test_releases_before_the_tuner_keep_their_algorithms(version: str) -> None:
    """They have no NVLSTree to leave out, and 2.3 no trees, so that a3's list would be an error; all have Simple."""
    for name in ("p4d.24xlarge", "a3-megagpu-8g"):
        assert {protocol for _, protocol in chosen(plan(name, 2, Tuning(version)))} == {"Simple"}


@pytest.mark.parametrize("name", ["p5.48xlarge", "p5e.48xlarge", "p5en.48xlarge"])
def test_nccl_sees_the_cards_of_a_gpu_as_one(name: str) -> None:
    """aws/aws-ofi-nccl issue 890: eight cards of 400 Gbps, as many channels at 48 GB/s, and as many heads in NVSwitch."""
    machine = machine_of(plan(name, 2).layout, "2.30")
    assert machine.ring == ChannelPattern(8, 48e9, 48e9)
    assert machine.nvls is not None and machine.nvls.channels == 8 and machine.nvls.inter == 48e9
    assert "NVLSTree" in {algorithm for algorithm, _ in chosen(plan(name, 2))}
