"""What does a YAML file say, and at which line and column does it say it?

Plain YAML with four restrictions, each an error with its place: a key may stand once; a scalar that YAML 1.1 would read as
something else than it looks (``12:30`` as 750, ``1e9`` as text, ``yes`` as a boolean) must be written plainly; files are at
most 8 MiB, 40 levels deep, and aliases may expand to at most 200 000 nodes (a "YAML bomb" stops there).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

MAX_BYTES = 8 * 2**20
MAX_DEPTH = 40
MAX_NODES = 200_000

Key = tuple[str | int, ...]
"""Path of a value inside a document, for example ``("node", "nic", "bandwidth")``."""


@dataclass(frozen=True)
class Mark:
    """A place in a file; line and column count from 1."""

    file: str
    line: int
    column: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}"


class SpecError(ValueError):
    """One or more things wrong with a document; ``str`` gives one line each."""

    def __init__(self, problems: list[str] | str) -> None:
        self.problems = [problems] if isinstance(problems, str) else problems
        super().__init__("\n".join(self.problems))


@dataclass
class Document:
    """Plain data (dict, list, str, int, float, bool, None) with the place of every key."""

    value: Any
    marks: dict[Key, Mark] = field(default_factory=dict)
    file: str = "<text>"

    def mark(self, key: Key) -> Mark:
        """Return the place of *key*, or of its nearest ancestor that stands in the file."""
        for length in range(len(key), -1, -1):
            if (found := self.marks.get(key[:length])) is not None:
                return found
        return Mark(self.file, 1, 1)


def read(path: Path) -> Document:
    """Read the YAML file at *path*; raise SpecError with the place of whatever is wrong."""
    try:
        size = path.stat().st_size
        if size > MAX_BYTES:
            raise SpecError(f"{path}: {size} bytes; a description has at most {MAX_BYTES}")
        text = path.read_bytes().decode("utf-8")
    except UnicodeDecodeError as error:
        raise SpecError(f"{path}: not a text file (byte {error.start} is not UTF-8); a YAML description is due") from None
    except OSError as error:
        raise SpecError(f"{path}: cannot be read: {error.strerror}") from None
    return parse(text, str(path))


def parse(text: str, file: str = "<text>") -> Document:
    """Read YAML *text*; *file* is the name used in messages."""
    loader = yaml.CSafeLoader(text)
    try:
        node = loader.get_single_node()
    except yaml.MarkedYAMLError as error:
        place = error.problem_mark or error.context_mark
        where = f"{file}:{place.line + 1}:{place.column + 1}" if place else file
        raise SpecError(f"{where}: not valid YAML: {error.problem or error.context}") from None
    except (yaml.YAMLError, ValueError) as error:
        raise SpecError(f"{file}: not valid YAML: {' '.join(str(error).split())}") from None
    except RecursionError:
        raise SpecError(f"{file}: nested deeper than {MAX_DEPTH} levels") from None
    finally:
        loader.dispose()
    document = Document(None, file=file)
    if node is None:
        raise SpecError(f"{file}: empty; a description is due")
    document.value = _Constructor(document).construct(node, ())
    return document


_CONFUSING = re.compile(
    r"(?P<base60>[-+]?\d+(:[0-5]?\d)+(\.\d*)?)|(?P<octal>0[0-7_]+)|(?P<exponent>[-+]?\d+[eE][-+]?\d+|[-+]?\d*\.\d+[eE]\d+)"
)
_YES_NO = frozenset({"yes", "Yes", "YES", "no", "No", "NO", "on", "On", "ON", "off", "Off", "OFF"})


class _Constructor:
    """Turn YAML nodes into plain data, noting every place."""

    def __init__(self, document: Document) -> None:
        self.document = document
        self.nodes = 0
        self.problems: list[str] = []

    def construct(self, node: Any, key: Key) -> Any:
        value = self._value(node, key, 0)
        if self.problems:
            raise SpecError(self.problems)
        return value

    def _place(self, node: Any) -> Mark:
        return Mark(self.document.file, node.start_mark.line + 1, node.start_mark.column + 1)

    def _value(self, node: Any, key: Key, depth: int) -> Any:
        place = self._place(node)
        self.nodes += 1
        if self.nodes > MAX_NODES:
            raise SpecError(f"{place}: more than {MAX_NODES} values once aliases are expanded")
        if depth > MAX_DEPTH:
            raise SpecError(f"{place}: nested deeper than {MAX_DEPTH} levels")
        self.document.marks.setdefault(key, place)
        if isinstance(node, yaml.ScalarNode):
            return self._scalar(node, place)
        if isinstance(node, yaml.SequenceNode):
            return [self._value(child, (*key, index), depth + 1) for index, child in enumerate(node.value)]
        return self._mapping(node, key, depth)

    def _mapping(self, node: Any, key: Key, depth: int) -> dict[str, Any]:
        result: dict[str, Any] = {}
        first: dict[str, Mark] = {}
        for key_node, value_node in node.value:
            place = self._place(key_node)
            if not isinstance(key_node, yaml.ScalarNode):
                self.problems.append(f"{place}: a key must be plain text")
                continue
            name = key_node.value
            if name == "<<" or key_node.tag == "tag:yaml.org,2002:merge":
                self.problems.append(f"{place}: '<<' is not supported; use 'extends: NAME'")
                continue
            if name in first:
                self.problems.append(f"{place}: {dotted((*key, name))}: stands twice, first at line {first[name].line}")
                continue
            first[name] = place
            self.document.marks[(*key, name)] = place
            result[name] = self._value(value_node, (*key, name), depth + 1)
        return result

    def _scalar(self, node: Any, place: Mark) -> Any:
        text: str = node.value
        tag = node.tag.rpartition(":")[2]
        if not node.style:  # plain, not quoted
            if text in _YES_NO:
                self.problems.append(f"{place}: '{text}' is read as a boolean by some YAML versions; write true, false or '{text}' in quotes")
                return text
            if _CONFUSING.fullmatch(text):
                self.problems.append(f"{place}: '{text}' is read differently by different YAML versions; write it out or put it in quotes")
                return text
        try:
            return _SCALARS.get(tag, str)(text)
        except (ValueError, OverflowError):
            self.problems.append(f"{place}: '{text}' is not a valid {tag}")
            return text


_SCALARS: dict[str, Any] = {
    "int": lambda text: int(text.replace("_", ""), 0),
    "float": lambda text: float(text.replace("_", "").replace(".inf", "inf").replace(".nan", "nan").replace(".NaN", "nan")),
    "bool": lambda text: text.lower() == "true",
    "null": lambda text: None,
}


def dotted(key: Key) -> str:
    """Return *key* as the user writes it: ``node.gpus.0.memory``."""
    return ".".join(str(part) for part in key)


def leaves(value: Any, key: Key = ()) -> Iterator[tuple[Key, Any]]:
    """Yield every scalar of *value* with its path."""
    if isinstance(value, dict):
        for name, child in value.items():
            yield from leaves(child, (*key, name))
    elif isinstance(value, list):
        for index, child in enumerate(value):
            yield from leaves(child, (*key, index))
    else:
        yield key, value
