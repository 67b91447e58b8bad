"""Which values went into a run? All that its descriptions specify or leave at a default, by the key that ``--set`` uses, with units.

Layer tables, sources and descriptive text are left out; ``inputs_sha256`` tells whether those differ.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, get_args

from sim.simulate import Run
from sim.spec.fields import Dimension, Spec
from sim.spec.hardware import Hardware
from sim.spec.parallel import Parallel
from sim.spec.schema import UNFOLDED
from sim.spec.sections import file_fields, file_values
from sim.spec.workload import Workload
from sim.units import show

DIGITS = 12
"""Significant digits of a value: enough that values that differ in a description differ here."""
_WORDS = frozenset({"source", "description", "note", "aliases", "command", "layers"})


def inputs(run: Run, number: int = 0) -> dict[str, dict[str, Any]]:
    """Return the values of the hardware and workload of job *number* of *run* by dotted key, as values or text with a unit."""
    return values_of(run.hardware, run.jobs[number].job.workload)


def values_of(described: Hardware, workload: Workload) -> dict[str, dict[str, Any]]:
    """Return the values of a hardware and a workload description by dotted key, as values or text with a unit."""
    hardware = dict(_values(described))
    if len(described.groups) == 1:
        hardware = {_unfolded(key): value for key, value in hardware.items()}
    return {"hardware": hardware, "workload": dict(_values(workload))}


def _unfolded(key: str) -> str:
    """Return *key* of the only group in the short form, without ``groups.0.``, if that may be written."""
    short = key.removeprefix("groups.0.")
    return short if short.partition(".")[0] in UNFOLDED else key


def _values(spec: Spec, before: str = "") -> Iterator[tuple[str, Any]]:
    values = file_values(spec)
    for name, dimension in _dimensions(type(spec)).items():
        if name in values:
            yield from _leaves(f"{before}{name}", values[name], dimension)


def _leaves(key: str, value: Any, dimension: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Parallel) and value.is_trivial:
        return
    if isinstance(value, Spec):
        yield from _values(value, f"{key}.")
    elif isinstance(value, Mapping):
        for name, inner in value.items():
            yield from _leaves(f"{key}.{name}", inner, dimension)
    elif isinstance(value, tuple) and value and isinstance(value[0], Spec):
        for index, item in enumerate(value):
            yield from _values(item, f"{key}.{index}.")
    elif isinstance(value, tuple) and value:
        yield key, " ".join(":".join(f"{part:g}" for part in point) if isinstance(point, tuple) else str(point) for point in value)
    elif value is not None and value != ():
        yield key, _quantity(key, value, dimension) if dimension and isinstance(value, int | float) else value


def _quantity(key: str, value: float, dimension: str) -> str:
    """Return *value* in its usual unit: bits/s on networks, binary units such as GiB for a size if that text is shorter."""
    if dimension == "bandwidth" and (".nic." in key or key.startswith("fabric.")):
        return _plain(value, "bit rate")
    spellings = [_plain(value, name) for name in ((dimension, "binary size") if dimension == "size" else (dimension,))]
    return min(spellings, key=len)


def _plain(value: float, dimension: str) -> str:
    """Return *value* as text without separators of thousands."""
    return show(value, dimension, DIGITS).replace(",", "")


@cache
def _dimensions(kind: type[Spec]) -> dict[str, str]:
    """Return the fields of *kind* that are values, with the dimension of each, or "" if it has none."""
    return {name: next(_marks([*field.metadata, field.annotation]), "") for name, field in file_fields(kind).items() if name not in _WORDS}


def _marks(parts: Any) -> Iterator[str]:
    for part in parts:
        if isinstance(part, Dimension):
            yield "" if part.name == "fraction" else part.name
        elif not isinstance(part, type):
            yield from _marks((*get_args(part), *getattr(part, "__metadata__", ())))
