"""What need not be worked out twice? What was read, followed and checked, while descriptions stand still.

A study asks thousands of questions of the same few files. Between `standing` and its end files are taken not to change, and what one
question found is there for the next: one shelf at a time, named by whoever opens it, so that another study starts with an empty one.
Without an open shelf nothing is kept. Only results are kept, never refusals, and only so many: the longest unused go first.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from typing import Any, Final, TypeVar, cast

T = TypeVar("T")

MOST: Final = 4096
"""Results kept."""


class _Shelf(threading.local):
    """Each thread has its own."""

    def __init__(self) -> None:
        self.name = ""
        self.open = False
        self.kept: OrderedDict[Hashable, tuple[Any, object]] = OrderedDict()


_shelf = _Shelf()


@contextmanager
def standing(name: str) -> Iterator[None]:
    """Keep what is remembered inside, and what an earlier block of the same *name* has kept, if it was the last."""
    if _shelf.name != name:
        _shelf.kept.clear()
    before, _shelf.name, _shelf.open = _shelf.open, name, True
    try:
        yield
    finally:
        _shelf.open = before


@contextmanager
def kept_meanwhile() -> Iterator[None]:
    """Keep what is remembered inside: on the shelf that is open, or on one of its own that is emptied at the end."""
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
    """Tell whether anything is kept now."""
    return _shelf.open


def found(key: Hashable) -> Any:
    """Return what is kept for *key*; None for nothing."""
    if not _shelf.open or key not in _shelf.kept:
        return None
    _shelf.kept.move_to_end(key)
    return _shelf.kept[key][0]


def remembered(key: Hashable, make: Callable[[], T], alive: object = None, worth: Callable[[], bool] = lambda: True) -> T:
    """Return what *make* returns, or returned for the same *key*.

    Objects whose id is in the key are kept *alive* with it; *worth* tells afterwards whether to keep it at all.
    """
    if not _shelf.open:
        return make()
    if key in _shelf.kept:
        _shelf.kept.move_to_end(key)
        return cast(T, _shelf.kept[key][0])
    made = make()
    if worth():
        _shelf.kept[key] = (made, alive)
        if len(_shelf.kept) > MOST:
            _shelf.kept.popitem(last=False)
    return made


def standing_for(content: Hashable) -> object:
    """Return what stands for *content* in keys, compared and hashed at once: the same object for equal contents, while they are kept."""
    return remembered((standing_for, content), object)
