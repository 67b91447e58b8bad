"""How do workers exchange through parameter servers in time? Each stage of the plan as fluid activities, one per server.

In step: all workers push at once, and each leg is loaded with the flows of all. By themselves: a class of equal workers is simulated by
one of them, and every activity weighs on each resource for the worker and for the others that it meets there, in the mean
(`sim.training.queueing`, from the time the worker has just spent elsewhere). So the equal workers of a class take the time that a
closed queueing network gives, whatever their number, while other traffic contends with them on the links themselves.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import simpy

from sim.cluster.network import Activity, Network, together
from sim.events import Cause, EventLog
from sim.parallel.program import Op
from sim.training.collectives.price.plan import Live, live_load
from sim.training.queueing import mean_others
from sim.training.server_plan import Sender, ServerPlan

SimProcess = Generator[simpy.Event, object, None]
_LATENCY = (Cause.NETWORK, "latency to the parameter servers")
_FLOW = (Cause.NETWORK, "the flow limit between worker and parameter server")


@dataclass(frozen=True)
class Crowd:
    """The workers that one stands for: *workers* in all, and the share of the others that use a link, where not all do."""

    workers: int
    near: Mapping[str, float]


class _LiveLeg(NamedTuple):
    """A leg on the network's own resources."""

    name: str
    volume: float
    load: Mapping[str, float]
    cap: float


class ServerExecutor:
    """Plays the exchange of one bucket, and logs what bounds it; with a *crowd*, for one worker beside the others."""

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
        """When the last exchange ended, or the job began (s)."""

    def remembers(self) -> tuple[float, ...]:
        """Return what decides the next exchange beside what is in progress: the others that a worker meets."""
        return tuple(self._others.values())

    def __call__(self, name: str, ident: int, nbytes: float, op: Op = "all_reduce") -> SimProcess:
        """Play push, update and pull of bucket *ident*."""
        env = self._network.env
        self._look_around(ident)
        for latency, legs in self._stages[ident]:
            activities = [self._start(leg) for leg in legs]
            yield together(env, activities)
            self._note(activities, f"{name} {legs[0].name}" if legs else name, ident, nbytes)
            if latency > 0:
                start = env.now
                yield env.timeout(latency)
                self._log.did(self._rank, "comm", name, _LATENCY[0], start, _LATENCY[1], ident)
        self._ended = env.now

    def _look_around(self, bucket: int) -> None:
        """Work out how many others this worker meets at each resource, from the time it has spent away."""
        if self._crowd is None:
            return
        away = self._network.env.now - self._ended + sum(latency for latency, _ in self._stages[bucket])
        alone = [self._alone(legs) for _, legs in self._stages[bucket]]
        self._others = mean_others(self._crowd.workers, away, alone, self._crowd.near)

    def _alone(self, legs: Sequence[_LiveLeg]) -> dict[str, float]:
        """Return the seconds that *legs* together keep each resource, were nobody else there."""
        seconds_of: dict[str, float] = defaultdict(float)
        for leg in legs:
            for link, load in leg.load.items():
                seconds_of[link] += leg.volume * load / self._network.capacity[link]
        return seconds_of

    def _start(self, leg: _LiveLeg) -> Activity:
        usage = {link: load * (1.0 + self._others.get(link, 0.0)) for link, load in leg.load.items()}
        return self._network.start(leg.name, leg.volume, usage, cap=leg.cap)

    def _note(self, legs: Sequence[Activity], name: str, ident: int, nbytes: float) -> None:
        """Log what held back the leg that ended last, moment by moment."""
        last = max((leg for leg in legs if leg.history), key=lambda leg: leg.finish, default=None)
        if last is None:  # nothing to do took no time
            return
        for link, begin, end in last.bound(self._network.env.now):
            cause, resource = self._causes.get(link, _FLOW)
            moved = nbytes if end == self._network.env.now else 0.0
            self._log.did(self._rank, "comm", name, cause, begin, resource, ident, moved, end)
