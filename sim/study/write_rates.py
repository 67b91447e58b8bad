"""How fast are checkpoints written to a store? At the rate at which most work is kept, which may be below the speed of the store.

Writes during training share NICs and host memory with it, so a fast write may slow steps by more than an earlier completion of the
checkpoint saves. Each writer may therefore limit itself. The rates that are tried are the same for all stores, powers of two and the half
steps beside the best of them, in addition to the full speed; a faster store thus offers all rates of a slower one. Those that can no
longer be best, even if they did not slow steps at all, are not simulated.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Final, NamedTuple

from sim.analysis.expected_share import closed_form
from sim.analysis.long_run import LongRun, Saving
from sim.cluster.checkpoint import CheckpointParts, CheckpointTimes, checkpoint_times
from sim.spec.hardware import Node
from sim.spec.stores import Store
from sim.spec.yaml import SpecError
from sim.study.checkpoint_intervals import Intervals, SaveSlowdown, lost_with_copies, saving_of
from sim.study.weeks import Slowed, Weeks

_LEAST_GAIN: Final = 1e-6
"""Gain of effective share below which no other rate is tried."""


class StoreWrites:
    """Writes of one kind of checkpoint to one store, or (None) to the nodes' own disks, at any rate."""

    def __init__(self, node: Node, parts: CheckpointParts, store: Store | None, slowed: Slowed) -> None:
        """Simulate writes of *parts*; *slowed* returns the seconds that steps lose. Raise ValueError if there is no disk to write to."""
        self.node, self.parts, self.store, self.slowed = node, parts, store, slowed
        self.full = checkpoint_times(node, parts, store)
        self._lost: dict[float | None, float] = {}

    @property
    def rate(self) -> float:
        """Return the bytes/s of each writer at full speed."""
        start = self.store.start if self.store else 0.0
        return self.parts.nbytes / max(self.full.write_time - start, 1e-9)

    def times(self, limit: float | None) -> CheckpointTimes:
        """Return the times of a checkpoint if each writer writes at most *limit* bytes/s (None: no limit); reads have full speed."""
        if limit is None:
            return self.full
        return checkpoint_times(self.node, self.parts, self._limited(limit))._replace(load_time=self.full.load_time)

    def lost_time(self, limit: float | None) -> float:
        """Return the seconds that steps lose during such a write."""
        if limit not in self._lost:
            self._lost[limit] = max(0.0, self.slowed(self._limited(limit)))
        return self._lost[limit]

    def _limited(self, limit: float | None) -> Store | None:
        if self.store is None or limit is None:
            return self.store
        slower = min(self.store.bandwidth, limit * self.parts.writers)
        return self.store.model_copy(update={"bandwidth": slower, "per_writer": min(limit, self.store.per_writer or math.inf)})


class ChosenSaving(NamedTuple):
    """How a job saves: at which intervals and costs, and *limit*, the bytes/s to which each writer limits itself (None: no limit)."""

    intervals: Intervals
    saving: Saving
    times: CheckpointTimes
    slower: SaveSlowdown
    limit: float | None = None


def best_saving(weeks: Weeks, run: LongRun, step: float, writes: StoreWrites, beside_peers: float = 0.0) -> ChosenSaving:
    """Return how *weeks* of steps of *step* (s) save with *writes* at the best rate.

    *beside_peers*: the seconds that steps lose while a copy goes to the memory of a peer. Raise SpecError as `saving_of` does.
    """

    def made(limit: float | None, lost: Callable[[float | None], float]) -> ChosenSaving:
        times, slower = writes.times(limit), SaveSlowdown(lost(limit), beside_peers)
        return ChosenSaving(*saving_of(weeks, times, run, step, slower), times, slower, limit)

    def kept(chosen: ChosenSaving) -> float:
        return _kept_share(replace(run, saving=chosen.saving))

    if weeks.mode == "sync":
        return made(None, lambda limit: 0.0)
    full = made(None, writes.lost_time)
    tried = {full: kept(full)}

    def may_be_better(limit: float) -> bool:
        try:
            without = kept(made(limit, lambda limit: 0.0))
        except SpecError:  # the next checkpoint would begin before this one is complete
            return False
        if without > max(tried.values()) + _LEAST_GAIN:
            chosen = made(limit, writes.lost_time)
            tried[chosen] = kept(chosen)
            return True
        return False

    if writes.store is None or kept(made(None, lambda limit: 0.0)) <= tried[full] + _LEAST_GAIN:
        return full
    power = math.ceil(math.log2(writes.rate)) - 1
    while may_be_better(2.0**power):
        power -= 1
    best = max((chosen for chosen in tried if chosen.limit is not None), key=tried.__getitem__, default=full)
    if best.limit is not None:
        for limit in (best.limit * math.sqrt(2.0), best.limit / math.sqrt(2.0)):
            if limit < writes.rate:
                may_be_better(limit)
    return max(tried, key=tried.__getitem__)


def _kept_share(run: LongRun) -> float:
    """Return the effective share of *run* in closed form, including faults after which no copy in the memory of peers is left."""
    share, saving = closed_form(run), run.saving
    if saving.memory_interval is None:
        return share
    return share * math.exp(-lost_with_copies(run) * (saving.interval / 2 + saving.persist))
