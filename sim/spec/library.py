"""What does a description contain? Loads hardware, workloads and parts by path or catalog name, with overrides, and validates them.

Order: find the file (``catalog``), merge ``extends`` (``references``), apply overrides (``overrides``), resolve references,
validate (``validation``). All problems are reported at once, each with its place in the file.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar

from pydantic import BaseModel

from sim.spec import overrides as override
from sim.spec import schema
from sim.spec.catalog import SUFFIX, SearchFolders, catalog, locate, read, roots
from sim.spec.elsewhere import cached
from sim.spec.hardware import Hardware
from sim.spec.model import Model
from sim.spec.overrides import Override
from sim.spec.references import Resolver
from sim.spec.validation import require_kind, validate
from sim.spec.workload import Workload
from sim.spec.yaml import Document, Mark, SpecError

__all__ = [
    "SUFFIX",
    "Loaded",
    "SpecError",
    "catalog",
    "fingerprint",
    "load",
    "load_hardware",
    "load_model_alone",
    "load_part",
    "load_workload",
    "locate",
    "roots",
]

SYNTHETIC = "synthetic-images"
"""The data set of a model file that is run without a workload: nothing is read or prepared."""
ALONE = 32
"""Samples per GPU of such a model."""

Described = TypeVar("Described", bound=BaseModel)
T = TypeVar("T", covariant=True)


@dataclass(frozen=True)
class Loaded(Generic[T]):
    """A validated description, the fingerprint of its contents, and its source document."""

    spec: T
    sha256: str
    document: Document = field(repr=False, compare=False)


def load_hardware(name: str, overrides: Iterable[Override] = (), library: SearchFolders = None) -> Loaded[Hardware]:
    """Return the hardware that *name* (path or catalog name) describes, with *overrides* applied.

    *library* are folders with more hardware files, searched before the catalog. Raise SpecError with all problems.
    """
    return load(Hardware, _located(name, "hardware", library), overrides, library)


def load_workload(name: str, overrides: Iterable[Override] = (), library: SearchFolders = None) -> Loaded[Workload]:
    """Return the workload that *name* (path or catalog name) describes, with *overrides* applied; *name* may also be a model file."""
    path = _located(name, "workloads", library)
    return load_model_alone(path, overrides) if _holds_model(path) else load(Workload, path, overrides, library)


def is_model(name: str, library: SearchFolders = None) -> bool:
    """Return whether *name* refers to a model file, which a workload cannot extend."""
    return _holds_model(_located(name, "workloads", library))


def _holds_model(path: Path) -> bool:
    contents = read(path).value
    return isinstance(contents, dict) and ("layers" in contents or "transformer" in contents) and schema.kind_of(contents) is Model


def load_model_alone(path: Path, overrides: Iterable[Override] = ()) -> Loaded[Workload]:
    """Return a workload for the model file *path* on its own: 32 synthetic samples per GPU, or for a decoder its defaults."""
    changes = tuple(overrides)
    return cached((Model, Workload, path, changes), lambda: _load_alone(path, changes))


def _load_alone(path: Path, overrides: tuple[Override, ...]) -> Loaded[Workload]:
    model = read(path)
    contents: dict[str, Any] = {"name": path.stem, "model": f"./{path.name}"}
    if not isinstance(model.value, dict):
        raise SpecError(f"{path}:1:1: expected a model, a mapping with layers or transformer; see docs/reference/fields.md")
    if "transformer" not in model.value:
        prepared = {"prepared": model.value["input"]} if isinstance(model.value.get("input"), str) else {}
        contents |= {"dataset": {"extends": SYNTHETIC, **prepared}, "training": {"batch": ALONE}}
    resolver = Resolver()
    document = override.apply(resolver, Document(contents, Mark(str(path), inside={"model": Mark(str(path), 1, 1)})), Workload, overrides)
    document = resolver.finish(document, Workload)
    return Loaded(validate(Workload, document, resolver.problems), fingerprint(document.value), document)


def _located(name: str, folder: str, library: SearchFolders) -> Path:
    return cached((Path, name, folder, library), lambda: locate(name, folder, library))


def load_part(kind: type[Described], name: str) -> Described:
    """Return the part of *kind* that *name* (path or catalog name) describes, for example a stack. Raise SpecError with all problems."""
    return load(kind, _located(name, schema.FOLDERS[kind], None)).spec


def load(kind: type[Described], path: Path, overrides: Iterable[Override] = (), library: SearchFolders = None) -> Loaded[Described]:
    """Return the description of *kind* in the file *path*, with *overrides* applied."""
    changes = tuple(overrides)
    return cached((kind, path, changes, library), lambda: _load(kind, path, changes, library))


def _load(kind: type[Described], path: Path, overrides: Iterable[Override], library: SearchFolders) -> Loaded[Described]:
    resolver = Resolver(library)
    written = resolver.open(path, kind)
    require_kind(kind, written)
    document = resolver.finish(override.apply(resolver, written, kind, overrides), kind)
    spec = validate(kind, document, resolver.problems)
    return Loaded(spec, fingerprint(document.value), document)


def fingerprint(value: Any) -> str:
    """Return the SHA-256 of plain data, independent of key order."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()
