"""How does the cost of a layout grow? Whole processes of the largest decoders, and steps over as few and as many ranks."""

from __future__ import annotations

import sys
from itertools import product
from statistics import median
from typing import Any

import pytest

from sim.cluster.build import with_nodes
from sim.mesh import prepare, run_layout
from sim.spec.library import load_hardware, load_workload
from sim.training.collectives.price.collective_plan import Tuning
from sim.training.layouts.prices import LayoutPrices
from sim.units import show
from tests.bench.process import Used, process
from tests.bench.test_scale import measured_only
from tests.parallel.layouts import parallel
from tests.training.layouts.toys import with_parallel

STACK = ("training.stack=megatron-core", "training.activation_checkpointing=blocks")
MEGATRON = "--stack megatron-core --set training.activation_checkpointing=blocks"
LARGEST = f"llama-3.1-405b --nodes 2048 --tp 8 --pp 16 --micro-batches 16 {MEGATRON}"
LEAVES = "--set fabric.leaf_spine.oversubscription=2 --set fabric.leaf_spine.nodes_per_leaf"
PROCESSES = {
    "`llama-3.1-405b` on 16,384 GPUs (tp 8, pp 16, dp 128)": (
        "2 s, 300 MB",
        LARGEST,
    ),
    "the same below leaf switches of 32 nodes": ("2 s, 300 MB", f"{LARGEST} {LEAVES}=32"),
    "the same below leaf switches of 20 nodes, which stages do not divide": ("6 s", f"{LARGEST} {LEAVES}=20"),
    "`gpt3-175b` on 1,024 GPUs (tp 8, pp 8)": (
        "1.5 s", f"gpt3-175b --nodes 128 --tp 8 --pp 8 --micro-batches 16 {MEGATRON}",
    ),
    "FSDP of an 8 B model on 512 GPUs": ("1 s", "llama-3.1-8b --nodes 64 --shard parameters"),
}  # fmt: skip


@pytest.mark.parametrize("label", PROCESSES)
def test_layouts_whole_process(benchmark: Any, label: str) -> None:
    measured_only(benchmark)
    aim, arguments = PROCESSES[label]
    command = [sys.executable, "-m", "sim", "run", "hgx-h100", *arguments.split(), "--json"]
    used: list[Used] = []
    benchmark.pedantic(lambda: used.append(process(command)), rounds=3)
    seconds, peak = (median(each) for each in zip(*used, strict=True))
    benchmark.extra_info.update(label=label, value=f"{seconds:.2g} s; {show(peak, 'size')}", aim=aim)


@pytest.mark.parametrize("each", [4, 32])
def test_groups_below_many_leaves(benchmark: Any, each: int) -> None:
    """Groups of 16 stages on 16,384 GPUs, in pools that span the leaves of a stage: those that differ in their leaves are priced once."""
    fabric = f"fabric.leaf_spine={{nodes_per_leaf: {each}, oversubscription: 4}}"
    hardware = with_nodes(load_hardware("hgx-h100", [fabric]).spec, 2048)
    loaded = load_workload("llama-3.1-405b", list(STACK)).spec
    given = with_parallel(loaded, parallel(tensor=8, context=16, pipeline=16, shard="optimizer"), gradient_accumulation_steps=16)
    mesh = prepare(hardware, given).mesh

    def priced() -> None:
        prices = LayoutPrices(hardware, mesh, Tuning())
        for stage, axis in product(range(mesh.stages), ("context", "shard", "tensor")):
            prices.price(stage, axis, "all_gather", 1e8)

    benchmark.pedantic(priced, rounds=3)
    benchmark.extra_info.update(label=f"groups of a layout on 16,384 GPUs below leaves of {each} nodes, priced", aim="0.1 s")


def test_a_layout_costs_as_much_on_more_ranks(benchmark: Any) -> None:
    """On 16,384 GPUs no more happens than on 128: longer rings are priced once, and buckets of a million elements a rank are fewer."""
    loaded = load_workload("gpt3-13b", list(STACK)).spec
    given = with_parallel(loaded, parallel(tensor=8, pipeline=8, shard="optimizer"), gradient_accumulation_steps=16)
    hardware = load_hardware("hgx-h100").spec
    small, large = (run_layout(with_nodes(hardware, nodes), given) for nodes in (16, 2048))
    assert len(large.played.log.work) <= len(small.played.log.work)
    benchmark.pedantic(lambda: run_layout(with_nodes(hardware, 2048), given), rounds=1)
    benchmark.extra_info.update(label="Step of `gpt3-13b` on 16,384 GPUs (tp 8, pp 8)")
