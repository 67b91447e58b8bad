"""Is the time of gathers, work and reductions in turn a lower bound, and close where links are slow? Closed forms and simulation."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import strategies as st

from sim.mesh import layout_scene, prepare
from sim.parallel.program import Message
from sim.spec.parallel import MEGATRON_ORDER
from sim.study.plan.question import PlanQuestion, prepare_plan
from sim.study.plan.refine import PlacedLayout, workload_and_layout
from sim.study.scenario import Scenario
from sim.training.layouts.bound import _least_cycle
from sim.training.layouts.link_bound import least_link_time
from sim.training.layouts.phase_bound import _unlike_links, least_phased_time
from sim.training.layouts.play import play
from tests.examples import examples
from tests.harness import machine
from tests.training.layouts.drawn_layouts import layouts, model, stacks
from tests.training.layouts.toys import BACKWARD, FORWARD, SLOT, block, blocks, played, workload

MEGATRON = {"framework": "megatron", "pipeline_overlap": True}
MEETS = {"gradient_clipping": True}
STAGES_FIRST = ("tensor", "context", "pipeline", "data")
"""Ranks of all stages are on one node, so that their groups share its NIC."""
WEIGHTS, NIC = 4e6, 1e7


def _replicas(stages: int, micro_batches: int, **fields: Any) -> tuple[Any, Any]:
    """Return a scene of two replicas on two nodes, each with *stages* of two blocks of a million elements, and its simulated step."""
    mesh = MEGATRON | {"order": STAGES_FIRST}
    given = workload(blocks(2 * stages, elements=1_000_000), stack=MEETS, mesh=mesh, micro_batches=micro_batches, pipeline=stages, **fields)
    return played(machine(stages, 2, nic=NIC, pcie=1e15, nvlink=1e15), given)


@pytest.mark.parametrize("stages", [1, 2, 4])
def test_gathers_and_reductions_of_all_stages_take_turns_on_a_nic_before_and_after_their_work(stages: int) -> None:
    """Each of two nodes sends half of all weights and of all gradients. No stage's own operation takes longer than its share of that."""
    micro_batches = 8
    scene, done = _replicas(stages, micro_batches, shard="optimizer")
    volume = 2 * stages * WEIGHTS / 2 / NIC
    assert least_phased_time(scene) == pytest.approx(volume + 2 * micro_batches * SLOT + volume, rel=1e-6)
    assert 0.98 * done.time < least_phased_time(scene) <= done.time * (1 + 1e-9)
    if stages > 1:
        assert least_phased_time(scene) > 1.5 * max(_least_cycle(scene), least_link_time(scene))


def test_without_shards_only_the_reductions_follow_the_work() -> None:
    """A ring of two sends all gradients; the first stage's work ends with its last backward, to which the last stage's leads."""
    scene, done = _replicas(2, 8, shard="none")
    assert least_phased_time(scene) == pytest.approx(2 * 8 * SLOT + 2 * 2 * WEIGHTS / NIC, rel=1e-6)
    assert 0.98 * done.time < least_phased_time(scene) <= done.time * (1 + 1e-9)


def test_stages_of_several_chunks_gather_before_and_reduce_after_most_of_their_work() -> None:
    scene, done = _replicas(2, 8, shard="optimizer", schedule="interleaved_1f1b", virtual_stages=2)
    assert 0.98 * done.time < least_phased_time(scene) <= done.time * (1 + 1e-9)
    assert least_phased_time(scene) > 1.4 * max(_least_cycle(scene), least_link_time(scene))


def test_a_stage_with_little_work_may_reduce_soon_after_its_gather() -> None:
    """It may gather last: then both reductions follow a tenth of the work, or the other stage's alone follows what that still has to do.

    All of its work is left if it is the last stage. The first one has done two forwards until a gradient of the little stage arrives.
    """
    little, much = (FORWARD / 10, BACKWARD / 10, 1_000_000), (FORWARD, BACKWARD, 1_000_000)
    gathers, work = 2 * WEIGHTS / NIC, 2 * 8 * SLOT
    for first, last, left in ((little, much, work), (much, little, work - 2 * 2 * FORWARD)):
        layers = [block(number, *(first if number < 2 else last)) for number in range(4)]
        mesh = MEGATRON | {"order": STAGES_FIRST}
        given = workload(layers, stack=MEETS, mesh=mesh, micro_batches=8, pipeline=2, shard="optimizer")
        scene, done = played(machine(2, 2, nic=NIC, pcie=1e15, nvlink=1e15), given)
        assert least_phased_time(scene) <= done.time * (1 + 1e-9)
        assert least_phased_time(scene) == pytest.approx(gathers + max(work / 10 + gathers, left + gathers / 2), rel=0.005)


def test_links_that_carry_the_same_are_bounded_once() -> None:
    """Against the seconds of each link by itself: gathers of weights and reductions of gradients load the same links on both sides."""
    scene, _ = _replicas(4, 8, shard="optimizer")
    kinds = [(stage, "shard", (Message(op, WEIGHTS),)) for stage in range(4) for op in ("all_gather", "reduce_scatter")]
    each: dict[str, dict[object, float]] = {}
    for kind in kinds:
        stage, axis, (message,) = kind
        price = scene.prices.price(stage, axis, *message)
        for link, load in price.load.items():
            each.setdefault(link, {})[kind] = load * price.volume / scene.prices.capacity[link]
    unlike = _unlike_links(scene, kinds)
    assert len(unlike) < len(each)
    assert {tuple(one.items()) for one in each.values()} == {tuple(one.items()) for one in unlike}


def test_nothing_is_known_of_steps_in_which_stages_do_not_meet() -> None:
    given = workload(blocks(4, elements=1_000_000), mesh=MEGATRON | {"order": STAGES_FIRST}, pipeline=2, shard="optimizer")
    scene, _ = played(machine(2, 2, nic=NIC), given)
    assert least_phased_time(scene) == 0.0


@examples(16, 120, layouts(), stacks(), st.sampled_from((2e6, 5e7)), st.sampled_from((2e6, 2e8)), st.sampled_from((1, 2, 5)), st.booleans())
def test_no_step_is_shorter_than_its_phases(
    drawn: tuple[dict[str, Any], int, int], stack: dict[str, Any], nic: float, nvlink: float, times: int, stages_first: bool
) -> None:
    """Stages meet; their groups share NICs if stages come first, or all have their own."""
    fields, each, nodes = drawn
    stack = stack | {"stack": stack["stack"] | MEETS, "mesh": stack["mesh"] | {"order": STAGES_FIRST if stages_first else MEGATRON_ORDER}}
    hardware = machine(each, nodes, nvlink=nvlink, nic=nic, launch=1e-4)
    given = workload(model(), **stack, **fields | {"micro_batches": times * fields["micro_batches"]})
    scene = layout_scene(hardware, given, prepare(hardware, given))
    assert least_phased_time(scene) <= play(scene).time * (1 + 1e-9)


@pytest.mark.nightly
@pytest.mark.parametrize(("stack", "rise"), [("torchtitan-2.x", 0.8), ("megatron-core", 1.2)])
def test_bounds_of_layouts_with_experts_hold_where_their_groups_share_one_nic(stack: str, rise: float) -> None:
    """Layouts of experts, context ranks, replicas, shards and virtual stages on two and three nodes with one NIC of 10 Gbps each.

    Ranks of each stage are equal, or none would be bounded. Of some, the bound is far above the one without phases.
    """
    draw, rises = random.Random(3), []
    scenario = Scenario("n3-h100-sxm5x8", "mixtral-8x7b", stack=stack, global_batch=48)
    question = PlanQuestion(scenario, (2, 3), fixed={"recompute": "blocks"})
    for setting, every in prepare_plan(question).layouts:
        for candidate in draw.sample([each for each in every if each.micro_batches <= 16], 8):
            scene = layout_scene(setting.hardware, *workload_and_layout(PlacedLayout(setting, candidate)), setting.book)
            bound = least_phased_time(scene)
            assert bound <= play(scene).time * (1 + 1e-9), candidate
            rises.append(bound / max(_least_cycle(scene), least_link_time(scene)))
    assert max(rises) > rise
