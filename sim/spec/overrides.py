"""What does ``--set KEY=VALUE`` change? Applies overrides such as ``node.nic.bandwidth=25 Gbps;node.gpu_count=4``.

A text may contain several overrides, separated by ``;``. A value is YAML. A block sets its keys and leaves the others, as in a file that
extends another; prices, blocks that extend a part, empty blocks and mappings with keys of the user's own (``nvlink.pairs``) replace what
was there. References on the way are resolved, so overrides reach every field of every part. ``node``, ``price`` and ``trays`` refer to the
only group. A null drops the key. An option such as ``--batch 64`` is also an override, shown in messages as it was typed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Set
from typing import Final, NamedTuple, TypeGuard

from pydantic import BaseModel

from sim.spec import catalog, schema, yaml
from sim.spec.catalog import file_of, is_path
from sim.spec.hardware import Cpu, Gpu, Group, Hardware, Node, Volume
from sim.spec.own_prices import PriceOverride, prices_of
from sim.spec.references import IMPLIED, UNRESOLVED, MarkedValue, Resolver, SpecKind, child, put, replaces, without
from sim.spec.sections import file_fields, inherited_foreign
from sim.spec.yaml import Document, Mark, SpecError

_OWN_GPUS: Final = frozenset({"node.gpu", "node.gpu.extends", "node.gpu_count"})
"""Keys that set the GPUs of a machine, on which its price depends."""
_AMOUNTS: Final = frozenset({"price.on_demand", "price.spot"})
"""Keys of the prices of a machine."""


class Option(NamedTuple):
    """An option of the command line, such as ``--batch 64``, that sets a *key* (``training.batch``)."""

    name: str
    key: str
    value: object

    @property
    def written(self) -> str:
        """Return the option as it is typed: ``--batch 64``, ``--parallel tp=8``."""
        return f"{self.name}{'' if self.name.endswith('=') else ' '}{self.value if self.value != '' else repr('')}"


Override = str | Option | PriceOverride
"""``KEY=VALUE``, several of them separated by ``;``, an option, or prices from a user-defined source."""


def apply(resolver: Resolver, document: Document, kind: SpecKind, overrides: Iterable[Override]) -> Document:
    """Return *document* with every override applied; *resolver* records those that cannot be applied."""
    changed: list[str] = []
    for override in overrides:
        try:
            parts = _parts(override, document)
        except SpecError as error:
            resolver.problems.extend(error.problems)
            continue
        for part in parts:
            try:
                before, (document, keys) = document, _apply(resolver, document, kind, part)
                changed += [key for key in keys if kind is not Hardware or not _keeps_gpus(resolver, key, before, document)]
            except SpecError as error:
                resolver.problems.extend(error.problems)
    return _matched(document, changed) if kind is Hardware and not resolver.problems else document


def _keeps_gpus(resolver: Resolver, key: str, before: Document, after: Document) -> bool:
    """Return whether *key*, which was set between *before* and *after*, sets the GPUs of a node to those that it had."""
    group = re.match(r"groups\.(\d+)\.", key)
    if key[group.end() if group else 0 :] not in _OWN_GPUS:
        return False
    had, has = (_gpus(resolver, document, int(group[1]) if group else 0) for document in (before, after))
    return had == has


def _gpus(resolver: Resolver, document: Document, at: int) -> tuple[object, object]:
    """Return the GPU of a node of group *at* of the hardware *document*, by name if it is a part as it is, and the number of them."""
    group = child(child(MarkedValue(document.value, document.root), "groups"), at)
    node = resolver.resolve_named(child(group, "node"), Node)
    if not isinstance(node.value, dict):
        return node.value, None
    return _part_name(node.value.get("gpu")), node.value.get("gpu_count")


def _part_name(gpu: object) -> object:
    """Return the name of the part of the catalog that a block or reference *gpu* is; *gpu* itself if it is none, or changes one."""
    reference = gpu["extends"] if isinstance(gpu, dict) and gpu.keys() == {"extends"} else gpu
    if isinstance(reference, str) and not is_path(reference) and (path := file_of(reference, schema.FOLDERS[Gpu])) is not None:
        return catalog.read(path).value.get("name", path.stem)
    return gpu.get("name") if isinstance(gpu, dict) and "extends" not in gpu else gpu


def _matched(document: Document, changed: Iterable[str]) -> Document:
    """Return the hardware *document* with prices and trays that match its groups after the keys in *changed* were set.

    The price of a machine does not apply to other GPUs, so it is dropped unless it was set too. A price that was set loses the old date.
    Trays of a machine do not apply to another one.
    """
    keys = {key if key.startswith("groups.") else f"groups.0.{key}" for key in changed}
    piece = MarkedValue(document.value, document.root)
    for at in sorted({key.split(".")[1] for key in keys}):
        written = {key.removeprefix(f"groups.{at}.") for key in keys if key.startswith(f"groups.{at}.")}
        groups, priced = child(piece, "groups"), any(key.split(".")[0] == "price" for key in written)
        group = child(groups, int(at)) if {"node", *_OWN_GPUS, *_AMOUNTS} & written else None
        if group is None:
            continue
        if "node" in written and "trays" not in written:
            group = without(group, "trays")  # the machine that it names has its own trays
        if "node" in written and not priced:
            group = without(group, "price")  # and its own price
        elif _OWN_GPUS & written and not priced:
            group = _unpriced(group)
        elif not {"price", "price.date", "price.source"} & written:
            group = put(group, "price", _with_user_source(child(group, "price"), _AMOUNTS & written, "price.spot_date" in written))
        piece = put(piece, "groups", put(groups, int(at), group))
    return Document(piece.value, piece.mark, document.implied)


def _unpriced(group: MarkedValue) -> MarkedValue:
    """Return the block *group* without its prices; it keeps the region, which decides the carbon intensity of its electricity."""
    price = child(group, "price") if isinstance(group.value.get("price"), dict) else MarkedValue({}, group.mark)
    return put(group, "price", price._replace(value={key: value for key, value in price.value.items() if key == "region"}))


def _with_user_source(price: MarkedValue, amounts: Set[str], dated: bool) -> MarkedValue:
    """Return the block *price*, whose *amounts* (dotted keys) the user has set, without their old source and date.

    *dated*: whether the user has also set the date of the spot price.
    """
    block = dict(price.value)
    source = block.get("source", "")
    sources = {key.removeprefix("price."): f"--set {key}" for key in sorted(amounts)}
    block["source"] = {**(source if isinstance(source, dict) else {"*": source or "as given"}), **sources}
    if "spot" in sources and not dated:
        block["spot_date"] = ""
    if "on_demand" in sources and (day := block.pop("date", "")) and "spot" in block:
        block.setdefault("spot_date", day)
    if "on_demand" in sources:
        block.pop("copied_from", None)
    return price._replace(value=block)


def _parts(override: Override, document: Document) -> Iterable[str | Option]:
    """Return the single overrides that *override* contains."""
    if isinstance(override, PriceOverride):
        block = prices_of(override.name, document.value)
        return [] if block is None else [Option(f"--prices {override.name}:", "price", block)]
    return [override] if isinstance(override, Option) else single_overrides([override])


def single_overrides(texts: Iterable[str]) -> Iterator[str]:
    """Yield the single overrides in *texts*, each of which may hold several, separated by semicolons."""
    for text in texts:
        yield from filter(None, map(str.strip, text.split(";")))


def _apply(resolver: Resolver, document: Document, kind: SpecKind, override: str | Option) -> tuple[Document, list[str]]:
    """Return *document* with *override* applied, and the dotted keys that it sets."""
    label, steps, new = _option(override) if isinstance(override, Option) else _written(override, kind)
    keys = [".".join(each) for each in _keys_set(steps, new.value)]
    top = MarkedValue(document.value, document.root)
    implied = document.implied
    if kind is Hardware and steps[0] in schema.UNFOLDED:
        top, steps = _ungrouped(top, steps, label)
        implied = IMPLIED
    value, root, _ = _set(resolver, top, kind, steps, MarkedValue(new.value, new.root))
    return Document(value, root, implied), keys


def _keys_set(steps: list[str], value: object) -> Iterator[list[str]]:
    """Yield the paths that *value* at *steps* sets: those below it, if it is a block that leaves other keys as they are."""
    if _leaves_others(value, steps[-1]):
        for name, below in value.items():
            yield from _keys_set([*steps, str(name)], below)
    else:
        yield steps


def _leaves_others(value: object, name: str) -> TypeGuard[dict[str, object]]:
    """Return whether *value* at the key *name* is a block that sets only its own keys."""
    return isinstance(value, dict) and bool(value) and name != "price" and not replaces(name, value)


def _option(option: Option) -> tuple[str, list[str], Document]:
    """Return the label of *option* in messages, the key that it sets, and the value."""
    return option.written, option.key.split("."), Document(option.value, Mark(option.written))


def _written(text: str, kind: SpecKind) -> tuple[str, list[str], Document]:
    """Return the label of the override *text* of a *kind* in messages, the key that it sets, and the value.

    Numbers for a key that holds text stay as written, without quotes: ``nccl=2.20`` is not 2.2.
    """
    name, equals, written = text.partition("=")
    label = f"--set {text}" if len(text) <= 100 else f"--set {text[:97]}..."
    steps = name.strip().split(".")
    if not equals or not all(steps):
        raise SpecError(f"{label}: write KEY=VALUE, for example node.nic.bandwidth='25 Gbps'")
    new = yaml.parse(written, label, located=False) if written.strip() else Document("", Mark(label))
    if isinstance(new.value, int | float) and not isinstance(new.value, bool) and schema.describe(kind, tuple(steps)) == "text":
        new = Document(written.strip(), new.root)
    return label, steps, new


def _ungrouped(top: MarkedValue, steps: list[str], label: str) -> tuple[MarkedValue, list[str]]:
    """Return the hardware *top*, with one group if it has none, and *steps* prefixed with the path of its only group."""
    groups = top.value.get("groups")
    if groups is None:
        top = put(top, "groups", MarkedValue([{}], Mark(label)))
    elif isinstance(groups, list) and len(groups) != 1:
        raise SpecError(f"{label}: there are {len(groups)} groups; write groups.0.{'.'.join(steps)} for the first")
    return top, ["groups", "0", *steps]


def _set(resolver: Resolver, piece: MarkedValue, kind: SpecKind | None, steps: list[str], new: MarkedValue) -> MarkedValue:
    """Return *piece* with *new* at *steps* below it."""
    if not steps and kind is not None and piece.value is not None and _leaves_others(new.value, str(piece.key[-1])):
        for name in new.value:
            piece = _set(resolver, piece, kind, [str(name)], child(new, name))
        return piece
    if not steps:
        if isinstance(piece.value, dict) and isinstance(new.value, str | int | float) and kind is not None and kind not in schema.FOLDERS:
            raise SpecError(f"{new.mark}: this is a block; set one of its keys: {', '.join(file_fields(kind))}")
        return new
    piece = resolver.resolve_named(piece, kind) if kind is not None else piece
    if piece.value is UNRESOLVED:
        return piece
    if piece.value is None:
        piece = MarkedValue({}, Mark(new.mark.file, implied=True), piece.key)
    if isinstance(piece.value, list):
        index = _index(piece, steps[0], new.mark)
        return put(piece, index, _set(resolver, child(piece, index), kind, steps[1:], new))
    if not isinstance(piece.value, dict):
        raise SpecError(f"{new.mark}: {piece.key[-1]} is a single value and has no '{steps[0]}'")
    if kind is Group and steps[0] != "count" and steps != ["node"]:
        piece = resolver.with_machine(piece)  # while its node still names the machine
    if kind in schema.KEYS_ELSEWHERE and steps[1:] not in ([], ["extends"]) and piece.value.get(steps[0]) is None:
        _require_own_block(piece, kind, steps, new.mark)
    below = child(piece, steps[0]) if steps[0] in piece.value else MarkedValue(None, new.mark, (*piece.key, steps[0]))
    model = schema.model_at(kind, (steps[0],)) if kind is not None else None
    if kind in (Cpu, Volume):
        piece = without(piece, "assumed")  # it is the user's now
    changed = put(piece, steps[0], _set(resolver, below, model, steps[1:], new))
    foreign = inherited_foreign(kind, piece.value, {steps[0]: changed.value[steps[0]]})
    return without(changed, *(name for name in foreign if not child(piece, name).mark.file.startswith("--")))  # what was set stays


def _require_own_block(piece: MarkedValue, kind: type[BaseModel], steps: list[str], place: Mark) -> None:
    """Raise SpecError if *steps* lead into a block that is left out and for which another block is used."""
    if (other := schema.KEYS_ELSEWHERE[kind].get(steps[0])) is None:
        return
    key = yaml.dotted_key(piece.key)
    typed = key if f" {key}." in place.file else yaml.spell_key(piece.key, IMPLIED)
    instead, own = f"{typed}.{other}.{'.'.join(steps[1:])}", f"{typed}.{steps[0]}"
    raise SpecError(f"{place}: {own} is not set; set {instead}, or first name a separate one, {own}=NAME")


def _index(piece: MarkedValue, step: str, place: Mark) -> int:
    if step.isascii() and step.isdigit() and len(step) < 10 and int(step) < len(piece.value):
        return int(step)
    items = f"write the index of an item, 0 to {len(piece.value) - 1}" if piece.value else "it is empty"
    raise SpecError(f"{place}: {piece.key[-1]} is a list; {items}")
