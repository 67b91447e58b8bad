"""How fast are checkpoints written? At the rate at which most work is kept, which may be below the speed of the store or of the NICs.

Writes during training share NICs and host memory with it, so a fast write may slow steps by more than an earlier completion of the
checkpoint saves. Each writer may therefore limit itself. The rates that are tried are the same for all stores, powers of two and the half
steps beside the best of them, in addition to the full speed; a faster store thus offers all rates of a slower one. Those that can no
longer be best, even if they did not slow steps at all, are not simulated. Copies to the memory of peers are written in the same way.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Final, NamedTuple

from sim.analysis.expected_share import closed_form
from sim.analysis.long_run import LongRun, Saving
from sim.analysis.renewal import best_interval, effective_share
from sim.cluster.checkpoint import CheckpointParts, CheckpointTimes, checkpoint_times, memory_of_peers, peer_time
from sim.spec.hardware import Node
from sim.spec.stores import Store
from sim.spec.yaml import SpecError
from sim.study.checkpoint_intervals import Intervals, SaveSlowdown, lost_with_copies, saving_of
from sim.study.weeks import Slowed, Weeks

_LEAST_GAIN: Final = 1e-6
"""Gain of effective share below which no other rate is tried."""


class StoreWrites:
    """Writes of one kind of checkpoint to one store, or (None) to the nodes' own disks, and copies to peers, at any rate."""

    def __init__(self, node: Node, parts: CheckpointParts, store: Store | None, slowed: Slowed) -> None:
        """Simulate writes of *parts*; *slowed* returns the seconds that steps lose. Raise ValueError if there is no disk to write to."""
        self.node, self.parts, self.store, self.slowed = node, parts, store, slowed
        self.full = checkpoint_times(node, parts, store)
        self._lost: dict[tuple[str | None, float | None], float] = {}

    @property
    def rate(self) -> float:
        """Return the bytes/s of each writer at full speed."""
        start = self.store.start if self.store else 0.0
        return self.parts.nbytes / max(self.full.write_time - start, 1e-9)

    @property
    def peer_rate(self) -> float:
        """Return the bytes/s of each copy to the memory of a peer at full speed."""
        return self.parts.nbytes / max(self.full.to_peer_time, 1e-9)

    def times(self, limit: float | None, peer_limit: float | None = None) -> CheckpointTimes:
        """Return the times of a checkpoint if each writer writes at most *limit* bytes/s (None: no limit), and copies at *peer_limit*.

        Reads have full speed.
        """
        times = self.full
        if limit is not None:
            times = checkpoint_times(self.node, self.parts, self._limited(self.store, limit))._replace(load_time=times.load_time)
        return times if peer_limit is None else times._replace(to_peer_time=peer_time(self.node, self.parts, peer_limit))

    def lost_time(self, limit: float | None) -> float:
        """Return the seconds that steps lose during a write to the store."""
        return self._lost_to(self.store, limit)

    def lost_to_peers(self, limit: float | None) -> float:
        """Return the seconds that steps lose while copies cross the NICs to the memory of peers."""
        return self._lost_to(memory_of_peers(self.node, self.parts.nodes), limit) if self.parts.nodes > 1 else 0.0

    def _lost_to(self, store: Store | None, limit: float | None) -> float:
        key = store.name if store else None, limit
        if key not in self._lost:
            self._lost[key] = max(0.0, self.slowed(self._limited(store, limit)))
        return self._lost[key]

    def _limited(self, store: Store | None, limit: float | None) -> Store | None:
        if store is None or limit is None:
            return store
        slower = min(store.bandwidth, limit * self.parts.writers)
        return store.model_copy(update={"bandwidth": slower, "per_writer": min(limit, store.per_writer or math.inf)})


class ChosenSaving(NamedTuple):
    """How a job saves: at which intervals and costs, and to how many bytes/s each writer limits itself (None: no limit)."""

    intervals: Intervals
    saving: Saving
    times: CheckpointTimes
    slower: SaveSlowdown
    limit: float | None = None
    """Of writes to the store."""
    peer_limit: float | None = None
    """Of copies to the memory of peers."""


def best_saving(weeks: Weeks, run: LongRun, step: float, writes: StoreWrites) -> ChosenSaving:
    """Return how *weeks* of steps of *step* (s) save with *writes* at the best rates. Raise SpecError as `saving_of` does."""
    peer_limit = None
    if weeks.mode == "tiered" and run.separate_rate and writes.parts.nodes > 1:
        peer_limit = _best_limit(writes.peer_rate, lambda limit, slows: _share_of_copies(run, writes, limit, slows))
    to_peers = writes.lost_to_peers(peer_limit) if weeks.mode == "tiered" else 0.0

    def made(limit: float | None, slows: bool = True) -> ChosenSaving:
        times, slower = writes.times(limit, peer_limit), SaveSlowdown(writes.lost_time(limit) if slows else 0.0, to_peers)
        return ChosenSaving(*saving_of(weeks, times, run, step, slower), times, slower, limit, peer_limit)

    def kept(limit: float | None, slows: bool) -> float:
        try:
            return _kept_share(replace(run, saving=made(limit, slows).saving))
        except SpecError:
            if limit is None:
                raise
            return 0.0  # the next checkpoint would begin before this one is complete

    if weeks.mode == "sync":
        return made(None, slows=False)
    return made(None if writes.store is None else _best_limit(writes.rate, kept))


def _best_limit(full: float, kept: Callable[[float | None, bool], float]) -> float | None:
    """Return the rate (bytes/s) below *full* at which most work is *kept*; None for full speed.

    *kept* returns the share of kept work at a limit (None: full speed), with steps that writes slow or (False) do not.
    """
    tried: dict[float | None, float] = {None: kept(None, True)}

    def is_worth_a_try(limit: float | None) -> bool:
        return kept(limit, False) > max(tried.values()) + _LEAST_GAIN

    if not is_worth_a_try(None):
        return None
    power = math.ceil(math.log2(full)) - 1
    while is_worth_a_try(2.0**power):
        tried[2.0**power] = kept(2.0**power, True)
        power -= 1
    best = max((limit for limit in tried if limit is not None), key=tried.__getitem__, default=None)
    for limit in () if best is None else (best * math.sqrt(2.0), best / math.sqrt(2.0)):
        if limit < full and is_worth_a_try(limit):
            tried[limit] = kept(limit, True)
    return max(tried, key=tried.__getitem__)


def _kept_share(run: LongRun) -> float:
    """Return the effective share of *run* in closed form, including faults after which no copy in the memory of peers is left."""
    share, saving = closed_form(run), run.saving
    if saving.memory_interval is None:
        return share
    return share * math.exp(-lost_with_copies(run) * (saving.interval / 2 + saving.persist))


def _share_of_copies(run: LongRun, writes: StoreWrites, limit: float | None, slows: bool) -> float:
    """Return the effective share of *run* with copies to the memory of peers alone, at their best interval, whatever the store."""
    mean, times = 1 / run.separate_rate, writes.times(None, limit)
    blocking, persist = times.copy_time + (writes.lost_to_peers(limit) if slows else 0.0), times.copy_time + times.to_peer_time
    return effective_share(mean, best_interval(mean, blocking, persist), blocking, persist, 1.0)
