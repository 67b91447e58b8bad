"""What connects the nodes of a cluster? Leaf and spine switches with or without rails and pods, a dragonfly, or a torus."""

from typing import Literal

from pydantic import Field

from sim.spec.fields import Bandwidth, Count, Factor, Spec

PortRate = Bandwidth
"""Bandwidth of one link between two switches, in each direction."""


class Pods(Spec):
    """Pods of leaf switches, connected by a core: a third tier."""

    leaves: Count
    """Number of leaf switches in one pod."""
    oversubscription: Factor = 1.0
    """Total bandwidth of the uplinks of a pod's leaves, relative to the bandwidth of the pod's uplinks to the core."""


class LeafSpine(Spec):
    """Switches in two tiers, or three with *pods*. Every leaf switch is linked to every spine (a fat tree if not oversubscribed)."""

    nodes_per_leaf: Count
    """Number of nodes below one leaf switch."""
    oversubscription: Factor | None = None
    """Bandwidth of the nodes below a leaf, relative to the bandwidth of its uplinks. None: ``uplink_bandwidth`` if given, else 1."""
    uplink_bandwidth: Bandwidth | None = None
    """Total bandwidth of all uplinks of one leaf in each direction, as an alternative to ``oversubscription``."""
    rails: bool = False
    """Whether the fabric is rail-optimized: NIC k of every node below a group of leaves connects to leaf k, so that a group has as many
    leaves as a node has NICs."""
    radix: Count | None = None
    """Ports of one switch, each as fast as a NIC; used only to check that the leaves and spines can be built. None: not checked."""
    pods: Pods | None = None
    """A third tier of switches; none: two tiers."""


class Dragonfly(Spec):
    """Routers in groups. Each router has a link to every other router of its group, and ``global_links`` to other groups."""

    nodes_per_router: Count
    """Number of nodes at one router."""
    routers_per_group: Count
    """Number of routers in a group; every pair of them is linked."""
    groups: Count
    """Number of groups."""
    local_bandwidth: PortRate
    """Bandwidth of a link inside a group, in each direction."""
    global_bandwidth: PortRate
    """Bandwidth of a link between groups, in each direction."""
    global_links: Count = 1
    """Number of links from one router to other groups."""
    radix: Count | None = None
    """Ports of one router for NICs, local links and global links; used only to check that it has enough. None: not checked."""
    routing: Literal["minimal", "adaptive"] = "adaptive"
    """minimal: traffic between two groups uses only the links between them. adaptive: it may also take a detour through a third group
    (Valiant routing) if that has more bandwidth."""


class Torus(Spec):
    """Nodes in a grid with wraparound links; each node is linked to its neighbors."""

    dimensions: tuple[Count, ...] = Field(min_length=1)
    """Number of nodes along each dimension."""
    link_bandwidth: PortRate
    """Bandwidth of one link to one neighbor, in each direction."""
