"""What does a layer table look like on disk? YAML with one line per operator call, exact numbers with units, and totals in comments.

Reading a table and writing it again gives the same bytes. A table is written to a temporary file and renamed, so that no partial table
can exist.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import groupby
from pathlib import Path
from typing import Any, Final

import yaml as pyyaml

from sim import units
from sim.spec import yaml
from sim.spec.layer import Attention, Layer
from sim.spec.measured import MeasuredTimes
from sim.spec.model import Model
from sim.spec.segments import block
from sim.spec.whole_file import write_files
from sim.spec.yaml import SpecError

_WORK: Final = ("forward", "backward", "arithmetic", "backward_arithmetic")
_UNITS: Final = {**dict.fromkeys(_WORK, "FLOP"), "read": "B", "entering": "B", "write": "B", "backward_traffic": "B", "saved": "B"}


def write(model: Model, path: Path) -> None:
    """Write *model* to *path* atomically; raise SpecError if that is not possible."""
    write_files(path.parent, {path.name: render(model)})


def render(model: Model) -> str:
    """Return *model* as YAML text."""
    lines = [_comment(line) for line in _heading(model)]
    lines += [f"{key}: {quote_word(value)}" for key, value in to_plain(model).items() if key not in ("layers", "source")]
    lines += [f"source: {quote_word(model.source)}", "layers:"]
    for name, members in groupby(model.layers, key=lambda layer: block(layer.name)):
        inside = list(members)
        lines += ["  " + _comment(_total(name, inside))] if len(inside) > 1 else []
        lines += [f"  - {{{_fields(layer_to_plain(layer))}}}" for layer in inside]
    return "\n".join(lines) + "\n"


def to_plain(model: Model) -> dict[str, Any]:
    """Return *model* as plain data with units, as in its YAML; fields with default values are left out."""
    result: dict[str, Any] = {"name": model.name}
    if model.command:
        result["command"] = model.command
    result |= {"parameters": model.parameters}
    if model.unused:
        result["unused"] = model.unused
    result["input"] = _quantity(model.input, "B")
    if model.buffers:
        result["buffers"] = _quantity(model.buffers, "B")
    if model.autocast_saved:
        result["autocast_saved"] = _quantity(model.autocast_saved, "B")
    result |= {key: list(paths) for key, paths in _modules(model) if paths}
    return result | {"source": model.source, "layers": [layer_to_plain(layer) for layer in model.layers]}


def _modules(model: Model) -> tuple[tuple[str, tuple[str, ...]], ...]:
    return ("lists", model.lists), ("called_lists", model.called_lists), ("leaves", model.leaves)


def layer_to_plain(layer: Layer) -> dict[str, Any]:
    """Return *layer* as plain data with units; fields with default values are left out."""
    result: dict[str, Any] = {}
    for key, field in Layer.model_fields.items():
        value = getattr(layer, key)
        if field.is_required() or value != field.default:
            result[key] = _plain(key, value)
    return result


def _plain(key: str, value: Any) -> Any:
    """Return the *value* of a layer's *key* as plain data with units."""
    if isinstance(value, MeasuredTimes):
        times = {name: each for name, each in value if each}
        return {name: each if name.endswith("launches") else _quantity(each, "s") for name, each in times.items()}
    if isinstance(value, Attention):
        return value.model_dump(exclude_defaults=True)
    if isinstance(value, tuple):
        return list(value)
    return _quantity(value, _UNITS[key]) if key in _UNITS else value


def _comment(text: str) -> str:
    """Return *text* as a comment; unprintable characters, such as line breaks, become question marks."""
    return "# " + "".join(letter if letter.isprintable() else "?" for letter in text)


def _quantity(value: float, unit: str) -> str:
    return f"{int(value) if value == int(value) else value} {unit}"


def _fields(values: dict[str, Any]) -> str:
    return ", ".join(f"{key if key.isidentifier() else quote_word(key)}: {quote_word(value)}" for key, value in values.items())


def quote_word(value: Any) -> str:
    """Return *value* as YAML text inside braces; text is quoted if it would be read as something else."""
    if isinstance(value, list):
        return "[" + ", ".join(quote_word(item) for item in value) + "]"
    if isinstance(value, dict):
        return "{" + _fields(value) + "}"
    if isinstance(value, float) and "e" in (text := json.dumps(value)) and "." not in text:
        return text.replace("e", ".0e")  # YAML 1.1 would read 1e-06 as a string
    return _text(value) if isinstance(value, str) else json.dumps(value)


@lru_cache(maxsize=1 << 14)
def _text(value: str) -> str:
    try:
        same = yaml.parse(f"[{{word: {value}}}]").value == [{"word": value}]
    except SpecError:
        same = False
    return value if same else pyyaml.dump(value, default_style='"', width=sys.maxsize).rstrip("\n")


def _heading(model: Model) -> Iterator[str]:
    tensors = [elements for layer in model.layers for elements in layer.gradients]
    yield _total(model.name, model.layers)
    if sum(tensors) < model.parameters:
        yield f"{model.parameters - sum(tensors):,} of {model.parameters:,} parameters get no gradient (frozen or unused)."
    if model.command:
        yield f"Written by: {model.command}"
    yield "One line per operator call, in forward order; backward runs them in reverse. FLOP and bytes are per sample, elements of 4 bytes."
    yield "forward and backward count products (convolutions, matrix products, attention), arithmetic what layers without them compute."


def _counted(parameters: int) -> str:
    return f"{parameters / 1e6:,.1f} M" if parameters >= 100_000 else f"{parameters:,}"


def _total(title: str, layers: Sequence[Layer]) -> str:
    tensors = [elements for layer in layers for elements in layer.gradients]
    forward, backward = sum(layer.forward for layer in layers), sum(layer.backward for layer in layers)
    parts = [f"{_counted(sum(tensors))} trainable parameters in {len(tensors)} tensors"] if tensors else []
    parts += [f"{units.show(forward, 'work')} forward, {units.show(backward, 'work')} backward"] if forward else []
    saved = sum(layer.saved for layer in layers)
    parts += [f"stores {units.show(saved, 'size')} of activations"] if saved else []
    return f"{title}: {'; '.join(parts)}" if parts else title
