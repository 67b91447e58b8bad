"""Which options do the command line and Python share? Each is declared here once: its type, default, meaning and bounds.

A command takes a group of options as a parameter (`sim.commands.options.takes_options`), a function takes it as
``**options: Unpack[Group]`` (`keywords`). Both pass its values on by name, so a new option is one line here. An option that is text on
the command line but an object in Python (``--set``, ``--nodes 1..8``, ``--parallel``, ``--prices``) is declared in both places.
"""

import inspect
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from functools import cache, wraps
from types import MappingProxyType
from typing import Annotated, Any, Final, Literal, NamedTuple, ParamSpec, TypedDict, TypeVar, get_origin, get_type_hints

P = ParamSpec("P")
T = TypeVar("T")


Objective = Literal["time", "cost", "energy"]
"""What a plan minimizes per step."""


class OptionTerms(NamedTuple):
    """Everything about an option except its name and type."""

    help: str
    default: Any = None
    least: int | None = None
    metavar: str | None = None
    words: str | Sequence[str] = ()
    """Completions in a shell: a function of `sim.commands.names`, or words."""
    flag: str = ""
    """The flag to type, if that is not its name with dashes."""
    typed: Any = None
    """Its type on the command line, if that differs."""
    switch: bool = False
    """Off unless given, without a negated form."""


_POWER_CAP: Final = OptionTerms("power limit of each GPU, such as '500 W': slower steps, less energy", metavar="W")


class DescriptionOptions(TypedDict, total=False):
    """Changes to the descriptions."""

    precision: Annotated[str | None, OptionTerms("fp32, tf32, amp_fp16, amp_bf16, fp16, bf16, fp8 or nvfp4", words="precisions")]
    fp8_recipe: Annotated[
        str | None, OptionTerms("with fp8: delayed, tensorwise, rowwise, blockwise or mxfp8; by default the stack's", words="fp8_recipes")
    ]
    stack: Annotated[str | None, OptionTerms("software stack: a file or a name in workloads/stacks/", words="stacks")]


class SampleOptions(TypedDict, total=False):
    """The size of a sample."""

    sequence: Annotated[int | None, OptionTerms("tokens per sample, for models described by their transformer", least=1, metavar="N")]


class GlobalBatchOptions(TypedDict, total=False):
    """Samples of all GPUs in a step."""

    global_batch: Annotated[int | None, OptionTerms("samples per step of all GPUs together (strong scaling)", least=1)]


class StepOptions(DescriptionOptions, SampleOptions, GlobalBatchOptions, total=False):
    """What is trained in a step."""


class BatchOptions(DescriptionOptions, total=False):
    """Changes to the descriptions, and the batch of a GPU."""

    batch: Annotated[int | None, OptionTerms("samples per GPU", least=1)]


class SizeOptions(StepOptions, BatchOptions, total=False):
    """What is trained in a step, and the batch of a GPU."""


class PlacementOptions(TypedDict, total=False):
    """Which GPUs of each node are used."""

    placement: Annotated[str | None, OptionTerms("GPUs on each node in turn", metavar="1+2")]


class GpuOptions(TypedDict, total=False):
    """How many GPUs are used."""

    gpus: Annotated[int | None, OptionTerms("total number of GPUs; if one machine has fewer, add --nodes", least=1)]


class MarketOptions(TypedDict, total=False):
    """Which prices apply."""

    market: Annotated[
        str, OptionTerms("which price to use: on-demand or spot", "on-demand", metavar="on-demand|spot", words=("on-demand", "spot"))
    ]


class LifetimeOptions(TypedDict, total=False):
    """How long spot machines last."""

    mean_lifetime: Annotated[
        str | None, OptionTerms("mean time to interruption of a spot machine, instead of measured data", metavar="TIME")
    ]


class PowerOptions(TypedDict, total=False):
    """The power limit of GPUs."""

    power_cap: Annotated[str | None, _POWER_CAP]


class FailureOptions(TypedDict, total=False):
    """Whether machines fail."""

    with_failures: Annotated[bool, OptionTerms("include machine failures, simulated as in `goodput`", False, switch=True)]
    reliability: Annotated[
        str | None, OptionTerms("how often machines fail, with --with-failures [middle]", metavar="low|middle|high|FILE")
    ]


class SpareOptions(FailureOptions, total=False):
    """Whether machines fail, and the spares for that."""

    spares: Annotated[int | None, OptionTerms("warm spare nodes with --with-failures, as in `goodput`", least=0)]


class TokenOptions(TypedDict, total=False):
    """The length of the whole job in tokens."""

    tokens: Annotated[str | None, OptionTerms("tokens of the whole job, such as 300B: shows its time and cost", metavar="N")]


class WholeJobOptions(TokenOptions, total=False):
    """The length of the whole job in any unit, and what it does between epochs."""

    epochs: Annotated[float | None, OptionTerms("epochs to train: shows time and cost of the whole job")]
    hours: Annotated[float | None, OptionTerms("hours to train: shows how many epochs fit, and the cost")]
    evaluation: Annotated[float, OptionTerms("samples evaluated after each epoch, relative to the training samples (0 to 1)", 0.0)]
    checkpoints: Annotated[bool, OptionTerms("write a checkpoint after each epoch", True)]


class ExtrasOptions(SpareOptions, PowerOptions, total=False):
    """What `sim.report.extras` shows next to a run."""

    store: Annotated[
        str | None, OptionTerms("also simulate steps while a checkpoint is written there", metavar="NAME|FILE|disk", words="stores")
    ]


class SimulationOptions(StepOptions, total=False):
    """What ``run`` simulates, and how; its ``batch``, which may also be ``max``, is declared separately."""

    seed: Annotated[int, OptionTerms("random seed, used only with training.noise.draw: true", 0, least=0)]
    exact: Annotated[
        bool,
        OptionTerms(
            "simulate every step and micro-batch instead of leaving out those that repeat; for layouts, simulate each rank under uneven "
            "switches",
            False,
            switch=True,
        ),
    ]


class RunOptions(SimulationOptions, WholeJobOptions, MarketOptions, ExtrasOptions, total=False):
    """``run``, with a layout or without."""


class PlainRunOptions(RunOptions, PlacementOptions, total=False):
    """``run`` without a layout."""


class CompareOptions(SizeOptions, WholeJobOptions, MarketOptions, PowerOptions, total=False):
    """``compare``."""

    sort: Annotated[str, OptionTerms("time, cost, step or name", "time")]


class RentingOptions(LifetimeOptions, FailureOptions, PowerOptions, total=False):
    """The machines and markets among which ``recommend`` chooses."""

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
        Objective,
        OptionTerms("minimize the time of a step, its cost, or its energy", "time", metavar="time|cost|energy", typed=str),
    ]
    max_memory: Annotated[
        float | str | None, OptionTerms("GPU memory that a layout may need, for example 70GiB", metavar="SIZE", typed=str | None)
    ]
    simulate: Annotated[int, OptionTerms("simulate at most this many layouts", 200, least=1)]
    sensitivity: Annotated[bool, OptionTerms("also find what wins with slower NICs, longer sequences, smaller batches", False, switch=True)]


class PointOptions(BatchOptions, PowerOptions, total=False):
    """Options common to all points of ``sweep``."""

    seed: Annotated[int, OptionTerms("random seed of the Sobol sequence and of every run", 0, least=0)]


class SweepOptions(PointOptions, total=False):
    """``sweep``."""

    sobol: Annotated[int | None, OptionTerms("N points of a Sobol sequence instead of the whole grid", metavar="N")]


class TrainingOptions(SizeOptions, GpuOptions, total=False):
    """What is trained, and on how many GPUs."""


class WhatifOptions(TrainingOptions, PlacementOptions, total=False):
    """``whatif``."""


class ProfileOptions(BatchOptions, SampleOptions, total=False):
    """``profile``."""


class GoodputOptions(TrainingOptions, MarketOptions, total=False):
    """``goodput``; the options of its weeks are the fields of `Weeks`."""


MODES: Final = ("sync", "async", "tiered")
"""How checkpoints are written: while training waits, during training, or often to the memory of peers and less often to the store."""


@dataclass(frozen=True)
class Weeks:
    """The weeks that ``goodput`` simulates; None leaves a choice to the program."""

    days: Annotated[float | None, OptionTerms("days that the job runs: shows the share of useful work")] = None
    tokens: Annotated[float | None, OptionTerms("tokens of the job, such as 15T: shows time and cost", metavar="N", typed=str | None)] = (
        None
    )
    epochs: Annotated[float | None, OptionTerms("epochs of the job: shows time and cost")] = None
    level: Annotated[
        str, OptionTerms("failure rates of the fleet: a level or a file of rates", flag="--reliability", metavar="low|middle|high|FILE")
    ] = "middle"
    """A name in ``hardware/parts/reliability``, or a file."""
    rate: Annotated[str | None, OptionTerms("failure rate per 8 GPUs, such as '0.0038 /d'", flag="--failure-rate", metavar="RATE")] = None
    """Replaces the rate of the level."""
    mode: Annotated[str, OptionTerms("how checkpoints are written", flag="--checkpoint", metavar="|".join(MODES))] = "async"
    store: Annotated[
        str, OptionTerms("where checkpoints go: hardware/parts/stores, or each node's disk", metavar="NAME|FILE|disk", words="stores")
    ] = "object-store"
    interval: Annotated[
        str, OptionTerms("work between checkpoints; auto finds the best interval", flag="--checkpoint-interval", metavar="auto|TIME")
    ] = "auto"
    spares: Annotated[
        int | None, OptionTerms("warm spare nodes; by default 5% of the nodes, none on one node and for rented jobs below 20", least=0)
    ] = None
    repairs: Annotated[bool, OptionTerms("whether failed nodes are repaired and return", flag="--repair/--no-repair")] = True
    elastic: Annotated[bool, OptionTerms("continue with fewer replicas when no spare is ready", switch=True)] = False
    in_place: Annotated[bool, OptionTerms("restart processes in place, with warm standbys", switch=True)] = False
    new_fleet: Annotated[bool, OptionTerms("a new fleet, in which some GPUs fail early", switch=True)] = False
    mean_lifetime: Annotated[str | None, OptionTerms("mean time to interruption of a spot machine", metavar="TIME")] = None
    """Adds revocations as one more cause of failures."""
    trials: Annotated[int, OptionTerms("number of simulated runs", least=2)] = 2000
    region: Annotated[
        str | None, OptionTerms("region of the power grid, such as us-east-1, europe-north1, FRA; by default the price's region")
    ] = None
    seed: Annotated[int, OptionTerms("random seed of the failures", least=0)] = 0
    law: Annotated[
        str,
        OptionTerms(
            "distribution of times between failures, or your own law",
            flag="--failure-law",
            metavar="exponential|weibull:SHAPE|NAME",
            words=("exponential", "weibull:0.7"),
        ),
    ] = "exponential"
    power_cap: Annotated[str | None, _POWER_CAP] = None


class DeclaredOption(NamedTuple):
    """The type of an option in Python, and its other terms."""

    type: Any
    option: OptionTerms


@cache
def options_of(group: type) -> Mapping[str, DeclaredOption]:
    """Return the options of *group* by name; the defaults of a dataclass are those of its fields."""
    hints = get_type_hints(group, include_extras=True)
    declared = {
        name: DeclaredOption(hint.__origin__, hint.__metadata__[0]) for name, hint in hints.items() if get_origin(hint) is Annotated
    }
    defaults = {field.name: field.default for field in fields(group)} if is_dataclass(group) else {}
    for name in declared.keys() & defaults.keys():
        declared[name] = declared[name]._replace(option=declared[name].option._replace(default=defaults[name]))
    return MappingProxyType(declared)


def arguments_of(group: type) -> Mapping[str, str]:
    """Return the fields of *group* by the arguments that set them, which are named like the flags of the command."""
    flags = {name: each.option.flag.partition("/")[0] for name, each in options_of(group).items()}
    return MappingProxyType({flag.removeprefix("--").replace("-", "_") or name: name for name, flag in flags.items()})


def select_options(options: Mapping[str, Any], group: type) -> dict[str, Any]:
    """Return those of *options* that belong to *group*."""
    return {name: options[name] for name in options_of(group) if name in options}


def _in_python(words: str, options: Collection[str]) -> str:
    """Return the help *words* of an option with the *options* options that they name written as in Python: ``with_failures``."""

    def written(match: re.Match[str]) -> str:
        name = match[1].replace("-", "_")
        return f"*{name}*" if name in options else match[0]

    return re.sub(r"--([a-z][a-z-]*)", written, words)


def documents_options(*groups: type) -> Callable[[T], T]:
    """Return a decorator that adds the options of *groups* to signature and help of a function, which takes them as ``**options``."""

    def decorated(function: T) -> T:
        signature = inspect.signature(function)  # type: ignore[arg-type]
        *own, rest = signature.parameters.values()
        assert rest.kind is inspect.Parameter.VAR_KEYWORD
        declared = {
            argument: options_of(group)[name]
            for group in groups
            for argument, name in arguments_of(group).items()
            if argument not in signature.parameters
        }
        shared = [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=each.option.default, annotation=each.type)
            for name, each in declared.items()
        ]
        options = {*signature.parameters, *declared}
        lines = [f"- *{name}*: {_in_python(each.option.help, options)}" for name, each in declared.items()]
        function.__dict__["__signature__"] = signature.replace(parameters=[*own, *shared])
        function.__doc__ = "\n".join([f"{inspect.getdoc(function)}\n\nOptions, as in the command:\n", *lines])
        return function

    return decorated


def keywords(group: type) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Return a decorator that passes the options of *group* to a function as ``**options``, with defaults for those left out."""

    def decorated(function: Callable[P, T]) -> Callable[P, T]:
        told = documents_options(group)(function)
        signature = inspect.signature(told)
        defaults = {name: each.option.default for name, each in options_of(group).items()}

        @wraps(told)
        def called(*args: P.args, **given: P.kwargs) -> T:
            signature.bind(*args, **given)  # as Python does: TypeError for an unknown keyword
            return told(*args, **(defaults | given))

        return called

    return decorated
