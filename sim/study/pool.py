"""How do many independent runs use all cores? In order, lazily, one function over many items: the only parallel path.

joblib's loky processes carry it; one process runs in this one. Results come in the order of the items whatever the number of
processes, so every table is the same.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from sim.spec.yaml import SpecError

Item = TypeVar("Item")
Result = TypeVar("Result")

FEW = 4
"""Items up to which starting processes takes longer than it saves: a process imports for half a second, a run takes 0.1 s."""


def each(function: Callable[[Item], Result], items: Sequence[Item], processes: int | None = None) -> Iterator[Result]:
    """Yield ``function(item)`` for each of *items* in order, on up to *processes* processes (all cores when None)."""
    if processes is not None and processes < 1:
        raise SpecError(f"--jobs {processes}: write 1 or more processes")
    wanted = min(processes or len(os.sched_getaffinity(0)), len(items))
    if wanted <= 1 or len(items) <= FEW:
        yield from map(function, items)
        return
    from joblib import Parallel, delayed

    batch = max(1, min(16, len(items) // (4 * wanted)))
    yield from Parallel(n_jobs=wanted, batch_size=batch, return_as="generator")(delayed(function)(item) for item in items)
