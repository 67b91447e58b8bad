"""Is the time that links need for a step's traffic a lower bound, and close where they are slow? Against closed forms and simulation."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import strategies as st

from sim.mesh import layout_scene, prepare
from sim.training.layouts.bound import least_time
from sim.training.layouts.link_bound import least_link_time
from sim.training.layouts.play import play
from tests.examples import examples
from tests.harness import machine
from tests.training.layouts.drawn_layouts import layouts, model, stacks
from tests.training.layouts.toys import BACKWARD, FORWARD, blocks, played, workload

MESSAGE, NIC = 4e6, 1e8
OVERLAPS = {"framework": "megatron", "pipeline_overlap": True}


def test_messages_between_two_stages_take_turns_on_their_nics() -> None:
    """Four chunks on two stages: three of six messages of a micro-batch leave each node, none before a forward or after a backward."""
    micro_batches = 16
    layers = [each.model_copy(update={"read": MESSAGE, "write": MESSAGE}) for each in blocks(4)]
    pipeline = {"pipeline": 2, "schedule": "interleaved_1f1b", "virtual_stages": 2}
    given = workload(layers, mesh=OVERLAPS, micro_batches=micro_batches, **pipeline)
    scene, done = played(machine(1, 2, nic=NIC, pcie=1e15), given)
    assert least_link_time(scene) == pytest.approx(FORWARD + 3 * micro_batches * MESSAGE / NIC + BACKWARD, rel=1e-6)
    assert least_link_time(scene) <= done.time * (1 + 1e-9)


def test_gathers_of_shards_and_replicas_share_a_nic() -> None:
    """Oracle: the bytes that the step loads each NIC with. Shards of two nodes and their replicas on two more reduce at the same time."""
    given = workload(blocks(6, elements=1_000_000), shard="parameters", replicate=2, micro_batches=2)
    scene, done = played(machine(1, 4, nic=1e7, pcie=1e15), given)
    assert 0.95 * done.time < least_link_time(scene) <= done.time * (1 + 1e-9)


def test_no_traffic_takes_no_time_of_a_link() -> None:
    scene, _ = played(machine(1), workload(blocks(2)))
    assert least_link_time(scene) == 0.0


@examples(12, 60, layouts(), stacks(), st.sampled_from((2e6, 5e7)), st.sampled_from((2e6, 2e8)), st.sampled_from((1, 2, 3)))
def test_no_step_is_shorter_than_the_traffic_of_a_link(
    drawn: tuple[dict[str, Any], int, int], stack: dict[str, Any], nic: float, nvlink: float, times: int
) -> None:
    """Also with few steps, in which queues may not have settled."""
    fields, each, nodes = drawn
    hardware = machine(each, nodes, nvlink=nvlink, nic=nic, launch=1e-4)
    given = workload(model(), **stack, **fields | {"micro_batches": times * fields["micro_batches"]})
    scene = layout_scene(hardware, given, prepare(hardware, given))
    assert least_time(scene) <= play(scene).time * (1 + 1e-9)
    assert least_link_time(scene) <= play(scene, 3).time * (1 + 1e-9)
