"""Oracles: closed forms of chains, diamonds and overlap; the critical path; fair shares of links; conservation of bytes and of time."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.cluster.build import Placement
from sim.events import Cause
from sim.parallel.graph import Graph, GraphNode, match_messages
from sim.spec.foreign.chakra_wire import TraceNode
from sim.spec.hardware import Hardware
from sim.study.graph import GraphRun, run_graphs
from sim.training.collectives.price.collective_plan import DEFAULT
from sim.training.graphs.prices import GraphPrices
from sim.training.graphs.run import GraphScene, play_graphs, seconds_of
from tests.harness import carried, machine
from tests.parallel import traces
from tests.parallel.traces import collective, compute, receive, send

MB = 1 << 20
NVLINK, NIC = 10e9, 1e9


def placed(hardware: Hardware) -> tuple[Placement, ...]:
    group = hardware.groups[0]
    return tuple(Placement(node, tuple(range(group.node.gpu_count))) for node in range(group.count))


def run(folder: Path, hardware: Hardware, *ranks: Sequence[TraceNode], groups: str = "") -> GraphRun:
    where = placed(hardware)
    return run_graphs(
        hardware, "toy", traces.graphs(folder, *ranks, groups=groups, gpus_per_node=[len(part.gpus) for part in where]), where
    )


def alone(*nodes: GraphNode) -> float:
    return run_graphs(machine(1), "toy", [Graph("toy.0.et", nodes)], placed(machine(1))).step_time


def price(hardware: Hardware, ranks: tuple[int, ...], nbytes: float, op: str = "all_reduce") -> float:
    return GraphPrices(hardware, placed(hardware), DEFAULT).collective(ranks, op, nbytes).uncontended_time  # type: ignore[arg-type]


# --- one rank ----------------------------------------------------------------------------------------------------------


def test_a_chain_takes_its_sum(tmp_path: Path) -> None:
    chain = [compute(number, 0.01 * (number + 1), *range(number)[-1:]) for number in range(4)]
    assert run(tmp_path, machine(1), chain).step_time == pytest.approx(0.10)


def test_a_diamond_on_two_units_takes_its_longer_side(tmp_path: Path) -> None:
    nodes = [compute(0, 0.01), compute(1, 0.05, 0), compute(2, 0.03, 0, host=True), compute(3, 0.02, 1, 2)]
    assert run(tmp_path, machine(1), nodes).step_time == pytest.approx(0.08)


def test_one_gpu_does_one_thing_at_a_time_the_lowest_number_first(tmp_path: Path) -> None:
    graph_run = run(tmp_path, machine(1), [compute(9, 0.03), compute(2, 0.01), compute(5, 0.02)])
    assert graph_run.step_time == pytest.approx(0.06)
    assert [work.name for work in graph_run.played.log.work] == ["kernel 2", "kernel 5", "kernel 9"]


def test_without_a_duration_the_roofline_decides(tmp_path: Path) -> None:
    gpu = machine(1).groups[0].node.gpu
    kind, peak = "compute", gpu.peak["fp32"]
    assert seconds_of(GraphNode(0, "", kind, flop=peak), gpu, "fp32") == pytest.approx(1.0)
    assert seconds_of(GraphNode(0, "", kind, flop=1.0, nbytes=gpu.memory_bandwidth), gpu, "fp32") == pytest.approx(1.0)
    assert seconds_of(GraphNode(0, "", "memory", nbytes=2 * gpu.memory_bandwidth), gpu, "fp32") == pytest.approx(2.0)
    assert seconds_of(GraphNode(0, "", kind), gpu, "fp32") == 0.0


@st.composite
def drawn(draw: st.DrawFn) -> tuple[GraphNode, ...]:
    count = draw(st.integers(1, 10))
    kinds = st.sampled_from(["compute", "host", "memory", "nothing"])
    return tuple(
        GraphNode(
            number, "", draw(kinds), tuple(draw(st.sets(st.integers(0, number - 1), max_size=3))) if number else (),
            draw(st.integers(0, 5)) * 0.01,
        )
        for number in range(count)
    )  # fmt: skip


def path(nodes: Sequence[GraphNode]) -> float:
    ends: list[float] = []
    for node in nodes:
        own = 0.0 if node.kind == "nothing" else node.seconds or 0.0
        ends.append(max((ends[before] for before in node.predecessors), default=0.0) + own)
    return max(ends)


@given(drawn())
def test_a_step_lasts_its_critical_path_and_no_longer_than_all_work(nodes: tuple[GraphNode, ...]) -> None:
    work = sum(node.seconds or 0.0 for node in nodes if node.kind != "nothing")
    assert path(nodes) - 1e-12 <= alone(*nodes) <= work + 1e-12


@given(drawn())
def test_where_no_two_nodes_want_one_unit_a_step_is_its_critical_path(nodes: tuple[GraphNode, ...]) -> None:
    """Each unit's nodes wait for each other already."""
    last: dict[str, int] = {}
    ordered = []
    for place, node in enumerate(nodes):
        before = (last[node.kind],) if node.kind in last and node.kind != "nothing" else ()
        ordered.append(node._replace(predecessors=tuple(dict.fromkeys((*node.predecessors, *before)))))
        last[node.kind] = place
    assert alone(*ordered) == pytest.approx(path(ordered), abs=1e-12)


def test_many_nodes_that_end_at_once_do_not_nest() -> None:
    nothing = tuple(GraphNode(number, "", "nothing", tuple(range(number)[-1:])) for number in range(5000))
    assert alone(*nothing) == 0.0


# --- several ranks -----------------------------------------------------------------------------------------------------


def test_what_is_hidden_takes_no_time(tmp_path: Path) -> None:
    """Gradients of the first half travel beside the second: max(compute, exchange)."""
    hardware = machine(4, nvlink=NVLINK)
    exchange = price(hardware, (0, 1, 2, 3), 64 * MB)
    for seconds in (0.1 * exchange, 3 * exchange):
        nodes = [compute(0, 0.02), collective(1, "ALL_REDUCE", 64 * MB, 0), compute(2, seconds, 0), compute(3, 0.01, 1, 2)]
        graph_run = run(tmp_path, hardware, *[nodes] * 4)
        assert graph_run.step_time == pytest.approx(0.03 + max(seconds, exchange))
        assert sum(graph_run.ranks[0].exposed.values()) == pytest.approx(max(0.0, exchange - seconds), abs=1e-12)


def test_a_collective_begins_at_its_last_member(tmp_path: Path) -> None:
    hardware = machine(2, nvlink=NVLINK)
    graph_run = run(tmp_path, hardware, *([compute(0, late), collective(1, "ALL_REDUCE", MB, 0)] for late in (0.01, 0.04)))
    own = price(hardware, (0, 1), MB)
    assert graph_run.step_time == pytest.approx(0.04 + own)
    assert graph_run.ranks[0].stalls[Cause.STRAGGLER] == pytest.approx(0.03)
    assert graph_run.ranks[1].stalls[Cause.STRAGGLER] == 0.0


def test_a_communicator_plays_one_at_a_time_and_two_play_side_by_side(tmp_path: Path) -> None:
    hardware = machine(2, nvlink=NVLINK)
    own = price(hardware, (0, 1), 64 * MB)
    one = [collective(0, "ALL_REDUCE", 64 * MB), collective(1, "ALL_REDUCE", 64 * MB)]
    assert run(tmp_path / "one", hardware, one, one).step_time == pytest.approx(2 * own)
    two = [collective(0, "ALL_REDUCE", 64 * MB, pg_name="1"), collective(1, "ALL_REDUCE", 64 * MB, pg_name="2")]
    both = run(tmp_path / "two", hardware, two, two, groups='{"1": [0, 1], "2": [0, 1]}')
    assert both.step_time == pytest.approx(2 * own)  # at half the links' bandwidth each
    assert {done.begin for done in both.played.done} == {0.0}


def test_groups_that_share_a_nic_share_its_bandwidth(tmp_path: Path) -> None:
    """Two groups of one GPU a node, one NIC a node: each has half of it."""
    hardware = machine(2, 2, nic=NIC)
    nodes = [[collective(0, "ALL_REDUCE", 64 * MB, pg_name=str(1 + rank % 2))] for rank in range(4)]
    shared = run(tmp_path, hardware, *nodes, groups='{"1": [0, 2], "2": [1, 3]}')
    assert shared.step_time == pytest.approx(2 * price(hardware, (0, 2), 64 * MB), rel=1e-6)
    assert shared.ranks[0].stalls[Cause.NETWORK] == pytest.approx(shared.step_time)


def test_a_message_leaves_when_it_is_sent_or_when_both_have_come(tmp_path: Path) -> None:
    hardware = machine(1, 2, nic=NIC)
    way = GraphPrices(hardware, placed(hardware), DEFAULT).message(0, 1, 100 * MB).uncontended_time
    assert way == pytest.approx(100 * MB / NIC)
    sent = [send(0, 1, 100 * MB), compute(1, 0.001, 0)]
    got = [compute(0, 2 * way), receive(1, 0, 100 * MB, 0), compute(2, 0.001, 1)]
    graph_run = run(tmp_path / "eager", hardware, sent, got)
    assert graph_run.played.ends == pytest.approx((way + 0.001, 2 * way + 0.001))
    met = [node._replace(attributes={**node.attributes, "rendezvous": True}) for node in sent]
    assert run(tmp_path / "meets", hardware, met, got).played.ends == pytest.approx((3 * way + 0.001, 3 * way + 0.001))
    early = run(tmp_path / "early", hardware, [compute(0, way), send(1, 1, 100 * MB, 0)], [receive(0, 0, 100 * MB)])
    assert early.ranks[1].stalls[Cause.PIPELINE] == pytest.approx(way)


def test_what_moves_nothing_takes_no_time(tmp_path: Path) -> None:
    hardware = machine(2)
    nodes = [collective(0, "ALL_REDUCE", 0), collective(1, "ALL_REDUCE", MB, pg_name="1")]
    other = [collective(0, "ALL_REDUCE", 0), collective(1, "ALL_REDUCE", MB, pg_name="2")]
    assert run(tmp_path, hardware, nodes, other, groups='{"1": [0], "2": [1]}').step_time == 0.0


def test_every_moment_of_every_rank_has_one_cause(tmp_path: Path) -> None:
    hardware = machine(2, 2, nic=NIC)
    ranks = [
        [compute(0, 0.01 * (rank + 1)), collective(1, "ALL_REDUCE", 8 * MB, 0), compute(2, 0.02, 0), compute(3, 0.01, 1, host=True)]
        for rank in range(4)
    ]
    graph_run = run(tmp_path, hardware, *ranks)
    for rank, own in enumerate(graph_run.ranks):
        assert sum(own.stalls.values()) == pytest.approx(graph_run.step_time, rel=1e-12)
        assert own.stalls[Cause.COMPUTE] == pytest.approx(0.01 * (rank + 1) + 0.02)
        assert [own.waits[0].t0, own.waits[-1].t1] == [0.0, graph_run.step_time]
        assert all(one.t1 == other.t0 for one, other in zip(own.waits, own.waits[1:], strict=False))


def test_links_carry_the_bytes_of_all_operations(tmp_path: Path) -> None:
    """A ring of n ranks moves 2 (n - 1) / n of the vector out of each; a message its bytes."""
    hardware = machine(1, 4, nic=NIC)
    ranks: list[list[TraceNode]] = [[collective(0, "ALL_REDUCE", 40 * MB)] for _ in range(4)]
    ranks[0].append(send(1, 3, 7 * MB))
    ranks[3].append(receive(1, 0, 7 * MB))
    graphs = traces.graphs(tmp_path, *ranks, gpus_per_node=[1] * 4)
    scene = GraphScene(graphs, match_messages(graphs), GraphPrices(hardware, placed(hardware), DEFAULT))
    log = play_graphs(scene, keep_rates=True).log
    sent = carried(log)
    assert sent["node0.nic0>net"] == pytest.approx(40 * MB * 2 * 3 / 4 + 7 * MB)
    assert sent["node1.nic0>net"] == pytest.approx(40 * MB * 2 * 3 / 4)
    assert sum(work.nbytes for work in log.work if work.stream == "comm") == 47 * MB
