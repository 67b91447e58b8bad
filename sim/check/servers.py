"""Can this job exchange through parameter servers? Checks for hosts to run them, and for options that they support."""

from __future__ import annotations

from collections.abc import Iterator

from sim.check.topology import Problem
from sim.spec.hardware import Hardware
from sim.spec.servers import Servers
from sim.spec.stack import AsyncParameterServer, ServerExchange
from sim.spec.workload import Workload

_STACK = ("training", "stack")


def check_servers(hardware: Hardware, workload: Workload) -> Iterator[Problem]:
    """Yield why *workload* cannot use its parameter servers on *hardware*."""
    stack, exchange = workload.training.stack, workload.training.stack.exchange
    if not isinstance(exchange, ServerExchange):
        return
    yield from _fabric(hardware, exchange)
    yield from _hosts(hardware, exchange.servers)
    yield from _racks(hardware, exchange)
    for option in ("nccl_algo", "nccl_proto", "channels"):
        if getattr(stack.library, option) is not None:
            yield (*_STACK, option), f"is an NCCL option, but {exchange.strategy} has no all-reduces; leave it out"
    if stack.library.backend != "nccl":
        yield (*_STACK, "backend"), f"'{stack.library.backend}' runs all-reduces; {exchange.strategy} has none, so leave it out"
    if stack.update.gradient_clipping:
        yield (
            (*_STACK, "gradient_clipping"),
            ("needs the norm of the full summed gradient, but each parameter server holds only a part; write false"),
        )
    if isinstance(exchange, AsyncParameterServer):
        yield from _asynchronous(workload)


def _fabric(hardware: Hardware, exchange: ServerExchange) -> Iterator[Problem]:
    """Check that the fabric between workers and servers is modeled."""
    fabric, key = hardware.fabric, (*_STACK, "strategy")
    spec = fabric.leaf_spine
    if fabric.dragonfly or fabric.torus or (spec and spec.rails):
        what = "rails" if spec else "a dragonfly" if fabric.dragonfly else "a torus"
        yield (
            key,
            f"{exchange.strategy} is not modeled on {what}; write fabric.leaf_spine without rails, or use a stack with all-reduces",
        )
    elif fabric.switches and isinstance(exchange, AsyncParameterServer):
        yield key, f"{exchange.strategy} is not modeled across switches; write parameter_server, or fabric.core_bandwidth instead"
    elif spec and exchange.servers.racks > 1:
        yield (
            (*_STACK, "servers", "racks"),
            f"{exchange.servers.racks} racks cannot be combined with fabric.leaf_spine, which defines its own racks; write 1",
        )
    elif spec and spec.uplink_bandwidth is None and exchange.servers.placement == "group":
        nics = {(group.node.nic.count, group.node.nic.bandwidth) for group in hardware.groups}
        if len(nics) > 1:
            leaf = ("fabric", "leaf_spine", "oversubscription")
            yield leaf, "is relative to the NICs, but servers and workers have different ones; write uplink_bandwidth instead"


def _workers(hardware: Hardware) -> int:
    return sum(group.count for group in hardware.worker_groups)


def _hosts(hardware: Hardware, servers: Servers) -> Iterator[Problem]:
    key = (*_STACK, "servers", "count")
    hosts = sum(group.count for group in hardware.groups if group.role == "server")
    if servers.placement == "colocated" and servers.count > (workers := _workers(hardware)):
        yield (
            key,
            (f"{servers.count} colocated servers need one worker node each, but {hardware.name} has {workers}; write at most {workers}"),
        )
    elif servers.placement == "group" and not hosts:
        yield (
            (*_STACK, "servers", "placement"),
            f"{hardware.name} has no group of role 'server' for the servers; add one, or write placement: colocated",
        )
    elif servers.placement == "group" and servers.count > hosts:
        yield key, f"{servers.count} servers need one host of role 'server' each, but {hardware.name} has {hosts}; write at most {hosts}"


def _racks(hardware: Hardware, exchange: ServerExchange) -> Iterator[Problem]:
    servers = exchange.servers
    racks, key = servers.racks, (*_STACK, "servers", "racks")
    if racks == 1:
        return
    if servers.sharding != "chunks" or servers.placement != "group" or isinstance(exchange, AsyncParameterServer):
        yield key, f"{racks} racks need strategy parameter_server, sharding: chunks and placement: group; write them, or racks: 1"
    elif servers.count % racks or _workers(hardware) % racks:
        yield (
            key,
            f"{servers.count} servers and {_workers(hardware)} worker nodes do not divide over {racks} racks; write a divisor",
        )


def _asynchronous(workload: Workload) -> Iterator[Problem]:
    training = workload.training
    if training.gradient_accumulation_steps > 1:
        yield (
            ("training", "gradient_accumulation_steps"),
            f"{training.gradient_accumulation_steps} micro-batches: asynchronous workers push after each one; write 1, or strategy: "
            "parameter_server",
        )
