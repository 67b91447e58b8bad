"""Does every command that a message, a help text, README or docs suggest run? All are parsed and a sample runs; others run nightly."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import typer

from calibration.cli import app as calibration_app
from sim.cli import app, main
from tests import shown
from tests.smoke.suggestions import CANNOT, INSTANCES, MACHINES, run, words_of

ROOT = Path(__file__).resolve().parents[2]
_COMMAND = re.compile(
    r"""python -m (sim|calibration)((?: {1,6}(?:(?<=[ =])'[^'\n]*'|(?<=[ =])"[^"\n]*"|,(?=\w)|[^\s'"`;,()|#&<>\[\]])+)*)"""
)
_OPTION = re.compile(r"(?<![\w-])--[a-z][a-z0-9.-]*[a-z0-9]")
_OTHERS = frozenset(
    {"--pid", "--tty", "--arch", "--gpus", "--no-compile", "--no-deps", "--nproc-per-node", "--standalone", "--port"}
    | {"--use-megatron-fsdp", "--data-parallel-sharding-strategy"}
    | {"--nnodes", "--node-rank", "--rdzv-backend", "--rdzv-endpoint", "--job.config-file", "--use-tp-pp-dp-mapping"}
    | {"--install-completion", "--show-completion"}
)
"""Options of other programs that messages name, and those that only the script ``stallsim`` has."""
_FOREIGN = (
    "sim/report/page/", "sim/spec/foreign/launch_",
    "sim/spec/foreign/layout_megatron", "sim/study/new/sources.py", "sim/study/new/length.py", "sim/study/new/named_files.py",
    "sim/commands/words.py",
)  # fmt: skip
"""Where words that begin with two dashes are variables of CSS, or options of other programs, read or answered (`test_words`)."""
_WITH_PACKAGE = "docs/develop/own-"
"""Pages whose commands need the package that they show: `tests.test_develop_pages` runs them with it."""


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
            line = re.sub(" +", " ", f"{match[1]}{match[2]}").rstrip(".:")
            if "..." not in line and not line.endswith(("=", "-")):
                commands.setdefault(line, place)
    return commands


@cache
def program(name: str) -> Any:
    return typer.main.get_command(app if name == "sim" else calibration_app)


def parsed(words: list[str]) -> str:
    """Why the command line *words* cannot be parsed; empty where it can."""
    group = program(words[0])
    root = group.context_class(group, info_name=words[0], **group.context_settings)  # without it, click keeps a help option without -h
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
        group.make_context(name, [word for word in rest if word not in ("--quiet", "-q", "--debug")], parent=root)
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


LONG = (
    "calibration blind h", "calibration blind H", "calibration blind X", "calibration collectives ", "calibration fit ",
    "calibration kernels --left-out", "calibration kernels --refit", "calibration lab --", "calibration servers ", "calibration validate ",
    "sim batches ", "sim check -v", "sim compare p3.2xlarge", "sim compare vgg16", "sim extract my_file.py",
    "sim extract torch",
    "sim goodput hgx-h100 gpt2-xl --nodes 256", "sim goodput hgx-h100 llama", "sim new workload my_file.py",
    "sim plan ", "sim profile p3", "sim recommend ",
    "sim run HW WL -o", "sim share ", "sim study accpar", "sim study stash2022", "sim sweep p3", "sim ui ",
    "sim run p3.16xlarge vgg16 --nodes 1..16", "sim run p3.16xlarge resnet18-and-vgg16",
)  # fmt: skip
"""How commands begin that take over a second: they run nightly."""


def runnable() -> list[str]:
    """Every suggested command that a test can run, but for those whose output a page shows: `tests.test_shown` runs them."""
    others = CANNOT.keys() | {
        match["command"].removeprefix("python -m ")
        for page in shown.PAGES
        for match in shown.BLOCK.finditer(page.read_text(encoding="utf-8"))
    }
    return [line for line, place in suggested().items() if line not in others and not place.startswith(_WITH_PACKAGE)]


def _wrong(lines: list[str], place: Path) -> list[str]:
    return [f"{suggested()[line]}: {problem}" for line in lines if (problem := run(line, place))]


PARTS = 4


@pytest.mark.slow
@pytest.mark.parametrize("part", [0, *(pytest.param(part, marks=pytest.mark.nightly) for part in range(1, PARTS))])
def test_short_ones_run(part: int, tmp_path: Path) -> None:
    short = [line for line in runnable() if not line.startswith(LONG)][part::PARTS]
    assert len(short) > 20
    wrong = _wrong(short, tmp_path / "here")
    assert not wrong, "\n".join(wrong)


@pytest.mark.nightly
@pytest.mark.parametrize("start", LONG)
def test_long_ones_run(start: str, tmp_path: Path) -> None:
    lines = [line for line in runnable() if line.startswith(start)]
    assert lines
    wrong = _wrong(lines, tmp_path / "here")
    assert not wrong, "\n".join(wrong)


def test_what_is_filled_in_or_cannot_run_is_still_suggested() -> None:
    assert not [line for line in (*INSTANCES, *CANNOT, *MACHINES) if line not in suggested()]


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


LLAMA = "run hgx-h100 llama-3.2-1b --shard parameters --set training.activation_checkpointing=blocks"
REFUSED = (
    *(f"run p3.16xlarge vgg16 --fast {options}" for options in (
        "--gpus 9", "--gpus 12", "--gpus 17", "--gpus 9 --nodes 2", "--gpus 7 --nodes 4", "--gpus 3 --nodes 2", "--gpus 20 --nodes 2",
        "--placement 9", "--placement 1+9", "--placement 0", "--batch 512", "--batch 100000", "--global-batch 7",
        "--global-batch 1001", "--global-batch 8192",
        "--global-batch 100000",
    )),
    *(f"{LLAMA} {options}" for options in ("--tp 3", "--tp 5", "--tp 8 --gpus 12", "--tp 4 --gpus 9", "--replicate 3", "--cp 16",
                                           "--global-batch 7", "--tp 8 --gpus 20 --nodes 2")),
    "goodput p3.16xlarge vgg16 --days 3 --trials 2 --fast --nodes 2 --gpus 9",
    "goodput p3.16xlarge vgg16 --days 3 --trials 2 --fast --gpus 100",
    "goodput p3.16xlarge vgg16 --days 3 --trials 2 --fast --checkpoint-interval 1s",
    "plan hgx-h100 llama-3.2-1b --simulate 1 --gpus 7 --nodes 2",
    "collective p3.16xlarge --gpus 100", "collective p3.16xlarge --gpus 9 --nodes 2", "collective p3.2xlarge",
    "run p3.16xlarge vgg16 --fast --power-cap 1W", "run p3.16xlarge vgg16 --fast --set price.date=2026-13-01",
    "whatif p3.16xlarge alexnet --gpus 9", "spot p3.2xlarge resnet50 --epochs 1 --batch 3000",
    "run p3.16xlarge vgg16 --fast --epochs 1e300",
)  # fmt: skip
"""Commands that are refused with advice on numbers, most of them numbers of GPUs."""
_AXES = {"tensor": "--tp", "context": "--cp", "pipeline": "--pp", "replicate": "--replicate", "expert": "--ep"}


def advised(command: str, message: str) -> list[str]:
    """Return *command* with each change that *message* advises."""
    subject = re.match(r"(--[a-z-]+) \S+: ", message)
    axis = re.match(r"training\.parallel\.(\w+): ", message)
    own = subject[1] if subject else _AXES[axis[1]] if axis else ""
    body = message.partition(": ")[2]
    both = re.search(r"(?:add|or) (--nodes \d+) and write (\d+)(?: or (\d+))? GPUs", body)
    body = body.replace(both[0], "") if both else body
    changes = re.findall(r"(--[a-z-]+) (\d[\d+]*\b(?![.\d]))", body)
    if own:
        values = re.findall(r"(?:write|write at most|that fits is|use) ([\d,]*\d)(?! ?(?:per GPU|GPUs|s\b|W\b|\.\d))\b", body)
        values += re.findall(r"(?:write|use) \d+ or (\d+)(?! GPUs)", body) + re.findall(r"(\d+) would work", body)
        changes += [(own, value.replace(",", "")) for value in values]
        changes += [(own, value.replace(" ", "")) for value in re.findall(r"write ([\d.]+ (?:s|W)) or more", body)]
    changes += [("--nodes", str(-(-int(count) // 8))) for count in re.findall(r"use (\d+) GPUs", body)]
    commands = []
    for option, value in changes:
        words = command.split()
        if option == "--placement":
            words = [word for place, word in enumerate(words) if not {word, words[place - 1]} & {"--gpus", "--nodes", "--placement"}]
            words = ["run", words[1], "vgg16", "--fast"] if "`run --placement" in body else words
        if option in words:
            words[words.index(option) + 1] = value
        else:
            words += [option, value]
        commands.append(" ".join(words))
    bare = re.sub(r" --nodes \S+", "", command)
    more = [re.sub(rf"{own} \S+", f"{own} {gpus} {both[1]}", bare) for gpus in filter(None, both.groups()[1:])] if both else []
    return commands + more


@pytest.mark.parametrize("command", REFUSED)
def test_advice_on_numbers_works(command: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Each number and option that a message names in place of the wrong one is accepted by the same command."""
    monkeypatch.chdir(ROOT)
    assert main(command.split()) == 2
    message = capsys.readouterr().err.splitlines()[0]
    again = advised(command, message)
    assert again or "date" in message, f"no advice: {message}"
    for line in again:
        assert main(line.split()) == 0, f"{message}\n{line}\n{capsys.readouterr().err}"
        capsys.readouterr()
