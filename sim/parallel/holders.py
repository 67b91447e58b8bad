"""Which ranks write a checkpoint, and which parts of it does each node need? Parts of the state for each rank of a mesh.

A part is a piece of state that is identical on all ranks that hold it: the weights of a tensor rank, stage and expert rank, or one shard of
sharded states. The first rank that holds a part writes it. Ranks fill nodes in order, so the writers are on the few nodes of one replica.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from sim.parallel.mesh import Mesh
from sim.spec.parallel import Axis

if TYPE_CHECKING:  # plain data parallelism has one holder and does not wait for numpy
    import numpy as np
    from numpy.typing import NDArray

    Ranks = NDArray[np.intp]


class Holders(NamedTuple):
    """Numbers of parts of a job's state: of the unsharded weights, and of shards; without sharding, both are the same."""

    weights: int
    """Number of distinct parts of the weights, before sharding."""
    weights_on_node: int
    """Maximum number of these parts that the ranks of one node need."""
    writers: int
    """Number of ranks that write: one for each shard of each part."""
    writers_on_node: int
    """Number of writers on the node with the most."""
    shards_on_node: int
    """Maximum number of shards that the ranks of one node need."""


UNSHARDED = Holders(1, 1, 1, 1, 1)
"""Holders in plain data parallelism: all ranks have the same state, and the first rank writes it."""


def holders(mesh: Mesh) -> Holders:
    """Return the numbers of parts, shards and writers of the state of a job on *mesh*."""
    import numpy as np

    ranks = np.arange(mesh.gpus)
    weights = _combined(mesh, ranks, _weights_of(mesh, ranks))
    shards = _combined(mesh, ranks, _shards_of(mesh, ranks)) if mesh.parallel.shard != "none" else weights
    first = np.unique(shards, return_index=True)[1]
    nodes = ranks // mesh.gpus_per_node
    on_fullest = int(np.bincount(nodes[first]).max())
    return Holders(np.unique(weights).size, _most_on_node(nodes, weights), first.size, on_fullest, _most_on_node(nodes, shards))


def _weights_of(mesh: Mesh, ranks: Ranks) -> Ranks:
    """Return which part of the weights of its tensor rank and stage each of *ranks* has: its expert rank."""
    return _position(mesh, ranks, ("tensor", "context", "data")) % mesh.parallel.expert


def _shards_of(mesh: Mesh, ranks: Ranks) -> Ranks:
    return _position(mesh, ranks, ("context", "data")) % mesh.group_size("shard")


def _combined(mesh: Mesh, ranks: Ranks, inside: Ranks) -> Ranks:
    """Return one number for each of *ranks*; numbers are equal if tensor rank, stage and the number *inside* of them are equal."""
    coordinate = _coordinate(mesh, ranks, "pipeline") * mesh.parallel.tensor + _coordinate(mesh, ranks, "tensor")
    return coordinate * mesh.gpus + inside


def _position(mesh: Mesh, ranks: Ranks, axes: tuple[Axis, ...]) -> Ranks:
    """Return the position of each of *ranks* among the ranks that differ from it only along *axes*."""
    place, size = 0 * ranks, 1
    for axis in (axis for axis in mesh.order if axis in axes):
        place += _coordinate(mesh, ranks, axis) * size
        size *= mesh.sizes[axis]
    return place


def _coordinate(mesh: Mesh, ranks: Ranks, axis: Axis) -> Ranks:
    """Return the coordinate of each of *ranks* along *axis*: the arithmetic of `Mesh.coordinate` holds for arrays, too."""
    return mesh.coordinate(ranks, axis)  # type: ignore[arg-type, return-value]


def _most_on_node(nodes: Ranks, parts: Ranks) -> int:
    """Return the maximum number of distinct *parts* on one of *nodes*."""
    import numpy as np

    pairs = np.unique(np.stack([nodes, parts]), axis=1)
    return int(np.bincount(pairs[0]).max())
