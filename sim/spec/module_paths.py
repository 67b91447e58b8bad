"""Which modules of a torch model is a layer in, and does a pattern match one? Names of layers are paths of modules.

A layer's name is the path of its module, or that path and an operator where a module calls several.
"""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase
from functools import lru_cache
from itertools import accumulate
from typing import Final

_NAMED: Final = 12
"""Modules that a message names."""
_OPERATORS: Final = frozenset(
    ("add", "mul", "sub", "div", "mm", "addmm", "bmm", "baddbmm", "clone", "copy", "cat", "expand", "index", "convolution", "embedding")
) | {"embedding_bag", "native_layer_norm", "native_group_norm", "native_batch_norm", "rms_norm", "prelu"}
"""ATen's operators that take parameters, after which layers of modules with several operators are named."""


@lru_cache(maxsize=1 << 14)
def paths(name: str) -> tuple[str, ...]:
    """Return the modules that the layer *name* is in, from the outside in."""
    names = name.split(".")
    if len(names) > 1 and names[-1].isdecimal() and names[-2] in _OPERATORS:
        names.pop()  # the second call of an operator
    if names[-1] in _OPERATORS:
        names.pop()
    return tuple(accumulate(names, "{}.{}".format))


def named(modules: Sequence[str]) -> str:
    """Return the first of *modules* for a message about a pattern that matches none of them, and what patterns are."""
    more = ", ..." if len(modules) > _NAMED else ""
    return f"{', '.join(modules[:_NAMED])}{more} (* stands for one name, ** for any number of them)"


@lru_cache(maxsize=1 << 16)
def matches(pattern: str, path: str) -> bool:
    """Tell whether *pattern* matches the module *path* name by name; ``*`` stands for one name, ``**`` for any number of them."""
    return _matches(pattern.split("."), path.split("."))


def _matches(pattern: list[str], names: list[str]) -> bool:
    if not pattern:
        return not names
    if pattern[0] == "**":
        return any(_matches(pattern[1:], names[skipped:]) for skipped in range(len(names) + 1))
    return bool(names) and fnmatchcase(names[0], pattern[0]) and _matches(pattern[1:], names[1:])
