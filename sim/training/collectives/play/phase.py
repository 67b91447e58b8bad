"""How long does a whole collective take as one activity? The ``phase`` executor: the default.

All streams of a collective progress together, so it is ONE fluid activity joined to every link it crosses and loaded by the number
of streams that cross it. Its own cap is the mean rate it has alone (`sim.training.collectives.price.pricing`), latency included: a hop that
waits for latency anyway does not slow a ring until its share of a link falls below that mean. Against the ``transfer`` executor: exact
for a ring alone where no two hops share a link; slower where they do but seldom want it at once (at most 26% over the catalogue:
two nodes of NVSwitch, many channels, 1 to 10 MB); within 10% beside other traffic, unless chunks and latency are of one size.
"""

from __future__ import annotations

from collections.abc import Generator, Hashable, Iterable, Iterator

import simpy

from sim.cluster.network import Network
from sim.events import Cause, EventLog
from sim.parallel.program import Message, Op
from sim.spec import shelf
from sim.training.collectives.price.plan import CollectivePlan, Cost, Live, live_load

SimProcess = Generator[simpy.Event, object, None]

Names = tuple[dict[str, tuple[Cause, str]], dict[tuple[str, float], dict[str, float]]]
"""By live link what it means that it holds a collective back; by operation and bytes what each puts on live links."""


def _names(plan: CollectivePlan, live: Live) -> Names:
    return plan.causes(live), {}


class PhaseExecutor:
    """Plays collectives of one job on the network, and logs what bounds them."""

    def __init__(self, network: Network, log: EventLog, rank: int, plan: CollectivePlan, live: Live) -> None:
        self._network = network
        self._log = log
        self._rank = rank
        self._plan = plan
        self._live = live
        self._causes, self._usage = shelf.remembered((PhaseExecutor, id(plan), id(live)), lambda: _names(plan, live), (plan, live))

    def made_of(self, messages: Iterable[Message]) -> Hashable:
        """Return everything that decides how it plays *messages*."""
        return tuple([(message, *self._asked(*message)) for message in dict.fromkeys(messages)])

    def _asked(self, op: Op, nbytes: float) -> Iterator[Hashable]:
        """Yield every part of what *op* costs, with its load by link and what each link means."""
        cost = self._plan.cost(nbytes, op)
        usage = self._on_links(op, nbytes, cost)
        yield from (value for value in cost if value is not cost.load)
        yield self._network.asked(usage)
        yield tuple([self._causes.get(link) for link in usage])

    def _on_links(self, op: Op, nbytes: float, cost: Cost) -> dict[str, float]:
        if (op, nbytes) not in self._usage:
            self._usage[op, nbytes] = live_load(cost.load, self._live)
        return self._usage[op, nbytes]

    def __call__(self, name: str, ident: int, nbytes: float, op: Op = "all_reduce") -> SimProcess:
        """Play one *op* on *nbytes*."""
        env, cost = self._network.env, self._plan.cost(nbytes, op)
        launched = env.now
        yield env.timeout(cost.launch)
        bounds = [(*cost.latency_of, launched, env.now)]
        activity = self._network.start(name, cost.volume, self._on_links(op, nbytes, cost), cap=cost.cap)
        yield activity.done
        for bottleneck, begin, end in activity.bound(env.now):
            bounds += self._bounds(cost, bottleneck, begin, end)
        for cause, resource, begin, end in bounds:
            self._log.did(self._rank, "comm", name, cause, begin, resource, ident, nbytes if end == env.now else 0.0, end)

    def _bounds(self, cost: Cost, bottleneck: str, begin: float, end: float) -> Iterator[tuple[Cause, str, float, float]]:
        """Yield who is to blame from *begin* to *end*: the link that held the collective back, or what bounds it when alone."""
        if bottleneck in self._causes:
            yield (*self._causes[bottleneck], begin, end)
        else:
            middle = begin + cost.latency_share * (end - begin)
            yield (*cost.latency_of, begin, middle)
            yield (cost.cause, cost.bottleneck, middle, end)
