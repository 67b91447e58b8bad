"""What does a checkpoint contain, and which ranks write it? Bytes from the data types and the sharding in the description of a job.

Weights and optimizer states are written once, in the types in which they are kept: fp32 under autocast (12 bytes per parameter with Adam),
16 bits in a model of 16 bits (6 bytes), or a 16-bit working copy plus fp32 master weights in mixed-precision frameworks (14 bytes).
Frozen weights have neither master weights nor optimizer states. Low-rank adapters are saved without the frozen weights next to them, as
by PEFT (docs/source/developer_guides/checkpoint.md); a restart reads both. Gradients and activations are not saved.

Sharded states (ZeRO, FSDP) are written by every rank of one replica, tensor and pipeline parts by their ranks, a replicated model by
one rank (`sim.parallel.holders`). Each node reads everything that its GPUs need, each part once.

Limits: all parts have equal size; parameters replicated over expert ranks count for only one of them.
"""

from __future__ import annotations

from typing import NamedTuple

from sim.parallel.holders import UNSHARDED, Holders, holders
from sim.parallel.mesh import mesh_of
from sim.spec.parallel import MEGATRON_ORDER
from sim.spec.precision import PRECISION_TRAITS
from sim.spec.workload import Workload

_WIDTH = {"fp32": 4.0, "tf32": 4.0, "bf16": 2.0, "fp16": 2.0, "fp8": 1.0, "int8": 1.0}


class SavedState(NamedTuple):
    """The contents of one checkpoint: *nbytes* of all writers together."""

    nbytes: float
    parts: dict[str, float]
    """Bytes by kind: weights, master_weights, optimizer_state."""
    replicated: float
    """Bytes that are not sharded, so every replica has them."""
    holders: Holders
    base: float = 0.0
    """Bytes of the frozen weights next to adapters, which are read but not written."""
    replicated_base: float = 0.0
    """Of these, bytes that every replica has."""

    @property
    def writers(self) -> int:
        """Return how many ranks write a part."""
        return self.holders.writers

    @property
    def bytes_per_gpu(self) -> float:
        """Return the bytes that one GPU holds."""
        replicated, sharded = self._read
        return replicated / self.holders.weights + sharded / self.writers

    @property
    def bytes_per_node(self) -> float:
        """Return the bytes that the GPUs of one node hold; parts that several of them share count once."""
        held, (replicated, sharded) = self.holders, self._read
        return held.weights_on_node * replicated / held.weights + held.shards_on_node * sharded / held.writers

    @property
    def _read(self) -> tuple[float, float]:
        """Return the replicated and the sharded bytes that a restart reads."""
        replicated = self.replicated + self.replicated_base
        return replicated, self.nbytes + self.base - replicated


def saved_parts_of(workload: Workload) -> dict[str, float]:
    """Return the bytes of one checkpoint of *workload* by kind: weights, master weights, optimizer state."""
    training = workload.training
    options, trained = training.mesh, workload.model.trained_parameters
    if training.has_layout and options is not None:
        weights, of_state = _WIDTH[options.weights], _WIDTH[options.states]
        master = 4.0 if options.master and weights < 4 else 0.0
    else:
        traits = PRECISION_TRAITS[training.precision]
        weights, of_state, master = traits.weight, traits.state, 0.0
    saved = trained if workload.model.lora else workload.model.parameters
    return {
        "weights": weights * saved,
        "master_weights": master * trained,
        "optimizer_state": training.optimizer.state_width(of_state) * trained,
    }


def saved_state(workload: Workload, gpus: int, nodes: int) -> SavedState:
    """Return the contents of one checkpoint of *workload* on *gpus* GPUs in *nodes* nodes."""
    parallel, parts = workload.training.parallel, saved_parts_of(workload)
    shard, nbytes = parallel.shard, sum(parts.values())
    replicated = nbytes if shard == "none" else 0.0 if shard == "parameters" else parts["weights"]
    model = workload.model
    base = parts["weights"] * (model.parameters / model.trained_parameters - 1) if model.lora else 0.0
    held = UNSHARDED if parallel.is_trivial else _holders(workload, gpus, nodes)
    return SavedState(nbytes, parts, replicated, held, base, 0.0 if shard == "parameters" else base)


def _holders(workload: Workload, gpus: int, nodes: int) -> Holders:
    options = workload.training.stack.mesh
    return holders(mesh_of(workload.training.parallel, [gpus // nodes] * nodes, options.order if options else MEGATRON_ORDER))
