"""How much bandwidth does a host need so that parameter servers cost no time? PHub's bound by placement, and the ports there are.

A worker's gradients and the new values must pass while it computes: NCS 2M/T, NCC 2NM/T, CC 2(N-1)M/T and CS 4(N-1)/N M/T bytes/s in
and out together, for N workers, a model of M bytes and T seconds of compute (Luo et al., arXiv:1805.07891, section 2).
"""

from __future__ import annotations

from collections.abc import Sequence

from sim import units
from sim.check import check_hardware, require
from sim.cluster.build import with_nodes
from sim.spec.hardware import Hardware
from sim.spec.library import load_hardware
from sim.spec.yaml import SpecError
from sim.training.collectives.parameter_server import Placement, bandwidth_bound
from sim.training.collectives.server_bound import PLACEMENTS, BoundRow, BoundTable


def bound_table(
    hardware: str, sizes: Sequence[int], compute_time: str, *, nodes: int | None = None, overrides: Sequence[str] = ()
) -> BoundTable:
    """Return what hosts need for models of *sizes* (bytes) that compute for *compute_time* on each of *nodes* workers."""
    try:
        time = units.parse(compute_time, "time")
    except units.UnitError as error:
        raise SpecError(f"--compute-time {compute_time}: {error}") from None
    if time <= 0:
        raise SpecError(f"--compute-time {compute_time}: write a time above zero, for example 100 ms")
    loaded = load_hardware(hardware, overrides)
    machine = loaded.spec if nodes is None else with_nodes(loaded.spec, nodes)
    require(check_hardware(machine, loaded.document))
    workers = sum(group.count for group in machine.groups if group.role == "worker")
    there = ports(machine)
    rows = tuple(BoundRow(size, {name: bandwidth_bound(name, workers, size, time) for name in PLACEMENTS}) for size in sizes)
    return BoundTable(machine.name, workers, time, there, rows, machine, {"hardware": loaded.sha256})


def ports(machine: Hardware) -> dict[Placement, float]:
    """Return what the ports of the busiest host carry by placement, bytes/s in and out together: the slowest of its kind.

    Servers on hosts of their own push as much as workers do, so the slower of both counts; where no such hosts are described, they have
    the NICs of workers.
    """
    rates: dict[str, list[float]] = {"worker": [], "server": []}
    for group in machine.groups:
        nic = group.node.nic
        rates[group.role].append(2 * nic.count * nic.bandwidth * nic.transport.total_efficiency)
    worker = min(rates["worker"])
    server = min(rates["server"], default=worker)
    return {"NCS": min(worker, server), "NCC": server, "CC": worker, "CS": worker}
