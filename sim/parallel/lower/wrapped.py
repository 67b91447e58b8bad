"""Which FSDP wraps does a pass enter and leave at each unit, and what does the root hold?

A wrap is the scope of one call of ``fully_shard``: a unit, a module that the layout names (`sim.parallel.wraps`), or the root with the
rest. Wraps may be nested. Forward enters the outer wrap first and leaves the inner wrap first; backward goes the other way.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile, zip_longest

from sim.parallel.lower.lowering import Layout

Wrap = tuple[int, ...]
"""The units whose parameters a wrap holds, excluding inner wraps."""
_ROOT = ""


class WrapSequence:
    """The wraps of one pass over *units*, a chunk in the order of the model."""

    def __init__(self, layout: Layout, units: Sequence[int]) -> None:
        self.layout = layout
        named = [self._named(unit) for unit in units]
        own: dict[str, list[int]] = {}
        for unit, names in zip(units, named, strict=True):
            own.setdefault(names[-1], []).append(unit)
        own = {name: members for name, members in own.items() if any(map(self._elements, members))}
        self._root = tuple(own.get(_ROOT, ()))
        around = [tuple(tuple(own[name]) for name in names if name in own) for names in named]
        self.innermost = {unit: chain[-1] for unit, chain in zip(units, around, strict=True) if chain}
        """The wrap that holds the parameters of each unit."""
        self.wraps: tuple[Wrap, ...] = tuple(dict.fromkeys(wrap for chain in around for wrap in chain))
        """All wraps, outer wraps before inner ones."""
        before = [(), *around]
        self.entered = [chain[_common(chain, other) :] for chain, other in zip(around, before, strict=False)]
        """The wraps that forward enters with each unit, the outermost first."""
        self.left = [chain[_common(chain, other) :][::-1] for chain, other in zip_longest(around, around[1:], fillvalue=())]
        """The wraps that forward leaves after each unit, the innermost first."""

    def _elements(self, unit: int) -> float:
        return self.layout.elements(unit, experts=False) + self.layout.elements(unit, experts=True)

    def _named(self, unit: int) -> tuple[str, ...]:
        """Return the names of the wraps around *unit*, from the outside in."""
        layout, own = self.layout, self.layout.units[unit]
        if own.wraps is not None:
            return (_ROOT, *own.wraps)
        if not layout.has_root:
            return (str(unit),)
        return (_ROOT,) if own.kind != "block" else (_ROOT, str(unit))

    def keeps_gathered(self, wrap: Wrap) -> bool:
        """Return whether forward leaves *wrap* gathered because backward begins with it; never if the layout frees all wraps."""
        layout = self.layout
        last = wrap == self._root or (layout.units[wrap[-1]].wraps is None and layout.units[wrap[-1]].kind == "last")
        return last and layout.mesh.parallel.reshard_after_forward is not True

    def entered_after(self, place: int) -> list[Wrap]:
        """Return the wraps that are entered after *place*, in order."""
        return [wrap for wraps in self.entered[place + 1 :] for wrap in wraps]

    def backward_entries(self, place: int) -> list[tuple[Wrap, Wrap | None]]:
        """Return the wraps that backward enters with the unit at *place*, each with the wrap that forward left before it.

        Hooks on one tensor run in the order in which forward left their modules, so the inner wrap comes first here, too.
        """
        before = next((wraps[-1] for wraps in reversed(self.left[:place]) if wraps), None)
        return list(zip(self.left[place], (before, *self.left[place]), strict=False))


def _common(chain: Sequence[Wrap], other: Sequence[Wrap]) -> int:
    """Return how many of their outermost wraps both chains share."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(chain, other, strict=False)))
