"""Do collectives of every operation obey the wire? More bytes never take less time, faster links, more NICs and fewer nodes never more.

These may slow a collective only if NCCL decides otherwise: algorithm, protocol and channels, the rings of its search, or the number of
partners that sends serve at once. No oracle but the relations, and what the links of a GPU and the NICs of a node must carry at least.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from itertools import pairwise
from typing import get_args

import pytest

from sim.cluster.build import place, slots, with_nodes
from sim.cluster.fabric import job_fabric
from sim.parallel.program import Op
from sim.spec.catalog import catalog
from sim.spec.hardware import Hardware, Link, Node, Socket, Switch
from sim.spec.library import load_hardware
from sim.spec.yaml import SpecError
from sim.training.collectives.price.collective_plan import DEFAULT, CollectivePlan, Tuning, plan_collectives
from sim.training.collectives.price.point_to_point import SENDS, partners_at_once
from sim.training.collectives.price.table import CollectiveRow, bus_factor, rows
from sim.training.job import job_slots

SLOWER = 1.001
OPS: tuple[Op, ...] = get_args(Op)
SIZES = [1000 * 4**power for power in range(12)]
FEW_PIECES = 4 * 512 * 1024
"""Bytes in each channel up to which a pipeline has few pieces."""
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


def planned(machine: Hardware, tuning: Tuning = DEFAULT) -> CollectivePlan:
    placed = place(machine, None, None)
    fabric = job_fabric(machine, [[part.node for part in placed]], 0)
    return plan_collectives(job_slots(0, slots(machine, [placed])), machine.fabric, tuning, job_fabric=fabric)


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


def with_nics(node: Node, count: int) -> Node:
    """Return *node* with its first *count* NICs only."""
    topology = node.topology

    def fewer(places: Sequence[Socket | Switch]) -> tuple[Socket | Switch, ...]:
        return tuple(place.model_copy(update={"nics": tuple(nic for nic in place.nics if nic < count)}) for place in places)

    changed = topology.model_copy(update={"sockets": fewer(topology.sockets), "switches": fewer(topology.switches)})
    return node.model_copy(update={"topology": changed, "nic": node.nic.model_copy(update={"count": count})})


def slower_with_more_nics(name: str, nodes: int) -> list[str]:
    """Return the collectives that half of the NICs of *name* carry in less time than all of them, by the same algorithm and protocol.

    NVSwitch reductions are left out: with half of the NICs they have half of the heads, and thus smaller pieces. So are sends to which NCCL
    gives other numbers of channels, and pipelines of a few pieces, which have 512 KiB in each channel however many channels there are. A
    small message of more channels than it uses may take up to 5% longer, because prices spread it over all of them.
    """
    machine = with_nodes(load_hardware(name).spec, nodes)
    node = machine.groups[0].node
    half = with_nics(node, node.nic.count // 2)
    plans = planned(machine), planned(machine.model_copy(update={"groups": (machine.groups[0].model_copy(update={"node": half}),)}))
    return [
        f"{op} of {few.nbytes} B on {nodes} x {name}: {few.time:.4g} s with half of the NICs, {full.time:.4g} s with all"
        for op in OPS
        for full, few in zip(*(rows(plan, op, SIZES) for plan in plans), strict=True)
        if full.time > 1.05 * few.time
        and (full.algorithm, full.protocol) == (few.algorithm, few.protocol) != ("NVLSTree", "Simple")
        and (op not in SENDS or full.channels == few.channels)
        and not (op in ("broadcast", "reduce") and full.protocol == "Simple" and full.nbytes < FEW_PIECES * plans[0].channels)
    ]


def faster_on_more_nodes(name: str) -> list[str]:
    """Return the collectives of which the same bytes take less time on more nodes, with the same decisions of NCCL.

    NVSwitch reductions of several nodes are left out, because their pieces are smaller from four nodes on.
    """
    machine = load_hardware(name).spec
    failures = []
    for few, many in ((2, 4), (4, 16)):
        before, after = planned(with_nodes(machine, few)), planned(with_nodes(machine, many))
        failures += [
            f"{op} of {old.nbytes} B on {name}: {old.time:.4g} s on {few} nodes, {new.time:.4g} s on {many}"
            for op in OPS
            for old, new in zip(rows(before, op, SIZES), rows(after, op, SIZES), strict=True)
            if new.time < old.time / SLOWER and decided(before, op, old) == decided(after, op, new) and old.algorithm != "NVLSTree"
        ]
    return failures


def slower_than_older(name: str, nodes: int, factor: float) -> list[str]:
    """Return the all-reduces that take more than *factor* times as long by the rules of NCCL 2.30 as by those of an older version."""
    machine = with_nodes(load_hardware(name).spec, nodes)
    newest = rows(planned(machine), "all_reduce", SIZES)
    return [
        f"{row.nbytes} B on {nodes} x {name}: {row.time:.4g} s by NCCL 2.30, {older.time:.4g} s by {version}"
        for version in ("2.3", "2.4", "2.10")
        for row, older in zip(newest, rows(planned(machine, Tuning(version)), "all_reduce", SIZES), strict=True)
        if row.time > factor * older.time
    ]


def received(op: Op, algorithm: str, nbytes: float, ranks: int) -> float:
    """Return the bytes that the busiest GPU of a node must at least receive or send over its own links."""
    if algorithm in REDUCED_BY_SWITCHES:
        return nbytes * (1.0 if op == "all_reduce" else 1 / ranks)
    return bus_factor(op, ranks) * nbytes


def beyond_the_links(name: str) -> list[str]:
    """Return the collectives on one node that take less time than the links of one GPU need for what it must receive or send."""
    machine = load_hardware(name).spec
    node, plan = machine.groups[0].node, planned(machine)
    graph = plan.parts[0].slot.graph
    pairs = [sum(graph.nvlinks(gpu, other) for other in range(node.gpu_count) if other != gpu) for gpu in range(node.gpu_count)]
    nvlinks = max([graph.switch_links, *pairs])
    rate = nvlinks * node.nvlink.link.bandwidth if node.nvlink and nvlinks else 0.0
    rate += 0.0 if graph.switch_links else graph.links[f"gpu0>{graph.parents['gpu0']}"].capacity
    return [
        f"{op} of {row.nbytes} B on {name}: {row.time:.4g} s"
        for op in OPS
        for row in rows(plan, op, SIZES)
        if row.time * rate < received(op, row.algorithm, row.nbytes, plan.ranks) / SLOWER
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


def test_no_collective_beats_the_links_of_a_gpu() -> None:
    failures = [text for name, nodes in SCENES for text in beyond_the_links(name)]
    assert not failures, "\n".join(failures)


@pytest.mark.parametrize("name", ["p4d.24xlarge", "hgx-h100", "cray-ex235a"])
def test_more_nics_never_slow_a_collective(name: str) -> None:
    failures = [text for nodes in (2, 8) for text in slower_with_more_nics(name, nodes)]
    assert not failures, "\n".join(failures)


@pytest.mark.parametrize("name", ["p4d.24xlarge", "hgx-h100", "g6e.48xlarge"])
def test_more_nodes_never_save_time(name: str) -> None:
    failures = faster_on_more_nodes(name)
    assert not failures, "\n".join(failures)


@pytest.mark.parametrize("name", ["dgx-1-v100", "p4d.24xlarge", "g6e.48xlarge", "hgx-h100"])
def test_newer_versions_of_nccl_choose_sensibly(name: str) -> None:
    """By our constants, a version's own choice costs at most three times that of an older one (over TCP, Tree Simple against Tree LL)."""
    failures = [text for nodes in (1, 2, 8) for text in slower_than_older(name, nodes, factor=3.0)]
    assert not failures, "\n".join(failures)


@pytest.mark.nightly
@pytest.mark.slow
def test_every_machine_obeys_the_wire() -> None:
    """The same of every machine of the catalog on one and on eight nodes."""
    failures: list[str] = []
    for name in sorted(catalog("hardware")):
        machine = load_hardware(name).spec
        for nodes in (1, 8):
            if len(machine.groups) > 1 or (nodes == 1 and machine.groups[0].node.gpu_count == 1):
                continue
            try:
                failures += [*slower(name, nodes, 2.0), *shrinking(name, nodes)]
                failures += beyond_the_wire(name, nodes) if nodes > 1 else beyond_the_links(name)
            except SpecError:  # a fabric that so many nodes do not fill
                continue
    assert not failures, "\n".join(failures)
