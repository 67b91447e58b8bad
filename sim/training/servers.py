"""How does an exchange through parameter servers progress in time? Each stage of the plan is a set of fluid activities, one per server.

Synchronous: all workers push at once, and each leg carries the flows of all of them. Asynchronous: one worker represents a class of equal
workers. Each of its activities loads a resource for itself and for the mean number of other workers that it meets there
(`sim.training.queueing`, based on the time that the worker has just spent elsewhere). The workers of a class thus take the time of a
closed queueing network, for any number of workers, while other traffic contends with them on the simulated links.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from sim.cluster.clock import SimProcess
from sim.cluster.network import Activity, Network, all_done
from sim.events import Cause, EventLog
from sim.parallel.program import Op
from sim.training.collectives.price.collective_plan import Live, live_load
from sim.training.queueing import mean_others
from sim.training.server_plan import Sender, ServerPlan

_LATENCY = (Cause.NETWORK, "latency to the parameter servers")
_FLOW = (Cause.NETWORK, "the flow limit between worker and parameter server")


class Crowd(NamedTuple):
    """The *workers* that one simulated worker represents; *near* is the share of the others that use a link, for links not used by all."""

    workers: int
    near: Mapping[str, float]


class _LiveLeg(NamedTuple):
    """A leg, with its load by the live names of resources."""

    name: str
    volume: float
    load: Mapping[str, float]
    cap: float


class ServerExecutor:
    """Plays the exchange of one bucket and logs what bounds it. With a *crowd*, it plays one asynchronous worker among the others."""

    def __init__(
        self, network: Network, log: EventLog, rank: int, plan: ServerPlan, live: Live, senders: Sequence[Sender], crowd: Crowd | None
    ) -> None:
        self._network = network
        self._log = log
        self._rank = rank
        self._causes = plan.causes(live)
        self._crowd = crowd
        self._stages = [
            [
                (stage.latency, [_LiveLeg(leg.name, leg.volume, live_load(leg.load, live), leg.cap) for leg in stage.legs])
                for stage in plan.stages(bucket, senders)
            ]
            for bucket in range(len(plan.shards))
        ]
        self._others: dict[str, float] = {}
        self._ended = network.env.now
        """Time (s) at which the last exchange ended, or the job began."""

    def carried_state(self) -> tuple[float, ...]:
        """Return the state that affects the next exchange, other than activities in progress: how many others a worker meets."""
        return tuple(self._others.values())

    def __call__(self, name: str, ident: int, nbytes: float, op: Op = "all_reduce") -> SimProcess:
        """Play push, update and pull of bucket *ident*."""
        env = self._network.env
        self._count_others(ident)
        for latency, legs in self._stages[ident]:
            activities = [self._start(leg) for leg in legs]
            yield all_done(env, activities)
            self._log_limits(activities, f"{name} {legs[0].name}" if legs else name, ident, nbytes)
            if latency > 0:
                start = env.now
                yield env.timeout(latency)
                self._log.add_work(self._rank, "comm", name, _LATENCY[0], start, _LATENCY[1], ident)
        self._ended = env.now

    def _count_others(self, bucket: int) -> None:
        """Compute how many others this worker meets at each resource, from the time it has spent away from the servers."""
        if self._crowd is None:
            return
        away = self._network.env.now - self._ended + sum(latency for latency, _ in self._stages[bucket])
        uncontended = [self._uncontended_times(legs) for _, legs in self._stages[bucket]]
        self._others = mean_others(self._crowd.workers, away, uncontended, self._crowd.near)

    def _uncontended_times(self, legs: Sequence[_LiveLeg]) -> dict[str, float]:
        """Return the time (s) for which *legs* occupy each resource without contention."""
        seconds_of: dict[str, float] = defaultdict(float)
        for leg in legs:
            for link, load in leg.load.items():
                seconds_of[link] += leg.volume * load / self._network.capacity[link]
        return seconds_of

    def _start(self, leg: _LiveLeg) -> Activity:
        usage = {link: load * (1.0 + self._others.get(link, 0.0)) for link, load in leg.load.items()}
        return self._network.start(leg.name, leg.volume, usage, cap=leg.cap)

    def _log_limits(self, legs: Sequence[Activity], name: str, ident: int, nbytes: float) -> None:
        """Log over time what limited the leg that ended last."""
        last = max((leg for leg in legs if leg.history), key=lambda leg: leg.finish, default=None)
        if last is None:  # no leg took any time
            return
        for link, begin, end in last.bottlenecks(self._network.env.now):
            cause, resource = self._causes.get(link, _FLOW)
            moved = nbytes if end == self._network.env.now else 0.0
            self._log.add_work(self._rank, "comm", name, cause, begin, resource, ident, moved, end)
