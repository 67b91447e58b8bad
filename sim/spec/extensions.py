"""Which extensions does the user provide? Objects of documented protocols, from entry points of installed packages or as arguments.

A package announces an object in its ``pyproject.toml`` (``[project.entry-points."stallsim.schedules"]``, ``NAME = "module:object"``); a
class is instantiated without arguments. An object passed as an argument is registered under its name for the rest of this process.
docs/develop has a page for each protocol.
"""

from __future__ import annotations

import re
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Final, NamedTuple

from sim.spec.yaml import SpecError
from sim.units import shorten

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint


class ExtensionKind(NamedTuple):
    """One kind of extension: the *group* of its entry points, the word for it, and the attributes that an object must have (*has*)."""

    group: str
    word: str
    protocol: str
    has: tuple[str, ...]
    page: str
    """Its page in docs/develop."""


SCHEDULES: Final = ExtensionKind(
    "stallsim.schedules", "schedule", "PipelineSchedule", ("name", "waits_for_sends", "passes"), "own-schedule.md"
)  # fmt: skip
FAILURE_LAWS: Final = ExtensionKind("stallsim.failure_laws", "failure law", "FailureLaw", ("name", "gaps"), "own-failure-law.md")
PRICE_SOURCES: Final = ExtensionKind("stallsim.price_sources", "price source", "PriceSource", ("name", "price"), "own-prices.md")
LOADERS: Final = ExtensionKind("stallsim.loaders", "loader", "Loader", ("name", "made"), "own-loader.md")
COLLECTIVES: Final = ExtensionKind("stallsim.collectives", "collective", "CollectiveAlgorithm", ("name", "all_reduce"), "own-collective.md")
STACKS: Final = ExtensionKind("stallsim.stacks", "folder of stacks", "StackFolder", ("name", "folder"), "own-stacks.md")
STUDIES: Final = ExtensionKind("stallsim.studies", "study", "Study", ("name", "examples", "run"), "own-study.md")
EXCHANGES: Final = ExtensionKind("stallsim.exchanges", "exchange", "ExchangeStrategy", ("name", "buckets"), "own-exchange.md")

_NAME: Final = re.compile(r"(?=.*[A-Za-z])\w[\w.-]*", re.ASCII)
_LONGEST: Final = 200
"""Maximum number of characters shown of an exception that an extension raises."""
_given: Final[dict[str, dict[str, object]]] = defaultdict(dict)
"""Objects passed as arguments, by group and name."""
_turns: Final[Counter[tuple[str, str]]] = Counter()
_loaded: Final[dict[tuple[str, str, str], object]] = {}
"""Objects of entry points, by group, name and value."""


def register(kind: ExtensionKind, value: object, taken: Sequence[str] = ()) -> str:
    """Register *value* under its name and return the name. Raise SpecError if it does not conform to *kind* or its name is *taken*."""
    where = f"the {kind.word} {_shown(value)}"
    try:
        value = _instance(value)
    except Exception as error:
        raise SpecError(f"{where}: cannot be created: {error_text(error)}") from error
    name = _conforming(kind, value, where)
    if name.lower() in (other.lower() for other in taken):
        raise SpecError(f"{kind.word} {name}: a built-in {kind.word} has this name; choose another name for yours")
    if _given[kind.group].get(name) is not value:
        _turns[kind.group, name] += 1
    _given[kind.group][name] = value
    return name


def names(kind: ExtensionKind) -> list[str]:
    """Return the names of all extensions of *kind*, without loading them."""
    return sorted({*_given[kind.group], *(entry.name for entry in _entries(kind))})


def registration_count(kind: ExtensionKind, name: str | None) -> int:
    """Return the number of objects registered under *name* so far, as part of the key of caches with results of such objects."""
    return 0 if name is None else _turns[kind.group, name]


def has_registered() -> bool:
    """Return whether this process has extensions passed as arguments, which other processes do not have."""
    return any(_given.values())


def extension(kind: ExtensionKind, name: str, taken: Sequence[str] = ()) -> object:
    """Return the extension of *kind* with *name*: passed as an argument, or else from an entry point.

    Raise SpecError if there is none, it cannot be loaded, or it does not conform to *kind*; the message also lists the built-in names
    *taken*.
    """
    if name in _given[kind.group]:
        return _given[kind.group][name]
    entries = [entry for entry in _entries(kind) if entry.name == name]
    if not entries:
        raise SpecError(unknown_message(kind, name, taken))
    if len({entry.value for entry in entries}) > 1:
        origins = " and ".join(sorted(_origin(entry) for entry in entries))
        raise SpecError(f"{kind.word} {name}: is registered by {origins}; uninstall one of them, or rename one")
    return _of_entry(kind, entries[0])


def unknown_message(kind: ExtensionKind, name: str, taken: Sequence[str] = ()) -> str:
    """Return the message that no extension of *kind* has *name*, with the names that exist."""
    choices = ", ".join([*taken, *names(kind)])
    advice = f"write one of {choices}, or the name of one of your own" if choices else "none is installed; register one of your own"
    return f"found {shorten(name)}; {advice} (docs/develop/{kind.page})"


def is_place(number: object, end: int) -> bool:
    """Return whether *number*, which an extension returned, is an index from 0 to *end* - 1."""
    return isinstance(number, int) and not isinstance(number, bool) and 0 <= number < end


def checked_name(kind: ExtensionKind, taken: Sequence[str] = ()) -> Callable[[object], object]:
    """Return a validator for names of extensions of *kind* and the built-in names *taken*; it raises ValueError for other names."""

    def check(value: object) -> object:
        if isinstance(value, str) and value not in taken:
            try:
                extension(kind, value, taken)
            except SpecError as error:
                raise ValueError(str(error)) from None
        return value

    return check


def call_extension(kind: ExtensionKind, name: str, call: Callable[[], object]) -> object:
    """Return the result of *call*, a method of the extension *name*. Raise SpecError with the message of any exception."""
    try:
        return call()
    except SpecError:
        raise
    except Exception as error:
        raise SpecError(f"{kind.word} {name}: {error_text(error)}") from error


def _entries(kind: ExtensionKind) -> tuple[EntryPoint, ...]:
    return _announced(kind.group, tuple(sys.path))


@lru_cache(maxsize=64)
def _announced(group: str, path: tuple[str, ...]) -> tuple[EntryPoint, ...]:
    """Return the entry points of *group* in packages on *path*; cached because reading all metadata takes tens of milliseconds."""
    from importlib.metadata import entry_points

    return tuple(entry_points(group=group))


def _of_entry(kind: ExtensionKind, entry: EntryPoint) -> object:
    key = (kind.group, entry.name, entry.value)
    if key not in _loaded:
        where = f"{kind.word} {entry.name}, {_origin(entry)}"
        try:
            value = _instance(entry.load())
        except Exception as error:
            raise SpecError(f"{where}: cannot be loaded: {error_text(error)}; fix or uninstall that package") from error
        name = _conforming(kind, value, where)
        if name != entry.name:
            raise SpecError(f"{where}: its name attribute is {name}; both names must be equal")
        _loaded[key] = value
    return _loaded[key]


def _origin(entry: EntryPoint) -> str:
    package = f" of {entry.dist.name} {entry.dist.version}" if entry.dist is not None else ""
    return f"entry point {entry.value}{package}"


def _instance(value: object) -> object:
    """Return *value*, or a new object if it is a class."""
    return value() if isinstance(value, type) else value


def _conforming(kind: ExtensionKind, value: object, where: str) -> str:
    """Return the name of *value*. Raise SpecError if it does not conform to *kind*."""
    lacking = [attribute for attribute in kind.has if not hasattr(value, attribute)]
    if lacking:
        raise SpecError(
            f"{where}: does not follow {kind.protocol}: it lacks {' and '.join(lacking)}; see docs/develop/{kind.page} for an example"
        )
    name = getattr(value, "name")  # noqa: B009
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise SpecError(f"{where}: its name is {_shown(name)}; write letters, digits, '_', '-' and '.'")
    return name


def _shown(value: object) -> str:
    plain = type(value).__repr__ is object.__repr__
    return f"object of {type(value).__module__}.{type(value).__qualname__}" if plain else shorten(value)


def error_text(error: Exception) -> str:
    """Return *error* on one line: the message of a ValueError, or the type and message of any other exception."""
    text = " ".join(str(error).split())
    text = text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."
    return text if text and type(error) is ValueError else f"{type(error).__name__}: {text}" if text else type(error).__name__
