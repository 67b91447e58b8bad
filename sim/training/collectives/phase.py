"""How long does a whole collective take as one activity? The ``phase`` executor: the default.

All hops of a ring progress together, so the collective is ONE fluid activity joined to every link it crosses, loaded by the number
of hops that cross it, and held to the pace of its slowest hop. Latency comes first, then bytes (`sim.training.collectives.plan`).
Exact for a ring that runs alone; beside other traffic it leaves out that single hops may be slowed or idle for a while, which the
``transfer`` executor shows.
"""

from __future__ import annotations

from collections.abc import Generator

import simpy

from sim.cluster.network import Network
from sim.events import EventLog
from sim.training.collectives.plan import Live, RingPlan, live_load

SimProcess = Generator[simpy.Event, object, None]


class PhaseExecutor:
    """Plays all-reduces of one job on the network, and logs what bounds them."""

    def __init__(self, network: Network, log: EventLog, rank: int, plan: RingPlan, live: Live) -> None:
        self._network = network
        self._log = log
        self._rank = rank
        self._plan = plan
        self._live = live
        self._causes = plan.causes(live)
        self._latency_of = plan.latency_of()
        self._usage: dict[float, dict[str, float]] = {}

    def __call__(self, name: str, ident: int, nbytes: float) -> SimProcess:
        """Play one all-reduce of *nbytes*."""
        cost = self._plan.cost(nbytes)
        if nbytes not in self._usage:
            self._usage[nbytes] = live_load(cost.load, self._live)
        cause, resource = self._latency_of
        start = self._network.env.now
        yield self._network.env.timeout(cost.latency)
        self._log.did(self._rank, "comm", name, cause, start, resource, ident)
        activity = self._network.start(name, cost.volume, self._usage[nbytes], cap=cost.cap)
        yield activity.done
        now = self._network.env.now
        ends = [*(begin for begin, _ in activity.history[1:]), now]
        for (begin, bottleneck), end in zip(activity.history, ends, strict=True):
            cause, resource = self._causes.get(bottleneck, (cost.cause, cost.bottleneck))
            self._log.did(self._rank, "comm", name, cause, begin, resource, ident, nbytes if end == now else 0.0, end)
