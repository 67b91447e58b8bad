"""Do checkpoints take what links and stores allow? Oracles: bytes over the tightest resource, worked out by hand."""

from __future__ import annotations

from collections import Counter

import pytest

from sim.cluster.checkpoint import CheckpointParts, NodeReads, checkpoint_times
from sim.cluster.storage import most_bandwidth
from sim.cluster.topology import node_graph
from sim.spec.hardware import Node
from sim.spec.library import load_hardware
from sim.spec.stores import Store

GB = 1e9


@pytest.fixture(scope="module")
def node() -> Node:
    return load_hardware("hgx-h100").spec.groups[0].node


def store(**keys: str) -> Store:
    return Store.model_validate({"name": "s", "bandwidth": "1000 GB/s", "source": "test"} | keys)


def test_one_writer_copies_at_the_rate_of_its_route(node: Node) -> None:
    graph = node_graph(node)
    times = checkpoint_times(node, CheckpointParts(100 * GB, 1, 1, 8), store())
    assert times.copy_time == pytest.approx(100 * GB / graph.isolated_rate(graph.device_to_host(0)))
    port = min(graph.links[link].capacity for link in graph.memory_to_network(0))
    assert times.write_time == pytest.approx(100 * GB / port)


def test_the_store_bounds_many_writers_and_the_writer_a_slow_one(node: Node) -> None:
    many = checkpoint_times(node, CheckpointParts(1 * GB, 16384, 2048, 8), store(bandwidth="2 TB/s"))
    assert many.write_time == pytest.approx(16384 * GB / 2e12)
    slow = checkpoint_times(node, CheckpointParts(1 * GB, 16384, 2048, 8), store(bandwidth="2000 TB/s", per_writer="50 MB/s", start="3 s"))
    assert slow.write_time == pytest.approx(3 + 20.0)
    assert slow.load_time == pytest.approx(3 + 20.0 + slow.copy_back_time)


def test_disks_of_nodes_are_written_side_by_side(node: Node) -> None:
    assert node.storage is not None
    times = checkpoint_times(node, CheckpointParts(1 * GB, 64, 8, 8), None)
    assert times.write_time == pytest.approx(8 * GB / most_bandwidth(node.storage))
    with pytest.raises(ValueError, match="no disk"):
        checkpoint_times(node.model_copy(update={"storage": None}), CheckpointParts(1 * GB, 64, 8, 8), None)


def test_a_node_reads_what_its_gpus_need_and_its_disk_takes_what_they_write(node: Node) -> None:
    """Oracle: 16 of 64 nodes write 8 parts each; every node reads 24 GB from the store, or from its disk, and each GPU takes 5 GB."""
    assert node.storage is not None
    parts = CheckpointParts(1 * GB, 128, 64, 8, most_per_node=8, own_reads=NodeReads(24 * GB, 8, 5 * GB))
    shared, alone = checkpoint_times(node, parts, store(bandwidth="100 GB/s")), checkpoint_times(node, parts, None)
    assert parts.writing_nodes == 16 and shared.write_time == pytest.approx(128 * GB / 100e9)
    assert alone.write_time == pytest.approx(8 * GB / most_bandwidth(node.storage))
    graph = node_graph(node)
    assert shared.copy_back_time == pytest.approx(5 * GB / graph.isolated_rate(graph.host_to_device(0)))
    assert shared.load_time - shared.copy_back_time == pytest.approx(64 * 24 * GB / 100e9)
    assert alone.load_time - alone.copy_back_time == pytest.approx(24 * GB / most_bandwidth(node.storage))
    nics = [graph.nearest_nic(gpu) for gpu in range(8)]
    crossed = Counter(link for nic in nics for link in (*graph.memory_to_network(nic), *graph.memory_from_network(nic)))
    slowest = max(count * 3 * GB / graph.links[link].capacity for link, count in crossed.items())
    assert shared.from_peer_time - shared.copy_back_time == pytest.approx(slowest)


def test_parts_that_are_read_once_cross_the_network(node: Node) -> None:
    """Oracle: 64 nodes read 128 GB together, and each receives its 24 GB over NICs that are as fast as a load from a peer."""
    shared = store(bandwidth="100 GB/s")
    reads = NodeReads(24 * GB, 8, 5 * GB, 128 * GB), NodeReads(24 * GB, 8, 5 * GB)
    once, each = (checkpoint_times(node, CheckpointParts(1 * GB, 128, 64, 8, 0.0, 8, needed), shared) for needed in reads)
    assert once.load_time == pytest.approx(128 * GB / 100e9 + once.from_peer_time)
    assert once.load_time < 0.2 * each.load_time and once.write_time == each.write_time
    alone = CheckpointParts(1 * GB, 8, 1, 8, own_reads=NodeReads(8 * GB, 8, 1 * GB, 8 * GB))
    assert checkpoint_times(node, alone, store()) == checkpoint_times(node, CheckpointParts(1 * GB, 8, 1, 8), store())


def test_training_keeps_its_part_of_the_network(node: Node) -> None:
    """A writer and the traffic of training share a port half and half where both want all of it."""
    port = node_graph(node).links["nic0>net"].capacity
    alone = checkpoint_times(node, CheckpointParts(8 * GB, 8, 1, 8), store())
    beside = checkpoint_times(node, CheckpointParts(8 * GB, 8, 1, 8, traffic=8 * port), store())
    assert beside.write_time == pytest.approx(2 * alone.write_time, rel=1e-6)
    assert beside.traffic_share == pytest.approx(0.5, rel=1e-6)
    light = checkpoint_times(node, CheckpointParts(8 * GB, 8, 1, 8, traffic=0.8 * port), store())
    assert light.traffic_share == pytest.approx(1.0, rel=1e-6)
    assert alone.traffic_share == 1.0
