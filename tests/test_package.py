"""`import stallsim` is the public package: cheap to import, documented, and enough for a first session."""

from __future__ import annotations

import importlib
import inspect
import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

import stallsim
from sim.api import simulate
from sim.cli import main
from sim.layout_result import simulate_layout
from sim.spec import extensions
from sim.spec.library import catalog
from sim.study.plan.search import EQUAL
from tests.shown import ROOT


def test_all_names_exist_and_are_documented() -> None:
    missing = [name for name in stallsim.__all__ if name[0] != "_" and not getattr(stallsim, name).__doc__]
    assert not missing


def test_importing_costs_no_heavy_library() -> None:
    code = "import stallsim, sys; print([name for name in ('pandas', 'torch', 'matplotlib', 'simpy') if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "[]"


def test_protocols_are_importable_first_and_named_in_the_index() -> None:
    code = "import stallsim.protocols; print(*stallsim.protocols.__all__)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    kinds = [kind for kind in vars(extensions).values() if isinstance(kind, extensions.ExtensionKind)]
    assert kinds and sorted([*(kind.protocol for kind in kinds), "Queue"]) == done.stdout.split()
    index = (ROOT / "docs/develop/index.md").read_text(encoding="utf-8")
    assert [kind.group for kind in kinds if f"]({kind.page}) | `{kind.group}`" not in index] == []


_CLI_ONLY = {"as_json", "as_csv", "output", "html", "trace", "chakra", "comm_groups", "verbose", "cluster", "force", "fast", "every"}
"""How a command shows what it found, and where it computes; a result, a DataFrame and `processes` have that."""
_OTHERWISE = {
    "sets": "overrides", "fast": "thorough", "price": "prices",
    **dict.fromkeys(("tensor", "pipeline", "context", "expert", "replicate", "shard", "wrap", "schedule"), "parallel"),
}  # fmt: skip
"""Options under another name: axes stand in one mapping."""


@pytest.mark.parametrize("name", ["run", "compare", "recommend", "plan", "goodput", "sweep", "whatif"])
def test_every_option_of_a_command_has_its_keyword(name: str) -> None:
    """Oracle: the parameters of the command itself."""
    command = getattr(importlib.import_module(f"sim.commands.{name}"), name)
    options = set(inspect.signature(command).parameters) - _CLI_ONLY
    keywords = inspect.signature(getattr(stallsim, name)).parameters
    if name == "run":
        assert keywords.keys() >= inspect.signature(simulate).parameters.keys()
        assert {*stallsim._Laid.__annotations__} <= inspect.signature(simulate_layout).parameters.keys()
    missing = {option for option in options if option not in keywords and _OTHERWISE.get(option) not in keywords}
    assert not missing


def test_a_run_takes_what_is_asked_beside_it(capsys: pytest.CaptureFixture[str]) -> None:
    """Oracle: the command's document."""
    command = [
        "run",
        "hgx-h100",
        "gpt2-xl",
        "--batch",
        "4",
        "--hours",
        "48",
        "--with-failures",
        "--store",
        "object-store",
        "--fast",
        "--json",
    ]
    assert main([*command, "--power-cap", "500 W"]) == 0
    printed = json.loads(capsys.readouterr().out)
    options = {"batch": 4, "hours": 48, "with_failures": True, "store": "object-store", "power_cap": "500 W"}
    document = stallsim.run("hgx-h100", "gpt2-xl", **options).document  # type: ignore[call-overload]
    assert json.loads(json.dumps(document)) == printed and printed["with_failures"]["effective_share"] < 1
    laid = stallsim.run("hgx-h100", "gpt2-xl", stack="megatron-core", parallel={"shard": "optimizer"}, **options).document  # type: ignore[call-overload]
    assert {"checkpoint", "with_failures"} <= laid.keys() and laid["energy"]["power_cap"]["gpu_cap_w"] == 500
    with pytest.raises(stallsim.SpecError, match="with_failures: set the length of the job"):
        stallsim.run("hgx-h100", "gpt2-xl", with_failures=True)


def test_dir_shows_the_public_names() -> None:
    assert dir(stallsim) == sorted(stallsim.__all__)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: stallsim.run(1, "vgg16"), "hardware=1: expected a catalog name"),
        (lambda: stallsim.run("p3.16xlarge", "vgg16", nodes="2"), "nodes='2': expected a whole number"),
        (lambda: stallsim.run("p3.16xlarge", "vgg16", gpus=2.5), "gpus=2.5: expected a whole number"),
        (lambda: stallsim.run("p3.16xlarge", "vgg16", batch=True), "batch=True: expected a whole number or 'max'"),
        (lambda: stallsim.run("p3.16xlarge", "vgg16", foo=1), "foo: unknown option; known: parallel"),
        (lambda: stallsim.run("p3.16xlarge", "vgg16", node=2), "node: unknown option; did you mean nodes?"),
        (lambda: stallsim.goodput("hgx-h100", "gpt2-xl", days=3, spare=1), "spare: unknown option; did you mean spares?"),
        (lambda: stallsim.run("hgx-h100", "gpt2-xl", tensor=2), "tensor: unknown option; write parallel={'tensor': 2}"),
        (
            lambda: stallsim.run("hgx-h100", "gpt2-xl", pipeline_parallel_size=2),
            "pipeline_parallel_size: unknown option; write parallel={'pi",
        ),
        (lambda: stallsim.run("p3.16xlarge", "vgg16", set={}), "set: unknown option; write overrides"),
        (
            lambda: stallsim.run("p3.16xlarge", "vgg16", nodes=[1, 2]),
            "nodes=[1, 2]: expected one number; sweep(..., vary={'nodes': [1, 2]}) tries",
        ),
        (lambda: stallsim.run("p3.16xlarge", "vgg16", tp=2), "tp: unknown option; write parallel={'tp': 2}"),
        (lambda: stallsim.run("p3.16xlarge", "vgg16", overrides=["a=1"]), "overrides=['a=1']: expected a mapping"),
        (lambda: stallsim.run("hgx-h100", "llama-3.2-1b", parallel={"tp": 2}, nodes=1.0), "nodes=1.0: expected a whole number"),
        (lambda: stallsim.compare("vgg16", "p3.16xlarge"), "hardware='p3.16xlarge': expected a list of strings, such as ['p3.16xlarge']"),
        (lambda: stallsim.compare("vgg16", ["p3.16xlarge"], nodes=[0]), "nodes=[0]: expected whole numbers of 1 or more"),
        (lambda: stallsim.sweep("p3.16xlarge", "vgg16", ["batch"]), "vary=['batch']: expected a mapping"),
        (lambda: stallsim.recommend("vgg16", ["p3.16xlarge"]), "budget_hours or budget_usd: write one of the two"),
        (lambda: stallsim.recommend("vgg16", ["p3.16xlarge"], budget_usd=-1), "budget_usd=-1: expected a number above 0"),
        (lambda: stallsim.goodput("hgx-h100", "gpt2-xl", days=3, wait=1), "wait: unknown option; known:"),
        (lambda: stallsim.goodput("hgx-h100", "gpt2-xl", days=3, spares=-1), "spares=-1: write 0 or more"),
        (lambda: stallsim.goodput("hgx-h100", "gpt2-xl", days=3, trials=1), "trials=1: write 2 or more"),
        (lambda: stallsim.goodput("hgx-h100", "gpt2-xl", days="3"), "days='3': expected a number"),
        (lambda: stallsim.goodput("hgx-h100", "gpt2-xl", days=3, store=None), "store=None: expected a string"),
        (lambda: stallsim.goodput("hgx-h100", "gpt2-xl", days=3, elastic="no"), "elastic='no': expected True or False"),
        (lambda: stallsim.sweep("p3.16xlarge", "vgg16", {"batch": [8]}, jobs=1), "jobs: unknown option; write processes"),
        (lambda: stallsim.goodput("hgx-h100", "gpt2-xl", tokens=[1]), "tokens=[1]: write a number of tokens above 0"),
    ],
)
def test_wrong_arguments_are_told_in_a_sentence(call: Callable[[], object], words: str) -> None:
    with pytest.raises(stallsim.SpecError) as refused:
        call()
    assert str(refused.value).startswith(words)


def test_recommends_and_plans_and_draws_weeks() -> None:
    rented = stallsim.recommend("resnet50", ["p3.8xlarge", "p3.16xlarge"], budget_hours=24, epochs=90, nodes=[1, 2])
    planned = stallsim.plan("hgx-h100", "llama-3.2-1b", nodes=1, max_memory="70GiB", global_batch=16, simulate=5)
    drawn = stallsim.goodput("hgx-h100", "gpt2-xl", days=7, nodes=4, batch=4, precision="amp_bf16", trials=50)
    assert rented.attrs["best"]["hardware"] in set(rented["hardware"])
    assert rented.iloc[0]["total_time_s"] <= 24 * 3600
    assert planned.iloc[0]["step_time_s"] <= planned["step_time_s"].min() * (1 + EQUAL)  # of equal layouts, the simplest is first
    assert len(drawn) > 1
    assert 0.5 < drawn.attrs["effective_share"] <= 1.0


def test_runs_with_and_without_a_layout() -> None:
    plain = stallsim.run("p3.16xlarge", "vgg16")
    laid = stallsim.run("hgx-h100", "llama-3.2-1b", parallel={"shard": "parameters"}, micro_batches=2)
    assert plain.step_time > 0
    assert laid.document["micro_batches"] == 2


LAID_OUT = """name: laid-out
model: {extends: llama-3.2-1b}
training: {batch: 1, precision: bf16, optimizer: {name: adam}, stack: torchtitan-2.x, parallel: {tensor: 8}}
"""


def test_a_layout_of_the_workloads_own_is_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Oracle: the command of the same file; layouts in ``overrides`` and in ``parallel`` are one."""
    file = tmp_path / "laid-out.yaml"
    file.write_text(LAID_OUT)
    assert main(["run", "hgx-h100", str(file), "--json"]) == 0
    step = json.loads(capsys.readouterr().out)["step_time_s"]
    assert stallsim.run("hgx-h100", file).step_time == step
    sharded = stallsim.run("hgx-h100", "llama-3.2-1b", overrides={"training.parallel.shard": "parameters"})
    assert sharded.step_time == stallsim.run("hgx-h100", "llama-3.2-1b", parallel={"shard": "parameters"}).step_time
    with pytest.raises(stallsim.SpecError, match="thorough: unknown option"):
        stallsim.run("hgx-h100", file, thorough=True)
    frame = stallsim.whatif("hgx-h100", file)
    assert main(["whatif", "hgx-h100", str(file), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert frame.to_dict("records") == document["resources"] and frame.attrs["links"] == document["links"]


@pytest.mark.parametrize("parallel", [None, {}])
def test_a_stack_for_layouts_runs_as_a_layout(parallel: dict[str, object] | None, capsys: pytest.CaptureFixture[str]) -> None:
    """Oracle: the command, with micro-batches and the data types of the framework."""
    command = ["run", "gpu-h200-sxm_1gpu-16vcpu-200gb", "gpt2", "--stack", "megatron-core", "--batch", "4", "--micro-batches", "4"]
    assert main([*command, "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    result = stallsim.run(command[1], "gpt2", stack="megatron-core", batch=4, micro_batches=4, parallel=parallel)  # type: ignore[call-overload]
    assert json.loads(json.dumps(result.document)) == printed and printed["micro_batches"] == 4


def test_a_layout_is_never_left_out(tmp_path: Path) -> None:
    (tmp_path / "laid-out.yaml").write_text(LAID_OUT)
    with pytest.raises(stallsim.SpecError, match=r"training\.parallel: laid-out has a layout, but this runs plain data parallelism only"):
        simulate("hgx-h100", tmp_path / "laid-out.yaml")
    with pytest.raises(stallsim.SpecError, match=r"training\.stack: megatron-core is for layouts, but this runs plain data"):
        simulate("hgx-h100", "gpt2", stack="megatron-core")
    jobs = tmp_path / "jobs.yaml"
    jobs.write_text('jobs:\n  - {workload: resnet18, placement: "4"}\n  - {workload: laid-out.yaml, placement: "4"}\n')
    with pytest.raises(stallsim.SpecError, match=r"jobs\.1: training\.parallel: laid-out has a layout"):
        stallsim.run("hgx-h100", jobs)
    alike = "{extends: gpt2, training: {stack: torchtitan-2.x, batch: 4}}"
    jobs.write_text("jobs:\n" + f'  - {{workload: {alike}, placement: "4"}}\n' * 2)  # of unlike jobs, many steps would be simulated
    warned = stallsim.run("hgx-h100", jobs).document["jobs"][1]["warnings"]
    assert any(text.startswith("jobs.1: training.stack: torchtitan-2.x is for layouts") for text in warned)


def test_load_tells_hardware_from_workloads() -> None:
    assert stallsim.load("p3.16xlarge").name == "p3.16xlarge"
    assert stallsim.load("vgg16").name == "vgg16"


def test_check_lists_problems(tmp_path) -> None:  # type: ignore[no-untyped-def]
    path = tmp_path / "box.yaml"
    path.write_text("name: box\nnode: {gpu: nonsense}\n")
    assert stallsim.check("p3.16xlarge") == []
    assert any("box.yaml" in problem for problem in stallsim.check(path))


def test_a_wrong_hardware_file_is_judged_as_hardware(tmp_path: Path) -> None:
    """Oracle: what ``sim check`` says of the same file."""
    path = tmp_path / "mine.yaml"
    path.write_text("extends: p3.16xlarge\nnode: {nic: {bandwidth: 25}}\n")
    (problem,) = stallsim.check(path)
    assert problem.startswith(f"{path}:2:14: node.nic.bandwidth: the number 25 has no unit")
    with pytest.raises(stallsim.SpecError, match="the number 25 has no unit"):
        stallsim.load(path)
    assert stallsim.check("vgg16", "p3.16xlarge", "H100-SXM5-80GB") == []
    with pytest.raises(stallsim.SpecError, match=r"\['vgg16'\]: expected names or paths, such as check\('my-box.yaml', 'vgg16'\)"):
        stallsim.check(["vgg16"])  # type: ignore[arg-type]


def test_a_layer_table_alone_runs(tmp_path: Path) -> None:
    """Oracle: the workload of four lines that says what is assumed."""
    table = tmp_path / "net.yaml"
    table.write_bytes(catalog("workloads/models")["resnet18"].read_bytes())
    job = tmp_path / "job.yaml"
    prepared = stallsim.load(table).model.input
    job.write_text(
        f"name: net\nmodel: net.yaml\ndataset: {{extends: synthetic-images, prepared: {prepared:.0f} B}}\ntraining: {{batch: 16}}\n"
    )
    alone, named = (stallsim.run("p3.8xlarge", path, batch=16) for path in (table, job))
    assert alone.step_time == named.step_time
    assert any("synthetic data: nothing is read or prepared" in said for said in alone.document["assumptions"])


def test_the_page_of_the_site_shows_every_public_function() -> None:
    page = (ROOT / "docs/reference/python.md").read_text(encoding="utf-8")
    shown = {line.rpartition(".")[2] for line in page.splitlines() if line.startswith("::: ")}
    assert {name for name in stallsim.__all__ if name not in ("SpecError", "__version__")} <= shown


def test_the_image_has_the_extra_of_the_page_and_the_package_names_its_pythons() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert "[ui]" in (ROOT / "Dockerfile").read_text(encoding="utf-8") and "ui" in project["optional-dependencies"]
    least = project["requires-python"].removeprefix(">=")
    assert f"Programming Language :: Python :: {least}" in project["classifiers"]


def test_help_of_a_function_names_options_as_python_does() -> None:
    """Oracle: the signatures. An option of the command, such as --with-failures, is a keyword here."""
    for name in ("run", "goodput", "plan", "sweep", "whatif"):
        function = getattr(stallsim, name)
        keywords = {f"--{keyword.replace('_', '-')}" for keyword in inspect.signature(function).parameters}
        listed = (function.__doc__ or "").partition("Options, as in the command:")[2]
        assert listed and not keywords & set(re.findall(r"--[a-z][a-z-]*", listed)), name
    assert "how often machines fail, with *with_failures*" in (stallsim.run.__doc__ or "")
