"""How long does a collective take chunk by chunk? The ``transfer`` executor: every transfer of the schedule is a flow of its own.

Each hop of each ring plays its transfers in the schedule's order (`sim.training.collectives.ring`):

    start_i(k) = max(arrive_{i-1}(k-1), sent_i(k-1)),    arrive_i(k) = sent_i(k) + latency_i,

where a chunk is sent as fast as the network lets its flow go; latency follows the bytes and does not occupy the link. Alone this is
the recurrence that ``phase`` prices; beside other traffic it shows which hops are slowed, and for how long. What bounded the
collective is read off its critical path. The cost grows with channels x ranks^2: for tests and small cases, without folding.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from itertools import groupby

import simpy

from sim.cluster.network import Activity, Network
from sim.events import Cause, EventLog
from sim.training.collectives.plan import Edge, Live, RingPlan, live_load
from sim.training.collectives.ring import ring_all_gather, ring_all_reduce
from sim.training.collectives.schedule import Transfer
from sim.training.operations import Op

SimProcess = Generator[simpy.Event, object, None]

_Piece = tuple[Cause, str, float, float]
"""Cause and resource that bounded a collective, from when to when (s)."""


class _Leg:
    """One transfer while it is played: when it starts, is sent and arrives (s)."""

    def __init__(self, transfer: Transfer, edge: Edge, arrival: simpy.Event) -> None:
        self.transfer = transfer
        self.edge = edge
        self.arrival = arrival
        self.start = self.sent = self.arrived = 0.0
        self.flow: Activity | None = None
        self.waited_for: _Leg | None = None
        """The transfer without which it would have started earlier."""


class TransferExecutor:
    """Plays all-reduces of one job on the network, and logs what bounds them."""

    def __init__(self, network: Network, log: EventLog, rank: int, plan: RingPlan, live: Live) -> None:
        if any(part.slot.count > 1 for part in plan.parts):
            raise ValueError("the transfer executor plays every rank by itself; build the cluster without folding")
        self._network = network
        self._log = log
        self._rank = rank
        self._plan = plan
        self._live = live
        self._causes = plan.causes(live)

    def __call__(self, name: str, ident: int, nbytes: float, op: Op = "all_reduce") -> SimProcess:
        """Play one collective that leaves *nbytes* on every rank; a broadcast moves as much over each hop as a gather of more."""
        env = self._network.env
        begin = env.now
        yield env.timeout(self._plan.launch)
        launch = (*self._plan.latency_of(), begin, env.now)
        ranks = self._plan.ranks
        gathered = nbytes * ranks / (ranks - 1) if op == "broadcast" else nbytes
        schedule = ring_all_reduce if op == "all_reduce" else ring_all_gather
        transfers = schedule(range(ranks), gathered / self._plan.channels)
        rings = [[_Leg(transfer, ring[transfer.src], env.event()) for transfer in transfers] for ring in self._plan.rings]
        for legs in rings:
            for rank in range(ranks):
                env.process(self._send(legs, [leg for leg in legs if leg.transfer.src == rank], name))
        every = [leg for legs in rings for leg in legs]
        yield env.all_of([leg.arrival for leg in every])
        pieces = [launch, *self._critical_path(max(every, key=lambda leg: leg.arrived))]
        for (cause, resource), same in groupby(pieces, key=lambda piece: piece[:2]):
            spans = list(same)
            end = spans[-1][3]
            self._log.did(self._rank, "comm", name, cause, spans[0][2], resource, ident, nbytes if end == env.now else 0.0, end)

    def _send(self, legs: Sequence[_Leg], mine: Sequence[_Leg], name: str) -> SimProcess:
        """Send what one rank has to send, one chunk after another."""
        env, edge, chunk = self._network.env, mine[0].edge, mine[0].transfer.nbytes
        usage, cap = live_load(edge.load(chunk), self._live), edge.cap(chunk)
        before: _Leg | None = None
        for leg in mine:
            for needed in leg.transfer.after:
                yield legs[needed].arrival
            leg.start = env.now
            leg.waited_for = next((legs[number] for number in leg.transfer.after if legs[number].arrived == env.now), before)
            leg.flow = self._network.start(name, chunk, usage, cap=cap)
            yield leg.flow.done
            leg.sent = env.now
            env.process(self._arrive(leg))
            before = leg

    def _arrive(self, leg: _Leg) -> SimProcess:
        env = self._network.env
        yield env.timeout(leg.edge.latency)
        leg.arrived = env.now
        leg.arrival.succeed()

    def _critical_path(self, last: _Leg) -> list[_Piece]:
        """Return what each moment up to the end of *last* was spent on, in order of time."""
        found: list[_Piece] = []
        leg: _Leg | None = last
        end = last.arrived
        while leg is not None:
            if end > leg.sent:
                found.append((*leg.edge.latency_of, leg.sent, end))
            found += reversed(list(self._bounds(leg)))
            end = leg.start
            leg = leg.waited_for
        return found[::-1]

    def _bounds(self, leg: _Leg) -> Iterator[_Piece]:
        """Yield what bounded the bytes of *leg*."""
        history = leg.flow.history if leg.flow else []
        pace = self._plan.pace(leg.edge, leg.transfer.nbytes)
        for (begin, bottleneck), end in zip(history, [*(begin for begin, _ in history[1:]), leg.sent], strict=True):
            yield (*self._causes.get(bottleneck, (pace.cause, pace.limit)), begin, end)
