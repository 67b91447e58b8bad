"""In which parts is the checkpoint of a job written and read, beside which traffic? From its description and the time of its steps."""

from __future__ import annotations

import math

from sim.analysis.saved_state import Saved, saved_state
from sim.cluster.checkpoint import NodeReads, Parts
from sim.parallel.lower.exchange_plan import gradient_volume
from sim.spec.workload import Workload


def saved_parts(workload: Workload, gpus: int, nodes: int, step_time: float) -> Parts:
    """Return the parts of a checkpoint of *workload* on *gpus* GPUs of *nodes* nodes, whose steps take *step_time* (s)."""
    saved = saved_state(workload, gpus, nodes)
    held = saved.holders
    return Parts(
        saved.nbytes / saved.writers, saved.writers, nodes, math.ceil(gpus / nodes), _traffic(workload, saved, nodes) / step_time,
        held.writers_on_node, NodeReads(saved.of_node, held.shards_on_node, saved.of_gpu),
    )  # fmt: skip


def _traffic(workload: Workload, saved: Saved, nodes: int) -> float:
    """Return the bytes of gradients that leave each node in a step.

    A ring all-reduce among the nodes that have a part of the model alike moves each byte of it twice.
    """
    part = saved.holders.weights_on_node / saved.holders.weights
    return 2 * gradient_volume(workload) * part * max(0.0, 1 - 1 / (nodes * part))
