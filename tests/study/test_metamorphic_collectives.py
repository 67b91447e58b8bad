"""Do collectives of every operation obey the wire? More bytes never take less time, faster links never more, and no link carries too much.

A faster link may slow a collective only if NCCL decides otherwise: algorithm, protocol and channels, the rings of its search, or the number
of partners that sends serve at once. No oracle but the relations, and what the NICs of a node must carry at least.
"""

from __future__ import annotations

from collections.abc import Hashable
from itertools import pairwise
from typing import get_args

import pytest

from sim.cluster.build import place, slots, with_nodes
from sim.cluster.fabric import job_fabric
from sim.parallel.program import Op
from sim.spec.catalogue import catalogue
from sim.spec.hardware import Hardware, Link, Node
from sim.spec.library import load_hardware
from sim.spec.yaml import SpecError
from sim.training.collectives.price.collective_plan import CollectivePlan, plan_collectives
from sim.training.collectives.price.point_to_point import SENDS, partners_at_once
from sim.training.collectives.price.table import CollectiveRow, rows
from sim.training.job import job_slots

SLOWER = 1.001
OPS: tuple[Op, ...] = get_args(Op)
SIZES = [1000 * 4**power for power in range(12)]
"""1 KB to 4 GB."""
SCENES = (
    ("dgx-1-v100", 2),
    ("p3.16xlarge", 1),
    ("p4d.24xlarge", 3),
    ("hgx-h100", 4),
    ("g6e.48xlarge", 2),
    ("cray-ex235a", 2),
    ("mi300x-platform", 1),
)
REDUCED_BY_SWITCHES = ("CollNet", "CollNetChain", "CollNetDirect", "NVLS")


def _link(link: Link, factor: float) -> Link:
    return link.model_copy(update={"bandwidth": link.bandwidth * factor, "nccl_bandwidth": link.nccl_bandwidth * factor})


def faster(node: Node, part: str, factor: float) -> Node | None:
    """Return *node* with the links of *part* *factor* times as fast; None if it has none."""
    topology = node.topology
    if part == "nic":
        return node.model_copy(update={"nic": node.nic.model_copy(update={"bandwidth": node.nic.bandwidth * factor})})
    if part == "pcie":
        switches = tuple(each.model_copy(update={"link": _link(each.link, factor)}) if each.link else each for each in topology.switches)
        return node.model_copy(
            update={"topology": topology.model_copy(update={"pcie": _link(topology.pcie, factor), "switches": switches})}
        )
    if topology.nvlink is None:
        return None
    nvlink = topology.nvlink.model_copy(update={"link": _link(topology.nvlink.link, factor)})
    return node.model_copy(update={"topology": topology.model_copy(update={"nvlink": nvlink})})


def planned(machine: Hardware) -> CollectivePlan:
    placed = place(machine, None, None)
    fabric = job_fabric(machine, [[part.node for part in placed]], 0)
    return plan_collectives(job_slots(0, slots(machine, [placed])), machine.fabric, job_fabric=fabric)


def decided(plan: CollectivePlan, op: Op, row: CollectiveRow) -> Hashable:
    """Return NCCL's decisions for *row*."""
    rings = tuple(channel.gpus for part in plan.parts for channel in part.channels.channels)
    return row.algorithm, row.protocol, row.channels, rings, partners_at_once(plan.layout) if op in SENDS else 0


def slower(name: str, nodes: int, factor: float) -> list[str]:
    """Return the collectives that take longer though a part of *name* is faster, and NCCL decides the same."""
    machine = with_nodes(load_hardware(name).spec, nodes)
    worse, before = [], planned(machine)
    described = {op: rows(before, op, SIZES) for op in OPS}
    for part in ("nic", "pcie", "nvlink"):
        node = faster(machine.groups[0].node, part, factor)
        if node is None or (part == "nic" and nodes == 1):
            continue
        after = planned(machine.model_copy(update={"groups": (machine.groups[0].model_copy(update={"node": node}),)}))
        for op in OPS:
            for old, new in zip(described[op], rows(after, op, SIZES), strict=True):
                if new.time > SLOWER * old.time and decided(before, op, old) == decided(after, op, new):
                    worse.append(f"{op} of {old.nbytes} B on {nodes} x {name}, {part} x{factor:g}: {old.time:.4g} s to {new.time:.4g} s")
    return worse


def shrinking(name: str, nodes: int) -> list[str]:
    """Return the collectives of which more bytes take less time with the same decisions of NCCL."""
    plan = planned(with_nodes(load_hardware(name).spec, nodes))
    return [
        f"{op} on {nodes} x {name}: {one.nbytes} B take {one.time:.4g} s, {other.nbytes} B {other.time:.4g} s"
        for op in OPS
        for one, other in pairwise(rows(plan, op, SIZES))
        if other.time < one.time / SLOWER and decided(plan, op, one) == decided(plan, op, other)
    ]


def leaving(op: Op, algorithm: str, nbytes: float, ranks: int, nodes: int) -> float:
    """Return the bytes that the NICs of the busiest node must at least send or receive."""
    local, others = ranks / nodes, (nodes - 1) / nodes
    if op == "all_reduce":
        return nbytes if algorithm in REDUCED_BY_SWITCHES else 2 * others * nbytes
    least: dict[Op, float] = {
        "all_to_all": local * others,
        "all_gather": others,
        "reduce_scatter": others,
        "gather": others,
        "scatter": others,
    }
    return least.get(op, 1.0) * nbytes


def beyond_the_wire(name: str, nodes: int) -> list[str]:
    """Return the collectives that take less time than the NICs of a node need for what they must carry."""
    machine = with_nodes(load_hardware(name).spec, nodes)
    plan, nic = planned(machine), machine.groups[0].node.nic
    return [
        f"{op} of {row.nbytes} B on {nodes} x {name}: {row.time:.4g} s"
        for op in OPS
        for row in rows(plan, op, SIZES)
        if row.time * nic.count * nic.bandwidth < leaving(op, row.algorithm, row.nbytes, plan.ranks, nodes) / SLOWER
    ]


def test_faster_links_never_slow_a_collective() -> None:
    failures = [text for scene in SCENES for text in slower(*scene, factor=4.0)]
    assert not failures, "\n".join(failures)


def test_more_bytes_never_take_less_time() -> None:
    failures = [text for scene in SCENES for text in shrinking(*scene)]
    assert not failures, "\n".join(failures)


def test_no_collective_beats_its_wire() -> None:
    failures = [text for name, nodes in SCENES if nodes > 1 for text in beyond_the_wire(name, nodes)]
    assert not failures, "\n".join(failures)


@pytest.mark.nightly
@pytest.mark.slow
def test_every_machine_obeys_the_wire() -> None:
    """The same of every machine of the catalog on one and on eight nodes."""
    failures: list[str] = []
    for name in sorted(catalogue("hardware")):
        machine = load_hardware(name).spec
        for nodes in (1, 8):
            if len(machine.groups) > 1 or (nodes == 1 and machine.groups[0].node.gpu_count == 1):
                continue
            try:
                failures += [*slower(name, nodes, 2.0), *shrinking(name, nodes)] + (beyond_the_wire(name, nodes) if nodes > 1 else [])
            except SpecError:  # a fabric that so many nodes do not fill
                continue
    assert not failures, "\n".join(failures)
