"""What does a description say? Loads hardware, workloads and parts by path or catalogue name, with overrides, validated.

Order: find the file (``catalogue``), merge ``extends`` (``references``), apply overrides (``overrides``), follow references,
validate (``validation``). Everything wrong is reported at once, each problem with its place.
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
from sim.spec import schema, shelf
from sim.spec.catalogue import SUFFIX, Library, catalogue, locate, read, roots
from sim.spec.hardware import Hardware
from sim.spec.overrides import Override
from sim.spec.references import Resolver
from sim.spec.validation import require_kind, validated
from sim.spec.workload import Model, Workload
from sim.spec.yaml import Document, Mark, SpecError

__all__ = [
    "SUFFIX",
    "Loaded",
    "SpecError",
    "catalogue",
    "fingerprint",
    "layer_table",
    "load",
    "load_hardware",
    "load_model_alone",
    "load_part",
    "load_workload",
    "locate",
    "roots",
]

Spec = TypeVar("Spec", bound=BaseModel)
T = TypeVar("T", covariant=True)


@dataclass(frozen=True)
class Loaded(Generic[T]):
    """A validated description, the fingerprint of everything it says, and the document it came from."""

    spec: T
    sha256: str
    document: Document = field(repr=False, compare=False)


def load_hardware(name: str, overrides: Iterable[Override] = (), library: Library = None) -> Loaded[Hardware]:
    """Return the hardware that *name* (path or catalogue name) describes, with *overrides* applied.

    *library* are folders of further hardware files, searched before the catalogue. Raise SpecError with all that is wrong.
    """
    return load(Hardware, _found(name, "hardware", library), overrides, library)


def load_workload(name: str, overrides: Iterable[Override] = (), library: Library = None) -> Loaded[Workload]:
    """Return the workload that *name* (path or catalogue name) describes, with *overrides* applied."""
    return load(Workload, _found(name, "workloads", library), overrides, library)


def load_model_alone(path: Path, overrides: Iterable[Override] = ()) -> Loaded[Workload]:
    """Return a workload for the layer table *path* that no file describes: 32 samples a step in torch's DDP."""
    said = {
        "name": path.stem,
        "model": str(path.resolve()),
        "dataset": "synthetic-images",
        "training": {"batch": 32, "stack": "torch-1.13-ddp"},
    }
    resolver = Resolver()
    document = override.apply(resolver, Document(said, Mark(str(path))), Workload, tuple(overrides))
    document = resolver.finish(document, Workload)
    return Loaded(validated(Workload, document, resolver.problems), fingerprint(document.value), document)


def layer_table(name: str) -> Path | None:
    """Return the file that *name* (path or catalogue name of a workload) stands for where that is a layer table alone."""
    path = locate(name, "workloads")
    return path if schema.kind_of(read(path).value) is Model else None


def _found(name: str, folder: str, library: Library) -> Path:
    return shelf.remembered((Path, name, folder, library), lambda: locate(name, folder, library))


def load_part(kind: type[Spec], name: str, folder: str) -> Spec:
    """Return the part *name* of *folder* alone, for example a stack."""
    return load(kind, locate(name, folder)).spec


def load(kind: type[Spec], path: Path, overrides: Iterable[Override] = (), library: Library = None) -> Loaded[Spec]:
    """Return the *kind* of description that the file *path* holds, with *overrides* applied."""
    asked = tuple(overrides)
    return shelf.remembered((kind, path, asked, library), lambda: _load(kind, path, asked, library))


def _load(kind: type[Spec], path: Path, overrides: Iterable[Override], library: Library) -> Loaded[Spec]:
    resolver = Resolver(library)
    written = resolver.open(path, kind)
    require_kind(kind, written)
    document = resolver.finish(override.apply(resolver, written, kind, overrides), kind)
    spec = validated(kind, document, resolver.problems)
    return Loaded(spec, fingerprint(document.value), document)


def fingerprint(value: Any) -> str:
    """Return the SHA-256 of plain data, independent of key order."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()
