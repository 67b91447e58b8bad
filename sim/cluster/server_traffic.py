"""What load do workers and parameter servers put on links between switches? Each worker's streams to all servers outside its group.

A group of nodes (a leaf, a pod) has R of the job's W workers and s of its S servers below it. If each worker sends one stream to each
server, the group's links carry::

    up      R (S - s)          from its workers to servers of other groups
    down    (W - R) s          from workers of other groups to its servers

and the reverse when servers answer. If all servers carry equal load, each one counts for an equal part of the total. Hosts of role
``server`` are numbered after all workers. Limits: switches form a tree without rails; if the capacity of a link is specified as a ratio
of the NICs' bandwidth, a stream loads it as much as a worker's NIC.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from sim.cluster.build import Placement, Serving
from sim.cluster.fabric import Port, job_fabric
from sim.spec.hardware import Hardware


class Hosts(NamedTuple):
    """Node numbers of the job's workers, one per rank, and of its servers, in order."""

    workers: tuple[int, ...]
    servers: tuple[int, ...]

    @property
    def node_lists(self) -> list[list[int]]:
        """Return the node lists that tell groups of nodes apart: all hosts, the workers, and each server."""
        return [sorted({*self.workers, *self.servers}), list(self.workers), *([server] for server in self.servers)]


def hosts_of(hardware: Hardware, placement: Sequence[Placement], serving: Serving) -> Hosts:
    """Return the hosts of a job with servers."""
    workers = tuple(part.node for part in placement for _ in part.gpus)
    if serving.colocated:
        return Hosts(workers, tuple(part.node for part in placement[: serving.servers]))
    first = sum(group.count for group in hardware.worker_groups)
    return Hosts(workers, tuple(range(first, first + serving.servers)))


class HostPort(NamedTuple):
    """One port, with the number of workers and the numbers of the servers below it."""

    port: Port
    workers: int
    servers: tuple[int, ...]

    def streams(self, of_all: Hosts, server: int, outward: bool) -> tuple[float, float]:
        """Return the streams up and down if each worker sends one to *server* (-1: to each server), or receives one from it."""
        all_servers = len(of_all.servers) if server < 0 else 1
        servers_below = len(self.servers) if server < 0 else int(server in self.servers)
        sent, received = self.workers * (all_servers - servers_below), (len(of_all.workers) - self.workers) * servers_below
        return (float(sent), float(received)) if outward else (float(received), float(sent))


class ServerFabric(NamedTuple):
    """The fabric as the traffic of one job with servers crosses it."""

    hosts: Hosts = Hosts((), ())
    ports: tuple[HostPort, ...] = ()

    @property
    def capacities(self) -> dict[str, float]:
        """Return the capacity (bytes/s) of every live resource."""
        return {f"{host_port.port.name}.{side}": host_port.port.capacity for host_port in self.ports for side in ("up", "down")}

    @property
    def descriptions(self) -> dict[str, str]:
        """Return a description of every live resource."""
        return {f"{host_port.port.name}.{side}": host_port.port.description for host_port in self.ports for side in ("up", "down")}

    def load(self, server: int, outward: bool, weight: float, equal_servers: int = 0) -> dict[str, float]:
        """Return the load on each live resource of one byte between each worker and *server*; *weight* is its load on a NIC.

        A *server* of -1 means all servers, or the share of *equal_servers* of them if that is not 0.
        """
        part = equal_servers / len(self.hosts.servers) if equal_servers and self.ports else 1.0
        load: dict[str, float] = {}
        for host_port in self.ports:
            for side, streams in zip(("up", "down"), host_port.streams(self.hosts, server, outward), strict=True):
                if streams:
                    load[f"{host_port.port.name}.{side}"] = part * streams * (weight if host_port.port.relative else 1.0)
        return load


UNLIMITED = ServerFabric()
"""For hosts that the fabric does not limit."""


def server_fabric(hardware: Hardware, lists: Sequence[Sequence[int]], job: int, hosts: Hosts, fold: bool) -> ServerFabric:
    """Return the ports that a job with servers uses.

    *lists* are the node lists of all jobs; those of *hosts* (`Hosts.node_lists`) begin at index *job*.
    """
    fabric = job_fabric(hardware, lists, job, fold)
    ports = []
    for port in fabric.ports:
        workers = sum(node in port.nodes for node in hosts.workers)
        ports.append(HostPort(port, workers, tuple(number for number, node in enumerate(hosts.servers) if node in port.nodes)))
    return ServerFabric(hosts, tuple(ports))
