"""Which options have the command line and Python in common? Each is declared here once: its type, default, meaning and bounds.

A command takes a group of them as a parameter (`sim.commands.options.takes_options`), a function as ``**options: Unpack[Group]``
(`keywords`); both pass its values on by name, so that an option more is a line here. What is a text on a command line and an object in
Python (``--set``, ``--nodes 1..8``, ``--parallel``, ``--prices``) are two options, declared where they are read.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from functools import cache, wraps
from types import MappingProxyType
from typing import Annotated, Any, Literal, NamedTuple, ParamSpec, TypedDict, TypeVar, get_origin, get_type_hints

P = ParamSpec("P")
T = TypeVar("T")


class OptionTerms(NamedTuple):
    """What there is to say of an option beside its name and type."""

    help: str
    default: Any = None
    least: int | None = None
    metavar: str | None = None
    words: str | Sequence[str] = ()
    """What completes it in a shell: a function of `sim.commands.names`, or words."""
    flag: str = ""
    """What is typed, where that is not its name with dashes."""
    typed: Any = None
    """Its type on a command line, where that is another."""
    switch: bool = False
    """It is off unless it is written, with no form that denies it."""


class DescriptionOptions(TypedDict, total=False):
    """What is changed about the descriptions."""

    precision: Annotated[str | None, OptionTerms("fp32, tf32, amp_fp16, amp_bf16, fp16, bf16, fp8 or nvfp4", words="precisions")]
    fp8_recipe: Annotated[
        str | None, OptionTerms("with fp8: delayed, tensorwise, rowwise, blockwise or mxfp8; else as the stack does", words="fp8_recipes")
    ]
    stack: Annotated[str | None, OptionTerms("software stack: a file or a name in workloads/stacks/", words="stacks")]


class SampleOptions(TypedDict, total=False):
    """What a sample is."""

    sequence: Annotated[int | None, OptionTerms("tokens per sample, for models described by their transformer", least=1, metavar="N")]


class GlobalBatchOptions(TypedDict, total=False):
    """How much all GPUs take in a step."""

    global_batch: Annotated[int | None, OptionTerms("samples per step of all GPUs together (strong scaling)", least=1)]


class StepOptions(DescriptionOptions, SampleOptions, GlobalBatchOptions, total=False):
    """What is trained."""


class BatchOptions(DescriptionOptions, total=False):
    """And how much a GPU takes at a time."""

    batch: Annotated[int | None, OptionTerms("samples per GPU", least=1)]


class SizeOptions(StepOptions, BatchOptions, total=False):
    """All of that."""


class PlacementOptions(TypedDict, total=False):
    """On which GPUs of a node."""

    placement: Annotated[str | None, OptionTerms("GPUs on each node in turn", metavar="1+2")]


class GpuOptions(TypedDict, total=False):
    """On how many GPUs."""

    gpus: Annotated[int | None, OptionTerms("total number of GPUs", least=1)]


class MarketOptions(TypedDict, total=False):
    """What a machine costs."""

    market: Annotated[
        str, OptionTerms("which price to use: on-demand or spot", "on-demand", metavar="on-demand|spot", words=("on-demand", "spot"))
    ]


class LifetimeOptions(TypedDict, total=False):
    """How long spot machines last."""

    mean_lifetime: Annotated[
        str | None, OptionTerms("mean time to interruption of a spot machine, instead of measured data", metavar="TIME")
    ]


class PowerOptions(TypedDict, total=False):
    """What GPUs may draw."""

    power_cap: Annotated[str | None, OptionTerms("power limit of each GPU, such as '500 W': slower steps, less energy", metavar="W")]


class FailureOptions(TypedDict, total=False):
    """Whether machines fail."""

    with_failures: Annotated[bool, OptionTerms("include machine failures, simulated as in `goodput`", False, switch=True)]
    reliability: Annotated[
        str | None, OptionTerms("how often machines fail, with --with-failures [middle]", metavar="low|middle|high|FILE")
    ]


class SpareOptions(FailureOptions, total=False):
    """And what waits for failures."""

    spares: Annotated[int | None, OptionTerms("warm spare nodes with --with-failures, as in `goodput`", least=0)]


class TokenOptions(TypedDict, total=False):
    """How long the whole job is."""

    tokens: Annotated[str | None, OptionTerms("tokens of the whole job, such as 300B: its time and cost", metavar="N")]


class WholeJobOptions(TokenOptions, total=False):
    """How long the whole job is, in other words too, and what it does between epochs."""

    epochs: Annotated[float | None, OptionTerms("epochs to train: shows time and cost of the whole job")]
    hours: Annotated[float | None, OptionTerms("hours to train: shows how many epochs fit, and the cost")]
    evaluation: Annotated[float, OptionTerms("samples evaluated after each epoch, relative to the training samples (0 to 1)", 0.0)]
    checkpoints: Annotated[bool, OptionTerms("write a checkpoint after each epoch", True)]


class BesideOptions(SpareOptions, PowerOptions, total=False):
    """What `sim.report.beside` shows next to a run."""

    store: Annotated[
        str | None, OptionTerms("also simulate steps while a checkpoint is written there", metavar="NAME|FILE|disk", words="stores")
    ]


class SimulationOptions(StepOptions, total=False):
    """What is simulated by ``run``, and how; its batch may also be the largest."""

    seed: Annotated[int, OptionTerms("random seed, used only with training.noise.draw: true", 0)]
    exact: Annotated[
        bool,
        OptionTerms(
            "simulate every step instead of skipping whole periods; layouts: ranks by themselves below uneven switches", False, switch=True
        ),
    ]


class RunOptions(SimulationOptions, WholeJobOptions, MarketOptions, BesideOptions, total=False):
    """``run``, with a layout or without."""


class PlainRunOptions(RunOptions, PlacementOptions, total=False):
    """``run`` without a layout."""


class CompareOptions(SizeOptions, WholeJobOptions, MarketOptions, PowerOptions, total=False):
    """``compare``."""

    sort: Annotated[str, OptionTerms("time, cost, step or name", "time")]


class RentingOptions(LifetimeOptions, FailureOptions, PowerOptions, total=False):
    """Among what ``recommend`` chooses."""

    on_demand: Annotated[bool, OptionTerms("consider on-demand prices only", False, switch=True)]
    spares: Annotated[
        int | None, OptionTerms("warm spare nodes with --with-failures; by default 5% of the nodes, none below 20 nodes", least=0)
    ]


class RecommendOptions(SizeOptions, WholeJobOptions, RentingOptions, total=False):
    """``recommend``."""

    budget_hours: Annotated[float | None, OptionTerms("time budget: recommends the cheapest machine that meets it")]
    budget_usd: Annotated[float | None, OptionTerms("money budget: recommends the fastest machine within it")]


class PlanOptions(StepOptions, TokenOptions, SpareOptions, PowerOptions, total=False):
    """``plan``."""

    gpus: Annotated[int | None, OptionTerms("total number of GPUs, on as many nodes as they need unless --nodes is given", least=1)]
    objective: Annotated[
        Literal["time", "cost", "energy"],
        OptionTerms("minimize the time of a step, its cost, or its energy", "time", metavar="time|cost|energy", typed=str),
    ]
    max_memory: Annotated[
        float | str | None, OptionTerms("GPU memory that a layout may need, for example 70GiB", metavar="SIZE", typed=str | None)
    ]
    simulate: Annotated[int, OptionTerms("simulate at most this many layouts", 200, least=1)]
    sensitivity: Annotated[bool, OptionTerms("also find what wins with slower NICs, longer sequences, smaller batches", False, switch=True)]


class PointOptions(BatchOptions, PowerOptions, total=False):
    """What the points of ``sweep`` have in common."""

    seed: Annotated[int, OptionTerms("random seed of the Sobol sequence and of every run", 0)]


class SweepOptions(PointOptions, total=False):
    """``sweep``."""

    sobol: Annotated[int | None, OptionTerms("N points of a Sobol sequence instead of the whole grid", metavar="N")]


class TrainingOptions(SizeOptions, GpuOptions, total=False):
    """What is simulated on a number of GPUs."""


class WhatifOptions(TrainingOptions, PlacementOptions, total=False):
    """``whatif``."""


class ProfileOptions(BatchOptions, SampleOptions, total=False):
    """``profile``."""


class GoodputOptions(TrainingOptions, MarketOptions, total=False):
    """``goodput``; `sim.study.weeks.Weeks` says how the weeks go."""


class Declared(NamedTuple):
    """The type of an option in Python, and the rest."""

    type: Any
    option: OptionTerms


@cache
def options_of(group: type) -> Mapping[str, Declared]:
    """Return the options of *group*, by name: of a dataclass, defaults are those of its fields."""
    hints = get_type_hints(group, include_extras=True)
    declared = {name: Declared(hint.__origin__, hint.__metadata__[0]) for name, hint in hints.items() if get_origin(hint) is Annotated}
    defaults = {field.name: field.default for field in fields(group)} if is_dataclass(group) else {}
    for name in declared.keys() & defaults.keys():
        declared[name] = declared[name]._replace(option=declared[name].option._replace(default=defaults[name]))
    return MappingProxyType(declared)


def part(options: Mapping[str, Any], group: type) -> dict[str, Any]:
    """Return those of *options* that are of *group*."""
    return {name: options[name] for name in options_of(group) if name in options}


def tells(*groups: type) -> Callable[[T], T]:
    """Return what writes the options of *groups* into signature and help of a function, whose last parameter ``**options`` takes them."""

    def decorated(function: T) -> T:
        signature = inspect.signature(function)  # type: ignore[arg-type]
        *own, rest = signature.parameters.values()
        assert rest.kind is inspect.Parameter.VAR_KEYWORD
        declared = {name: each for group in groups for name, each in options_of(group).items() if name not in signature.parameters}
        shared = [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=each.option.default, annotation=each.type)
            for name, each in declared.items()
        ]
        lines = [f"- *{name}*: {each.option.help}" for name, each in declared.items()]
        function.__dict__["__signature__"] = signature.replace(parameters=[*own, *shared])
        function.__doc__ = "\n".join([f"{inspect.getdoc(function)}\n\nOptions as of the command:\n", *lines])
        return function

    return decorated


def keywords(group: type) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Return what gives a function the options of *group* as ``**options``, those that are left out with their defaults."""

    def decorated(function: Callable[P, T]) -> Callable[P, T]:
        told = tells(group)(function)
        signature = inspect.signature(told)
        defaults = {name: each.option.default for name, each in options_of(group).items()}

        @wraps(told)
        def called(*args: P.args, **given: P.kwargs) -> T:
            signature.bind(*args, **given)  # as Python does: TypeError for a keyword that is not there
            return told(*args, **(defaults | given))

        return called

    return decorated
