"""How does a step that is specified as a graph proceed in time? Simulates every rank's nodes, each as soon as it may begin.

A rank has a GPU, a host and a memory. Each does one thing at a time: of the nodes that may begin, the one with the lowest number first. A
communicator plays its collectives in order, each once its members have arrived. A message leaves when its sender has arrived, or, if the
two meet, also its receiver. All of them share the links of the machine. Collectives of a single rank or of zero bytes end when their
members have arrived.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from sim.cluster.clock import Clock, SimProcess
from sim.cluster.gpu import memory_time, roofline_time
from sim.cluster.network import Network
from sim.events import Cause, EventLog, LoggedRank
from sim.parallel.graph import Graph, GraphMeeting, GraphNode, Matches, NodePlace, followers_of
from sim.spec.fields import Peak
from sim.spec.hardware import Gpu
from sim.training.communicator import Communicator, FluidCost, LimitPiece, Operation, play_on_network
from sim.training.graphs.prices import GraphPrices

UNITS: Final = ("compute", "host", "memory")
"""The units of a rank, each of which does one thing at a time; also the kinds of nodes that run on them."""


@dataclass(frozen=True, eq=False)
class GraphScene:
    """The inputs of a simulation of graphs."""

    graphs: Sequence[Graph]
    meetings: Matches
    prices: GraphPrices
    peak: Peak | None = None
    """Compute units for nodes without a recorded duration; by default, the best units for 16 bits."""


class CompletedOperation(NamedTuple):
    """One finished collective or message: its members, when each arrived, and what limited it after the last one arrived."""

    ranks: tuple[int, ...]
    node: GraphNode
    arrivals: tuple[float, ...]
    """Time (s) at which each member arrived; for a message, its sender and its receiver."""
    begin: float
    end: float
    pieces: tuple[LimitPiece, ...]


@dataclass(frozen=True, eq=False)
class PlayedGraphs:
    """The results of the simulation of graphs."""

    log: EventLog
    done: tuple[CompletedOperation, ...]
    ends: tuple[float, ...]
    """Time (s) at which each rank ended its last node."""

    @property
    def time(self) -> float:
        """Return the step time (s): the time until the last rank has finished."""
        return max(self.ends)


def play_graphs(scene: GraphScene, keep_rates: bool = False) -> PlayedGraphs:
    """Simulate *scene*. *keep_rates* logs the load of links."""
    return _GraphSimulation(scene, keep_rates).run()


class _GraphOperation(Operation):
    """A collective or a message while it runs."""

    def __init__(self, env: Clock, meeting: GraphMeeting, price: FluidCost | None) -> None:
        meets = meeting.node.kind != "send" or meeting.node.has_rendezvous
        super().__init__(env, len(meeting.members) if meets else 1)  # otherwise, a message leaves when its sender arrives
        self.meeting = meeting
        self.price = price
        self.came = [math.nan] * len(meeting.members)

    @property
    def ranks(self) -> tuple[int, ...]:
        return tuple(rank for rank, _ in self.meeting.members)


class _GraphSimulation:
    """The simulation of all ranks."""

    def __init__(self, scene: GraphScene, keep_rates: bool) -> None:
        self.scene = scene
        self.env = env = Clock()
        self.log = EventLog(lambda: env.now, keep_rates=keep_rates)
        self.network = Network(env, self.log)
        self.ranks = [_GraphRank(self, number) for number in range(len(scene.graphs))]
        self.left = sum(len(graph.nodes) for graph in scene.graphs)
        self.over = env.event()
        self.done: list[CompletedOperation] = []
        self.operations: dict[NodePlace, tuple[_GraphOperation, int]] = {}
        """The operation in which each node takes part, and its index among the members."""
        for meetings in scene.meetings.collectives.values():
            communicator = Communicator(env, self._play)
            for meeting in meetings:
                communicator.enter(self._operation(meeting))
        for message in scene.meetings.messages:
            self._operation(message)

    def run(self) -> PlayedGraphs:
        for rank in self.ranks:
            rank.begin()
        self.env.run_to(self.over)
        return PlayedGraphs(self.log, tuple(self.done), tuple(rank.end for rank in self.ranks))

    def _operation(self, meeting: GraphMeeting) -> _GraphOperation:
        node, ranks = meeting.node, tuple(rank for rank, _ in meeting.members)
        prices, price = self.scene.prices, None
        if node.nbytes > 0 and node.kind == "send":
            price = prices.message(ranks[0], ranks[1], node.nbytes)
        elif node.nbytes > 0 and len(ranks) > 1:
            price = prices.collective(ranks, node.op, node.nbytes)
        operation = _GraphOperation(self.env, meeting, price)
        self.operations.update((member, (operation, turn)) for turn, member in enumerate(meeting.members))
        for link in price.load if price else ():
            if link not in self.network.capacity:
                self.network.add_link(link, prices.capacity[link])
        return operation

    # --- collectives and messages ---------------------------------------------------------------------------------

    def come(self, rank: int, place: int) -> bool:
        """Register that *rank* arrives at the operation of its node at index *place*; return whether the operation has already ended."""
        operation, turn = self.operations[rank, place]
        operation.came[turn] = self.env.now
        node = operation.meeting.node
        if node.kind == "send" and turn and not node.has_rendezvous:
            return operation.is_over
        if operation.arrive():
            operation.allow_begin()
            if node.kind == "send":
                self.env.process(self._deliver(operation))
        return operation.is_over

    def _deliver(self, message: _GraphOperation) -> SimProcess:
        """Play *message*, which does not queue behind others."""
        yield from self._play(message)
        message.end()

    def _play(self, operation: _GraphOperation, _: int = 0) -> SimProcess:
        """Play *operation*, whose turn has come, once its members have arrived."""
        if not operation.all_ready.processed:
            yield operation.all_ready
        operation.begin = self.env.now
        node, price = operation.meeting.node, operation.price
        if price is not None:
            yield from play_on_network(self.network, operation, price, node.name or node.op, self.scene.prices.descriptions)
            self.log.add_work(operation.ranks[0], "comm", operation_name(node), price.cause, operation.begin, price.limit, -1, node.nbytes)
        self.done.append(CompletedOperation(operation.ranks, node, tuple(operation.came), operation.begin, self.env.now, operation.pieces))
        for (rank, place), came in zip(operation.meeting.members, operation.came, strict=True):
            if not math.isnan(came):  # a receiver may arrive later
                self.ranks[rank].ended([place])

    def over_by(self, count: int) -> None:
        """Register that *count* nodes have ended."""
        self.left -= count
        if not self.left:
            self.over.succeed()


class _GraphRank:
    """One rank: the nodes that may begin, and the state of each of its units."""

    def __init__(self, simulation: _GraphSimulation, number: int) -> None:
        self.simulation = simulation
        self.number = number
        self.graph = simulation.scene.graphs[number]
        self.followers = followers_of(self.graph)
        self.waits = [len(node.predecessors) for node in self.graph.nodes]
        self.ready: Mapping[str, list[tuple[int, int]]] = {unit: [] for unit in UNITS}
        self.busy = dict.fromkeys(UNITS, False)
        self.end = 0.0
        prices = simulation.scene.prices
        self.gpu = prices.node(number).gpu
        self.peak = simulation.scene.peak or usual_peak(self.gpu)
        node, gpu = prices.places[number]
        simulation.log.ranks.append(LoggedRank(0, number, 1, f"node{node}", (gpu,)))

    def begin(self) -> None:
        """Begin the nodes that wait for nothing."""
        self._advance(self._enter([place for place, count in enumerate(self.waits) if not count]))

    def ended(self, places: Sequence[int]) -> None:
        """Register that the nodes at *places* have ended, and begin those that waited for them."""
        self.end = self.simulation.env.now
        self._advance(places)

    def _advance(self, places: Sequence[int]) -> None:
        while places:
            free = []
            for place in places:
                for after in self.followers[place]:
                    self.waits[after] -= 1
                    if not self.waits[after]:
                        free.append(after)
            self.simulation.over_by(len(places))
            places = self._enter(free)
        for unit in UNITS:
            self._dispatch(unit)

    def _enter(self, places: Sequence[int]) -> list[int]:
        """Begin or queue the nodes at *places*; return those that end at once."""
        over: list[int] = []
        for place in places:
            node = self.graph.nodes[place]
            if node.kind in UNITS:
                heapq.heappush(self.ready[node.kind], (node.number, place))
            elif node.kind == "nothing" or self.simulation.come(self.number, place):
                over.append(place)
        return over

    def _dispatch(self, unit: str) -> None:
        if self.busy[unit] or not self.ready[unit]:
            return
        _, place = heapq.heappop(self.ready[unit])
        node, simulation = self.graph.nodes[place], self.simulation
        self.busy[unit] = True
        start = simulation.env.now
        timeout = simulation.env.timeout(seconds_of(node, self.gpu, self.peak))
        timeout.callbacks.append(lambda _: self._finish(unit, place, start))

    def _finish(self, unit: str, place: int, start: float) -> None:
        node = self.graph.nodes[place]
        cause = {"compute": Cause.COMPUTE, "host": Cause.LAUNCH, "memory": Cause.COPY}[unit]
        stream = "gpu" if unit == "compute" else unit
        resource = {"compute": f"{self.gpu.name} compute", "host": "host", "memory": f"{self.gpu.name} memory"}[unit]
        self.simulation.log.add_work(self.number, stream, node.name or unit, cause, start, resource, place)
        self.busy[unit] = False
        self.ended([place])


def seconds_of(node: GraphNode, gpu: Gpu, peak: Peak) -> float:
    """Return the time (s) of a compute, host or memory node: as recorded, or else by the roofline of *gpu*."""
    if node.seconds is not None:
        return node.seconds
    if node.kind == "host":
        return 0.0
    return memory_time(node.nbytes, gpu) if node.kind == "memory" else roofline_time(node.flop, node.nbytes, gpu, peak)


def usual_peak(gpu: Gpu) -> Peak:
    """Return the units of *gpu* that 16-bit training uses."""
    preferred: tuple[Peak, ...] = ("bf16", "fp16", "fp32")
    return next(peak for peak in preferred if peak in gpu.peak)


def operation_name(node: GraphNode) -> str:
    """Return the name of a collective or message in reports: its operation and its communicator."""
    if node.kind in ("send", "receive"):
        return "send/recv"
    return f"{node.op} of {f'communicator {node.communicator}' if node.communicator else 'all ranks'}"
