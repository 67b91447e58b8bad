"""Can the fabric of a cluster be built, and does it have room for its nodes? Radix, places, whole rows, rails, one structure."""

from __future__ import annotations

import math
from collections.abc import Iterator

from sim.check.topology import Problem
from sim.spec.fabric import Dragonfly, LeafSpine, Torus
from sim.spec.hardware import Hardware, Nic

_KINDS = ("leaf_spine", "dragonfly", "torus")


def check_fabric(hardware: Hardware) -> Iterator[Problem]:
    """Yield what is wrong with the fabric of *hardware*."""
    fabric = hardware.fabric
    kinds = [kind for kind in _KINDS if getattr(fabric, kind) is not None]
    for kind in kinds[1:]:
        yield ("fabric", kind), f"cannot be combined with '{kinds[0]}'; a fabric has one structure, so write one of the two"
    if kinds and fabric.core_bandwidth is not None:
        yield (
            ("fabric", "core_bandwidth"),
            (f"cannot be combined with '{kinds[0]}', which sets the bandwidth of each link; write one of the two"),
        )
    if fabric.rank_order == "scattered" and not kinds:
        yield ("fabric", "rank_order"), f"has an effect only with {', '.join(_KINDS[:-1])} or {_KINDS[-1]}; add one, or leave it out"
    if fabric.in_network_reduction and (fabric.dragonfly or fabric.torus):
        yield ("fabric", "in_network_reduction"), f"is modeled for trees of switches, not for a {kinds[0]}; write false, or leaf_spine"
    workers = hardware.worker_groups
    nodes = sum(group.count for group in workers)
    nics = {(group.node.nic.count, group.node.nic.bandwidth) for group in workers}
    if fabric.path_efficiency < 1 and not kinds and len(nics) > 1:
        yield ("fabric", "path_efficiency"), "needs the same NICs on every node unless the fabric has a structure; add a leaf_spine"
    if workers and fabric.leaf_spine is not None:
        yield from _leaf_spine(fabric.leaf_spine, [group.node.nic for group in workers], nodes)
    if workers and fabric.dragonfly is not None:
        yield from _dragonfly(fabric.dragonfly, workers[0].node.nic, nodes)
    if fabric.torus is not None:
        yield from _torus(fabric.torus, nodes)


def _leaf_spine(spec: LeafSpine, nics: list[Nic], nodes: int) -> Iterator[Problem]:
    key = ("fabric", "leaf_spine")
    if spec.oversubscription is not None and spec.uplink_bandwidth is not None:
        yield (
            (*key, "uplink_bandwidth"),
            ("cannot be combined with 'oversubscription', which states the same as a ratio; write one of the two"),
        )
    if spec.oversubscription is not None and spec.oversubscription < 1:
        yield (*key, "oversubscription"), f"{spec.oversubscription:g} is less than 1: the nodes could not fill the uplinks; write 1 or more"
    if len({(nic.count, nic.bandwidth) for nic in nics}) > 1:
        if spec.uplink_bandwidth is None:
            yield (*key, "oversubscription"), "is relative to the NICs, which differ between groups; write uplink_bandwidth instead"
        if spec.rails:
            yield (*key, "rails"), "needs the same NICs on every node, but they differ between groups"
    if spec.rails and nics[0].count == 1:
        yield (*key, "rails"), "needs several NICs per node, each on its own leaf, but nodes have one; leave it out"
    if spec.radix is not None:
        yield from _leaf_ports(spec, spec.radix, nics[0], nodes)


def _leaf_ports(spec: LeafSpine, radix: int, nic: Nic, nodes: int) -> Iterator[Problem]:
    """Check that one leaf has the ports it needs, and that a spine has one for every leaf."""
    below = spec.nodes_per_leaf * (1 if spec.rails else nic.count)
    above = spec.uplink_bandwidth / nic.bandwidth if spec.uplink_bandwidth else below / (spec.oversubscription or 1.0)
    needed = below + math.ceil(above - 1e-9)
    if needed > radix:
        yield (
            ("fabric", "leaf_spine", "radix"),
            f"{radix} ports are too few: {below} NICs below a leaf and {needed - below} uplinks take {needed}; "
            "write that, fewer nodes_per_leaf, or more oversubscription",
        )
    leaves = spec.pods.leaves if spec.pods else -(-nodes // spec.nodes_per_leaf) * (nic.count if spec.rails else 1)
    if leaves > radix:
        yield (
            ("fabric", "leaf_spine", "radix"),
            f"{radix} ports are too few: a spine switch has a link to each of {leaves} leaves; write that, or describe pods",
        )


def _dragonfly(spec: Dragonfly, nic: Nic, nodes: int) -> Iterator[Problem]:
    key = ("fabric", "dragonfly")
    places = spec.nodes_per_router * spec.routers_per_group * spec.groups
    if nodes > places:
        yield key, f"has places for {places} nodes, but {nodes} are described; write more groups, routers or nodes_per_router"
    elif nodes > spec.nodes_per_router and nodes % spec.nodes_per_router:
        yield (*key, "nodes_per_router"), _uneven(nodes, spec.nodes_per_router, "routers")
    max_groups = spec.routers_per_group * spec.global_links + 1
    if spec.groups > max_groups:
        yield (
            (*key, "groups"),
            f"{spec.groups} groups need {spec.groups - 1} global links each; {spec.routers_per_group} routers with "
            f"{spec.global_links} have {max_groups - 1}: write {max_groups} or fewer, or more global_links",
        )
    needed = spec.nodes_per_router * nic.count + spec.routers_per_group - 1 + spec.global_links
    if spec.radix is not None and needed > spec.radix:
        yield (
            (*key, "radix"),
            f"{spec.radix} ports are too few: {spec.nodes_per_router * nic.count} NICs, {spec.routers_per_group - 1} local and "
            f"{spec.global_links} global links take {needed}; write that, or fewer of them",
        )


def _torus(spec: Torus, nodes: int) -> Iterator[Problem]:
    places, row = math.prod(spec.dimensions), spec.dimensions[0]
    if nodes > places:
        written = " x ".join(str(length) for length in spec.dimensions)
        yield ("fabric", "torus", "dimensions"), f"{written} are {places} places, but {nodes} nodes are described; write longer dimensions"
    elif nodes > row and nodes % row:
        yield ("fabric", "torus", "dimensions"), _uneven(nodes, row, "rows")


def _uneven(nodes: int, each: int, what: str) -> str:
    return f"{nodes} nodes do not fill {what} of {each}; write {nodes // each * each} or {(nodes // each + 1) * each} nodes"
