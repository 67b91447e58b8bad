"""How is ``--help`` laid out? Options and commands under headings, two examples, and the program named as it was called."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from importlib import import_module
from typing import Any, Final, TypeVar

import typer
from typer.core import TyperCommand, TyperGroup

from sim.commands.order import what_is_missing, workload_last
from sim.commands.words import explain_command, explain_error, order_of_names, refuse_empty, refuse_repeated, refuse_unquoted
from sim.spec.yaml import SpecError
from sim.terminal import SCRIPTS, named_as_called, program

T = TypeVar("T")

HEADINGS: Final[Mapping[str, str]] = {
    "Job": "--batch --global-batch --sequence --precision --fp8-recipe --stack --set --epochs --hours --tokens --days --steps "
    "--evaluation --checkpoints --seed --exact --op --bytes --shares --compute-time --dataset --input --example --arg --from --name "
    "--model --models --workload",
    "Layout": "--tp --pp --cp --ep --replicate --shard --wrap --micro-batches --schedule --parallel --group --stage",
    "Machine": "--nodes --gpus --placement --power-cap --workers --where --hardware --hardware-dir --workload-dir --twin --from-topo --gpu "
    "--cpu --nic-bandwidth --transport --memory --algo --proto --channels --per-process --nccl --device --ranks --folder",
    "Money": "--market --price --prices --on-demand --budget-hours --budget-usd --today --refresh --date --region",
    "Failures": "--with-failures --mean-lifetime --reliability --failure-rate --failure-law --checkpoint --store --checkpoint-interval "
    "--spares --repair --elastic --in-place --new-fleet --trials",
    "Search": "--objective --max-memory --fix --allow --simulate --sensitivity --vary --sobol --policy --sort --fast --literal --jobs "
    "--cluster --predictor --no-leave-out --left-out --refit --only --again --quick --limit",
    "Output": "--all --json --csv --output --html --trace --export --journal --verbose --layers --force --plot --score --list --record "
    "--fail-if --workload-out --write --by --port --open --show-completion --install-completion",
    "Other": "--version --debug --quiet --help",
}
"""The options under each heading, in the order of the headings; a name means the same in every command."""

_TYPES: Final = {"str": "TEXT", "path": "FILE", "int": "N", "int range": "N", "float": "X", "float range": "X"}
"""Placeholder for a value by its type, if the option does not specify one."""


def under_headings(entries: Mapping[str, T], headings: Mapping[str, str], rest: str) -> dict[str, dict[str, T]]:
    """Return *entries* grouped under *headings*, in the order of headings; entries without a heading come under *rest*."""
    ungrouped = dict(entries)
    grouped = {heading: {name: ungrouped.pop(name) for name in names.split() if name in ungrouped} for heading, names in headings.items()}
    grouped[rest] = grouped.get(rest, {}) | ungrouped
    return {heading: inside for heading, inside in grouped.items() if inside}


def _help_record(parameter: Any, context: Any) -> tuple[str, str]:
    """Return the names and the help text of *parameter*, without redundant words about its type."""
    names, text = parameter.get_help_record(context)
    names = re.sub(r" <(\w+(?: range)?)>", lambda match: f" {_TYPES.get(match[1], match[1].upper())}", names)
    if parameter.param_type_name == "argument":
        names = names.split(" ")[0]
    text = re.sub(r"x>=[01](?:; )?|required(?=\])|default: (?:0\.0|none)(?:; )?", "", text, flags=re.IGNORECASE)
    return names, re.sub(r"; \]", "]", text).replace("[]", "").rstrip()


def option_groups(command: Any, context: Any) -> dict[str, dict[str, tuple[str, str]]]:
    """Return the options of *command* by heading: name to (spelling, help)."""
    options = {
        max(parameter.opts, key=len): _help_record(parameter, context)
        for parameter in _shown_parameters(command, context)
        if parameter.param_type_name == "option" and not parameter.hidden
    }
    return under_headings(options, HEADINGS, "Other")


def _shown_parameters(command: Any, context: Any) -> list[Any]:
    """Return the parameters that the help of *command* shows: all, or those of the kind that was typed before --help."""
    other_kind = getattr(command, "options_of_other_kind", lambda _: ())(context)
    return [parameter for parameter in command.get_params(context) if not set(parameter.opts) & set(other_kind)]


def argument_rows(command: Any, context: Any) -> list[tuple[str, str]]:
    """Return (name, help) of each argument of *command*."""
    return [_help_record(parameter, context) for parameter in command.get_params(context) if parameter.param_type_name == "argument"]


def command_groups(group: Any, context: Any) -> dict[str, dict[str, Any]]:
    """Return the commands of *group* by heading and name."""
    commands = {name: group.get_command(context, name) for name in group.list_commands(context)}
    return under_headings({name: command for name, command in commands.items() if not command.hidden}, group.headings, "Commands")


def _write_options(command: Any, context: Any, formatter: Any) -> None:
    rows = {"Arguments": argument_rows(command, context)}
    rows |= {heading: list(inside.values()) for heading, inside in option_groups(command, context).items()}
    for heading, inside in rows.items():
        if inside:
            with formatter.section(heading):
                formatter.write_dl(inside, col_max=26)


def write_examples(examples: str | None, formatter: Any) -> None:
    """Write the *examples* line by line, because a wrapped example could not be copied."""
    if examples:
        formatter.write("\n")
        for line in named_as_called(examples).splitlines():
            formatter.write(f"{line}\n")


class Command(TyperCommand):
    """A command whose options are grouped under headings."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse *args*; for an unknown option, add what may have been meant to the error."""
        typed = list(args)
        try:
            refuse_empty(self, ctx, typed)
            refuse_repeated(self, ctx, typed)
            refuse_unquoted(self, ctx, typed)
            rest = super().parse_args(ctx, args)
        except Exception as error:
            raise explain_error(error, self, ctx, typed) from None
        if not ctx.resilient_parsing:  # completion of a command line that is not complete yet
            _put_in_order(self, ctx)
        return rest

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Return the usage after the name of the command: arguments and required options; brackets mark optional ones."""
        arguments = [parameter for parameter in self.get_params(ctx) if parameter.param_type_name == "argument"]
        needed = [parameter for parameter in self.get_params(ctx) if parameter.param_type_name == "option" and parameter.required]
        return [*(_usage(parameter, ctx) for parameter in arguments), *(_usage(parameter, ctx) for parameter in needed), "[OPTIONS]"]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write arguments and options, heading by heading."""
        _write_options(self, ctx, formatter)

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        """Write the examples."""
        write_examples(self.epilog, formatter)


def _put_in_order(command: Any, context: Any) -> None:
    """Exchange the values of the arguments HW and WL (or JOBS) of *context* if the user typed the workload first."""
    arguments = {parameter.name for parameter in command.get_params(context) if parameter.param_type_name == "argument"}
    last = "jobs" if "jobs" in arguments else "workload"
    hardware, workload = context.params.get("hardware"), context.params.get(last)
    if not {"hardware", last} <= arguments or not workload:
        return
    names = [*([hardware] if isinstance(hardware, str) else hardware or ()), workload]
    if last == "workload" and (lacking := what_is_missing(names)):
        raise SpecError(f"{lacking}: {order_of_names(command, context)}")
    *machines, context.params[last] = workload_last(names)
    context.params["hardware"] = machines[0] if isinstance(hardware, str) else machines


def _usage(parameter: Any, context: Any) -> str:
    name = _help_record(parameter, context)[0].split(", ")[0 if parameter.param_type_name == "argument" else -1].strip("[]")
    return name if parameter.required else f"[{name}]"


class Commands(MutableMapping[str, Any]):
    """The commands of *program* by name: those *made* by typer already, and those of its modules, which are made on first access."""

    def __init__(self, program: CommandLine, registered: Mapping[str, Any]) -> None:
        self._program, self._made = program, dict(registered)

    def __getitem__(self, name: str) -> Any:
        if name not in self._made:
            self._made[name] = self._program.import_command(name)
        return self._made[name]

    def __setitem__(self, name: str, command: Any) -> None:
        self._made[name] = command

    def __delitem__(self, name: str) -> None:
        del self._made[name]

    def __iter__(self) -> Iterator[str]:
        return iter(dict.fromkeys((*self._program.modules, *self._made)))

    def __len__(self) -> int:
        return sum(1 for _ in self)


class HeadedGroup(TyperGroup):
    """A program whose commands are grouped under headings."""

    program: CommandLine
    headings: Mapping[str, str] = {}

    def __init__(self, **settings: Any) -> None:
        """Take the same *settings* as typer's class."""
        super().__init__(**settings)
        self.commands: Any = Commands(self.program, self.commands)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the command that *args* begin with; the error for an unknown one says what may have been meant."""
        try:
            return super().resolve_command(ctx, args)
        except Exception as error:
            raise explain_command(error, list(self.commands), args) from None

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the commands, then the options."""
        for heading, commands in command_groups(self, ctx).items():
            rows = [(name, (command.help or "").split("\n\n")[0].replace("\n", " ")) for name, command in commands.items()]
            with formatter.section(heading):
                formatter.write_dl(rows)
        _write_options(self, ctx, formatter)

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        """Write the examples."""
        write_examples(self.epilog, formatter)


class CommandLine(typer.Typer):
    """A command line with one layout for all its help."""

    def __init__(self, headings: Mapping[str, str] | None = None, modules: Mapping[str, str] | None = None, **settings: Any) -> None:
        """Group commands under *headings*, and all others under "Commands"; *settings* are typer's.

        *modules* maps commands to the modules that register them; a module is imported when its command is first needed.
        """
        self.modules = modules or {}
        self._commands: list[Any] = []
        self._groups: list[Any] = []
        self._imported: dict[str, Any] = {}
        context = {"help_option_names": ["-h", "--help"], "max_content_width": 100}
        fixed = {"no_args_is_help": True, "pretty_exceptions_enable": False, "rich_markup_mode": None}
        settings.setdefault("add_completion", program() in SCRIPTS.values())
        group = type("Group", (HeadedGroup,), {"headings": headings or {}, "program": self})
        super().__init__(cls=group, context_settings=context, **(fixed | settings))

    def command(self, name: str | None = None, **settings: Any) -> Callable[[Any], Any]:
        """Register a command as typer does, but with this layout."""
        return super().command(name, **({"cls": Command} | settings))

    def import_command(self, name: str) -> Any:
        """Return the command *name*, for which its module is imported at the first call. Raise KeyError if there is none."""
        if name not in self._imported:
            self._imported[name] = self._import(name)
        return self._imported[name]

    def _import(self, name: str) -> Any:
        import_module(self.modules[name])
        self._commands, self.registered_commands = self._commands + self.registered_commands, []
        self._groups, self.registered_groups = self._groups + self.registered_groups, []
        single = typer.Typer(rich_markup_mode=None)
        single.callback()(lambda: None)
        single.registered_commands = [
            registered for registered in self._commands if name == (registered.name or getattr(registered.callback, "__name__", ""))
        ]
        single.registered_groups = [registered for registered in self._groups if registered.name == name]
        return typer.main.get_group(single).commands[name]


def walk_commands(command: Any, context: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any, Any]]:
    """Yield each command below *command*, as the names that lead to it, the command itself, and the context for its help."""
    if not hasattr(command, "commands"):
        yield path, command, context
        return
    for inside in command_groups(command, context).values():
        for name, below in inside.items():
            yield from walk_commands(below, below.context_class(below, info_name=name, parent=context), (*path, name))
