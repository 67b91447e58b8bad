"""What may somebody type? Every command of both programs, with options from its parser, and values that are right, nearly right or odd."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from random import Random
from typing import Any, NamedTuple

import typer

from calibration.cli import app as calibration_app
from sim.cli import app
from sim.commands.help import walk_commands
from sim.spec.fields import Spec
from sim.spec.library import load_hardware, load_workload
from sim.spec.sections import file_values
from sim.spec.yaml import spell_key
from tests.fuzz.typed_values import ARGUMENTS, OF_COMMAND, STARTS, VALUES

ODD_WORDS = (
    "", " ", "0", "1", "2", "8", "-1", "1e9", "nan", "inf", "1..4", "4..1", "1..", "1..1000000", "1..4:0", "1..4:log2", "x",
    "H100", "p3.8xlarge",
    "alexnet", "vgg", "fp16", "amp_bf16", "spot", "gpus=8", "gpus>x", "node.nic.bandwidth=25 Gbps", "node.gpu.compute_capability=abc",
    "node.gpu.tensor_core_rate=0", "training.batch=-3", "a=b", "=", "10 USD/h", "1 GiB", "1MiB..1GiB:2000000", "1B..1KiB",
    "torch-1.13-ddp", "1+2", ".", "empty.yaml", "absent.yaml", "job.yaml", "out.csv", "out.html", "\u2028", "..", "--",
    "9" * 50, "\ud800", "dask://localhost:1", "batch=8,16", "batch=1..10000000000", "node.nic.bandwidth=1..9 Gbps:3", "20h",
)  # fmt: skip
OTHER_OPTIONS = ("--help", "-h", "--version", "--debug", "-q", "--quiet", "--absent", "--zero-stage", "--dp", "-x", "--nodes=", "--set")
ODD_VALUES = (
    "0", "1", "-1", "0.5", "1e-9", "1e9", "nan", "abc", "", "null", "[]", "{}", "true", "0 s", "1 us", "1 d", "1 B", "1 PB",
    "1 Mbps", "1 Pbps", "0%",
    "1 FLOP/s", "100 PFLOP/s", "-3.5", "99.9", "0.0", "1000000", "v100-sxm2-16gb", "[1, 2]", "{fp32: 1 TFLOP/s}",
)  # fmt: skip
"""Values of a field that its type may or may not take."""
ODD_NUMBERS = ("0", "-1", "1.5", "3", "7", "9", "1000", "100000", "1e9", "1e-9", "1e400", "nan", "9" * 30, "01", "1_000", "1,000")
ODD_PARTS = (
    ",",
    "=",
    "..",
    ":",
    " ",
    "x",
    "-",
    "%",
    "'",
    "\\",
    "é",
    "*",
    "[",
    "{",
    "\n",
    "\t",
    "~",
    "#",
    ";",
    "+",
    "K",
    "GiB",
    " Gbps",
    " s",
)
_GUARDED = frozenset(
    {"sim compare", "sim recommend", "sim plan", "sim check", "sim study accpar", "sim study stash2022", "sim ui"}
    | {f"calibration {name}" for name in ("profile", "lab", "validate", "blind", "kernels", "collectives", "longrun")}
)
"""Commands that take minutes without the words they start with, because they then try a whole catalog or measure."""
_NEVER: Mapping[str, frozenset[str]] = {
    "sim compare": frozenset({"--where"}), "sim recommend": frozenset({"--where"}), "calibration kernels": frozenset({"--left-out"}),
    "calibration energy": frozenset({"--steps"}), "calibration collectives": frozenset({"--write", "--hardware-out"}),
}  # fmt: skip
"""Options that take minutes by design, or that write into this repository, typed only where they are refused (`_refused`)."""
_FIXED: Mapping[str, frozenset[str]] = {
    "calibration profile": frozenset({"--list", "--device"}), "calibration lab": frozenset({"--list", "--score"}),
    "sim study stash2022": frozenset({"--output"}),
}  # fmt: skip
"""Options whose value in the start of a command is kept, because with another it measures or simulates for minutes."""
_REFUSED: Mapping[tuple[str, str], str] = {
    ("sim compare", "--where"): "alexnet --where gpus=0",
    ("sim recommend", "--where"): "alexnet --where gpus=0",
    ("calibration kernels", "--left-out"): "--left-out --absent",
    ("calibration energy", "--steps"): "--steps --absent",
    ("calibration collectives", "--write"): "collectives.csv --write",
    ("calibration collectives", "--hardware-out"): "--hardware-out made.yaml",
}


_SELDOM: Mapping[str, float] = dict.fromkeys(
    (
        "sim ui", "sim extract", "sim profile", "sim study accpar", "sim batches", "sim check",
        *(f"calibration {name}" for name in ("servers", "collectives", "energy", "fit", "blind", "kernels", "validate", "longrun")),
    ),
    0.15,
)  # fmt: skip
"""How often, of once, a command is typed that takes seconds whatever its options are."""


class TypedCommand(NamedTuple):
    """A command by the words that name it, with its parser."""

    name: str
    command: Any
    context: Any

    @property
    def options(self) -> list[Any]:
        """Return the options of the command, without --help."""
        return [each for each in self.command.get_params(self.context) if each.param_type_name == "option" and "--help" not in each.opts]


@cache
def commands() -> Mapping[str, TypedCommand]:
    """Return every command of both programs, and the programs themselves."""
    entered = {}
    for program, made in (("sim", app), ("calibration", calibration_app)):
        group: Any = typer.main.get_command(made)
        context = group.context_class(group, info_name=f"python -m {program}", **group.context_settings)
        entered[program] = TypedCommand(program, group, context)
        for path, command, below in walk_commands(group, context):
            name = " ".join((program, *path))
            entered[name] = TypedCommand(name, command, below)
    return entered


def flag(option: Any) -> str:
    """Return the long name of *option*."""
    return str(max(option.opts, key=len))


@cache
def values_of(name: str, option: str) -> Sequence[str]:
    """Return values for *option* of the command *name*: listed ones, completions, words of its choice, or some of its type."""
    typed = commands()[name]
    parameter = next(each for each in typed.options if flag(each) == option)
    if option == "--set":
        return ()
    listed = OF_COMMAND.get((name, option)) or VALUES.get(option)
    if listed is not None:
        return listed
    if completed := [item.value for item in parameter.shell_complete(typed.context, "") if getattr(item, "type", "plain") == "plain"]:
        return completed
    if choice := re.fullmatch(r"[a-z-]+(\|[a-zA-Z-]+)+", parameter.metavar or ""):
        return [word for word in choice[0].split("|") if word.islower()]
    spelled = parameter.get_help_record(typed.context)[0].lower()
    return next((words for kind, words in _BY_TYPE.items() if re.search(rf"\b{kind}", spelled)), ())


_BY_TYPE: Mapping[str, Sequence[str]] = {"int": ("1", "2"), "float": ("1", "0.5"), "path": ("job.yaml", "out.csv")}
"""Values by the type that the help of an option names."""


@cache
def keys() -> Sequence[str]:
    """Return the dotted key of every value of two machines and two workloads, defaults included."""
    dotted = set()
    for loaded in (load_hardware("p3.8xlarge"), load_hardware("dgx-a100"), load_workload("alexnet"), load_workload("gpt2")):
        dotted |= {spell_key(key, loaded.document.implied) for key in _leaves(loaded.spec) if "source" not in key}
    return sorted(dotted)


def _leaves(value: Any, key: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    value = file_values(value) if isinstance(value, Spec) else value
    inside = value.items() if isinstance(value, dict) else enumerate(value[:3]) if isinstance(value, list | tuple) else None
    if inside is None:
        yield key
    for name, held in inside or ():
        yield from _leaves(held, (*key, name))


def command_line(random: Random) -> tuple[str, list[str]]:
    """Return a program, ``sim`` or ``calibration``, and the words to type after it."""
    if random.random() < 0.1:
        key, value = random.choice(keys()), random.choice(ODD_VALUES)
        machine = random.choice((("p3.8xlarge", "alexnet"), ("dgx-a100", "gpt2")))
        return "sim", ["run", *machine, "--fast", "--set", f"{key}={value}"]
    names = sorted(commands())
    name = random.choices(names, [_SELDOM.get(name, 1.0) for name in names])[0]
    typed = commands()[name]
    program, _, path = name.partition(" ")
    start = _start(typed, random)
    added: list[list[str]] = []
    options = [option for option in typed.options if flag(option) not in _FIXED.get(name, ())]
    for option in random.sample(options, min(len(options), random.choice((0, 1, 1, 2, 2, 3, 4)))):
        if flag(option) in _NEVER.get(name, ()):
            return program, [*path.split(), *_REFUSED[name, flag(option)].split()]
        start = _without(start, option)
        added.append(_typed_option(name, option, random))
    if random.random() < 0.1:
        added.append([random.choice(OTHER_OPTIONS), *([random.choice(ODD_WORDS)] if random.random() < 0.5 else [])])
    random.shuffle(added)
    words = [*start, *(word for option in added for word in option)]
    if name not in _GUARDED and words and random.random() < 0.15:
        place = random.randrange(len(words))
        words[place : place + 1] = random.choice(([], [random.choice(ODD_WORDS)], [inside(twisted(words[place], random))]))
    return program, [*path.split(), *words]


def _start(typed: TypedCommand, random: Random) -> list[str]:
    """Return words with which *typed* runs: listed ones, or its arguments and required options."""
    if typed.name in STARTS:
        return random.choice(STARTS[typed.name]).split()
    words = []
    for parameter in typed.command.get_params(typed.context):
        if parameter.param_type_name == "argument" and (parameter.required or random.random() < 0.3):
            words.append(random.choice(ARGUMENTS.get(re.sub(r"\[|\]|\.{3}", "", parameter.make_metavar(typed.context)), ("job.yaml",))))
        elif parameter.param_type_name == "option" and parameter.required:
            words += _typed_option(typed.name, parameter, random)
    return words


def _without(words: Sequence[str], option: Any) -> list[str]:
    """Return *words* without *option* and its value, which may be typed once."""
    left = list(words)
    while place := next((number for number, word in enumerate(left) if word in option.opts), -1) + 1:
        del left[place - 1 : place + (0 if option.is_flag else 1)]
    return left


def _typed_option(name: str, option: Any, random: Random) -> list[str]:
    """Return *option* of the command *name* as typed, with its value."""
    if option.is_flag:
        return [random.choice([*option.opts, *option.secondary_opts])]
    if flag(option) == "--set":
        return ["--set", f"{random.choice(keys())}={random.choice(ODD_VALUES)}"]
    values = values_of(name, flag(option))
    if not values or random.random() < 0.05:
        return [random.choice(option.opts), random.choice(ODD_WORDS)]
    value = random.choice(values)
    if random.random() < 0.25:
        value = inside(twisted(value, random))
    return [f"{flag(option)}={value}"] if random.random() < 0.1 else [random.choice(option.opts), value]


def twisted(value: str, random: Random) -> str:
    """Return *value* with one thing wrong."""
    kind = random.randrange(7)
    place = random.randint(0, len(value))
    if kind == 0 and (numbers := list(re.finditer(r"\d+(?:\.\d+)?", value))):
        number = random.choice(numbers)
        return value[: number.start()] + random.choice(ODD_NUMBERS) + value[number.end() :]
    if kind == 1:
        return value[:place] + value[place + 1 :]
    if kind == 2:
        return value + random.choice((",", "..", "=", ":", " ", "")) + value
    if kind == 3:
        return value[:place] + random.choice(ODD_PARTS) + value[place:]
    if kind == 4:
        return value.upper() if value.islower() else value.lower()
    if kind == 5:
        return value.partition(" ")[0].rstrip("abcdefghijklmnopqrstuvwxyzGKMTBW")
    return random.choice(ODD_WORDS)


def inside(path: str) -> str:
    """Return *path* inside the current folder: what is typed must not write elsewhere."""
    return "." + path if path.startswith(("/", "~")) else path
