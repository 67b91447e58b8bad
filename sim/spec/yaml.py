"""What does a YAML file contain, and at which line and column?

Plain YAML with restrictions; each violation is an error with its place. A key is plain text and may appear once. A scalar that YAML
versions read differently (``12:30`` as 750, ``1e9`` as text, ``yes`` as a boolean, ``010`` as 8) must be written unambiguously. No tags,
no merge keys, no second document. Files have at most 8 MiB and 40 levels, and aliases may expand to at most 200 000 values (this stops
"YAML bombs"). The parser's events are read in a loop, because libyaml's own composer recurses in C and crashes on deep nesting.

Values are plain data (dict, list, str, int, float, bool, None) and shared between readers: never modify one in place.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

from sim.spec import scalars
from sim.spec.fields import Key
from sim.units import shorten

MAX_BYTES: Final = 8 * 2**20
MAX_DEPTH: Final = 40
MAX_NODES: Final = 200_000
_TOO_DEEP: Final = f"nested deeper than {MAX_DEPTH} levels"
MAX_SHOWN: Final = 50
"""Maximum number of problems in one message."""


_LIBRARY: Final = re.compile(
    rf"^(?:{re.escape(str(Path(__file__).resolve().parents[2]))}|{re.escape(str(Path(__file__).resolve().parents[1] / 'data'))})"
    r"[/\\](?=(?:hardware|workloads)[/\\])"
)


def in_library(file: str) -> str:
    """Return *file* as shown in messages: files of the catalog without the installation folder."""
    return _LIBRARY.sub("", file)


class Mark:
    """A place in a file, counted from 1, and the places of the values inside it; line 0 means text that is not from a file.

    *implied* marks a block that is not written anywhere but was created by an option for one of its keys.
    """

    __slots__ = ("column", "file", "implied", "inside", "line")

    def __init__(
        self, file: str, line: int = 0, column: int = 0, inside: Mapping[str | int, Mark] | None = None, implied: bool = False
    ) -> None:
        self.file = file
        self.implied = implied
        self.line = line
        self.column = column
        self.inside = _NOTHING if inside is None else inside

    def __str__(self) -> str:
        file = in_library(self.file)
        return f"{file}:{self.line}:{self.column}" if self.line else file

    def holding(self, inside: Mapping[str | int, Mark]) -> Mark:
        """Return a mark of the same place with the places *inside*."""
        return Mark(self.file, self.line, self.column, inside, self.implied)


_NOTHING: Final[Mapping[str | int, Mark]] = {}


class SpecError(ValueError):
    """One or more problems of a document, in ``problems``; ``str`` has one line for each, at most MAX_SHOWN.

    With *nothing_qualifies*, the input is valid, and a search found nothing that meets its conditions.
    """

    def __init__(self, problems: list[str] | str, nothing_qualifies: bool = False) -> None:
        self.nothing_qualifies = nothing_qualifies
        self.problems = [problems] if isinstance(problems, str) else list(problems)
        more = len(self.problems) - MAX_SHOWN
        super().__init__("\n".join([*self.problems[:MAX_SHOWN], *([f"... and {more} more"] if more > 0 else [])]))


@dataclass(frozen=True)
class Document:
    """Plain data with the place of every key; users write only the last part of *implied* keys."""

    value: Any
    root: Mark
    implied: tuple[Key, ...] = ()

    def mark(self, key: Key) -> Mark:
        """Return the place of *key*, or of its nearest ancestor that is written in the document."""
        mark = written = self.root
        for part in key:
            if part not in mark.inside:
                return written
            mark = mark.inside[part]
            written = written if mark.implied else mark
        return mark

    def spell(self, key: Key) -> str:
        """Return *key* with dots, as the user writes it: ``node.gpu.memory`` even if the data have ``groups.0.node...``."""
        return spell_key(key, self.implied)

    def message_start(self, key: Key) -> str:
        """Return the start of a message about *key*: ``file:line:col: dotted.key: ``."""
        return message_start(self.mark(key), self.spell(key))


def spell_key(key: Key, implied: tuple[Key, ...]) -> str:
    """Return *key* with dots; if it starts with one of *implied*, leave out everything before the last part of that."""
    head = next((len(start) - 1 for start in implied if key[: len(start)] == start), 0)
    return dotted_key(key[head:])


def message_start(mark: Mark, name: str) -> str:
    """Return the start of a message about the key *name* at *mark*; the text of an override or option already contains the key."""
    override = mark.file.removeprefix("--set ")
    if not mark.line and override == mark.file and override.startswith("--"):
        return f"{mark}: "
    written = "" if mark.line else override.partition("=")[0].strip()
    return f"{mark}: " if name in ("", written) else f"{mark}: {name}: "


def read(path: Path) -> Document:
    """Read the YAML file at *path*; raise SpecError with the place of each problem."""
    return parse(_text(path), str(path))


def read_head(path: Path, end: str) -> Document:
    """Read the top-level keys of *path* before the key *end*, without parsing the rest."""
    return parse(re.split(rf"^{re.escape(end)}\s*:", _text(path), maxsplit=1, flags=re.MULTILINE)[0], str(path))


def read_error_text(error: OSError | ValueError) -> str:
    """Return why a file cannot be read, in words."""
    if isinstance(error, FileNotFoundError):
        return "no such file"
    if isinstance(error, IsADirectoryError):
        return "is a folder; expected a file"
    return f"cannot be read: {getattr(error, 'strerror', None) or error}"


def require_regular(path: Path) -> None:
    """Raise SpecError if *path* is a pipe, a socket or a device, reading which might never end."""
    try:
        is_special = path.exists() and not (path.is_file() or path.is_dir())
    except (OSError, ValueError):
        return  # opening it says why
    if is_special:
        raise SpecError(f"{path}: is not a regular file; write its content to a file first")


def _text(path: Path) -> str:
    return text_of(path, MAX_BYTES, "a description is smaller", "a YAML file")


def text_of(path: Path, most: int, smaller: str, expected: str) -> str:
    """Return the text of *path*. Raise SpecError if it cannot be read, is not text, or has over *most* bytes (with *smaller* as hint)."""
    require_regular(path)
    try:
        with path.open("rb") as file:
            content = file.read(most + 1)
    except OSError as error:
        raise SpecError(f"{path}: {read_error_text(error)}") from None
    if len(content) > most:
        raise SpecError(f"{path}: larger than {most} bytes; {smaller}")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise SpecError(f"{path}: not a text file (byte {error.start} is not UTF-8); expected {expected}") from None


def parse(text: str, file: str = "<text>", located: bool = True) -> Document:
    """Parse YAML *text*; *file* is its name in messages, which have line and column only if *located*."""
    builder = _DataBuilder(file, located)
    try:
        loader = _Loader(text)
        while (event := loader.get_event()) is not None:
            builder.take(event)
    except yaml.MarkedYAMLError as error:
        place = builder.at(error.problem_mark or error.context_mark)
        raise SpecError([*builder.problems, f"{_inside(text, place)}: {_fault(text, place, error.problem)}"]) from None
    except (yaml.YAMLError, ValueError) as error:
        if isinstance(error, SpecError):
            raise
        reason = getattr(error, "reason", None) or "not UTF-8"
        raise SpecError(f"{builder.start(text, error)}: not plain text ({reason}); expected a YAML file") from None
    if not builder.root_taken and not builder.problems:
        raise SpecError(f"{file}: file is empty; write a description, for example the line 'extends: p3.8xlarge' or 'extends: resnet50'")
    if builder.problems:
        raise SpecError(builder.problems)
    return Document(builder.value, builder.root)


_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def _inside(text: str, place: Mark) -> Mark:
    """Return *place*, or the end of *text* if the parser points beyond it."""
    lines = text.splitlines() or [""]
    return place if place.line <= len(lines) else Mark(place.file, len(lines), len(lines[-1]) + 1)


def _fault(text: str, place: Mark, problem: str | None) -> str:
    """Return the parser's *problem* as this project's message; libyaml 0.2.6 and later checks the depth itself, ahead of its events."""
    if "maximum nesting depth" in str(problem):
        return _TOO_DEEP
    return f"not valid YAML: {problem}{_tab_hint(text, place)}"


def _tab_hint(text: str, place: Mark) -> str:
    line = text.splitlines()[place.line - 1] if 0 < place.line <= len(text.splitlines()) else ""
    return "; indent with spaces, because YAML does not allow tabs" if "\t" in line[: max(place.column, 1)] else ""


class _OpenBlock:
    """A mapping or list under construction."""

    __slots__ = ("anchor", "height", "key", "mark", "name", "nodes", "places", "value")

    def __init__(self, value: Any, mark: Mark, anchor: str | None, nodes: int) -> None:
        self.value = value
        self.places: dict[str | int, Mark] = {}
        self.mark = mark.holding(self.places)
        self.anchor = anchor
        self.nodes = nodes
        self.height = 0
        self.name: Any = None
        self.key: Mark | None = None
        """Place of the key whose value comes next; None if a key comes next."""


_DROPPED: Final = object()
"""Replaces the name of a key whose value is read but not kept."""


class _DataBuilder:
    """Turns parser events into plain data with places; collects all problems of content, but stops at a problem of structure."""

    def __init__(self, file: str, located: bool) -> None:
        self.file = file
        self.located = located
        self.problems: list[str] = []
        self.value: Any = None
        self.root = Mark(file, 1 if located else 0, 1)
        self.root_taken = False
        self._nodes = 0
        self._frames: list[_OpenBlock] = []
        self._anchors: dict[str, tuple[Any, Mark, int, int]] = {}
        """Completed anchors: value, place, number of values, height."""
        self._take = {
            yaml.ScalarEvent: self._scalar,
            yaml.MappingStartEvent: lambda event: self._open(event, {}),
            yaml.SequenceStartEvent: lambda event: self._open(event, []),
            yaml.MappingEndEvent: self._close,
            yaml.SequenceEndEvent: self._close,
            yaml.AliasEvent: self._alias,
            yaml.DocumentStartEvent: self._document,
        }

    def take(self, event: Any) -> None:
        """Process *event*."""
        if (step := self._take.get(type(event))) is not None:
            step(event)

    def at(self, mark: Any) -> Mark:
        """Return the place of the parser's *mark*."""
        return Mark(self.file, mark.line + 1, mark.column + 1) if self.located else Mark(self.file)

    def start(self, text: str, error: Any) -> Mark:
        """Return the place of the character that the parser's reader rejects."""
        before = text.encode(errors="replace")[: getattr(error, "position", None) or 0].decode(errors="replace")
        return Mark(self.file, before.count("\n") + 1, len(before) - before.rfind("\n")) if self.located else Mark(self.file)

    def _stop(self, place: Mark, message: str) -> SpecError:
        return SpecError([*self.problems, f"{place}: {message}"])

    def _problem(self, place: Mark, message: str, *more: str) -> None:
        name = dotted_key((*(frame.name for frame in self._frames if isinstance(frame.name, str | int)), *more))
        self.problems.append(f"{place}: {name}: {message}" if name else f"{place}: {message}")

    def _document(self, event: Any) -> None:
        if self.root_taken:
            raise self._stop(self.at(event.start_mark), "a second document starts here ('---'); a file must hold only one")

    def _scalar(self, event: Any) -> None:
        place = self.at(event.start_mark)
        frame = self._enter(event)
        if frame is not None and frame.key is None and type(frame.value) is dict:
            self._name(frame, event, place)
            return
        self._count(event)
        value = event.value if event.style else self._plain(event.value, place)
        self._add(value, place)
        if event.anchor:
            self._anchors[event.anchor] = (value, place, 1, 0)

    def _enter(self, event: Any) -> _OpenBlock | None:
        """Return the mapping or list that contains *event*, which must be a scalar if a key comes next."""
        if not self._frames:
            return None
        frame = self._frames[-1]
        if type(frame.value) is list:
            frame.name = len(frame.value)
        elif frame.key is None and type(event) is not yaml.ScalarEvent:
            raise self._stop(self.at(event.start_mark), "found a list, block or alias; expected a key, which is plain text")
        return frame

    def _name(self, frame: _OpenBlock, event: Any, place: Mark) -> None:
        """Use *event* as the key of the next value."""
        name = event.value
        frame.key, frame.name = place, name
        if event.tag or event.anchor:
            self._problem(place, "a key must be plain text, without tag or anchor")
        elif name == "<<" and not event.style:
            self._problem(place, "'<<' is not supported; use 'extends: NAME'")
        elif name in frame.value:
            self._problem(place, f"appears twice, first at line {frame.places[name].line}; write a key once")
        elif not name:
            self._problem(place, "an empty key; expected a name")
        else:
            return
        frame.name = _DROPPED

    def _count(self, event: Any, nodes: int = 1, height: int = 0) -> None:
        """Count *nodes* more values with *height* levels at *event*."""
        self._nodes += nodes
        if self._nodes > MAX_NODES:
            raise self._stop(self.at(event.start_mark), f"more than {MAX_NODES} values once aliases are expanded")
        if len(self._frames) + height > MAX_DEPTH:
            raise self._stop(self.at(event.start_mark), _TOO_DEEP)
        if getattr(event, "tag", None):
            self._problem(self.at(event.start_mark), f"the tag {shorten(event.tag)} is not supported; write the value without it")

    def _open(self, event: Any, value: Any) -> None:
        self._enter(event)
        self._count(event)
        self._frames.append(_OpenBlock(value, self.at(event.start_mark), event.anchor, self._nodes))

    def _close(self, event: Any) -> None:
        frame = self._frames.pop()
        if self._frames:
            self._frames[-1].height = max(self._frames[-1].height, frame.height + 1)
        self._add(frame.value, frame.mark)
        if frame.anchor:
            self._anchors[frame.anchor] = (frame.value, frame.mark, self._nodes - frame.nodes + 1, frame.height + 1)

    def _alias(self, event: Any) -> None:
        place = self.at(event.start_mark)
        frame = self._enter(event)
        if event.anchor not in self._anchors:
            if any(around.anchor == event.anchor for around in self._frames):
                raise self._stop(place, f"*{event.anchor} refers to itself")
            raise self._stop(place, f"there is no anchor &{event.anchor} before this alias")
        value, mark, nodes, height = self._anchors[event.anchor]
        self._count(event, nodes, height)
        if frame is not None:
            frame.height = max(frame.height, height)
        self._add(value, mark)

    def _add(self, value: Any, place: Mark) -> None:
        """Add a completed *value* to the current mapping or list."""
        if not self._frames:
            self.value, self.root, self.root_taken = value, place, True
            return
        frame = self._frames[-1]
        if type(frame.value) is list:
            frame.places[len(frame.value)] = place
            frame.value.append(value)
            return
        if frame.name is not _DROPPED:
            frame.value[frame.name] = value
            frame.places[frame.name] = (frame.key or place).holding(place.inside)
        frame.key = frame.name = None

    def _plain(self, text: str, place: Mark) -> Any:
        try:
            return scalars.plain(text)
        except scalars.ScalarError as error:
            self._problem(place, str(error))
            return None


def dotted_key(key: Key) -> str:
    """Return *key* as the user writes it: ``node.gpus.0.memory``."""
    return ".".join(str(part) for part in key)
