"""Which gradients are exchanged together if the user decides? A user's exchange strategy forms the buckets instead of DDP.

``strategy`` of the stack still determines what the framework does around the buckets (copies, memory, overlap). The user's object decides
which gradients share a message and how long the message waits. Limits: messages start in the order in which their last gradients become
ready; gradients of different types never share a message, so the object is called once per type; rows of sparse embeddings are sent
separately.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Protocol, cast

from sim.parallel.lower.fusion import Bucket
from sim.spec.extensions import EXCHANGES, call_extension, extension, is_place
from sim.spec.yaml import SpecError


class ExchangeStrategy(Protocol):
    """Decides which gradients are exchanged together, and when; docs/develop/own-exchange.md has an example."""

    @property
    def name(self) -> str:
        """Return the name of the strategy for ``own_exchange`` of a stack."""

    def buckets(self, sizes: Sequence[float], ready: Sequence[float], ranks: int) -> Iterable[tuple[Iterable[int], float]]:
        """Return the messages of one backward pass among *ranks*: (numbers of gradients, delay).

        Gradients are numbered from 0 in the order in which they become ready. *sizes* are their bytes, *ready* the times (s) after backward
        began. A message starts *delay* seconds after the last of its gradients is ready, or when the previous message has ended.
        """


def own_buckets(name: str, sizes: Sequence[float], ready: Sequence[float], ranks: int) -> list[Bucket]:
    """Return the messages of the strategy *name*. Raise SpecError unless each gradient is in exactly one of them."""
    strategy = cast(ExchangeStrategy, extension(EXCHANGES, name))

    def requested_buckets() -> list[Bucket]:
        return [Bucket(tuple(sorted(tensors)), delay) for tensors, delay in strategy.buckets(tuple(sizes), tuple(ready), ranks)]

    buckets = cast("list[Bucket]", call_extension(EXCHANGES, name, requested_buckets))
    for bucket in buckets:
        if not bucket.tensors or not all(is_place(place, len(sizes)) for place in bucket.tensors):
            raise SpecError(f"exchange {name}: a message of the gradients {list(bucket.tensors)!r}; write numbers below {len(sizes)}")
        if isinstance(bucket.delay, bool) or not isinstance(bucket.delay, int | float) or not 0 <= bucket.delay < math.inf:
            raise SpecError(f"exchange {name}: a message waits {bucket.delay!r} s; write a delay of 0 or more")
    times = Counter(place for bucket in buckets for place in bucket.tensors)
    wrong = next((place for place in range(len(sizes)) if times[place] != 1), None)
    if wrong is not None:
        count = "no message" if not times[wrong] else f"{times[wrong]} messages"
        raise SpecError(f"exchange {name}: gradient {wrong} is in {count}; write each of the {len(sizes)} gradients once")
    return buckets
