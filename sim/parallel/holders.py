"""Which ranks write a checkpoint, and what does each node need of it? Parts of the state by rank of a mesh.

A part is what ranks hold alike: weights of a tensor rank, stage and expert rank, and the shard of sharded states. The first rank that
holds a part writes it. Ranks fill nodes in turn, so that writers are on few nodes where a replica is.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sim.parallel.mesh import Mesh
from sim.spec.parallel import Axis

Ranks = NDArray[np.intp]


class Holders(NamedTuple):
    """Parts of the state of a job: whole weights, and shards; where there are none, both are the same."""

    weights: int
    """Parts of the weights that differ, before these are sharded."""
    weights_on_node: int
    """Of them, those that the ranks of one node need."""
    writers: int
    """Ranks that write: one for each shard of each part."""
    writers_on_node: int
    """Those of the node that has most."""
    shards_on_node: int
    """Shards that the ranks of one node need."""


ALONE = Holders(1, 1, 1, 1, 1)
"""Of plain data parallelism: all ranks have all alike, and the first one writes it."""


def holders(mesh: Mesh) -> Holders:
    """Return who holds what of the state of a job on *mesh*."""
    ranks = np.arange(mesh.gpus)
    weights = _combined(mesh, ranks, _weights_of(mesh, ranks))
    shards = _combined(mesh, ranks, _shards_of(mesh, ranks)) if mesh.parallel.shard != "none" else weights
    first = np.unique(shards, return_index=True)[1]
    nodes = ranks // mesh.gpus_per_node
    on_fullest = int(np.bincount(nodes[first]).max())
    return Holders(np.unique(weights).size, _most_on_node(nodes, weights), first.size, on_fullest, _most_on_node(nodes, shards))


def _weights_of(mesh: Mesh, ranks: Ranks) -> Ranks:
    """Return which part of the weights of its tensor rank and stage each of *ranks* has, by its experts."""
    return _position(mesh, ranks, ("tensor", "context", "data")) % mesh.parallel.expert


def _shards_of(mesh: Mesh, ranks: Ranks) -> Ranks:
    return _position(mesh, ranks, ("context", "data")) % mesh.group_size("shard")


def _combined(mesh: Mesh, ranks: Ranks, inside: Ranks) -> Ranks:
    """Return one number for each of *ranks*: equal where tensor rank, stage and what it has *inside* of them are."""
    coordinate = _coordinate(mesh, ranks, "pipeline") * mesh.parallel.tensor + _coordinate(mesh, ranks, "tensor")
    return np.asarray(coordinate * mesh.gpus + inside)


def _position(mesh: Mesh, ranks: Ranks, axes: tuple[Axis, ...]) -> Ranks:
    """Return the place of each of *ranks* among those that differ from it along *axes* only, in order."""
    place, size = np.zeros_like(ranks), 1
    for axis in (axis for axis in mesh.order if axis in axes):
        place += _coordinate(mesh, ranks, axis) * size
        size *= mesh.sizes[axis]
    return place


def _coordinate(mesh: Mesh, ranks: Ranks, axis: Axis) -> Ranks:
    return np.asarray(mesh.coordinate(ranks, axis))  # type: ignore[arg-type]


def _most_on_node(nodes: Ranks, parts: Ranks) -> int:
    """Return how many of *parts* the ranks of one of *nodes* have at most."""
    pairs = np.unique(np.stack([nodes, parts]), axis=1)
    return int(np.bincount(pairs[0]).max())
