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
from sim.training.layouts.turning import play_turns
from tests.examples import examples
from tests.harness import machine
from tests.training.layouts.drawn_layouts import layouts, model, stacks
from tests.training.layouts.toys import blocks, workload

PIPELINES: tuple[dict[str, Any], ...] = (
    {"pipeline": 4, "micro_batches": 64, "shard": "optimizer"},
    {"pipeline": 4, "micro_batches": 66},
    {"pipeline": 2, "micro_batches": 48, "tensor": 2, "schedule": "interleaved_1f1b", "virtual_stages": 4, "shard": "optimizer"},
    {"pipeline": 4, "micro_batches": 64, "schedule": "interleaved_1f1b", "virtual_stages": 2, "mesh": {"pipeline_overlap": True}},
    {"pipeline": 4, "micro_batches": 64, "schedule": "zb_h1", "mesh": {"pipeline_overlap": True}},
    {"micro_batches": 32, "shard": "optimizer"},
)


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


@examples(6, 40, layouts(), stacks(), st.integers(9, 20), st.integers(0, 3), st.sampled_from((2e8, 2e7)))
def test_a_pipeline_of_many_micro_batches(
    drawn: tuple[dict[str, Any], int, int], stack: dict[str, Any], many: int, rest: int, nvlink: float
) -> None:
    fields, each, nodes = drawn
    turn = fields["pipeline"]
    fields |= {"shard": "optimizer" if fields["shard"] == "parameters" else fields["shard"]}
    fields.pop("reshard_after_forward", None)
    fields |= {"micro_batches": turn * many + (0 if fields["schedule"] == "interleaved_1f1b" else rest % turn)}
    hardware = machine(each, nodes, nvlink=nvlink, nic=5e7, launch=1e-4)
    given_ = workload(model(), **stack, **fields)
    scene = layout_scene(hardware, given_, prepare(hardware, given_))
    assert_same(play_steadily(scene), play(scene))


@pytest.mark.parametrize("slow", [{"launch_cpu": "40 ms"}, {}], ids=["host", "gpu"])
@pytest.mark.parametrize("fields", PIPELINES, ids=str)
def test_turns_of_a_pipeline_are_left_out(fields: dict[str, Any], slow: dict[str, Any]) -> None:
    given_ = workload(model(), stack={"gradient_clipping": True} | slow, **fields)
    hardware = machine(2, 4, nvlink=2e8, nic=5e7)
    scene = layout_scene(hardware, given_, prepare(hardware, given_))
    few, every = play_turns(scene), play(scene)
    assert few is not None
    assert_same(few, every)
    assert len(few.log.work) < 0.7 * len(every.log.work)


def test_stages_that_drift_apart_are_simulated_completely() -> None:
    """The first and the last stage send less, and so run ahead of the others until the pipeline holds them back."""
    given_ = workload(model(), pipeline=4, micro_batches=64, schedule="interleaved_1f1b", virtual_stages=2)
    hardware = machine(2, 4, nvlink=2e8, nic=5e7)
    scene = layout_scene(hardware, given_, prepare(hardware, given_))
    assert play_turns(scene) is None
    assert play_steadily(scene).time == play(scene).time


def test_few_are_simulated(monkeypatch: pytest.MonkeyPatch) -> None:
    simulated: list[int] = []

    def noted(scene: Any) -> PlayedLayout:
        simulated.append(scene.layout.micro_batches)
        return play(scene)

    monkeypatch.setattr(steady, "play", noted)
    for fields, wanted in (
        ({"shard": "parameters", "micro_batches": 64}, [4, 5, 6]),
        ({"shard": "parameters", "micro_batches": 16}, [16]),
        ({"shard": "optimizer", "micro_batches": 8}, [8]),
        ({"pipeline": 2, "schedule": "gpipe", "micro_batches": 64}, [64]),
    ):
        given_ = workload(blocks(4), **fields)
        hardware = machine(2)
        play_steadily(layout_scene(hardware, given_, prepare(hardware, given_)))
        assert simulated == wanted
        simulated.clear()
