"""In which order does one ring visit GPUs that are not all connected by NVLink? The order with the fewest hops of the worst class.

With PCIe only, this is a walk of the PCIe tree, which crosses every uplink once in each direction. With some NVLinks, it is a traveling
salesman tour over hop classes, solved exactly (Held and Karp, 1962) for up to nine devices. For more devices, the tree walk is used.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from sim.cluster.topology import PATH_CLASSES, NodeGraph

_EXACT = 9  # devices; Held and Karp takes 2^n n^2 steps, about 20 ms

_STAGED = len(PATH_CLASSES)


def tree_order(graph: NodeGraph, gpus: Sequence[int], nic: int | None = None) -> tuple[int, ...]:
    """Return *gpus* in the order of a walk of the PCIe tree; with *nic*, the walk begins and ends near it if possible."""
    walk = sorted(gpus, key=lambda gpu: (_place(graph, gpu), gpu))
    if nic is None:
        return tuple(walk)
    distance = {gpu: PATH_CLASSES.index(graph.pcie_class(f"gpu{gpu}", f"nic{nic}")) for gpu in walk}
    near = [gpu for gpu in walk if distance[gpu] == min(distance.values())]
    rest = [gpu for gpu in walk if gpu not in near]
    if not rest:
        return tuple(near)
    half = _split(graph, near)
    return (*near[:half], *rest, *near[half:])


def _place(graph: NodeGraph, gpu: int) -> tuple[int, ...]:
    """Return the path from the socket down to *gpu* as numbers that sort in the order of the hardware description."""
    switches = [switch.name for switch in graph.node.topology.switches]
    socket, *below = reversed(graph.ancestors(f"gpu{gpu}"))
    return (int(socket.removeprefix("socket")), *(switches.index(name) for name in below))


def _split(graph: NodeGraph, near: Sequence[int]) -> int:
    """Return the index at which to split *near* without separating GPUs of one switch, unless there is only one switch."""
    parents = [graph.ancestors(f"gpu{gpu}")[0] for gpu in near]
    cuts = [cut for cut in range(1, len(near)) if parents[cut] != parents[cut - 1] or parents[cut].startswith("socket")]
    cuts = cuts or list(range(1, len(near)))
    return min(cuts, key=lambda cut: (abs(2 * cut - len(near)), cut), default=1)


class _Partial(NamedTuple):
    cost: int
    order: tuple[int, ...]


def shortest_tour(graph: NodeGraph, gpus: Sequence[int], nic: int | None = None) -> tuple[int, ...]:
    """Return the order of *gpus* for a closed tour (through *nic*, if any) with the fewest hops of the worst class, then of the next."""
    if len(gpus) + (nic is not None) > _EXACT:
        return tree_order(graph, gpus, nic)
    if len(gpus) < 2:
        return tuple(gpus)
    start, others = (gpus[0], tuple(gpus[1:])) if nic is None else (-1, tuple(gpus))
    cost = {(one, other): _cost(graph, one, other, nic) for one in (start, *others) for other in others if one != other}
    best = {(1 << place, place): _Partial(cost[start, gpu], (gpu,)) for place, gpu in enumerate(others)}
    for _ in others[1:]:
        best = _extended(best, others, cost)
    closed = [_Partial(partial.cost + _cost(graph, partial.order[-1], start, nic), partial.order) for partial in best.values()]
    return (*gpus[:1], *min(closed).order) if nic is None else min(closed).order


def _extended(
    best: dict[tuple[int, int], _Partial], others: Sequence[int], cost: dict[tuple[int, int], int]
) -> dict[tuple[int, int], _Partial]:
    extended: dict[tuple[int, int], _Partial] = {}
    for (seen, place), partial in best.items():
        for onward, gpu in enumerate(others):
            if not seen >> onward & 1:
                step = _Partial(partial.cost + cost[others[place], gpu], (*partial.order, gpu))
                key = (seen | 1 << onward, onward)
                if key not in extended or step < extended[key]:
                    extended[key] = step
    return extended


def _cost(graph: NodeGraph, one: int, other: int, nic: int | None) -> int:
    """Return the cost of a hop between two GPUs; -1 represents the NIC."""
    if -1 in (one, other):
        return _weight(PATH_CLASSES.index(graph.pcie_class(f"gpu{max(one, other)}", f"nic{nic}")))
    route = graph.route(one, other)
    return _weight(_STAGED if route.staged else PATH_CLASSES.index(route.path_class))


def _weight(place: int) -> int:
    return 1 << 5 * place  # one hop of a class outweighs 31 hops of the class below it, more than an exact tour has
