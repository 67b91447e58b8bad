"""Does the program that a launch file is written for read the layout in it? Oracle: its own parser, where it is installed.

None of these programs is needed for anything else: pip install accelerate deepspeed megatron-core skypilot 'torchtitan<0.3' triton.
"""

from __future__ import annotations

import importlib.util
import json
import random
import shlex
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from sim.report.layouts.layout_files import launch_of
from sim.spec.foreign.layout_files import launch_files
from sim.spec.foreign.layout_launch import Launch
from sim.spec.parallel import even_blocks
from sim.study.plan.question import LayoutPlan, PlanQuestion, prepare_plan
from sim.study.plan.space import LayoutCandidate
from sim.study.scenario import Scenario
from tests.study.plan.planned import outcome_of

QUESTION = PlanQuestion(
    Scenario("hgx-h100", "llama-3.1-8b", global_batch=64), (2,), allowed=frozenset({"fp8", "gpipe", "zero_bubble", "selective"})
)
MANY = 12
"""Layouts that each parser reads."""
MODULES = {
    "torchtitan": ("torchtitan.config.job_config", "torchtitan.toml"),
    "megatron": ("megatron.core.transformer", "megatron.args"),
    "deepspeed": ("deepspeed.runtime.config", "deepspeed.json"),
    "accelerate": ("accelerate.commands.launch", "accelerate.yaml"),
    "sky": ("sky.task", "skypilot.yaml"),
}
"""What is imported of each program, and its file."""
OF_THE_PARSER = {
    "global_batch_size", "micro_batch_size", "seq_length", "max_position_embeddings", "padded_vocab_size", "group_query_attention",
    "position_embedding_type", "untie_embeddings_and_output_weights", "swiglu", "disable_bias_linear", "use_tp_pp_dp_mapping",
    "num_virtual_stages_per_pipeline_rank", "norm_epsilon", "rotary_base", "rotary_percent", "rope_type", "mtp_num_layers",
}  # fmt: skip
"""Arguments of Megatron-LM (megatron/training/arguments.py) that are no fields of Megatron Core's configurations."""


def installed(module: str) -> bool:
    """Tell whether *module* is there, without importing the packages that it is in."""
    package, *inner = module.split(".")
    spec = importlib.util.find_spec(package)
    places = [Path(place, *inner) for place in (spec.submodule_search_locations or ())] if spec else []
    return any(place.is_dir() or place.with_suffix(".py").is_file() for place in places)


def titan(own: LayoutCandidate, launch: Launch) -> Mapping[str, Any]:
    sharded, piped = own.shard == "parameters", own.pipeline > 1
    return {
        "tensor": own.tensor, "pipeline": own.pipeline, "context": own.context, "expert": own.expert, "known": True,
        "replicate": own.replicate if sharded else own.data, "shards": own.data // own.replicate if sharded else 1,
        "reshard": {None: "default", True: "always", False: "never"}[own.reshard if sharded else None],
        "local_batch": own.batch * (own.micro_batches if piped else 1), "global_batch": 64, "model": ["llama3", "8B"],
        "checkpointing": {"none": "none", "model": "none", "blocks": "full", "selective": "selective"}[own.checkpointing],
        "fp8": own.precision == "fp8", "exchange": "alltoall" if own.context > 1 else "allgather", "runs": True,
        "blocks": even_blocks(32, own.parts, 1, 1) if piped else [],
    }  # fmt: skip


def megatron(own: LayoutCandidate, launch: Launch) -> Mapping[str, Any]:
    recompute = {"blocks": "full", "selective": "selective"}.get(own.checkpointing)
    return {
        "tensor": own.tensor, "pipeline": own.pipeline, "context": own.context, "expert": own.expert, "recompute": recompute,
        "sequence": own.parallel.sequence_parallel, "virtual": own.chunks,
    }  # fmt: skip


def deepspeed(own: LayoutCandidate, launch: Launch) -> Mapping[str, Any]:
    stage = {"none": 0, "optimizer": 1, "gradients": 2, "parameters": 3}[own.shard]
    return {"stage": stage, "global_batch": 64, "batch": own.batch, "micro_batches": own.micro_batches, "ranks": own.data, "bf16": True}


def accelerate(own: LayoutCandidate, launch: Launch) -> Mapping[str, Any]:
    if own.shard == "none":
        return {"fsdp": False, "ranks": 16, "nodes": 2}
    return {
        "fsdp": True, "version": 2, "reshard": own.reshard is not False, "checkpointing": own.checkpointing == "blocks", "ranks": 16,
        "nodes": 2, "meshed": True, "replicate": own.replicate, "shards": own.data // own.replicate, "tensor": own.tensor,
        "context": own.context,
    }  # fmt: skip


def sky(own: LayoutCandidate, launch: Launch) -> Mapping[str, Any]:
    return {"nodes": 2, "accelerators": {"H100": 8}}


EXPECTED: Mapping[str, Callable[[LayoutCandidate, Launch], Mapping[str, Any]]] = {
    "torchtitan": titan, "megatron": megatron, "deepspeed": deepspeed, "accelerate": accelerate, "sky": sky,
}  # fmt: skip


@pytest.fixture(scope="module")
def made() -> LayoutPlan:
    return prepare_plan(QUESTION)


def written(made: LayoutPlan, file: str) -> list[tuple[LayoutCandidate, Launch, str]]:
    """Return layouts drawn at random that *file* can be written for, with its text."""
    draw, launches = random.Random(11), []
    every = [(setting, each) for setting, candidates in made.layouts for each in candidates]
    plain = [(setting, each) for setting, each in every if each.tensor * each.context * each.pipeline * each.replicate == 1]
    for setting, candidate in [*draw.sample(plain, min(40, len(plain))), *draw.sample(every, 400)]:
        launch = launch_of(made, outcome_of(setting, candidate))
        files = launch_files(launch, "python -m sim run").files
        if file in files:
            launches.append((candidate, launch, files[file]))
    assert len(launches) >= MANY
    return draw.sample(launches, MANY)


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("model", "sets", "fixed", "name", "expected"),
    [
        ("llama-3.1-8b", (), {"vp": "4", "pp": "4"}, "torchtitan", {"blocks": even_blocks(32, 16, 1, 1), "runs": True}),
        ("llama-3.1-8b", (), {"vp": "4", "pp": "2"}, "torchtitan", {"blocks": even_blocks(32, 8, 1, 1), "runs": True}),
        (
            "llama-3.1-8b", ("training.parallel={pipeline: 4, layers_per_stage: [6, 8, 9, 9]}",), {"pp": "4", "schedule": "1f1b"},
            "torchtitan", {"blocks": [6, 8, 9, 9], "runs": True},
        ),
        (
            "llama-3.1-8b", ("training.parallel={pipeline: 4, layers_per_stage: [6, 8, 9, 9]}",), {"pp": "4", "schedule": "1f1b"},
            "megatron", {"blocks": [6, 8, 9, 9]},
        ),
        ("llama-3.1-405b", (), {"pp": "16", "schedule": "1f1b"}, "megatron", {"blocks": even_blocks(126, 16, 0, 0)}),
        ("qwen3-30b-a3b", (), {"tp": "2", "ep": "4"}, "megatron", {"expert_tensor": 1, "expert": 4}),
        ("qwen3-30b-a3b", (), {"tp": "2", "ep": "4"}, "torchtitan", {"expert": 4, "runs": True}),
    ],
)  # fmt: skip
def test_the_program_cuts_the_model_as_planned(
    model: str, sets: tuple[str, ...], fixed: dict[str, str], name: str, expected: Mapping[str, Any], tmp_path: Path
) -> None:
    """Oracle: torchtitan's and Megatron Core's own division of layers, experts and ranks."""
    module, file = MODULES[name]
    if not installed(module):
        pytest.skip(f"{module} is not installed")
    stack = {"torchtitan": "torchtitan-2.x", "megatron": "megatron-core"}[name]
    planned = prepare_plan(PlanQuestion(Scenario("hgx-h100", model, sets, global_batch=256, stack=stack), (16,), fixed=fixed))
    ((setting, every),) = planned.layouts
    paths = []
    for number, candidate in enumerate(random.Random(2).sample(every, 5)):
        paths.append(tmp_path / str(number) / file)
        paths[-1].parent.mkdir()
        paths[-1].write_text(launch_files(launch_of(planned, outcome_of(setting, candidate)), "").files[file])
    command = [sys.executable, "-W", "ignore", "-m", "tests.spec.launch_parsers", name, *map(str, paths)]
    done = subprocess.run(command, capture_output=True, text=True)
    read = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert len(read) == 5, done.stderr[-2000:]
    assert [{key: said[key] for key in expected} for said in read] == [expected] * 5


@pytest.mark.nightly
@pytest.mark.parametrize("name", MODULES)
def test_the_program_reads_what_was_planned(name: str, made: LayoutPlan, tmp_path: Path) -> None:
    module, file = MODULES[name]
    if not installed(module):
        pytest.skip(f"{module} is not installed")
    cases = written(made, file)
    paths = []
    for number, (_, _, text) in enumerate(cases):
        paths.append(tmp_path / str(number) / file)
        paths[-1].parent.mkdir()
        paths[-1].write_text(text)
    command = [sys.executable, "-W", "ignore", "-m", "tests.spec.launch_parsers", name, *map(str, paths)]
    done = subprocess.run(command, capture_output=True, text=True)
    read = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert len(read) == MANY, done.stderr[-2000:]
    for (candidate, launch, text), said in zip(cases, read, strict=True):
        expected = EXPECTED[name](candidate, launch)
        assert {key: said[key] for key in expected} == expected, (candidate, text)
        assert set(said.get("unknown", ())) <= OF_THE_PARSER
        if name == "sky":
            subprocess.run(["bash", "-n", "-c", said["run"]], check=True)


def test_torchrun_starts_what_was_written(made: LayoutPlan) -> None:
    """Oracle: torch's own parser of torchrun's arguments."""
    run = pytest.importorskip("torch.distributed.run")
    names = set()
    for _, launch, text in [*written(made, "torchtitan.toml")[:3], *written(made, "megatron.args")[:3]]:
        files = launch_files(launch, "").files
        line = files["torchrun.sh"].replace("$NODE_RANK", "1").replace("$HEAD", "10.0.0.1").replace("$(cat megatron.args)", text)
        words = shlex.split(line)
        read = run.get_args_parser().parse_args(words[1:])
        assert (read.nnodes, read.nproc_per_node, read.rdzv_backend) == ("2", "8", "c10d")
        names.add(read.training_script)
    assert names == {"torchtitan.train", "pretrain_gpt.py"}
