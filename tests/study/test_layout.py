"""What does a run with a layout give? Plain data parallelism is what `sim.simulate` says; outputs open; commands agree. Oracles: those."""

from __future__ import annotations

import json
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
from sim.report.layouts.layout import layout_document
from sim.report.page.layout import layout_page
from sim.report.trace.layout_trace import write_layout_trace
from sim.simulate import simulate
from sim.spec.library import load_hardware, load_workload
from sim.spec.yaml import SpecError
from sim.study.layout import layout_answer
from sim.study.scenario import Scenario, has_layout
from sim.study.scenario import prepare as checked
from tests.golden.documents import differences
from tests.study.laid_out import LLAMA, MEGATRON, TITAN, scenario
from tests.training.layouts.toys import free, split_block, workload

LAYOUT_NAMES = {"tensor": "tp", "pipeline": "pp", "context": "cp", "expert": "ep"}


def test_a_sharded_job_on_larger_samples_is_warned_of() -> None:
    """Ten times ImageNet's 110 KB a sample take ten times its 7.47 ms in proportion; data of the catalog are as they were measured."""
    own = replace(scenario("resnet50", shard="parameters"), overrides=("dataset.sample=1.1 MB",))
    assert any("--set dataset.prep='74.7 ms'" in text for text in layout_answer(own).warnings)
    assert not any("dataset.prep" in text for text in layout_answer(replace(own, overrides=())).warnings)


@pytest.mark.parametrize("stack", ["megatron-lm-2022", "megatron-deepspeed"])
@pytest.mark.parametrize("model", ["gpt3-13b", "bloom-7b1", "llama-3.1-8b"])
def test_what_comes_with_a_stack_contradicts_no_model(model: str, stack: str) -> None:
    """Both stacks say how their attention kernel treats scores, which decoders have in one layer; written, it is theirs as well."""
    for sets in ([], ["training.stack.score_passes=4"]):
        named = load_workload(model, [f"training.stack={stack}", *sets])
        assert check_workload(named.spec, named.document) == []


def test_passes_over_scores_are_refused_without_attention() -> None:
    written = load_workload("resnet50", ["training.stack.score_passes=4"])
    assert [text.partition(" has no attention")[1] for text in check_workload(written.spec, written.document)] == [" has no attention"]


def test_full_recomputation_is_that_of_blocks() -> None:
    """Megatron-LM's and torchtitan's word."""
    named = load_workload(LLAMA, ["training.activation_checkpointing=full"])
    assert named.spec.training.activation_checkpointing == "blocks"


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
            "training.stack.compute_factor=1.08",  # whatever is fitted: the faster the compute, the more their overlaps differ
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


def test_exact_and_fast_are_one_way() -> None:
    """What is not simulated of a layout is computed, so --exact adds nothing: also where stages and groups share a narrow core."""
    narrow = {"fabric.core_bandwidth": "1 GB/s"}
    for overrides in ((), tuple(f"{key}={value}" for key, value in narrow.items())):
        given = replace(scenario("llama-3.1-8b", nodes=2, tp=4, pp=2, micro_batches=4), overrides=overrides)
        documents = [layout_document(layout_answer(replace(given, exact=exact))) for exact in (False, True)]
        assert differences(*documents) == []
        run = layout_answer(given).run
        more = run_layout(run.hardware, run.workload, run.mesh.gpus_per_node, steps=7)
        assert more.step_time == pytest.approx(run.step_time, rel=1e-6)


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
