"""What does a Python caller request? From the arguments of a call to a checked scenario, or a sentence about the value that is wrong."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from sim.spec.algorithms import NCCL_ALGORITHMS, OTHER_ALGORITHMS
from sim.spec.extensions import COLLECTIVES, EXCHANGES, LOADERS, PRICE_SOURCES, register
from sim.spec.own_prices import prices_from_options
from sim.spec.yaml import SpecError
from sim.study.scenario import Scenario, market_of
from sim.units import UnitError, parse

Name = str | PathLike[str]
"""Name of a catalog entry, or the path of a file."""
_WHOLE: Final = ("nodes", "gpus", "batch", "global_batch", "seed", "sequence")
_MOST_SHOWN: Final = 80
"""Characters up to which a message shows a value; of longer ones it shows the type."""
_TEXT: Final = ("precision", "fp8_recipe", "stack", "placement")


def scenario_of(
    hardware: Name,
    workload: Name,
    overrides: Mapping[str, object] | None = None,
    market: str = "on-demand",
    **options: Any,
) -> Scenario:
    """Return the scenario of a call; *options* are fields of `Scenario`. Raise SpecError if a value has the wrong type."""
    for option, value in (("hardware", hardware), ("workload", workload)):
        if not isinstance(value, str | PathLike):
            raise SpecError(f"{option}={as_shown(value)}: expected a catalog name or the path of a YAML file")
    require_mapping("overrides", overrides, {"node.nic.bandwidth": "100 Gbps"})
    if isinstance(several := options.get("nodes"), list | tuple | range):
        raise SpecError(f"nodes={as_shown(several)}: expected one number; sweep(..., vary={{'nodes': {list(several)[:4]}}}) tries several")
    for option in _WHOLE:
        require_whole(option, options.get(option), ("max",) if option == "batch" else ())
    if (options.get("seed") or 0) < 0:
        raise SpecError(f"seed={options['seed']}: write 0 or more")
    for option in _TEXT:
        if not isinstance(options.get(option), str | None):
            raise SpecError(f"{option}={as_shown(options[option])}: expected a string")
    texts = tuple(f"{key}={'null' if value is None else value}" for key, value in (overrides or {}).items())
    return Scenario(str(hardware), str(workload), texts, market=market_of(market), **options)


def price_source(value: object) -> str:
    """Return the name of the price source *value*: the user's object, a name, or prices by machine. Raise SpecError for others."""
    if isinstance(value, Mapping):
        return prices_from_options(f"{machine}={price}" for machine, price in value.items())
    return value if isinstance(value, str) else "" if value is None else register(PRICE_SOURCES, value)


OWN_PARTS: Final = MappingProxyType(
    {"loader": "input.own_loader", "collective": "training.stack.nccl_algo", "exchange": "training.stack.own_exchange"}
)
"""Fields for the user's own parts, by the arguments that set them."""


def with_own_parts(
    overrides: Mapping[str, object] | None, loader: object = None, collective: object = None, exchange: object = None
) -> Mapping[str, object] | None:
    """Return *overrides* with the fields for the user's own parts, each an object or a name; None leaves one out.

    Raise SpecError for anything else, and for a part that *overrides* set to another one.
    """
    parts = (
        ("loader", loader, LOADERS, ()),
        ("collective", collective, COLLECTIVES, (*NCCL_ALGORITHMS, *OTHER_ALGORITHMS)),
        ("exchange", exchange, EXCHANGES, ()),
    )
    for argument, value, kind, taken in parts:
        if value is None or not isinstance(overrides, Mapping | None):
            continue
        name, field = value if isinstance(value, str) else register(kind, value, taken), OWN_PARTS[argument]
        if (other := (overrides or {}).get(field, name)) != name:
            raise SpecError(f"overrides[{field!r}]={other} and {argument}={name}: write one of the two")
        overrides = {**(overrides or {}), field: name}
    return overrides


def as_shown(value: object) -> str:
    """Return *value* as a message shows it: as Python writes it, or by its type if that is long, such as a description."""
    return repr(value) if len(repr(value)) <= _MOST_SHOWN else f"<{type(value).__name__}>"


def require_whole(option: str, value: object, words: Sequence[str] = ()) -> None:
    """Raise SpecError unless *value* is a whole number, None, or one of *words*."""
    if value is None or (isinstance(value, str) and value in words) or (isinstance(value, int) and not isinstance(value, bool)):
        return
    raise SpecError(f"{option}={as_shown(value)}: expected a whole number{''.join(f' or {word!r}' for word in words)}")


def require_number(option: str, value: object) -> None:
    """Raise SpecError unless *value* is a number or None."""
    if value is not None and (isinstance(value, bool) or not isinstance(value, int | float)):
        raise SpecError(f"{option}={as_shown(value)}: expected a number")


def require_text(option: str, value: object) -> None:
    """Raise SpecError unless *value* is text."""
    if not isinstance(value, str):
        raise SpecError(f"{option}={as_shown(value)}: expected a string")


def require_flag(option: str, value: object) -> None:
    """Raise SpecError unless *value* is True or False."""
    if not isinstance(value, bool):
        raise SpecError(f"{option}={as_shown(value)}: expected True or False")


def require_mapping(option: str, value: object, example: Mapping[str, object]) -> None:
    """Raise SpecError, with an *example*, unless *value* is a mapping or None."""
    if value is not None and not isinstance(value, Mapping):
        raise SpecError(f"{option}={as_shown(value)}: expected a mapping, such as {example}")


def optional_path(option: str, value: object) -> Path | None:
    """Return the path *value*; None if it is None. Raise SpecError unless it is a path or text."""
    if value is not None and not isinstance(value, str | PathLike):
        raise SpecError(f"{option}={as_shown(value)}: expected a path")
    return None if value is None else Path(value)


def text_list(option: str, value: object) -> list[str]:
    """Return the texts in *value*. Raise SpecError unless it is a list of texts or paths."""
    if isinstance(value, str | PathLike) or not isinstance(value, Sequence) or not all(isinstance(one, str | PathLike) for one in value):
        raise SpecError(f"{option}={as_shown(value)}: expected a list of strings, such as {[value if isinstance(value, str) else '...']}")
    return [str(one) for one in value]


def counts(nodes: object) -> list[int]:
    """Return the numbers of nodes in *nodes*, one or a list. Raise SpecError unless they are whole numbers of 1 or more."""
    if isinstance(nodes, int) and not isinstance(nodes, bool):
        nodes = [nodes]
    if isinstance(nodes, str) or not isinstance(nodes, Sequence):
        raise SpecError(f"nodes={as_shown(nodes)}: expected a list of whole numbers, such as [1, 2, 4]")
    for number in nodes:
        require_whole("nodes", number)
        if number is None or number < 1:
            raise SpecError(f"nodes={as_shown(nodes)}: expected whole numbers of 1 or more")
    return list(nodes)


def quantity(text: str, dimension: str, option: str, zero: bool = False, usual: str = "") -> float:
    """Return *text*, the value of *option*, in SI units. Raise SpecError unless it is a *dimension* above 0, or 0 if *zero* allows it.

    *usual* is an example for messages; by default that of the dimension.
    """
    try:
        value = parse(text, dimension, usual)
    except UnitError as error:
        raise SpecError(f"{option} {text}: {error}") from None
    if value < 0 or (value == 0 and not zero):
        raise SpecError(f"{option} {text}: write {'0 or more' if zero else 'more than 0'}")
    return value


def mean_lifetime_of(text: str) -> float:
    """Return the mean lifetime *text* of a machine in seconds. Raise SpecError unless it is a time above 0."""
    return quantity(text, "time", "--mean-lifetime", usual="20 h")


def checkpoint_interval_of(text: str) -> float:
    """Return the interval *text* between checkpoints in seconds. Raise SpecError unless it is a time above 0."""
    return quantity(text, "time", "--checkpoint-interval", usual="30 min")


def power_cap_of(text: str) -> float:
    """Return the power limit *text* of a GPU in W. Raise SpecError unless it is a power above 0."""
    return quantity(text, "power", "--power-cap")


def require_power_cap(text: str | None) -> None:
    """Raise SpecError unless *text* is None or a power limit above 0."""
    if text is not None:
        power_cap_of(text)


def max_memory_of(size: float | str | None) -> float | None:
    """Return *size*, a number of bytes or a text such as ``70GiB``, in bytes. Raise SpecError for anything else."""
    if size is None or (isinstance(size, int | float) and not isinstance(size, bool) and size > 0):
        return size
    try:
        return parse(str(size), "size")
    except ValueError as error:
        raise SpecError(f"--max-memory {size}: {error}") from None
