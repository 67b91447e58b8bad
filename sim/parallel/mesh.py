"""Which ranks form a group, and on which GPUs are they? A mesh of tensor, context, data and pipeline ranks on equal nodes.

Ranks are numbered by axis order (by default Megatron-LM's ``tp-cp-dp-pp``) and fill nodes in order. Gradients are reduced over data and
context ranks together because both hold the same weights. Experts are not split by tensor ranks: an expert group takes its ranks
from tensor, context and data ranks, the nearest first (expert tensor parallelism 1 in the terms of Megatron-LM and torchtitan).
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from math import gcd
from typing import Final, Literal

from sim.spec.parallel import MEGATRON_ORDER, Axis, Parallel
from sim.spec.yaml import SpecError
from sim.units import pluralized

GroupAxis = Literal["tensor", "context", "shard", "reshard", "replicate", "expert", "expert_data", "pool", "pipeline", "ends", "everyone"]
"""shard: ranks that hold the shards of one model copy; reshard: smaller groups of them over which weights stay sharded after forward;
replicate: ranks with equal shards; expert: ranks that hold the experts of a layer together; expert_data: ranks that hold the same experts;
pool: shards and replicas together; ends: the first and the last stage."""

_POOLED: Final[tuple[GroupAxis, ...]] = ("shard", "reshard", "replicate", "expert_data", "pipeline")
"""Axes whose operations and messages share links with other groups during a step."""
Place = tuple[int, int]
"""Node number and GPU number on it."""


@dataclass(frozen=True)
class Mesh:
    """The mesh of one job: *gpus* ranks, *gpus_per_node* on each node."""

    parallel: Parallel
    gpus: int
    gpus_per_node: int
    order: tuple[Axis, ...] = MEGATRON_ORDER

    @cached_property
    def sizes(self) -> dict[Axis, int]:
        """Return the number of ranks along each axis."""
        own = self.parallel
        data = self.gpus // own.model_ranks
        return {"tensor": own.tensor, "context": own.context, "data": data, "pipeline": own.pipeline, "expert": own.expert}

    @property
    def data(self) -> int:
        """Return the number of data-parallel ranks: groups of GPUs that see different samples."""
        return self.sizes["data"]

    @property
    def stages(self) -> int:
        """Return the number of pipeline stages."""
        return self.parallel.pipeline

    @property
    def pool(self) -> int:
        """Return the number of ranks that hold the same weights, apart from sharding: data times context."""
        return self.data * self.parallel.context

    @property
    def divides(self) -> bool:
        """Whether ranks hold different parts of the reduced gradients, so that the gradient norm needs an all-reduce."""
        own = self.parallel
        return self.gpus > 1 and (own.shard != "none" or max(own.tensor, own.pipeline, own.expert) > 1)

    def group_size(self, axis: GroupAxis) -> int:
        """Return how many ranks a group of *axis* has."""
        return self._group_sizes[axis]

    @cached_property
    def _group_sizes(self) -> dict[GroupAxis, int]:
        own = self.parallel
        return {
            "tensor": own.tensor,
            "context": own.context,
            "shard": self.pool // own.replicate,
            "reshard": own.reshard_after_forward if type(own.reshard_after_forward) is int else 1,
            "replicate": own.replicate,
            "expert": own.expert,
            "expert_data": (self.pool * own.tensor if own.expert > 1 else self.pool) // own.expert,
            "pool": self.pool,
            "pipeline": own.pipeline,
            "ends": min(2, own.pipeline),
            "everyone": self.gpus,
        }

    @property
    def grouping(self) -> Hashable:
        """Return a key that is equal for meshes with equal groups on equal nodes."""
        own = self.parallel
        return self.gpus, self.gpus_per_node, self.order, own.pipeline, *self._group_sizes.items()

    @cached_property
    def _strides(self) -> dict[Axis, int]:
        strides: dict[Axis, int] = {}
        stride = 1
        for axis in self.order:
            strides[axis] = stride
            stride *= self.sizes[axis]
        return strides

    def rank(self, tensor: int = 0, context: int = 0, data: int = 0, pipeline: int = 0) -> int:
        """Return the number of the rank at these coordinates."""
        strides = self._strides
        return tensor * strides["tensor"] + context * strides["context"] + data * strides["data"] + pipeline * strides["pipeline"]

    def coordinate(self, rank: int, axis: Axis) -> int:
        """Return the coordinate of *rank* along *axis*."""
        return rank // self._strides[axis] % self.sizes[axis]

    def place(self, rank: int) -> Place:
        """Return the node and the GPU of *rank*."""
        return divmod(rank, self.gpus_per_node)

    def group(self, rank: int, axis: GroupAxis) -> tuple[int, ...]:
        """Return the ranks of the group along *axis* that contains *rank*, in order."""
        if axis == "everyone":
            return tuple(range(self.gpus))
        if axis in ("tensor", "context", "pipeline"):
            return self._along(rank, axis)
        if axis == "ends":
            along = self._along(rank, "pipeline")
            return tuple(dict.fromkeys((along[0], along[-1]))) if rank in (along[0], along[-1]) else (rank,)
        members = self._expert_pool(rank) if axis in ("expert", "expert_data") else self._pool(rank)
        if axis == "pool":
            return members
        place = members.index(rank)
        size = self.group_size(axis)
        if axis in ("shard", "reshard", "expert"):  # neighboring members
            first = place - place % size
            return members[first : first + size]
        return members[place % (len(members) // size) :: len(members) // size]

    def _along(self, rank: int, axis: Axis) -> tuple[int, ...]:
        stride, size = self._strides[axis], self.sizes[axis]
        first = rank - self.coordinate(rank, axis) * stride
        return tuple(range(first, first + size * stride, stride))

    def _pool(self, rank: int) -> tuple[int, ...]:
        """Return the ranks that differ from *rank* only along data and context."""
        return self._across(rank, ("context", "data"))

    def _expert_pool(self, rank: int) -> tuple[int, ...]:
        """Return the ranks that together hold the experts of a layer, each expert equally often."""
        return self._pool(rank) if self.parallel.expert == 1 else self._across(rank, ("tensor", "context", "data"))

    def _across(self, rank: int, axes: tuple[Axis, ...]) -> tuple[int, ...]:
        """Return the ranks that differ from *rank* only along *axes*, in order."""
        first = rank - sum(self.coordinate(rank, axis) * self._strides[axis] for axis in axes)
        if axes not in self._offsets:
            offsets = [0]
            for axis in axes:
                stride = self._strides[axis]
                offsets = [offset + number * stride for offset in offsets for number in range(self.sizes[axis])]
            self._offsets[axes] = sorted(offsets)
        return tuple([first + offset for offset in self._offsets[axes]])

    @cached_property
    def _offsets(self) -> dict[tuple[Axis, ...], list[int]]:
        """Return the numbers of the ranks that differ from the first one only along some axes, for those axes so far."""
        return {}

    def stage_of(self, rank: int) -> int:
        """Return the pipeline stage of *rank*."""
        return self.coordinate(rank, "pipeline")

    def first_like(self, stage: int, period: int) -> tuple[int, int]:
        """Return the first stage that is placed as *stage* is, but some times *period* nodes before, and that number of nodes.

        With *period* 0, it is the stage itself.
        """
        stride, unit = self._strides["pipeline"], period * self.gpus_per_node
        like = stage % (unit // gcd(unit, stride)) if unit else stage
        return like, (stage - like) * stride // self.gpus_per_node

    def on_node(self, node: int) -> range:
        """Return the ranks of *node*."""
        return range(node * self.gpus_per_node, min((node + 1) * self.gpus_per_node, self.gpus))

    @cached_property
    def is_even(self) -> bool:
        """Return whether one node can represent all nodes with the same stage: ranks, groups and messages are placed identically."""
        return self._boxes or _is_even(_Grouping(self))

    @property
    def _boxes(self) -> bool:
        """Return whether every node is a box of the mesh, and the groups within an axis divide the boxes evenly."""
        own, inside = self.parallel, self.gpus_per_node
        parts = {"shard": self.group_size("shard"), "reshard": self.group_size("reshard"), "expert": own.expert}
        if own.replicate > 1 or own.expert > 1 or parts["reshard"] > 1:
            return inside & (inside - 1) == 0 and all(
                size & (size - 1) == 0 for size in (*self.sizes.values(), own.replicate, *parts.values())
            )
        ends = [stride * self.sizes[axis] for axis, stride in self._strides.items()]
        return all(end % inside == 0 or inside % end == 0 for end in ends)


class _Grouping:
    """A mesh as part of a cache key, compared by its groups."""

    def __init__(self, mesh: Mesh) -> None:
        self.mesh, self._grouping = mesh, mesh.grouping

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Grouping) and self._grouping == other._grouping

    def __hash__(self) -> int:
        return hash(self._grouping)


@lru_cache(maxsize=4096)
def _is_even(held: _Grouping) -> bool:
    """Return whether all nodes of a mesh with the same stage place their ranks, groups and messages identically."""
    mesh = held.mesh
    by_stage: dict[int, object] = {}
    placed: dict[GroupAxis, dict[int, tuple[object, object]]] = {axis: {} for axis in _POOLED}
    for node in range(-(-mesh.gpus // mesh.gpus_per_node)):
        ranks = mesh.on_node(node)
        stages = tuple([mesh.stage_of(rank) for rank in ranks])
        for axis, by_rank in placed.items():
            for rank in ranks:
                if rank not in by_rank:
                    by_rank |= _placements(mesh, mesh.group(rank, axis), axis)
        for stage in set(stages):
            placements = [[by_rank[rank] for by_rank in placed.values()] for rank, own in zip(ranks, stages, strict=True) if own == stage]
            if any(counts != placements[0][axis][1] for each in placements for axis, (_, counts) in enumerate(each)):
                return False
            key = (stages, [[where for where, _ in each] for each in placements])
            if by_stage.setdefault(stage, key) != key:
                return False
    return True


def _placements(mesh: Mesh, members: Sequence[int], axis: GroupAxis) -> dict[int, tuple[object, object]]:
    """Return for each of *members*, a group along *axis*, the GPUs of all on its own node and on all nodes, and their numbers per node."""
    places = [divmod(member, mesh.gpus_per_node) for member in members]
    if axis == "pipeline":  # here the order of the members matters
        from_node = {home: (tuple([(gpu, node == home) for node, gpu in places]), ()) for home, _ in places}
        return {member: from_node[home] for member, (home, _) in zip(members, places, strict=True)}
    on_node: dict[int, list[int]] = {}
    for node, gpu in places:
        on_node.setdefault(node, []).append(gpu)
    gpus = {node: tuple(own) for node, own in on_node.items()}
    every = tuple(sorted(gpus.values()))
    sizes = tuple(sorted(map(len, every)))
    by_node = {node: ((own, every), (len(own), sizes)) for node, own in gpus.items()}
    return {member: by_node[node] for member, (node, _) in zip(members, places, strict=True)}


def nearest_divisors(number: int, near: int, of: int = 0) -> str:
    """Return the divisors of *number*, and also *of* another, just below and above *near* as text, such as ``4 or 8``."""
    every = [size for size in range(1, number + 1) if number % size == of % size == 0]
    below, above = [size for size in every if size <= near], [size for size in every if size > near]
    return " or ".join(str(size) for size in (*below[-1:], *above[:1]))


def mesh_of(parallel: Parallel, placement: Sequence[int], order: tuple[Axis, ...], experts: int = 0) -> Mesh:
    """Return the mesh of *parallel* over nodes; *placement* is the number of GPUs that each node provides.

    Raise SpecError if the axes do not divide the GPUs, or if nodes provide different numbers of GPUs; the message then suggests expert
    ranks that divide the model's *experts*, too.
    """
    gpus = sum(placement)
    if len(set(placement)) > 1:
        raise SpecError(f"training.parallel: a layout needs the same number of GPUs on each node, not {'+'.join(map(str, placement))}")
    if gpus % parallel.model_ranks:
        axes = f"tensor {parallel.tensor} x context {parallel.context} x pipeline {parallel.pipeline}"
        below = gpus // parallel.model_ranks * parallel.model_ranks
        near = f"{below} or {below + parallel.model_ranks}" if below else f"{parallel.model_ranks}"
        able = ", ".join(str(ranks) for ranks in range(1, gpus + 1) if gpus % ranks == 0)
        raise SpecError(
            f"training.parallel: {axes} = {parallel.model_ranks} ranks do not divide {pluralized(gpus, 'GPU')}; use {near} GPUs, "
            f"or axes with a product among {able}"
        )
    pool = gpus // (parallel.tensor * parallel.pipeline)
    kept = parallel.reshard_after_forward if type(parallel.reshard_after_forward) is int else 1
    for name, size, of, ranks, too in (
        ("expert", parallel.expert, pool * parallel.tensor, "tensor, context and data ranks", experts),
        ("replicate", parallel.replicate, pool, "data and context ranks", 0),
        ("reshard_after_forward", kept, pool // parallel.replicate, "ranks of a shard group", 0),
    ):
        if of % size:
            raise SpecError(f"training.parallel.{name}: {size} does not divide the {of} {ranks}; use {nearest_divisors(of, size, too)}")
    return Mesh(parallel, gpus, placement[0], parallel.order or order)
