"""Oracle: what is written and simulated again takes the same step, and moves the same bytes among the same ranks.

Not where a trace says what a layout leaves out: tensor-parallel messages and gradients on the same links at once, messages that their stack
hides behind more than the layers next to them, and steps of a pipeline that begin before the one before is over.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from sim.mesh import LayoutRun, layout_scene
from sim.parallel.program import Start
from sim.report.trace.layout_chakra import write_layout
from sim.report.trace.run_chakra import write_run
from sim.spec.foreign.chakra_files import read_trace
from sim.spec.yaml import SpecError
from sim.study.graph import GraphRun, graph_run
from sim.study.layout import layout_answer
from sim.study.layout_options import layout_of
from sim.study.scenario import Scenario, answer

EXACT, CLOSE = 1e-9, 4e-3
AROUND = 1e-2
"""A trace has separate sends instead of a ring's, and each takes a little less than a ring in which every rank sends."""


def again(folder: Path, scenario: Scenario, stack: str) -> GraphRun:
    return graph_run(Scenario(scenario.hardware, str(folder), nodes=scenario.nodes, gpus=scenario.gpus, stack=stack))


def laid_out(nodes: int, stack: str | None = None, **layout: Any) -> tuple[Scenario, LayoutRun]:
    """Run a layout whose ranks are alike: a trace says how long each operation takes, and not how ranks differ."""
    alike = ("node.gpu.compute_cv=0", "node.gpu.persistent_cv=0", "node.gpu.kernels.sustained_cv=0")
    scenario = Scenario("hgx-h100", "llama-3.2-1b", alike, nodes=nodes, stack=stack, layout=layout_of(**{"parallel": []} | layout))
    return scenario, layout_answer(scenario).run


@pytest.mark.parametrize(
    ("nodes", "layout", "tolerance"),
    [
        (2, {"shard": "parameters"}, EXACT),
        pytest.param(2, {"shard": "parameters", "replicate": 2}, EXACT, marks=pytest.mark.nightly),
        (2, {"shard": "optimizer"}, EXACT),
        pytest.param(1, {"tensor": 8}, EXACT, marks=pytest.mark.nightly),
        (1, {"tensor": 8, "stack": "megatron-core"}, EXACT),
        pytest.param(1, {"tensor": 2}, CLOSE, marks=pytest.mark.nightly),
        (1, {"tensor": 2, "pipeline": 2, "micro_batches": 4}, CLOSE),
        pytest.param(1, {"tensor": 8, "stack": "nemo"}, CLOSE, marks=pytest.mark.nightly),
        (2, {"pipeline": 4, "micro_batches": 8, "schedule": "zb_h1"}, CLOSE),
        (2, {"context": 2, "tensor": 2, "shard": "parameters"}, AROUND),
    ],
)
def test_a_layout_comes_back(tmp_path: Path, nodes: int, layout: Mapping[str, Any], tolerance: float) -> None:
    scenario, run = laid_out(nodes, **layout)
    write_layout(run, tmp_path)
    replayed = again(tmp_path, scenario, run.workload.training.stack.name)
    assert replayed.step_time == pytest.approx(run.step_time, rel=tolerance)


def test_a_layout_with_pairs_comes_back(tmp_path: Path) -> None:
    """Messages of experts that a pair hides overlap with its compute in the trace as well."""
    alike = ("node.gpu.compute_cv=0", "node.gpu.persistent_cv=0", "node.gpu.kernels.sustained_cv=0")
    layout = layout_of([], pipeline=2, expert=4, shard="optimizer", schedule="dualpipev", micro_batches=4)
    scenario = Scenario("hgx-h100", "deepseek-v2-lite", alike, nodes=1, stack="torchtitan-0.2", batch=1, layout=layout)
    run = layout_answer(scenario).run
    assert run.layout.runs_pairs
    write_layout(run, tmp_path)
    assert again(tmp_path, scenario, "torchtitan-0.2").step_time == pytest.approx(run.step_time, rel=AROUND)


def test_a_layout_moves_the_same_bytes(tmp_path: Path) -> None:
    """Of each group, counted in the programs: what is entered into communicators."""
    scenario, run = laid_out(2, shard="parameters", replicate=2)
    write_layout(run, tmp_path)
    replayed = again(tmp_path, scenario, run.workload.training.stack.name)
    replayed_bytes: Counter[tuple[str, tuple[int, ...]]] = Counter()
    for done in replayed.played.done:
        replayed_bytes[done.node.op, done.ranks] += round(done.node.nbytes)
    program_bytes: Counter[tuple[str, tuple[int, ...]]] = Counter()
    for instruction in layout_scene(run.hardware, run.workload, run.layout).programs[0]:
        if isinstance(instruction, Start):
            for group in {run.mesh.group(rank, instruction.axis) for rank in range(run.gpus)}:
                program_bytes[instruction.op, group] += round(instruction.nbytes)
    assert set(replayed_bytes) == set(program_bytes)
    assert all(replayed_bytes[key] == pytest.approx(program_bytes[key], rel=1e-6) for key in program_bytes)


def test_durations_in_microseconds_add_up(tmp_path: Path) -> None:
    """Readers of whole microseconds are off by no more than one of them in all."""
    _, run = laid_out(1, shard="parameters")
    write_layout(run, tmp_path)
    nodes = read_trace(str(tmp_path)).ranks[0]
    exact = sum(value for node in nodes if isinstance(value := node.attributes.get("duration_s", 0.0), float))
    assert sum(node.duration_micros for node in nodes) == pytest.approx(exact * 1e6, abs=1.0)
    assert exact > 0.1 * run.step_time


@pytest.mark.parametrize(
    ("hardware", "workload", "nodes", "overrides"),
    [
        ("p3.16xlarge", "resnet50", 1, ("input.loader=synthetic",)),
        ("p3.16xlarge", "vgg16", 4, ()),  # bound by the network
        ("p3.8xlarge", "alexnet", 2, ()),  # bound by decoding
        ("p4d.24xlarge", "bert-large-seq384", 2, ("training.gradient_accumulation_steps=2",)),
        ("p3.2xlarge", "resnet18", 1, ()),
    ],
)
def test_a_data_parallel_run_comes_back(tmp_path: Path, hardware: str, workload: str, nodes: int, overrides: tuple[str, ...]) -> None:
    scenario = Scenario(hardware, workload, overrides, nodes=nodes)
    run = answer(scenario).run
    write_run(run, tmp_path)
    replayed = again(tmp_path, scenario, run.jobs[0].job.workload.training.stack.name)
    assert replayed.step_time == pytest.approx(run.jobs[0].warm.step_time, rel=EXACT)


def test_a_data_parallel_run_moves_its_gradients(tmp_path: Path) -> None:
    scenario = Scenario("p3.16xlarge", "resnet50", ("input.loader=synthetic",), nodes=2)
    run = answer(scenario).run
    write_run(run, tmp_path)
    replayed = again(tmp_path, scenario, run.jobs[0].job.workload.training.stack.name)
    gradients = sum(done.node.nbytes for done in replayed.played.done if done.node.name.startswith("bucket"))
    assert gradients == 4 * run.jobs[0].job.workload.model.parameters


def test_parameter_servers_cannot_be_written(tmp_path: Path) -> None:
    run = answer(Scenario("cm-dare-p100", "resnet50", stack="tf-parameter-server")).run
    with pytest.raises(SpecError, match="--chakra: parameter servers use no collectives"):
        write_run(run, tmp_path)
