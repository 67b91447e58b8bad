"""Where do ranks stand, and over which edges do they meet? Oracles: rings, chains and pairs of small clusters by hand."""

from __future__ import annotations

from sim.cluster.build import place, slots
from sim.cluster.fabric import job_fabric
from sim.training.collectives.price.layout import JobLayout
from sim.training.collectives.price.traffic import SlotPart
from sim.training.collectives.routes.channels import ring_channels
from sim.training.job import job_slots
from tests.harness import cluster, machine, toy_node


def layout(hardware, placement=None, fold=True):
    placed = place(hardware, None, placement)
    used = job_slots(0, slots(hardware, [placed], fold))
    parts = tuple(SlotPart(slot, gpus, ring_channels(slot.graph, gpus, len(placed)).first(1)) for slot, gpus in used)
    return JobLayout(parts, hardware.fabric, job_fabric(hardware, [[part.node for part in placed]], 0, fold))


def ends(edge):
    """Return the devices that an edge leads from and to, hop by hop."""
    return [(hop.src, hop.dst) for _, hop in edge.hops]


def test_equal_nodes_are_one_part_and_counted_all_the_same() -> None:
    job_layout = layout(machine(4, 3))
    assert (len(job_layout.parts), job_layout.nodes, job_layout.ranks, job_layout.most_local, job_layout.channels) == (1, 3, 12, 4, 1)
    assert len(job_layout.every_node) == 3 and {number for number, _ in job_layout.numbered} == {0, 1, 2}


def test_unlike_nodes_follow_one_another_as_in_the_cluster() -> None:
    """By hand: a node of two GPUs between two of one; the ring passes them in that order."""
    job_layout = layout(cluster(toy_node(1), toy_node(2), toy_node(1)))
    assert [len(part.gpus) for part in job_layout.every_node] == [1, 2, 1]
    assert job_layout.ranks == 4 and job_layout.most_local == 2
    [ring] = job_layout.rings
    assert sum(edge.fabric is not None for edge in ring) == 3 and len(ring) == 4


def test_a_ring_inside_a_node_has_an_edge_a_gpu() -> None:
    [ring] = layout(machine(4)).rings
    assert len(ring) == 4 and not any(edge.fabric for edge in ring)
    sources = [ends(edge)[0][0] for edge in ring]
    assert sorted(sources) == ["gpu0", "gpu1", "gpu2", "gpu3"]


def test_of_equal_nodes_the_ring_of_one_stands_for_all() -> None:
    """Folded: the edges of one node; unfolded: of each."""
    assert [len(layout(machine(2, 3), fold=fold).rings[0]) for fold in (True, False)] == [2, 6]


def test_an_edge_between_nodes_leaves_by_a_card_and_comes_in_by_one() -> None:
    job_layout = layout(machine(2, 2))
    [part] = job_layout.parts
    edge = job_layout.nic_edge(part, part, 0, 1)
    assert ends(edge) == [("gpu0", "net"), ("net", "gpu1")] and edge.fabric is not None


def test_a_tree_s_chain_goes_there_and_back() -> None:
    """By hand: of four GPUs three hops each way, the way back the reverse of the way there."""
    job_layout = layout(machine(4, 2))
    hops = [ends(edge)[0] for edge in job_layout.chain(job_layout.parts[0], 0)]
    assert len(hops) == 6 and hops[3:] == [(dst, src) for src, dst in reversed(hops[:3])]
    assert job_layout.tree_hops[0] == 3


def test_every_gpu_meets_every_other_of_its_node() -> None:
    job_layout = layout(machine(3))
    assert len(job_layout.pairs(job_layout.parts[0])) == 3 * 2
    assert layout(machine(3)).neighbors == ()
