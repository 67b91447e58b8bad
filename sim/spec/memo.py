"""Which results can be reused while files do not change? A cache of descriptions that were read, resolved and validated.

A study loads the same few files thousands of times. Inside `caching`, files are assumed not to change, and results are cached: one cache
at a time, named by its user, so that another study starts with an empty one. Outside of it nothing is cached. Only results are
cached, never errors, and the least recently used ones are evicted.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from typing import Any, Final, TypeVar

T = TypeVar("T")

MOST: Final = 4096
"""Maximum number of cached results."""


class _Memo(threading.local):
    """The cache; each thread has its own."""

    def __init__(self) -> None:
        self.name = ""
        self.open = False
        self.kept: OrderedDict[Hashable, tuple[Any, object]] = OrderedDict()


_memo = _Memo()


@contextmanager
def caching(name: str) -> Iterator[None]:
    """Cache results inside the block; results of the previous block are available if it had the same *name*."""
    if _memo.name != name:
        _memo.kept.clear()
    was_open, _memo.name, _memo.open = _memo.open, name, True
    try:
        yield
    finally:
        _memo.open = was_open


@contextmanager
def caching_inside() -> Iterator[None]:
    """Cache results inside the block: in the open cache, or else in a temporary one that is cleared at the end."""
    if _memo.open:
        yield
        return
    with caching("meanwhile"):
        _memo.kept.clear()
        try:
            yield
        finally:
            _memo.kept.clear()


def is_open() -> bool:
    """Return whether results are cached at the moment."""
    return _memo.open


def lookup(key: Hashable) -> Any:
    """Return the cached result for *key*; None if there is none."""
    if not _memo.open or key not in _memo.kept:
        return None
    _memo.kept.move_to_end(key)
    return _memo.kept[key][0]


def get_or_make(key: Hashable, make: Callable[[], T], held: object = None, should_cache: Callable[[], bool] = lambda: True) -> T:
    """Return the cached result for *key*, or else the result of *make*, which is then cached.

    *held* are objects whose id is part of the key, to be kept alive with it. *should_cache* is called after *make* and returns whether to
    cache its result.
    """
    if not _memo.open:
        return make()
    if key in _memo.kept:
        _memo.kept.move_to_end(key)
        kept: T = _memo.kept[key][0]
        return kept
    result = make()
    if should_cache():
        _memo.kept[key] = (result, held)
        if len(_memo.kept) > MOST:
            _memo.kept.popitem(last=False)
    return result


def token_for(content: Hashable) -> object:
    """Return a small object to use in keys instead of *content*: the same one for equal contents, as long as they are cached."""
    return get_or_make((token_for, content), object)
