"""A small plan that several tests look at, a candidate that is simulated, and the stacks and workloads that they vary."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Any

import pytest

from sim.analysis.layout_memory import memory_by_stage
from sim.mesh import LayoutRun, layout_scene, prepare, worker_node
from sim.report.layouts.layout_files import run_command
from sim.study.layout import layout_answer
from sim.study.layout_options import layout_of
from sim.study.plan.floor import Setting
from sim.study.plan.question import LayoutPlan, PlanQuestion
from sim.study.plan.refine import PlacedLayout
from sim.study.plan.search import Outcome
from sim.study.plan.space import LayoutCandidate
from sim.study.scenario import Scenario
from sim.training.layouts.bound import least_time
from sim.training.layouts.play import play

ANY_SCHEDULE = (
    "training.stack.mesh.schedules=[gpipe, 1f1b, interleaved_1f1b, zb_h1, zbv, dualpipev]",
    "training.stack.mesh.sequence=either",
)
"""So that bounds are asked of schedules that no release of a stack has."""
SMALL = PlanQuestion(Scenario("hgx-h100", "gpt2", global_batch=16), (1,), 4)
"""A few hundred layouts of a small decoder on four GPUs."""
UNEVEN_EXPERTS = ("training.parallel.expert_imbalance=2", "training.parallel.capacity_factor=1.5")
WRAPPED = ("training.parallel={shard: parameters, wrap: [layers.*.attention, layers.*.feed]}",)


def assert_commands_repeat(made: LayoutPlan, outcomes: Sequence[Outcome]) -> None:
    """The command that is printed of each of *outcomes* simulates the same step."""
    for outcome in outcomes:
        words = shlex.split(run_command(made, outcome.placed_layout))
        value = {word: words[place + 1] for place, word in enumerate(words[:-1]) if word.startswith("--")}
        sets = tuple(words[place + 1] for place, word in enumerate(words) if word == "--set")
        scenario = Scenario(
            words[4], words[5], sets, nodes=int(value["--nodes"]), gpus=int(value["--gpus"]) if "--gpus" in value else None,
            stack=value["--stack"], precision=value["--precision"], batch=int(value["--batch"]),
            layout=layout_of([value["--parallel"]] if "--parallel" in value else [], micro_batches=int(value["--micro-batches"])),
        )  # fmt: skip
        assert layout_answer(scenario).run.step_time == pytest.approx(outcome.run.step_time, rel=1e-9), words


def outcome_of(setting: Setting, candidate: LayoutCandidate) -> Any:
    """Return what stands for a simulated layout where only the layout is asked for."""

    class Run:
        node = worker_node(setting.hardware)

    class Stand:
        placed_layout = PlacedLayout(setting, candidate)
        run: LayoutRun | type[Run] = Run

    return Stand


def played(setting: Setting, candidate: LayoutCandidate) -> tuple[float, float, float]:
    """Return a layout's least time, its simulated time and the bytes it needs."""
    workload = setting.workload_in(candidate)
    layout = prepare(setting.hardware, workload, setting.gpus_per_node)
    scene = layout_scene(setting.hardware, workload, layout, setting.book)
    memory = memory_by_stage(layout, workload, worker_node(setting.hardware).gpu)
    return least_time(scene), play(scene).time, max(stage.of_gpu for stage in memory)
