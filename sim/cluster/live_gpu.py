"""How does a GPU compute while a simulation runs? At full speed, or slower while a collective runs beside it.

Collectives take multiprocessors and memory bandwidth: compute beside them is slower by the stack's ``overlap_slowdown``. cuDNN's persistent
kernels of BatchNorm do not end at all before the collective does: their blocks wait for each other, and for those that have no place on the
GPU (PyTorch issue 80259; NVIDIA/nccl issues 338 and 661, where such a kernel takes 4 to 8 ms in place of 2). Compute goes on until it
comes to one of them, and stands still: waiting for the exchange, not computing. Limits: ranks that wait inside a collective for slower
ones are not held up by it yet.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping

from sim.cluster.network import Activity, Network, fire

_NO_CORES: Mapping[str, float] = {}
_STANDING = 1e-9
"""Speed of compute that stands still: for the network a rate above 0."""


class LiveGpu:
    """One GPU (or a class of equal ones) while a simulation runs: computes, slower while a collective runs beside it.

    A processor that trains itself loads *cores* of its host, which it shares with loaders and sockets by *weight*. After *patience*
    seconds beside a collective compute comes to a kernel that does not end before it, and stands still. Where it *shares* the GPU with
    collectives, `beside` says what they leave.
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
        self._stands = False
        self._changes = 0
        self._current: Activity | None = None
        self._since = 0.0
        self.stood: list[tuple[float, float]] = []
        """From when to when (s) the present work stood still."""

    def compute(self, duration: float) -> Activity:
        """Begin *duration* seconds of work at full speed."""
        if not self.slows and not self._usage:
            return self._network.start_alone(self._name, duration)
        self.stood, self._since = [], self._network.env.now
        self._current = self._network.start(self._name, duration, self._usage, cap=self._speed(), weight=self._weight)
        return self._current

    @property
    def made_of(self) -> Hashable:
        """Return everything that decides how it computes."""
        return self._name, self._slow, self._beside, self._network.asked(self._usage), self._weight, self._patience

    @property
    def slows(self) -> bool:
        """Tell whether a collective beside it slows its compute."""
        return self._slow != 1.0 or self._patience < math.inf or self._shares

    def beside(self, factor: float) -> None:
        """Let compute take *factor* times as long from now on, by what collectives leave of the GPU."""
        if factor != self._beside:
            self._beside = factor
            self._changed()

    def communicating(self, active: bool) -> None:
        """Tell whether a collective runs beside the compute from now on."""
        if self._stands:
            self.stood.append((self._since, self._network.env.now))
        self._communicating, self._stands = active, False
        self._changes += 1
        if active and self._patience < math.inf:
            event, change = self._network.env.event(), self._changes
            event.callbacks.append(lambda _: self._stand(change))
            fire(self._network.env, event, self._patience)
        self._changed()

    def _stand(self, change: int) -> None:
        """Stand still from now on, unless the collective meant by *change* has ended."""
        if change == self._changes:
            self._stands, self._since = True, self._network.env.now
            self._changed()

    def _changed(self) -> None:
        if self._current is not None:
            self._network.set_cap(self._current, self._speed())

    def _speed(self) -> float:
        if self._stands:
            return _STANDING
        return (self._slow if self._communicating else 1.0) / self._beside
