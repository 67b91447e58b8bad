"""The trace in examples/chakra: one data-parallel step of two layers on four ranks, written by ``python -m tests.parallel.example``."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from sim.spec.foreign.chakra_wire import NODE_TYPES, TraceNode
from tests.parallel.traces import as_file

FOLDER: Final = Path(__file__).resolve().parents[2] / "examples" / "chakra"
MB: Final = 1 << 20


def kernel(number: int, name: str, micros: int, *after: int) -> TraceNode:
    return TraceNode(number, name, NODE_TYPES.index("COMP_NODE"), (), after, 0, micros, "", {"is_cpu_op": False})


def all_reduce(number: int, name: str, nbytes: int, *after: int) -> TraceNode:
    said = {"is_cpu_op": False, "comm_type": 0, "comm_size": nbytes}
    return TraceNode(number, name, NODE_TYPES.index("COMM_COLL_NODE"), (), after, 0, 0, "", said)


def ranks() -> list[list[TraceNode]]:
    """Rank 3 is slower than the others."""
    return [
        [
            kernel(0, "forward 0", slow * 2000),
            kernel(1, "forward 1", slow * 2000, 0),
            kernel(2, "backward 1", slow * 4000, 1),
            all_reduce(3, "gradients 1", 256 * MB, 2),
            kernel(4, "backward 0", slow * 4000, 2),
            all_reduce(5, "gradients 0", 64 * MB, 4),
            kernel(6, "optimizer", 1000, 3, 5),
        ]
        for slow in (1, 1, 1, 2)
    ]


def files() -> dict[str, bytes]:
    return {f"two-layers.{rank}.et": as_file(nodes) for rank, nodes in enumerate(ranks())}


if __name__ == "__main__":
    for name, data in files().items():
        (FOLDER / name).write_bytes(data)
