"""What does a description contain once its references are resolved? Names are replaced by the parts they name, ``extends`` is merged.

A name may replace a block: ``gpu: V100-SXM2-16GB`` is the file ``hardware/parts/gpus/v100-sxm2-16gb.yaml``. Inside a block,
``extends: NAME`` starts from the named part, which the block's own keys override; an own ``null`` drops the part's key. In a hardware
file, ``node``, ``price`` and ``trays`` at the top level are one group of one node.

Data and marks are never modified in place, because files are shared: every step returns new ones along the path that it changes.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, NamedTuple

from pydantic import BaseModel

from sim.spec import catalog, defaults, schema, yaml
from sim.spec.catalog import UnknownName
from sim.spec.elsewhere import cached
from sim.spec.fields import Key
from sim.spec.hardware import Group, Hardware, Node
from sim.spec.model import Model
from sim.spec.reliability import Reliability
from sim.spec.sections import inherited_foreign
from sim.spec.workload import Workload
from sim.spec.yaml import Document, Mark, SpecError

UNRESOLVED: Final = object()
"""Replaces a reference that could not be resolved; the problem has been recorded."""

IMPLIED: Final[tuple[Key, ...]] = tuple(("groups", 0, name) for name in schema.UNFOLDED)
"""Keys of a hardware file's only group that are written at the top level."""

SpecKind = type[BaseModel]
Chain = tuple[Path, ...]
"""The files that led to the current one, each referring to the next."""


class MarkedValue(NamedTuple):
    """A value with its places in the file it came from, and its key there."""

    value: Any
    mark: Mark
    key: Key = ()


def child(piece: MarkedValue, name: str | int) -> MarkedValue:
    """Return the value at *name* of *piece*."""
    return MarkedValue(piece.value[name], piece.mark.inside.get(name, piece.mark), (*piece.key, name))


def put(piece: MarkedValue, name: str | int, below: MarkedValue) -> MarkedValue:
    """Return the block or list *piece* with *below* at *name*."""
    value: Any = piece.value.copy()
    value[name] = below.value
    return MarkedValue(value, piece.mark.holding({**piece.mark.inside, name: below.mark}), piece.key)


def without(piece: MarkedValue, *names: str) -> MarkedValue:
    """Return the block *piece* without the keys *names*."""
    return piece._replace(value={name: value for name, value in piece.value.items() if name not in names})


class Resolver:
    """Resolves references and records every problem. *library* are folders searched before the catalog.

    With *heads_only*, models are read only up to their layers, which is enough to list them.
    """

    def __init__(self, library: catalog.SearchFolders = None, heads_only: bool = False) -> None:
        self.problems: list[str] = []
        self._library = library
        self._heads_only = heads_only
        self._implied: tuple[Key, ...] = ()

    def open(self, path: Path, kind: SpecKind) -> Document:
        """Return the description of *kind* in *path*: ``extends`` merged, a top-level node made a group, other references unresolved."""
        document = self._read(path, kind)
        piece = self.resolve_extended(MarkedValue(document.value, document.root), kind, (path,))
        if piece.value is UNRESOLVED:
            raise SpecError(self.problems)
        if not isinstance(piece.value, dict):
            raise SpecError(f"{piece.mark}: this is a list or a single value; write a block of keys, such as 'name: ...'")
        if "name" not in document.value and ("extends" in document.value or _is_named(kind)):
            piece = put(piece, "name", MarkedValue(path.stem, piece.mark))
        if kind is Hardware and any(name in piece.value for name in schema.UNFOLDED):
            piece = self._grouped(piece)
        return Document(piece.value, piece.mark, self._implied)

    def finish(self, document: Document, kind: SpecKind) -> Document:
        """Return *document* with every reference resolved."""
        piece = self._completed(self.follow(MarkedValue(document.value, document.root), kind), kind)
        return Document(piece.value, piece.mark, document.implied)

    def follow(self, piece: MarkedValue, kind: SpecKind, chain: Chain = ()) -> MarkedValue:
        """Return the block *piece* of *kind* with every reference inside it replaced by the part it names."""
        if not isinstance(piece.value, dict):
            return piece
        for name, model in schema.children(kind).items():
            if piece.value.get(name) is None:
                continue
            below = child(piece, name)
            followed = self._follow_each(below, model, chain)
            if followed is below:
                continue
            piece = put(self.with_machine(piece, chain) if kind is Group else piece, name, followed)
        return piece

    def _follow_each(self, piece: MarkedValue, kind: SpecKind, chain: Chain) -> MarkedValue:
        """Resolve the references of a block, or of every block in a list."""
        if not isinstance(piece.value, list):
            return self._completed(self.follow(self.resolve_named(piece, kind, chain), kind, chain), kind, chain)
        for index in range(len(piece.value)):
            below = child(piece, index)
            followed = self._follow_each(below, kind, chain)
            piece = put(piece, index, followed) if followed is not below else piece
        return piece

    def _completed(self, piece: MarkedValue, kind: SpecKind, chain: Chain = ()) -> MarkedValue:
        """Return the workload *piece* with its defaults added; return a piece of another *kind* unchanged."""
        if kind is not Workload or not isinstance(piece.value, dict):
            return piece
        if piece.value.get("model") is UNRESOLVED and "dataset" not in piece.value:
            piece = put(piece, "dataset", MarkedValue(UNRESOLVED, piece.mark))  # whether it needs one depends on its model
        added = defaults.missing_defaults(piece.value)
        if _has_all(piece.value, added):
            return piece
        return self.follow(_merged(MarkedValue(added, Mark("defaults")), piece, Workload), Workload, chain)

    def resolve_named(self, piece: MarkedValue, kind: SpecKind, chain: Chain = ()) -> MarkedValue:
        """Return the part that *piece* names, or *piece* merged over the part it extends; else *piece* itself."""
        if kind in schema.FOLDERS and isinstance(piece.value, str):
            return self._noting(piece, lambda: self._part(piece, kind, chain))
        return self.resolve_extended(piece, kind, chain)

    def resolve_extended(self, piece: MarkedValue, kind: SpecKind, chain: Chain = ()) -> MarkedValue:
        """Return *piece* merged over the part it extends, if any."""
        if kind not in schema.FOLDERS or not isinstance(piece.value, dict) or "extends" not in piece.value:
            return piece
        reference, own = child(piece, "extends"), without(piece, "extends")
        if not isinstance(reference.value, str):
            self._note(reference, f"write the name of one file in {schema.FOLDERS[kind]}/")
            return piece._replace(value=UNRESOLVED)
        part = self._noting(reference, lambda: self._part(reference, kind, chain))
        if not isinstance(part.value, dict):
            return part
        if kind is Reliability:
            self._with_own_sources(own, reference.value)
        part = without(part, "aliases")
        return _merged_hardware(part, own, reference.value) if kind is Hardware else _merged(part, own, kind)

    def _with_own_sources(self, own: MarkedValue, part: str) -> None:
        """Record a problem for each block of rates in *own* that changes numbers of *part* but has no source of its own."""
        for name, block in own.value.items():
            model = schema.model_at(Reliability, (name,))
            if isinstance(block, dict) and model is not None and "source" in model.model_fields and "source" not in block:
                self._note(child(own, name), f"its numbers differ from those of {part}, so they need their own source; add source")

    def _part(self, reference: MarkedValue, kind: SpecKind, chain: Chain) -> MarkedValue:
        """Return the part that *reference* names, with all its references resolved."""
        path = self._locate(reference, kind, chain)
        problems_before = len(self.problems)
        key = (MarkedValue, path, kind, self._library, self._heads_only)
        return cached(
            key, lambda: self._followed(path, kind, reference, (*chain, path)), should_cache=lambda: len(self.problems) == problems_before
        )

    def _followed(self, path: Path, kind: SpecKind, reference: MarkedValue, chain: Chain) -> MarkedValue:
        """Return the contents of the file *path*, with all references resolved."""
        if kind is Node:
            return self._from_hardware(path, "node", reference, chain)
        document = self._read(path, kind)
        piece = self.follow(self.resolve_extended(MarkedValue(document.value, document.root), kind, chain), kind, chain)
        return self.follow(piece, Group, chain) if kind is Hardware else piece  # node and price may be at its top level as in a group

    def _locate(self, reference: MarkedValue, kind: SpecKind, chain: Chain) -> Path:
        written_in = Path(reference.mark.file) if reference.mark.line else None
        question = (reference.value, schema.FOLDERS[kind], self._library, written_in)
        path = cached((Path, *question), lambda: catalog.locate(*question))
        for fewer in (question[:3], question[:2]):
            if path.parent in self._mixed_folders(written_in) and self._is_whole_description(path, kind):
                path = catalog.locate(*fewer)
        if chain and path == chain[-1]:  # a file with the name of a catalog file, which it extends
            path = catalog.all_files(schema.FOLDERS[kind]).get(reference.value, path)
        if path in chain:
            raise UnknownName(f"{reference.value} refers back to itself; a file cannot take its parts from itself")
        return path

    def _mixed_folders(self, written_in: Path | None) -> tuple[Path, ...]:
        """Return the folders that may contain files of all kinds: the folder of *written_in*, and the library's folders."""
        library = (self._library,) if isinstance(self._library, Path) else self._library or ()
        return (*library, *([written_in.parent] if written_in is not None else []))

    def _is_whole_description(self, path: Path, kind: SpecKind) -> bool:
        """Return whether *path*, found by the name of a part, is a whole machine or workload, such as rtx3090.yaml with an RTX3090."""
        if "/" not in schema.FOLDERS[kind]:
            return False
        value = self._read(path, kind).value
        return isinstance(value, dict) and schema.kind_of(value) in (Hardware, Workload)

    def _from_hardware(self, path: Path, name: str, reference: MarkedValue, chain: Chain) -> MarkedValue:
        """Return the ``node``, ``price`` or ``trays`` of the hardware file *path* that *reference* names."""
        document = self._read(path, Hardware)
        machine = self.resolve_extended(MarkedValue(document.value, document.root), Hardware, chain)
        single = _unfolded(machine) if isinstance(machine.value, dict) else machine
        single = self.follow(single, Group, chain) if name == "node" else self.with_machine(single, chain)
        if not isinstance(single.value, dict) or name not in single.value:
            raise UnknownName(f"{reference.value} has no single '{name}' to use")
        return child(single, name)

    def _read(self, path: Path, kind: SpecKind) -> Document:
        return catalog.read(path, "layers" if self._heads_only and kind is Model else None)

    def _noting(self, reference: MarkedValue, step: Callable[[], MarkedValue]) -> MarkedValue:
        """Return the result of *step*, or record why it failed."""
        try:
            return step()
        except UnknownName as error:
            self._note(reference, str(error))
        except SpecError as error:
            self.problems.extend(problem for problem in error.problems if problem not in self.problems)
        return reference._replace(value=UNRESOLVED)

    def _note(self, piece: MarkedValue, message: str) -> None:
        problem = f"{yaml.message_start(piece.mark, yaml.spell_key(piece.key, self._implied))}{message}"
        self.problems.extend([problem] if problem not in self.problems else [])

    def _grouped(self, piece: MarkedValue) -> MarkedValue:
        """Turn ``node``, ``price`` and ``trays`` at the top level into one group of one node."""
        rest = without(piece, *schema.UNFOLDED)
        if "groups" in piece.value:
            name = next(name for name in schema.UNFOLDED if name in piece.value)
            groups, own = child(piece, "groups"), child(piece, name)
            if name != "node":
                beside = f"write it in each group: groups: [{{node: ..., count: ..., {name}: ...}}]"
            elif isinstance(groups.value, list) and groups.mark.file != own.mark.file:
                listed = ", ".join(["{node: ...}", *["{}"] * (len(groups.value) - 1)])
                beside = f"the machine that this extends has {len(groups.value)}; {{}} keeps one as it is: groups: [{listed}]"
            else:
                beside = "write one of the two"
            self._note(own, f"cannot be combined with 'groups'; {beside}")
            return rest
        group = _folded(piece)
        self._implied = IMPLIED
        return put(rest, "groups", MarkedValue([group.value], piece.mark.holding({0: group.mark})))

    def with_machine(self, group: MarkedValue, chain: Chain = ()) -> MarkedValue:
        """Return *group* with the price and the trays of the hardware file that its node names or extends, where it has none of its own."""
        if not isinstance(group.value, dict) or "node" not in group.value:
            return group
        node = child(group, "node")
        extends = isinstance(node.value, dict) and "extends" in node.value
        reference, changes = (child(node, "extends"), without(node, "extends").value) if extends else (node, {})
        for name in ("price", "trays"):
            if name in group.value or not isinstance(reference.value, str):
                continue
            with suppress(SpecError):  # a machine without it, or one that was not found, which has been recorded
                path = self._locate(reference, Node, chain)
                group = put(group, name, self._from_hardware(path, name, reference, (*chain, path)))
                group = _with_copied_price(group, changes, reference.value) if name == "price" else group
        return group


def _is_named(kind: SpecKind) -> bool:
    """Return whether every description of *kind* has a name; by default it is the name of the file."""
    return "name" in kind.model_fields and kind.model_fields["name"].is_required()


_ANOTHER_MACHINE: Final = frozenset({"extends", "gpu", "gpu_count"})
"""Keys of a changed node to which the price of the original machine does not apply."""


def _with_copied_price(group: MarkedValue, changes: Any, origin: str) -> MarkedValue:
    """Return *group* of the machine *origin*, whose node gets *changes*, with the price that still applies: none with other GPUs.

    The price of a machine that is changed otherwise gets the name of *origin* (`Prices.copied_from`).
    """
    if not isinstance(changes, dict) or not _ANOTHER_MACHINE.isdisjoint(changes):
        return without(group, "price")
    price = group.value.get("price")
    if not changes or not isinstance(price, dict) or "copied_from" in price:
        return group
    return put(group, "price", put(child(group, "price"), "copied_from", MarkedValue(origin, group.mark)))


def _has_all(own: Any, added: Any) -> bool:
    """Return whether *own* has a value for every key of *added*, including the keys of its blocks."""
    if not isinstance(own, dict) or not isinstance(added, dict):
        return True
    return all(name in own and _has_all(own[name], inner) for name, inner in added.items())


def _unfolded(part: MarkedValue) -> MarkedValue:
    """Return the hardware *part*, with its ``node``, ``price`` and ``trays`` at the top level if it is one group of one node."""
    groups = part.value.get("groups")
    if isinstance(groups, list) and len(groups) == 1 and isinstance(groups[0], dict) and set(groups[0]) <= set(schema.UNFOLDED):
        group = child(child(part, "groups"), 0)
        part = without(part, "groups")
        for name in group.value:
            part = put(part, name, child(group, name))
    return part


def _folded(piece: MarkedValue) -> MarkedValue:
    """Return a group block with ``node``, ``price`` and ``trays`` from the top level of *piece*."""
    group = MarkedValue({}, piece.mark.holding({}), piece.key)
    for name in schema.UNFOLDED:
        group = put(group, name, child(piece, name)) if name in piece.value else group
    return group


def _merged_hardware(part: MarkedValue, own: MarkedValue, origin: str) -> MarkedValue:
    """Return the hardware *own* merged over *part*, the machine *origin*.

    A partial group of *own* is merged over the group at the same index of *part*.
    """
    if "groups" in own.value:
        groups = child(own, "groups")
        part_groups = _groups(part)
        for index, group in enumerate(groups.value if isinstance(groups.value, list) else ()):
            if index < len(part_groups) and _is_partial(group):
                groups = put(groups, index, _merged_group(part_groups[index], child(groups, index), origin))
        return _merged(without(part, *schema.UNFOLDED), put(own, "groups", groups))
    if not any(name in own.value for name in schema.UNFOLDED):
        return _merged(part, own)
    part = _unfolded(part)
    if len(part_groups := _groups(part)) == 1 and "groups" in part.value:
        group = _merged_group(part_groups[0], _folded(own), origin)
        own = put(without(own, *schema.UNFOLDED), "groups", MarkedValue([group.value], group.mark.holding({0: group.mark})))
        return _merged(part, own)
    return _merged_group(part, own, origin)


def _merged_group(part: MarkedValue, own: MarkedValue, origin: str) -> MarkedValue:
    """Return the group *own* merged over *part*, the same group of the machine *origin*; an own price replaces the other entirely."""
    if "price" in own.value:
        part = without(part, "price")
    elif "node" in own.value:
        part = _with_copied_price(part, own.value["node"], origin)
    return _merged(part, own)


def _groups(part: MarkedValue) -> list[MarkedValue]:
    """Return the groups of the hardware *part*; a single group may be written at the top level."""
    if "groups" not in part.value:
        return [_folded(part)]
    groups = child(part, "groups")
    blocks = groups.value if isinstance(groups.value, list) else []
    return [child(groups, index) for index, block in enumerate(blocks) if isinstance(block, dict)]


def _is_partial(group: Any) -> bool:
    """Return whether the block *group* lacks something that a group requires: its node, or a part of the node."""
    node = group.get("node", {}) if isinstance(group, dict) else None
    if not isinstance(node, dict) or "extends" in node:
        return False
    return any(field.is_required() and name not in node for name, field in Node.model_fields.items())


def _merged(part: MarkedValue, own: MarkedValue, kind: SpecKind | None = None) -> MarkedValue:
    """Return *own* merged over *part*: values of *own* win, blocks are merged key by key, a null in *own* drops the key.

    If the blocks are of a *kind* with sections, a tag in *own* also drops keys that do not apply to it (`sim.spec.sections`).
    """
    part = without(part, *inherited_foreign(kind, part.value, own.value))
    value, inside = dict(part.value), {**part.mark.inside, **own.mark.inside}
    if own.value:
        value.pop("assumed", None)  # a volume or processor that a file describes is not a placeholder
    for name, mine in own.value.items():
        if mine is None:
            value.pop(name, None)
        elif isinstance(mine, dict) and isinstance(value.get(name), dict) and not replaces(name, mine):
            value[name], inside[name], _ = _merged(child(part, name), child(own, name), schema.model_at(kind, (name,)) if kind else None)
        else:
            value[name] = mine
    return MarkedValue(value, own.mark.holding(inside), own.key)


def replaces(name: str, block: dict[str, Any]) -> bool:
    """Return whether *block* at the key *name* takes nothing over from the overridden one: it extends a part, or is a named volume."""
    return "extends" in block or (name == "volume" and "name" in block)
