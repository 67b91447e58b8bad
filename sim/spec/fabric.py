"""What lies between the nodes of a cluster? Leaf and spine switches with or without rails and pods, a dragonfly, or a torus."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from sim.spec.fields import Bandwidth, Count, Factor, Spec

PortRate = Bandwidth
"""Bandwidth of one link between two switches, in each direction."""


class Pods(Spec):
    """Leaf switches in pods, whose spines lead to a core: a third tier."""

    leaves: Count
    """In one pod."""
    oversubscription: Factor = 1.0
    """Bandwidth of all its leaves' uplinks over that of the pod's own to the core."""


class LeafSpine(Spec):
    """Switches in two tiers, or with *pods* three: every leaf switch has links to every spine (a fat tree where nothing is saved)."""

    nodes_per_leaf: Count
    """Nodes below one leaf switch."""
    oversubscription: Factor | None = None
    """Bandwidth of the nodes below a leaf over that of its uplinks; 1 without ``uplink_bandwidth``."""
    uplink_bandwidth: Bandwidth | None = None
    """Of all uplinks of one leaf together, in each direction, instead of a ratio."""
    rails: bool = False
    """Whether each NIC of a node hangs off a leaf of its own: as many leaves side by side as a node has NICs."""
    radix: Count | None = None
    """Ports of one switch, each as fast as a NIC: only to check that leaves and spines can be built of them."""
    pods: Pods | None = None
    """A third tier."""


class Dragonfly(Spec):
    """Routers in groups: each has a link to every other of its group, and ``global_links`` to other groups."""

    nodes_per_router: Count
    """Nodes at one router."""
    routers_per_group: Count
    """All linked with each other."""
    groups: Count
    """How many."""
    local_bandwidth: PortRate
    """Of a link inside a group, in each direction."""
    global_bandwidth: PortRate
    """Of a link between groups, in each direction."""
    global_links: Count = 1
    """Of one router."""
    radix: Count | None = None
    """Ports of one router, for nodes' NICs, local and global links: only to check that it can be built of them."""
    routing: Literal["minimal", "adaptive"] = "adaptive"
    """Whether traffic between two groups keeps to their own links, or may take the way through a third (Valiant) where that is more."""


class Torus(Spec):
    """Nodes in a grid whose rows close to rings; links join neighbours."""

    dimensions: tuple[Count, ...] = Field(min_length=1)
    """Nodes along each dimension."""
    link_bandwidth: PortRate
    """Of one link to one neighbour, in each direction."""
