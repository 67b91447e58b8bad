"""How many bytes/s cross the narrowest bisection of a cluster in each direction? A closed form per structure, limited by the NICs.

The NICs of half of the nodes limit every cut: N/2 B. Leaves: the uplinks of half of them; the same for pods. Dragonfly with g groups:
(g/2)^2 pairs of groups with a h/(g - 1) global links each (Kim et al., ISCA 2008); with one group, (a/2)^2 local links. Torus: 2 N/k
links across its longest even dimension k, whose rings wrap around (N/2 links if k = 2, where one link per direction joins both ends).

Limits: with an odd number of groups, the smaller half is cut off; a torus or dragonfly that is only partly used counts as a full one.
"""

from __future__ import annotations

import math

from sim.cluster.fabric import uplinks
from sim.spec.fabric import Dragonfly, LeafSpine, Torus
from sim.spec.hardware import Hardware, Nic


def bisection_bandwidth(hardware: Hardware) -> float:
    """Return the bytes/s between two halves of the worker nodes of *hardware*, in each direction; 0 for fewer than two nodes."""
    workers = hardware.worker_groups
    nodes, fabric = sum(group.count for group in workers), hardware.fabric
    if nodes < 2:
        return 0.0
    nic = workers[0].node.nic
    ends = nodes // 2 * nic.count * nic.bandwidth * nic.transport.total_efficiency
    limits = _leaf_spine(fabric.switches, nic, nodes) if fabric.switches else []
    if fabric.dragonfly:
        limits.append(_dragonfly(fabric.dragonfly))
    if fabric.torus:
        limits.append(_torus(fabric.torus))
    return min(ends, fabric.core_bandwidth or math.inf, *(fabric.path_efficiency * limit for limit in limits))


def _leaf_spine(spec: LeafSpine, nic: Nic, nodes: int) -> list[float]:
    of_leaf = uplinks(spec, nic) * (nic.count if spec.rails else 1)
    leaves = -(-nodes // spec.nodes_per_leaf)
    limits = [leaves // 2 * of_leaf] if leaves > 1 else []
    if spec.pods and leaves > spec.pods.leaves:
        limits.append(-(-leaves // spec.pods.leaves) // 2 * spec.pods.leaves * of_leaf / spec.pods.oversubscription)
    return limits


def _dragonfly(spec: Dragonfly) -> float:
    def cut(count: int) -> int:
        return count // 2 * (count - count // 2)

    if spec.groups == 1:
        return cut(spec.routers_per_group) * spec.local_bandwidth if spec.routers_per_group > 1 else math.inf
    of_pair = spec.routers_per_group * spec.global_links / (spec.groups - 1)
    return cut(spec.groups) * of_pair * spec.global_bandwidth


def _torus(spec: Torus) -> float:
    places = math.prod(spec.dimensions)
    longest = max((length for length in spec.dimensions if length % 2 == 0), default=max(spec.dimensions))
    return places // longest * min(2, longest - 1) * spec.link_bandwidth if longest > 1 else math.inf
