"""Which numbers of a description are guesses? Those whose ``source`` starts with ``estimate``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from sim.spec.fields import Key, Spec
from sim.spec.references import IMPLIED
from sim.spec.sections import blocks, file_values, written_keys
from sim.spec.yaml import Document, Mark


class Estimate(NamedTuple):
    """One number without a public source."""

    key: str
    """Dotted key as the user writes it, good for ``--set``."""
    reason: str
    value: Any
    """In SI units; a curve is a tuple of (size, value) points."""
    file: str = ""
    """The file with the number; for a default, the file of the block that omits it."""

    def __str__(self) -> str:
        return f"{self.key}: estimate ({self.reason})"


def count_estimates(spec: Spec, document: Document | None = None) -> list[Estimate]:
    """Return every number of *spec* with the source ``estimate``, in the order of its keys; *document* gives their spelling."""
    document = document or Document(None, Mark(""), IMPLIED)
    return [
        Estimate(document.spell((*key, *inner)), reason, value, document.mark((*key, *inner)).file)
        for key, block in blocks(spec)
        for inner, value, reason in _estimated_numbers(block)
    ]


def _estimated_numbers(block: Spec) -> Iterator[tuple[Key, Any, str]]:
    """Yield the key, value and reason of the numbers of *block* that are estimates."""
    source = block.__dict__.get("source")  # not all blocks have this field; a model's layers do not
    if not isinstance(source, dict) and _estimate_reason(source) is None:
        return
    for key, value in _numbers(block):
        if (reason := _reason(source, key)) is not None:
            yield key, value, reason


def _numbers(block: Spec) -> Iterator[tuple[Key, Any]]:
    """Yield the numbers and curves that the source of *block* covers: those written there, or the defaults if the source is a default."""
    written = written_keys(block)
    by_default = "source" not in written
    for name, value in file_values(block).items():
        if (name in written) != by_default:
            yield from _leaves((name,), value)


def _leaves(key: Key, value: Any) -> Iterator[tuple[Key, Any]]:
    if isinstance(value, Mapping):
        for name, inner in value.items():
            yield from _leaves((*key, name), inner)
    elif (isinstance(value, int | float) and not isinstance(value, bool)) or _is_curve(value):
        yield key, value


def _is_curve(value: Any) -> bool:
    return isinstance(value, tuple) and bool(value) and isinstance(value[0], tuple)


def _reason(source: Any, key: Key) -> str | None:
    """Return why the number at *key* of a block with that *source* is an estimate; None if it has a source."""
    if isinstance(source, dict):
        spellings = [".".join(map(str, key[:length])) for length in range(len(key), 0, -1)]
        source = next((source[name] for name in (*spellings, "*") if name in source), None)
    return _estimate_reason(source)


def _estimate_reason(source: Any) -> str | None:
    """Return the reason given in an estimate's *source*; None if it is not an estimate."""
    if not isinstance(source, str) or not source.lower().startswith("estimate"):
        return None
    return source[len("estimate") :].strip(" ():") or "no reason given"
