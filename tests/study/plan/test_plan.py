"""Does a plan find the best layout, and is its proof sound? Against simulation of every layout, and bounds against simulation."""

from __future__ import annotations

import json
import random
import re
import shlex
import tomllib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from sim.analysis.layout_memory import memory_by_stage
from sim.cli import main
from sim.mesh import LayoutRun, layout_scene, prepare, worker_node
from sim.report import plan as plan_report
from sim.report.layouts.layout_files import export_files, launch_of, run_command
from sim.report.page.layout_plan import plan_page
from sim.report.plan import candidate_name, plan_document, plan_text
from sim.spec.catalogue import catalogue
from sim.spec.decoder import decoder_layers
from sim.spec.foreign.launch_accelerate import accelerate
from sim.spec.foreign.launch_deepspeed import deepspeed
from sim.spec.foreign.launch_megatron import megatron
from sim.spec.foreign.launch_settings import LaunchSettings
from sim.spec.foreign.launch_torchtitan import torchtitan
from sim.spec.foreign.layout_accelerate import accelerate_yaml
from sim.spec.foreign.layout_deepspeed import deepspeed_json
from sim.spec.foreign.layout_files import launch_files as launch_files_of
from sim.spec.foreign.layout_launch import Launch
from sim.spec.foreign.layout_megatron import megatron_arguments
from sim.spec.foreign.layout_torchtitan import torchtitan_toml
from sim.spec.library import load_workload
from sim.spec.parallel import Parallel
from sim.spec.yaml import SpecError
from sim.study.layout import layout_answer
from sim.study.layout_options import layout_of
from sim.study.plan.floor import Setting, floors
from sim.study.plan.question import LayoutPlan, PlanQuestion, plan, prepare_plan
from sim.study.plan.refine import PlacedLayout, needed_bytes
from sim.study.plan.search import Limits, Outcome, search
from sim.study.plan.sensitivity import sensitivity
from sim.study.plan.space import LayoutCandidate
from sim.study.scenario import Infeasible, Scenario
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
UNEVEN_STAGES = ("training.parallel={pipeline: 4, layers_per_stage: [2, 5, 5, 4]}",)
CUT = ("training.parallel={pipeline: 4, cuts: [layer1.2, layer2.3.conv2, layer4.0]}",)
"""Where a ResNet-50, whose layers are in no numbered blocks of one kind, has its stages; one begins inside a block."""
WRAPPED = ("training.parallel={shard: parameters, wrap: [layers.*.attention, layers.*.feed]}",)


WRITERS = {"titan": torchtitan_toml, "megatron": megatron_arguments, "deepspeed": deepspeed_json, "accelerate": accelerate_yaml}


def played(setting: Setting, candidate: LayoutCandidate) -> tuple[float, float, float]:
    """Return a layout's least time, its simulated time and the bytes it needs."""
    workload = setting.workload_in(candidate)
    layout = prepare(setting.hardware, workload, setting.gpus_per_node)
    scene = layout_scene(setting.hardware, workload, layout, setting.book)
    memory = memory_by_stage(layout, workload, worker_node(setting.hardware).gpu)
    return least_time(scene), play(scene).time, max(map(needed_bytes, memory))


@pytest.fixture(scope="module")
def small() -> LayoutPlan:
    return plan(SMALL)


@pytest.mark.parametrize("batch", [8, pytest.param(16, marks=pytest.mark.nightly)])
def test_the_search_finds_what_simulation_of_every_layout_finds_and_no_bound_is_above_it(batch: int) -> None:
    question = replace(SMALL, scenario=replace(SMALL.scenario, global_batch=batch))
    small = plan(question)
    times = []
    wrong = []
    for setting, every in prepare_plan(question).layouts:
        least = floors(setting, every)
        for place, candidate in enumerate(every):
            bound, time, needed = played(setting, candidate)
            times.append(time)
            if not least.time[place] <= bound * (1 + 1e-9) <= time * (1 + 2e-9) or least.memory[place] > needed * (1 + 1e-9):
                wrong.append((candidate, least.time[place], bound, time, least.memory[place], needed))
    assert not wrong, wrong[:3]
    assert len(times) == small.tally.candidates > 100
    assert small.tally.complete
    assert small.tally.gap == 0.0
    assert [each.run.step_time for each in small.tally.outcomes[:5]] == pytest.approx(sorted(times)[:5], rel=1e-9)
    assert len(small.tally.outcomes) + small.tally.excluded + small.tally.infeasible == len(times)


@pytest.mark.nightly
@pytest.mark.parametrize("each", [2, 8])
def test_bounds_stay_below_simulations_of_random_layouts_with_contention_interleaving_sharding_and_experts(each: int) -> None:
    draw = random.Random(7)
    wrong = []
    questions = [
        PlanQuestion(
            Scenario("hgx-h100", "llama-3.1-8b", ANY_SCHEDULE, global_batch=64),
            (2,),
            allowed=frozenset({"zero_bubble", "gpipe", "no_sequence"}),
        ),
        PlanQuestion(Scenario("p3.16xlarge", "gpt2", global_batch=64, precision="amp_fp16"), (2,)),
        PlanQuestion(Scenario("hgx-h100", "mixtral-8x7b", ANY_SCHEDULE, global_batch=64), (4,), allowed=frozenset({"zero_bubble"})),
        PlanQuestion(
            Scenario("p4d.24xlarge", "gpt2", ("fabric.leaf_spine={nodes_per_leaf: 2, oversubscription: 4}",), global_batch=64), (4,)
        ),
        PlanQuestion(Scenario("hgx-h100", "mixtral-8x7b", UNEVEN_EXPERTS, stack="megatron-core", global_batch=64), (4,)),
        PlanQuestion(
            Scenario("hgx-h100", "llama-3.1-8b", WRAPPED, stack="torchtitan-2.x", global_batch=32), (1,), fixed={"shard": "parameters"}
        ),
        PlanQuestion(Scenario("p3.16xlarge", "vgg16", stack="torchtitan-2.x", global_batch=64), (1,), fixed={"shard": "parameters"}),
        PlanQuestion(
            Scenario("hgx-h100", "llama-3.2-1b", UNEVEN_STAGES, global_batch=64), (1,), fixed={"pp": "4"}, allowed=frozenset({"gpipe"})
        ),
        PlanQuestion(
            Scenario("hgx-h100", "resnet50", CUT, stack="torchtitan-2.x", global_batch=64),
            (1,),
            fixed={"pp": "4"},
            allowed=frozenset({"gpipe"}),
        ),
    ]
    tried, met = 0, set[str]()
    for question in questions:
        for setting, every in prepare_plan(question).layouts:
            chosen = draw.sample(every, min(each, len(every)))
            least = floors(setting, chosen)
            for place, candidate in enumerate(chosen):
                if candidate.micro_batches * candidate.chunks * candidate.pipeline > 400:
                    continue
                bound, time, needed = played(setting, candidate)
                tried += 1
                met |= {candidate.schedule, candidate.shard, f"{question.scenario.hardware} {setting.nodes}"}
                met |= {"contention"} if time > 1.01 * bound else set()
                met |= {"experts"} if candidate.expert > 1 else set()
                if not least.time[place] <= bound * (1 + 1e-9) <= time * (1 + 2e-9) or least.memory[place] > needed * (1 + 1e-9):
                    wrong.append((candidate, least.time[place], bound, time, least.memory[place], needed))
    assert not wrong, wrong[:3]
    assert tried > 3 * each
    assert met >= {
        "contention", "experts", "parameters", "optimizer", "1f1b", "interleaved_1f1b", "zb_h1",
        "hgx-h100 2", "p3.16xlarge 2", "hgx-h100 4", "p4d.24xlarge 4",
    }  # fmt: skip


@pytest.mark.nightly
def test_the_memory_bound_of_sharded_weights_knows_what_is_gathered() -> None:
    """Never above the replay of a layout's program, and at least 0.4 of it where no pipeline shrinks what a schedule must hold.

    Without gathered weights and gradients that wait for the last micro-batch it was 0.07 of it at worst.
    """
    draw, ratios = random.Random(3), []
    for hardware, model, batch, nodes in (("hgx-h100", "llama-3.1-70b", 256, 8), ("hgx-h100", "llama-3.1-405b", 256, 16)):
        for setting, every in prepare_plan(PlanQuestion(Scenario(hardware, model, global_batch=batch), (nodes,))).layouts:
            own = [each for each in every if each.shard == "parameters" and each.micro_batches * each.pipeline <= 256]
            chosen = draw.sample(own, min(25, len(own)))
            for least, candidate in zip(floors(setting, chosen).memory, chosen, strict=True):
                layout = prepare(setting.hardware, setting.workload_in(candidate), setting.gpus_per_node)
                memory = memory_by_stage(layout, setting.workload_in(candidate), worker_node(setting.hardware).gpu)
                ratios.append((least / max(map(needed_bytes, memory)), candidate.pipeline))
    assert len(ratios) >= 25 and {1} < {stages for _, stages in ratios}
    assert max(ratio for ratio, _ in ratios) <= 1 + 1e-9
    assert min(ratio for ratio, stages in ratios if stages == 1) > 0.4


def test_orders_that_only_permute_whole_nodes_are_one_layout() -> None:
    """Oracle: the other order of each such layout, simulated, takes as long to 1e-12; below leaf switches both are listed."""
    fabric = "fabric={leaf_spine: {nodes_per_leaf: 2, oversubscription: 8}}"
    flat, tiers = (
        prepare_plan(
            PlanQuestion(Scenario("hgx-h100", "llama-3.1-8b", sets, global_batch=32), (4,), fixed={"tensor": "8", "pipeline": "2"})
        )
        for sets in ((), (fabric,))
    )

    def megatron(made: LayoutPlan) -> list[tuple[Setting, LayoutCandidate]]:
        return [(setting, each) for setting, every in made.layouts for each in every if each.stack == "megatron-core"]

    assert not [each for _, each in megatron(flat) if each.near] and any(each.near for _, each in megatron(tiers))
    assert {each._replace(near=False) for _, each in megatron(tiers)} == {each for _, each in megatron(flat)}
    ratios = []
    for made in (flat, tiers):
        for setting, far in random.Random(2).sample([way for way in megatron(made) if way[1].data > 1], 4):
            one, other = (played(setting, far._replace(near=near)) for near in (False, True))
            ratios.append(one[1] / other[1])
            assert made is tiers or (one[1] == pytest.approx(other[1], rel=1e-12) and one[2] == other[2])
    assert any(abs(ratio - 1.0) > 1e-6 for ratio in ratios[4:])


def test_what_a_plan_does_not_search_stays_as_the_workload_has_it() -> None:
    """The experts' imbalance and capacity, where there are experts to spread, and what FSDP wraps, where it does."""
    ((setting, every),) = prepare_plan(
        PlanQuestion(Scenario("hgx-h100", "mixtral-8x7b", UNEVEN_EXPERTS, stack="megatron-core"), (4,))
    ).layouts
    for each in every[::500]:
        own = setting.workload_in(each).training.parallel
        assert (own.expert_imbalance, own.capacity_factor) == (min(2.0, each.expert), 1.5)
    ((setting, every),) = prepare_plan(PlanQuestion(Scenario("hgx-h100", "llama-3.1-8b", WRAPPED, stack="torchtitan-2.x"), (1,))).layouts
    wraps = {(each.shard, setting.workload_in(each).training.parallel.wrap) for each in every}
    assert wraps == {("none", None), ("parameters", ("layers.*.attention", "layers.*.feed"))}
    assert {each.checkpointing for each in every if each.shard == "parameters"} == {"none"}  # blocks are whole where they run again
    assert {each.checkpointing for each in every if each.shard == "none"} == {"none", "blocks"}


@pytest.mark.parametrize(("model", "overrides", "field"), [("llama-3.2-1b", UNEVEN_STAGES, "layers_per_stage"), ("resnet50", CUT, "cuts")])
def test_stages_of_the_workload_stay_where_a_layout_has_as_many(model: str, overrides: tuple[str, ...], field: str) -> None:
    """Oracle: the workload's own; the answer says so, and its command runs such a layout."""
    scenario = Scenario("hgx-h100", model, overrides, global_batch=64, stack="torchtitan-2.x")
    ((setting, every),) = prepare_plan(PlanQuestion(scenario, (1,))).layouts
    own = getattr(setting.workload.training.parallel, field)
    kept = {(each.parts == 4, getattr(setting.workload_in(each).training.parallel, field)) for each in every}
    assert kept == {(True, own), (False, ())}
    made = plan(PlanQuestion(scenario, (1,), fixed={"pp": "4", "schedule": "1f1b"}, limits=Limits(simulations=3)))
    assert f"training.parallel.{field} applies to layouts of 4 chunks; others are cut evenly" in plan_document(made)["assumptions"]
    assert plan_document(made)["layouts"][0]["parallel"][field] == list(own)
    assert_commands_repeat(made, made.tally.outcomes[:3])
    none = plan(PlanQuestion(scenario, (1,), fixed={"pp": "1"}, limits=Limits(simulations=1)))
    assert not any("4 chunks; others" in text for text in plan_document(none)["assumptions"])
    assert f"training.parallel.{field} is not used: no layout here has 4 chunks" in plan_document(none)["assumptions"]


def test_a_stack_that_overrides_name_is_searched_once() -> None:
    by_option = PlanQuestion(Scenario("p3.16xlarge", "vgg16", stack="torchtitan-2.x"), (1,))
    by_override = PlanQuestion(Scenario("p3.16xlarge", "vgg16", ("training.stack=torchtitan-2.x",)), (1,))
    named, set_ = ([candidates for _, candidates in prepare_plan(question).layouts] for question in (by_option, by_override))
    assert len(named) == len(set_) == 1 and [one[2:] for one in named[0]] == [one[2:] for one in set_[0]]


def test_without_contention_the_bound_is_the_simulation() -> None:
    apart = plan(replace(SMALL, scenario=replace(SMALL.scenario, overrides=("training.stack.mesh.shares_device=false",))))
    alone = [
        each for each in apart.tally.outcomes if each.placed_layout.candidate.pipeline == 1 and each.placed_layout.candidate.tensor == 1
    ]
    assert alone
    for outcome in alone:
        assert outcome.bound == pytest.approx(outcome.run.step_time, rel=2e-3)


def test_a_search_cut_short_says_what_may_be_missed(small: LayoutPlan) -> None:
    made = prepare_plan(SMALL)
    cut = search(made.layouts, Limits(simulations=1))
    best = small.tally.outcomes[0].value
    assert len(cut.outcomes) == 1
    assert cut.outcomes[0].value * (1 - cut.gap) <= best * (1 + 1e-9)
    seen: list[int] = []

    def stop(tally: object) -> None:
        seen.append(1)
        if len(seen) == 3:
            raise KeyboardInterrupt

    stopped = search(made.layouts, Limits(), stop)
    assert stopped.interrupted
    assert len(stopped.outcomes) >= 1


def test_ctrl_c_before_anything_is_found_does_not_say_that_nothing_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("sim.study.plan.refine.least_step", interrupted)
    with pytest.raises(KeyboardInterrupt):
        plan(SMALL)


def test_each_change_that_is_tried_is_told() -> None:
    """Oracle: the change that the message names is the last one tried."""
    tried: list[str] = []
    with pytest.raises(Infeasible) as refused:
        plan(PlanQuestion(Scenario("hgx-h100", "llama-3.1-70b", global_batch=16), (1,)), trying=tried.append)
    assert str(refused.value).endswith(f"; {tried[-1]} would fit")


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


@pytest.mark.parametrize(
    ("model", "overrides", "fixed"),
    [
        pytest.param("deepseek-v2-lite", UNEVEN_EXPERTS, {"ep": "8", "micro_batches": "4"}, marks=pytest.mark.nightly),
        pytest.param("llama-3.2-1b", WRAPPED, {"shard": "parameters", "micro_batches": "4"}, marks=pytest.mark.nightly),
        (
            "llama-3.2-1b",
            ("training.parallel.pipeline=2", "training.parallel.tensor=2", "training.activation_checkpointing=blocks", "training.batch=7"),
            {"tp": "1", "pp": "1", "recompute": "blocks"},
        ),
    ],
)
def test_the_command_says_what_the_plan_decided_and_what_it_kept(model: str, overrides: tuple[str, ...], fixed: dict[str, str]) -> None:
    """Also where the workload has a layout of its own."""
    scenario = Scenario("hgx-h100", model, overrides, global_batch=64, stack="torchtitan-2.x")
    made = plan(PlanQuestion(scenario, (2,), fixed=fixed, limits=Limits(simulations=3)))
    assert made.tally.outcomes
    assert_commands_repeat(made, made.tally.outcomes[:3])


def test_the_document_counts_every_layout_and_its_command_simulates_the_same_step(small: LayoutPlan) -> None:
    document = plan_document(small)
    assert document["candidates"] == document["infeasible"] + document["excluded_by_bound"] + document["open"] + document["simulated"]
    json.dumps(document)
    assert_commands_repeat(small, small.tally.outcomes[:6])
    text, page = plan_text(document), plan_page(document)
    assert document["layouts"][0]["name"] in text
    assert "optimal under the model" in text
    priced = document["layouts"][0] | {"job_time_s": 60.0, "job_energy_kwh": None}
    for usd, shown in ((0.0003, "$0.0003"), (7.4341, "$7.43"), (7434.1, "$7,430"), (27_853_155.27, "$27,900,000")):
        priced_text = plan_text(document | {"tokens": 5e7, "layouts": [priced | {"job_cost_usd": usd}]})
        assert f"  50 million tokens: 1 min, {shown} with the best" in priced_text
    assert document["layouts"][0]["name"] in page


def test_outputs_that_blocks_save_stay_saved() -> None:
    """Attention alone is no other way to run blocks again that save some outputs; bounds of memory count what they save."""
    sets = ("training.activation_checkpointing=blocks", "training.recompute_saves=[attention.qkv, attention.output]")
    question = replace(SMALL, scenario=replace(SMALL.scenario, overrides=sets), allowed=frozenset({"selective"}), fixed={"tp": "1"})
    ways = prepare_plan(question).layouts
    assert {candidate.checkpointing for _, every in ways for candidate in every} == {"blocks"}
    for setting, every in ways:
        least = floors(setting, every)
        for place in range(0, len(every), 20):
            assert least.memory[place] <= played(setting, every[place])[2] * (1 + 1e-9)


def test_no_bound_holds_gradients_that_are_reduced_at_each_micro_batch() -> None:
    """DeepSpeed reduces gradients of sharded parameters at once, so that none wait for the last micro-batch."""
    scenario = Scenario("hgx-h100", "llama-3.1-8b", global_batch=32, stack="megatron-deepspeed", sequence=1024)
    fixed = {"tp": "1", "pp": "1", "shard": "parameters", "micro_batches": "4"}
    for setting, every in prepare_plan(PlanQuestion(scenario, (1,), fixed=fixed)).layouts:
        least = floors(setting, every)
        assert every
        for place, candidate in enumerate(every):
            assert least.memory[place] <= played(setting, candidate)[2] * (1 + 1e-9)


def test_written_layouts_read_back_equal(small: LayoutPlan) -> None:
    question = replace(SMALL, scenario=Scenario("hgx-h100", "llama-3.1-8b", global_batch=64), nodes=(2,), gpus=None, fixed={})
    made = prepare_plan(question)
    draw = random.Random(3)
    counts = dict.fromkeys(("titan", "megatron", "deepspeed", "accelerate"), 0)
    wrong: list[object] = []
    for setting, every in made.layouts:
        plain = [each for each in every if each.tensor * each.context * each.pipeline * each.replicate == 1]
        for candidate in [*draw.sample(every, 60), *plain]:
            outcome = outcome_of(setting, candidate)
            launch = launch_of(made, outcome)
            for name, write in WRITERS.items():
                try:
                    text = write(launch)
                except SpecError:
                    continue
                counts[name] += 1
                settings = {
                    "titan": lambda text: torchtitan(tomllib.loads(text), "t"),
                    "megatron": lambda text: megatron(text, "m"),
                    "deepspeed": lambda text: deepspeed(json.loads(text), "d"),
                    "accelerate": lambda text: accelerate(yaml.safe_load(text), "a"),
                }[name](text)
                if not _same(candidate, settings, name):
                    wrong.append((name, candidate, settings))
    assert not wrong, wrong[:2]
    assert min(counts.values()) > 0, counts
    files, left_out, _ = export_files(small)
    assert {"torchrun.sh", "skypilot.yaml", "sim.sh"} <= set(files)
    task = yaml.safe_load(files["skypilot.yaml"])
    assert task["num_nodes"] == 1 and task["workdir"] == "."  # the files that it reads are copied
    assert all(left_out.values())


@pytest.mark.parametrize(
    ("model", "sets", "nodes"),
    [
        ("llama-3.1-8b", (), 2),
        ("llama-3.1-405b", (), 16),
        ("qwen3-30b-a3b", (), 4),
        ("llama-3.1-8b", ("training.parallel={pipeline: 4, layers_per_stage: [6, 8, 9, 9]}",), 2),
        ("llama-3.1-8b", ("training.parallel={context: 2, context_exchange: all_gather}",), 2),
        ("deepseek-v2", ("training.parallel={expert: 2, capacity_factor: 1.25, pad_to_capacity: true}", "training.precision=fp32"), 4),
    ],
)
def test_a_stack_runs_what_is_proposed_for_it(model: str, sets: tuple[str, ...], nodes: int) -> None:
    """Each layout's own program has a file for it, which reads back as the layout that is simulated, uneven stages and all."""
    made = prepare_plan(PlanQuestion(Scenario("hgx-h100", model, sets, global_batch=64), (nodes,)))
    chunks, draw = set[tuple[str, int]](), random.Random(4)
    for setting, every in made.layouts:
        for candidate in draw.sample(every, min(60, len(every))):
            launch = launch_of(made, outcome_of(setting, candidate))
            own, titan = launch.parallel, candidate.stack == "torchtitan-2.x"
            if titan and candidate.context > 1 and model.startswith("deepseek"):
                continue  # which torchtitan runs for other models
            settings = torchtitan(tomllib.loads(torchtitan_toml(launch)), "t") if titan else None
            settings = settings or megatron(megatron_arguments(launch), "m")
            said = Parallel(**settings.parallel)
            kept = {"layers_per_stage", "virtual_stages"} | (set() if titan else {"capacity_factor", "pad_to_capacity"})
            kept |= {"context_exchange"} if candidate.context > 1 else set()
            assert {name: getattr(said, name) for name in kept} == {name: getattr(own, name) for name in kept}, candidate
            assert settings.training["precision"] == candidate.precision and not settings.notes
            chunks.add((candidate.stack, candidate.chunks))
    assert {("torchtitan-2.x", 2), ("torchtitan-2.x", 4)} <= chunks


def test_torchtitan_replicates_and_splits_experts_as_it_can() -> None:
    """models/*/infra/parallelize.py: DDP has not supported > 1D parallelism; experts' ranks are those of one replica."""
    made = prepare_plan(PlanQuestion(Scenario("hgx-h100", "qwen3-30b-a3b", global_batch=64, stack="torchtitan-2.x"), (4,)))
    ((_, every),) = made.layouts
    replicated = {(each.tensor, each.context, each.pipeline, each.expert) for each in every if each.shard == "none" and each.data > 1}
    assert replicated == {(1, 1, 1, 1)}
    split = [each for each in every if each.expert > 1]
    assert {each.replicate for each in split} > {1}
    assert not [each for each in split if each.data // each.replicate * each.context * each.tensor % each.expert]
    alone = prepare_plan(PlanQuestion(Scenario("hgx-h100", "llama-3.1-8b", global_batch=8, stack="torchtitan-2.x"), (1,), 2))
    ((setting, each_of),) = alone.layouts
    split = [each for each in each_of if each.tensor == 2]
    assert {each.shard for each in split} == {"none"}
    written = launch_files_of(launch_of(alone, outcome_of(setting, split[0])), "")
    assert 'dtype = "bfloat16"' in written.files["torchtitan.toml"]  # nothing mixes precisions without data ranks
    assert any("less memory than predicted here" in note for note in written.notes)


def test_arguments_of_megatron_say_the_whole_model() -> None:
    """Every decoder of the catalogue reads back equal in all sizes and kinds, or the field that arguments cannot say is named."""
    written, refused = [], {}
    for name in catalogue("workloads"):
        spec = load_workload(name).spec
        if (shape := spec.model.transformer) is None:
            continue
        launch = Launch(name, name, shape, False, 1024, Parallel(), 8, 1, 1, "none", "bf16", 1, 8, "H100")
        try:
            read = megatron(megatron_arguments(launch), "m").shape
        except SpecError as error:
            refused[name] = str(error)
            continue
        written.append(name)
        again = decoder_layers(shape.model_validate(read), 1024), decoder_layers(shape, 1024)
        assert [layer.gradients for layer in again[0]] == [layer.gradients for layer in again[1]], name
        assert shape.dropout == read["dropout"] and (not shape.window or shape.window >= 1024), name
        for field, default in (("rope_base", 10_000), ("rope_share", 1.0), ("norm_epsilon", 1e-5)):
            if field.startswith("norm") or shape.positions == "rope":
                assert read[field] == (getattr(shape, field) or default), (name, field)
    assert {"llama-3.1-8b", "gpt3-175b", "mixtral-8x7b", "deepseek-v2"} <= set(written)
    assert "sinks" in refused["gpt-oss-20b"] and "window" in refused["gemma-3-1b-pt"]


def test_four_bits_are_megatrons_alone() -> None:
    """Megatron has --fp4-format, which reads back; the files of the others are left out, not written in more bits."""
    shape = load_workload("llama-3.1-8b").spec.model.transformer
    launch = Launch("own", "llama-3.1-8b", shape, False, 1024, Parallel(shard="parameters"), 8, 1, 1, "none", "nvfp4", 1, 8, "B200")
    assert megatron(megatron_arguments(launch._replace(parallel=Parallel(shard="optimizer"))), "m").training["precision"] == "nvfp4"
    left_out = launch_files_of(launch, "").left_out
    assert all("nvfp4" in left_out[name] for name in ("torchtitan.toml", "deepspeed.json", "accelerate.yaml")), left_out


def test_a_model_that_no_file_can_say_is_a_sentence() -> None:
    """A table of layers, adapters, and a model of the catalogue with other sizes: told in one sentence, the layout's files written."""
    shape = load_workload("llama-3.1-8b").spec.model.transformer
    assert shape is not None
    full_launch = Launch("own", "llama-3.1-8b", shape, False, 1024, Parallel(), 8, 1, 1, "none", "bf16", 1, 8, "H100")
    shallow = full_launch._replace(shape=shape.model_copy(update={"layers": 4}))
    cases = {
        "table of layers": (full_launch._replace(shape=None), {"torchtitan.toml", "megatron.args"}),
        "adapters": (full_launch._replace(adapters=True), {"torchtitan.toml", "megatron.args"}),
        "in layers": (shallow, {"torchtitan.toml"}),
    }
    assert {"torchtitan.toml", "megatron.args"} <= set(launch_files_of(full_launch, "").files)
    for words, (launch, names) in cases.items():
        result = launch_files_of(launch, "")
        assert all(words in result.left_out[name] for name in names), result.left_out
        assert not names & set(result.files) and {"deepspeed.json", "torchrun.sh", "sim.sh"} <= set(result.files)
    untold = full_launch._replace(shape=shape.model_copy(update={"rope_base": None, "experts": 8, "experts_per_token": 2}))
    of_megatron = [note for note in launch_files_of(untold, "").notes if note.startswith("megatron.args: ")]
    assert ["--rotary-base is 10000" in note for note in of_megatron] == [True, False]
    assert "--rotary-base 500000" in launch_files_of(full_launch, "").files["megatron.args"]


def outcome_of(setting: Setting, candidate: LayoutCandidate) -> Any:
    """Return what stands for a simulated layout where only the layout is asked for."""

    class Run:
        node = worker_node(setting.hardware)

    class Stand:
        placed_layout = PlacedLayout(setting, candidate)
        run: LayoutRun | type[Run] = Run

    return Stand


def _same(candidate: LayoutCandidate, settings: LaunchSettings, name: str) -> bool:
    """Return whether the layout *settings* by the file of the program *name* is *candidate*, in every field that the program decides."""
    own, said = candidate.parallel, Parallel(**settings.parallel)
    if name == "deepspeed":
        batches = (settings.global_batch, settings.training["batch"], settings.training["gradient_accumulation_steps"])
        return said == Parallel(shard=own.shard) and batches == (64, candidate.batch, candidate.micro_batches)
    if name == "accelerate":
        kept = ("shard", "tensor", "context", "replicate")
        kept_weights = False if own.reshard_after_forward is False else None
        return said == Parallel(reshard_after_forward=kept_weights, **{key: getattr(own, key) for key in kept})
    usual = "1f1b" if own.virtual_stages == 1 else "interleaved_1f1b"
    meant = {
        "sequence": own.sequence_parallel,
        "schedule": (own.schedule or usual) if name == "titan" and own.pipeline > 1 else None,
        "reshard_after_forward": own.reshard_after_forward if own.shard == "parameters" else None,
        "replicate": own.replicate if own.shard == "parameters" else 1,
    }
    read = {"sequence": said.sequence_parallel}
    batches = (settings.global_batch, settings.training["batch"], settings.training["precision"])
    recomputed = settings.training.get("activation_checkpointing", "none") == candidate.checkpointing
    same = said.model_copy(update=read) == own.model_copy(update=meant)
    return same and recomputed and batches == (64, candidate.batch, candidate.precision)


@pytest.mark.nightly
def test_where_things_change_another_layout_may_win() -> None:
    scenario = Scenario("hgx-h100", "qwen3-0.6b", global_batch=64)
    question = PlanQuestion(scenario, (2,), fixed={"batch": "2", "tp": "1", "cp": "1"}, limits=Limits(shown=2))
    made = plan(question)
    turns = {turn.change: turn for turn in sensitivity(made)}
    assert set(turns) == {"NICs half as fast", "sequence doubled", "global batch halved"}
    for turn in turns.values():
        assert turn.of_plan is not None or not turn.same  # one that wins can run
        assert turn.best is None or turn.of_plan is None or turn.of_plan.time >= turn.best.time * (1 - 1e-9)  # which is equal where it wins
    slower = turns["NICs half as fast"]
    assert slower.best is not None
    assert slower.best.value >= made.tally.outcomes[0].value * (1 - 1e-9)
    if not slower.same:
        assert slower.flips_at is not None
        assert 0.25 <= slower.flips_at <= 1.0


@pytest.mark.nightly
def test_what_still_wins_with_smaller_micro_batches_is_told_its_time() -> None:
    """Oracle: with sequences twice as long the plan's micro-batch of 2 may not fit; the same layout with one that does has a time."""
    question = PlanQuestion(
        Scenario("hgx-h100", "llama-3.2-1b", global_batch=16), gpus=4, fixed={"tp": "2", "stack": "megatron-core"}, limits=Limits(shown=1)
    )
    turn = next(turn for turn in sensitivity(plan(question)) if turn.change == "sequence doubled")
    assert turn.same and turn.best is not None
    assert turn.of_plan is turn.best


@pytest.mark.nightly
def test_a_layout_that_is_hardly_beaten_under_a_change_is_not_said_to_lose() -> None:
    """A layout that is half a percent quicker than the plan's under a change ties with it; one that takes half the time does not."""
    question = PlanQuestion(
        Scenario("hgx-h100", "llama-3.2-1b", global_batch=16), (1,), fixed={"tp": "1", "pp": "1"}, limits=Limits(shown=2)
    )
    made = plan(question)
    turn = next(turn for turn in sensitivity(made) if turn.change == "sequence doubled")
    assert turn.of_plan is not None
    turn = replace(turn, same=False, best=replace(made.tally.outcomes[1], value=0.995 * turn.of_plan.value))
    assert turn.best is not None and turn.of_plan is not None
    assert turn.of_plan.value < 1.01 * turn.best.value
    document = plan_document(made, [turn])
    assert document["sensitivity"][0]["tie"]
    name = re.escape(candidate_name(turn.best.placed_layout.candidate))
    assert re.search(
        rf"doubled: the same layout, [\d.]+ ms per step, is within the expected error of the best, {name}", plan_text(document)
    )
    apart = replace(turn, of_plan=replace(turn.of_plan, value=2 * turn.best.value))
    assert not plan_document(made, [apart])["sensitivity"][0]["tie"]


def test_no_two_lines_of_a_table_are_called_alike(small: LayoutPlan) -> None:
    """Every field in which two layouts of a plan may differ is in their names: no two of all there are have one name."""
    scenario = replace(SMALL.scenario, overrides=ANY_SCHEDULE)
    question = replace(SMALL, scenario=scenario, allowed=frozenset({"fp8", "gpipe", "zero_bubble", "selective", "no_sequence"}))
    for plan_of in (small, prepare_plan(question)):
        every = [(setting.nodes, each.stack, candidate_name(each)) for setting, candidates in plan_of.layouts for each in candidates]
        assert len(every) == len(set(every)) > 100


def test_only_megatron_multiplies_in_four_bits() -> None:
    scenario = Scenario("gb300-nvl72", "llama-3.2-1b", global_batch=72)
    question = PlanQuestion(scenario, fixed={"tp": "1", "cp": "1", "pp": "1"}, allowed=frozenset({"nvfp4", "fp8"}))
    tried = {(each.stack, each.precision) for _, candidates in prepare_plan(question).layouts for each in candidates}
    megatron, titan = ({precision for stack, precision in tried if stack.startswith(name)} for name in ("megatron", "torchtitan"))
    assert megatron == titan | {"nvfp4"} and "fp8" in titan


def test_everything_that_a_step_goes_to_has_words(small: LayoutPlan) -> None:
    parts = plan_report.PARTS
    assert all(set(plan_report.parts(outcome)) <= set(parts) for outcome in small.tally.outcomes)


def test_bad_input_is_one_message_that_says_what_would_do() -> None:
    scenario = Scenario("hgx-h100", "llama-3.1-8b")
    cases = [
        (PlanQuestion(scenario, fixed={"tp": "3"}), "tp may be 1, 2, 4, 8"),
        (PlanQuestion(scenario, fixed={"tp": "8", "pp": "16"}), "pp may be 1 with the others"),
        (
            PlanQuestion(replace(scenario, global_batch=64), fixed={"pp": "4", "schedule": "zbv"}),
            "needs to be allowed; add --allow zero_bubble",
        ),
        (PlanQuestion(scenario, fixed={"precision": "fp8"}), "needs to be allowed; add --allow fp8"),
        (PlanQuestion(scenario, fixed={"foo": "1"}), "there is no field foo"),
        (PlanQuestion(scenario, fixed={"data": "4"}), "follows from the GPUs that tp, cp and pp leave; fix those"),
        (PlanQuestion(scenario, fixed={"nodes": "4"}), "write --nodes or --gpus"),
        (PlanQuestion(scenario, tokens="0"), "above 0"),
        (PlanQuestion(scenario, tokens="1000"), "--tokens 1000: one step takes "),
        (PlanQuestion(scenario, allowed=frozenset({"magic"})), "--allow magic"),
        (PlanQuestion(scenario, (5,), 12), "5 nodes of 8 GPUs"),
        (PlanQuestion(replace(scenario, stack="torch-2.x-ddp")), "without --stack torch-2.x-ddp it would fit"),
        (
            PlanQuestion(replace(scenario, workload="llama-3.1-70b", global_batch=16), fixed={"stack": "megatron-core"}),
            "--nodes 2 would fit",
        ),
        (PlanQuestion(scenario, limits=Limits(memory=2.0**30)), "without --max-memory it would fit"),
    ]
    for question, text in cases:
        with pytest.raises(SpecError) as caught:
            plan(question)
        assert len(caught.value.problems) == 1
        assert text in caught.value.problems[0]
    assert isinstance(caught.value, Infeasible)


def test_unlike_machines_are_told_the_command_that_takes_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Oracle: the command in the message runs as it is written."""
    own = tmp_path / "two kinds.yaml"
    own.write_text("name: two kinds\ngroups:\n  - {node: p2.xlarge, count: 2}\n  - {node: p3.2xlarge, count: 1}\n")
    words = ["--global-batch", "48", "--precision", "fp32", "--stack", "torch-1.13-ddp", "--set", "input.loader=synthetic"]
    assert main(["plan", str(own), "resnet18", *words, "--set", "training.parallel.tensor=1"]) == 2
    error = capsys.readouterr().err
    assert len(error.splitlines()) == 1 and error.startswith("two kinds: has 2 groups of different workers")
    command = shlex.split(error[error.index("'python") + 1 : error.rindex("' divides a batch")])
    assert command[:3] == ["python", "-m", "sim"] and main([*command[3:], "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["global_batch"] == 48 and answer["precision"] == "fp32"


def test_groups_of_equal_machines_are_one() -> None:
    scenario = Scenario("2x-p3.8xlarge", "resnet18", ("groups=[{node: p3.2xlarge, count: 2}, {node: p3.2xlarge, count: 1}]",))
    with pytest.raises(SpecError, match="2 groups of identical workers; for layouts write one group with count: 3"):
        prepare_plan(PlanQuestion(scenario))


def test_an_unlike_group_without_gpus_or_of_servers_is_no_other_kind() -> None:
    """Parameter servers beside workers of one kind stop no plan; the message is for workers alone."""
    scenario = Scenario(
        "2x-p3.8xlarge", "gpt2", ("groups=[{node: p3.8xlarge, count: 2}, {node: p2.xlarge, count: 1, role: server}]",), precision="amp_fp16"
    )
    assert any(every for _, every in prepare_plan(PlanQuestion(scenario)).layouts)


def test_sizes_without_a_layout_among_the_best_are_named() -> None:
    """Four nodes are faster than one by more than any bound misses: those of one are excluded, and the text says how to see them."""
    made = plan(PlanQuestion(Scenario("hgx-h100", "gpt2", global_batch=512), (1, 4)))
    assert {outcome.placed_layout.setting.nodes for outcome in made.tally.outcomes} == {4}
    text = plan_text(plan_document(made))
    assert "8 or 32 GPUs, 1 or 4 nodes" in text
    assert "- no layout on 1 node is among the best; --nodes 1 shows the best one there" in text


@pytest.mark.parametrize(("batch", "note"), [(12, "--global-batch 16 allows them"), (16, ""), (4, "")])
def test_a_batch_that_the_gpus_do_not_divide_is_named(batch: int, note: str) -> None:
    """By hand: 8 GPUs have no equal shares of 12 samples, but of 16; 4 samples are fewer than the GPUs, whose other axes split them."""
    text = plan_text(plan_document(plan(PlanQuestion(Scenario("hgx-h100", "gpt2", global_batch=batch)))))
    assert ("8 GPUs do not divide 12 samples" in text) == bool(note) and note in text


def test_money_is_named_where_there_is_a_price(small: LayoutPlan) -> None:
    page = plan_page(plan_document(small))
    assert "Pareto-optimal in time and memory" in page and "memory and money" not in page
