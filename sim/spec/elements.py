"""Which elements does an XML text contain, and at which lines? Read with expat, which reports lines; only plain elements are accepted.

Document types, and with them all entities, are rejected: no "billion laughs", nothing is fetched from elsewhere. Text between elements is
dropped.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final
from xml.parsers import expat

from sim.spec.yaml import SpecError

MOST_ELEMENTS: Final = 20_000
MOST_DEPTH: Final = 40


@dataclass
class Element:
    """One element with its attributes and children; *line* is counted from 1."""

    tag: str
    attributes: Mapping[str, str]
    line: int
    children: list[Element] = field(default_factory=list)

    def all(self, tag: str) -> Iterator[Element]:
        """Yield the direct children with *tag*."""
        return (child for child in self.children if child.tag == tag)


class _TreeBuilder:
    """Builds the tree of elements from the parser's events."""

    def __init__(self, file: str, skipped: int) -> None:
        self.file = file
        self.roots: list[Element] = []
        self._open: list[Element] = []
        self._count = 0
        self._skipped = skipped
        self._parser = expat.ParserCreate()
        self._parser.StartElementHandler = self._start
        self._parser.EndElementHandler = lambda _: self._open.pop()
        self._parser.StartDoctypeDeclHandler = self._doctype

    def parse(self, text: str) -> None:
        self._parser.Parse(text, True)

    def wrong(self, line: int, message: str) -> SpecError:
        return SpecError(f"{self.file}:{self._skipped + line}: {message}")

    def _start(self, tag: str, attributes: dict[str, str]) -> None:
        line = self._parser.CurrentLineNumber
        self._count += 1
        if self._count > MOST_ELEMENTS or len(self._open) >= MOST_DEPTH:
            raise self.wrong(
                line, f"more than {MOST_ELEMENTS} elements or {MOST_DEPTH} levels, which is too large for the topology of one machine"
            )
        element = Element(tag, attributes, self._skipped + line)
        (self._open[-1].children if self._open else self.roots).append(element)
        self._open.append(element)

    def _doctype(self, name: str, *_: object) -> None:
        hint = "; this looks like hwloc's format; create NCCL's file with NCCL_TOPO_DUMP_FILE" if name == "topology" else ""
        message = f"found a document type (<!DOCTYPE), which NCCL's topology file does not have; remove it{hint}"
        raise self.wrong(self._parser.CurrentLineNumber, message)


def read_elements(text: str, file: str) -> Element:
    """Return the root element of *text*; *file* is the name used in messages. Raise SpecError with the line of the error."""
    body = text.lstrip()
    builder = _TreeBuilder(file, text.count("\n", 0, len(text) - len(body)))
    advice = "pass the file that NCCL wrote to NCCL_TOPO_DUMP_FILE unchanged"
    try:
        builder.parse(body)
    except expat.ExpatError as error:
        raise builder.wrong(error.lineno, f"incomplete XML ({expat.ErrorString(error.code)}); {advice}") from None
    except SpecError:
        raise
    except ValueError as error:
        raise builder.wrong(1, f"invalid XML ({error}); {advice}") from None
    return builder.roots[0]
