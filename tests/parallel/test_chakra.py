"""Oracles: Chakra's and ASTRA-sim's conventions, judged by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from sim.parallel.chakra import graphs_of
from sim.parallel.graph import GraphNode
from sim.spec.foreign.chakra_files import TraceFiles
from sim.spec.foreign.chakra_wire import TraceNode
from sim.spec.yaml import SpecError
from tests.parallel.traces import collective, compute, graphs, receive, send

PROCESS_GROUPS = '[\'[{"pg_name": "7", "ranks": [0, 2]}, {"pg_name": "8", "ranks": []}]\']'


def alone(folder: Path, node: TraceNode, ranks: int = 4, **keys: object) -> GraphNode:
    return graphs(folder, *([node] for _ in range(ranks)), **keys)[0].nodes[-1]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("op", "nbytes", "read", "expected"),
    [
        ("ALL_REDUCE", 100, "all_reduce", 100),
        ("ALL_GATHER", 100, "all_gather", 400),  # a rank puts in its part
        ("REDUCE_SCATTER", 100, "reduce_scatter", 100),
        ("REDUCE_SCATTER_BLOCK", 100, "reduce_scatter", 100),
        ("ALL_TO_ALL", 100, "all_to_all", 100),
        ("BROADCAST", 100, "broadcast", 100),
        ("REDUCE", 100, "reduce", 100),
        ("GATHER", 100, "gather", 400),
        ("SCATTER", 100, "scatter", 100),
        ("BARRIER", 100, "all_reduce", 4),
    ],
)
def test_sizes_are_those_of_the_whole_vector(tmp_path: Path, op: str, nbytes: int, read: str, expected: float) -> None:
    node = alone(tmp_path, collective(0, op, nbytes))
    assert (node.op, node.nbytes, node.ranks) == (read, expected, (0, 1, 2, 3))


@pytest.mark.parametrize(
    ("dims", "ranks"), [([True], (0, 1, 2, 3)), ([True, True], (0, 1, 2, 3)), ([True, False], (0, 1)), ([False, True, False], (0, 2))]
)
def test_dimensions_are_gpus_of_a_node_and_nodes(tmp_path: Path, dims: list[bool], ranks: tuple[int, ...]) -> None:
    node = collective(0, "ALL_REDUCE", 8)
    with_dims = node._replace(attributes={**node.attributes, "involved_dim": dims})
    trace = TraceFiles("toy", tuple(map(Path, "0123")), ([with_dims],) * 4, {}, "")
    assert graphs_of(trace, [2, 2])[0].nodes[0].ranks == ranks


def test_process_groups_of_a_trace_are_read(tmp_path: Path) -> None:
    metadata = TraceNode(0, "## process_group:init ##", 1, inputs=PROCESS_GROUPS)
    nodes = [metadata, collective(1, "ALL_REDUCE", 8, pg_name="7")], [metadata, collective(1, "ALL_REDUCE", 8, pg_name="8")]
    trace = TraceFiles("toy", tuple(map(Path, "0123")), (nodes[0], nodes[1], nodes[0], nodes[1]), {}, "")
    read_graphs = graphs_of(trace, [4])
    assert [graph.nodes[1].ranks for graph in read_graphs[:2]] == [(0, 2), (0, 1, 2, 3)]
    with pytest.raises(SpecError, match="node 0: process group 7 has a rank beyond the trace's 2 ranks"):
        graphs_of(trace._replace(paths=trace.paths[:2], ranks=trace.ranks[:2]), [2])


def test_durations_in_microseconds_and_in_seconds(tmp_path: Path) -> None:
    node = compute(0, 1.5e-6)
    assert alone(tmp_path, node).seconds == 1.5e-6
    assert alone(tmp_path, node._replace(duration_micros=3, attributes={})).seconds == pytest.approx(3e-6)
    assert alone(tmp_path, node._replace(duration_micros=0, attributes={"num_ops": 9})).seconds is None


WRONG = {
    "type": (TraceNode(7, "x", 9), r"toy.0.et: node 7 \(x\): has type 9, which is not supported"),
    "dependency": (compute(3, 1e-6, 99), r"toy.0.et: node 3 \(kernel 3\): waits for node 99, which is not in the file"),
    "comm_type": (
        collective(1, "ALL_REDUCE", 8, comm_type=77),
        r"\(ALL_REDUCE\): comm_type 77 is unknown; expected one of 0 ALL_REDUCE",
    ),
    "no size": (TraceNode(2, "", 7, attributes={"comm_type": 0}), "node 2: comm_size is missing; expected a number"),
    "no type": (TraceNode(2, "", 7, attributes={"comm_size": 1}), "node 2: comm_type is missing; expected a whole number"),
    "size a word": (TraceNode(2, "", 7, attributes={"comm_type": 0, "comm_size": "big"}), "comm_size is 'big'; expected a number"),
    "group": (collective(1, "ALL_REDUCE", 8, pg_name="5"), r"communicator 5 is unknown \(known: 1\); name its ranks in comm_group.json"),
    "not a member": (collective(1, "ALL_REDUCE", 8, pg_name="1"), "communicator 1 has ranks 1, 2, but this is rank 0"),
    "itself": (send(1, 0, 8), "comm_dst is 0; expected another of the ranks 0 to 3"),
    "no such rank": (receive(1, 9, 8), "comm_src is 9; expected another of the ranks 0 to 3"),
    "another's": (send(1, 2, 8, comm_src=3), "comm_src is 3, but this is rank 0"),
    "seconds": (compute(1, -1.0)._replace(duration_micros=0), "duration_s is -1.0; expected 0 or more"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_cannot_be_is_refused_with_file_and_node(tmp_path: Path, case: str) -> None:
    node, what = WRONG[case]
    with pytest.raises(SpecError, match=what):
        alone(tmp_path, node, groups='{"1": [1, 2]}')


def test_a_negative_size_is_refused(tmp_path: Path) -> None:
    """A negative int64 has ten bytes on the wire."""
    trace = TraceFiles("toy", (Path("toy.0.et"),), ([collective(4, "ALL_REDUCE", -8)],), {}, "")
    with pytest.raises(SpecError, match=r"toy.0.et: node 4 \(ALL_REDUCE\): comm_size is -8; expected 0 or more"):
        graphs_of(trace, [1])


def test_numbers_stand_once_and_a_trace_is_not_empty(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"toy.0.et: node 1 appears twice"):
        graphs(tmp_path, [compute(1, 1e-6), compute(1, 1e-6)])
    with pytest.raises(SpecError, match=r"toy.0.et: has no nodes"):
        graphs(tmp_path, [])
