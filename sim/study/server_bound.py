"""How much bandwidth does a host need so that parameter servers cost no time? PHub's bound by placement, and the available ports.

A worker's gradients and the new values must be transferred while it computes: NCS 2M/T, NCC 2NM/T, CC 2(N-1)M/T and CS 4(N-1)/N M/T
bytes/s in and out together, for N workers, a model of M bytes and T seconds of compute (Luo et al., arXiv:1805.07891, section 2).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple, get_args

from sim.check import check_hardware, require
from sim.cluster.build import with_nodes
from sim.spec.hardware import Hardware
from sim.spec.library import load_hardware
from sim.study.arguments import quantity

ServerPlacement = Literal["NCS", "NCC", "CC", "CS"]
"""PHub's names: (non-)colocated and sharded over as many servers as workers, or one central server."""

PLACEMENTS: tuple[ServerPlacement, ...] = get_args(ServerPlacement)


class HostBytes(NamedTuple):
    """Bytes that a host sends in one exchange; it receives the same number."""

    worker: float
    """On a host with a worker and no server; 0 if there is none."""
    server: float
    """On a host with a server, and also a worker if colocated."""


class BoundRow(NamedTuple):
    """One model size (bytes), and the bandwidth that the busiest host needs by placement, bytes/s in and out together."""

    nbytes: int
    needed_bandwidth: Mapping[ServerPlacement, float]


class BoundTable(NamedTuple):
    """All sizes on one machine; *port_bandwidth* is the port bandwidth of the busiest host by placement, bytes/s in and out together."""

    hardware: str
    workers: int
    compute_time: float
    port_bandwidth: Mapping[ServerPlacement, float]
    rows: tuple[BoundRow, ...]
    machine: Hardware
    inputs: Mapping[str, str]
    """SHA-256 of the description."""


def bound_table(
    hardware: str, sizes: Sequence[int], compute_time: str, *, nodes: int | None = None, overrides: Sequence[str] = ()
) -> BoundTable:
    """Return the bandwidth that hosts need for models of *sizes* (bytes) that compute for *compute_time* on each of *nodes* workers."""
    time = quantity(compute_time, "time", "--compute-time", usual="100 ms")
    loaded = load_hardware(hardware, overrides)
    machine = loaded.spec if nodes is None else with_nodes(loaded.spec, nodes)
    require(check_hardware(machine, loaded.document))
    workers, there = machine.worker_nodes, ports(machine)
    rows = tuple(BoundRow(size, {name: bandwidth_bound(name, workers, size, time) for name in PLACEMENTS}) for size in sizes)
    return BoundTable(machine.name, workers, time, there, rows, machine, {"hardware": loaded.sha256})


def ports(machine: Hardware) -> dict[ServerPlacement, float]:
    """Return the port bandwidth of the busiest host by placement, bytes/s in and out together: that of the slowest host of its kind.

    Servers on separate hosts push as much as workers do, so the slower of the two counts; if no such hosts are described, they have the
    NICs of workers.
    """
    rates: dict[str, list[float]] = {"worker": [], "server": []}
    for group in machine.groups:
        nic = group.node.nic
        rates[group.role].append(2 * nic.count * nic.bandwidth * nic.transport.total_efficiency)
    worker = min(rates["worker"])
    server = min(rates["server"], default=worker)
    return {"NCS": min(worker, server), "NCC": server, "CC": worker, "CS": worker}


def bandwidth_bound(placement: ServerPlacement, workers: int, nbytes: float, compute_time: float) -> float:
    """Return the bytes/s, in and out together, that the busiest host needs to hide the exchange of *nbytes* behind *compute_time* (s).

    With N workers, M the model and T the compute time: NCS 2M/T, NCC 2NM/T, CC 2(N-1)M/T, CS 4(N-1)/N M/T.
    """
    if placement not in PLACEMENTS:
        raise ValueError(f"placement must be one of {', '.join(PLACEMENTS)}, not {placement}")
    if not compute_time > 0:
        raise ValueError(f"compute_time must be above 0, not {compute_time} s")
    if not 0 < nbytes < math.inf:
        raise ValueError(f"nbytes must be finite and above 0, not {nbytes}")
    servers = workers if placement.endswith("S") else 1
    return 2 * max(host_bytes(workers, servers, nbytes, placement in ("CC", "CS"))) / compute_time


def host_bytes(workers: int, servers: int, nbytes: float, colocated: bool) -> HostBytes:
    """Return the bytes that hosts send in one exchange of *nbytes* between *workers* and *servers*."""
    _check_hosts(workers, servers, colocated)
    if not colocated:
        return HostBytes(nbytes, workers / servers * nbytes)
    return HostBytes(nbytes if servers < workers else 0.0, (workers + servers - 2) / servers * nbytes)


def _check_hosts(workers: int, servers: int, colocated: bool) -> None:
    if workers < 1 or servers < 1:
        raise ValueError(f"an exchange needs at least one worker and one server, not {workers} and {servers}")
    if colocated and servers > workers:
        raise ValueError(f"{servers} colocated servers do not fit on {workers} worker hosts: use at most {workers}, or separate hosts")
