"""Which few numbers of a cluster's network are fitted to its measurements? Log factors on its transport classes' constants.

A fit multiplies described constants by factors ``exp(x)``, so ``x = 0`` is the prediction before any measurement of the cluster. Each
transport class in use has a factor on its efficiency (including the cap of a flow) and on its latency per step. The NIC's class also has
one on the share of the line that all flows reach together, and one for the loss of a ring of two nodes, whose two directions join the same
pair of hosts. If data is copied from socket to socket, the limit of these copies has a factor, which runs inside a socket cannot determine.
Further factors are on the launch cost of a collective, the spread of ranks, and the slowdown of compute on several GPUs. The prior of each
``x`` is normal around 0; its width, the variation of systems of one class in public tables, is in `calibration.clusters.priors`. If no
limit between sockets is described, a fit may find one below the bandwidth that NCCL assumes for the socket link.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from calibration.clusters.priors import prior, priors
from calibration.questions import RunQuestion
from sim.cluster.build import slots
from sim.cluster.node_links import SOCKET_COPIES
from sim.spec.hardware import Hardware, Node, Transport
from sim.spec.stack import ServerExchange
from sim.spec.transport import CHANNEL_RATES
from sim.training.collectives.price.collective_plan import CollectivePlan, plan_collectives
from sim.training.job import job_slots

WIDTHS: Final[Mapping[str, float]] = {name: each.value for name, each in priors("network").items()}
"""Prior widths by constant."""

AS_DESCRIBED: Final = ""
STAGED: Final = "through host memory"
"""GPUs of a node do not access each other's memory, whatever is described: all their traffic is staged in host memory."""
LOOPBACK: Final = "out of the NIC and back"
"""Each GPU has its own container, and reaches the others of its node over the NIC."""
BRIDGED: Final = "over NVLink bridges"
"""Boards are joined in pairs by NVLink bridges, which the description does not mention."""
_NAMES: Final = {STAGED: "staged", LOOPBACK: "loopback", BRIDGED: "bridged"}
LOG_ODDS_AGAINST: Final[Mapping[str, float]] = {AS_DESCRIBED: 0.0, **{path: prior("doubt", name) for path, name in _NAMES.items()}}
"""Log odds against each path that traffic may take inside a node."""
_CHANGES: Final[Mapping[str, Mapping[str, object]]] = {
    STAGED: {"nvlink": None, "bridged": False, "peer_to_peer": "none"},
    LOOPBACK: {"isolated": "nic"},
    BRIDGED: {"bridged": True},
}

NIC: Final = "nic"
SOCKETS: Final = "sockets"
"""The place of the limit on copies from one socket's memory to the other's."""
EVERYWHERE: Final = ""
"""The place of a parameter that belongs to no transport class."""


DISTRIBUTED: Final = "distributed"
"""Ratio of layer times on several GPUs to those on a single GPU, relative to the usual ratio, if only the latter were measured."""
USUAL_SLOWDOWN: Final = prior("compute", "usual loss")
"""Logarithm of the usual ratio."""


class NetworkParameter(NamedTuple):
    """One log factor: where in a node it acts, on which constant, and the standard deviation of its prior."""

    place: str
    """Field of the node that holds the transport class, ``nic`` for the NIC's; empty for a parameter that acts everywhere."""
    constant: str
    width: float

    @property
    def name(self) -> str:
        """Return a name for tables."""
        return f"{self.place} {self.constant}".strip().replace("_", " ")


NetworkFactors = tuple[tuple[NetworkParameter, float], ...]
"""Parameters with their log factors; an empty tuple is the center of the prior."""


def path_factors(path: str) -> NetworkFactors:
    """Return the factors that make traffic take the path *path* inside a node."""
    return () if path == AS_DESCRIBED else ((NetworkParameter(EVERYWHERE, path, 1.0), 1.0),)


def alternative_paths(questions: Iterable[RunQuestion]) -> list[str]:
    """Return the paths other than the described one that traffic of *questions* may take inside a node.

    Only runs on one node are considered: in any other, the network between nodes may be the bottleneck.
    """
    one_node = [question for question in questions if question.nodes == 1 and question.job.ranks > 1]
    return [path for path, change in _CHANGES.items() if any(_differs(question, change) for question in one_node)]


def _differs(question: RunQuestion, change: Mapping[str, object]) -> bool:
    node = question.hardware.groups[0].node
    if change.get("bridged") and (node.gpu.bridge is None or node.nvlink is not None):
        return False
    return any(getattr(node.topology, key) != value for key, value in change.items())


def parameters_of(questions: Sequence[RunQuestion], path: str = AS_DESCRIBED) -> tuple[NetworkParameter, ...]:
    """Return the parameters that affect the step times of *questions*, runs on one cluster, if traffic takes the path *path*."""
    parameters: dict[tuple[str, str], NetworkParameter] = {}
    for question in questions:
        for place, transport in _transports_met(question, with_factors(question, path_factors(path))):
            for parameter in _transport_parameters(place, transport, question.nodes):
                before = parameters.get((place, parameter.constant), parameter)
                parameters[place, parameter.constant] = min(before, parameter)  # the narrower of two widths
    if not parameters:
        return ()
    if any(_crosses_sockets(question, with_factors(question, path_factors(path))) for question in questions):
        parameters[SOCKETS, "efficiency"] = NetworkParameter(SOCKETS, "efficiency", WIDTHS["efficiency, sockets"])
    everywhere = (NetworkParameter(EVERYWHERE, constant, WIDTHS[constant]) for constant in ("launch", "spread", DISTRIBUTED))
    return (*sorted(parameters.values()), *everywhere)


def affects(parameter: NetworkParameter, question: RunQuestion, used: frozenset[str]) -> bool:
    """Return whether the step of *question*, whose collectives use the places *used*, can depend on *parameter*."""
    stack = question.workload.training.stack
    if isinstance(stack.exchange, ServerExchange) or stack.library.backend == "gloo":
        return True
    if parameter.constant == "pair" and question.nodes != 2:
        return False
    return question.job.ranks > 1 and (parameter.place == EVERYWHERE or parameter.place in used)


def places_used(question: RunQuestion, path: str) -> frozenset[str]:
    """Return the places of parameters that collectives of *question* use if traffic takes the path *path*."""
    hardware = with_factors(question, path_factors(path))
    used = frozenset(place for place, _ in _transports_met(question, hardware, copies=True))
    return used | {SOCKETS} if _crosses_sockets(question, hardware) else used


def _transport_parameters(place: str, transport: Transport, nodes: int) -> list[NetworkParameter]:
    kind = "efficiency"
    if place == NIC:
        kind += ", TCP" if transport.flow_cap else ", NIC"
    elif place == "host_transport":
        kind += ", host" if nodes == 1 else ", copies"
    parameters = [NetworkParameter(place, "efficiency", WIDTHS[kind]), NetworkParameter(place, "latency", WIDTHS["latency"])]
    if place == NIC:
        parameters.append(NetworkParameter(place, "total", WIDTHS["total"]))
        parameters += [NetworkParameter(place, "pair", WIDTHS["pair"])] if nodes == 2 and transport.flow_cap else []
    return parameters


def _transports_met(question: RunQuestion, hardware: Hardware, copies: bool = False) -> list[tuple[str, Transport]]:
    """Return the transport classes that rings of *question* cross on *hardware*, with the fields of the nodes that hold them.

    *copies* adds the class of copies that feed a NIC. Runs between nodes cannot distinguish it from the NIC's own, so they do not fit it.
    """
    if question.job.ranks < 2:
        return []
    plan = _plan(question, hardware)
    crossed = {transport.name for part in plan.parts for transport in part.channels.transports}
    if copies:
        crossed |= {transport.name for part in plan.parts for transport in part.channels.copies}
    nodes = {id(part.slot.node): part.slot.node for part in plan.parts}.values()
    return [each for node in nodes for each in transports(node) if each[1].name in crossed]


def _plan(question: RunQuestion, hardware: Hardware) -> CollectivePlan:
    """Return the plan of the collectives of *question* on *hardware*."""
    return plan_collectives(job_slots(0, slots(hardware, [question.job.placement])), hardware.fabric)


def _crosses_sockets(question: RunQuestion, hardware: Hardware) -> bool:
    """Return whether rings of *question* on *hardware* copy from socket to socket through host memory."""
    if question.job.ranks < 2 or all(len(group.node.topology.sockets) < 2 for group in hardware.groups):
        return False
    plan = _plan(question, _with_socket_limit(hardware))
    links = {link for part in plan.parts for channel in part.channels.channels for hop in channel.hops for link in hop.links}
    return any(SOCKET_COPIES.fullmatch(link) for link in links)


def _with_socket_limit(hardware: Hardware) -> Hardware:
    """Return *hardware* with a limit on copies between sockets: the described one, or else the one that NCCL assumes."""
    limited: dict[int, Node] = {}
    groups = []
    for group in hardware.groups:
        topology = group.node.topology
        limit = topology.model_copy(update={"socket_copy_bandwidth": topology.socket_copy_bandwidth or _socket_bandwidth(group.node)})
        node = limited.setdefault(id(group.node), group.node.model_copy(update={"topology": limit}))
        groups.append(group.model_copy(update={"node": node}))
    return hardware.model_copy(update={"groups": tuple(groups)})


def _socket_bandwidth(node: Node) -> float:
    """Return the bandwidth that NCCL assumes for the socket link of *node* in one direction, but at most what the link delivers."""
    link = node.host.cpu.socket_link
    return min(link.nccl_bandwidth or math.inf, link.bandwidth * link.efficiency)


def transports(node: Node) -> list[tuple[str, Transport]]:
    """Return the transport classes of *node* with the fields that hold them."""
    return [*node.transports.items(), (NIC, node.nic.transport)]


def with_factors(question: RunQuestion, factors: NetworkFactors) -> Hardware:
    """Return the hardware of *question* with its constants changed by *factors*."""
    if not factors:
        return question.hardware
    moves = {(parameter.place, parameter.constant): value for parameter, value in factors}
    if question.nodes != 2:
        moves.pop((NIC, "pair"), None)
    moved: dict[int, Node] = {}  # equal nodes stay one object, so that the simulator can fold them
    groups = []
    for group in question.hardware.groups:
        node = moved.setdefault(id(group.node), moved_node(group.node, moves))
        groups.append(group.model_copy(update={"node": node}))
    return question.hardware.model_copy(update={"groups": tuple(groups)})


def moved_node(node: Node, moves: Mapping[tuple[str, str], float]) -> Node:
    """Return *node* with its constants changed by *moves*, log factors by place and constant."""
    launch = moves.get((EVERYWHERE, "launch"), 0.0)
    changed: dict[str, object] = {
        place: _moved_transport(transport, {constant: value for (where, constant), value in moves.items() if where == place}, launch)
        for place, transport in transports(node)
    }
    changed["nic"] = node.nic.model_copy(update={"transport": changed.pop(NIC)})
    topology = dict(_socket_copies(node, moves))
    for path, change in _CHANGES.items():
        if (EVERYWHERE, path) in moves:
            topology |= change
    if topology:
        changed["topology"] = node.topology.model_copy(update=topology)
    if (spread := moves.get((EVERYWHERE, "spread"), 0.0)) != 0.0:
        changed["gpu"] = node.gpu.model_copy(update={"compute_cv": min(0.5, node.gpu.compute_cv * math.exp(spread))})
    return node.model_copy(update=changed)


def _socket_copies(node: Node, moves: Mapping[tuple[str, str], float]) -> dict[str, object]:
    """Return the changed limit on copies from socket to socket: a rate of its own, unaffected by changes of the copies' efficiency."""
    described, between = node.topology.socket_copy_bandwidth, moves.get((SOCKETS, "efficiency"), 0.0)
    if described is None and between >= 0.0:
        return {}
    (_, share) = node.host_transport.efficiency[-1]
    moved = share * math.exp(moves.get(("host_transport", "efficiency"), 0.0))
    factor = math.exp(between) * min(1.0, share) / min(1.0, moved)
    limit = described or _socket_bandwidth(node)
    return {} if factor == 1.0 else {"socket_copy_bandwidth": limit * factor}


def _moved_transport(transport: Transport, moves: Mapping[str, float], launch: float) -> Transport:
    latency = math.exp(moves.get("latency", 0.0))
    efficiency = math.exp(moves.get("efficiency", 0.0) + moves.get("pair", 0.0))
    return transport.model_copy(
        update={
            "efficiency": tuple((size, share * efficiency) for size, share in transport.efficiency),
            **{name: _scaled(getattr(transport, name), latency) for name in ("hop_latency", "hop_latency_ll")},
            **{name: _scaled(getattr(transport, name), efficiency) for name in CHANNEL_RATES},
            "launch": transport.launch * math.exp(launch),
            "total_efficiency": min(1.0, transport.total_efficiency * math.exp(moves.get("total", 0.0))),
        }
    )


def _scaled(value: float | None, factor: float) -> float | None:
    return None if value is None else value * factor
