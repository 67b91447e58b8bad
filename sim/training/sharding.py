"""Which parameter server holds which bytes? Whole variables round-robin, as in TensorFlow, or equal shares in chunks, as in PHub.

``tf.train.replica_device_setter`` (tensorflow/python/training/device_setter.py) assigns each variable to the next server in the order of
creation, whatever its size. A batch norm also creates its moving mean and variance, which take their turns but are not pushed.
A pattern with a period that the number of servers divides is therefore assigned unevenly: a convolution with a bias and its norm are six
variables, so one of two servers gets every kernel. Chunks (Luo et al., PHub, arXiv:1805.07891, section 3.2) are assigned evenly.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from sim.parallel.lower.buckets import exchange_buckets
from sim.parallel.lower.exchange_plan import gradient_widths
from sim.spec.layer import Layer
from sim.spec.model import Model
from sim.spec.servers import Servers
from sim.spec.workload import Workload


class ServerShard(NamedTuple):
    """The part of a bucket that one worker pushes to one server: its bytes, and its number of updates (variables or chunks)."""

    nbytes: float
    updates: float


def moving_statistics(model: Model, layer: Layer) -> int:
    """Return the number of untrained variables of *layer*: the moving mean and variance of a batch norm."""
    return 2 if model.buffers > 0 and layer.op == "norm" and len(layer.gradients) == 2 else 0


def owners(model: Model, servers: int) -> list[tuple[int, ...]]:
    """Return, for each layer in forward order, the server (0..) of each gradient tensor, round-robin in order of creation."""
    by_layer = []
    created = 0
    for layer in model.layers:
        by_layer.append(tuple((created + index) % servers for index in range(len(layer.gradients))))
        created += len(layer.gradients) + moving_statistics(model, layer)
    return by_layer


def shards(workload: Workload, servers: Servers) -> list[list[ServerShard]]:
    """Return for each bucket, in launch order, the shard that one worker pushes to each server. With chunks, all shards are equal.

    With racks, the servers are those of the worker's own rack.
    """
    layers, exchange = workload.model.layers, workload.training.stack.exchange
    count = servers.count // servers.racks
    elements = [size for layer in reversed(layers) for size in layer.gradients]
    sizes = [size * width for size, width in zip(elements, gradient_widths(workload), strict=True)]
    buckets = [bucket.tensors for bucket in exchange_buckets(sizes, exchange)]
    if servers.sharding == "chunks":
        return [[_chunked(sum(sizes[index] for index in bucket), servers, count)] * count for bucket in buckets]
    owner = [server for tensors in reversed(owners(workload.model, count)) for server in tensors]
    return [_dealt(bucket, sizes, owner, count) for bucket in buckets]


def _chunked(nbytes: float, servers: Servers, count: int) -> ServerShard:
    return ServerShard(nbytes / count, math.ceil(nbytes / servers.chunk) / count)


def _dealt(bucket: Sequence[int], sizes: Sequence[float], owner: Sequence[int], count: int) -> list[ServerShard]:
    by_server = [[sizes[index] for index in bucket if owner[index] == server] for server in range(count)]
    return [ServerShard(sum(own), float(len(own))) for own in by_server]
