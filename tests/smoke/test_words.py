"""Is a user who types another program's terms told ours? Oracle: the options of each command."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import typer

from sim.cli import main
from sim.commands.app import app
from sim.commands.words import EQUIVALENTS, FILTERS, HERE

GROUP: Any = typer.main.get_command(app)
CONTEXT = GROUP.context_class(GROUP, info_name="sim", **GROUP.context_settings)
COMMANDS = {name: GROUP.get_command(CONTEXT, name) for name in GROUP.list_commands(CONTEXT)}
OPTIONS = {name: {option for each in command.params for option in each.opts} for name, command in COMMANDS.items()}


def said(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(words) == 2
    return next(line for line in capsys.readouterr().err.splitlines() if line.startswith("Error: "))


@pytest.mark.parametrize("word", EQUIVALENTS)
def test_words_of_other_programs_are_answered_with_options_that_are_there(word: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert not [name for name, options in OPTIONS.items() if word in options], "it is an option, and needs no translation"
    answer = said(capsys, "run", "p3.16xlarge", "resnet50", word, "1")
    named = re.findall(r"--[\w-]+", answer.split(";", 1)[1])
    assert named
    takers = re.findall(r"\b(\w+)\b", answer.split(";", 1)[1].split(" have ")[0].split(" has ")[0]) if " ha" in answer else ["run"]
    for name in takers:
        assert set(named) <= OPTIONS[name], answer


@pytest.mark.parametrize(
    ("words", "order"),
    [("run", "run HW WL"), ("compare", "compare [HW...] WL"), ("plan", "plan HW WL"), ("show", "show WL..."), ("batches", "batches HW WL")],
)
def test_names_that_are_typed_after_an_option_are_told_their_place(words: str, order: str, capsys: pytest.CaptureFixture[str]) -> None:
    for option in ("--machine", "--workload"):
        assert said(capsys, words, "a", "b", option, "c") == f"Error: No such option: {option}; names need no option: {order}"


def test_options_of_other_commands_are_told_with_those(capsys: pytest.CaptureFixture[str]) -> None:
    answer = said(capsys, "compare", "resnet50", "--with-failures")
    takers = ", ".join(name for name in COMMANDS if "--with-failures" in OPTIONS[name])
    assert answer == f"Error: No such option: --with-failures; {takers} have it"
    assert said(capsys, "run", "p3.16xlarge", "resnet50", "--days", "3").endswith("--days; here, use --hours N")
    assert "; run takes one machine and one workload: " in said(capsys, "run", "p3.16xlarge", "resnet50", "vgg16")
    assert "--spot; run, compare, goodput have --market spot" in said(capsys, "recommend", "resnet50", "--spot")


@pytest.mark.parametrize(("name", "word"), [(name, word) for name, words in HERE.items() for word in words])
def test_an_option_of_another_command_is_answered_with_what_this_one_has(name: str, word: str, capsys: pytest.CaptureFixture[str]) -> None:
    """``spot --nodes 4``: spot machines are --workers."""
    assert word not in OPTIONS[name] and (word in ("--hardware", *FILTERS) or any(word in options for options in OPTIONS.values()))
    names = {"compare": ("resnet50", "p3.2xlarge"), "recommend": ("resnet50", "p3.2xlarge"), "prices": (), "list": (), "new": ()}.get(
        name, ("p3.2xlarge", "resnet50")
    )
    answer = said(capsys, name, *names, word, "1")
    assert answer.endswith(f"{word}; here, use {HERE[name][word]}")
    assert set(re.findall(r"--[\w-]+", HERE[name][word])) <= OPTIONS[name]


@pytest.mark.parametrize("name", ["prices", "list"])
@pytest.mark.parametrize("filtered", sorted(set(FILTERS.values())))
def test_filters_can_be_typed(name: str, filtered: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([name, *filtered.split()]) == 0
    assert len(capsys.readouterr().out.splitlines()) > 1


@pytest.mark.parametrize(("name", "word"), [(name, word) for name in ("plan", "sweep") for word in HERE[name]])
def test_the_answer_can_be_typed(name: str, word: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    values = {"--shard": "optimizer", "--schedule": "1f1b", "--global-batch": "16", "--gpu": "8", "--gpus": "8", "--sequence": "1024"}
    value = values.get(word, "1")
    typed = shlex.split(HERE[name][word].replace("NAME", value).replace("=N", f"={value}").replace(" N", f" {value}"))
    rest = ["--vary", "batch=1", "-o", str(tmp_path / "table.csv")] if name == "sweep" and "--vary" not in typed else []
    rest = rest or (["-o", str(tmp_path / "table.csv")] if name == "sweep" else ["--simulate", "1", "--global-batch", "8"])
    assert main([name, "hgx-h100", "llama-3.2-1b", *typed, *rest]) == 0, capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        ("run hgx-h100 llama-3.1-8b --tp two", "--tp two: write a whole number"),
        ("run hgx-h100 llama-3.1-8b --tp 0", "--tp 0: write 1 or more"), ("run hgx-h100 llama-3.1-8b --pp=-1", "--pp -1: write 1 or more"),
        ("run hgx-h100 llama-3.1-8b --sequence 8k", "--sequence 8k: is ambiguous; write 8000 or 8192"),
        ("plan hgx-h100 llama-3.1-8b --global-batch 4K", "--global-batch 4K: is ambiguous; write 4000 or 4096"),
        ("run hgx-h100 llama-3.1-8b --batch 1k", "--batch 1k: is ambiguous; write 1000 or 1024"),
        ("run hgx-h100 llama-3.1-8b --set model.sequence=1M", "--set model.sequence=1M: '1M' is ambiguous; write 1000000 or 1048576"),
        ("run hgx-h100 llama-3.1-8b --tp 1.5", "--tp 1.5: write a whole number"),
        ("plan hgx-h100 gpt2-xl --jobs 0", "--jobs 0: write 1 or more"),
        ("recommend resnet50 --budget-hours ten", "--budget-hours ten: write a number"),
        ("ui --port 99999", "--port 99999: write 65535 or less"), ("new machine", "machine: write hardware or workload"),
        ("run p3.16xlarge vgg16 --nodes 0", "--nodes 0: write 1 or more"), ("run p3.16xlarge vgg16 --gpus 0", "--gpus 0: write 1 or more"),
        ("plan hgx-h100 gpt2-xl --objective speed", "--objective speed: write time, cost or energy"),
        ("goodput hgx-h100 gpt2 --days 3 --mean-lifetime 3",
         "--mean-lifetime 3: '3' has no unit; write for example '20 h' (units: s, ms, us, ns, min, h, d)"),
        ("goodput hgx-h100 gpt2 --days 3 --checkpoint-interval 3",
         "--checkpoint-interval 3: '3' has no unit; write for example '30 min' (units: s, ms, us, ns, min, h, d)"),
    ],
)  # fmt: skip
def test_a_wrong_value_is_answered_in_one_sentence(words: str, wanted: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words.split()) == 2
    assert capsys.readouterr().err == f"{wanted}\n"


def test_no_words_of_the_parsers_own_are_left(capsys: pytest.CaptureFixture[str]) -> None:
    """Every option that takes a number, with what is none and with one too small; a name means the same in every command."""
    numbers = {
        option.opts[0]: name
        for name, command in COMMANDS.items()
        for option in command.params
        if option.param_type_name == "option" and re.search(r" (N|X)$| <(int|float)", option.get_help_record(CONTEXT)[0])
    }
    assert len(numbers) > 20
    for option, name in numbers.items():
        for value in ("x", "-99999"):
            main([name, "a", "b", option, value])
            assert "Input should" not in capsys.readouterr().err, (name, option, value)


def test_what_nobody_knows_is_left_to_the_parser(capsys: pytest.CaptureFixture[str]) -> None:
    assert said(capsys, "run", "p3.16xlarge", "resnet50", "--qqqq") == "Error: No such option: --qqqq"
    assert "Possible options: " in said(capsys, "run", "p3.16xlarge", "resnet50", "--shar", "x")


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        ("resnet50 p3.2xlarge --batch 4", "No such command 'resnet50'; names follow a command, such as run p3.2xlarge resnet50"),
        ("p3.2xlarge", "No such command 'p3.2xlarge'; names follow a command, such as run HW WL"),
        ("runn p3.2xlarge resnet50", "No such command 'runn'. Did you mean 'run'?"),
        ("study foo", "No such command 'foo'; write accpar or stash2022"),
        ("foo", "No such command 'foo'."),
    ],
)
def test_an_unknown_command_is_told_what_may_have_been_meant(words: str, answer: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert said(capsys, *words.split()) == f"Error: {answer}"


@pytest.mark.parametrize("option", ["--gpu", "--gpus", "--nodes"])
def test_batches_spot_and_profile_say_what_they_have_for_gpus(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    """`new`, the only command with ``--gpu``, has nothing to do with it. What each says is one of its own options, and runs."""
    for command, names in (("batches", "256x-tpu-v2-v3 resnet50"), ("spot", "p3.2xlarge resnet50"), ("profile", "p3.2xlarge resnet50")):
        if option in OPTIONS[command]:
            continue
        answer = said(capsys, command, *names.split(), option, "3")
        assert " has it" not in answer and " have it" not in answer and "here, use --" in answer
    assert main(["batches", "256x-tpu-v2-v3", "alexnet", "--set", "groups.0.count=2"]) == 0
    assert main(["spot", "p3.2xlarge", "alexnet", "--workers", "3", "--epochs", "1", "--trials", "9"]) == 0


@pytest.mark.parametrize(
    ("words", "remedy"),
    [
        ("run p3.8xlarge alexnet --nodes 2 --set node.nic.bandwidth=100 Gbps", "--set node.nic.bandwidth='100 Gbps'"),
        ("run p3.8xlarge alexnet --power-cap 250 W", "--power-cap '250 W'"),
        ("compare p3.8xlarge alexnet --set price.on_demand=3.5 USD/h", "--set price.on_demand='3.5 USD/h'"),
        ("spot p4d.24xlarge alexnet --epochs 1 --trials 9 --mean-lifetime 20 h", "--mean-lifetime '20 h'"),
    ],
)
def test_a_value_and_its_unit_without_quotes_are_one_word(words: str, remedy: str, capsys: pytest.CaptureFixture[str]) -> None:
    """What is advised runs as the shell reads it."""
    assert main(words.split()) == 2
    wrong = " ".join(words.split()[-3:])
    assert capsys.readouterr().err == f"{wrong}: a number with its unit is one word; write {remedy}\n"
    assert main([*words.split()[:-3], *shlex.split(remedy)]) == 0


@pytest.mark.parametrize("option", ["--nodes 2 ms", "--gpus 8 GB", "--tokens 5 TB"])
def test_counts_have_no_unit_that_quotes_would_help(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "p3.8xlarge", "alexnet", *option.split()]) == 2
    assert "one word" not in capsys.readouterr().err
