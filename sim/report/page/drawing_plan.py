"""Where is each device of a node in its drawing? Columns of GPUs and NICs below the devices they are attached to; sockets on top.

Pure geometry: a tree of sockets, switches and devices, laid out bottom up; a switch is centered above the devices attached to it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from sim.cluster.topology import NodeGraph

COLUMN, NARROW, GAP = 76.0, 58.0, 26.0
"""Width of a device's column, the width if there are many, and the space between sockets (drawing units)."""
MANY = 12
"""Maximum number of devices with columns of full width; if there are more, columns are narrow."""
LEVEL = 84.0
"""Height of a level of the tree."""
MARGIN = 30.0


@dataclass(frozen=True)
class Box:
    """A device: the middle of its box, and its size."""

    x: float
    y: float
    width: float
    height: float


@dataclass(frozen=True)
class DrawingPlan:
    """Boxes by device, and the size of the whole drawing."""

    boxes: Mapping[str, Box]
    width: float
    bottom: float
    """Lower end of the row of devices."""


def drawing_plan(graph: NodeGraph) -> DrawingPlan:
    """Return the position of each device of *graph*."""
    below: dict[str, list[str]] = {}
    for device, holder in graph.parents.items():
        below.setdefault(holder, []).append(device)
    sockets = [f"socket{index}" for index in range(len(graph.node.topology.sockets))]
    deepest = max((len(graph.ancestors(device)) for device in graph.parents), default=1)
    columns = _Columns(below, NARROW if graph.node.gpu_count + graph.node.nic.count > MANY else COLUMN)
    edge = MARGIN
    for socket in sockets:
        edge = columns.settle(socket, edge) + GAP
    row = {device: deepest if device.startswith(("gpu", "nic")) else len(graph.ancestors(device)) for device in columns.spans}
    top = 96.0  # the disk is above the first socket
    boxes = {}
    for device, (left, right) in columns.spans.items():
        wide = right - left - (10 if device.startswith(("gpu", "nic")) else 12)
        boxes[device] = Box((left + right) / 2, top + row[device] * LEVEL, wide, 40.0 if device.startswith("socket") else 34.0)
    return DrawingPlan(boxes, edge - GAP + MARGIN, top + deepest * LEVEL + 17.0)


@dataclass
class _Columns:
    """The columns of devices; *below* has the devices attached to each, *width* is that of one column."""

    below: Mapping[str, Sequence[str]]
    width: float
    spans: dict[str, tuple[float, float]] = field(default_factory=dict)
    """Left and right end of the columns of each device and of all below it."""

    def settle(self, device: str, start: float) -> float:
        """Assign columns from *start* on to *device* and all below it; return where the next device may begin."""
        edge = start
        for child in sorted(self.below.get(device, ()), key=_order):
            edge = self.settle(child, edge)
        least = 2 * self.width if device.startswith("socket") else self.width
        self.spans[device] = (start, max(edge, start + least))
        return self.spans[device][1]


def _order(device: str) -> tuple[int, str, int]:
    """Return a sort key: switches first, then GPUs, then NICs, each by number."""
    kind = device.rstrip("0123456789")
    number = device[len(kind) :]
    return ({"gpu": 1, "nic": 2}.get(kind, 0), kind, int(number or 0))
