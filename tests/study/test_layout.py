"""Bad layouts get one sentence with a suggestion that works; plain data parallelism is what `sim.simulate` says; outputs open."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

import sim.mesh
from sim.analysis.layout_memory import memory_by_stage
from sim.analysis.saved_state import saved_state
from sim.analysis.whole_job import JobPlan
from sim.check import check_workload
from sim.cli import main
from sim.commands.options import LAYOUT
from sim.documents import document
from sim.events import Cause
from sim.mesh import prepare, run_layout, worker_node
from sim.parallel.schedule import Action
from sim.report.layouts.layout import layout_document
from sim.report.page.layout import layout_page
from sim.report.trace.layout_trace import write_layout_trace
from sim.simulate import simulate
from sim.spec.library import load_hardware, load_workload
from sim.spec.yaml import SpecError
from sim.study.layout import _too_many, layout_answer
from sim.study.layout_options import layout_of
from sim.study.scenario import Infeasible, Scenario, has_layout
from sim.study.scenario import prepare as checked
from tests.training.layouts.toys import blocks, free, split_block, workload

LAYOUT_NAMES = {"tensor": "tp", "pipeline": "pp", "context": "cp", "expert": "ep"}
TITAN, MEGATRON = "torchtitan-2.x", "megatron-core"


def scenario(name: str, nodes: int = 1, stack: str | None = TITAN, gpus: int | None = None, **parallel: object) -> Scenario:
    micro_batches = parallel.pop("micro_batches", None)
    text = [",".join(f"{key}={value}" for key, value in parallel.items())] if parallel else []
    layout = layout_of(text, micro_batches=micro_batches)  # type: ignore[arg-type]
    return Scenario("hgx-h100", name, nodes=nodes if gpus is None else None, gpus=gpus, stack=stack, layout=layout)


def test_a_sharded_job_on_larger_samples_is_warned_of() -> None:
    """Ten times ImageNet's 110 KB a sample take ten times its 7.47 ms in proportion; data of the catalog are as they were measured."""
    own = replace(scenario("resnet50", shard="parameters"), overrides=("dataset.sample=1.1 MB",))
    assert any("--set dataset.prep='74.7 ms'" in text for text in layout_answer(own).warnings)
    assert not any("dataset.prep" in text for text in layout_answer(replace(own, overrides=())).warnings)


def refused(given: Scenario) -> str:
    with pytest.raises(SpecError) as caught:
        layout_answer(given)
    return str(caught.value)


@pytest.mark.parametrize("stack", ["megatron-lm-2022", "megatron-deepspeed"])
@pytest.mark.parametrize("model", ["gpt3-13b", "bloom-7b1", "llama-3.1-8b"])
def test_what_comes_with_a_stack_contradicts_no_model(model: str, stack: str) -> None:
    """Both stacks say how their attention kernel treats scores, which these models' tables have in one operator; written, it is refused."""
    named = load_workload(model, [f"training.stack={stack}"])
    assert check_workload(named.spec, named.document) == []
    written = load_workload(model, [f"training.stack={stack}", "training.stack.score_passes=4"])
    assert [text.partition(" has no attention")[1] for text in check_workload(written.spec, written.document)] == [" has no attention"]


LLAMA, MIXTRAL = "llama-3.2-1b", "mixtral-8x7b"
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
        scenario(LLAMA, gpus=6, tp=3), r"training.parallel.tensor: 3 ranks do not divide 32 attention heads; use 2 or 4",
        scenario(LLAMA, gpus=6, tp=2),
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
        scenario(LLAMA, replicate=2), "replicate is for sharded models .*write shard: parameters",
        scenario(LLAMA, replicate=2, shard="parameters"),
    ),
    (
        scenario(LLAMA, tp=2, wrap="layers.*"), r"^--parallel wrap=layers\.\*: wrap is for sharded parameters .*write shard: parameters",
        scenario(LLAMA, tp=2, wrap="layers.*", shard="parameters"),
    ),
    (
        scenario(LLAMA, pp=2, schedule="interleaved_1f1b"), "^--parallel schedule=interleaved_1f1b: .*write virtual_stages: 2",
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


def test_full_recomputation_is_that_of_blocks() -> None:
    """Megatron-LM's and torchtitan's word."""
    named = load_workload(LLAMA, ["training.activation_checkpointing=full"])
    assert named.spec.training.activation_checkpointing == "blocks"


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


# --- against the engine of plain data parallelism -------------------------------------------------------------------------


@pytest.mark.parametrize(("ahead", "within"), [(True, 0.01), (False, 0.02)])
def test_plain_data_parallelism_takes_what_simulate_says(ahead: bool, within: float) -> None:
    """One engine, two programs: the trivial mesh with DDP's buckets, all in 16 bits in both, where no GPU lags, within 1%.

    A host that is not *ahead* bounds gpt2 with a sample a GPU; layouts follow it unit by unit, and are within 2% then. Layouts do not copy
    gradients into DDP's buckets and back.
    """
    wrong = []
    cases = [(LLAMA, 1, 1), (LLAMA, 2, 1), ("gpt2", 1, 1), ("gpt2", 2, 1), ("gpt2", 1, 8), ("gpt2", 2, 8)]
    for name, nodes, batch in cases:
        alike = (
            "training.noise.compute_cv=0",
            "training.noise.persistent_cv=0",
            f"training.stack.cuda_graphs={str(ahead).lower()}",
            "training.stack.gradient_copy_passes=0",
        )
        given = Scenario("hgx-h100", name, alike, nodes=nodes, stack=TITAN, precision="bf16", batch=batch)
        question = checked(given)
        plain = simulate(question.hardware, question.jobs)
        settings = [
            f"training.stack={TITAN}",
            *alike,
            *(f"training.stack.mesh.{each}=bf16" for each in ("weights", "gradients", "reduction", "states")),
            "training.stack.mesh.shares_device=false",  # collectives slow compute in layouts alone
            f"training.stack.mesh.bucket_elements={25 * 2**20 // 2}",  # DDP's 25 MiB; Megatron's are more than three times as large
            f"training.batch={batch}",
            "training.precision=bf16",
        ]
        made = run_layout(_nodes(nodes), load_workload(name, settings).spec)
        ours, theirs = made.throughput, plain.jobs[0].throughput
        if abs(ours / theirs - 1) > within:
            wrong.append(f"{name} on {nodes} nodes: {ours:.4f} samples/s, simulate {theirs:.4f} ({100 * (ours / theirs - 1):+.1f}%)")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    ("stack", "weights", "gradients", "states"),
    [  # bytes per parameter, from each stack's mesh: Megatron-LM keeps FP32 gradients, master weights and moments; torchtitan FP32 weights
        ("megatron-core", 2, 4, 12),
        ("torchtitan-2.x", 4, 4, 8),
    ],
)
def test_a_framework_for_layouts_keeps_its_data_types_in_data_parallelism(stack: str, weights: int, gradients: int, states: int) -> None:
    plain = replace(scenario("gpt2-xl", stack=stack), batch=2)
    assert has_layout(plain) and not has_layout(replace(plain, stack="torch-2.x-ddp"))
    run = layout_answer(plain).run
    parameters = run.workload.model.parameters
    memory = run.memory[0]
    held = (memory.weights, memory.gradients, memory.optimizer_state)
    assert held == pytest.approx(tuple(parameters * width for width in (weights, gradients, states)))
    saved = saved_state(run.workload, gpus=8, nodes=1)
    assert saved.nbytes == pytest.approx(parameters * (weights + states))


def _nodes(count: int):  # type: ignore[no-untyped-def]
    from sim.cluster.build import with_nodes

    return with_nodes(load_hardware("hgx-h100").spec, count)


# --- what comes out ----------------------------------------------------------------------------------------------------------


def layouts_run() -> sim.mesh.LayoutRun:
    toy = [each for number in range(4) for each in split_block(number, 1000)]
    return run_layout(free(8), workload(toy, tensor=2, pipeline=2, shard="parameters", micro_batches=4))


def test_the_trace_opens_with_a_file_for_each_rank(tmp_path: Path) -> None:
    run = layouts_run()
    write_layout_trace(run, tmp_path / "traces")
    files = sorted((tmp_path / "traces").iterdir())
    assert [file.name for file in files] == [f"rank{rank}.json" for rank in range(8)]
    for rank, file in enumerate(files):
        document = json.loads(file.read_text())
        distributed = document["distributedInfo"]
        assert (distributed["backend"], distributed["rank"], distributed["world_size"]) == ("nccl", rank, 8)
        spans = [event for event in document["traceEvents"] if event["ph"] == "X"]
        assert {event["pid"] for event in spans} == {rank}
        assert all(event["dur"] >= 0 for event in spans)
        compute = sum(event["dur"] for event in spans if event["cat"] == "kernel" and event["name"] in ("forward", "backward"))
        assert compute == pytest.approx(4 * 2 * 0.5 * 0.03 * 1e6, rel=1e-3)  # 4 micro-batches, 2 blocks, half each
        names = {event["name"] for event in spans}
        assert {"ncclDevKernel_SendRecv", "ncclDevKernel_AllGather_RING_LL", "ncclDevKernel_ReduceScatter_Sum_f32_RING_LL"} <= names


@pytest.mark.parametrize(
    ("given", "in_flight"),
    [(scenario(LLAMA, tp=2, pp=4, micro_batches=6, stack=MEGATRON), (4, 3, 2, 1)), (scenario(LLAMA, shard="parameters"), (1,))],
)
def test_memory_over_time_covers_the_step_and_peaks_at_the_peak(given: Scenario, in_flight: tuple[int, ...]) -> None:
    """1F1B: a stage has as many micro-batches in flight as there are stages from it on; at the end nothing is kept."""
    run = layout_answer(given).run
    for stage, (played, peak) in enumerate(zip(run.played.stages, run.memory, strict=True)):
        course = run.memory_over_time(stage)
        assert (course[0][0], course[-1][1]) == (played.begin, pytest.approx(played.end, rel=1e-9))
        assert all(begin <= end == after for (begin, end, _), (after, _, _) in pairwise(course))
        assert max(held.total for *_, held in course) == peak.total
        held = [one.activations for *_, one in course]
        one = held[next(place for place, amount in enumerate(held) if amount)]
        assert held[-1] == pytest.approx(0.0, abs=1e-6 * one) if run.mesh.stages == 1 else max(held) >= 0.99 * in_flight[stage] * one


def test_the_document_sums_and_the_page_renders(tmp_path: Path) -> None:
    given = scenario(LLAMA, tp=2, pp=2, shard="parameters", micro_batches=4)
    answered = layout_answer(given)
    document = layout_document(answered)
    assert sum(document["stalls_s"].values()) == pytest.approx(document["step_time_s"], rel=1e-6)
    assert document["global_batch"] == document["replicas"] * 4
    assert [stage["stage"] for stage in document["memory_by_stage"]] == [0, 1]
    assert document["tokens_per_s_per_gpu"] * 8 == pytest.approx(document["tokens_per_s"])
    page = tmp_path / "page.html"
    page.write_text(layout_page(answered.run, document))
    assert page.read_text().count('class="lane high"') == 2  # the memory of each stage against time
    browser = shutil.which("chromium")
    if browser is None:
        return
    drawn = subprocess.run(
        [browser, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--dump-dom", page.as_uri()],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert "stage 1" in drawn.stdout


def test_memory_of_a_run_is_that_of_its_layout() -> None:
    run = layouts_run()
    again = memory_by_stage(prepare(run.hardware, run.workload), run.workload, worker_node(run.hardware).gpu)
    assert run.memory == again


@pytest.mark.parametrize("command", ["run", "compare", "whatif", "sweep", "goodput"])
def test_commands_take_the_same_options_of_layouts(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    main([command, "--help"])
    shown = capsys.readouterr().out
    assert not [option for option in LAYOUT if f"--{LAYOUT_NAMES.get(option, option.replace('_', '-'))} " not in shown]


def test_one_option_and_several_say_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    printed = []
    for options in (["--tp", "2", "--shard", "parameters"], ["--parallel", "tp=2,shard=parameters"]):
        assert main(["compare", "llama-3.2-1b", "hgx-h100", "--json", *options]) == 0
        printed.append(json.loads(capsys.readouterr().out)["rows"])
    assert printed[0] == printed[1] and printed[0][0]["tokens_per_s"] > 0


def test_one_gpu_has_nobody_to_talk_to():
    """Any way of sharding over one rank is plain training: no operation, all compute and launches."""
    wrong = []
    for stack in (TITAN, MEGATRON, "composer-fsdp1", "nanotron"):
        for shard in ("none", "optimizer", "gradients", "parameters"):
            for steps in (1, 3):
                try:
                    run = layout_answer(scenario(LLAMA, gpus=1, stack=stack, shard=shard, micro_batches=steps)).run
                except SpecError as error:
                    if "NCCL" in str(error):
                        wrong.append((stack, shard, steps, str(error)))
                    continue
                busy = run.stalls[Cause.COMPUTE] + run.stalls[Cause.LAUNCH]
                if abs(busy - run.step_time) > 1e-9 * run.step_time:
                    wrong.append((stack, shard, steps, dict(run.stalls)))
    assert not wrong


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
    assert "write shard: parameters, or leave it out" in refused(given)
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


def test_exact_and_fast_are_one_way() -> None:
    """Nothing of a layout is skipped, so there is nothing for --exact to add: also where stages and groups share a narrow core."""
    narrow = {"fabric.core_bandwidth": "1 GB/s"}
    for overrides in ((), tuple(f"{key}={value}" for key, value in narrow.items())):
        given = replace(scenario("llama-3.1-8b", nodes=2, tp=4, pp=2, micro_batches=4), overrides=overrides)
        documents = [layout_document(layout_answer(replace(given, exact=exact))) for exact in (False, True)]
        assert documents[0] == documents[1]
        run = layout_answer(given).run
        more = run_layout(run.hardware, run.workload, run.mesh.gpus_per_node, steps=7)
        assert more.step_time == pytest.approx(run.step_time, rel=1e-6)


@pytest.mark.parametrize(
    ("schedule", "more", "expected"),
    [("zb_h1", {"reshard_after_forward": "true"}, True), ("zb_h1", {}, False), ("1f1b", {"reshard_after_forward": "true"}, False)],
)
def test_a_layout_that_torch_does_not_train_is_warned_of(schedule: str, more: dict[str, object], expected: bool) -> None:
    """Oracle: what torch reduces (tests/parallel/test_staged_shards.py): nothing behind the first stage where weights are freed."""
    pipelined = scenario("llama-3.2-1b", pp=2, shard="parameters", schedule=schedule, micro_batches=4, **more)
    warned = any("torch's runtime loses gradients" in text for text in layout_answer(pipelined).warnings)
    assert warned is expected


@pytest.mark.parametrize("parallel", [{"shard": "parameters"}, {"cp": 2, "shard": "parameters"}, {"tp": 2}, None])
@pytest.mark.parametrize(("padding", "samples"), [("packed", 4), ("unpadded", 1)])
def test_documents_of_a_quarter_are_short_sequences(padding: str, samples: int, parallel: dict[str, object] | None) -> None:
    """Documents of 1024 tokens, packed in sequences of 4096, take the time of four samples of 1024 each; unpadded, of one."""
    lengths = "model.lengths={mean: 0.25, square: 0.0625, source: a test}"
    given = scenario(LLAMA, **(parallel or {})) if parallel else scenario(LLAMA, stack=None)
    given = replace(given, plan=JobPlan(None, tokens=10**9))
    long = document(replace(given, sequence=4096, overrides=(lengths, f"model.padding={padding}")))
    short = document(replace(given, sequence=1024, batch=samples))
    for name in ("step_time_s", "tokens_per_s", "model_flops_utilization"):
        assert long[name] == pytest.approx(short[name], rel=1e-6), name
    assert long["energy"]["energy_per_token_j"] == pytest.approx(short["energy"]["energy_per_token_j"], rel=1e-6)
    assert long["epoch_time_s"] == pytest.approx(short["epoch_time_s"], rel=1e-4)
    assert long["whole_job"]["parts_s"]["first_epoch"] == pytest.approx(short["whole_job"]["parts_s"]["first_epoch"], rel=1e-4)


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


@pytest.mark.parametrize("stack", ["megatron-core", "torchtitan-2.x", "nemo"])
def test_training_in_32_bits_keeps_and_sends_nothing_in_16(stack: str) -> None:
    """By hand: 4 bytes per parameter of weights and gradients, 8 of Adam's moments, no master copy; all sharded by 8 with FSDP or ZeRO."""
    shard = "parameters" if stack == TITAN else "optimizer"
    given = replace(scenario(LLAMA, stack=stack, shard=shard), precision="fp32", sequence=512)
    run = layout_answer(given).run
    parameters, memory = run.workload.model.parameters, run.memory[0]
    assert memory.weights == pytest.approx(4 * parameters / (8 if stack == TITAN else 1))
    assert memory.optimizer_state == pytest.approx(8 * parameters / 8)
    assert run.layout.gathered_width == run.layout.reduced_width == 4
    if stack != TITAN:
        assert memory.gradients == pytest.approx(4 * parameters)
    assert saved_state(run.workload, gpus=8, nodes=1).nbytes == pytest.approx(12 * parameters)


def test_a_spot_market_without_a_price_is_told() -> None:
    """Of data parallelism and of layouts alike; a machine with a spot price has none to tell."""
    for layout in ([], ["shard=parameters"]):
        given = Scenario("hgx-h100", "llama-3.2-1b", precision="bf16", market="spot", layout=layout_of(layout))
        told = [text for text in document(given)["warnings"] if "spot price" in text]
        assert told == ["no spot price for hgx-h100; set one, for example --set price.spot='1.50 USD/h'"]
        priced = document(replace(given, overrides=("price.spot='10 USD/h'",)))
        assert not [text for text in priced["warnings"] if "spot price" in text]
        assert "spot prices without interruptions (python -m sim spot simulates them)" in priced["assumptions"]
