"""How fast does a GPU compute during a simulation? At full speed, or slower while a collective runs on it.

Collectives use multiprocessors and memory bandwidth: concurrent compute is slower by the stack's ``overlap_slowdown``. cuDNN's persistent
BatchNorm kernels do not finish at all before the collective: their blocks wait for each other, including blocks that find no room on
the GPU (PyTorch issue 80259; NVIDIA/nccl issues 338 and 661, where such a kernel takes 4 to 8 ms instead of 2). Compute continues until
it reaches one of them, and then stalls until the exchange ends. Limits: while a collective still waits for slower ranks, it does not slow
the compute of the others.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping

from sim.cluster.network import Activity, Network, schedule_once

_NO_CORES: Mapping[str, float] = {}
_STALLED_SPEED = 1e-9
"""Speed of stalled compute; the network needs a rate above 0."""


class LiveGpu:
    """One GPU (or a class of equal ones) during a simulation: it computes, more slowly while a collective runs.

    A CPU that trains loads *cores* of its host, which it shares with loaders and sockets by *weight*. After *patience* seconds of a
    concurrent collective, compute reaches a kernel that does not finish before the collective, and stalls. If it *shares* the GPU with
    collectives, `set_slowdown` sets how much they slow it.
    """

    def __init__(
        self,
        network: Network,
        name: str,
        slowdown: float,
        shared: str | None,
        cores: Mapping[str, float] = _NO_CORES,
        weight: float = 1.0,
        patience: float = math.inf,
        shares: bool = False,
    ) -> None:
        self._network = network
        self._name = name
        self._slow = 1.0 / slowdown
        self._usage = ({shared: 1.0} if shared else {}) | dict(cores)
        self._weight = weight
        self._patience = patience
        self._shares = shares
        self._beside = 1.0
        self._communicating = False
        self._stalled = False
        self._changes = 0
        self._current: Activity | None = None
        self._since = 0.0
        self.stalled_spans: list[tuple[float, float]] = []
        """Intervals (s) in which the current work stalled."""

    def compute(self, duration: float) -> Activity:
        """Start work that takes *duration* seconds at full speed."""
        if not self.slows and not self._usage:
            return self._network.start_unshared(self._name, duration)
        self.stalled_spans, self._since = [], self._network.env.now
        self._current = self._network.start(self._name, duration, self._usage, cap=self._speed(), weight=self._weight)
        return self._current

    @property
    def cache_key(self) -> Hashable:
        """Return a cache key: everything that decides how it computes."""
        return self._name, self._slow, self._beside, self._network.usage_key(self._usage), self._weight, self._patience

    @property
    def slows(self) -> bool:
        """Return whether a concurrent collective slows its compute."""
        return self._slow != 1.0 or self._patience < math.inf or self._shares

    def set_slowdown(self, factor: float) -> None:
        """Make compute take *factor* times as long from now on, because collectives use part of the GPU."""
        if factor != self._beside:
            self._beside = factor
            self._update_cap()

    def set_communicating(self, active: bool) -> None:
        """Set whether a collective runs concurrently with compute from now on."""
        if self._stalled:
            self.stalled_spans.append((self._since, self._network.env.now))
        self._communicating, self._stalled = active, False
        self._changes += 1
        if active and self._patience < math.inf:
            event, change = self._network.env.event(), self._changes
            event.callbacks.append(lambda _: self._stall(change))
            schedule_once(self._network.env, event, self._patience)
        self._update_cap()

    def _stall(self, change: int) -> None:
        """Stall from now on, unless `set_communicating` was called again after *change*."""
        if change == self._changes:
            self._stalled, self._since = True, self._network.env.now
            self._update_cap()

    def _update_cap(self) -> None:
        if self._current is not None:
            self._network.set_cap(self._current, self._speed())

    def _speed(self) -> float:
        if self._stalled:
            return _STALLED_SPEED
        return (self._slow if self._communicating else 1.0) / self._beside
