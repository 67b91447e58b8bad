"""Which description does a name or path stand for? Finds files, follows references, applies overrides, validates.

A reference is text where a block is due: ``gpu: V100-SXM2-16GB`` means ``hardware/parts/gpus/v100-sxm2-16gb.yaml``. Inside a
block, ``extends: NAME`` takes the named part and lets the block's own keys win. Overrides (``node.nic.bandwidth=25 Gbps``)
apply after references, before validation, so they reach every field; each carries the place ``--set`` in messages.
"""

from __future__ import annotations

import copy
import difflib
import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, Generic, TypeVar

from pydantic import BaseModel, ValidationError

from sim.spec import schema, yaml
from sim.spec.hardware import Hardware
from sim.spec.workload import Workload
from sim.spec.yaml import Document, Key, Mark, SpecError

PART_FOLDERS: dict[str, str] = {
    "gpu": "hardware/parts/gpus",
    "link": "hardware/parts/links",
    "pcie": "hardware/parts/links",
    "socket_link": "hardware/parts/links",
    "cpu": "hardware/parts/cpus",
    "transport": "hardware/parts/transports",
    "nvlink_transport": "hardware/parts/transports",
    "peer_transport": "hardware/parts/transports",
    "host_transport": "hardware/parts/transports",
    "volume": "hardware/parts/volumes",
    "node": "hardware",
    "model": "workloads/models",
    "dataset": "workloads/datasets",
    "stack": "workloads/stacks",
}
"""Key whose text value names a part, and the folder it is looked up in."""

SUFFIX = ".yaml"
Model = TypeVar("Model", bound=BaseModel)
T = TypeVar("T", covariant=True)


@dataclass(frozen=True)
class Loaded(Generic[T]):
    """A validated description, the fingerprint of everything it says, and the document it came from."""

    spec: T
    sha256: str
    document: Document = field(repr=False, compare=False)


def roots() -> list[Path]:
    """Return the folders that hold ``hardware/`` and ``workloads/``: beside the package, or inside an installed wheel."""
    package = Path(__file__).resolve().parents[1]
    return [folder for folder in (package.parent, package / "data") if (folder / "hardware" / "parts").is_dir()]


def catalogue(folder: str) -> dict[str, Path]:
    """Return every file directly in *folder* of the library (``hardware``, ``workloads/stacks``, ...) by name."""
    found: dict[str, Path] = {}
    for root in roots():
        for path in sorted((root / folder).glob("*" + SUFFIX)):
            found.setdefault(path.stem, path)
    return found


def load_hardware(name: str, overrides: Iterable[str] = (), library: Path | None = None) -> Loaded[Hardware]:
    """Return the hardware that *name* (path or catalogue name) describes, with *overrides* applied.

    *library* is a folder of further hardware files, searched before the catalogue.
    """
    document = _resolved(name, "hardware", overrides, library)
    return _validated(Hardware, document)


def load_workload(name: str, overrides: Iterable[str] = (), library: Path | None = None) -> Loaded[Workload]:
    """Return the workload that *name* (path or catalogue name) describes, with *overrides* applied."""
    document = _resolved(name, "workloads", overrides, library)
    return _validated(Workload, document)


def load_part(kind: type[Model], name: str, folder: str) -> Model:
    """Return the part *name* of *folder* alone, for example a stack."""
    document = copy.deepcopy(_read(_locate(name, folder, None, None)))
    _expand(document, (), document.value, Path(document.file).parent)
    return _validated(kind, document).spec


def fingerprint(value: Any) -> str:
    """Return the SHA-256 of plain data, independent of key order."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()


# --- finding files ---------------------------------------------------------------------------------------------------


def _locate(name: str, folder: str, beside: Path | None, mark: Mark | None) -> Path:
    """Return the file that *name* stands for: a path (relative to *beside* too), or a name in *folder* of the library."""
    where = f"{mark}: " if mark else ""
    for candidate in [Path(name), *([beside / name] if beside else [])]:
        if candidate.is_file():
            return candidate
    if name.endswith((".yaml", ".yml")) or "/" in name or "\\" in name:
        if Path(name).is_dir():
            raise SpecError(f"{where}{name}: is a folder; a YAML file or a catalogue name is due")
        raise SpecError(f"{where}{name}: no such file{_nearest(Path(name).stem, folder)}")
    for place in [*([beside / (name + SUFFIX), beside / (name.lower() + SUFFIX)] if beside else [])]:
        if place.is_file():
            return place
    known = catalogue(folder)
    for spelling in (name, name.lower()):
        if spelling in known:
            return known[spelling]
    by_lower = {known_name.lower(): path for known_name, path in known.items()}
    if name.lower() in by_lower:
        return by_lower[name.lower()]
    if (path := _by_alias(name, known)) is not None:
        return path
    raise SpecError(f"{where}{name}: not in the catalogue ({folder}/){_nearest(name, folder)}")


def _by_alias(name: str, known: Mapping[str, Path]) -> Path | None:
    for path in known.values():
        text = path.read_text(encoding="utf-8")
        if "aliases:" not in text or name not in text:
            continue
        if name in (yaml.read(path).value.get("aliases") or ()):
            return path
    return None


def _nearest(name: str, folder: str) -> str:
    near = difflib.get_close_matches(name.lower(), [known.lower() for known in catalogue(folder)], n=3, cutoff=0.5)
    return f"; did you mean {' or '.join(near)}?" if near else f"; 'sim list' shows what {folder}/ holds"


@lru_cache(maxsize=512)
def _read_unchanged(path: Path, stamp: int, size: int) -> Document:
    return yaml.read(path)


def _read(path: Path) -> Document:
    try:
        stat = path.stat()
    except OSError as error:
        raise SpecError(f"{path}: cannot be read: {error.strerror}") from None
    return _read_unchanged(path, stat.st_mtime_ns, stat.st_size)


# --- references, extends, overrides ----------------------------------------------------------------------------------


def _resolved(name: str, folder: str, overrides: Iterable[str], library: Path | None) -> Document:
    path = _locate(name, folder, library, None)
    document = copy.deepcopy(_read(path))
    if not isinstance(document.value, dict):
        raise SpecError(f"{document.mark(())}: a mapping of keys is due, not {type(document.value).__name__}")
    beside = path.parent
    _expand_block(document, (), folder, beside)
    for override in overrides:
        for part in override.split(";"):
            if part.strip():
                _override(document, part.strip(), beside)
    _expand(document, (), document.value, beside)
    if folder == "hardware":
        _group(document)
    return document


def _expand(document: Document, key: Key, value: Any, beside: Path, depth: int = 0) -> None:
    """Replace every reference below *key* by the part it names."""
    if depth > yaml.MAX_DEPTH:
        raise SpecError(f"{document.mark(key)}: {yaml.dotted(key)}: references form a circle or nest deeper than {yaml.MAX_DEPTH}")
    if isinstance(value, dict):
        for name in list(value):
            if name in PART_FOLDERS and (isinstance(value[name], str) or (isinstance(value[name], dict) and "extends" in value[name])):
                _expand_at(document, value, (*key, name), beside)
            _expand(document, (*key, name), value[name], beside, depth + 1)
    elif isinstance(value, list):
        for index, child in enumerate(value):
            _expand(document, (*key, index), child, beside, depth + 1)


def _expand_at(document: Document, holder: dict[str, Any], key: Key, beside: Path) -> None:
    name = str(key[-1])
    folder = PART_FOLDERS[name]
    own = holder[name]
    if isinstance(own, dict):
        _expand_block(document, key, folder, beside)
        return
    part, marks = _part(own, folder, beside, document.mark(key), ())
    if name == "node":
        if not isinstance(part.get("node"), dict):
            raise SpecError(f"{document.mark(key)}: {own}: has no single 'node' to take")
        if "price" in part and "price" not in holder:
            holder["price"] = part["price"]
            _graft(document, (*key[:-1], "price"), marks, ("price",))
        part, marks = part["node"], {mark_key[1:]: mark for mark_key, mark in marks.items() if mark_key[:1] == ("node",)}
    holder[name] = part
    _graft(document, key, marks, ())


def _expand_block(document: Document, key: Key, folder: str, beside: Path) -> None:
    """Merge what the block at *key* extends below its own keys."""
    block = _value_at(document.value, key)
    if not isinstance(block, dict) or "extends" not in block:
        return
    base_name = block.pop("extends")
    mark = document.mark((*key, "extends"))
    if not isinstance(base_name, str):
        raise SpecError(f"{mark}: {yaml.dotted((*key, 'extends'))}: the name of one part is due")
    base, marks = _part(base_name, folder, beside, mark, ())
    own_marks = {mark_key: place for mark_key, place in document.marks.items() if mark_key[: len(key)] == key}
    _graft(document, key, marks, ())
    document.marks.update(own_marks)
    if folder == "hardware":
        base.pop("aliases", None)
    _merge(base, block)
    block.clear()
    block.update(base)


def _part(name: str, folder: str, beside: Path, mark: Mark, seen: tuple[Path, ...]) -> tuple[dict[str, Any], dict[Key, Mark]]:
    """Return the plain data and places of part *name*, its own references already followed."""
    path = _locate(name, folder, _part_neighbour(beside, folder), mark)
    part = copy.deepcopy(_read(path))
    if not isinstance(part.value, dict):
        raise SpecError(f"{part.mark(())}: a mapping of keys is due")
    if "extends" in part.value:
        if path in seen:
            raise SpecError(f"{part.mark(('extends',))}: extends itself through {name}")
        base, marks = _part(str(part.value.pop("extends")), folder, path.parent, part.mark(("extends",)), (*seen, path))
        part.marks = marks | part.marks
        base.pop("aliases", None)
        _merge(base, part.value)
        part.value = base
    _expand(part, (), part.value, path.parent)
    return part.value, part.marks


def _part_neighbour(beside: Path, folder: str) -> Path:
    """Return where a file in *beside* would keep its own parts of *folder*: its parts folder if it has one, else itself."""
    tail = folder.split("/", 1)[-1]
    for ancestor in (beside, *beside.parents[:3]):
        if (ancestor / tail).is_dir():
            return ancestor / tail
    return beside


def _graft(document: Document, key: Key, marks: Mapping[Key, Mark], below: Key) -> None:
    for mark_key, mark in marks.items():
        if mark_key[: len(below)] == below:
            document.marks[(*key, *mark_key[len(below) :])] = mark


def _merge(base: dict[str, Any], own: Mapping[str, Any]) -> None:
    for name, value in own.items():
        if isinstance(value, dict) and isinstance(base.get(name), dict):
            _merge(base[name], value)
        else:
            base[name] = value


def _value_at(value: Any, key: Key) -> Any:
    for part in key:
        value = value[part]
    return value


def _override(document: Document, text: str, beside: Path) -> None:
    """Apply one ``dotted.key=value``."""
    dotted, equals, written = text.partition("=")
    if not equals or not dotted.strip():
        raise SpecError(f"--set {text}: write KEY=VALUE, for example node.nic.bandwidth='25 Gbps'")
    key: list[str | int] = []
    holder: Any = document.value
    names = dotted.strip().split(".")
    for position, name in enumerate(names):
        step: str | int = int(name) if isinstance(holder, list) and name.lstrip("-").isdigit() else name
        key.append(step)
        if position == len(names) - 1:
            _assign(document, holder, tuple(key), yaml.parse(written or '""', f"--set {dotted.strip()}").value if written.strip() else "", text)
            return
        if isinstance(holder, list):
            if not isinstance(step, int) or not -len(holder) <= step < len(holder):
                raise SpecError(f"--set {text}: {yaml.dotted(tuple(key))}: a place 0..{len(holder) - 1} of the list is due")
        elif isinstance(holder, dict):
            if name not in holder:
                holder[name] = {}
            elif name in PART_FOLDERS and not isinstance(holder[name], list):
                if isinstance(holder[name], str) or "extends" in holder[name]:
                    _expand_at(document, holder, tuple(key), beside)
        else:
            raise SpecError(f"--set {text}: {yaml.dotted(tuple(key[:-1]))} is a single value, it has no '{name}'")
        holder = holder[step]


def _assign(document: Document, holder: Any, key: Key, value: Any, text: str) -> None:
    if isinstance(holder, list):
        if not isinstance(key[-1], int) or not -len(holder) <= key[-1] < len(holder):
            raise SpecError(f"--set {text}: {yaml.dotted(key)}: a place 0..{len(holder) - 1} of the list is due")
    elif not isinstance(holder, dict):
        raise SpecError(f"--set {text}: {yaml.dotted(key[:-1])} is a single value, it has no '{key[-1]}'")
    holder[key[-1]] = value
    for mark_key in [mark_key for mark_key in document.marks if mark_key[: len(key)] == key]:
        del document.marks[mark_key]
    document.marks[key] = Mark(f"--set {text}", 1, len(text.partition("=")[0]) + 2)


def _group(document: Document) -> None:
    """Turn ``node`` (and ``price``) at the top into one group of one node."""
    value = document.value
    if "node" not in value:
        return
    if "groups" in value:
        raise SpecError(f"{document.mark(('groups',))}: groups: stands beside 'node'; write one of the two")
    group = {"node": value.pop("node")}
    if "price" in value:
        group["price"] = value.pop("price")
    value["groups"] = [group]
    for key in [key for key in document.marks if key[:1] in (("node",), ("price",))]:
        document.marks[("groups", 0, *key)] = document.marks[key]


# --- validation ------------------------------------------------------------------------------------------------------


def _validated(kind: type[Model], document: Document) -> Loaded[Model]:
    sha256 = fingerprint(document.value)
    try:
        return Loaded(kind.model_validate(document.value), sha256, document)
    except ValidationError as error:
        raise SpecError([_problem(kind, document, problem) for problem in error.errors()]) from None


def _problem(kind: type[BaseModel], document: Document, problem: Any) -> str:
    key = _present(document.value, tuple(problem["loc"]))
    shown = key[2:] if key[:2] == ("groups", 0) and ("node",) in document.marks or ("price",) in document.marks else key
    mark = document.mark(key)
    if problem["type"] == "missing":
        name = str(problem["loc"][-1])
        return f"{document.mark(key)}: {yaml.dotted((*shown, name))}: missing; {schema.describe(kind, (*key, name))}"
    if problem["type"] == "extra_forbidden":
        fields = schema.keys_at(kind, key[:-1])
        near = difflib.get_close_matches(str(key[-1]), fields, n=1, cutoff=0.5)
        hint = f"did you mean '{near[0]}'?" if near else f"known keys: {', '.join(sorted(fields)) or 'none'}"
        return f"{mark}: {yaml.dotted(shown)}: unknown key; {hint}"
    message = str(problem["msg"]).removeprefix("Value error, ").removeprefix("Assertion failed, ")
    seen = problem.get("input")
    value = f" (found {seen!r})" if isinstance(seen, str | int | float | bool) and repr(seen) not in message and str(seen) not in message else ""
    return f"{mark}: {yaml.dotted(shown) or kind.__name__.lower()}: {message}{value}"


def _present(value: Any, location: tuple[Any, ...]) -> Key:
    """Return the part of pydantic's *location* that exists in the document; the rest names union members."""
    key: list[str | int] = []
    for part in location:
        if isinstance(value, dict) and part in value:
            value = value[part]
        elif isinstance(value, list) and isinstance(part, int) and part < len(value):
            value = value[part]
        else:
            break
        key.append(part)
    return tuple(key)
