"""Which run do the controls of the page select? Request parameters in; a scenario, its command line and its URL out.

A control has the name of the equivalent command-line option, so that the page, the command and a shared URL agree. This module does not
need a server.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final
from urllib.parse import urlencode

from sim.analysis.whole_job import JobPlan
from sim.spec.catalog import suggestions
from sim.spec.library import load_hardware
from sim.spec.yaml import SpecError
from sim.study.layout_options import layout_of
from sim.study.ranges import whole_numbers
from sim.study.scenario import Scenario, batch_of, has_layout, market_of, split_overrides
from sim.study.whole_job import plan_of
from sim.units import shorten

OPTIONS: Final[dict[str, str]] = {
    "nodes": "--nodes", "batch": "--batch", "sequence": "--sequence", "precision": "--precision", "stack": "--stack", "tp": "--tp",
    "pp": "--pp", "cp": "--cp", "ep": "--ep", "shard": "--shard", "micro_batches": "--micro-batches", "schedule": "--schedule",
    "market": "--market", "epochs": "--epochs", "hours": "--hours", "tokens": "--tokens",
}  # fmt: skip
"""The option of ``run`` that each control sets."""
LAYOUT: Final = ("tp", "pp", "cp", "ep", "shard", "schedule")
"""Controls that become part of ``--parallel`` in ``compare``."""
FIELDS: Final[dict[str, str]] = {
    "checkpointing": "training.activation_checkpointing={}",
    "nic": "node.nic.bandwidth={} Gbps",
    "price": "price.{market}={} USD/h",
}
"""Controls that set a field of a description, and the text after ``--set``."""
OF_NODES: Final = ("nic", "price")
"""Those of them that are properties of nodes: if a machine has several groups of workers, they are set for each group."""
SETS: Final = "set"
"""The only control that may occur several times: any field of a description."""
AMONG: Final = "among"
"""The control for the machines to compare the chosen one with."""
KEYS: Final = {option: name for name, option in OPTIONS.items()}
CONTROLS: Final = ("workload", "hardware", *OPTIONS, *FIELDS, SETS, AMONG)
DEFAULTS: Final = {"workload": "resnet50", "hardware": "p4d.24xlarge", "market": "on-demand", AMONG: "size"}
_MOST: Final = 2_000
"""Maximum characters of one parameter."""


@dataclass(frozen=True)
class Choice:
    """The state of the controls: *values* by control, without empty controls, and *sets* of any field."""

    values: Mapping[str, str]
    sets: tuple[str, ...] = ()

    def get(self, control: str) -> str:
        """Return the value of *control*, or its default; empty if it has none."""
        return self.values.get(control, DEFAULTS.get(control, ""))

    def without(self, *controls: str) -> Choice:
        """Return the choice with *controls* emptied."""
        return Choice({name: value for name, value in self.values.items() if name not in controls}, self.sets)


def choice_of(parameters: Iterable[tuple[str, str]]) -> Choice:
    """Return the choice that the *parameters* of a URL describe. Raise SpecError for a control that does not exist."""
    values: dict[str, str] = {}
    sets: list[str] = []
    for name, text in parameters:
        if name not in CONTROLS:
            similar = suggestions(name, list(CONTROLS), most=1)
            raise SpecError(f"{shorten(name)}: no such control; " + (f"did you mean {similar[0]}?" if similar else _list_controls()))
        if len(text) > _MOST:
            raise SpecError(f"{name} {shorten(text)}: write at most {_MOST:,} characters")
        if name == SETS:
            sets += filter(None, map(str.strip, text.splitlines()))
        elif text.strip():
            values[name] = text.strip()
    return Choice(values, tuple(sets))


def _list_controls() -> str:
    return f"the controls are {', '.join(CONTROLS)}"


def query_of(choice: Choice) -> str:
    """Return *choice* as the query of a URL, in a fixed order and without defaults."""
    pairs = [(name, choice.values[name]) for name in CONTROLS if name in choice.values and choice.values[name] != DEFAULTS.get(name)]
    named = {name: choice.get(name) for name in ("workload", "hardware")}
    rest = [pair for pair in pairs if pair[0] not in named]
    return urlencode([*named.items(), *rest, *((SETS, text) for text in choice.sets)])


def scenario_of(choice: Choice) -> Scenario:
    """Return the run that *choice* selects. Raise SpecError for an invalid value."""
    number = {name: _count(choice, name) for name in ("nodes", "sequence", "tp", "pp", "cp", "ep", "micro_batches")}
    layout = layout_of(
        [], number["tp"], number["pp"], number["cp"], number["ep"], None, choice.get("shard") or None, number["micro_batches"],
        choice.get("schedule") or None,
    )  # fmt: skip
    return Scenario(
        choice.get("hardware"),
        choice.get("workload"),
        _sets(choice),
        nodes=number["nodes"],
        batch=batch_of(choice.get("batch")) if choice.get("batch") else None,
        precision=choice.get("precision") or None,
        stack=choice.get("stack") or None,
        market=market_of(choice.get("market")),
        plan=_plan(choice),
        layout=layout,
        sequence=number["sequence"],
    )


def _count(choice: Choice, control: str) -> int | None:
    text = choice.get(control)
    if not text:
        return None
    numbers = whole_numbers(text, OPTIONS[control])
    if len(numbers) > 1:
        raise SpecError(f"{OPTIONS[control]} {text}: write one number here; only the command line accepts a range")
    return numbers[0]


def _plan(choice: Choice) -> JobPlan | None:
    return plan_of(_amount(choice, "epochs"), _amount(choice, "hours"), tokens=choice.get("tokens") or None)


def _amount(choice: Choice, control: str) -> float | None:
    text = choice.get(control)
    try:
        return float(text) if text else None
    except ValueError:
        raise SpecError(f"{OPTIONS[control]} {text}: write a number, for example 90") from None


def _sets(choice: Choice) -> tuple[str, ...]:
    market = choice.get("market").replace("-", "_")
    own_sets = [
        place + text.format(choice.get(name), market=market)
        for name, text in FIELDS.items()
        if choice.get(name)
        for place in (_workers(choice.get("hardware")) if name in OF_NODES else [""])
    ]
    return (*own_sets, *choice.sets)


def _workers(hardware: str) -> list[str]:
    """Return the prefixes of a node's field of the machine *hardware*: one per group of workers, or only "" if there is one group."""
    try:
        groups = load_hardware(hardware).spec.groups
    except SpecError:  # reported when the description is read to run it
        return [""]
    return [f"groups.{index}." for index, group in enumerate(groups) if group.role == "worker"] if len(groups) > 1 else [""]


def command_of(choice: Choice) -> list[str]:
    """Return the arguments of the program that give the same figures as the page: ``run p4d.24xlarge resnet50 --nodes 4``."""
    words = ["run", choice.get("hardware"), choice.get("workload"), *_options(choice, OPTIONS)]
    for text in _sets(choice):
        words += ["--set", text]
    try:
        plain = not has_layout(scenario_of(choice))
    except SpecError:
        plain = True
    return [*words, "--fast"] if plain else words


def comparison_command(choice: Choice, machines: Iterable[str]) -> list[str]:
    """Return the arguments of the program that compare *machines* as the page does."""
    parallel = [f"{name}={choice.get(name)}" for name in LAYOUT if choice.get(name)]
    options = {name: option for name, option in OPTIONS.items() if name not in (*LAYOUT, "sequence", "micro_batches")}
    if choice.get("micro_batches"):
        parallel.append(f"micro_batches={choice.get('micro_batches')}")
    words = ["compare", choice.get("workload"), *machines, *_options(choice, options)]
    words += ["--parallel", ",".join(parallel)] if parallel else []
    for text in on_other_machines(choice).overrides:
        words += ["--set", text]
    return words


def on_other_machines(choice: Choice) -> Scenario:
    """Return the run that *choice* selects for other machines, as described in their files: without changes of the chosen machine."""
    other = choice.without(*OF_NODES)
    of_machine, _ = split_overrides(other.sets)
    kept = Choice(other.values, tuple(text for text in other.sets if text not in of_machine))
    scenario = scenario_of(kept)
    sequence = (f"model.sequence={scenario.sequence}",) if scenario.sequence is not None else ()
    return replace(scenario, hardware="", overrides=(*sequence, *scenario.overrides), sequence=None)


def _options(choice: Choice, options: Mapping[str, str]) -> list[str]:
    words: list[str] = []
    for name, option in options.items():
        text = choice.get(name)
        if text and text != DEFAULTS.get(name):
            words += [option, text]
    return words


def quote_words(words: Iterable[str]) -> str:
    """Return *words* quoted for a shell."""
    return shlex.join(words)
