"""Oracles: groups of each axis partition the ranks; rank orders of Megatron-LM and torchtitan as their code makes them."""

from __future__ import annotations

import re
from itertools import pairwise, product
from typing import get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.parallel.mesh import GroupAxis, Mesh, mesh_of
from sim.spec.parallel import MEGATRON_ORDER, Parallel
from sim.spec.yaml import SpecError
from tests.parallel.layouts import parallel

AXES: tuple[GroupAxis, ...] = get_args(GroupAxis)


def factors(number: int) -> list[int]:
    return [size for size in range(1, number + 1) if number % size == 0]


@st.composite
def meshes(draw: st.DrawFn) -> Mesh:
    tensor, context, pipeline, data = (draw(st.sampled_from(sizes)) for sizes in ((1, 2, 4), (1, 2), (1, 2, 3), (1, 2, 4, 6)))
    pool = context * data
    replicate = draw(st.sampled_from(factors(pool)))
    fields = {
        "tensor": tensor, "context": context, "pipeline": pipeline, "shard": "parameters", "replicate": replicate,
        "expert": draw(st.sampled_from(factors(pool * tensor))), "reshard_after_forward": draw(st.sampled_from(factors(pool // replicate))),
        "order": draw(st.permutations(MEGATRON_ORDER)),
    }  # fmt: skip
    gpus = tensor * pool * pipeline
    each = draw(st.sampled_from(factors(gpus)))
    return mesh_of(parallel(**fields), [each] * (gpus // each), MEGATRON_ORDER)


@given(meshes())
def test_groups_of_every_axis_partition_the_ranks(mesh: Mesh) -> None:
    for axis in AXES:
        groups = {mesh.group(rank, axis) for rank in range(mesh.gpus)}
        assert sorted(rank for group in groups for rank in group) == list(range(mesh.gpus)), axis
        assert all(rank in mesh.group(rank, axis) for rank in range(mesh.gpus)), axis
        if axis != "ends":
            assert {len(group) for group in groups} == {mesh.group_size(axis)}, axis


@given(meshes(), st.integers(0, 6))
def test_a_stage_is_placed_as_the_first_like_it_some_periods_before(mesh: Mesh, period: int) -> None:
    """Oracle: nodes and GPUs of all their ranks, and of their groups; no stage before that one is placed so."""
    places = [[mesh.place(rank) for rank in range(mesh.gpus) if mesh.stage_of(rank) == stage] for stage in range(mesh.stages)]
    for stage in range(mesh.stages):
        like, nodes = mesh.first_like(stage, period)
        expected = (
            before
            for before in range(stage + 1)
            if before == stage
            or (period and all(a[1] == b[1] and (b[0] - a[0]) % period == 0 for a, b in zip(places[before], places[stage], strict=True)))
        )
        assert like == next(expected)
        assert [(node + nodes, gpu) for node, gpu in places[like]] == places[stage]
        first, own = mesh.rank(pipeline=like), mesh.rank(pipeline=stage)
        for axis in ("tensor", "context", "shard", "reshard", "replicate", "expert", "expert_data", "pool"):
            assert mesh.group(own, axis) == tuple(rank + own - first for rank in mesh.group(first, axis))


@given(meshes())
def test_ranks_and_coordinates_are_inverse(mesh: Mesh) -> None:
    seen = [
        mesh.rank(tensor=tensor, context=context, data=data, pipeline=pipeline)
        for tensor, context, data, pipeline in product(*(range(mesh.sizes[axis]) for axis in MEGATRON_ORDER))
    ]
    assert sorted(seen) == list(range(mesh.gpus))
    for axis in MEGATRON_ORDER:
        assert all(mesh.coordinate(mesh.rank(**{axis: size - 1}), axis) == size - 1 for size in (mesh.sizes[axis],))
    assert [mesh.place(rank) for rank in range(mesh.gpus)] == [divmod(rank, mesh.gpus_per_node) for rank in range(mesh.gpus)]


@given(meshes())
def test_sharded_groups_nest(mesh: Mesh) -> None:
    """A reshard group lies inside a shard group; shards x replicas are all that hold the same weights; experts x copies are a stage."""
    for rank in range(mesh.gpus):
        shard = set(mesh.group(rank, "shard"))
        assert set(mesh.group(rank, "reshard")) <= shard
        assert len(shard & set(mesh.group(rank, "replicate"))) == 1
        assert set(mesh.group(rank, "tensor")) & shard == {rank}
        stage = {other for other in range(mesh.gpus) if mesh.stage_of(other) == mesh.stage_of(rank)}
        held = {other for peer in mesh.group(rank, "expert") for other in mesh.group(peer, "expert_data")}
        assert held == stage or mesh.parallel.expert == 1


def megatron(tp: int, cp: int, dp: int, pp: int) -> dict[str, set[tuple[int, ...]]]:
    """Return the groups of Megatron-LM's default ``tp-cp-ep-dp-pp``: rank = tp + cp*TP + dp*TP*CP + pp*TP*CP*DP (parallel_state.py)."""
    grid = np.arange(tp * cp * dp * pp).reshape(pp, dp, cp, tp)
    return {
        "tensor": {tuple(row) for row in grid.reshape(-1, tp)},
        "context": {tuple(row) for row in grid.swapaxes(2, 3).reshape(-1, cp)},
        "shard": {tuple(sorted(row)) for row in grid.transpose(0, 3, 1, 2).reshape(-1, dp * cp)},
        "pipeline": {tuple(row) for row in grid.transpose(1, 2, 3, 0).reshape(-1, pp)},
    }


def groups(mesh: Mesh, axis: GroupAxis) -> set[tuple[int, ...]]:
    return {mesh.group(rank, axis) for rank in range(mesh.gpus)}


@pytest.mark.parametrize("sizes", [(2, 1, 4, 2), (4, 2, 2, 2), (1, 2, 4, 1), (8, 1, 2, 4)])
def test_megatrons_order(sizes: tuple[int, int, int, int]) -> None:
    tp, cp, dp, pp = sizes
    mesh = mesh_of(parallel(tensor=tp, context=cp, pipeline=pp, shard="optimizer"), [tp * cp * dp * pp], MEGATRON_ORDER)
    for axis, ranks in megatron(*sizes).items():
        assert groups(mesh, axis) == ranks, axis  # type: ignore[arg-type]


def test_megatrons_expert_groups() -> None:
    """With expert-tensor size 1 experts are numbered over tp and dp: world 16, tp 2, ep 4 (RankGenerator ``tp-cp-ep-dp-pp``, etp 1)."""
    mesh = mesh_of(parallel(tensor=2, expert=4, pipeline=2), [16], MEGATRON_ORDER)
    grid = np.arange(16).reshape(2, 2, 4)  # pp, expert data, ep
    assert groups(mesh, "expert") == {tuple(row) for row in grid.reshape(-1, 4)}
    assert groups(mesh, "expert_data") == {tuple(row) for row in grid.swapaxes(1, 2).reshape(-1, 2)}


def test_torchtitans_order() -> None:
    """Its mesh is (pp, dp_replicate, dp_shard, cp, tp), the last varying fastest (torchtitan distributed/parallel_dims.py)."""
    pp, replicate, shard, cp, tp = 2, 2, 3, 2, 2
    grid = np.arange(48).reshape(pp, replicate, shard, cp, tp)
    mesh = mesh_of(parallel(tensor=tp, context=cp, pipeline=pp, replicate=replicate, shard="parameters"), [8] * 6, MEGATRON_ORDER)
    assert groups(mesh, "tensor") == {tuple(row) for row in grid.reshape(-1, tp)}
    assert groups(mesh, "shard") == {tuple(sorted(row)) for row in grid.transpose(0, 1, 4, 2, 3).reshape(-1, shard * cp)}
    assert groups(mesh, "replicate") == {tuple(row) for row in grid.transpose(0, 2, 3, 4, 1).reshape(-1, replicate)}
    assert groups(mesh, "pipeline") == {tuple(row) for row in grid.transpose(1, 2, 3, 4, 0).reshape(-1, pp)}


def test_ends_are_the_first_and_the_last_stage() -> None:
    mesh = mesh_of(parallel(pipeline=4, tensor=2), [8, 8], MEGATRON_ORDER)
    first = mesh.rank(tensor=1)
    assert mesh.group(first, "ends") == (first, mesh.rank(tensor=1, pipeline=3))
    assert mesh.group(mesh.rank(pipeline=2), "ends") == (mesh.rank(pipeline=2),)


def test_plain_data_parallelism_is_one_group() -> None:
    mesh = mesh_of(Parallel(), [8, 8], MEGATRON_ORDER)
    assert mesh.group(5, "shard") == tuple(range(16))
    assert [mesh.group_size(axis) for axis in ("tensor", "context", "replicate", "pipeline")] == [1, 1, 1, 1]


@pytest.mark.parametrize(
    ("fields", "placement", "message"),
    [
        ({"tensor": 3}, [8], "tensor 3 x context 1 x pipeline 1 = 3 ranks do not divide 8 GPUs; use 6 or 9 GPUs"),
        ({"tensor": 4, "pipeline": 4}, [8], "= 16 ranks do not divide 8 GPUs; use 16 GPUs"),
        ({"tensor": 2}, [8, 4], "needs the same number of GPUs on each node, not 8+4"),
        ({"expert": 3}, [8], "training.parallel.expert: 3 does not divide the 8 tensor, context and data ranks; use 2 or 4"),
        ({"replicate": 5, "shard": "parameters"}, [8], "replicate: 5 does not divide the 8 data and context ranks; use 4 or 8"),
        (
            {"replicate": 2, "shard": "parameters", "reshard_after_forward": 3}, [8],
            "reshard_after_forward: 3 does not divide the 4 ranks of a shard group; use 2 or 4",
        ),
    ],
)  # fmt: skip
def test_meshes_that_do_not_divide(fields: dict[str, object], placement: list[int], message: str) -> None:
    with pytest.raises(SpecError, match=re.escape(message)):
        mesh_of(parallel(**fields), placement, MEGATRON_ORDER)


@given(meshes())
def test_neighbors_share_nodes_first(mesh: Mesh) -> None:
    """In Megatron's order tensor groups are consecutive ranks."""
    if mesh.order == MEGATRON_ORDER:
        assert all(after == before + 1 for rank in range(mesh.gpus) for before, after in pairwise(mesh.group(rank, "tensor")))
