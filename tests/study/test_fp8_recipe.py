"""Oracles: who has which recipe of 8 bits (Transformer Engine, Megatron-LM, torchtitan), and every way to ask says the same."""

from __future__ import annotations

import json
import tomllib
from dataclasses import replace
from typing import Any

import pytest
import yaml

import stallsim
from sim.check import check_job, job_warnings
from sim.cli import main
from sim.report.layouts.layout_files import launch_of
from sim.spec.fields import Fp8Recipe
from sim.spec.foreign.launch_accelerate import accelerate
from sim.spec.foreign.launch_megatron import megatron
from sim.spec.foreign.launch_torchtitan import torchtitan
from sim.spec.foreign.layout_files import launch_files
from sim.spec.library import load_hardware, load_workload
from sim.spec.yaml import SpecError
from sim.study.plan.question import PlanQuestion, prepare_plan
from sim.study.scenario import Scenario
from tests.study.plan.planned import outcome_of

RUN = ("run", "hgx-h100", "llama-3.2-1b", "--stack", "megatron-core", "--parallel", "shard=optimizer", "--batch", "1")


def test_a_recipe_of_8_bits_is_one_that_stack_and_gpu_have() -> None:
    """Transformer Engine: MX blocks need compute capability 10 (check_mxfp8_support); torchtitan: float8 and mx alone."""
    cases = (
        ("hgx-h100", "megatron-core", "mxfp8", "H100-SXM5-80GB", "delayed or tensorwise or blockwise"),
        ("hgx-h100", "torchtitan-2.x", "delayed", "stack torchtitan-2.x", "tensorwise or rowwise"),
        ("gb300-nvl72", "megatron-core", "rowwise", "stack megatron-core", "delayed or tensorwise or blockwise or mxfp8"),
    )
    for machine, stack, recipe, lacks, others in cases:
        given = ["training.precision=fp8", f"training.stack={stack}", f"training.fp8_recipe={recipe}"]
        (problem,) = check_job(load_hardware(machine).spec, load_workload("llama-3.2-1b", given).spec)
        assert problem.endswith(f"{lacks} has no fp8 recipe {recipe}; write {others}")
    unused = load_workload("llama-3.2-1b", ["training.precision=bf16", "training.fp8_recipe=mxfp8"]).spec
    hardware = load_hardware("hgx-h100").spec
    assert not check_job(hardware, unused)
    assert "training.fp8_recipe: mxfp8 has no effect with bf16; write precision: fp8, or leave it out" in job_warnings(hardware, unused)


def _step(capsys: pytest.CaptureFixture[str], *words: str) -> float:
    main([*RUN, *words, "--json"])
    return float(json.loads(capsys.readouterr().out)["step_time_s"])


def test_command_line_python_and_yaml_ask_alike(capsys: pytest.CaptureFixture[str]) -> None:
    eight = ("--precision", "fp8", "--fp8-recipe")
    delayed, tensorwise, blockwise = (_step(capsys, *eight, recipe) for recipe in ("delayed", "tensorwise", "blockwise"))
    assert _step(capsys, "--precision", "fp8") == delayed < min(tensorwise, blockwise)  # Megatron-LM's default
    assert _step(capsys, "--set", "training.precision=fp8", "--set", "training.fp8_recipe=blockwise") == blockwise

    def run(recipe: str) -> float:
        own = {"stack": "megatron-core", "batch": 1, "precision": "fp8", "fp8_recipe": recipe}
        return float(stallsim.run("hgx-h100", "llama-3.2-1b", parallel={"shard": "optimizer"}, **own).step_time)

    assert run("tensorwise") == tensorwise
    with pytest.raises(SpecError, match="write one of delayed, tensorwise, rowwise, blockwise, mxfp8"):
        run("slow")


def test_plan_tries_the_stacks_that_have_the_recipe() -> None:
    scenario = Scenario("hgx-h100", "llama-3.2-1b", global_batch=64, fp8_recipe="rowwise")
    question = PlanQuestion(scenario, fixed={"tp": "1", "cp": "1", "pp": "1"}, allowed=frozenset({"fp8"}))
    tried = {(each.stack, each.precision) for _, candidates in prepare_plan(question).layouts for each in candidates}
    assert {stack for stack, precision in tried if precision == "fp8"} == {"torchtitan-2.x"}
    assert {stack for stack, precision in tried if precision == "bf16"} > {"torchtitan-2.x"}
    only = prepare_plan(replace(question, scenario=replace(scenario, precision="fp8")))
    assert {each.stack for _, candidates in only.layouts for each in candidates} == {"torchtitan-2.x"}


@pytest.mark.parametrize(
    ("machine", "options", "said"),
    [
        ("hgx-h100", {"fp8_recipe": "rowwise"}, "uses fp8; allow fp8 tries fp8 as well as bf16"),
        ("hgx-h100", {"fp8_recipe": "rowwise", "allow": ["fp8"], "fix": {"precision": "bf16"}}, "leave fix={'precision': 'bf16'} out"),
        ("hgx-h100", {"fp8_recipe": "mxfp8", "allow": ["fp8"]}, "fp8_recipe=mxfp8: H100-SXM5-80GB has no fp8 recipe mxfp8; write"),
        ("hgx-h100", {"fp8_recipe": "rowwise", "allow": ["fp8"], "stack": "megatron-core"}, "megatron-core has no fp8 recipe rowwise"),
        ("p4d.24xlarge", {"allow": ["fp8"]}, "allow=fp8: A100-SXM4-40GB has no fp8 units, which fp8 needs; leave it out"),
        ("hgx-h100", {"allow": ["nvfp4"]}, "allow=nvfp4: H100-SXM5-80GB has no nvfp4 units, which nvfp4 needs; leave it out"),
        ("gb300-nvl72", {"allow": ["nvfp4"], "stack": "torchtitan-2.x"}, "stack torchtitan-2.x does not support nvfp4"),
    ],
)  # fmt: skip
def test_a_plan_that_would_ignore_8_bits_says_so(machine: str, options: dict[str, Any], said: str) -> None:
    """No layout has a recipe or a precision that nothing of the plan runs, and none is proposed that `run` refuses."""
    with pytest.raises(SpecError) as caught:
        stallsim.plan(machine, "llama-3.2-1b", global_batch=64, gpus=8, **options)
    assert len(caught.value.problems) == 1 and said in caught.value.problems[0]


@pytest.mark.parametrize(
    ("recipe", "machine", "file"),
    [
        ("tensorwise", "hgx-h100", "torchtitan.toml"), ("rowwise", "hgx-h100", "torchtitan.toml"),
        ("mxfp8", "gb300-nvl72", "torchtitan.toml"), ("delayed", "hgx-h100", "megatron.args"),
        ("tensorwise", "hgx-h100", "megatron.args"), ("blockwise", "hgx-h100", "megatron.args"), ("mxfp8", "gb300-nvl72", "megatron.args"),
        ("tensorwise", "hgx-h100", "accelerate.yaml"), ("mxfp8", "gb300-nvl72", "accelerate.yaml"),
        ("delayed", "hgx-h100", "accelerate.yaml"),
    ],
)  # fmt: skip
def test_launch_files_read_back_as_the_recipe(recipe: Fp8Recipe, machine: str, file: str) -> None:
    stack = "megatron-core" if file == "megatron.args" else "torch-fsdp1" if recipe == "delayed" else "torchtitan-2.x"
    scenario = Scenario(machine, "llama-3.1-8b", global_batch=72, precision="fp8", fp8_recipe=recipe, stack=stack)
    plan = prepare_plan(
        PlanQuestion(scenario, fixed={"tp": "1", "cp": "1", "pp": "1", "shard": "optimizer" if file == "megatron.args" else "parameters"})
    )
    setting, candidates = next((setting, candidates) for setting, candidates in plan.layouts if candidates)
    launch = launch_of(plan, outcome_of(setting, candidates[0]))
    assert launch.fp8_recipe == recipe
    written = launch_files(launch, "sim run")
    text = written.files[file]
    read = {
        "torchtitan.toml": lambda: torchtitan(tomllib.loads(text), file),
        "megatron.args": lambda: megatron(text, file),
        "accelerate.yaml": lambda: accelerate(yaml.safe_load(text), file),
    }
    settings = read[file]()
    assert (settings.training["precision"], settings.training["fp8_recipe"]) == ("fp8", recipe)


def test_launch_files_that_have_no_such_recipe_are_left_out() -> None:
    scenario = Scenario("hgx-h100", "llama-3.1-8b", global_batch=64, precision="fp8")
    left = {}
    for recipe, stack, shard in (
        ("delayed", "megatron-core", "none"), ("rowwise", "torchtitan-2.x", "none"), ("rowwise", "torchtitan-2.x", "parameters"),
    ):  # fmt: skip
        recipe_scenario = replace(scenario, fp8_recipe=recipe, stack=stack)
        plan = prepare_plan(PlanQuestion(recipe_scenario, fixed={"tp": "1", "cp": "1", "pp": "1", "shard": shard}))
        setting, candidates = next((setting, candidates) for setting, candidates in plan.layouts if candidates)
        left[recipe, shard] = launch_files(launch_of(plan, outcome_of(setting, candidates[0])), "sim run").left_out
    assert left["delayed", "none"]["torchtitan.toml"] == "torchtitan has the fp8 recipes tensorwise, rowwise and mxfp8, not delayed"
    assert left["rowwise", "none"]["megatron.args"] == "Megatron-LM has no fp8 recipe rowwise; it has delayed, tensorwise, blockwise, mxfp8"
    assert left["rowwise", "parameters"]["accelerate.yaml"] == "Accelerate has no fp8 recipe rowwise; it has delayed, tensorwise, mxfp8"
