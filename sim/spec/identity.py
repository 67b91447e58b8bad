"""Are two descriptions made of the same parts? Keys of caches: compared by identity, never field by field, or by a text.

Descriptions are frozen, and a copy with one field changed shares all its others, so what was worked out of the same objects need not be
worked out again. Another object means work done again, never a wrong answer.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

from sim.spec.fields import Spec

if TYPE_CHECKING:
    from sim.spec.workload import Workload

_OF_HOST: Final = frozenset({"launch_cpu"})
"""Fields of a stack that no layer's work depends on, and that calibration moves."""


class Same:
    """Objects as a key for `functools.lru_cache`: equal where *key* is, which holds identities of parts of what is *held*.

    A cache keeps the key it has seen, and with it what is held: so no identity is used again while it is there.
    """

    __slots__ = ("_hash", "held", "key")

    def __init__(self, key: Hashable, *held: object) -> None:
        self.key = key
        self.held: tuple[Any, ...] = held
        self._hash = hash(key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Same) and self.key == other.key

    def __hash__(self) -> int:
        return self._hash


def content(spec: Spec | None) -> str | None:
    """Return what *spec* says, as a text; worked out once for each object."""
    return None if spec is None else _content(Same(id(spec), spec))


@lru_cache(maxsize=256)
def _content(same: Same) -> str:
    (spec,) = same.held
    return str(spec.model_dump_json())


def parts(spec: Spec, besides: Collection[str] = ()) -> tuple[int, ...]:
    """Return the identities of the fields of *spec*, *besides* some."""
    return tuple([id(value) for name, value in spec.__dict__.items() if name not in besides])


def same_layers(workload: Workload) -> Hashable:
    """Return what two workloads share whose layers ask the same of a GPU and of the network."""
    training = workload.training
    lengths = workload.dataset.lengths if training.stack.unpadded else None
    unequal = (lengths.mean, lengths.square) if lengths else None
    return id(workload.model), training.batch, training.precision, unequal, parts(training.stack, _OF_HOST)
