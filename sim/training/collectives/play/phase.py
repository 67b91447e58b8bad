"""How long does a collective take when it is simulated as a single activity? This is the ``phase`` executor, the default.

All streams of a collective advance together, so the whole collective is one fluid flow over every link it crosses, with a load on each
link equal to the number of streams crossing it. The cap of the flow is the mean rate of the collective without contention, including
latency (`sim.training.collectives.price.pricing`). A ring in which hops wait for latency is thus not slowed until its share of a link falls
below that mean. Compared with the ``transfer`` executor, it is exact for a ring without other traffic if no two hops share a link. It is
slower if hops share a link but rarely use it at the same time (by at most 26% over the catalog: two nodes with NVSwitch, many channels,
1 to 10 MB). With other traffic, it is within 10%, unless the times of a chunk and of latency are similar.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator

from sim.cluster.clock import SimProcess
from sim.cluster.network import Network
from sim.events import Cause, EventLog
from sim.parallel.program import Message, Op
from sim.spec import memo
from sim.training.collectives.price.collective_plan import CollectivePlan, Cost, Live, live_load

Names = tuple[dict[str, tuple[Cause, str]], dict[tuple[str, float], dict[str, float]]]
"""The cause to report by live link, and the load on live links by operation and bytes."""


def _causes_and_usage(plan: CollectivePlan, live: Live) -> Names:
    return plan.causes(live), {}


class PhaseExecutor:
    """Plays collectives of one job on the network, and logs what bounds them."""

    def __init__(self, network: Network, log: EventLog, rank: int, plan: CollectivePlan, live: Live) -> None:
        self._network = network
        self._log = log
        self._rank = rank
        self._plan = plan
        self._live = live
        self._causes, self._usage = memo.get_or_make(
            (PhaseExecutor, id(plan), id(live)), lambda: _causes_and_usage(plan, live), (plan, live)
        )

    def cache_key(self, messages: Iterable[Message]) -> Hashable:
        """Return a cache key for how *messages* are played: everything that affects their timing, with the state of the links they use."""
        kinds = tuple(dict.fromkeys(messages))
        key = (PhaseExecutor.cache_key, id(self._plan), id(self._live), kinds)
        content, links = memo.get_or_make(key, lambda: self._content_and_links(kinds), (self._plan, self._live))
        return content, self._network.usage_key(links)

    def _content_and_links(self, kinds: tuple[Message, ...]) -> tuple[object, dict[str, float]]:
        """Return a token for the cost of *kinds*, their loads and the causes of their links; and all these links."""
        content: list[Hashable] = []
        links: dict[str, float] = {}
        for op, nbytes in kinds:
            cost = self._plan.cost(nbytes, op)
            usage = self._on_links(op, nbytes, cost)
            links |= dict.fromkeys(usage, 1.0)
            values = [value for value in cost if value is not cost.load]
            content.append((op, nbytes, *values, *usage.items(), *map(self._causes.get, usage)))
        return memo.token_for(tuple(content)), links

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
        for bottleneck, begin, end in activity.bottlenecks(env.now):
            bounds += self._bounds(cost, bottleneck, begin, end)
        for cause, resource, begin, end in bounds:
            self._log.add_work(self._rank, "comm", name, cause, begin, resource, ident, nbytes if end == env.now else 0.0, end)

    def _bounds(self, cost: Cost, bottleneck: str, begin: float, end: float) -> Iterator[tuple[Cause, str, float, float]]:
        """Yield the causes from *begin* to *end*: the link that limited the collective, or else its limits without contention."""
        if bottleneck in self._causes:
            yield (*self._causes[bottleneck], begin, end)
        else:
            middle = begin + cost.latency_share * (end - begin)
            yield (*cost.latency_of, begin, middle)
            yield (cost.cause, cost.bottleneck, middle, end)
