"""Built-in algorithms transfer by transfer: their schedules laid on the edges of the link graph, for the ``transfer`` executor.

Each channel plays the algorithm's own schedule on its share of the payload, with ranks numbered as the schedule wants them: around
the ring, along the chains of the nodes, or through the nodes in order. Importing this module tells the executor about them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from sim.spec.yaml import SpecError
from sim.training.collectives.play.transfer import WRITERS, Script, numbered_edge, straight_script
from sim.training.collectives.price.layout import JobLayout
from sim.training.collectives.price.own import Transfer
from sim.training.collectives.price.point_to_point import partners_at_once
from sim.training.collectives.price.pricing import nvls_piece, nvls_shards, ring_piece, switch_edge, tree_piece
from sim.training.collectives.price.traffic import Edge
from sim.training.collectives.routes.channels import ring_channels
from tests.oracle.collectives.all_to_all import all_to_all
from tests.oracle.collectives.halving_doubling import halving_doubling_all_reduce
from tests.oracle.collectives.hierarchical import hierarchical_all_reduce
from tests.oracle.collectives.nvls import SWITCH, nvls_all_reduce
from tests.oracle.collectives.point_to_point import gather, scatter, send_recv
from tests.oracle.collectives.ring import ring_all_gather, ring_all_reduce, ring_broadcast, ring_reduce, ring_reduce_scatter
from tests.oracle.collectives.tree import tree_all_reduce


def _ring(layout: JobLayout, op: str, nbytes: float) -> list[Script]:
    each, ranks = nbytes / layout.channels, range(layout.ranks)
    writers: Mapping[str, Callable[[], list[Transfer]]] = {
        "all_reduce": lambda: ring_all_reduce(ranks, each),
        "all_gather": lambda: ring_all_gather(ranks, each),
        "reduce_scatter": lambda: ring_reduce_scatter(ranks, each),
        "broadcast": lambda: ring_broadcast(ranks, each, round(each / ring_piece(each))),
        "reduce": lambda: ring_reduce(ranks[::-1], each, round(each / ring_piece(each))),  # towards the next, to the last
    }
    transfers = writers[op]()
    return [Script(transfers, [ring[transfer.src] for transfer in transfers]) for ring in layout.rings]


def _tree(layout: JobLayout, op: str, nbytes: float) -> list[Script]:
    each, local = nbytes / layout.channels, layout.most_local
    pieces = max(1, round(each / 2 / tree_piece(each / 2, sum(layout.tree_hops))))
    transfers = tree_all_reduce(range(layout.ranks), each, pieces, 1 if layout.isolated else local)

    def edge(channel: int, src: int, dst: int) -> Edge:
        part, onward = layout.every_node[src // local], layout.every_node[dst // local]
        if src // local != dst // local:
            return layout.chain_edge(part, onward, channel, tree=True)
        order = part.channels.channels[channel].gpus
        return layout.local_edge(part, order[src % local], order[dst % local], "Tree")

    return [Script(transfers, [edge(channel, transfer.src, transfer.dst) for transfer in transfers]) for channel in range(layout.channels)]


def _nvls(layout: JobLayout, op: str, nbytes: float) -> list[Script]:
    if layout.nodes > 1 or op != "all_reduce":
        raise SpecError("NVLS between nodes, or other than all_reduce, is played as one activity only")
    (part,) = layout.parts
    pieces = max(1, round(nbytes / nvls_piece(nbytes, nvls_shards(layout), 1)))
    transfers = nvls_all_reduce(range(layout.ranks), nbytes, pieces)
    names = {SWITCH: "nvswitch"} | {rank: f"gpu{gpu}" for rank, gpu in enumerate(part.gpus)}
    return [Script(transfers, [switch_edge(part, names[transfer.src], names[transfer.dst]) for transfer in transfers])]


def _hierarchical(layout: JobLayout, op: str, nbytes: float, *racks: int) -> list[Script]:
    """Return one script per ring of the node; its ranks stand in the order of the ring. *racks* are the nodes of one, where they count."""
    local = layout.most_local
    rings = [ring_channels(part.slot.graph, part.gpus).channels for part in layout.every_node]
    count = min(len(node_rings) for node_rings in rings)
    scripts = []
    for channel in range(count):
        transfers = hierarchical_all_reduce(range(layout.ranks), nbytes / count, local, *racks)
        gpus = [gpu for ring in rings for gpu in ring[channel].gpus]
        scripts.append(Script(transfers, [numbered_edge(layout, gpus, transfer.src, transfer.dst) for transfer in transfers]))
    return scripts


WRITERS.update(
    {
        "Ring": _ring,
        "Tree": _tree,
        "NVLS": _nvls,
        "Hierarchical": _hierarchical,
        "RackHierarchical": lambda layout, op, nbytes: _hierarchical(layout, op, nbytes, layout.job_fabric.per_leaf),
        "HalvingDoubling": lambda layout, op, nbytes: straight_script(layout, halving_doubling_all_reduce(range(layout.ranks), nbytes)),
        "Pairwise": lambda layout, op, nbytes: straight_script(layout, all_to_all(range(layout.ranks), nbytes, partners_at_once(layout))),
        "SendRecv": lambda layout, op, nbytes: straight_script(layout, send_recv(range(layout.ranks), nbytes)),
        "Gather": lambda layout, op, nbytes: straight_script(layout, gather(range(layout.ranks), nbytes, partners_at_once(layout))),
        "Scatter": lambda layout, op, nbytes: straight_script(layout, scatter(range(layout.ranks), nbytes, partners_at_once(layout))),
    }
)
