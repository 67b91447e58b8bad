"""Does each interface name its own options or arguments in errors? Oracle: the signatures of the functions, the options of the commands."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

import stallsim
from sim.api import simulate
from sim.cli import main
from sim.study.argument_names import arguments_in

DECODER = ("hgx-h100", "llama-3.1-8b")
CALLS: Mapping[str, tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any], str]] = {
    "nodes": (stallsim.run, ("p3.16xlarge", "vgg16"), {"nodes": 0}, "nodes=0: write 1 or more"),
    "placement": (stallsim.run, ("p3.16xlarge", "vgg16"), {"placement": "9"}, "placement=8 would fit"),
    "two lengths": (stallsim.run, ("p3.16xlarge", "vgg16"), {"epochs": 1, "hours": 1}, "epochs and hours: write one of the two"),
    "length": (stallsim.run, ("p3.16xlarge", "vgg16"), {"with_failures": True}, "with_failures: set the length of the job with epochs,"),
    "field": (stallsim.run, ("p3.16xlarge", "vgg16"), {"overrides": {"node.foo": 1}}, "overrides['node.foo']=1: unknown key"),
    "limit": (stallsim.run, ("p3.16xlarge", "vgg16"), {"power_cap": "x"}, "power_cap=x: 'x' is not a power"),
    "limit too low": (
        lambda *a, **k: stallsim.run(*a, **k).document,
        ("p3.16xlarge", "vgg16"),
        {"power_cap": "1 W"},
        "power_cap=1 W: no m",
    ),
    "price": (stallsim.run, ("p3.16xlarge", "vgg16"), {"prices": {"p3.16xlarge": "x"}}, "prices['p3.16xlarge']: 'x' is not a price"),
    "list": (stallsim.run, DECODER, {"parallel": {"order": "x"}}, "parallel['order']: is a list; write overrides={"),
    "own loader": (stallsim.run, ("p3.16xlarge", "vgg16"), {"loader": "x"}, "loader=x: found 'x'"),
    "own collective": (stallsim.run, ("p3.16xlarge", "vgg16"), {"collective": "zz"}, "collective: 'zz' is not known to NCCL 2.14.3; write"),
    "own collective of a layout": (stallsim.run, DECODER, {"parallel": {"tp": 8}, "collective": "zz"}, "collective: 'zz' is not known to"),
    "two collectives": (
        stallsim.run,
        ("p3.16xlarge", "vgg16"),
        {"collective": "Ring", "overrides": {"training.stack.nccl_algo": "Tree"}},
        "overrides['training.stack.nccl_algo']=Tree and collective=Ring: write one of the two",
    ),
    "store of a run": (stallsim.run, ("p3.16xlarge", "vgg16"), {"store": "s3"}, "store=s3: s3 is not in the catalog"),
    "memory": (stallsim.plan, DECODER, {"max_memory": "x"}, "max_memory=x: 'x' is not a size"),
    "layout": (stallsim.run, DECODER, {"parallel": {"foo": 3}}, "parallel['foo']=3: unknown key"),
    "several GPUs": (stallsim.run, ("p3.16xlarge", "vgg16"), {"gpus": 9}, "write at most 8, or add nodes=3"),
    "many GPUs": (stallsim.run, ("p3.16xlarge", "vgg16"), {"gpus": 17}, "write at most 8, or add nodes=3 and write 15 or 18 GPUs"),
    "tokens": (stallsim.run, ("p3.16xlarge", "vgg16"), {"tokens": "2B"}, "tokens: vgg16 has no token sequences; write epochs"),
    "tokens of machines": (stallsim.compare, ("vgg16", ["p3.8xlarge"]), {"tokens": "2B"}, "tokens: vgg16 has no token sequences; write"),
    "objective": (stallsim.plan, DECODER, {"objective": "x"}, "objective=x: write time, cost or energy"),
    "axis": (stallsim.plan, DECODER, {"fix": {"a": 1}}, "fix['a']=1: there is no field a"),
    "interval": (stallsim.goodput, DECODER, {"days": 3, "checkpoint_interval": "x"}, "checkpoint_interval=x: 'x' is not a time"),
    "mode": (stallsim.goodput, DECODER, {"days": 3, "checkpoint": "x"}, "checkpoint=x: write one of sync"),
    "store": (stallsim.goodput, DECODER, {"days": 3, "store": "s3"}, "store=s3: s3 is not in the catalog"),
    "level": (stallsim.goodput, DECODER, {"days": 3, "reliability": "x"}, "reliability=x: x is not in the catalog"),
    "failure rate": (stallsim.goodput, DECODER, {"days": 3, "failure_rate": "x"}, "failure_rate=x: 'x' is not a"),
    "text": (stallsim.goodput, DECODER, {"days": 3, "checkpoint": 1}, "checkpoint=1: expected a string"),
    "flag": (stallsim.goodput, DECODER, {"days": 3, "repair": 1}, "repair=1: expected True or False"),
    "two names": (stallsim.goodput, DECODER, {"days": 3, "rate": "0 /d", "failure_rate": "0 /d"}, "write failure_rate"),
    "renamed": (stallsim.sweep, ("p3.8xlarge", "vgg16", {"batch": [8]}), {"jobs": 1}, "jobs: unknown option; write processes"),
    "unknown": (stallsim.compare, ("vgg16", ["p3.8xlarge"]), {"node": 1}, "node: unknown option; did you mean nodes?"),
    "weeks": (stallsim.goodput, DECODER, {}, "days, tokens or epochs: write one of the three, for example days=54"),
    "sort": (stallsim.compare, ("vgg16", ["p3.8xlarge"]), {"sort": "x"}, "sort=x: write one of"),
    "vary": (stallsim.sweep, ("p3.16xlarge", "vgg16", {"batch": "a"}), {}, "vary['batch']=a: expected a whole number"),
    "budget": (stallsim.recommend, ("vgg16", ["p3.8xlarge"]), {"epochs": 1}, "budget_hours or budget_usd: write one of the two"),
    "spares": (stallsim.recommend, ("vgg16", ["p3.8xlarge"]), {"budget_hours": 3, "spares": 2}, "add with_failures"),
}


@pytest.mark.parametrize("case", CALLS)
def test_python_names_arguments(case: str) -> None:
    function, positional, given, says = CALLS[case]
    with pytest.raises(stallsim.SpecError) as raised:
        function(*positional, **given)
    assert says in str(raised.value)
    assert not re.search(r"(?<![\w-])--[a-z]", str(raised.value))


def test_goodput_takes_the_names_of_its_command() -> None:
    """Oracle: the flags of the command, and the same weeks under the names of the fields, which older notebooks use."""
    rare: dict[str, Any] = {"days": 3, "batch": 4, "precision": "amp_bf16", "trials": 20}
    by_flag = {"reliability": "high", "failure_rate": "0.1 /d", "checkpoint": "sync", "checkpoint_interval": "1 h", "repair": False}
    by_field = {"level": "high", "rate": "0.1 /d", "mode": "sync", "interval": "1 h", "repairs": False}
    named = stallsim.goodput("hgx-h100", "gpt2-xl", **rare, **by_flag, failure_law="weibull:0.7")
    assert named.equals(stallsim.goodput("hgx-h100", "gpt2-xl", **rare, **by_field, law="weibull:0.7"))
    assert {*by_flag, "failure_law"} <= inspect.signature(stallsim.goodput).parameters.keys()
    assert not {*by_field, "law"} & inspect.signature(stallsim.goodput).parameters.keys()


def test_problems_in_tables_name_arguments() -> None:
    assert stallsim.compare("vgg16", ["p3.8xlarge"], power_cap="1 W").problem[0].startswith("power_cap=1 W: no measurements")
    assert stallsim.sweep("p3.8xlarge", "vgg16", {"batch": [100_000]}).problem[0].startswith("vary['batch']=100000: ")


@pytest.mark.parametrize(
    ("problem", "says"),
    [
        ("--spares 2 --no-repair: nodes fail; leave out --no-repair", "spares=2 repair=False: nodes fail; leave out repair=False"),
        ("m: add one, for example --set price.spot='1.50 USD/h'", "m: add one, for example overrides={'price.spot': '1.50 USD/h'}"),
        ("--tp 3: 3 ranks; use --tp 2", "parallel['tp']=3: 3 ranks; use parallel['tp']=2"),
        ("x: 'python -m sim run HW WL --json' writes one", "x: 'python -m sim run HW WL --json' writes one"),
        ("--price m=x: 'x' is not a price; write --price m=3", "prices['m']=x: 'x' is not a price; write prices={'m': 3}"),
        ("--jobs 0: write 1 or more processes", "processes=0: write 1 or more processes"),
    ],
)
def test_options_become_arguments(problem: str, says: str) -> None:
    assert arguments_in(problem) == says


COMMANDS = (
    "run p3.16xlarge vgg16 --with-failures", "run p3.16xlarge vgg16 --power-cap x", "plan hgx-h100 llama-3.1-8b --with-failures",
    "plan hgx-h100 llama-3.1-8b --max-memory x", "goodput hgx-h100 gpt2-xl --days 3 --checkpoint-interval x",
    "goodput hgx-h100 gpt2-xl --days 3 --reliability x", "goodput hgx-h100 gpt2-xl --days 3 --store x", "goodput hgx-h100 gpt2-xl",
    "goodput hgx-h100 gpt2-xl --days 3 --failure-rate 5", "goodput hgx-h100 gpt2-xl --days 3 --failure-law x",
    "recommend vgg16 p3.8xlarge", "recommend vgg16 p3.8xlarge --budget-hours -1", "recommend vgg16 p3.8xlarge --budget-usd 5 --spares 1",
    "recommend vgg16 p3.8xlarge --budget-hours 5 --mean-lifetime x", "compare vgg16 p3.8xlarge --power-cap x",
    "spot p3.2xlarge resnet50 --steps 1 --mean-lifetime x", "run p3.16xlarge vgg16 --batch 8 --global-batch 64",
)  # fmt: skip


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_name_options(capsys: pytest.CaptureFixture[str], command: str) -> None:
    arguments = {
        name
        for function in (simulate, stallsim.plan, stallsim.compare, stallsim.recommend, stallsim.goodput, stallsim.sweep)
        for name in inspect.signature(function).parameters
        if "_" in name
    }
    assert main(command.split()) == 2
    message = capsys.readouterr().err
    assert message.startswith("--") and "=" not in message.partition(":")[0]
    assert not arguments & set(re.findall(r"\w+", message))


@pytest.mark.parametrize(
    "command",
    [
        "sweep p3.8xlarge vgg16 --vary batch=8,16 --power-cap x -o {folder}/table.csv",
        "sweep p3.8xlarge vgg16 --vary power_cap='300 W,x' -o {folder}/table.csv",
        "recommend vgg16 p3.8xlarge --budget-hours 5 --power-cap x",
    ],
)
def test_a_wrong_power_limit_is_bad_input_and_no_result(capsys: pytest.CaptureFixture[str], tmp_path: Path, command: str) -> None:
    assert main(command.replace("'300 W,x'", "300W,x").format(folder=tmp_path).split()) == 2
    assert "'x' is not a power; write for example '300 W'" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_no_machine_is_nearest_for_tokens_that_a_model_of_images_does_not_have(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", "vgg16", "p3.8xlarge", "p2.xlarge", "--tokens", "2B"]) == 2
    said = capsys.readouterr()
    assert said.out == "" and said.err.startswith("--tokens: vgg16 has no token sequences; write --epochs")


def test_no_machine_is_nearest_whose_gpus_cannot_have_the_power_limit(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", "vgg16", "p3.8xlarge", "--power-cap", "1W"]) == 1
    said = capsys.readouterr().out
    assert "earest that can" not in said and "The catalog machine with the largest GPUs cannot either: --power-cap 1W" in said
