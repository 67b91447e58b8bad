"""How do commands declare shared options? Options that the Python API has too are declared in `sim.study.options`, the others here."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from dataclasses import is_dataclass
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, Final, get_type_hints, is_typeddict

import typer

from sim.commands import names
from sim.report.files import file_due, folder_due, page_due, with_ending
from sim.spec.own_prices import prices_from_options
from sim.spec.parallel import SCHEDULES
from sim.spec.yaml import SpecError
from sim.study.job_length import require_length
from sim.study.layout_options import layout_of
from sim.study.options import DeclaredOption, arguments_of, options_of
from sim.units import any_of

Hw = Annotated[
    str, typer.Argument(metavar="HW", help="hardware: a YAML file or a catalog name such as p3.16xlarge", autocompletion=names.hardware)
]
Wl = Annotated[
    str, typer.Argument(metavar="WL", help="workload: a YAML file or a catalog name such as vgg16", autocompletion=names.workloads)
]
Machines = Annotated[
    list[str],
    typer.Argument(metavar="HW...", help="machines to compare; all single machines of the catalog by default", autocompletion=names.either),
]
Sets = Annotated[
    list[str], typer.Option("--set", metavar="K=V", help="override any field, for example node.nic.bandwidth='100 Gbps'; repeatable")
]
WhereOption = Annotated[
    list[str],
    typer.Option("--where", metavar="COND", help="machines of the catalog, such as gpus=8 or provider=aws,gcp; repeatable"),
]
NodesOption = Annotated[str | None, typer.Option("--nodes", metavar="N", help="number of nodes (machines)")]
NodeCount = Annotated[int | None, typer.Option(min=1, help="number of nodes (machines)")]
Nodes = Annotated[
    str | None,
    typer.Option(
        metavar="N|A..B[:n]",
        help="number of nodes (machines); a range doubles: 1..8 tries 1, 2, 4 and 8, and 3..5 tries 3 and 5; 3..5:3 tries 3, 4 and 5",
    ),
]
PricesOption = Annotated[str, typer.Option("--prices", metavar="NAME", help="your own price source, instead of the prices in descriptions")]
MachinePrices = Annotated[
    list[str],
    typer.Option(
        "--price",
        metavar="MACHINE=PRICE",
        help="your price for one machine, such as a reserved one: p4d.24xlarge='14.90 USD/h'; repeatable",
    ),
]
Processes = Annotated[int | None, typer.Option("--jobs", min=1, help="number of processes; all cores by default")]
ClusterOption = Annotated[str | None, typer.Option(metavar="dask://HOST:PORT", help="compute on the workers of this dask scheduler")]


def _only_format(ctx: typer.Context, value: bool) -> bool:
    """Return *value*, whether a result is printed as JSON or as CSV. Raise SpecError if both are requested, before anything is computed."""
    if value and (ctx.params.get("as_json") or ctx.params.get("as_csv")):
        raise SpecError("--json and --csv: write one of the two")
    return value


JsonOption = Annotated[bool, typer.Option("--json", callback=_only_format, help="print only one JSON document on stdout")]
Csv = Annotated[bool, typer.Option("--csv", callback=_only_format, help="print CSV on stdout")]
HtmlOption = Annotated[
    Path | None, typer.Option(metavar="FILE.html", callback=page_due, help="also write the result as one HTML page that opens offline")
]
Folder = Annotated[
    Path | None,
    typer.Option(
        "-o", "--output", metavar="DIR", callback=folder_due, help="also write the table, JSON, CSV, HTML page and any plots to this folder"
    ),
]

LayoutFields = tuple[tuple[str, str, str | int], ...]
"""Fields of ``training`` that define the layout of the model: (option, key, value)."""
LAYOUT: Final[dict[str, Any]] = {
    "tensor": Annotated[int | None, typer.Option("--tp", min=1, help="tensor-parallel ranks")],
    "pipeline": Annotated[int | None, typer.Option("--pp", min=1, help="pipeline stages")],
    "context": Annotated[int | None, typer.Option("--cp", min=1, help="context-parallel ranks")],
    "expert": Annotated[int | None, typer.Option("--ep", min=1, help="expert-parallel ranks")],
    "replicate": Annotated[int | None, typer.Option("--replicate", min=1, help="replicas of a sharded model (HSDP)")],
    "shard": Annotated[
        str | None,
        typer.Option(
            "--shard",
            metavar="none|optimizer|gradients|parameters",
            help="what data-parallel ranks shard (ZeRO, FSDP)",
            autocompletion=names.complete_words("none", "optimizer", "gradients", "parameters"),
        ),
    ],
    "wrap": Annotated[
        str | None,
        typer.Option(
            "--wrap",
            metavar="PATTERN+...|min_params=N",
            help="modules that FSDP gathers separately: path patterns such as 'layer*.*', or min_params=100M",
        ),
    ],
    "micro_batches": Annotated[int | None, typer.Option("--micro-batches", min=1, help="micro-batches per step (gradient accumulation)")],
    "schedule": Annotated[
        str | None,
        typer.Option(
            "--schedule",
            help=f"{any_of(SCHEDULES)}, or one of your own",
            autocompletion=names.complete_words(*SCHEDULES),
        ),
    ],
    "parallel": Annotated[
        list[str],
        typer.Option(
            "--parallel",
            metavar="K=N,...",
            help="all of these in one option, and others such as virtual_stages or reshard_after_forward; for example tp=8,pp=4",
        ),
    ],
}
"""Options that define the layout of a model, by the parameter of `layout_of` that each one sets."""


def annotated_option(name: str, declared: DeclaredOption) -> Any:
    """Return the option *name* in Typer's notation."""
    option = declared.option
    words = option.words
    completed = getattr(names, words) if isinstance(words, str) else names.complete_words(*words) if words else None
    flags = (option.flag or f"--{name.replace('_', '-')}",) if option.flag or option.switch else ()
    typer_option = typer.Option(*flags, min=option.least, metavar=option.metavar, help=option.help, autocompletion=completed)
    return Annotated[declared.type if option.typed is None else option.typed, typer_option]


def takes_options(command: Callable[..., None], layout: Iterable[str] = LAYOUT) -> Callable[..., None]:
    """Decorate *command*: replace each parameter whose type is a group of `sim.study.options` by the options of that group.

    A parameter ``layout`` is replaced by the options of `LAYOUT` named in *layout*. When called, *command* gets each group with the values
    of its options, and ``layout`` with the fields that the layout options set.
    """
    signature = inspect.signature(command)
    hints = get_type_hints(command, include_extras=True)
    groups = {name: options_of(hints[name]) for name in signature.parameters if is_typeddict(hints[name]) or is_dataclass(hints[name])}
    layout_options = tuple(layout) if "layout" in signature.parameters else ()
    parameters: list[inspect.Parameter] = []
    for name, parameter in signature.parameters.items():
        if name == "layout":
            parameters += [
                parameter.replace(name=option, default=[] if option == "parallel" else None, annotation=LAYOUT[option])
                for option in layout_options
            ]
        elif name in groups:
            parameters += [
                parameter.replace(name=argument, default=declared.option.default, annotation=annotated_option(argument, declared))
                for argument, option in arguments_of(hints[name]).items()
                for declared in [groups[name][option]]
            ]
        else:
            parameters.append(parameter.replace(annotation=hints[name]))

    @wraps(command)
    def called(**values: Any) -> None:
        grouped = {}
        for name in groups:
            arguments = arguments_of(hints[name])
            grouped[name] = hints[name](**{option: values.pop(argument) for argument, option in arguments.items()})
        if layout_options:
            values["layout"] = layout_of(**{option: values.pop(option) for option in layout_options})
        command(**grouped, **values)

    called.__dict__["__signature__"] = signature.replace(parameters=parameters)
    called.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return called


def takes_mesh(command: Callable[..., None]) -> Callable[..., None]:
    """Decorate *command* like `takes_options`, with the layout options that define the groups of ranks."""
    return takes_options(command, ("tensor", "pipeline", "context", "expert", "replicate", "shard", "parallel"))


def trace_due(path: Path | None) -> Path | None:
    """Return *path* if a trace can be written there: to a JSON file, or a folder if it has no suffix. Raise SpecError otherwise."""
    if path is None or not path.suffix or path.is_dir():
        return folder_due(path)
    if not path.name.endswith((".json", ".json.gz")):
        raise SpecError(f"{path}: a trace is JSON; expected {with_ending(path, '.json')}, {with_ending(path, '.json.gz')} or a folder")
    return file_due(path)


TraceOption = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        callback=trace_due,
        help="also write a Chrome trace of warm steps: .json, .json.gz, or a folder with one file for each group of identical ranks",
    ),
]


def positive(value: float | None, option: str, factor: float = 1.0) -> float | None:
    """Return *value* times *factor*, or None for None. Raise SpecError as `require_length` does."""
    require_length(option, value)
    return None if value is None else value * factor


def prices_due(prices: str, machine_prices: Sequence[str]) -> str:
    """Return the name of the prices that --prices or --price set. Raise SpecError if both do, or for an invalid price."""
    if prices and machine_prices:
        raise SpecError("--prices and --price: write one of the two")
    return prices_from_options(machine_prices) if machine_prices else prices


def check_workers(processes: int | None, cluster: str | None) -> None:
    """Raise SpecError if both are given."""
    if cluster is not None and processes is not None:
        raise SpecError("--jobs and --cluster: write one of the two; a cluster sets its own number of workers")
