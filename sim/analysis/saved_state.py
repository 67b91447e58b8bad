"""What does a checkpoint hold, and who writes it? Bytes by data types and sharding, from the description of a job.

Weights and optimizer states are written once, in the types they are kept in: fp32 under autocast (12 bytes a parameter with Adam), a
16-bit working copy beside fp32 masters in mixed-precision frameworks (14 bytes). Gradients and activations are not saved.

Sharded states (ZeRO, FSDP) are written by every rank of one replica, tensor and pipeline parts by their ranks, a replicated model by
one rank.
"""

from __future__ import annotations

from typing import NamedTuple

from sim.spec.workload import Workload

_WIDTH = {"fp32": 4.0, "tf32": 4.0, "bf16": 2.0, "fp16": 2.0, "fp8": 1.0, "int8": 1.0}


class Saved(NamedTuple):
    """The *nbytes* of one checkpoint of all *writers* together."""

    nbytes: float
    writers: int
    parts: dict[str, float]
    """Bytes by kind: weights, master_weights, optimizer_state."""


def saved_state(workload: Workload, gpus: int) -> Saved:
    """Return what one checkpoint of *workload* on *gpus* GPUs holds."""
    training = workload.training
    states = training.optimizer.states
    options, parameters = training.stack.mesh, workload.model.parameters
    sharded = not training.parallel.trivial
    if sharded and options is not None:
        weights, of_state = _WIDTH[options.weights], _WIDTH[options.states]
        master = 4.0 if options.master and weights < 4 else 0.0
    else:
        weights, of_state, master = (2.0 if training.precision in ("fp16", "bf16") else 4.0), 4.0, 0.0
    parts = {"weights": weights * parameters, "master_weights": master * parameters, "optimizer_state": states * of_state * parameters}
    return Saved(sum(parts.values()), _writers(workload, gpus), parts)


def _writers(workload: Workload, gpus: int) -> int:
    """Return how many ranks write a part of their own."""
    parallel = workload.training.parallel
    if parallel.shard != "none":
        return max(1, gpus // parallel.replicate)
    return min(gpus, parallel.tensor * parallel.pipeline * parallel.expert)
