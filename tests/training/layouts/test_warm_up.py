"""Is a whole step after a short one the step that repeats? Oracle: whole steps only."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import strategies as st

from sim.mesh import layout_scene, prepare
from sim.spec import extensions
from sim.spec.parallel import SCHEDULES
from sim.training.layouts.loader import Feed
from sim.training.layouts.play import play
from sim.training.layouts.scene import LayoutScene
from sim.training.layouts.turning import play_steadily
from sim.training.layouts.warm_up import play_after_short_step
from tests.examples import examples
from tests.freed import freed_at_once
from tests.harness import machine
from tests.parallel.test_own_schedule import OneForwardOneBackward
from tests.training.layouts.drawn_layouts import layouts, model, stacks
from tests.training.layouts.test_turning import assert_same, scene_of
from tests.training.layouts.toys import blocks, workload


@examples(6, 60, layouts(), stacks(), st.integers(12, 20), st.sampled_from((2e8, 2e7)), st.sampled_from((0.0, 0.02)))
def test_a_step_that_ends_as_it_began(
    drawn: tuple[dict[str, Any], int, int], stack: dict[str, Any], many: int, nvlink: float, cv: float
) -> None:
    fields, each, nodes = drawn
    fields |= {"micro_batches": fields["pipeline"] * many}
    made = workload(model(), **stack, **fields)
    noise = made.training.noise.model_copy(update={"compute_cv": cv})
    given_ = made.with_training(noise=noise)
    hardware = machine(each, nodes, nvlink=nvlink, nic=5e7, launch=1e-4)
    scene = layout_scene(hardware, given_, prepare(hardware, given_))
    played = play_after_short_step(scene)
    if played is None:
        return
    for one, other in zip(played.stages, play(scene).stages, strict=True):  # of two links that limit equally, rounding decides the name
        within = 1e-9 * other.time
        assert one.time == pytest.approx(other.time, abs=within)
        assert one.stalls == pytest.approx(other.stalls, abs=within)
        assert one.exposed == pytest.approx(other.exposed, abs=within)


def later_and_later(nodes: int = 2, clips: bool = True, **fields: Any) -> LayoutScene:
    """Return a scene whose micro-batches each start a reduction that nothing waits for, while the slowest ranks fall behind."""
    made = workload(
        model(),
        stack={"gradient_clipping": clips, "no_sync": False},
        mesh={"overlap_gradients": True},
        **({"pipeline": 2, "micro_batches": 48} | fields),
    )
    noise = made.training.noise.model_copy(update={"compute_cv": 0.02})
    given_ = made.with_training(noise=noise)
    hardware = machine(2, nodes, nvlink=2e8, nic=5e7)
    return layout_scene(hardware, given_, prepare(hardware, given_))


@pytest.mark.parametrize(
    "scene",
    [
        later_and_later(),
        later_and_later(3),
        later_and_later(schedule="gpipe"),
        later_and_later(tensor=2, schedule="zb_h1"),
        later_and_later(micro_batches=4),
        later_and_later(micro_batches=20, schedule="interleaved_1f1b", virtual_stages=2, shard="optimizer"),
    ],
    ids=["1f1b", "unlike nodes", "gpipe", "zb_h1", "four micro-batches", "interleaved"],
)
def test_one_whole_step_is_simulated(scene: LayoutScene) -> None:
    short, every = play_after_short_step(scene), play(scene)
    assert short is not None
    assert_same(short, every)
    assert len(short.log.work) < 0.9 * len(every.log.work)
    assert sorted(each.tag for each in short.operations) == sorted(each.tag for each in every.operations)


@pytest.mark.parametrize("nodes", [2, 3])
def test_stages_that_are_watched_are_freed_without_a_garbage_collection(nodes: int) -> None:
    """Those of a short step and a whole one, and of turns; three nodes are unlike."""
    scene = later_and_later(nodes)
    with freed_at_once():
        assert play_after_short_step(scene) is not None
    with freed_at_once():
        assert play_steadily(scene).time > 0


def test_a_schedule_of_the_users_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extensions, "_given", {extensions.SCHEDULES.group: {}})
    name = extensions.register(extensions.SCHEDULES, OneForwardOneBackward(), SCHEDULES)
    scene = later_and_later(schedule=name)
    short = play_after_short_step(scene)
    assert short is not None
    assert_same(short, play(scene))


@pytest.mark.parametrize(
    "scene",
    [
        later_and_later(micro_batches=3),
        later_and_later(micro_batches=20, clips=False),
        scene_of(machine(2, 2, nvlink=2e8, nic=5e7), draw=True, pipeline=2, micro_batches=48),
    ],
    ids=["few micro-batches", "few of stages that do not meet", "drawn steps"],
)
def test_other_steps_are_simulated_completely(scene: LayoutScene) -> None:
    assert play_after_short_step(scene) is None


def fed(layers: int, micro_batches: int, **loader: Any) -> LayoutScene:
    """Return a scene of a pipeline that clips gradients, whose first stage waits for a loader like *loader*."""
    made = workload(blocks(layers), stack={"gradient_clipping": True}, pipeline=2, micro_batches=micro_batches)
    hardware = machine(2, 1, nvlink=2e8, nic=5e7)
    alone = layout_scene(hardware, made, prepare(hardware, made))
    return replace(alone, feed=Feed(**{"disk": 0.0, "read": 0.0, "prep": 0.0, "cores": 0.0, "workers": 1, "ahead": 2} | loader))


@pytest.mark.parametrize("prep", [1e-6, 0.4, 0.7, 0.98, 1.05, 3.0], ids=lambda share: f"{share:g} of a turn")
@pytest.mark.parametrize(("workers", "ahead"), [(1, 2), (2, 4), (4, 8), (16, 32)])
@pytest.mark.parametrize("micro_batches", [4, 8, 16])
def test_loaders_that_keep_pace_or_do_not(micro_batches: int, workers: int, ahead: int, prep: float) -> None:
    """Oracle: so many steps that what was built ahead is used up; a step that counts is one of those that follow."""
    turn = play(fed(4, micro_batches)).time / micro_batches
    scene = fed(4, micro_batches, prep=prep * workers * turn, workers=workers, ahead=ahead)
    short = play_after_short_step(scene)
    if short is not None:
        assert short.time == pytest.approx(play(scene, steps=24).time, rel=1e-9)


def test_stages_that_load_nothing_do_not_hinder() -> None:
    """Every stage has a loader, and only the first one uses it."""
    scene = fed(4, 16, prep=1e-3 * play(fed(4, 16)).time)
    short, every = play_after_short_step(scene), play(scene)
    assert short is not None and scene.feed is not None
    assert_same(short, every)
