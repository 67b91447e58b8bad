"""Is a number of a user's machine or part of another order of magnitude than in the catalog? Its unit may be wrong: GFLOP/s for TFLOP/s.

A number is unusual if it is a hundred times the value in the description that the file extends, or a hundredth of it, and outside the
catalog's range; or, if the file extends nothing, that far outside the range. GPUs are compared with those of their architecture, if the
catalog has some. What-if studies may want such numbers, so that they are notes, not problems. Limits: only data sheet values; numbers
of the catalog's own files, which a machine names or extends, are not looked at again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from sim import units
from sim.spec import catalog, library, schema
from sim.spec import hardware as hw
from sim.spec.fields import Key, Spec
from sim.spec.sections import blocks
from sim.spec.yaml import Document, SpecError

FAR: Final = 100.0
"""Factor beyond which a number is unusual: units are wrong by 1,000, or by 8 with other slips that no check can tell from a choice."""

_COMPARED: Final[Mapping[type[Spec], Mapping[str, str]]] = {
    hw.Gpu: {"memory": "size", "memory_bandwidth": "bandwidth", "peak": "compute rate", "power": "power"},
    hw.Link: {"bandwidth": "bandwidth"},
    hw.Cpu: {"clock": "frequency", "memory_bandwidth": "bandwidth"},
    hw.Host: {"memory": "binary size"},
    hw.Nic: {"bandwidth": "bit rate"},
}
"""The fields that are compared, by block, and their dimensions."""

CPU: Final = "cpu"
"""Architecture of a share of a CPU that takes the place of a GPU (`calibration fit`); the catalog has none to compare it with."""

_ComparedNumber = tuple[type[Spec], str, str, str]
"""Block, architecture of a GPU (or empty), field, and key inside the field (or empty)."""


def unusual_values(spec: Spec, document: Document, path: Path) -> Iterator[str]:
    """Yield a sentence on each unusual number of *spec*, which is described in *path* (`document` after resolving)."""
    origins = dict(_origin_values(type(spec), path))
    for key, place, number, dimension in _numbers(spec):
        origin, name = origins.get(key, (None, ""))
        if (origin is not None and origin / FAR < number < origin * FAR) or _is_of_catalog(document.mark(key).file, path):
            continue
        low, high = _usual(place)
        if low <= number <= high or high == 0.0:
            continue
        if origin is None and low / FAR < number < high * FAR:
            continue
        than = f", {name} has {units.show(origin, dimension)}" if origin is not None else ""
        usual = units.show(low, dimension) if low == high else f"{units.show(low, dimension)} to {units.show(high, dimension)}"
        yield f"{document.spell(key)}: {units.show(number, dimension)}{than}; usual in the catalog: {usual}; is the unit right?"


def _is_of_catalog(file: str, path: Path) -> bool:
    """Return whether *file*, where a number is written, is another file than *path*, and one of the catalog."""
    return file != str(path) and any(Path(file).is_relative_to(root) for root in catalog.roots())


def _numbers(spec: Spec) -> Iterator[tuple[Key, _ComparedNumber, float, str]]:
    """Yield key, place, value and dimension of each compared number of *spec*."""
    for key, block in blocks(spec):
        if isinstance(block, hw.Gpu) and block.architecture == CPU:
            continue
        for field, dimension in _COMPARED.get(type(block), {}).items():
            value = block.__dict__[field]
            for inner, number in value.items() if isinstance(value, Mapping) else (("", value),):
                if number is not None:
                    architecture = block.architecture if isinstance(block, hw.Gpu) else ""
                    yield (*key, field, *([inner] if inner else [])), (type(block), architecture, field, inner), number, dimension


def _origin_values(kind: type[Spec], path: Path) -> Iterator[tuple[Key, tuple[float, str]]]:
    """Yield by key the numbers of the descriptions that *path*, of this *kind*, extends, with their names; inner ones come last."""
    for key, name in _extended(catalog.read(path).value, ()):
        place = ("groups", 0, *key) if key[:1] == ("node",) else key
        model = schema.model_at(kind, place) if place else kind
        if model not in schema.FOLDERS:
            continue
        with suppress(SpecError):
            origin = library.load(model, catalog.locate(name, schema.FOLDERS[model], written_in=path)).spec
            for inner, _, number, _ in _numbers(origin) if isinstance(origin, Spec) else ():
                yield (*place, *inner), (number, name)


def _extended(value: Any, key: Key) -> Iterator[tuple[Key, str]]:
    """Yield the key of each mapping in *value*, which is at *key*, that extends a description, with the name of that."""
    if not isinstance(value, Mapping):
        return
    if isinstance(value.get("extends"), str):
        yield key, value["extends"]
    for name, inner in value.items():
        yield from _extended(inner, (*key, name))


def _usual(place: _ComparedNumber) -> tuple[float, float]:
    """Return the least and the largest value at *place* in the catalog; zeros if there is none."""
    kind, _, field, inner = place
    ranges = _catalog_ranges(kind, tuple(catalog.roots()))
    return ranges.get(place) or ranges.get((kind, "", field, inner)) or (0.0, 0.0)


@lru_cache(maxsize=len(_COMPARED))
def _catalog_ranges(kind: type[Spec], roots: tuple[Path, ...]) -> dict[_ComparedNumber, tuple[float, float]]:
    """Return the range of each number of *kind* over the catalog at *roots*: of GPUs by architecture, and of all."""
    ranges: dict[_ComparedNumber, tuple[float, float]] = {}
    for place, number in _of_parts(kind, roots) if kind in schema.FOLDERS else _of_machines(kind, roots):
        for each in dict.fromkeys((place, (place[0], "", *place[2:]))):
            low, high = ranges.get(each, (number, number))
            ranges[each] = min(low, number), max(high, number)
    return ranges


def _of_parts(kind: type[Spec], roots: tuple[Path, ...]) -> Iterator[tuple[_ComparedNumber, float]]:
    """Yield place and value of each number in the catalog's files of *kind*."""
    for path in _files(schema.FOLDERS[kind], roots):
        for _, place, number, _ in _numbers(library.load(kind, path).spec):
            yield place, number


def _of_machines(kind: type[Spec], roots: tuple[Path, ...]) -> Iterator[tuple[_ComparedNumber, float]]:
    """Yield place and value of each number that is written in a block *kind* of a machine, without resolving what the machine names."""
    [name] = [name for name, field in hw.Node.model_fields.items() if field.annotation is kind]
    for path in _files("hardware", roots):
        for block in _blocks(catalog.read(path).value, name):
            for field, dimension in _COMPARED[kind].items():
                if field in block:
                    yield (kind, "", field, ""), units.parse(block[field], units.PARSED.get(dimension, dimension))


def _blocks(value: Any, name: str) -> Iterator[Mapping[str, Any]]:
    """Yield the mappings with the key *name* at any depth of *value*."""
    for key, inner in value.items() if isinstance(value, Mapping) else enumerate(value) if isinstance(value, list) else ():
        if key == name and isinstance(inner, Mapping):
            yield inner
        yield from _blocks(inner, name)


def _files(folder: str, roots: tuple[Path, ...]) -> Iterator[Path]:
    return (path for path in catalog.all_files(folder).values() if any(map(path.is_relative_to, roots)))
