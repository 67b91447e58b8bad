"""How fast are checkpoints written? At the rate at which most work is kept, which may be below the speed of the store or of the NICs.

Writes during training share NICs and host memory with it, so a fast write may slow steps by more than an earlier completion of the
checkpoint saves. Each writer may therefore limit itself. The rates are the same for all stores, powers of the square root of two, in
addition to the full speed; a faster store thus offers all rates of a slower one. Those are not simulated that cannot be best if a slower
write costs steps no more than a faster one. Copies to the memory of peers are written in the same way.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Final, NamedTuple

from sim.analysis.expected_share import closed_form
from sim.analysis.long_run import LongRun, Saving
from sim.analysis.renewal import best_interval, effective_share
from sim.cluster.checkpoint import CheckpointParts, CheckpointTimes, checkpoint_times, memory_of_peers, peer_time
from sim.spec.hardware import Node
from sim.spec.stores import Store
from sim.spec.yaml import SpecError
from sim.study.checkpoint_intervals import Intervals, SaveSlowdown, lost_with_copies, saving_of
from sim.study.options import Weeks
from sim.study.weeks import Slowed

_LEAST_GAIN: Final = 1e-6
"""Gain of effective share below which no other rate is tried."""


class StoreWrites:
    """Writes of one kind of checkpoint to one store, or (None) to the nodes' own disks, and copies to peers, at any rate."""

    def __init__(self, node: Node, parts: CheckpointParts, store: Store | None, slowed: Slowed) -> None:
        """Simulate writes of *parts*; *slowed* returns the seconds that steps lose. Raise ValueError if there is no disk to write to."""
        self.node, self.parts, self.store, self.slowed = node, parts, store, slowed
        self.full = checkpoint_times(node, parts, store)
        self._lost: dict[float | None, float] = {}
        self._lost_to_peers: dict[float | None, float] = {}
        self._times: dict[float | None, CheckpointTimes] = {None: self.full}
        self._to_peers: dict[float | None, float] = {None: self.full.to_peer_time}

    def to(self, faster: Store) -> StoreWrites:
        """Return the writes to a store that is only *faster*: at the same limits they cost the same, and copies to peers are the same."""
        others = StoreWrites(self.node, self.parts, faster, self.slowed)
        others._lost |= {limit: lost for limit, lost in self._lost.items() if limit is not None}
        others._lost_to_peers = self._lost_to_peers
        return others

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
        if limit not in self._times:
            limited = checkpoint_times(self.node, self.parts, self._limited(self.store, limit))
            self._times[limit] = limited._replace(load_time=self.full.load_time)
        if peer_limit not in self._to_peers:
            self._to_peers[peer_limit] = peer_time(self.node, self.parts, peer_limit)
        return self._times[limit]._replace(to_peer_time=self._to_peers[peer_limit])

    def lost_time(self, limit: float | None) -> float:
        """Return the seconds that steps lose during a write to the store at *limit*."""
        if limit not in self._lost:
            self._lost[limit] = max(0.0, self.slowed(self._limited(self.store, limit)))
        return self._lost[limit]

    def lost_to_peers(self, limit: float | None) -> float:
        """Return the seconds that steps lose while copies cross the NICs to the memory of peers at *limit*."""
        if limit not in self._lost_to_peers:
            peers = memory_of_peers(self.node, self.parts.nodes)
            self._lost_to_peers[limit] = max(0.0, self.slowed(self._limited(peers, limit))) if self.parts.nodes > 1 else 0.0
        return self._lost_to_peers[limit]

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
        copies = partial(_share_of_copies, run, writes)
        peer_limit = _best_limit(writes.peer_rate, copies, writes.lost_to_peers)
    to_peers = writes.lost_to_peers(peer_limit) if weeks.mode == "tiered" else 0.0

    def made(limit: float | None, lost: float) -> ChosenSaving:
        times, slower = writes.times(limit, peer_limit), SaveSlowdown(lost, to_peers)
        return ChosenSaving(*saving_of(weeks, times, run, step, slower), times, slower, limit, peer_limit)

    def kept(limit: float | None, lost: float) -> float:
        try:
            return _kept_share(replace(run, saving=made(limit, lost).saving))
        except SpecError:
            if limit is None:
                raise
            return 0.0  # the next checkpoint would begin before this one is complete

    if weeks.mode == "sync":
        return made(None, 0.0)
    limit = None if writes.store is None else _best_limit(writes.rate, kept, writes.lost_time)
    return made(limit, writes.lost_time(limit))


def _best_limit(full: float, kept: Callable[[float | None, float], float], lost: Callable[[float | None], float]) -> float | None:
    """Return the rate (bytes/s) below *full* at which most work is *kept*; None for full speed.

    *kept* returns the share of kept work at a limit (None: full speed) for the seconds that steps lose, which *lost* returns.
    """
    tried: dict[float | None, float] = {}

    def may_be_best(limit: float | None, least_lost: float) -> bool:
        return kept(limit, least_lost) > max(tried.values()) + _LEAST_GAIN

    def search(low: int, high: int) -> None:
        """Try the limits between those numbered *low* and *high*, unless the fastest of them would not be best at the lowest's cost."""
        if high - low > 1 and may_be_best(limits[high - 1], lost(limits[low])):
            middle = (low + high) // 2
            tried[limits[middle]] = kept(limits[middle], lost(limits[middle]))
            search(low, middle)
            search(middle, high)

    tried[None] = kept(None, lost(None))
    limits: list[float | None] = [None]
    if may_be_best(None, 0.0):
        power = math.ceil(2 * math.log2(full)) - 1
        while may_be_best(2.0 ** (power / 2), 0.0):
            limits.insert(0, 2.0 ** (power / 2))
            power -= 1
        tried[limits[0]] = kept(limits[0], lost(limits[0]))
        search(0, len(limits) - 1)
    return max(tried, key=tried.__getitem__)


def _kept_share(run: LongRun) -> float:
    """Return the effective share of *run* in closed form, including faults after which no copy in the memory of peers is left."""
    share, saving = closed_form(run), run.saving
    if saving.memory_interval is None:
        return share
    return share * math.exp(-lost_with_copies(run) * (saving.interval / 2 + saving.persist))


def _share_of_copies(run: LongRun, writes: StoreWrites, limit: float | None, lost: float) -> float:
    """Return the effective share of *run* with copies to the memory of peers alone, at their best interval, whatever the store.

    Steps lose *lost* (s) to a copy at *limit* (bytes/s).
    """
    mean, times = 1 / run.separate_rate, writes.times(None, limit)
    blocking, persist = times.copy_time + lost, times.copy_time + times.to_peer_time
    return effective_share(mean, best_interval(mean, blocking, persist), blocking, persist, 1.0)
