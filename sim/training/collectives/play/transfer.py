"""How long does a collective take when every chunk is simulated? The ``transfer`` executor plays each transfer as a separate flow.

Between each pair of ranks, each channel plays its transfers in the order of the schedule (`scripts`):

    start(k) = max(arrivals that k waits for, sent(k-1)),    arrive(k) = sent(k) + latency

A chunk is sent at the rate that its flow gets from the network. Latency follows the bytes and does not occupy the link. For a ring without
other traffic, this is the recurrence that ``phase`` prices; with other traffic, it shows which hops are slowed, and for how long. The
critical path determines what bounded the collective. The cost grows with channels x ranks^2, so this executor is for tests and small cases;
it needs a cluster built without folding. User-defined algorithms are played by their own steps. Built-in algorithms have prices only;
``tests/oracle/collectives`` has their schedules, transfer by transfer.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from typing import NamedTuple

import simpy

from sim.cluster.clock import SimProcess
from sim.cluster.network import Activity, Network
from sim.events import Cause, EventLog
from sim.parallel.program import Op
from sim.spec.extensions import COLLECTIVES, names
from sim.spec.yaml import SpecError
from sim.training.collectives.price.collective_plan import CollectivePlan, Cost, Live, live_load
from sim.training.collectives.price.layout import JobLayout
from sim.training.collectives.price.own import Transfer, own_steps, transfers
from sim.training.collectives.price.traffic import Edge

_BoundPeriod = tuple[Cause, str, float, float]
"""The cause and resource that bounded a collective, and the begin and end of that period (s)."""


class Script(NamedTuple):
    """The transfers of one channel, each with its edge."""

    transfers: Sequence[Transfer]
    edges: Sequence[Edge]


Writer = Callable[[JobLayout, str, float], list[Script]]
"""Returns the script of each channel for an operation on a number of bytes."""

WRITERS: dict[str, Writer] = {}
"""Script writers of built-in algorithms by name. It is empty; code that has their schedules, such as tests, adds to it."""


def scripts(layout: JobLayout, op: str, algorithm: str, nbytes: float) -> list[Script]:
    """Return the script of each channel. Raise SpecError if the algorithm has no schedule of individual transfers."""
    if algorithm in names(COLLECTIVES):
        return straight_script(layout, transfers(own_steps(algorithm, layout.ranks, layout.most_local), nbytes))
    if algorithm not in WRITERS:
        choices = ", ".join([*WRITERS, "algorithms of your own (docs/develop/own-collective.md)"])
        raise SpecError(f"{algorithm} can only be simulated as one activity; the transfer executor supports {choices}")
    return WRITERS[algorithm](layout, op, nbytes)


def straight_script(layout: JobLayout, transfers: Sequence[Transfer]) -> list[Script]:
    """Return a single script of *transfers*, with ranks numbered node by node."""
    gpus = [gpu for part in layout.every_node for gpu in part.gpus]
    return [Script(transfers, [numbered_edge(layout, gpus, transfer.src, transfer.dst) for transfer in transfers])]


def numbered_edge(layout: JobLayout, gpus: Sequence[int], src: int, dst: int) -> Edge:
    """Return the edge between the ranks *src* and *dst*; *gpus* lists the GPU of each rank on its node."""
    local, nodes = layout.most_local, layout.every_node
    part, onward = nodes[src // local], nodes[dst // local]
    if src // local == dst // local:
        return layout.local_edge(part, gpus[src], gpus[dst])
    return layout.nic_edge(part, onward, gpus[src], gpus[dst])


class _PlayedTransfer:
    """One transfer while it is played, with the times (s) at which it starts, is sent and arrives."""

    def __init__(self, transfer: Transfer, edge: Edge, arrival: simpy.Event) -> None:
        self.transfer = transfer
        self.edge = edge
        self.arrival = arrival
        self.start = self.sent = self.arrived = 0.0
        self.flow: Activity | None = None
        self.waited_for: _PlayedTransfer | None = None
        """The transfer whose end allowed this one to start."""


class _EdgeUse(NamedTuple):
    """A transfer's use of an *edge*: load by live link, maximum rate (bytes/s), and latency after its bytes (s)."""

    edge: Edge
    usage: dict[str, float]
    cap: float
    latency: float


class TransferExecutor:
    """Plays collectives of one job on the network, and logs what bounds them."""

    def __init__(self, network: Network, log: EventLog, rank: int, plan: CollectivePlan, live: Live) -> None:
        if any(part.slot.count > 1 for part in plan.parts):
            raise ValueError("the transfer executor simulates every rank separately; build the cluster without folding")
        if plan.layout.job_fabric.ports and not plan.layout.job_fabric.groups_of:
            raise ValueError("the transfer executor supports leaves and pods only in their order")
        self._network = network
        self._log = log
        self._rank = rank
        self._plan = plan
        self._live = live
        self._causes = plan.causes(live)
        self._edge_uses: dict[tuple[int, float, str], _EdgeUse] = {}
        """Cache by the identity of an edge (the value keeps the edge alive), bytes of a chunk, and protocol."""

    def __call__(self, name: str, ident: int, nbytes: float, op: Op = "all_reduce") -> SimProcess:
        """Play one *op* on *nbytes*."""
        env, cost = self._network.env, self._plan.cost(nbytes, op)
        begin = env.now
        yield env.timeout(cost.launch)
        launch = (*cost.latency_of, begin, env.now)
        every: list[_PlayedTransfer] = []
        for script in scripts(self._plan.layout, op, cost.algorithm, nbytes):
            every += self._play(script, cost, name)
        yield env.all_of([leg.arrival for leg in every])
        pieces = [launch, *self._critical_path(max(every, key=lambda leg: leg.arrived), cost)]
        for (cause, resource), same in groupby(pieces, key=lambda piece: piece[:2]):
            spans = list(same)
            end = spans[-1][3]
            self._log.add_work(self._rank, "comm", name, cause, spans[0][2], resource, ident, nbytes if end == env.now else 0.0, end)

    def _play(self, script: Script, cost: Cost, name: str) -> list[_PlayedTransfer]:
        """Start one channel and return its transfers."""
        env = self._network.env
        legs = [_PlayedTransfer(transfer, edge, env.event()) for transfer, edge in zip(*script, strict=True)]
        streams: dict[tuple[int, int, int], list[_PlayedTransfer]] = defaultdict(list)
        for leg in legs:
            streams[leg.transfer.src, leg.transfer.dst, leg.transfer.channel].append(leg)
        for stream in streams.values():
            env.process(self._send(legs, stream, cost, name))
        return legs

    def _send(self, legs: Sequence[_PlayedTransfer], stream: Sequence[_PlayedTransfer], cost: Cost, name: str) -> SimProcess:
        """Send the chunks from one rank to another on one channel, in order."""
        env = self._network.env
        previous: _PlayedTransfer | None = None
        for leg in stream:
            for needed in leg.transfer.after:
                yield legs[needed].arrival
            leg.start = env.now
            leg.waited_for = next((legs[number] for number in leg.transfer.after if legs[number].arrived == env.now), previous)
            use = self._edge_use(leg.edge, cost)
            leg.flow = self._network.start(name, leg.transfer.nbytes, use.usage, cap=use.cap)
            yield leg.flow.done
            leg.sent = env.now
            env.process(self._arrive(leg, use.latency))
            previous = leg

    def _edge_use(self, edge: Edge, cost: Cost) -> _EdgeUse:
        """Return the use of *edge* by the transfers of *cost*, cached."""
        key = (id(edge), cost.chunk, cost.protocol)
        if key not in self._edge_uses:
            usage = live_load(edge.load(cost.chunk, cost.protocol), self._live)
            self._edge_uses[key] = _EdgeUse(edge, usage, edge.cap(cost.chunk, cost.protocol), edge.latency(cost.protocol))
        return self._edge_uses[key]

    def _arrive(self, leg: _PlayedTransfer, latency: float) -> SimProcess:
        env = self._network.env
        yield env.timeout(latency)
        leg.arrived = env.now
        leg.arrival.succeed()

    def _critical_path(self, last: _PlayedTransfer, cost: Cost) -> list[_BoundPeriod]:
        """Return what bounded the collective over time, up to the end of *last*, in chronological order."""
        path: list[_BoundPeriod] = []
        leg: _PlayedTransfer | None = last
        end = last.arrived
        while leg is not None:
            if end > leg.sent:
                path.append((*leg.edge.latency_of, leg.sent, end))
            path += reversed(list(self._bounds(leg, cost)))
            end = leg.start
            leg = leg.waited_for
        return path[::-1]

    def _bounds(self, leg: _PlayedTransfer, cost: Cost) -> Iterator[_BoundPeriod]:
        """Yield what bounded the bytes of *leg*."""
        for bottleneck, begin, end in leg.flow.bottlenecks(leg.sent) if leg.flow else ():
            yield (*self._causes.get(bottleneck, (cost.cause, cost.bottleneck)), begin, end)
