"""Which modules of a torch model contain a layer, and does a pattern match one of them? Names of layers are module paths.

A layer's name is the path of its module, followed by an operator if the module calls several.
"""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase
from functools import lru_cache
from itertools import accumulate
from typing import Final

_NAMED: Final = 12
"""Maximum number of modules that an error message lists."""
_OPERATORS: Final = frozenset(
    ("add", "mul", "sub", "div", "mm", "addmm", "bmm", "baddbmm", "clone", "copy", "cat", "expand", "index", "convolution", "embedding")
) | {"embedding_bag", "native_layer_norm", "native_group_norm", "native_batch_norm", "rms_norm", "prelu"}
"""ATen operators that take parameters; layers of modules with several operators have one of these at the end of their names."""


@lru_cache(maxsize=1 << 14)
def paths(name: str) -> tuple[str, ...]:
    """Return the modules that contain the layer *name*, from the outermost to the innermost."""
    names = name.split(".")
    if len(names) > 1 and names[-1].isdecimal() and names[-2] in _OPERATORS:
        names.pop()  # the second call of an operator
    if names[-1] in _OPERATORS:
        names.pop()
    return tuple(accumulate(names, "{}.{}".format))


def list_modules(modules: Sequence[str]) -> str:
    """Return a list of the first *modules*, with an explanation of patterns, for a message about a pattern that matches none of them."""
    more = ", ..." if len(modules) > _NAMED else ""
    return f"{', '.join(modules[:_NAMED])}{more} (* matches one name, ** any number of names)"


@lru_cache(maxsize=1 << 16)
def matches(pattern: str, path: str) -> bool:
    """Return whether *pattern* matches the module *path* name by name; ``*`` matches one name, ``**`` any number of names."""
    return _matches(pattern.split("."), path.split("."))


def _matches(pattern: list[str], names: list[str]) -> bool:
    if not pattern:
        return not names
    if pattern[0] == "**":
        return any(_matches(pattern[1:], names[skipped:]) for skipped in range(len(names) + 1))
    return bool(names) and fnmatchcase(names[0], pattern[0]) and _matches(pattern[1:], names[1:])
