"""Which algorithms has the user brought? Objects of documented protocols, by entry point of an installed package or as an argument.

A package announces an object in its ``pyproject.toml`` (``[project.entry-points."stallsim.schedules"]``, ``NAME = "module:object"``); a
class stands for the object that it makes without arguments. An object given as an argument is known by its name from then on, in this
process only. docs/develop has a page for each protocol.
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
    """One kind of extension: the *group* of its entry points, the word for it, and what an object of it *has*."""

    group: str
    word: str
    protocol: str
    has: tuple[str, ...]
    page: str
    """Of docs/develop."""


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
"""Characters of what an extension raises that are shown."""
_given: Final[dict[str, dict[str, object]]] = defaultdict(dict)
"""Objects that came as arguments, by group and name."""
_turns: Final[Counter[tuple[str, str]]] = Counter()
_loaded: Final[dict[tuple[str, str, str], object]] = {}
"""Objects of entry points, by group, name and value."""


def give(kind: ExtensionKind, value: object, taken: Sequence[str] = ()) -> str:
    """Make *value* known by its name, and return that. Raise SpecError for what is no *kind*, or has a name that is *taken*."""
    where = f"the {kind.word} {_shown(value)}"
    try:
        value = _made(value)
    except Exception as error:
        raise SpecError(f"{where}: cannot be made: {raised(error)}") from error
    name = _conforming(kind, value, where)
    if name.lower() in (other.lower() for other in taken):
        raise SpecError(f"{kind.word} {name}: this is the name of a {kind.word} that is built in; give yours another name")
    if _given[kind.group].get(name) is not value:
        _turns[kind.group, name] += 1
    _given[kind.group][name] = value
    return name


def names(kind: ExtensionKind) -> list[str]:
    """Return the names of all extensions of *kind*, without loading them."""
    return sorted({*_given[kind.group], *(entry.name for entry in _entries(kind))})


def turn(kind: ExtensionKind, name: str | None) -> int:
    """Return how many objects were given this *name* so far: a part of the key of caches of what such an object said."""
    return 0 if name is None else _turns[kind.group, name]


def any_given() -> bool:
    """Tell whether this process knows extensions, given as arguments, that other processes would not."""
    return any(_given.values())


def extension(kind: ExtensionKind, name: str, taken: Sequence[str] = ()) -> object:
    """Return the extension of *kind* called *name*: of an argument, or else of an entry point.

    Raise SpecError where there is none, it cannot be loaded, or it is no *kind*; the built-in names *taken* are proposed as well.
    """
    if name in _given[kind.group]:
        return _given[kind.group][name]
    entries = [entry for entry in _entries(kind) if entry.name == name]
    if not entries:
        raise SpecError(unknown(kind, name, taken))
    if len({entry.value for entry in entries}) > 1:
        told = " and ".join(sorted(_origin(entry) for entry in entries))
        raise SpecError(f"{kind.word} {name}: is announced by {told}; uninstall one of them, or give one another name")
    return _of_entry(kind, entries[0])


def unknown(kind: ExtensionKind, name: str, taken: Sequence[str] = ()) -> str:
    """Return in a sentence that nothing is called *name*, and what is."""
    choices = ", ".join([*taken, *names(kind)])
    advice = f"write one of {choices}, or one of your own" if choices else "none is installed; announce one of your own"
    return f"found {shorten(name)}; {advice} (docs/develop/{kind.page})"


def is_place(number: object, end: int) -> bool:
    """Tell whether *number*, which an extension returned, counts one of *end* things from 0."""
    return isinstance(number, int) and not isinstance(number, bool) and 0 <= number < end


def checked_name(kind: ExtensionKind, taken: Sequence[str] = ()) -> Callable[[object], object]:
    """Return what checks a field that names an extension of *kind* or one of the built-in names *taken*: raise ValueError for others."""

    def check(value: object) -> object:
        if isinstance(value, str) and value not in taken:
            try:
                extension(kind, value, taken)
            except SpecError as error:
                raise ValueError(str(error)) from None
        return value

    return check


def called(kind: ExtensionKind, name: str, call: Callable[[], object]) -> object:
    """Return what *call*, a method of the extension *name*, returns. Raise SpecError with what it raises."""
    try:
        return call()
    except SpecError:
        raise
    except Exception as error:
        raise SpecError(f"{kind.word} {name}: {raised(error)}") from error


def _entries(kind: ExtensionKind) -> tuple[EntryPoint, ...]:
    return _announced(kind.group, tuple(sys.path))


@lru_cache(maxsize=64)
def _announced(group: str, path: tuple[str, ...]) -> tuple[EntryPoint, ...]:
    """Return the entry points of *group* that packages on *path* announce; reading the metadata of all takes tens of milliseconds."""
    from importlib.metadata import entry_points

    return tuple(entry_points(group=group))


def _of_entry(kind: ExtensionKind, entry: EntryPoint) -> object:
    key = (kind.group, entry.name, entry.value)
    if key not in _loaded:
        where = f"{kind.word} {entry.name}, {_origin(entry)}"
        try:
            value = _made(entry.load())
        except Exception as error:
            raise SpecError(f"{where}: cannot be loaded: {raised(error)}; mend or uninstall that package") from error
        name = _conforming(kind, value, where)
        if name != entry.name:
            raise SpecError(f"{where}: its name is {name}; write the same name in both places")
        _loaded[key] = value
    return _loaded[key]


def _origin(entry: EntryPoint) -> str:
    package = f" of {entry.dist.name} {entry.dist.version}" if entry.dist is not None else ""
    return f"entry point {entry.value}{package}"


def _made(value: object) -> object:
    """Return the object that a class stands for."""
    return value() if isinstance(value, type) else value


def _conforming(kind: ExtensionKind, value: object, where: str) -> str:
    """Return the name of *value*. Raise SpecError where it is no object of *kind*."""
    lacking = [attribute for attribute in kind.has if not hasattr(value, attribute)]
    if lacking:
        raise SpecError(f"{where}: does not follow {kind.protocol}: it lacks {' and '.join(lacking)}; docs/develop/{kind.page} shows one")
    name = getattr(value, "name")  # noqa: B009
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise SpecError(f"{where}: its name is {_shown(name)}; write letters, digits, '_', '-' and '.'")
    return name


def _shown(value: object) -> str:
    plain = type(value).__repr__ is object.__repr__
    return f"object of {type(value).__module__}.{type(value).__qualname__}" if plain else shorten(value)


def raised(error: Exception) -> str:
    """Return *error* in a line; a ValueError says a sentence, others are named."""
    text = " ".join(str(error).split())
    text = text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."
    return text if text and type(error) is ValueError else f"{type(error).__name__}: {text}" if text else type(error).__name__
