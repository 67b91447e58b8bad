"""Which links does a node have, and what is attached to what? Every port, uplink, NVLink, socket link, DRAM and NIC, checked.

The capacity of a link is its bandwidth times the share of it that a large copy reaches.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, Literal, NamedTuple

from sim.spec.hardware import Link, Node, Topology
from sim.spec.yaml import SpecError
from sim.units import pluralized

Tier = Literal["interconnect", "network"]

SOCKET_COPIES: Final = re.compile(r"copies\d+to\d+")
"""Names of links that limit copies from one socket to the memory of another."""
_RESERVED = re.compile(rf"(gpu|nic|socket|dram|bridge)\d+|{SOCKET_COPIES.pattern}|copies|nvswitch|net|.*>.*")

_FABRIC_LINKS: Final = {"xgmi": "Infinity Fabric link", "ici": "ICI link"}
"""Names of links between GPUs that are not NVLinks, by the beginning of the catalog's name."""


class TopologyError(SpecError):
    """A link graph on which some device cannot be reached."""


class NodeLink(NamedTuple):
    """One direction of a physical link, or a shared resource; *capacity* is the bytes/s that it delivers."""

    name: str
    capacity: float
    tier: Tier
    description: str


def links_of(node: Node, parents: Mapping[str, str]) -> list[NodeLink]:
    """Return every link of *node*; *parents* maps each device and switch to the one it is attached to."""
    return [*_nvlink_links(node), *_pcie_links(node, parents), *_socket_links(node), *_nic_links(node)]


def parents_of(node: Node) -> dict[str, str]:
    """Return the switch or socket that each device and switch is attached to, after checking that each has exactly one."""
    topology = node.topology
    parents: dict[str, str] = {}
    for index, socket in enumerate(topology.sockets):
        _attach(parents, f"socket{index}", socket.gpus, socket.nics)
    for switch in topology.switches:
        if switch.name in parents or _RESERVED.fullmatch(switch.name):
            raise TopologyError(
                f"topology.switches: the name '{switch.name}' is already used; every switch needs a unique name, for example plx0"
            )
        parents[switch.name] = switch.parent
        _attach(parents, switch.name, switch.gpus, switch.nics)
    _check_devices(node, parents)
    _check_switches(topology, parents)
    _check_pairs(node)
    return parents


def _attach(parents: dict[str, str], holder: str, gpus: tuple[int, ...], nics: tuple[int, ...]) -> None:
    for name in (*(f"gpu{gpu}" for gpu in gpus), *(f"nic{nic}" for nic in nics)):
        if name in parents:
            raise TopologyError(f"topology: {name} is attached to both {parents[name]} and {holder}; it has only one PCIe port")
        parents[name] = holder


def _check_devices(node: Node, parents: Mapping[str, str]) -> None:
    expected = {f"gpu{gpu}" for gpu in range(node.gpu_count)} | {f"nic{nic}" for nic in range(node.nic.count)}
    switches = {switch.name for switch in node.topology.switches}
    missing = sorted(expected - set(parents))
    if missing:
        raise TopologyError(
            f"topology: {', '.join(missing)} is attached to no socket or switch; list it under topology.sockets or .switches"
        )
    surplus = sorted(set(parents) - switches - expected)
    if surplus:
        held = f"the node has {pluralized(node.gpu_count, 'GPU')} and {pluralized(node.nic.count, 'NIC')}"
        raise TopologyError(f"topology: no such device: {', '.join(surplus)}; {held}")


def _check_switches(topology: Topology, parents: Mapping[str, str]) -> None:
    sockets = {f"socket{index}" for index in range(len(topology.sockets))}
    for switch in topology.switches:
        above = switch.parent
        for _ in topology.switches:
            above = parents.get(above, above)
        if above not in sockets:
            raise TopologyError(
                f"topology.switches: '{switch.name}' leads to '{above}', which is not a socket; a parent is another switch or "
                f"one of {', '.join(sorted(sockets))}"
            )


def _check_pairs(node: Node) -> None:
    seen: set[frozenset[str]] = set()
    for pair in node.topology.nvlink.pairs if node.topology.nvlink else ():
        ends = pair.split("-")
        gpus = [end for end in ends if end.isdigit() and int(end) < node.gpu_count]
        if len(gpus) != 2 or len(set(ends)) != 2:
            raise TopologyError(
                f"topology.nvlink.pairs: '{pair}' is not a pair of GPUs; write, for example, 0-1, with GPUs 0..{node.gpu_count - 1}"
            )
        if frozenset(ends) in seen:
            raise TopologyError(f"topology.nvlink.pairs: '{pair}' is given twice; one entry counts for both directions")
        seen.add(frozenset(ends))


def _two_way(one: str, other: str, capacity: float, tier: Tier, description: str) -> list[NodeLink]:
    return [NodeLink(f"{one}>{other}", capacity, tier, description), NodeLink(f"{other}>{one}", capacity, tier, description)]


def _delivered(link: Link) -> float:
    return link.bandwidth * link.efficiency


def fabric_link(link: Link) -> str:
    """Return what the vendor calls *link* between two GPUs: an NVLink, an Infinity Fabric link or a link of TPUs' interconnect."""
    return next((name for prefix, name in _FABRIC_LINKS.items() if link.name.startswith(prefix)), "NVLink")


def _nvlink_links(node: Node) -> list[NodeLink]:
    nvlink = node.nvlink
    if nvlink is None:
        return []
    links: list[NodeLink] = []
    noun = fabric_link(nvlink.link)
    for pair, count in nvlink.pairs.items():
        one, other = pair.split("-")
        count_text = {1: f"single {noun}", 2: f"double {noun}"}.get(count, f"{count} {noun}s")
        links += _two_way(f"gpu{one}", f"gpu{other}", count * _delivered(nvlink.link), "interconnect", f"{count_text} GPU{one}-GPU{other}")
    for gpu in range(node.gpu_count) if nvlink.switch_links else ():
        capacity = nvlink.switch_links * _delivered(nvlink.link)
        links += _two_way(f"gpu{gpu}", "nvswitch", capacity, "interconnect", f"{nvlink.switch_links} {noun}s GPU{gpu}-NVSwitch")
    return links


def _pcie_links(node: Node, parents: Mapping[str, str]) -> list[NodeLink]:
    own = {switch.name: switch.link for switch in node.topology.switches if switch.link}
    links: list[NodeLink] = []
    for device, holder in parents.items():
        is_switch = _RESERVED.fullmatch(device) is None
        kind = own.get(device if is_switch else holder) or node.topology.pcie
        what = f"PCIe uplink of {device}" if is_switch else f"PCIe port of {device.upper()}"
        links += _two_way(device, holder, _delivered(kind), "interconnect", what)
    return links


def _socket_links(node: Node) -> list[NodeLink]:
    count = len(node.topology.sockets)
    cpu = node.host.cpu
    memory = cpu.memory_bandwidth * node.host.sockets / count  # several NUMA nodes may share one socket's channels
    links: list[NodeLink] = []
    for index in range(count):
        links.append(NodeLink(f"dram{index}", memory, "interconnect", f"host memory of socket {index}"))
        if node.topology.host_bridge_bandwidth:
            links.append(NodeLink(f"bridge{index}", node.topology.host_bridge_bandwidth, "interconnect", f"host bridge of socket {index}"))
        for other in range(index):
            between = f"socket link {cpu.socket_link.name} {other}-{index}"
            links += _two_way(f"socket{other}", f"socket{index}", _delivered(cpu.socket_link), "interconnect", between)
            links += [_copies(node.topology, *pair) for pair in ((other, index), (index, other)) if node.topology.socket_copy_bandwidth]
    if node.topology.host_copy_bandwidth:
        links.append(NodeLink("copies", node.topology.host_copy_bandwidth, "interconnect", "all copies through host memory"))
    return links


def _copies(topology: Topology, src: int, dst: int) -> NodeLink:
    what = f"copies from socket {src} to the memory of socket {dst}"
    return NodeLink(f"copies{src}to{dst}", topology.socket_copy_bandwidth or 0.0, "interconnect", what)


def _nic_links(node: Node) -> list[NodeLink]:
    nic = node.nic
    capacity = nic.bandwidth * nic.transport.total_efficiency
    links: list[NodeLink] = []
    for index in range(nic.count):
        links += _two_way(f"nic{index}", "net", capacity, "network", f"NIC {index}, {nic.bandwidth * 8e-9:g} Gbps")
    return links
