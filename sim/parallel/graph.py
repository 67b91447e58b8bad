"""What does each rank do in a step that is given as a graph? Nodes with what they wait for; who meets whom follows from their order.

Unlike a program (`sim.parallel.program`), a graph has no order of its own: a node may begin when those it waits for have ended. Members of
a communicator enter its collectives in one order, that of the nodes' numbers as far as dependencies allow, and the first of each rank
meet, then the second ones, as NCCL has it; so do messages with one sender, receiver and tag.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Literal, NamedTuple

from sim.spec.yaml import SpecError

CollectiveOp = Literal["all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce", "all_to_all", "gather", "scatter"]
NodeKind = Literal["compute", "host", "memory", "collective", "send", "receive", "nothing"]


class GraphNode(NamedTuple):
    """One operation of one rank."""

    number: int
    """As the graph names it."""
    name: str
    kind: NodeKind
    after: tuple[int, ...] = ()
    """Places in the graph of the nodes that it waits for."""
    seconds: float | None = None
    """How long it takes, where that is known."""
    flop: float = 0.0
    nbytes: float = 0.0
    """Moved by compute and memory; of a collective as in `sim.parallel.program.Message`."""
    op: CollectiveOp = "all_reduce"
    communicator: str = ""
    ranks: tuple[int, ...] = ()
    """Members of the communicator."""
    peer: int = -1
    """The other end of a message."""
    tag: int = 0
    meets: bool = False
    """Whether a message leaves only when its receiver has come too."""


class Graph(NamedTuple):
    """What one rank does; *where* names it in messages, such as its file."""

    where: str
    nodes: tuple[GraphNode, ...]

    def named(self, place: int) -> str:
        """Return the node at *place* as a message names it."""
        node = self.nodes[place]
        return f"node {node.number}" + (f" ({node.name})" if node.name else "")


NodePlace = tuple[int, int]
"""Rank, and place in its graph."""


class GraphMeeting(NamedTuple):
    """A collective with the place of each member in order, or a message with those of its sender and its receiver."""

    members: tuple[NodePlace, ...]
    node: GraphNode
    """What the first member says of it."""


class Matched(NamedTuple):
    """Who meets whom: the collectives of each communicator in order, and messages."""

    collectives: dict[tuple[str, tuple[int, ...]], tuple[GraphMeeting, ...]]
    messages: tuple[GraphMeeting, ...]


def order(graph: Graph) -> list[int]:
    """Return the places of *graph* by number, as far as dependencies allow. Raise SpecError with a cycle where there is one."""
    followers = followers_of(graph)
    left = [len(node.after) for node in graph.nodes]
    ready = [(node.number, place) for place, node in enumerate(graph.nodes) if not node.after]
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
        cycle = _cycle({place: next(before for before in graph.nodes[place].after if before in blocked) for place in blocked})
        told = " -> ".join(graph.named(place) for place in [*cycle, cycle[0]])
        raise SpecError(f"{graph.where}: nodes wait for each other in a cycle: {told}")
    return places


def followers_of(graph: Graph) -> list[list[int]]:
    """Return the places that wait for each place of *graph*."""
    followers: list[list[int]] = [[] for _ in graph.nodes]
    for place, node in enumerate(graph.nodes):
        for before in node.after:
            followers[before].append(place)
    return followers


def _cycle(waits_for: dict[int, int]) -> list[int]:
    """Return a cycle of a mapping from each blocked place to one that it waits for, in the order in which they would run."""
    place, seen = next(iter(waits_for)), dict[int, int]()
    while place not in seen:
        seen[place] = len(seen)
        place = waits_for[place]
    walked = list(seen)
    return walked[seen[place] :][::-1]


def matched(graphs: Sequence[Graph]) -> Matched:
    """Return who meets whom in *graphs*, one a rank.

    Raise SpecError for a cycle, for members of a communicator that do not call the same, and for messages without their other end.
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
    meetings = Matched(collectives, tuple(messages))
    _require_an_end(graphs, meetings)
    return meetings


def _meetings(graphs: Sequence[Graph], name: str, ranks: tuple[int, ...], of_rank: dict[int, list[int]]) -> Iterator[GraphMeeting]:
    most = max(ranks, key=lambda rank: len(of_rank.get(rank, ())))
    for turn, place in enumerate(of_rank[most]):
        members = []
        for rank in ranks:
            own = of_rank.get(rank, ())
            if turn >= len(own):
                raise SpecError(
                    f"{graphs[most].where}: {graphs[most].named(place)} is collective {turn + 1} of communicator {name or 'of all ranks'}, "
                    f"but rank {rank} calls only {len(own)} there ({graphs[rank].where})"
                )
            members.append((rank, own[turn]))
        first, at = graphs[ranks[0]], members[0][1]
        for rank, other in members[1:]:
            _require_alike(first, at, graphs[rank], other)
        yield GraphMeeting(tuple(members), first.nodes[at])


def _require_alike(first: Graph, at: int, other: Graph, there: int) -> None:
    one, two = first.nodes[at], other.nodes[there]
    if (one.op, one.nbytes) != (two.op, two.nbytes):
        raise SpecError(
            f"{other.where}: {other.named(there)} is {_call(two)} where {first.named(at)} of {first.where} is {_call(one)}; "
            "members of a communicator make the same calls in the same order"
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
            raise SpecError(f"{graph.where}: {graph.named(place)} receives from rank {source} with tag {tag}, which sends no such message")
        if turn >= len(receives):
            graph, place = graphs[source], sends[turn][1]
            raise SpecError(f"{graph.where}: {graph.named(place)} sends to rank {target} with tag {tag}, which receives no such message")
        here, there = graphs[source].nodes[sends[turn][1]], graphs[target].nodes[receives[turn][1]]
        if here.nbytes != there.nbytes:
            raise SpecError(
                f"{graphs[target].where}: {graphs[target].named(receives[turn][1])} receives {there.nbytes:,.0f} bytes, but "
                f"{graphs[source].named(sends[turn][1])} of {graphs[source].where} sends {here.nbytes:,.0f}"
            )
        yield GraphMeeting((sends[turn], receives[turn]), here)


def _require_an_end(graphs: Sequence[Graph], matched_up: Matched) -> None:
    """Raise SpecError where ranks wait for each other for ever, each inside what it calls."""
    first = [0]
    for graph in graphs:
        first.append(first[-1] + len(graph.nodes))
    stands = list(range(first[-1]))
    """Of each node, that which stands for the collective it is part of."""
    waits: dict[int, set[int]] = defaultdict(set)
    for meetings in matched_up.collectives.values():
        turns = [first[meeting.members[0][0]] + meeting.members[0][1] for meeting in meetings]
        for meeting, own in zip(meetings, turns, strict=True):
            for rank, place in meeting.members:
                stands[first[rank] + place] = own
        for before, after in pairwise(turns):
            waits[after].add(before)
    for meeting in matched_up.messages:
        sent, got = (first[rank] + place for rank, place in meeting.members)
        if meeting.node.meets:
            stands[got] = sent
        else:
            waits[got].add(sent)
    for rank, graph in enumerate(graphs):
        for place, node in enumerate(graph.nodes):
            own = stands[first[rank] + place]
            waits[own].update(stands[first[rank] + before] for before in node.after)
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
        cycle = _cycle({place: next(before for before in waits[place] if before in blocked) for place in blocked})
        told = " -> ".join(_across(graphs, first, place) for place in [*cycle, cycle[0]])
        raise SpecError(f"ranks wait for each other forever: {told}")


def _across(graphs: Sequence[Graph], first: Sequence[int], place: int) -> str:
    rank = next(rank for rank in range(len(graphs)) if place < first[rank + 1])
    return f"rank {rank} {graphs[rank].named(place - first[rank])}"
