"""Is ``--help`` complete and readable? Oracles: the options that the parser takes, and the width of a terminal."""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
import typer

from calibration.cli import app as calibration_app
from sim.cli import app, main
from sim.commands.help import HEADINGS, walk_commands

PROGRAMS = {"python -m sim": app, "python -m calibration": calibration_app}


def helped(width: int = 80) -> Iterator[tuple[str, Any, str]]:
    """Every command by its whole name, itself, and its help on a terminal of *width* columns."""
    for program, made in PROGRAMS.items():
        group: Any = typer.main.get_command(made)
        context = group.context_class(group, info_name=program, terminal_width=width, **group.context_settings)
        for path, command, below in walk_commands(group, context):
            yield " ".join((program, *path)), command, command.get_help(below)
        yield program, group, group.get_help(context)


def test_headings_name_options_that_exist_once_each() -> None:
    """An option that no heading names comes under Other."""
    named = Counter(name for names in HEADINGS.values() for name in names.split())
    assert not [name for name, count in named.items() if count > 1]
    options = {max(option.opts, key=len) for _, command, _ in helped() for option in command.params if option.param_type_name == "option"}
    assert set(named) - options <= {"--show-completion", "--install-completion", "--help"}, "of stallsim alone, and click's own"


def test_help_shows_every_option_once_and_two_examples() -> None:
    wrong = []
    for name, command, text in helped():
        body, _, examples = text.partition("\nExamples:\n")
        spelled = {word.rstrip(",") for line in body.splitlines() if line.startswith("  -") for word in line.split("  ")[1].split()}
        wrong += [
            f"{name}: {option} is missing"
            for parameter in command.params
            for option in parameter.opts
            if option.startswith("-") and option not in spelled
        ]
        program = name if name in PROGRAMS else name.rsplit(" ", 1)[0]
        shown = [line for line in examples.splitlines() if program in line or "-m calibration" in line]
        if len(shown) != 2:
            wrong.append(f"{name}: {len(shown)} examples")
        wrong += [f"{name}: wider than the terminal: {line}" for line in body.splitlines() if len(line) > 80]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    ("called", "other"), [("/usr/bin/stallsim", "python -m sim"), ("/usr/bin/stallsim-calibrate", "python -m calibration")]
)
def test_the_program_is_named_as_it_was_called(called: str, other: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", [called])
    assert not [name for name, _, text in helped() if other in text.partition("\nExamples:\n")[2]]
    monkeypatch.setattr(sys, "argv", ["/somewhere/sim/__main__.py"])
    assert [name for name, _, text in helped() if other in text.partition("\nExamples:\n")[2]]


def test_help_of_new_shows_the_options_of_one_kind(capsys: pytest.CaptureFixture[str]) -> None:
    shown = {}
    for kind, other in (("hardware", "workload"), ("workload", "hardware")):
        assert main(["new", kind, "--help"]) == 0
        text = capsys.readouterr().out
        shown[kind] = set(re.findall(r"--[a-z-]+", text.partition("Job:")[2].partition("Output:")[0]))
        assert other not in text.partition("OPTIONS]\n")[2].partition("Arguments:")[0]
        examples = text.partition("Examples:\n")[2].splitlines()
        assert examples and all(("new workload" in line) == (kind == "workload") for line in examples)
    assert shown["hardware"] == {"--name", "--from-topo", "--gpu", "--cpu", "--nic-bandwidth", "--transport", "--memory"}
    assert {"--name", "--from", "--batch", "--sequence", "--input"} <= shown["workload"] and "--gpu" not in shown["workload"]
