"""Is plain data parallelism, in a plan, what `run` says of it? Oracle: the printed command, run; its figures, memory and errors."""

from __future__ import annotations

import json
import math
import shlex
from dataclasses import replace
from pathlib import Path

import pytest

from sim.cli import main
from sim.cluster.build import place
from sim.events import Cause
from sim.mesh import layout_scene, run_layout, worker_node
from sim.report.plan import plan_document
from sim.simulate import simulate
from sim.spec.library import load_hardware, load_workload
from sim.spec.yaml import SpecError
from sim.study.plan.data_parallel import DataParallelSetting, data_parallel_floors
from sim.study.plan.question import PlanQuestion, plan, prepare_plan
from sim.study.plan.refine import PlacedLayout, simulate_step
from sim.study.plan.search import Limits
from sim.study.scenario import Scenario
from sim.training.job import Job
from sim.training.layer_times import layer_times
from sim.training.pace import deviations, mean_pace
from sim.training.step_plan import optimizer_work


@pytest.mark.parametrize(
    ("machine", "model", "stack", "options"),
    [
        ("p3.16xlarge", "alexnet", None, {}),
        ("p3.16xlarge", "vgg16", None, {}),
        ("p3.16xlarge", "vgg16", "torch-1.13-ddp", {}),
        ("p3.16xlarge", "resnet50", "torch-1.13-ddp", {"nodes": (2,)}),
        pytest.param("hgx-h100", "resnet50", "torch-2.x-ddp", {"gpus": 4}, marks=pytest.mark.nightly),
        ("p3.16xlarge", "vgg16", "torch-2.x-ddp", {"limits": Limits(power_cap="150 W")}),
        ("hgx-h100", "gpt2", "torch-2.x-ddp", {}),
    ],
)
def test_the_command_of_a_plan_repeats_its_step(
    machine: str, model: str, stack: str | None, options: dict[str, object], capsys: pytest.CaptureFixture[str]
) -> None:
    question = PlanQuestion(Scenario(machine, model, stack=stack), **options)  # type: ignore[arg-type]
    document = plan_document(plan(question))
    best = document["layouts"][0]
    assert best["stack"] == stack or stack is None
    assert main([*shlex.split(best["command"])[3:], "--json"]) == 0
    run = json.loads(capsys.readouterr().out)
    limited = run.get("power_cap")
    assert (limited or run)["step_time_s"] == pytest.approx(best["step_time_s"], rel=1e-9)
    uses = run["gpu_memory_bytes"]
    sums = ("allocated", "reserved", "total")
    assert uses["total"] == pytest.approx(sum(value for key, value in uses.items() if key not in sums), rel=1e-9)
    needed = uses["total"]
    if "reserved" in uses:  # of a layout: what the allocator reserves, instead of what it allocates and keeps
        needed += uses["reserved"] - uses["allocated"] - uses["cached"]
    assert best["memory_headroom_bytes"] == pytest.approx({"p3.16xlarge": 16, "hgx-h100": 80}[machine] * 2**30 - needed, rel=1e-9)
    if limited is None:
        assert document["expected_error"]["median"] == run["expected_error"]["median"]
        assert sum(best["seconds"].values()) == pytest.approx(best["step_time_s"], rel=1e-9)


def test_adapters_are_searched_under_their_own_stack_and_found_as_run_simulates_them(capsys: pytest.CaptureFixture[str]) -> None:
    """LoRA of 8 billion parameters on eight L40S: a copy on each GPU, as most people train it, is 8% faster than any other layout."""
    job = ("g6e.48xlarge", "llama-3.1-8b", "--set", "model.lora.rank=16", "--sequence", "2048")
    assert main(["plan", *job, "--json", "--fix", "tp=1,pp=1,cp=1"]) == 0
    best = json.loads(capsys.readouterr().out)["layouts"][0]
    assert main(["run", *job, "--json", "--fast"]) == 0
    assert best["stack"] == "torch-2.x-ddp"
    assert best["step_time_s"] == pytest.approx(json.loads(capsys.readouterr().out)["step_time_s"], rel=1e-9)


def test_a_cnn_is_searched_under_its_own_stack_and_torchs() -> None:
    """VGG-16 on eight V100s: torch's own replicas, as most people train it, are among the layouts that tie with the best.

    Other layouts are shards under torch's FSDP2, and replicas that recompute what VGG-16 has instead of blocks. If torchtitan is named, it
    replicates with DistributedDataParallel as well.
    """
    made = plan(PlanQuestion(Scenario("p3.16xlarge", "vgg16")))
    of_layouts = [each for setting, every in made.layouts for each in every if setting.workload.training.stack.mesh]
    assert {each.checkpointing for each in of_layouts if each.shard == "none"} == {"blocks"}
    assert {setting.workload.training.stack.name for setting, _ in made.layouts} == {"torch-1.13-ddp", "torch-2.x-ddp", "torch-2.x-fsdp2"}
    best = made.tally.outcomes[0]
    replicas = next(each for each in made.tally.outcomes if each.placed_layout.candidate.stack == "torch-2.x-ddp")
    candidate = replicas.placed_layout.candidate
    assert (candidate.data, candidate.shard, candidate.batch) == (8, "none", 64)
    assert replicas.value < best.value * 1.03
    decoder = prepare_plan(PlanQuestion(Scenario("hgx-h100", "llama-3.2-1b", global_batch=8), (1,)))
    assert {setting.workload.training.stack.name for setting, _ in decoder.layouts} == {"torchtitan-2.x", "megatron-core"}
    chosen = prepare_plan(PlanQuestion(Scenario("p3.16xlarge", "vgg16", stack="torchtitan-2.x")))
    assert {setting.workload.training.stack.name for setting, _ in chosen.layouts} == {"torchtitan-2.x"}
    assert any(each.shard == "none" for _, every in chosen.layouts for each in every)


@pytest.mark.parametrize(("machine", "model"), [("p3.16xlarge", "vgg16"), ("hgx-h100", "resnet50"), ("g4dn.12xlarge", "vit_b_16")])
@pytest.mark.parametrize("stack", ["torch-2.x-fsdp2", "torchtitan-2.x"])
@pytest.mark.parametrize("micro_batches", [1, 2])
def test_shards_compute_load_and_deviate_as_replicas_do(machine: str, model: str, micro_batches: int, stack: str) -> None:
    """A layout changes what is exchanged and updated, not the kernels of a layer, the copy of its samples or how ranks differ."""
    hardware = load_hardware(machine).spec
    node = worker_node(hardware)
    batch = f"training.gradient_accumulation_steps={micro_batches}"
    replicas = load_workload(model, ["training.stack=torch-2.x-ddp", batch]).spec
    sharded = load_workload(model, [f"training.stack={stack}", "training.parallel.shard=parameters", batch]).spec
    run = simulate(hardware, [Job(replicas, place(hardware, node.gpu_count))], cold=False).jobs[0]
    layout = run_layout(hardware, sharded)
    scene = layout_scene(hardware, sharded, layout.layout)
    passes = [
        sum(scene.times[0](number, part).compute for number in range(len(layout.layout.units)))
        for part in ("F", "B")  # type: ignore[arg-type]
    ]
    layers = layer_times(replicas, node.gpu)
    added = micro_batches > 1  # then backward also adds gradients
    assert passes[0] == pytest.approx(sum(layers.forward), rel=1e-9)
    assert passes[1] == pytest.approx(sum(layers.backward), rel=0.05 if added else 1e-9)
    assert layout.stalls[Cause.COPY] == pytest.approx(run.warm.stalls[Cause.COPY], rel=1e-6) and layout.stalls[Cause.COPY] > 0
    deviation = deviations(replicas, node.gpu)
    assert deviation == deviations(sharded, node.gpu) and deviation.jitter >= replicas.input.compute_cv
    assert scene.noise.mean.data == pytest.approx(next(mean_pace(node.gpu_count, *deviation)).lag, rel=1e-9)
    if stack == "torch-2.x-fsdp2":  # each rank updates its share by the kernels with which a replica updates everything
        update = optimizer_work(replicas, node.gpu).time / node.gpu_count
        assert scene.updates[0][0] == pytest.approx(update, rel=0.1)


def test_a_decoder_deviates_in_replicas_as_in_shards() -> None:
    """Its products keep boards at their power limit in both; a worker that slices tokens delays neither."""
    gpu = worker_node(load_hardware("hgx-h100").spec).gpu
    assert gpu.kernels is not None and gpu.kernels.sustained_cv > 0
    replicas = load_workload("gpt2", ["training.stack=torch-2.x-ddp"]).spec
    expected = (math.hypot(gpu.persistent_cv, gpu.kernels.sustained_cv), gpu.compute_cv)
    assert deviations(replicas, gpu) == deviations(load_workload("gpt2", ["training.parallel.shard=parameters"]).spec, gpu) == expected


@pytest.mark.parametrize(
    ("machine", "model"),
    [pytest.param("p3.16xlarge", "resnet50", marks=pytest.mark.nightly), ("2x-p3.8xlarge", "vgg16"), ("p3.2xlarge", "mobilenet_v2")],
)
def test_no_bound_is_above_its_step(machine: str, model: str) -> None:
    """A rank that waits for no other is never slower, and memory is the same before and after the simulation."""
    for setting, every in prepare_plan(PlanQuestion(Scenario(machine, model))).layouts:
        if isinstance(setting, DataParallelSetting):
            least = data_parallel_floors(setting, every, 16 * 2**30)
            for candidate, memory, time in zip(every, least.memory, least.time, strict=True):
                step = simulate_step(PlacedLayout(setting, candidate), None)
                assert step.needed_bytes == pytest.approx(memory)
                assert step.played is None or time <= step.played.time * (1 + 1e-9)


def test_recomputed_blocks_are_tried_where_a_model_has_any() -> None:
    """VGG-16 is one chain of layers; ResNet-50 has numbered blocks."""
    modes = {}
    for model in ("vgg16", "resnet50"):
        question = PlanQuestion(Scenario("p3.16xlarge", model, stack="torch-2.x-ddp"))
        ((_, every),) = prepare_plan(question).layouts
        modes[model] = {each.checkpointing for each in every}
    assert modes == {"vgg16": {"none"}, "resnet50": {"none", "blocks"}}


def test_an_interrupted_plan_of_replicas_resumes(tmp_path: Path) -> None:
    """A journal of the first plan has all the steps of the second."""
    question = PlanQuestion(Scenario("p3.16xlarge", "resnet18"), fixed={"stack": "torch-2.x-ddp"})
    first, second = (plan(question, journal=tmp_path / "journal") for _ in range(2))
    times = [[outcome.step_time for outcome in made.tally.outcomes] for made in (first, second)]
    assert times[0] == times[1] and len(times[0]) > 3


def test_a_stack_of_servers_is_searched_only_if_it_is_named(tmp_path: Path) -> None:
    """Its asynchronous workers do not train a global batch in one step as the other layouts do."""
    (tmp_path / "own.yaml").write_text("extends: resnet15-cifar\ntraining: {stack: tf-parameter-server}\n")
    scenario = Scenario("cm-dare-k80", str(tmp_path / "own.yaml"))
    named = replace(scenario, stack="tf-parameter-server")
    stacks = [{each.stack for _, every in prepare_plan(PlanQuestion(one)).layouts for each in every} for one in (scenario, named)]
    assert stacks == [{"torch-2.x-ddp", "torch-2.x-fsdp2"}, {"tf-parameter-server"}]


def test_a_batch_that_does_not_divide_is_told_the_nearest_that_does() -> None:
    with pytest.raises(SpecError, match=r"100: does not divide evenly over the data ranks .*; 96 would"):
        plan(PlanQuestion(Scenario("p3.16xlarge", "vgg16", global_batch=100)))


@pytest.mark.parametrize(("model", "of_layouts"), [("vgg16", {"blocks"}), ("resnet50", set())])
def test_replicas_are_of_fsdp_where_stacks_without_layouts_have_none(model: str, of_layouts: set[str]) -> None:
    """VGG-16 has no blocks that a stack without layouts could recompute, ResNet-50 has. Other replicas are those of such stacks."""
    question = PlanQuestion(Scenario("p3.8xlarge", model), fixed={"shard": "none", "pipeline": "1"})
    layouts = [each for _, every in prepare_plan(question).layouts for each in every]
    assert {each.checkpointing for each in layouts if each.stack == "torch-2.x-fsdp2"} == of_layouts
    assert "none" in {each.checkpointing for each in layouts if each.stack == "torch-2.x-ddp"}


def test_an_axis_that_replicas_lack_is_refused() -> None:
    with pytest.raises(SpecError, match="tp may be 1 with the others"):
        plan(PlanQuestion(Scenario("p3.16xlarge", "vgg16", stack="torch-2.x-ddp"), fixed={"tp": "2"}))
