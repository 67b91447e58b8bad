"""Who writes a checkpoint, and what does a node need of it? Oracle: the groups of the mesh, rank by rank."""

from __future__ import annotations

import pytest

from sim.parallel.holders import Holders, holders
from sim.parallel.mesh import Mesh, mesh_of
from sim.spec.parallel import MEGATRON_ORDER, NEAR_PIPELINE, Parallel


def by_groups(mesh: Mesh) -> Holders:
    """Return the same, asked of each rank: parts are named by tensor rank, stage and the place in its groups."""
    sharded = mesh.parallel.shard != "none"
    weights, shards = {}, {}
    for rank in range(mesh.gpus):
        place = mesh.coordinate(rank, "tensor"), mesh.stage_of(rank)
        weights[rank] = *place, mesh.group(rank, "expert").index(rank) if mesh.parallel.expert > 1 else 0
        shards[rank] = (*place, mesh.group(rank, "shard").index(rank)) if sharded else weights[rank]
    nodes = [list(mesh.on_node(node)) for node in range(mesh.gpus // mesh.gpus_per_node)]
    writers = {part: rank for rank, part in reversed(shards.items())}.values()
    return Holders(
        len(set(weights.values())), max(len({weights[rank] for rank in node}) for node in nodes), len(writers),
        max(sum(rank in writers for rank in node) for node in nodes), max(len({shards[rank] for rank in node}) for node in nodes),
    )  # fmt: skip


@pytest.mark.parametrize("order", [MEGATRON_ORDER, NEAR_PIPELINE])
@pytest.mark.parametrize(
    "layout",
    [
        {}, {"tensor": 8}, {"tensor": 2, "pipeline": 4}, {"tensor": 4, "context": 2, "shard": "optimizer"}, {"shard": "parameters"},
        {"shard": "parameters", "replicate": 4}, {"pipeline": 8}, {"expert": 8}, {"tensor": 4, "expert": 8, "context": 2},
        {"tensor": 2, "pipeline": 2, "shard": "gradients", "replicate": 2, "context": 2},
    ],
)  # fmt: skip
def test_ranks_hold_what_their_groups_say(layout: dict[str, object], order: tuple[str, ...]) -> None:
    mesh = mesh_of(Parallel.model_validate(layout), [8] * 8, order)  # type: ignore[arg-type]
    assert holders(mesh) == by_groups(mesh)
