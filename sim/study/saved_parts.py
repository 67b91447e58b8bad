"""In which parts is the checkpoint of a job written and read, along with which traffic? From its description and its step time."""

from __future__ import annotations

import math

from sim.analysis.saved_state import SavedState, saved_state
from sim.cluster.checkpoint import CheckpointParts, NodeReads
from sim.parallel.lower.exchange_plan import gradient_volume
from sim.spec.hardware import Node
from sim.spec.stores import Store
from sim.spec.workload import Workload
from sim.spec.yaml import SpecError
from sim.units import show

KEPT_CHECKPOINTS = 2
"""Checkpoints that a store holds at once: the last complete one and the one being written."""


def saved_parts(workload: Workload, gpus: int, nodes: int, step_time: float) -> CheckpointParts:
    """Return the parts of a checkpoint of *workload* on *gpus* GPUs of *nodes* nodes with steps of *step_time* (s)."""
    saved = saved_state(workload, gpus, nodes)
    held, together = saved.holders, saved.nbytes + saved.base
    once = together if workload.training.stack.kernels.loads_once else None
    return CheckpointParts(
        saved.nbytes / saved.writers, saved.writers, nodes, math.ceil(gpus / nodes), _traffic(workload, saved, nodes) / step_time,
        held.writers_on_node, NodeReads(saved.bytes_per_node, held.shards_on_node, saved.bytes_per_gpu, once),
    )  # fmt: skip


def _traffic(workload: Workload, saved: SavedState, nodes: int) -> float:
    """Return the bytes of gradients that leave each node in a step.

    A ring all-reduce among the nodes that hold the same part of the model moves each of its bytes twice.
    """
    part = saved.holders.weights_on_node / saved.holders.weights
    return 2 * gradient_volume(workload) * part * max(0.0, 1 - 1 / (nodes * part))


def require_room(parts: CheckpointParts, node: Node, store: Store | None, name: str) -> None:
    """Raise SpecError if checkpoints in *parts* do not fit into the *store* called *name*, or on the disks of the nodes that write."""
    room = store.size if store else node.storage.volume.size * node.storage.volume.count * parts.writing_nodes if node.storage else 0.0
    if room and KEPT_CHECKPOINTS * parts.total > room:
        raise SpecError(
            f"--store {name}: {KEPT_CHECKPOINTS} checkpoints of {show(parts.total, 'size')} do not fit into {show(room, 'size')}; "
            "name a larger store"
        )
