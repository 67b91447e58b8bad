"""Which layouts are refused or warned of, and what does the message suggest? Oracle: the change that it suggests, made."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

import sim.mesh
from sim.documents import document
from sim.mesh import run_layout
from sim.parallel.schedule import Action
from sim.spec.library import load_workload
from sim.spec.yaml import SpecError
from sim.study.infeasible import Infeasible
from sim.study.layout import _too_many, layout_answer
from sim.study.layout_options import layout_of
from sim.study.scenario import Scenario
from tests.study.laid_out import LLAMA, MEGATRON, MIXTRAL, TITAN, scenario
from tests.training.layouts.toys import blocks, free, workload


def refused(given: Scenario) -> str:
    with pytest.raises(SpecError) as caught:
        layout_answer(given)
    return str(caught.value)


SPARSE = "qwen3-30b-a3b"  # 128 experts

CASES: list[tuple[Scenario, str, Scenario | None]] = [
    (
        scenario(LLAMA, tp=2, pp=3), "training.parallel: .*= 6 ranks do not divide 8 GPUs; use 6 or 12 GPUs",
        scenario(LLAMA, gpus=6, tp=2, pp=3),
    ),
    (
        scenario(LLAMA, tp=3), r"training.parallel.tensor: 3 ranks do not divide 32 attention heads; use 2 or 4",
        scenario(LLAMA, tp=2),
    ),
    (
        scenario(LLAMA, pp=19), "training.parallel.pipeline: 19 chunks of layers, but the model has 16 blocks; use at most 16 stages",
        None,
    ),
    (
        scenario(LLAMA, gpus=6, cp=3), "3 context ranks of two parts each do not divide a sequence of 8192 tokens; use 8190 or 8196 tokens",
        replace(scenario(LLAMA, gpus=6, cp=3), sequence=8190),
    ),
    (
        scenario(LLAMA, gpus=6, tp=3), r"training.parallel.tensor: 3 ranks do not divide 32 attention heads; use 2$",
        scenario(LLAMA, gpus=6, tp=2),
    ),
    (
        scenario("qwen2.5-7b", gpus=8, tp=8), r"training.parallel.tensor: 8 ranks do not divide 28 attention heads; use 4$",
        None,
    ),
    (
        scenario(SPARSE, nodes=3, ep=16, shard="parameters"), r"expert: 16 does not divide the 24 tensor, .*; use 8$",
        scenario(SPARSE, nodes=3, ep=8, shard="parameters"),
    ),
    (
        scenario(MIXTRAL, gpus=6, ep=6, shard="parameters"), r"training.parallel.expert: 6 ranks do not divide 8 experts; use 4 or 8",
        None,
    ),
    (
        scenario(LLAMA, nodes=4, pp=32, micro_batches=32),
        "training.parallel.pipeline: 32 chunks of layers, but the model has 16 blocks; use at most 16 stages x virtual stages",
        scenario(LLAMA, nodes=4, pp=16, micro_batches=32),
    ),
    (
        scenario("resnet50", tp=2),
        r"training.parallel.tensor: resnet50 has no tensor plan, which says .*, or use tensor: 1",
        scenario("resnet50", tp=1, shard="parameters"),
    ),
    (
        scenario("resnet50", cp=2), "training.parallel.context: resnet50 has no attention to split by sequence; use context: 1",
        scenario("resnet50", cp=1, shard="parameters"),
    ),
    (
        scenario(LLAMA, pp=4, schedule="interleaved_1f1b", virtual_stages=2, micro_batches=9),
        "schedule interleaved_1f1b on 4 stages cannot run 9 micro-batches .*; write micro_batches: 8 or 10",
        scenario(LLAMA, pp=4, schedule="interleaved_1f1b", virtual_stages=2, micro_batches=8),
    ),
    (
        scenario(LLAMA, pp=4, schedule="dualpipev", virtual_stages=2, micro_batches=6),
        "needs at least 8 micro-batches, not 6; .*micro_batches: 8",
        scenario(LLAMA, pp=4, schedule="dualpipev", virtual_stages=2, micro_batches=8),
    ),
    (
        scenario("resnet50", stack="tf-parameter-server", shard="parameters"),
        "training.stack: .*parameter servers, which cannot be combined with training.parallel; use --stack torchtitan-2.x",
        scenario("resnet50", stack=TITAN, shard="parameters"),
    ),
    (
        scenario(LLAMA, stack="torch-2.x-ddp", shard="parameters"),
        "supports plain data parallelism only; .*--stack torchtitan-2.x or megatron-core",
        scenario(LLAMA, stack=MEGATRON, shard="optimizer"),
    ),
    (
        scenario(LLAMA, shard="parameters", expert_imbalance=3), "parallel.expert_imbalance: llama-3.2-1b has no experts; leave it out",
        scenario(LLAMA, shard="parameters"),
    ),
    (
        scenario(LLAMA, replicate=2), "replicate is for sharded models .*write --shard parameters",
        scenario(LLAMA, replicate=2, shard="parameters"),
    ),
    (
        scenario(LLAMA, tp=2, wrap="layers.*"), r"^--parallel wrap=layers\.\*: wrap is for sharded parameters .*write --shard parameters",
        scenario(LLAMA, tp=2, wrap="layers.*", shard="parameters"),
    ),
    (
        scenario(LLAMA, pp=2, schedule="interleaved_1f1b"), "^--parallel schedule=interleaved_1f1b: .*write --parallel virtual_stages=2",
        scenario(LLAMA, pp=2, schedule="interleaved_1f1b", virtual_stages=2, micro_batches=2),
    ),
    (
        scenario("vgg16", pp=2),
        r"stages are cut between numbered blocks .*, but vgg16 has none; specify .*cuts: \[features.15\], or use pipeline: 1",
        scenario("vgg16", pp=2, cuts="features.15"),
    ),
    (
        scenario("vgg16", pp=2, cuts="features.99"), "vgg16 has no module features.99; did you mean features.9",
        scenario("vgg16", pp=2, cuts="features.9"),
    ),
    (
        scenario("resnet18", pp=4, cuts="layer2.0"), "cuts: layer2.0 divides .*2 parts, but there are 4 stages; name 3 modules in",
        scenario("resnet18", pp=4, cuts="layer2.0+layer3.0.conv2+layer4.1"),
    ),
    (
        scenario(LLAMA, pp=2, cuts="layers.8.ffn_norm"), "ffn_norm is inside layers.8; decoders are cut between blocks: write layers.8",
        scenario(LLAMA, pp=2, cuts="layers.8"),
    ),
    (
        scenario(LLAMA, gpus=16, tp=2), "^--gpus 16: 1 x hgx-h100 has 8 GPUs; write 8, or add --nodes 2$",
        replace(scenario(LLAMA, gpus=16, tp=2), nodes=2),
    ),
    (
        scenario(MIXTRAL, shard="parameters", capacity_factor=0), "^--parallel capacity_factor=0: .*above zero", None,
    ),
]  # fmt: skip


def test_axes_that_are_given_twice_must_agree() -> None:
    twice = scenario(LLAMA, tp=2)
    twice = replace(twice, layout=(*twice.layout, ("--tp", "parallel.tensor", 4)))
    assert refused(twice) == "--parallel tp=2 and --tp 4: write one of the two, or the same value"
    same = replace(twice, layout=(*twice.layout[:-1], ("--tp", "parallel.tensor", 2)))
    assert layout_answer(same).run.mesh.parallel.tensor == 2


def test_bad_layouts_are_refused_with_a_suggestion_that_works() -> None:
    wrong = []
    for given, message, mended in CASES:
        text = refused(given)
        if not re.search(message, text) or "\n" in text:
            wrong.append(f"{text}  (not {message})")
        if mended is not None:
            try:
                assert layout_answer(mended).run.step_time > 0
            except Infeasible as error:
                wrong.append(f"{mended.layout}: {error}")
    assert not wrong, "\n".join(wrong)


def test_the_first_refusal_names_all_that_is_missing() -> None:
    """Oracle: a stack without layouts and a model without a plan or blocks; once all that is asked for is there, the job runs."""
    plain = load_workload("vgg16").spec.training.stack.name
    stack = rf"^training.stack: {plain} supports plain data parallelism only; .*--stack torchtitan-2.x"
    plan = r"\ntraining.parallel.tensor: vgg16 has no tensor plan, .*model.tensor_plan={NAME: colwise, NAME: rowwise}.*sequence: false"
    split = scenario("vgg16", stack=None, tp=2, sequence="false")
    assert re.search(stack + ".*" + plan, refused(split))
    assert re.search(stack + r".*\ntraining.parallel.pipeline: .*cuts: \[features.15\]", refused(scenario("vgg16", stack=None, pp=2)))
    written = replace(split, stack=TITAN, overrides=("model.tensor_plan={classifier.0: colwise, classifier.3: rowwise}",))
    assert layout_answer(written).run.mesh.parallel.tensor == 2


def test_memory_that_is_short_names_what_helps() -> None:
    given = scenario("llama-3.1-8b", shard="none", tp=1, cp=1, micro_batches=2, pp=1, replicate=1, sp="false")
    with pytest.raises(Infeasible) as caught:
        layout_answer(given)
    text = str(caught.value)
    advice = re.search(r"--tp (\d+)|--shard parameters", text)
    assert advice, text
    assert "llama-3.1-8b does not fit: each GPU needs" in text


def test_what_fills_the_memory_is_said_in_words() -> None:
    with pytest.raises(
        Infeasible, match=r"the largest uses are [\d.]+ GiB of activations and [\d.]+ GiB of memory that the allocator keeps; "
    ):
        layout_answer(Scenario("p4d.24xlarge", "llama-3.1-8b", layout=layout_of(["shard=parameters"])))


def test_what_does_not_fit_is_not_simulated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sim.mesh, "play", lambda *_, **__: pytest.fail("simulated"))
    with pytest.raises(Infeasible):
        layout_answer(scenario("llama-3.1-8b", tp=1, cp=1))


def test_where_no_small_change_helps_the_search_for_a_layout_is_named() -> None:
    given = Scenario("hgx-h100", "llama-3.1-405b", nodes=8, layout=layout_of(["tp=8", "pp=8"]))
    with pytest.raises(Infeasible, match=r"more memory: 'python -m sim plan hgx-h100 llama-3.1-405b --nodes 8' tries every layout"):
        layout_answer(given)


def test_a_schedule_that_never_ends_is_refused_with_its_cycle(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two stages that each wait for the other's next action, before anything is simulated."""

    def crossed(schedule: str, stages: int, chunks: int, micro_batches: int, stage: int) -> tuple[Action, ...]:
        order = ("F", "B") if stage else ("B", "F")
        return tuple(Action(kind, 0, 0) for kind in order)  # type: ignore[arg-type]

    monkeypatch.setattr(sim.mesh, "actions", crossed)
    monkeypatch.setattr(sim.mesh, "_waits", sim.mesh._waits.__wrapped__)  # what it keeps is of the product's orders
    with pytest.raises(SpecError) as caught:
        run_layout(free(2), workload(blocks(2), pipeline=2))
    text = str(caught.value)
    assert "training.parallel.schedule: 1f1b deadlocks: stage 0 waits at backward of chunk 0, micro-batch 0" in text
    assert "write schedule: 1f1b" in text


def test_both_names_of_micro_batches_agree_or_are_refused() -> None:
    """Equal values run; unequal ones, whichever two ways they are written, are one sentence."""
    both = Scenario("hgx-h100", LLAMA, ("training.gradient_accumulation_steps=8",), stack=TITAN, layout=layout_of(["tp=8,micro_batches=4"]))
    assert refused(both) == (
        "--set training.gradient_accumulation_steps=8 and --parallel micro_batches=4: write one of the two, or the same value"
    )
    twice = Scenario("hgx-h100", LLAMA, stack=TITAN, layout=layout_of(["tp=8,micro_batches=4"], micro_batches=8))
    assert refused(twice) == "--parallel micro_batches=4 and --micro-batches 8: write one of the two, or the same value"
    equal = replace(both, overrides=("training.gradient_accumulation_steps=4",))
    assert layout_answer(equal).run.layout.micro_batches == 4


@pytest.mark.parametrize("text", ["order=[tensor,data,context,pipeline]", "tp=2,layers_per_stage=[30,2]"])
def test_lists_are_pointed_to_the_way_that_takes_them(text: str) -> None:
    name = "order" if "order" in text else "layers_per_stage"
    with pytest.raises(SpecError) as caught:
        layout_of([text])
    assert str(caught.value) == f"--parallel {name}: is a list; write --set training.parallel.{name}='[...]'"


def test_resharding_needs_sharded_parameters() -> None:
    given = scenario(LLAMA, tp=2, reshard_after_forward="true")
    assert "but shard is none; write --shard parameters, or leave reshard_after_forward out" in refused(given)
    assert layout_answer(scenario(LLAMA, tp=2, shard="parameters", reshard_after_forward="true")).run.mesh.parallel.reshard_after_forward


def test_the_imbalance_of_experts_says_what_is_possible() -> None:
    assert "at 8, one of 8 ranks has all tokens; write at most that" in refused(
        scenario(MIXTRAL, ep=8, shard="parameters", expert_imbalance=9)
    )


@pytest.mark.parametrize(
    ("gpus", "text"), [(4096, "more than 256 kinds of ranks"), (4104, "more than 4,096 ranks are not simulated individually")]
)
def test_what_was_not_counted_is_not_claimed(gpus: int, text: str) -> None:
    assert text in _too_many(gpus)


@pytest.mark.parametrize("name", ["ulysses", "etp", "expert_tensor_parallel", "cpu_offload", "gspmd", "rollouts"])
def test_what_is_not_simulated_is_said_in_one_sentence(name: str) -> None:
    text = refused(scenario(LLAMA, **{name: 2}))
    assert re.search("(is|are) not simulated", text) and "unknown key" not in text and "\n" not in text


def test_a_value_that_may_be_of_two_kinds_is_refused_once() -> None:
    text = refused(scenario(LLAMA, shard="parameters", reshard_after_forward="maybe"))
    assert text == "--parallel reshard_after_forward=maybe: found 'maybe'; write true or false, or a whole number, 1 or more"


@pytest.mark.parametrize(
    ("schedule", "more", "expected"),
    [("zb_h1", {"reshard_after_forward": "true"}, True), ("zb_h1", {}, False), ("1f1b", {"reshard_after_forward": "true"}, False)],
)
def test_a_layout_that_torch_does_not_train_is_warned_of(schedule: str, more: dict[str, object], expected: bool) -> None:
    """Oracle: what torch reduces (tests/parallel/test_staged_shards.py): nothing behind the first stage where weights are freed."""
    pipelined = scenario("llama-3.2-1b", pp=2, shard="parameters", schedule=schedule, micro_batches=4, **more)
    warned = any("torch's runtime loses gradients" in text for text in layout_answer(pipelined).warnings)
    assert warned is expected


def test_a_global_batch_contradicts_micro_batches_that_are_written() -> None:
    """By hand: 8 ranks of 1 sample need 4 micro-batches for 32 samples."""
    given = replace(scenario(LLAMA, shard="parameters"), global_batch=32)
    contradicting = replace(given, layout=(*given.layout, ("--micro-batches", "gradient_accumulation_steps", 2)))
    message = "--global-batch 32 and --micro-batches 2: 8 data-parallel ranks x 1 sample x 2 micro-batches are 16; leave one of the two out"
    assert refused(contradicting) == message
    assert "training.gradient_accumulation_steps=2: 8 data" in refused(
        replace(given, overrides=("training.gradient_accumulation_steps=2",))
    )
    for agreeing in (given, replace(contradicting, global_batch=16)):
        assert layout_answer(agreeing).run.global_batch == agreeing.global_batch


def test_a_spot_market_without_a_price_is_told() -> None:
    """Of data parallelism and of layouts alike; a machine with a spot price has none to tell."""
    for layout in ([], ["shard=parameters"]):
        given = Scenario("hgx-h100", "llama-3.2-1b", precision="bf16", market="spot", layout=layout_of(layout))
        told = [text for text in document(given)["warnings"] if "spot price" in text]
        assert told == ["no spot price for hgx-h100; set one, for example --set price.spot='1.50 USD/h'"]
        priced = document(replace(given, overrides=("price.spot='10 USD/h'",)))
        assert not [text for text in priced["warnings"] if "spot price" in text]
        assert "spot prices without interruptions (python -m sim spot simulates them)" in priced["assumptions"]


@pytest.mark.parametrize(
    ("text", "instead"),
    [("tp=2,dp=4", "parallel dp: .* leave it out"), ("zero=3", "zero: set shard to parameters"), ("fsdp=8", "fsdp: set shard")],
)
def test_keys_of_other_programs_are_answered_with_ours(text: str, instead: str) -> None:
    with pytest.raises(SpecError, match=instead):
        layout_of([text])
