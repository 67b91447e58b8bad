"""Oracles: the definition of a topological order, and cycles drawn by hand."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.parallel.graph import CollectiveOp, Graph, GraphNode, match_messages, order
from sim.spec.yaml import SpecError


def graph(*after: tuple[int, ...], numbers: list[int] | None = None) -> Graph:
    own = numbers or list(range(len(after)))
    return Graph("toy.0.et", tuple(GraphNode(own[place], "", "compute", waits) for place, waits in enumerate(after)))


def call(number: int, name: str = "", *after: int, op: CollectiveOp = "all_reduce", nbytes: float = 8.0) -> GraphNode:
    return GraphNode(number, "", "collective", after, op=op, nbytes=nbytes, communicator=name, ranks=(0, 1))


def ranks(*nodes: list[GraphNode]) -> list[Graph]:
    return [Graph(f"toy.{rank}.et", tuple(own)) for rank, own in enumerate(nodes)]


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    count = draw(st.integers(1, 12))
    after = [tuple(draw(st.sets(st.integers(0, place - 1), max_size=3))) if place else () for place in range(count)]
    return graph(*after, numbers=draw(st.permutations(range(count))))


@given(graphs())
def test_an_order_respects_dependencies_and_takes_the_lowest_number_first(drawn: Graph) -> None:
    places = order(drawn)
    assert sorted(places) == list(range(len(drawn.nodes)))
    done: set[int] = set()
    for place in places:
        ready = [other for other, node in enumerate(drawn.nodes) if other not in done and done.issuperset(node.predecessors)]
        assert place == min(ready, key=lambda other: drawn.nodes[other].number)
        done.add(place)


def test_a_cycle_is_named() -> None:
    with pytest.raises(SpecError, match=r"toy.0.et: nodes wait for each other in a cycle: node (\d) -> node \d -> node \1$"):
        order(graph((), (0, 2), (1,), (2,)))


def test_collectives_meet_in_order() -> None:
    matched = match_messages(ranks([call(5), call(7, "", 0)], [call(0), call(9, "", 0)]))
    ((_, meetings),) = matched.collectives.items()
    assert [meeting.members for meeting in meetings] == [((0, 0), (1, 0)), ((0, 1), (1, 1))]


@pytest.mark.parametrize(
    ("graphs", "what"),
    [
        (ranks([call(0)], []), "toy.0.et: node 0 is collective 1 of communicator of all ranks, but rank 1 calls only 0 there"),
        (
            ranks([call(0)], [call(1, op="broadcast")]),
            "node 1 is broadcast of 8 bytes where node 0 of toy.0.et is all_reduce of 8",
        ),
        (ranks([call(0)], [call(1, nbytes=9.0)]), "node 1 is all_reduce of 9 bytes where"),
        (ranks([GraphNode(3, "", "send", nbytes=1.0, peer=1)], []), "node 3 sends to rank 1 with tag 0, which receives no such"),
        (
            ranks([], [GraphNode(4, "", "receive", nbytes=1.0, peer=0)]),
            "node 4 receives from rank 0 with tag 0, which sends no such",
        ),
        (
            ranks([GraphNode(3, "", "send", nbytes=1.0, peer=1)], [GraphNode(4, "", "receive", nbytes=2.0, peer=0)]),
            "node 4 receives 2 bytes, but node 3 of toy.0.et sends 1",
        ),
        (ranks([call(0, "1"), call(1, "2", 0)], [call(0, "2"), call(1, "1", 0)]), "ranks wait for each other forever: rank 0 node"),
    ],
)
def test_what_cannot_meet_is_refused(graphs: list[Graph], what: str) -> None:
    with pytest.raises(SpecError, match=what):
        match_messages(graphs)


def test_a_send_that_waits_for_its_receiver_can_close_a_cycle() -> None:
    def both(meets: bool) -> list[Graph]:
        ends = [(GraphNode(0, "", "send", peer=1 - rank), GraphNode(1, "", "receive", (0,), peer=1 - rank)) for rank in (0, 1)]
        return ranks(*([node._replace(has_rendezvous=meets) for node in own] for own in ends))

    assert len(match_messages(both(False)).messages) == 2
    with pytest.raises(SpecError, match="ranks wait for each other forever"):
        match_messages(both(True))
