"""Which keys are allowed where, and which values do they take? Read from the typed models, for references and for error messages."""

from __future__ import annotations

import types
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Annotated, Any, Final, Literal, Union, get_args, get_origin

from pydantic import BaseModel

from sim.spec.catalog import suggestions
from sim.spec.energy import Grid, PowerModel
from sim.spec.fields import Key
from sim.spec.hardware import Cpu, Gpu, Hardware, Link, Node, Transport, Volume
from sim.spec.input import Dataset
from sim.spec.kernels import Kernels
from sim.spec.lifetimes import Lifetimes
from sim.spec.model import Model
from sim.spec.reliability import Reliability
from sim.spec.sections import file_fields
from sim.spec.stack import Stack
from sim.spec.stores import Store
from sim.spec.workload import Jobs, Workload

FOLDERS: Final[dict[type[BaseModel], str]] = {
    Hardware: "hardware",
    Workload: "workloads",
    Node: "hardware",
    Gpu: "hardware/parts/gpus",
    Kernels: "hardware/parts/kernels",
    Link: "hardware/parts/links",
    Cpu: "hardware/parts/cpus",
    Transport: "hardware/parts/transports",
    Volume: "hardware/parts/volumes",
    Lifetimes: "hardware/parts/lifetimes",
    Reliability: "hardware/parts/reliability",
    Store: "hardware/parts/stores",
    PowerModel: "hardware/parts/power",
    Grid: "hardware/parts/grids",
    Model: "workloads/models",
    Dataset: "workloads/datasets",
    Stack: "workloads/stacks",
    Jobs: "workloads/jobs",
}
"""Blocks that may be given by name, and the folder in which the name is looked up. A Node is given by the name of a hardware file."""

KEYS_ELSEWHERE: Final[dict[type[BaseModel], Mapping[str, str]]] = {Node: {"nvlink_transport": "topology.nvlink.link.transport"}}
"""Keys of blocks that may be left out, by kind, with the key of the block that is used instead."""

KINDS: Final[dict[str, type[BaseModel]]] = {kind.__name__.lower(): kind for kind in FOLDERS if kind is not Node}
"""Kinds of description that a file may contain, by name."""

UNFOLDED: Final = ("node", "price", "trays")
"""Keys that a hardware file with one group of one node may have at its top level instead of in ``groups``."""


@lru_cache(maxsize=256)
def children(kind: type[BaseModel]) -> Mapping[str, type[BaseModel]]:
    """Return the blocks of *kind*, by key, that may be given by name or contain such blocks at any depth."""
    blocks = {name: model for name, field in file_fields(kind).items() if (model := next(_models(field.annotation), None))}
    return {name: model for name, model in blocks.items() if model in FOLDERS or children(model)}


def model_at(kind: type[BaseModel], key: Key) -> type[BaseModel] | None:
    """Return the model of the block at *key* inside *kind*; None for a plain value or an unknown key."""
    annotation = _annotation_at(kind, key)
    return next(_models(annotation), None) if annotation is not None else None


def keys_at(kind: type[BaseModel], key: Key) -> list[str]:
    """Return the valid keys of the block at *key* inside *kind*."""
    block = _plain(_annotation_at(kind, key))
    if isinstance(block, type) and issubclass(block, BaseModel):
        return list(file_fields(block))
    if get_origin(block) is dict and get_origin(names := get_args(block)[0]) is Literal:
        return [str(name) for name in get_args(names)]
    return []


def describe(kind: type[BaseModel], key: Key) -> str:
    """Return a description of the values allowed at *key* of *kind*, for a message that says 'write': ``a whole number, zero or more``."""
    annotation = _annotation_at(kind, key)
    return _due(annotation) if annotation is not None else "a value"


def home_key(kind: type[BaseModel], name: str) -> str:
    """Return the dotted key below *kind* of *name* in the nearest block that has it; empty if no block has it, or most have."""
    if name in _EVERYWHERE:
        return ""
    start: list[tuple[tuple[str, ...], type[BaseModel]]] = [(("node",), Node)] if kind is Hardware else []
    waiting, seen = [*start, ((), kind)], {kind}
    for place, model in waiting:
        if place and name in file_fields(model):
            return ".".join((*place, name))
        for field, info in file_fields(model).items():
            below = next(_models(info.annotation), None)
            if below is not None and below not in seen:
                seen.add(below)
                item = ("0",) if get_origin(_plain(info.annotation)) is tuple else ()
                waiting.append(((*place, field, *item), below))
    return ""


def completed_key(kind: type[BaseModel], key: str) -> str:
    """Return the dotted *key* below *kind* with the blocks that it leaves out: ``nvlink.link.bandwidth`` for ``nvlink.bandwidth``.

    A part that no block has is replaced by the most similar key of its block. Return an empty text if there is none.
    """
    if kind is Hardware and key.startswith("node."):
        inside_node = completed_key(Node, key.removeprefix("node."))
        return inside_node and f"node.{inside_node}"
    done: list[str | int] = []
    for part in key.split("."):
        block = model_at(kind, tuple(done)) if done else kind
        if block is not None and part not in file_fields(block) and not part.isdigit():
            part = home_key(block, part) or next(iter(suggestions(part, list(file_fields(block)), most=1)), "")
        if not part:
            return ""
        done += [int(name) if name.isdigit() else name for name in part.split(".")]
    return ".".join(map(str, done))


_EVERYWHERE: Final = frozenset({"name", "source", "description", "aliases", "note", "extends"})
"""Keys that so many blocks have that they identify none."""


def kind_of(value: Mapping[str, Any]) -> type[BaseModel] | None:
    """Return the kind of description whose keys best match the top-level keys of *value*; None if none match."""
    return _kind_with(tuple(value))


@lru_cache(maxsize=1024)
def _kind_with(names: tuple[str, ...]) -> type[BaseModel] | None:
    best = max(KINDS.values(), key=lambda kind: likeness(kind, names))
    if likeness(best, names) < 2.0 and set(names) & {"gpus", *(file_fields(Node).keys() - _EVERYWHERE)}:
        return Hardware  # with keys of its node at its top level, where new users write them
    return best if likeness(best, names) else None


def likeness(kind: type[BaseModel], names: Iterable[str]) -> float:
    """Return the number of *names* that are characteristic keys of *kind*, plus a fraction that prefers the smaller kind in a tie."""
    keys = {*file_fields(kind), *(UNFOLDED if kind is Hardware else ())} - {"name", "source", "description", "aliases", "note"}
    hits = sum(name in keys for name in names)
    return hits + hits / (1 + len(keys))


def _annotation_at(kind: Any, key: Key) -> Any:
    """Return the type, with its metadata, of the value at *key* inside *kind*; None if there is no such key."""
    annotation = kind
    for part in key:
        annotation = _plain(annotation)
        origin, arguments = get_origin(annotation), get_args(annotation)
        if isinstance(annotation, type) and issubclass(annotation, BaseModel) and part in file_fields(annotation):
            field = file_fields(annotation)[str(part)]
            annotation = Annotated[field.annotation, *field.metadata] if field.metadata else field.annotation
        elif origin is dict:
            annotation = arguments[1]
        elif origin is tuple and isinstance(part, int):
            annotation = arguments[0]
        else:
            return None
    return annotation


def _plain(annotation: Any) -> Any:
    """Return *annotation* without metadata and without 'or None'."""
    if get_origin(annotation) is Annotated:
        return _plain(get_args(annotation)[0])
    if get_origin(annotation) in (Union, types.UnionType):
        return _plain(next(argument for argument in get_args(annotation) if argument is not types.NoneType))
    return annotation


def _models(annotation: Any) -> Iterator[type[BaseModel]]:
    """Yield the models that *annotation* may hold, through unions, tuples and dicts."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    elif get_origin(annotation) in (Union, types.UnionType, tuple, list, dict, Annotated):
        for argument in get_args(annotation):
            yield from _models(argument)


_WORDS: Final[dict[Any, str]] = {str: "text", bool: "true or false", int: "a whole number", float: "a number", Any: "a value"}


def _due(annotation: Any) -> str:
    """Return *annotation* in words."""
    if get_origin(annotation) is Annotated:
        described = [schema["description"] for piece in get_args(annotation)[1:] if (schema := getattr(piece, "json_schema", None))]
        return str(described[0]) if described else _due(get_args(annotation)[0]) + _bound(get_args(annotation)[1:])
    if get_origin(annotation) in (Union, types.UnionType):
        return ", or ".join(dict.fromkeys(_due(argument) for argument in get_args(annotation) if argument is not types.NoneType))
    arguments = get_args(annotation)
    if get_origin(annotation) is Literal:
        return f"one of {', '.join(map(str, arguments))}"
    if get_origin(annotation) is tuple:
        return f"a list{_example(arguments[0])}, each item {_due(arguments[0])}"
    if get_origin(annotation) is dict:
        keys = f"the keys {', '.join(map(str, get_args(arguments[0])))}" if get_origin(arguments[0]) is Literal else "keys of its own"
        return f"a block with {keys}, each {_due(arguments[1])}"
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return _block(annotation)
    return _WORDS.get(annotation, "a value")


def _example(item: Any) -> str:
    """Return a list of two *items* as YAML writes it, for lists of words and of whole numbers."""
    words = get_args(_plain(item))[:2] if get_origin(_plain(item)) is Literal else (1, 2) if _plain(item) is int else ()
    return f" such as [{', '.join(map(str, words))}]" if words else ""


def _bound(metadata: tuple[Any, ...]) -> str:
    least = [piece.ge for piece in metadata if getattr(piece, "ge", None) is not None]
    return f", {least[0]:g} or more" if least else ""


def _block(kind: type[BaseModel]) -> str:
    fields = file_fields(kind)
    required = [name for name, field in fields.items() if field.is_required()]
    keys = f"{', '.join(required)}{' ...' if len(required) < len(fields) else ''}" if required else ", ".join(fields)
    first = fields.get("name")
    if not required and first is not None and isinstance(first.default, str) and kind not in FOLDERS:
        return f"a block, such as {{name: {first.default}}}"
    return f"a block ({keys}){f', or the name of a file in {FOLDERS[kind]}/' if kind in FOLDERS else ''}"
