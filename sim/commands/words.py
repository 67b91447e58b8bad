"""What is wrong with the typed command? Explains invalid values, and options that belong to other programs or commands."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise, takewhile
from typing import Any, Final

from sim.commands.order import workload_last
from sim.spec.yaml import SpecError
from sim.units import UNITS, ambiguous_count, any_of

_SEQUENCE: Final = "--sequence N, tokens per sample"
_SHARD: Final = "--shard parameters (ZeRO-3, FSDP), gradients (ZeRO-2) or optimizer (ZeRO-1)"
_PRECISION: Final = "--precision, such as bf16, amp_fp16 or fp8"
_ACCUMULATED: Final = "--set training.gradient_accumulation_steps=N, or --micro-batches N with a layout"
_RECOMPUTED: Final = "--set training.activation_checkpointing=blocks"
_NODES: Final = "--nodes N, machines with all their GPUs"
_GPUS: Final = "--gpus N, the number of GPUs together"
_LEFT: Final = "data-parallel ranks are all GPUs divided by --tp, --pp and --cp; --replicate N for replicas of a sharded model"

EQUIVALENTS: Final[Mapping[str, str]] = {
    **dict.fromkeys(("--seq", "--seq-len", "--seq-length", "--max-seq-len", "--max-seq-length", "--context-length"), _SEQUENCE),
    **dict.fromkeys(("--zero", "--zero-stage", "--fsdp"), _SHARD),
    **dict.fromkeys(("--dtype", "--fp8", "--fp4", "--bf16", "--fp16", "--fp32", "--tf32", "--amp"), _PRECISION),
    **dict.fromkeys(("--gradient-accumulation", "--gradient-accumulation-steps", "--grad-accum", "--accumulate"), _ACCUMULATED),
    **dict.fromkeys(("--activation-checkpointing", "--gradient-checkpointing", "--recompute", "--remat"), _RECOMPUTED),
    **dict.fromkeys(("--world-size", "--nnodes", "--num-nodes", "--node"), _NODES),
    **dict.fromkeys(("--num-gpus", "--ngpus"), _GPUS),
    **dict.fromkeys(("--page", "--report"), "--html FILE.html"),
    **dict.fromkeys(("--dp", "--dp-size", "--data-parallel", "--data-parallel-size"), _LEFT),
    **dict.fromkeys(("--micro-batch-size", "--micro-batch", "--batch-size", "--mbs"), "--batch N, samples per GPU and micro-batch"),
    **dict.fromkeys(("--global-batch-size", "--gbs", "--train-batch-size"), "--global-batch N"),
    **dict.fromkeys(("--tensor-parallel", "--tensor-parallel-size", "--tensor-model-parallel-size", "--tp-size"), "--tp N"),
    **dict.fromkeys(("--pipeline-parallel", "--pipeline-parallel-size", "--pipeline-model-parallel-size", "--pp-size"), "--pp N"),
    **dict.fromkeys(("--context-parallel", "--context-parallel-size", "--cp-size"), "--cp N"),
    **dict.fromkeys(("--expert-parallel", "--expert-parallel-size", "--expert-model-parallel-size", "--ep-size"), "--ep N"),
    **dict.fromkeys(("--lora", "--lora-rank", "--lora-r"), "--set model.lora.rank=N"),
    **dict.fromkeys(("--num-workers", "--dataloader-num-workers", "--loader-workers"), "--set input.num_workers=N"),
    **dict.fromkeys(
        ("--ddp", "--distributed-data-parallel"), "--stack torch-2.x-ddp: plain data parallelism, without --shard, --tp, --pp or --cp"
    ),
    "--framework": "--stack NAME ('python -m sim list stacks' lists them)",
    "--optimizer": "--set training.optimizer.name=NAME",
    "--spot": "--market spot",
    "--budget": "--budget-usd X or --budget-hours X",
}
"""Options of other programs, and how to write the same here."""

_PRICE: Final = {"--price": "--set price.on_demand='10 USD/h'"}
_REGION: Final = {"--region": "--set price.region=FRA"}
FILTERS: Final = {
    **dict.fromkeys(("--gpu", "--gpu-type", "--accelerator"), "--where gpu=H100"),
    **dict.fromkeys(("--provider", "--providers", "--cloud", "--clouds"), "--where provider=aws,gcp"),
    "--gpus": "--where gpus=8",
    "--region": "--where region=us-east-1",
}
"""Options that other programs have for what ``--where`` filters."""
_AXES_OF_PLAN: Final = ("tp", "pp", "cp", "ep", "shard", "schedule", "replicate", "batch")
_SINGULAR: Final = {"--gpu": _GPUS}
"""What is meant by options that only `new` has, where a kind of GPU is their value."""
_GROUP: Final = "--set groups.0.count=N, the machines of the first group of HW, and so on"
_WORKERS: Final = "--workers N, the number of spot machines"
HERE: Final[Mapping[str, Mapping[str, str]]] = {
    "whatif": _PRICE,
    "batches": {
        **dict.fromkeys(("--gpu", "--gpus", "--nodes"), _GROUP),
        "--batch": "--global-batch N, the samples that it divides",
    },
    "profile": dict.fromkeys(("--gpu", "--gpus"), _NODES),
    "spot": {**dict.fromkeys(("--gpu", "--gpus", "--nodes"), _WORKERS), "--hours": "--epochs N or --steps N"},
    "goodput": {**_PRICE, "--hours": "--days N", "--workers": "--nodes N"},
    "run": {
        **_PRICE,
        **_REGION,
        "--days": "--hours N",
        "--workers": "--nodes N, or for the data loader --set input.num_workers=N",
    },
    "plan": {
        **_PRICE,
        **_REGION,
        **{f"--{axis}": f"--fix {axis}={'NAME' if axis in ('shard', 'schedule') else 'N'}" for axis in _AXES_OF_PLAN},
        "--micro-batches": "--fix micro_batches=N",
    },
    "prices": FILTERS,
    "list": FILTERS,
    "new": {"--gpus": "--from-topo FILE, which shows the number of GPUs"},
    "compare": {**FILTERS, "--gpus": "--where gpus=N, machines with N GPUs", "--hardware": "the names of machines, without an option"},
    "recommend": {**FILTERS, "--gpus": "--where gpus=N, machines with N GPUs"},
    "sweep": {
        **_REGION,
        "--gpu": "--vary gpus=N",
        "--gpus": "--vary gpus=N",
        "--global-batch": "--vary global_batch=N",
        "--sequence": "--set model.sequence=N",
    },
}
"""For each command, options of other commands, and its own equivalents."""
NAMED: Final = ("--hardware", "--machine", "--workload", "--model")
"""Options of other programs for what are arguments here."""


_MESSAGES: Final[tuple[tuple[str, str | Callable[[re.Match[str]], str]], ...]] = (
    (r"Input should be a valid integer.*", "write a whole number"),
    (r"Input should be a valid number.*", "write a number"),
    (r"Input should be a finite number", "write a finite number"),
    (r"Input should be greater than or equal to (\S+)", r"write \1 or more"),
    (r"Input should be less than or equal to (\S+)", r"write \1 or less"),
    (r"Value error, '.*' is not one of (.*)\.", lambda match: "write " + any_of(re.findall(r"'([^']+)'", match[1]))),
    (r"Value error, (.*)", r"\1"),
)
"""Messages of the parser about a value, and their replacements in the style of all other messages."""


def explain_error(error: Any, command: Any, context: Any, typed: Sequence[str] = ()) -> Any:
    """Return the *error* of parsing *typed* with a message that says what to write, for a value or for an option of other programs.

    A value that cannot be read is a SpecError, one sentence like all others.
    """
    if isinstance(message := getattr(error, "message", None), str):
        error.message = next((re.sub(pattern, words, message) for pattern, words in _MESSAGES if re.fullmatch(pattern, message)), message)
    if getattr(getattr(error, "param", None), "name", None) == "batch" and command.name == "sweep":
        error.message = f"{error.message}; for several values, write --vary batch=16,32"
    if (value := _value_of(error, command, context, typed)) is not None:
        return SpecError(f"{value}: {ambiguous_count(value.rpartition(' ')[2]) or error.message}")
    if str(getattr(error, "message", "")).startswith("Got unexpected extra"):
        return _explain_flag_value(error, command, context, typed)
    name = getattr(error, "option_name", None)
    if not isinstance(name, str) or not hasattr(error, "possibilities"):
        return error
    own_options = {option for parameter in command.get_params(context) for option in parameter.opts}
    suggestion = EQUIVALENTS.get(name) or _SINGULAR.get(name, "")
    if suggestion and own_options & set(suggestion.replace(",", " ").split()):
        return _with_words(error, suggestion if suggestion == _LEFT else f"here, use {suggestion}")
    if name in HERE.get(command.name or "", {}):
        return _with_words(error, f"here, use {HERE[command.name][name]}")
    if name in NAMED and (order := order_of_names(command, context)):
        return _with_words(error, f"names need no option: {order}")
    takers = _commands_with(suggestion.split()[0] if suggestion.startswith("--") else name, context)
    if takers:
        which = f"{', '.join(takers)} {'has' if len(takers) == 1 else 'have'}"
        return _with_words(error, f"{which} {suggestion or 'it'}")
    return error


_FEW: Final = 6
"""Number of commands that are all listed for an unknown one."""


def explain_command(error: Any, commands: Sequence[str], typed: Sequence[str]) -> Any:
    """Return the *error* of an unknown command with which of *commands* may have been meant by *typed*."""
    from sim.check.files import kind_of

    message = getattr(error, "message", "")
    if not message.startswith("No such command") or "Did you mean" in message:
        return error
    if "run" in commands and kind_of(typed[0]):
        names = list(takewhile(lambda word: not word.startswith("-"), typed))
        command = " ".join(["run", *workload_last(names)]) if len(names) == 2 else "run HW WL"
        error.message = f"{message.rstrip('.')}; names follow a command, such as {command}"
    elif len(commands) <= _FEW:
        error.message = f"{message.rstrip('.')}; write {any_of(commands)}"
    return error


def refuse_empty(command: Any, context: Any, typed: Sequence[str]) -> None:
    """Raise SpecError if *typed* has an empty path or name after an option: an empty path would mean the current folder."""
    if "" not in typed and not any(word.endswith("=") for word in typed):
        return
    values, _, _ = command.make_parser(context).parse_args(list(typed))
    for parameter in command.get_params(context):
        option = max(parameter.opts, key=len)
        due = "a name" if option == "--name" else _PATHS.get(parameter.metavar)
        if due and values.get(parameter.name) == "":
            raise SpecError(f"{option} '': write {due}{'' if parameter.required else ', or leave it out'}")


def refuse_repeated(command: Any, context: Any, typed: Sequence[str]) -> None:
    """Raise SpecError if *typed* has an option with a value twice that takes one: all values but the last would be ignored."""
    options = [word for word in typed if word.startswith("-")]
    if len(options) < 2:
        return
    _, _, order = command.make_parser(context).parse_args(list(typed))
    for parameter in dict.fromkeys(order):
        repeats = order.count(parameter)
        if repeats < 2 or parameter.param_type_name != "option" or parameter.multiple or parameter.count or _is_switch(parameter):
            continue
        option = max(parameter.opts, key=len)
        raise SpecError(f"{option}: appears {'twice' if repeats == 2 else f'{repeats} times'}, but takes one value; write it once")


def refuse_unquoted(command: Any, context: Any, typed: Sequence[str]) -> None:
    """Raise SpecError if *typed* has a number and its unit as two words after an option, as the shell divides them without quotes."""
    for name, value, unit in zip(typed, typed[1:], typed[2:], strict=False):
        written = name.startswith("--") and _NUMBER_AT_END.fullmatch(value) and any(unit in units for units in UNITS.values())
        if written and not _is_count(name, command, context):
            key, equals, number = value.rpartition("=")
            raise SpecError(f"{name} {value} {unit}: a number with its unit is one word; write {name} {key}{equals}'{number} {unit}'")


def _is_count(name: str, command: Any, context: Any) -> bool:
    """Return whether the option *name* takes a number without a unit, by its help."""
    shown = (parameter.get_help_record(context)[0] for parameter in command.get_params(context) if name in parameter.opts)
    return any(re.search(r" (<(int|float)|N\b)", text) for text in shown)


_NUMBER_AT_END: Final = re.compile(r"(?:[^=]+=)?\d[\d.,]*(?:\.\.\d[\d.,]*)?")


def _is_switch(parameter: Any) -> bool:
    """Return whether an option only turns something on, so that repeating it changes nothing."""
    return bool(parameter.is_flag and not parameter.secondary_opts)


_PATHS: Final = {"FILE": "the path of a file", "FILE.html": "the path of an HTML page", "DIR": "the path of a folder"}
"""What to write for an option, by its placeholder."""


def _value_of(error: Any, command: Any, context: Any, typed: Sequence[str]) -> str | None:
    """Return the value that caused *error*, after its option if it has one; None if another mistake did, such as a missing argument."""
    parameter = getattr(error, "param", None)
    if parameter is None:
        return None
    values, _, _ = command.make_parser(context).parse_args(list(typed))
    value = values.get(parameter.name)
    if not isinstance(value, str):
        return None
    return f"{max(parameter.opts, key=len)} {value}" if parameter.param_type_name == "option" else value


def _explain_flag_value(error: Any, command: Any, context: Any, typed: Sequence[str]) -> Any:
    """Return the *error* of a surplus argument, explained if it was typed after an option that takes no value."""
    flags = {name for parameter in command.get_params(context) if getattr(parameter, "is_flag", False) for name in parameter.opts}
    for option, value in pairwise(typed):
        if option in flags and value in error.message:
            instead = "it prints to stdout; to write a file, add > FILE after the command" if option == "--json" else "leave the value out"
            error.message = f"{option} {value}: {option} takes no value; {instead}"
            return error
    if command.name == "run":
        error.message += "; run takes one machine and one workload: 'compare' takes several machines, and a jobs file several workloads"
    return error


def order_of_names(command: Any, context: Any) -> str:
    """Return the usage of a *command* whose arguments are machines and workloads; empty if it takes neither."""
    names = [piece for piece in command.collect_usage_pieces(context) if piece != "[OPTIONS]"]
    return " ".join((command.name, *names)) if any(name.strip("[].") in ("HW", "WL") for name in names) else ""


def _with_words(error: Any, words: str) -> Any:
    error.message, error.possibilities = f"{error.message}; {words}", []
    return error


def _commands_with(option: str, context: Any) -> list[str]:
    """Return the other commands of the program that have *option*."""
    group = context.parent and context.parent.command
    if not hasattr(group, "list_commands"):
        return []
    commands = {name: group.get_command(context.parent, name) for name in group.list_commands(context.parent)}
    return [
        name
        for name, command in commands.items()
        if name != context.info_name and any(option in parameter.opts for parameter in command.get_params(context))
    ]
