"""Does a drawing keep devices apart and below those that they are attached to? Oracle: geometry, over the whole catalog."""

from __future__ import annotations

from itertools import combinations

from sim.cluster.topology import node_graph
from sim.report.page.drawing_plan import drawing_plan
from sim.spec.library import catalog, load_hardware
from tests.for_each import for_each

MACHINES = sorted(catalog("hardware"))


@for_each(MACHINES)
def test_devices_stand_apart_below_their_holders(name: str) -> None:
    for group in load_hardware(name).spec.groups:
        graph = node_graph(group.node)
        laid = drawing_plan(graph)
        assert set(laid.boxes) == set(graph.parents) | {f"socket{index}" for index in range(len(group.node.topology.sockets))}
        for device, holder in graph.parents.items():
            mine, above = laid.boxes[device], laid.boxes[holder]
            assert above.y < mine.y and above.x - above.width / 2 - 8 <= mine.x <= above.x + above.width / 2 + 8
        for one, other in combinations(laid.boxes.values(), 2):
            assert abs(one.x - other.x) >= (one.width + other.width) / 2 or abs(one.y - other.y) >= (one.height + other.height) / 2
        for box in laid.boxes.values():
            assert box.x - box.width / 2 > 0 and box.x + box.width / 2 < laid.width and box.y + box.height / 2 <= laid.bottom + 1e-9
