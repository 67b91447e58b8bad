"""Do two descriptions consist of the same objects? Caches and their keys, which compare by identity or by content.

Descriptions are frozen, and a copy with one changed field shares all other fields with the original, so results computed from the same
objects can be reused. A different object only means that something is computed again, never a wrong result.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from sim.spec.fields import Spec
from sim.spec.sections import file_values

if TYPE_CHECKING:
    from sim.spec.workload import Workload

S = TypeVar("S")
T = TypeVar("T")

_OF_HOST: Final = frozenset({"launch_cpu", "servers"})
"""Fields of a stack that calibration changes and on which no layer's work depends, nor which gradients are sent together."""


class IdentityKey:
    """A key for `functools.lru_cache`. Two are equal if their *key* is equal: identities of parts of the *held* objects, or their contents.

    The cache keeps its keys and therefore the held objects, so their identities cannot be reused while the entry exists.
    """

    __slots__ = ("_hash", "held", "key")

    def __init__(self, key: Hashable, *held: object) -> None:
        self.key = key
        self.held: tuple[Any, ...] = held
        self._hash = hash(key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, IdentityKey) and self.key == other.key

    def __hash__(self) -> int:
        return self._hash


class IdentityCache(Generic[T]):
    """Results by the identity of the object they were made from, which is kept alive so that its identity is not reused."""

    __slots__ = ("_kept",)

    def __init__(self) -> None:
        self._kept: dict[int, tuple[object, T]] = {}

    def get_or_make(self, source: S, make: Callable[[S], T]) -> T:
        """Return the result for *source*, which *make* computes the first time."""
        kept = self._kept.get(id(source))
        if kept is None:
            kept = self._kept[id(source)] = (source, make(source))
        return kept[1]


def content(value: Any) -> Hashable:
    """Return *value*, a description or a value in one, as nested tuples: equal for equal descriptions, and hashable."""
    if isinstance(value, Spec):
        return _fields_of(IdentityKey(id(value), value))
    if isinstance(value, dict):
        return tuple([(key, content(inner)) for key, inner in value.items()])
    return tuple([content(inner) for inner in value]) if isinstance(value, tuple | list) else value


@lru_cache(maxsize=1024)
def _fields_of(same: IdentityKey) -> Hashable:
    (spec,) = same.held
    return (type(spec), *[content(inner) for inner in spec.__dict__.values()])


def field_identities(spec: Spec, excluded: Collection[str] = ()) -> tuple[int, ...]:
    """Return the identities of the fields of *spec*, except those named in *excluded*."""
    return _identities(IdentityKey(id(spec), spec), frozenset(excluded))


@lru_cache(maxsize=1024)
def _identities(same: IdentityKey, excluded: frozenset[str]) -> tuple[int, ...]:
    (spec,) = same.held
    return tuple([id(value) for name, value in file_values(spec).items() if name not in excluded])


def same_layers(workload: Workload) -> Hashable:
    """Return a cache key: workloads with equal keys have layers with the same work on the GPU and the network."""
    training = workload.training
    lengths = workload.dataset.lengths if training.stack.unpadded else None
    unequal = (lengths.mean, lengths.square) if lengths else None
    return id(workload.model), training.batch, training.precision, unequal, field_identities(training.stack, _OF_HOST)
