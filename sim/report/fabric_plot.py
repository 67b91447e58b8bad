"""How are the nodes of a cluster connected? A picture of the fabric: leaves and spines, groups of a dragonfly, a sheet of a torus.

Large fabrics are drawn only in part; the text next to the picture tells which part, and gives the full sizes and capacities.
"""

from __future__ import annotations

import math
from itertools import combinations
from typing import Any

from sim.cluster.bisection import bisection_bandwidth
from sim.cluster.fabric import uplinks
from sim.report.picture import Picture, figure, picture
from sim.spec.fabric import Dragonfly, LeafSpine, Torus
from sim.spec.hardware import Hardware, Nic
from sim.units import show

_NODE, _SWITCH, _LINK = "#4477aa", "#228833", "#bbbbbb"
_MOST = 4
"""Maximum number of leaves, and of nodes per leaf, that are drawn."""


def fabric_plot(hardware: Hardware) -> Picture | None:
    """Return a picture of the fabric of *hardware*; None if it has no structure to show."""
    fabric = hardware.fabric
    workers = hardware.worker_groups
    nodes, nic = sum(group.count for group in workers), workers[0].node.nic
    if not (fabric.leaf_spine or fabric.dragonfly or fabric.torus):
        return None
    drawn, (axes,) = figure(1, (9, 4.5))
    if fabric.leaf_spine:
        words = _leaf_spine(axes, fabric.leaf_spine, nic, nodes)
    elif fabric.dragonfly:
        words = _dragonfly(axes, fabric.dragonfly)
    else:
        words = _torus(axes, fabric.torus) if fabric.torus else []
    words.append(f"between halves: {show(bisection_bandwidth(hardware), 'bandwidth')} each way")
    axes.text(1.02, 0.95, "\n".join([f"{nodes} nodes", *words]), transform=axes.transAxes, va="top", fontsize=9)
    axes.set_title(hardware.name, fontsize=11, loc="left")
    axes.set_axis_off()
    return picture(drawn)


def _leaf_spine(axes: Any, spec: LeafSpine, nic: Nic, nodes: int) -> list[str]:
    leaves = -(-nodes // spec.nodes_per_leaf)
    shown, below = min(leaves, _MOST), min(spec.nodes_per_leaf, _MOST)
    middle = (shown * (below + 1) - 2) / 2
    top = 3.0 if spec.pods else 2.0
    pods = [middle] if spec.pods and leaves <= spec.pods.leaves else [middle / 2, middle * 1.5] if spec.pods else []
    for leaf in range(shown):
        at = leaf * (below + 1) + (below - 1) / 2
        for place in range(below):
            _wire(axes, (leaf * (below + 1) + place, 0.0), (at, 1.0))
            _box(axes, leaf * (below + 1) + place, 0.0, "node", _NODE, 0.8)
        _wire(axes, (at, 1.0), (pods[len(pods) * leaf // shown], 2.0) if pods else (middle, top))
        _box(axes, at, 1.0, "leaf" + (" per rail" if spec.rails else ""), _SWITCH, below * 0.9)
    for at in pods:
        _wire(axes, (at, 2.0), (middle, top))
        _box(axes, at, 2.0, "spines of a pod", _SWITCH, max(1.6, middle * 0.8))
    _box(axes, middle, top, "core" if spec.pods else "spines", _SWITCH, max(2.0, middle * 1.4))
    axes.set_xlim(-1, 2 * middle + 1)
    axes.set_ylim(-0.4, top + 0.4)
    ratio = f", {spec.oversubscription:g} to 1" if spec.oversubscription else ""
    words = [f"{leaves} leaves{f' for each of {nic.count} rails' if spec.rails else ''}, {spec.nodes_per_leaf} nodes each"]
    words.append(f"uplinks of a leaf: {show(uplinks(spec, nic), 'bandwidth')}{ratio}")
    if spec.pods:
        rails = nic.count if spec.rails else 1
        capacity = spec.pods.leaves * rails * uplinks(spec, nic) / spec.pods.oversubscription
        words.append(f"{-(-leaves // spec.pods.leaves)} pods of {spec.pods.leaves} leaves")
        words.append(f"uplinks of a pod: {show(capacity, 'bandwidth')}, {spec.pods.oversubscription:g} to 1")
    return [*words, *([f"drawn: {shown} leaves, {below} nodes"] if (shown, below) != (leaves, spec.nodes_per_leaf) else [])]


def _dragonfly(axes: Any, spec: Dragonfly) -> list[str]:
    shown = min(spec.groups, 16)
    places = [(math.cos(2 * math.pi * group / shown), math.sin(2 * math.pi * group / shown)) for group in range(shown)]
    for one, other in combinations(places, 2):
        _wire(axes, one, other)
    for group, (across, up) in enumerate(places):
        _box(axes, across, up, f"group {group}", _SWITCH, 0.34, 0.14)
    axes.set_xlim(-1.3, 1.3)
    axes.set_ylim(-1.2, 1.2)
    axes.set_aspect("equal")
    of_pair = spec.routers_per_group * spec.global_links / (spec.groups - 1) if spec.groups > 1 else 0.0
    return [
        f"{spec.groups} groups of {spec.routers_per_group} routers",
        f"{spec.nodes_per_router} nodes at each router",
        f"local links: {show(spec.local_bandwidth, 'bandwidth')}, {spec.routing} routing",
        f"{of_pair:.3g} global links per pair, {show(spec.global_bandwidth, 'bandwidth')} each",
        *([f"drawn: {shown} groups"] if shown < spec.groups else []),
    ]


def _torus(axes: Any, spec: Torus) -> list[str]:
    across, up = (min(length, 6) for length in (*spec.dimensions, 1)[:2])
    for row in range(up):
        _wire(axes, (-0.7, row), (across - 0.3, row))
    for column in range(across) if up > 1 else ():
        _wire(axes, (column, -0.7), (column, up - 0.3))
    for column in range(across):
        for row in range(up):
            _box(axes, column, row, "node", _NODE, 0.5, 0.3)
    axes.set_xlim(-1, across)
    axes.set_ylim(-1, up)
    written = " x ".join(str(length) for length in spec.dimensions)
    cut = (across, up) != (*spec.dimensions, 1)[:2] or len(spec.dimensions) > 2
    words = [f"torus of {written}", f"links: {show(spec.link_bandwidth, 'bandwidth')} each way", "open ends meet on the other side"]
    return [*words, *([f"drawn: a sheet of {across} x {up}"] if cut else [])]


def _wire(axes: Any, one: tuple[float, float], other: tuple[float, float]) -> None:
    axes.plot(*zip(one, other, strict=True), color=_LINK, linewidth=1.2, zorder=1)


def _box(axes: Any, across: float, up: float, words: str, color: str, width: float, height: float = 0.36) -> None:
    from matplotlib.patches import Rectangle

    axes.add_patch(Rectangle((across - width / 2, up - height / 2), width, height, color=color, zorder=2))
    axes.text(across, up, words, color="white", ha="center", va="center", fontsize=7, zorder=3)
