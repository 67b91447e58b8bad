"""What does each rank do in a step that is described by a graph? Nodes with dependencies, and the matching of collectives and messages.

Unlike a program (`sim.parallel.program`), a graph has no order of its own: a node may begin when its dependencies have ended. Each rank
calls the collectives of a communicator in one order: by node number, as far as dependencies allow. As in NCCL, the first calls of all ranks
form one collective, then the second calls, and so on. Messages with the same sender, receiver and tag are matched the same way.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Literal, NamedTuple

from sim.spec.yaml import SpecError

CollectiveOp = Literal["all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce", "all_to_all", "gather", "scatter"]
NodeKind = Literal["compute", "host", "memory", "collective", "send", "receive", "nothing"]


class GraphNode(NamedTuple):
    """One operation of one rank."""

    number: int
    """Number of the node in the graph's file."""
    name: str
    kind: NodeKind
    predecessors: tuple[int, ...] = ()
    """Places in the graph of the nodes that it waits for."""
    seconds: float | None = None
    """Duration, if specified."""
    flop: float = 0.0
    nbytes: float = 0.0
    """Bytes moved by compute and memory nodes; for a collective as in `sim.parallel.program.Message`."""
    op: CollectiveOp = "all_reduce"
    communicator: str = ""
    ranks: tuple[int, ...] = ()
    """Members of the communicator."""
    peer: int = -1
    """The other end of a message."""
    tag: int = 0
    has_rendezvous: bool = False
    """Whether a message leaves only when its receiver is ready."""


class Graph(NamedTuple):
    """The operations of one rank; *where* identifies it in error messages, for example its file."""

    where: str
    nodes: tuple[GraphNode, ...]

    def describe_node(self, place: int) -> str:
        """Return the node at *place* as error messages name it."""
        node = self.nodes[place]
        return f"node {node.number}" + (f" ({node.name})" if node.name else "")


NodePlace = tuple[int, int]
"""Rank, and place in its graph."""


class GraphMeeting(NamedTuple):
    """A collective with the place of each member in order, or a message with the places of its sender and its receiver."""

    members: tuple[NodePlace, ...]
    node: GraphNode
    """The node of the first member."""


class Matches(NamedTuple):
    """The matched operations: the collectives of each communicator in order, and the messages."""

    collectives: dict[tuple[str, tuple[int, ...]], tuple[GraphMeeting, ...]]
    messages: tuple[GraphMeeting, ...]


def order(graph: Graph) -> list[int]:
    """Return the places of *graph*, ordered by number as far as dependencies allow. Raise SpecError if dependencies form a cycle."""
    followers = followers_of(graph)
    left = [len(node.predecessors) for node in graph.nodes]
    ready = [(node.number, place) for place, node in enumerate(graph.nodes) if not node.predecessors]
    heapq.heapify(ready)
    places = []
    while ready:
        _, place = heapq.heappop(ready)
        places.append(place)
        for after in followers[place]:
            left[after] -= 1
            if not left[after]:
                heapq.heappush(ready, (graph.nodes[after].number, after))
    if len(places) < len(graph.nodes):
        blocked = {place for place, count in enumerate(left) if count}
        cycle = _cycle((before, place) for place in blocked for before in graph.nodes[place].predecessors if before in blocked)
        path = " -> ".join(graph.describe_node(place) for place in [*cycle, cycle[0]])
        raise SpecError(f"{graph.where}: nodes wait for each other in a cycle: {path}")
    return places


def followers_of(graph: Graph) -> list[list[int]]:
    """Return, for each place of *graph*, the places that wait for it."""
    followers: list[list[int]] = [[] for _ in graph.nodes]
    for place, node in enumerate(graph.nodes):
        for before in node.predecessors:
            followers[before].append(place)
    return followers


def _cycle(waits: Iterable[tuple[int, int]]) -> list[int]:
    """Return places that wait for each other, in the order in which they would run; *waits* are pairs of a place and one after it."""
    import networkx

    return [place for place, _ in networkx.find_cycle(networkx.DiGraph(waits))]


def match_messages(graphs: Sequence[Graph]) -> Matches:
    """Match the collectives and messages of *graphs*, one graph per rank.

    Raise SpecError for a cycle, for members of a communicator with different calls, and for a send or receive without its counterpart.
    """
    calls: dict[tuple[str, tuple[int, ...]], dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
    ends: dict[tuple[int, int, int], tuple[list[NodePlace], list[NodePlace]]] = defaultdict(lambda: ([], []))
    for rank, graph in enumerate(graphs):
        for place in order(graph):
            node = graph.nodes[place]
            if node.kind == "collective":
                calls[node.communicator, node.ranks][rank].append(place)
            elif node.kind == "send":
                ends[rank, node.peer, node.tag][0].append((rank, place))
            elif node.kind == "receive":
                ends[node.peer, rank, node.tag][1].append((rank, place))
    collectives = {key: tuple(_meetings(graphs, key[0], key[1], of_rank)) for key, of_rank in calls.items()}
    messages = [each for (source, target, tag), pair in ends.items() for each in _messages(graphs, source, target, tag, pair)]
    meetings = Matches(collectives, tuple(messages))
    _require_no_deadlock(graphs, meetings)
    return meetings


def _meetings(graphs: Sequence[Graph], name: str, ranks: tuple[int, ...], of_rank: dict[int, list[int]]) -> Iterator[GraphMeeting]:
    most = max(ranks, key=lambda rank: len(of_rank.get(rank, ())))
    for turn, place in enumerate(of_rank[most]):
        members = []
        for rank in ranks:
            own = of_rank.get(rank, ())
            if turn >= len(own):
                node = graphs[most].describe_node(place)
                raise SpecError(
                    f"{graphs[most].where}: {node} is collective {turn + 1} of communicator {name or 'of all ranks'}, "
                    f"but rank {rank} calls only {len(own)} there ({graphs[rank].where})"
                )
            members.append((rank, own[turn]))
        first, at = graphs[ranks[0]], members[0][1]
        for rank, other in members[1:]:
            _require_equal(first, at, graphs[rank], other)
        yield GraphMeeting(tuple(members), first.nodes[at])


def _require_equal(first: Graph, at: int, other: Graph, there: int) -> None:
    one, two = first.nodes[at], other.nodes[there]
    if (one.op, one.nbytes) != (two.op, two.nbytes):
        raise SpecError(
            f"{other.where}: {other.describe_node(there)} is {_call(two)} where {first.describe_node(at)} of {first.where} is "
            f"{_call(one)}; members of a communicator make the same calls in the same order"
        )


def _call(node: GraphNode) -> str:
    return f"{node.op} of {node.nbytes:,.0f} bytes"


def _messages(
    graphs: Sequence[Graph], source: int, target: int, tag: int, pair: tuple[list[NodePlace], list[NodePlace]]
) -> Iterator[GraphMeeting]:
    sends, receives = pair
    for turn in range(max(len(sends), len(receives))):
        if turn >= len(sends):
            graph, place = graphs[target], receives[turn][1]
            raise SpecError(
                f"{graph.where}: {graph.describe_node(place)} receives from rank {source} with tag {tag}, which sends no such message"
            )
        if turn >= len(receives):
            graph, place = graphs[source], sends[turn][1]
            raise SpecError(
                f"{graph.where}: {graph.describe_node(place)} sends to rank {target} with tag {tag}, which receives no such message"
            )
        here, there = graphs[source].nodes[sends[turn][1]], graphs[target].nodes[receives[turn][1]]
        if here.nbytes != there.nbytes:
            raise SpecError(
                f"{graphs[target].where}: {graphs[target].describe_node(receives[turn][1])} receives {there.nbytes:,.0f} bytes, but "
                f"{graphs[source].describe_node(sends[turn][1])} of {graphs[source].where} sends {here.nbytes:,.0f}"
            )
        yield GraphMeeting((sends[turn], receives[turn]), here)


def _require_no_deadlock(graphs: Sequence[Graph], matched_up: Matches) -> None:
    """Raise SpecError if ranks would wait for each other forever (a deadlock across ranks)."""
    first = [0]
    for graph in graphs:
        first.append(first[-1] + len(graph.nodes))
    representatives = list(range(first[-1]))
    """For each node, the node that represents the collective or the rendezvous message that it is part of."""
    waits: dict[int, set[int]] = defaultdict(set)
    for meetings in matched_up.collectives.values():
        turns = [first[meeting.members[0][0]] + meeting.members[0][1] for meeting in meetings]
        for meeting, own in zip(meetings, turns, strict=True):
            for rank, place in meeting.members:
                representatives[first[rank] + place] = own
        for before, after in pairwise(turns):
            waits[after].add(before)
    for meeting in matched_up.messages:
        sent, received = (first[rank] + place for rank, place in meeting.members)
        if meeting.node.has_rendezvous:
            representatives[received] = sent
        else:
            waits[received].add(sent)
    for rank, graph in enumerate(graphs):
        for place, node in enumerate(graph.nodes):
            own = representatives[first[rank] + place]
            waits[own].update(representatives[first[rank] + before] for before in node.predecessors)
    _require_acyclic(graphs, first, waits)


def _require_acyclic(graphs: Sequence[Graph], first: Sequence[int], waits: dict[int, set[int]]) -> None:
    left = {place: len(before) for place, before in waits.items()}
    followers: dict[int, list[int]] = defaultdict(list)
    for place, all_before in waits.items():
        for before in all_before:
            followers[before].append(place)
    ready = [place for place in range(first[-1]) if not left.get(place)]
    while ready:
        place = ready.pop()
        left[place] = 0
        for after in followers.get(place, ()):
            left[after] -= 1
            if not left[after]:
                ready.append(after)
    blocked = {place for place, count in left.items() if count}
    if blocked:
        cycle = _cycle((before, place) for place in blocked for before in waits[place] if before in blocked)
        path = " -> ".join(_name_on_rank(graphs, first, place) for place in [*cycle, cycle[0]])
        raise SpecError(f"ranks wait for each other forever: {path}")


def _name_on_rank(graphs: Sequence[Graph], first: Sequence[int], place: int) -> str:
    rank = next(rank for rank in range(len(graphs)) if place < first[rank + 1])
    return f"rank {rank} {graphs[rank].describe_node(place - first[rank])}"
