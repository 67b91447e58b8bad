"""Oracles: `sim collective` for microbenchmarks of one collective, and sentences judged by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from sim.spec.yaml import SpecError
from sim.study.collective import collective_table
from sim.study.graph import graph_run
from sim.study.scenario import Scenario
from sim.training.collectives.price.collective_plan import Tuning
from tests.parallel.traces import collective, compute, write

MB = 1 << 20


@pytest.mark.parametrize("op", ["all_reduce", "all_gather", "reduce_scatter", "all_to_all"])
@pytest.mark.parametrize(
    ("hardware", "nodes", "ranks"), [("p3.16xlarge", 1, 8), ("hgx-h100", 2, 16), ("128x-hgx-h100-oversubscribed", 34, 272)]
)
def test_a_microbenchmark_takes_what_sim_collective_says(tmp_path: Path, op: str, hardware: str, nodes: int, ranks: int) -> None:
    """The shape of ASTRA-sim's microbenchmarks: one collective on every rank, node ids counted on from rank to rank."""
    vector_bytes = 4096 * ranks
    part = vector_bytes // ranks if op == "all_gather" else vector_bytes
    named = write(tmp_path, *([collective(rank, op.upper(), part)] for rank in range(ranks)))
    replayed = graph_run(Scenario(hardware, str(named), nodes=nodes))
    (row,) = collective_table(hardware, op, [vector_bytes], nodes=nodes).rows
    assert replayed.step_time == pytest.approx(row.time, rel=1e-9)


@pytest.mark.parametrize(
    ("scenario", "what"),
    [
        ({}, "toy: the trace has 4 ranks, but p3.16xlarge provides 8 GPUs, and each rank needs one; write --gpus 4"),
        ({"gpus": 2}, "the trace has 4 ranks, but p3.16xlarge provides 2 GPUs, and each rank needs one; write --nodes 2"),
        ({"gpus": 4, "precision": "fp99"}, "--precision fp99: write one of fp32"),
        ({"gpus": 4, "stack": "gloo-ddp"}, "--stack gloo-ddp: does not use NCCL, but a trace's collectives are NCCL's"),
        ({"gpus": 4, "overrides": ("training.batch=4",)}, "--set training.batch=4: a trace has no such field"),
    ],
)
def test_what_does_not_fit_is_refused(tmp_path: Path, scenario: dict[str, object], what: str) -> None:
    named = write(tmp_path, *[[compute(0, 1e-3)]] * 4)
    with pytest.raises(SpecError, match=what):
        graph_run(Scenario("p3.16xlarge", str(named), **scenario))  # type: ignore[arg-type]


def test_the_stack_decides_how_nccl_chooses(tmp_path: Path) -> None:
    named = write(tmp_path, *[[collective(0, "ALL_REDUCE", MB)]] * 8)
    for stack in ("torch-1.13-ddp", "torchtitan-2.x"):
        replayed = graph_run(Scenario("p3.16xlarge", str(named), stack=stack))
        version = replayed.prices.tuning.version
        (row,) = collective_table("p3.16xlarge", "all_reduce", [MB], tuning=Tuning(version)).rows
        assert replayed.step_time == pytest.approx(row.time, rel=1e-9)
