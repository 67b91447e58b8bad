"""Does a plan find the best layout, and is its proof sound? Against simulation of every layout, and bounds against simulation."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from sim.analysis.layout_memory import memory_by_stage
from sim.mesh import prepare, worker_node
from sim.report.plan import plan_document
from sim.study.plan.floor import Setting, floors
from sim.study.plan.question import LayoutPlan, PlanQuestion, plan, prepare_plan
from sim.study.plan.search import Limits, search
from sim.study.plan.space import LayoutCandidate
from sim.study.scenario import Scenario
from tests.study.plan.planned import ANY_SCHEDULE, SMALL, UNEVEN_EXPERTS, WRAPPED, assert_commands_repeat, played

UNEVEN_STAGES = ("training.parallel={pipeline: 4, layers_per_stage: [2, 5, 5, 4]}",)
CUT = ("training.parallel={pipeline: 4, cuts: [layer1.2, layer2.3.conv2, layer4.0]}",)
"""Where a ResNet-50, whose layers are in no numbered blocks of one kind, has its stages; one begins inside a block."""


@pytest.mark.parametrize("batch", [8, pytest.param(16, marks=pytest.mark.nightly)])
def test_the_search_finds_what_simulation_of_every_layout_finds_and_no_bound_is_above_it(batch: int) -> None:
    question = replace(SMALL, scenario=replace(SMALL.scenario, global_batch=batch))
    small = plan(question)
    times = []
    wrong = []
    for setting, every in prepare_plan(question).layouts:
        floor = floors(setting, every)
        for candidate, least, memory in zip(every, floor.time, floor.memory, strict=True):
            bound, time, needed = played(setting, candidate)
            times.append(time)
            if not least <= bound * (1 + 1e-9) <= time * (1 + 2e-9) or memory > needed * (1 + 1e-9):
                wrong.append((candidate, least, bound, time, memory, needed))
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
        PlanQuestion(Scenario("gpu_4x_h100_sxm5", "mixtral-8x7b", global_batch=64), (4,)),  # NICs of 10 Gbps
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
            quick = [layout for layout in every if layout.micro_batches * layout.chunks * layout.pipeline <= 400]
            schedules = sorted({layout.schedule for layout in quick})
            kinds = [[layout for layout in quick if layout.schedule == schedule] for schedule in schedules]
            chosen = [layout for kind in kinds for layout in draw.sample(kind, min(each, len(kind)))]
            floor = floors(setting, chosen)
            for candidate, least, memory in zip(chosen, floor.time, floor.memory, strict=True):
                bound, time, needed = played(setting, candidate)
                tried += 1
                met |= {candidate.schedule, candidate.shard, f"{question.scenario.hardware} {setting.nodes}"}
                met |= {"contention"} if time > 1.01 * bound else set()
                met |= {"experts"} if candidate.expert > 1 else set()
                if not least <= bound * (1 + 1e-9) <= time * (1 + 2e-9) or memory > needed * (1 + 1e-9):
                    wrong.append((candidate, least, bound, time, memory, needed))
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
                ratios.append((least / max(stage.of_gpu for stage in memory), candidate.pipeline))
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
