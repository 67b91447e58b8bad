"""Does every command that a message, a help text or README suggests run? All are parsed; those that take moments are run as well."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import typer

from calibration.cli import app as calibration_app
from sim.cli import app, main

ROOT = Path(__file__).resolve().parents[2]
_COMMAND = re.compile(r"python -m (sim|calibration)((?: {1,3}(?:'[^'\n]*'|\"[^\"\n]*\"|[^\s'\"`;,()|#&<>\[\]]+))*)")
_OPTION = re.compile(r"(?<![\w-])--[a-z][a-z0-9.-]*[a-z0-9]")
_OTHERS = frozenset(
    {"--pid", "--tty", "--arch", "--gpus", "--no-compile", "--no-deps", "--nproc-per-node", "--standalone", "--port"}
    | {"--nnodes", "--node-rank", "--rdzv-backend", "--rdzv-endpoint", "--job.config-file", "--use-tp-pp-dp-mapping"}
    | {"--install-completion", "--show-completion"}
)
"""Options of other programs that messages name, and those that only the script ``stallsim`` has."""
_FOREIGN = (
    "sim/report/page/", "sim/spec/foreign/launch_",
    "sim/spec/foreign/layout_megatron", "sim/study/new/workload.py", "sim/commands/words.py",
)  # fmt: skip
"""Where words that begin with two dashes are variables of CSS, or options of other programs, read or answered (`test_words`)."""
_WITH_PACKAGE = "docs/develop/own-"
"""Pages whose commands need the package that they show: `tests.test_develop_pages` runs them with it."""
_QUICK = ("list", "schema", "collective p3", "show")
_STANDS_FOR = {"HW": "p3.8xlarge", "WL": "alexnet", "DIR": "results", "FILE": "table.csv", "N": "4", "HOST:8786": "localhost:8786"}


@cache
def texts() -> list[tuple[str, str]]:
    """Every text of the program and of README, and where it is; what a text is formatted with is an X."""
    return list(_texts())


def _texts() -> Iterator[tuple[str, str]]:
    yield "README.md", (ROOT / "README.md").read_text(encoding="utf-8").replace("\\\n", " ")
    for path in sorted([*(ROOT / "docs").rglob("*.md"), *(ROOT / "sim").rglob("*.py"), *(ROOT / "calibration").rglob("*.py")]):
        name = str(path.relative_to(ROOT))
        if path.suffix == ".md":
            yield name, path.read_text(encoding="utf-8").replace("\\\n", " ")
            continue
        tree = ast.parse(path.read_text(encoding="utf-8"))
        nodes = [node for node in ast.walk(tree) if isinstance(node, ast.JoinedStr | ast.Constant)]
        joined = {id(part) for node in nodes if isinstance(node, ast.JoinedStr) for part in node.values}
        for node in nodes:
            if isinstance(node, ast.JoinedStr):
                yield f"{name}:{node.lineno}", "".join(str(part.value) if isinstance(part, ast.Constant) else "X" for part in node.values)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in joined:
                yield f"{name}:{node.lineno}", node.value


@cache
def suggested() -> dict[str, str]:
    """Every suggested command, and a place that suggests it."""
    commands: dict[str, str] = {}
    for place, text in texts():
        for match in _COMMAND.finditer(text):
            line = f"{match[1]}{match[2]}".rstrip(".:")
            if "..." not in line and not line.endswith(("=", "-")):
                commands.setdefault(line, place)
    return commands


def words_of(line: str) -> list[str]:
    return [_STANDS_FOR.get(word, word) for word in shlex.split(line)]


@cache
def program(name: str) -> Any:
    return typer.main.get_command(app if name == "sim" else calibration_app)


def parsed(words: list[str]) -> str:
    """Why the command line *words* cannot be parsed; empty where it can."""
    group = program(words[0])
    rest, options = words[1:], {}
    while rest and rest[0].startswith("-"):
        options[rest.pop(0)] = True
    name = words[0]
    while rest and hasattr(group, "commands"):
        name = rest.pop(0)
        if name not in group.commands:
            return f"there is no command {name}"
        group = group.commands[name]
    if hasattr(group, "commands") or not rest:
        return ""  # the program or a command by name alone: "see python -m sim list"
    try:
        group.make_context(name, [word for word in rest if word not in ("--quiet", "-q", "--debug")])
    except SystemExit as stopped:
        return "" if not stopped.code else "stopped"
    except typer.Exit:
        return ""
    except Exception as error:
        return f"{type(error).__name__}: {getattr(error, 'message', error)}"
    return ""


def test_what_is_suggested_can_be_typed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for folder in ("my-machines", "results"):
        (tmp_path / folder).mkdir()
    commands = suggested()
    assert len(commands) > 40, "the search itself"
    wrong = [
        f"{place}: {line}: {problem}"
        for line, place in commands.items()
        if not (line.startswith("sim study") and place.startswith(_WITH_PACKAGE)) and (problem := parsed(words_of(line)))
    ]
    assert not wrong, "\n".join(wrong)


def test_quick_ones_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(ROOT)
    starts = tuple(f"sim {start}" for start in _QUICK)
    quick = [
        line
        for line, place in suggested().items()
        if line.startswith(starts) and " -o" not in line and "X" not in line and not place.startswith(_WITH_PACKAGE)
    ]
    assert len(quick) >= 4
    wrong = []
    for line in sorted(quick):
        words = words_of(line)[1:]
        if len(words) > 1 and "--html" not in words and "--trace" not in words and "1..16" not in words and main(words) not in (0, 1):
            wrong.append(f"{line}: {capsys.readouterr().err}")
    assert not wrong


def test_every_option_that_a_text_names_exists() -> None:
    options = set(_OTHERS)
    level = [program("sim"), program("calibration")]
    while level:
        command = level.pop()
        options |= {name for option in command.params for name in (*option.opts, *option.secondary_opts)} | {"--help"}
        level += getattr(command, "commands", {}).values()
    wrong = sorted(
        {
            f"{place}: {option}"
            for place, text in texts()
            if place.startswith("sim/") and not place.startswith(_FOREIGN)
            for option in _OPTION.findall(text)
            if option not in options and "-" + option not in text
        }
    )
    assert not wrong, "\n".join(wrong)


def test_no_message_says_to_install_stallsim_from_an_index() -> None:
    """No index has it: what a user of a checkout can install are the packages that an extra holds."""
    assert [place for place, text in texts() if re.search(r"pip install [^\n]*stallsim", text)] == []
