"""Oracle: what each framework has, from its code and documentation as the stacks' sources name them."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import replace

import pytest

from sim.cli import main
from sim.spec.library import load_part
from sim.spec.parallel import MeshOptions, Parallel
from sim.spec.stack import Stack
from sim.spec.yaml import SpecError
from sim.study.plan.question import PlanQuestion, prepare_plan
from sim.study.plan.space import LayoutCandidate
from sim.study.scenario import Scenario

EVERYTHING = frozenset({"gpipe", "zero_bubble", "no_sequence", "selective", "wide_tensor", "fp8"})
ALL, NONE = {"tensor", "context", "pipeline", "expert"}, set[str]()
HAVE: dict[str, tuple[set[str], set[str], set[bool]]] = {
    # axes beside data, schedules of pipelines, whether tensor ranks split sequences
    "torchtitan-2.x": (ALL, {"gpipe", "1f1b", "interleaved_1f1b", "zbv", "dualpipev"}, {True}),
    "megatron-core": (ALL, {"1f1b", "interleaved_1f1b"}, {True, False}),
    "nemo": (ALL, {"1f1b", "interleaved_1f1b"}, {True, False}),
    "nanotron": (ALL - {"context"}, {"gpipe", "1f1b"}, {True, False}),
    "megatron-deepspeed": ({"tensor", "pipeline"}, {"1f1b"}, {False}),
    "torch-fsdp1": (NONE, set(), set()),
    "composer-fsdp1": (NONE, set(), set()),
    "xla-fsdp": (NONE, set(), set()),
    "llm-c": (NONE, set(), set()),
}


def planned(stack: str, allowed: Set[str]) -> list[LayoutCandidate]:
    """Return every layout of a small mixture of experts on two nodes, what no tried stack has left out of *allowed*."""
    scenario = Scenario("hgx-h100", "mixtral-8x7b", ("model.sequence=8192",), stack=stack, global_batch=32)
    return [each for _, every in prepare_plan(PlanQuestion(scenario, (2,), allowed=frozenset(allowed))).layouts for each in every]


@pytest.mark.parametrize("stack", HAVE)
def test_a_plan_has_what_the_framework_has_and_no_more(stack: str) -> None:
    axes, schedules, splits = HAVE[stack]
    has = {"gpipe": "gpipe" in schedules, "selective": stack != "llm-c", "zero_bubble": "zbv" in schedules, "no_sequence": len(splits) > 1}
    every = planned(stack, {name for name in EVERYTHING if has.get(name, True)})
    assert {name for name in ALL if any(getattr(each, name) > 1 for each in every)} == axes
    assert {each.schedule for each in every if each.pipeline > 1} == schedules
    assert {each.sequence for each in every if each.tensor > 1} == splits
    assert ("blocks" in {each.checkpointing for each in every}) == (stack != "llm-c")
    assert not {each.shard for each in every} & ({"parameters", "gradients"} if stack == "llm-c" else set())


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["--stack", "megatron-core", "--allow", "gpipe"],
            "--allow gpipe: megatron-core has the schedules 1f1b, interleaved_1f1b; leave it",
        ),
        (["--stack", "megatron-core", "--allow", "zero_bubble"], "--allow zero_bubble: megatron-core has the schedules"),
        (["--stack", "torchtitan-2.x", "--allow", "no_sequence"], "--allow no_sequence: tensor ranks of torchtitan-2.x always split"),
        (
            ["--stack", "torchtitan-2.x", "--fix", "pp=2,schedule=zb_h1"],
            "--fix schedule=zb_h1: torchtitan-2.x has the schedules gpipe, 1f1b",
        ),
        (["--stack", "torchtitan-2.x", "--fix", "tp=2,sp=false"], "--fix sp=false: tensor ranks of torchtitan-2.x always split sequences"),
        (
            ["--stack", "llm-c", "--fix", "tp=8"],
            "--fix tp=8: llm-c does not support tensor parallelism; leave it out, or name another --stack",
        ),
        (["--stack", "llm-c", "--fix", "shard=parameters"], "--fix shard=parameters: llm-c shards none, optimizer; write one of these"),
        (["--stack", "llm-c", "--fix", "recompute=blocks"], "--fix recompute=blocks: llm-c recomputes neither blocks nor attention"),
        (
            ["--stack", "llm-c", "--allow", "selective"],
            "--allow selective: llm-c recomputes neither blocks nor attention; leave it out",
        ),
        (["--stack", "xla-fsdp", "--fix", "pp=2"], "--fix pp=2: xla-fsdp does not support pipeline parallelism"),
        (["--stack", "torch-fsdp1", "--fix", "cp=2"], "--fix cp=2: torch-fsdp1 does not support context parallelism"),
    ],
)
def test_a_plan_that_asks_for_more_is_told_what_there_is(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "hgx-h100", "llama-3.2-1b", "--global-batch", "64", *words]) == 2
    error = capsys.readouterr().err
    assert message in error and len(error.strip().splitlines()) == 1


@pytest.mark.parametrize(
    ("stack", "words", "message"),
    [
        (
            "llm-c",
            ["--tp", "2"],
            "training.stack: llm-c does not support tensor parallelism; leave it out, or use --stack torchtitan-2.x or megatron",
        ),
        ("torch-fsdp1", ["--pp", "2"], "torch-fsdp1 does not support pipeline parallelism"),
        ("xla-fsdp", ["--cp", "2"], "xla-fsdp does not support context parallelism"),
        ("llm-c", ["--shard", "parameters"], "llm-c does not support sharding of parameters"),
        ("hf-ddp", ["--shard", "parameters"], "hf-ddp does not support sharding of parameters"),
        ("hf-ddp-bf16", ["--shard", "optimizer"], "hf-ddp-bf16 does not support sharding of optimizer"),
    ],
)
def test_a_run_that_asks_for_more_is_told(stack: str, words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "hgx-h100", "gpt2", "--stack", stack, *words]) == 2
    assert message in capsys.readouterr().err


def test_one_stack_that_has_it_is_enough() -> None:
    """Without a stack named, torchtitan has the schedule that Megatron-LM lacks; with both lacking it, the first says so."""
    scenario = Scenario("hgx-h100", "llama-3.2-1b", global_batch=64)
    fixed = {"pp": "2", "schedule": "zbv"}
    ways = prepare_plan(PlanQuestion(scenario, (1,), fixed=fixed, allowed=frozenset({"zero_bubble"}))).layouts
    assert {each.stack for _, every in ways for each in every} == {"torchtitan-2.x"}
    with pytest.raises(SpecError, match=r"^--fix schedule=zb_h1: torchtitan-2\.x has the schedules"):
        prepare_plan(PlanQuestion(scenario, (1,), fixed=fixed | {"schedule": "zb_h1"}, allowed=frozenset({"zero_bubble"})))


def test_a_stack_of_ones_own_has_all_unless_it_says_less() -> None:
    options = MeshOptions.model_validate({"framework": "megatron", "source": "mine"})
    assert not options.lacks(Parallel(tensor=2, pipeline=2, context=2, expert=4, shard="optimizer"))
    options = load_part(Stack, "llm-c").mesh
    assert (
        options is not None and options.lacks(Parallel(expert=2)) == "expert parallelism" and not options.lacks(Parallel(shard="optimizer"))
    )


@pytest.mark.parametrize(
    ("model", "trains"),
    [("resnet50", False), ("gnmt", False), ("dlrm-criteo", False), ("bert-large-seq512", True), ("qwen3-30b-a3b", True)],
)
def test_megatron_is_proposed_for_transformers_alone(model: str, trains: bool) -> None:
    """Megatron-LM builds transformers; torch's DDP, FSDP2 and pipelines take any module. A stack that is named is taken at its word."""
    ways = prepare_plan(PlanQuestion(Scenario("hgx-h100", model))).layouts
    of_torch = {"torchtitan-2.x"} if model.startswith("qwen") else {"torch-1.13-ddp", "torch-2.x-ddp", "torch-2.x-fsdp2"}
    assert {each.stack for _, every in ways for each in every} == {*(["megatron-core"] if trains else []), *of_torch}
    named = prepare_plan(PlanQuestion(Scenario("hgx-h100", model, stack="megatron-core"))).layouts
    assert {each.stack for _, every in named for each in every} == {"megatron-core"}


def test_micro_batches_are_all_equal_parts() -> None:
    """Oracle: by hand. 80 samples a GPU in one pass or in equal parts, images and sequences alike."""
    images = prepare_plan(PlanQuestion(Scenario("p3.16xlarge", "resnet50"), fixed={"pp": "1"})).layouts[0][1]
    assert sorted({each.batch for each in images}) == [1, 2, 4, 5, 8, 10, 16, 20, 40, 80]
    assert all(each.batch * each.micro_batches * each.data == 640 for each in images)
    sequences = prepare_plan(PlanQuestion(Scenario("hgx-h100", "llama-3.2-1b", global_batch=640), (1,), fixed={"pp": "1"})).layouts[0][1]
    assert sorted({each.batch for each in sequences if each.data == 8}) == [1, 2, 4, 5, 8, 10, 16, 20, 40, 80]
    assert all(each.batch * each.micro_batches * each.data == 640 for each in sequences)


def test_context_ranks_divide_the_sequence() -> None:
    """Oracle: the conditions of Megatron-LM and torchtitan. 24 GPUs have context ranks of three, which 8,192 tokens have not."""
    scenario = Scenario("hgx-h100", "llama-3.2-1b", global_batch=24)
    usual = [each for _, every in prepare_plan(PlanQuestion(scenario, (3,))).layouts for each in every]
    threes = [each for _, every in prepare_plan(PlanQuestion(replace(scenario, sequence=12288), (3,))).layouts for each in every]
    assert {each.context for each in usual} == {1, 2, 4} and 3 in {each.context for each in threes}
    with pytest.raises(SpecError, match="--fix tp=8: needs to be allowed; add --allow no_sequence"):
        prepare_plan(PlanQuestion(replace(scenario, sequence=8191), (1,), fixed={"tp": "8"}))
