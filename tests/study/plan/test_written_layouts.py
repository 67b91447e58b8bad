"""Do the files that a plan writes say its layout? Oracle: what the readers of launch files find in them."""

from __future__ import annotations

import json
import random
import tomllib
from dataclasses import replace

import pytest
import yaml

import stallsim
from sim.report.layouts.layout_files import export_files, launch_of
from sim.report.plan import plan_document
from sim.spec.catalog import catalog
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
from sim.study.plan.question import LayoutPlan, PlanQuestion, plan, prepare_plan
from sim.study.plan.space import LayoutCandidate
from sim.study.scenario import Scenario
from tests.study.plan.planned import SMALL, outcome_of

WRITERS = {"titan": torchtitan_toml, "megatron": megatron_arguments, "deepspeed": deepspeed_json, "accelerate": accelerate_yaml}


@pytest.mark.parametrize(("model", "wrap"), [("vgg16", 100_000_000), ("resnet50", None)])
def test_modules_are_wrapped_as_they_were_simulated(model: str, wrap: int | None) -> None:
    """VGG-16 has no blocks, so that its FSDP wraps modules by torch's default size; ResNet-50's wraps blocks."""
    made = plan(PlanQuestion(Scenario("p3.16xlarge", model, stack="torch-2.x-fsdp2"), fixed={"shard": "parameters"}))
    settings = accelerate(yaml.safe_load(export_files(made).files["accelerate.yaml"]), "a.yaml")
    assert settings.parallel.get("wrap") == wrap and settings.parallel["shard"] == "parameters"


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
        pytest.param("llama-3.1-405b", (), 16, marks=pytest.mark.nightly),
        pytest.param("qwen3-30b-a3b", (), 4, marks=pytest.mark.nightly),
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
    """Every decoder of the catalog reads back equal in all sizes and kinds, or the field that arguments cannot say is named."""
    written, refused = [], {}
    for name in catalog("workloads"):
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
    assert {"llama-3.1-8b", "gpt3-175b", "mixtral-8x7b", "deepseek-v2", "nemotron-h-56b", "nemotron-3-super-120b-a12b"} <= set(written)
    assert "sinks" in refused["gpt-oss-20b"] and "window" in refused["gemma-3-1b-pt"] and "delta_net" in refused["qwen3.5-9b"]


def test_arguments_of_a_hybrid_are_read_in_both_spellings_or_refused() -> None:
    """Heads of Mamba-2 layers have twice the width of the stream by default."""
    base = "--num-layers 4 --hidden-size 512 --num-attention-heads 8 --padded-vocab-size 1024 --max-position-embeddings 64 --seq-length 64"
    for option in ("hybrid-override-pattern", "hybrid-layer-pattern"):
        shape = megatron(f"{base} --is-hybrid-model --{option} 'M-*-'", "m").shape
        assert shape["pattern"] == "M-*-" and shape["mamba"] == {"state": 128, "head_dim": 64, "groups": 8, "heads": 16}
    with pytest.raises(SpecError, match=r"--hybrid-override-pattern M-x-: write a letter for each layer, M \(Mamba-2\)"):
        megatron(f"{base} --hybrid-override-pattern M-x-", "m")
    with pytest.raises(SpecError, match=r"gated delta nets \(G\) are not read from arguments of Megatron-LM; write a file with"):
        megatron(f"{base} --hybrid-override-pattern M-G-", "m")
    for pattern, sentence in (("P-P-", r"layers of attention beside Mamba-2 \(P\) are"), ("C-*-", r"short convolutions \(C\) are")):
        with pytest.raises(SpecError, match=f"{sentence} not read from arguments of Megatron-LM"):
            megatron(f"{base} --hybrid-override-pattern {pattern}", "m")
    assert megatron(f"{base} --hybrid-override-pattern M-M- --mamba-head-dim 0", "m").shape["mamba"]["head_dim"] == 0  # refused later
    sentence = "mamba.heads (6) is not a multiple of mamba.groups (8); write groups: 1"
    assert megatron(f"{base} --hybrid-override-pattern M-M-", "m").in_words_of_file(sentence) == sentence
    with pytest.raises(SpecError, match="--hybrid-attention-ratio selects layers that are not supported"):
        megatron(f"{base} --hybrid-attention-ratio 0.1", "m")


def test_four_bits_are_megatrons_alone() -> None:
    """Megatron has --fp4-format, which reads back; the files of the others are left out, not written in more bits."""
    shape = load_workload("llama-3.1-8b").spec.model.transformer
    launch = Launch("own", "llama-3.1-8b", shape, False, 1024, Parallel(shard="parameters"), 8, 1, 1, "none", "nvfp4", 1, 8, "B200")
    assert megatron(megatron_arguments(launch._replace(parallel=Parallel(shard="optimizer"))), "m").training["precision"] == "nvfp4"
    left_out = launch_files_of(launch, "").left_out
    assert all("nvfp4" in left_out[name] for name in ("torchtitan.toml", "deepspeed.json", "accelerate.yaml")), left_out


def test_a_model_that_no_file_can_say_is_a_sentence() -> None:
    """A table of layers, adapters, and a model of the catalog with other sizes: told in one sentence, the layout's files written."""
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


def test_only_megatron_multiplies_in_four_bits() -> None:
    scenario = Scenario("gb300-nvl72", "llama-3.2-1b", global_batch=72)
    question = PlanQuestion(scenario, fixed={"tp": "1", "cp": "1", "pp": "1"}, allowed=frozenset({"nvfp4", "fp8"}))
    tried = {(each.stack, each.precision) for _, candidates in prepare_plan(question).layouts for each in candidates}
    megatron, titan = ({precision for stack, precision in tried if stack.startswith(name)} for name in ("megatron", "torchtitan"))
    assert megatron == titan | {"nvfp4"} and "fp8" in titan


@pytest.mark.parametrize(("shard", "strategy"), [("parameters", "optim_grads_params"), ("gradients", "optim_grads")])
def test_layouts_of_megatron_fsdp_are_searched_simulated_and_written(shard: str, strategy: str) -> None:
    """Oracle: megatron/training/arguments.py, --data-parallel-sharding-strategy; `run` simulates the same layout."""
    scenario = Scenario("hgx-h100", "llama-3.1-8b", stack="megatron-core", global_batch=16)
    made = prepare_plan(PlanQuestion(scenario, (1,), fixed={"shard": shard, "tp": "1", "pp": "1", "cp": "1", "batch": "1"}))
    ((setting, every),) = made.layouts
    assert {each.shard for each in every} == {shard}
    launch = launch_of(made, outcome_of(setting, every[0]))
    text = megatron_arguments(launch)
    assert f"--use-megatron-fsdp\n--data-parallel-sharding-strategy {strategy}\n" in text and "--ckpt-format fsdp_dtensor" in text
    assert megatron(text, "m").parallel["shard"] == shard
    notes = launch_files_of(launch, "").notes
    assert "megatron.args: Megatron-FSDP needs CUDA_DEVICE_MAX_CONNECTIONS unset or above 1" in notes
    assert not [note for note in notes if note.startswith("megatron.args: Megatron-LM runs")]
    with pytest.raises(SpecError, match="written for shards without replicas"):
        megatron_arguments(launch._replace(parallel=Parallel(shard=shard, replicate=2)))


def test_a_plan_without_megatron_fsdp_says_so() -> None:
    scenario = Scenario("hgx-h100", "llama-3.2-1b", stack="megatron-core", global_batch=8)
    sentence = (
        "layouts of Megatron-FSDP, which shards gradients or parameters, are among them only with --fix shard=gradients or shard=parameters"
    )
    made = plan(PlanQuestion(scenario, (1,), fixed={"tp": "1", "pp": "1", "cp": "1", "batch": "1"}))
    assert sentence in plan_document(made)["assumptions"]
    fixed = plan(PlanQuestion(scenario, (1,), fixed={"tp": "1", "pp": "1", "cp": "1", "batch": "1", "shard": "parameters"}))
    assert sentence not in plan_document(fixed)["assumptions"]
    run = stallsim.run("hgx-h100", "llama-3.2-1b", stack="megatron-core", overrides={"training.parallel.shard": "parameters"})
    assert any("parameters are sharded as by Megatron-FSDP" in line for line in run.document["assumptions"])
