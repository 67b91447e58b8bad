"""What do workers and parameter servers put on the links between switches? Every worker's stream to every server beyond its group.

A group of nodes (a leaf, a pod) has R of the job's W workers and s of a site's S servers below it. Where each worker sends each server
one stream, of these cross the group's links::

    up      R (S - s)          from its workers to servers of other groups
    down    (W - R) s          from workers of other groups to its servers

and the other way round where servers answer; of servers that all carry the same each has its part of what all put there. Hosts of
role server have the places after all workers. Limits: switches in a tree without rails; a link whose capacity is a ratio of the NICs'
carries what workers' NICs cannot use as well.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from sim.cluster.build import Placement, Serving
from sim.cluster.fabric import Port, crossed
from sim.spec.hardware import Hardware


class Hosts(NamedTuple):
    """Where the job's workers and servers are: node numbers, one for each worker, and those of each server in its order."""

    workers: tuple[int, ...]
    servers: tuple[int, ...]

    @property
    def lists(self) -> list[list[int]]:
        """Return what tells groups apart: all hosts, its workers, and each server."""
        return [sorted({*self.workers, *self.servers}), list(self.workers), *([server] for server in self.servers)]


def hosts_of(hardware: Hardware, placement: Sequence[Placement], serving: Serving) -> Hosts:
    """Return the hosts of a job with servers."""
    workers = tuple(part.node for part in placement for _ in part.gpus)
    if serving.colocated:
        return Hosts(workers, tuple(part.node for part in placement[: serving.servers]))
    first = sum(group.count for group in hardware.groups if group.role == "worker" and group.node.gpu_count)
    return Hosts(workers, tuple(range(first, first + serving.servers)))


class HostWay(NamedTuple):
    """One port, and who is below it: workers, and servers by number."""

    port: Port
    workers: int
    servers: tuple[int, ...]

    def streams(self, of_all: Hosts, server: int, outward: bool) -> tuple[float, float]:
        """Return the streams up and down where each worker sends one to *server* (-1: to each of all), or gets one from it."""
        there = len(of_all.servers) if server < 0 else 1
        here = len(self.servers) if server < 0 else int(server in self.servers)
        sent, received = self.workers * (there - here), (len(of_all.workers) - self.workers) * here
        return (float(sent), float(received)) if outward else (float(received), float(sent))


class Ways(NamedTuple):
    """The fabric as the traffic of one job with servers crosses it."""

    hosts: Hosts = Hosts((), ())
    ways: tuple[HostWay, ...] = ()

    @property
    def capacities(self) -> dict[str, float]:
        """Return the capacity (bytes/s) of every live resource."""
        return {f"{way.port.name}.{side}": way.port.capacity for way in self.ways for side in ("up", "down")}

    @property
    def descriptions(self) -> dict[str, str]:
        """Return what each live resource is."""
        return {f"{way.port.name}.{side}": way.port.description for way in self.ways for side in ("up", "down")}

    def load(self, server: int, outward: bool, weight: float, alike: int = 0) -> dict[str, float]:
        """Return the load of one byte between each worker and *server*; *weight* is what it weighs on a NIC.

        -1 stands for all servers, or for the part of so many *alike* of them.
        """
        part = alike / len(self.hosts.servers) if alike and self.ways else 1.0
        load: dict[str, float] = {}
        for way in self.ways:
            for side, streams in zip(("up", "down"), way.streams(self.hosts, server, outward), strict=True):
                if streams:
                    load[f"{way.port.name}.{side}"] = part * streams * (weight if way.port.relative else 1.0)
        return load


NOWHERE = Ways()
"""Between hosts whom the fabric does not hold back."""


def ways_between(hardware: Hardware, lists: Sequence[Sequence[int]], job: int, hosts: Hosts, fold: bool) -> Ways:
    """Return the ways of the job whose *hosts* stand in *lists*, the node numbers of all jobs, from place *job* on."""
    fabric = crossed(hardware, lists, job, fold)
    ways = []
    for port in fabric.ports:
        workers = sum(node in port.nodes for node in hosts.workers)
        ways.append(HostWay(port, workers, tuple(number for number, node in enumerate(hosts.servers) if node in port.nodes)))
    return Ways(hosts, tuple(ways))
