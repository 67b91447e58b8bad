"""Does any collective go faster than its wires? Conservation: what a GPU or a node cannot but receive comes in over its links and cards."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

import pytest
from hypothesis import strategies as st

from sim.cluster.build import place, slots, with_nodes
from sim.spec.library import load_hardware
from sim.training.collectives.price.collective_plan import OPS, CollectivePlan, Op, Tuning, plan_collectives
from sim.training.job import job_slots
from tests.examples import examples

CATALOG = sorted(
    path.stem for path in (Path(__file__).parents[4] / "hardware").glob("*.yaml") if path.stem != "256x-tpu-v2-v3"
)  # of unlike nodes
ROOTED = ("reduce", "broadcast", "gather", "scatter")
ROUNDING = 1 + 1e-9


@lru_cache(maxsize=1024)
def plan(name: str, nodes: int, gpus: int | None, version: str) -> CollectivePlan:
    machine = with_nodes(load_hardware(name).spec, nodes)
    placed = place(machine, None if gpus is None else gpus * nodes)
    return plan_collectives(job_slots(0, slots(machine, [placed], fold=True)), machine.fabric, Tuning(version))


def share_received(op: Op, ranks: int, those: int) -> float:
    """Return the share of a collective's bytes, as nccl-tests counts them, that *those* of all *ranks* together must receive, or send."""
    if op in ("all_reduce", "broadcast", "reduce", "send_recv"):
        return (ranks - 1) / ranks if op == "all_reduce" and those == 1 else 1.0
    elsewhere = (ranks - those) / ranks
    return those * elsewhere if op == "all_to_all" else elsewhere


@examples(
    100,
    400,
    st.sampled_from(CATALOG),
    st.sampled_from(OPS),
    st.sampled_from((1, 2, 3, 8, 64)),
    st.integers(1, 8),
    st.floats(0, 36),
    st.sampled_from(("2.3", "2.4", "2.10", "2.16", "2.20", "2.30")),
)
def test_no_machine_of_the_catalog_outruns_its_links_and_cards(name, op, nodes, most, doublings, version):
    """Every operation, size and generation of NCCL, on one node and on several, on some or all GPUs: at most the full rate of the links."""
    there = load_hardware(name).spec.groups[0].node.gpu_count
    gpus = min(most, there)
    if gpus * nodes < 2:
        return
    collective_plan, nbytes = plan(name, nodes, gpus, version), 2.0**doublings
    seconds = collective_plan.cost(nbytes, op).uncontended_time
    for part in collective_plan.layout.parts:
        graph = part.slot.graph
        for gpu in part.gpus[:1] if op in ROOTED else part.gpus:
            into = sum(link.capacity for link in graph.links.values() if link.name.endswith(f">gpu{gpu}"))
            assert seconds * ROUNDING >= share_received(op, collective_plan.ranks, 1) * nbytes / into, (name, gpu)
        if nodes > 1:
            cards = part.slot.node.nic.count * part.slot.node.nic.bandwidth
            assert seconds * ROUNDING >= share_received(op, collective_plan.ranks, len(part.gpus)) * nbytes / cards, name


@pytest.mark.parametrize(
    ("op", "ranks", "those", "share"), [("all_reduce", 4, 1, 0.75), ("all_to_all", 8, 4, 2.0), ("all_gather", 8, 4, 0.5)]
)
def test_shares_by_hand(op, ranks, those, share):
    """Four of eight ranks get half of an all-gather, and half of each of their own buffers of an all-to-all."""
    assert share_received(op, ranks, those) == share
