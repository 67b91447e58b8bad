"""Which results can be reused while files do not change? A cache of descriptions that were read, resolved and validated.

A study loads the same few files thousands of times. Inside `standing`, files are assumed not to change, and results are cached: one cache
("shelf") at a time, named by its user, so that another study starts with an empty one. Outside of it nothing is cached. Only results are
cached, never errors, and the least recently used ones are evicted.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from typing import Any, Final, TypeVar, cast

T = TypeVar("T")

MOST: Final = 4096
"""Maximum number of cached results."""


class _Shelf(threading.local):
    """The cache; each thread has its own."""

    def __init__(self) -> None:
        self.name = ""
        self.open = False
        self.kept: OrderedDict[Hashable, tuple[Any, object]] = OrderedDict()


_shelf = _Shelf()


@contextmanager
def standing(name: str) -> Iterator[None]:
    """Cache results inside the block; results of the previous block are available if it had the same *name*."""
    if _shelf.name != name:
        _shelf.kept.clear()
    was_open, _shelf.name, _shelf.open = _shelf.open, name, True
    try:
        yield
    finally:
        _shelf.open = was_open


@contextmanager
def kept_meanwhile() -> Iterator[None]:
    """Cache results inside the block: in the open cache, or else in a temporary one that is cleared at the end."""
    if _shelf.open:
        yield
        return
    with standing("meanwhile"):
        _shelf.kept.clear()
        try:
            yield
        finally:
            _shelf.kept.clear()


def is_open() -> bool:
    """Return whether results are cached at the moment."""
    return _shelf.open


def found(key: Hashable) -> Any:
    """Return the cached result for *key*; None if there is none."""
    if not _shelf.open or key not in _shelf.kept:
        return None
    _shelf.kept.move_to_end(key)
    return _shelf.kept[key][0]


def remembered(key: Hashable, make: Callable[[], T], alive: object = None, worth: Callable[[], bool] = lambda: True) -> T:
    """Return the cached result for *key*, or else the result of *make*, which is then cached.

    *alive* are objects whose id is part of the key, to be kept alive with it. *worth* is called after *make*: whether to cache its result.
    """
    if not _shelf.open:
        return make()
    if key in _shelf.kept:
        _shelf.kept.move_to_end(key)
        return cast(T, _shelf.kept[key][0])
    result = make()
    if worth():
        _shelf.kept[key] = (result, alive)
        if len(_shelf.kept) > MOST:
            _shelf.kept.popitem(last=False)
    return result


def standing_for(content: Hashable) -> object:
    """Return a small object to use in keys instead of *content*: the same one for equal contents, as long as they are cached."""
    return remembered((standing_for, content), object)
