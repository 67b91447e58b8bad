"""Is a step of many micro-batches that was worked out from few the step itself? Oracle: all of them simulated."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import strategies as st

from sim.mesh import layout_scene, prepare
from sim.training.layouts import steady
from sim.training.layouts.play import play
from sim.training.layouts.scene import PlayedLayout
from sim.training.layouts.steady import play_steadily
from tests.examples import examples
from tests.harness import machine
from tests.training.layouts.drawn_layouts import layouts, model, stacks
from tests.training.layouts.toys import blocks, workload


def assert_same(shortened: PlayedLayout, full: PlayedLayout) -> None:
    for one, other in zip(shortened.stages, full.stages, strict=True):
        within = 1e-8 * other.time
        assert one.time == pytest.approx(other.time, abs=within) == pytest.approx(sum(one.stalls.values()), abs=within)
        for name in ("stalls", "resources", "exposed"):
            mine, theirs = getattr(one, name), getattr(other, name)
            assert all(mine.get(key, 0.0) == pytest.approx(theirs.get(key, 0.0), abs=within) for key in mine.keys() | theirs.keys())


@examples(4, 12, layouts(), stacks(), st.integers(8, 14))
def test_a_step_of_many_micro_batches(drawn: tuple[dict[str, Any], int, int], stack: dict[str, Any], many: int) -> None:
    fields, each, nodes = drawn
    fields |= {"pipeline": 1, "virtual_stages": 1, "schedule": "1f1b", "shard": "parameters", "micro_batches": 3 * many}
    hardware = machine(each, nodes, nvlink=2e8, nic=5e7, launch=1e-4)
    given_ = workload(model(), **stack, **fields)
    scene = layout_scene(hardware, given_, prepare(hardware, given_))
    assert_same(play_steadily(scene), play(scene))


def test_few_are_simulated(monkeypatch: pytest.MonkeyPatch) -> None:
    simulated: list[int] = []

    def noted(scene: Any) -> PlayedLayout:
        simulated.append(scene.layout.micro_batches)
        return play(scene)

    monkeypatch.setattr(steady, "play", noted)
    for fields, wanted in (
        ({"shard": "parameters", "micro_batches": 64}, [4, 5, 6]),
        ({"shard": "parameters", "micro_batches": 16}, [16]),
        ({"shard": "optimizer", "micro_batches": 64}, [64]),
        ({"shard": "parameters", "pipeline": 2, "micro_batches": 64}, [64]),
    ):
        given_ = workload(blocks(4), **fields)
        hardware = machine(2)
        play_steadily(layout_scene(hardware, given_, prepare(hardware, given_)))
        assert simulated == wanted
        simulated.clear()
