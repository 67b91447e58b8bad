"""How fast is each channel of a node in NCCL's estimate? The highest speeds of a fixed list at which its rings fit on the link graph.

At a speed s, the rings of `ring_channels` are placed repeatedly in order while every link they cross has s left; C of them fit. The
search tries the fastest speed first. A slower speed wins if its total C s is larger. The search ends at the full rate of a GPU, or when
the next speed is below 49% of the best. Links have NCCL's own rates (``nccl_bandwidth``). A GPU's bytes through an Intel host bridge count
6/5 on PCIe. What a NIC writes to a GPU before sm80 also counts 1/8 in the reverse direction. Fast channels are then doubled, at half the
speed (NVIDIA/nccl `src/graph/search.cc`).
Trees have the same number of channels as rings, and between nodes a higher speed inside the node. Not modeled: NCCL's search for the order
of GPUs (the simulator's order is used, so trees have no shapes of their own); its step budget; NVLink relays.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import islice
from typing import Literal, NamedTuple

from sim.cluster.topology import INTEL_RELAY, PATH_CLASSES, NodeGraph
from sim.training.collectives.nccl import constants as nccl
from sim.training.collectives.nccl.constants import TunerConstants, constants_of
from sim.training.collectives.nccl.cost import GB, ChannelPattern, TunerMachine
from sim.training.collectives.routes.channels import NETWORK, Channel, Channels, Hop, ring_channels

_PXB, _PXN, _PHB = map(PATH_CLASSES.index, ("PXB", "PXN", "PHB"))
_ROUNDING = 1e-3 * GB  # search.cc: the remaining bandwidth of a link is rounded to MB/s


class _HopLoad(NamedTuple):
    """How often one channel crosses each link: on hops inside the node, and on hops from or to the network."""

    inside: dict[str, float]
    outside: dict[str, float]

    def at(self, intra: float, inter: float) -> dict[str, float]:
        """Return the bytes/s on each link."""
        rates = {link: count * intra for link, count in self.inside.items()}
        for link, count in self.outside.items():
            rates[link] = rates.get(link, 0.0) + count * inter
        return rates


def nccl_bandwidth(graph: NodeGraph, gpus: tuple[int, ...], nodes: int = 1, version: str = "2.30") -> ChannelPattern:
    """Return the rings that NCCL finds for *gpus* of each of *nodes* equal nodes: their number, and the assumed bytes/s of each."""
    return nccl_machine(graph, gpus, nodes, version).ring


@lru_cache(maxsize=256)
def nccl_machine(
    graph: NodeGraph, gpus: tuple[int, ...], nodes: int = 1, version: str = "2.30", collnet: ChannelPattern | None = None
) -> TunerMachine:
    """Return the tuner's input for a job on *gpus* of each of *nodes* equal nodes; *collnet* is the reduction in the fabric, if any."""
    constants = constants_of(version)
    rings = ring_channels(graph, gpus, nodes, nccl.relays_to_nics(version))
    rates, speeds = _rates(graph, version), _speeds(constants, capability(graph), nodes)
    loads = [_load(graph, channel) for channel in rings.channels]
    most = constants.max_channels // 2  # src/init.cc; every channel is connected twice
    single = _ring(loads, rates, _gpu_rate(graph, gpus, rates), speeds, most)
    ring = _doubled(single, most, constants, capability(graph))
    return TunerMachine(
        ranks=len(gpus) * nodes,
        nodes=nodes,
        ring=ring,
        tree=_tree(ring, loads, rates, speeds) if nodes > 1 else ring,
        compute_capability=capability(graph),
        intra_path=_intra_path(rings),
        cpu_vendor=graph.node.host.cpu.vendor,
        nic_near=all(_is_direct(hop, capability(graph)) for channel in rings.channels for hop in channel.hops if hop.tier == "network"),
        plugin_latency=graph.node.nic.nccl_plugin_latency,
        same_channels=len({channel.gpus for channel in rings.channels}) == 1,
        nvswitch=graph.switch_links > 0,
        nvls=_nvls(graph, rings, rates, speeds) if "NVLS" in constants.algorithms else None,
        collnet=collnet,
    )


def capability(graph: NodeGraph) -> int:
    """Return ten times the compute capability of the node's GPUs."""
    return round(10 * float(graph.node.gpu.compute_capability))


def _intra_path(rings: Channels) -> Literal["nvlink", "pcie"]:
    classes = {hop.route.path_class for channel in rings.channels for hop in channel.hops if hop.tier != "network"}
    return "nvlink" if classes and classes <= {"NVL", "NVS"} else "pcie"


def _is_direct(hop: Hop, capability: int) -> bool:
    """Return whether *hop* is as near to its NIC as LL128 needs: from sm90 on, also through another GPU (src/graph/tuning.cc)."""
    return not hop.staged and PATH_CLASSES.index(hop.route.path_class) <= (_PXN if capability >= 90 else _PXB)


def _speeds(constants: TunerConstants, capability: int, nodes: int) -> tuple[float, ...]:
    lists = constants.speeds_intra if nodes == 1 else constants.speeds_inter
    return tuple(speed * GB for speed in next(speeds for least, speeds in lists if capability >= least))


# --- links as NCCL models them ---------------------------------------------------------------------------------------


@lru_cache(maxsize=64)
def _rates(graph: NodeGraph, version: str) -> Mapping[str, float]:
    """Return the bytes/s that NCCL *version* assumes for each link; host memory is not among them."""
    constants = constants_of(version)
    nvlink = _nvlink(graph, constants)
    return {link: _rate(graph, constants, nvlink, *link.split(">")) for link in graph.links if ">" in link}


def _rate(graph: NodeGraph, constants: TunerConstants, nvlink: float, one: str, other: str) -> float:
    if "net" in (one, other):
        return graph.node.nic.bandwidth
    if "nvswitch" in (one, other):
        return graph.switch_links * nvlink
    if graph.parents.get(one) == other:
        return _pcie(graph, one, other)
    if graph.parents.get(other) == one:
        return _pcie(graph, other, one)
    if one.startswith("socket"):
        return _socket_link(graph, constants)
    return graph.nvlinks(*(int(gpu.removeprefix("gpu")) for gpu in (one, other))) * nvlink


def _pcie(graph: NodeGraph, below: str, above: str) -> float:
    """Return the rate of a port or an uplink, which is that of the switch's link type if it has one, or else of the node's."""
    links = {switch.name: switch.link or graph.node.topology.pcie for switch in graph.node.topology.switches}
    return (links.get(below) or links.get(above) or graph.node.topology.pcie).nccl_bandwidth


def _nvlink(graph: NodeGraph, constants: TunerConstants) -> float:
    nvlink = graph.node.nvlink
    if nvlink is None:
        return 0.0
    return next((rate * GB for least, rate in constants.nvlink_rates if capability(graph) >= least), nvlink.link.nccl_bandwidth)


def _socket_link(graph: NodeGraph, constants: TunerConstants) -> float:
    cpu = graph.node.host.cpu
    if cpu.vendor == "amd" and constants.amd_link is not None:
        return constants.amd_link * GB
    limit = constants.intel_link_limit * GB if cpu.vendor == "intel" else math.inf
    return min(cpu.socket_link.nccl_bandwidth, limit)


def _load(graph: NodeGraph, channel: Channel) -> _HopLoad:
    inside: dict[str, float] = defaultdict(float)
    outside: dict[str, float] = defaultdict(float)
    for hop in channel.hops:
        counts = outside if hop.tier == "network" else inside
        for link in (link for link in hop.links if ">" in link):
            counts[link] += _weight(graph, hop, link)
        if hop.src == NETWORK and capability(graph) < nccl.READ_BACK_BELOW:
            counts[f"{hop.dst}>{graph.parents[hop.dst]}"] += nccl.READ_BACK
    return _HopLoad(inside, outside)


def _weight(graph: NodeGraph, hop: Hop, link: str) -> float:
    """Return the load of a byte of *hop* on *link*, which is higher on PCIe if an Intel host bridge relays what a GPU sends."""
    path = PATH_CLASSES.index(hop.route.path_class)
    bridged = (max(path, _PHB) if hop.staged else path) == _PHB
    relayed = bridged and hop.src != NETWORK and graph.node.host.cpu.vendor == "intel"
    return INTEL_RELAY if relayed and not link.endswith(">net") else 1.0


# --- the search ------------------------------------------------------------------------------------------------------


def _ring(loads: Sequence[_HopLoad], rates: Mapping[str, float], enough: float, speeds: Sequence[float], most: int) -> ChannelPattern:
    """Return the rings with the highest total rate; *enough* is the maximum rate of a GPU, *most* the maximum number of channels."""
    best = ChannelPattern(0, 0.0, 0.0)
    for speed in speeds:
        if best.channels and (speed / best.inter <= nccl.LEAST_STEP or best.channels * best.inter >= enough):
            break
        count = _count_fitting(loads, rates, speed, most)
        if count * speed > best.channels * best.inter:
            best = ChannelPattern(count, speed, speed)
    return best if best.channels else ChannelPattern(1, nccl.SIMPLE_ORDER * GB, nccl.SIMPLE_ORDER * GB)


def _count_fitting(loads: Sequence[_HopLoad], rates: Mapping[str, float], speed: float, most: int) -> int:
    """Return how many channels fit at *speed*, placed round-robin."""
    free, count = dict(rates), 0
    while True:
        before = count
        for load in loads:
            if count < most and _subtract([load], free, speed, speed):
                count += 1
        if count == before:
            return count


def _subtract(loads: Sequence[_HopLoad], free: dict[str, float], intra: float, inter: float) -> bool:
    """Subtract the total of *loads* from the *free* rates of links and return True, or return False if it does not fit."""
    needed: dict[str, float] = defaultdict(float)
    for load in loads:
        for link, rate in load.at(intra, inter).items():
            needed[link] += rate
    if any(free[link] < rate - _ROUNDING for link, rate in needed.items()):
        return False
    for link, rate in needed.items():
        free[link] -= rate
    return True


def _gpu_rate(graph: NodeGraph, gpus: Sequence[int], rates: Mapping[str, float]) -> float:
    """Return the highest rate at which a GPU can send: over its NVLinks to the others, or its PCIe port."""
    ports = [rates[f"gpu{gpu}>{graph.parents[f'gpu{gpu}']}"] for gpu in gpus]
    others = ["nvswitch", *(f"gpu{gpu}" for gpu in gpus)]
    nvlinks = [sum(rates.get(f"gpu{gpu}>{other}", 0.0) for other in others) for gpu in gpus]
    return max(*ports, *nvlinks)


def _doubled(pattern: ChannelPattern, most: int, constants: TunerConstants, capability: int) -> ChannelPattern:
    """Return *pattern*, with the number of channels doubled at half the speed if they are fast."""
    newer = constants.keeps_some and capability > nccl.KEPT_ABOVE
    kept = newer and pattern.intra < nccl.KEPT_BELOW * GB and pattern.channels > nccl.KEPT_CHANNELS
    if pattern.intra < nccl.DOUBLED_FROM * GB or kept:
        return pattern
    count = min(2 * pattern.channels, most)
    share = -(-count // pattern.channels)
    return ChannelPattern(count, pattern.intra / share, pattern.inter / share)


def _higher_speeds(speeds: Sequence[float], start: float, most: float) -> Iterator[float]:
    """Yield the speeds above *start* in the order in which the search tries them, up to the first that is at least *most*."""
    for speed in sorted(speed for speed in speeds if speed > start) if start in speeds else ():
        yield speed
        if speed >= most:
            return


def _tree(ring: ChannelPattern, loads: Sequence[_HopLoad], rates: Mapping[str, float], speeds: Sequence[float]) -> ChannelPattern:
    """Return the trees of several nodes: the same number as in *ring*, and up to twice as fast inside the node.

    The reason is that two nodes send in both directions at once.
    """
    intra, loads_of_ring = ring.intra, [loads[place % len(loads)] for place in range(ring.channels)]
    for speed in _higher_speeds(speeds, ring.inter, 2 * ring.inter):
        if not _subtract(loads_of_ring, dict(rates), speed, ring.inter):
            break
        intra = speed
    return ring._replace(intra=intra)


def _nvls(graph: NodeGraph, rings: Channels, rates: Mapping[str, float], speeds: Sequence[float]) -> ChannelPattern | None:
    """Return the reduction in NVSwitch. Its heads, at most 32, pull from all GPUs, including themselves.

    On several nodes the heads are the GPUs at which a ring enters the node; on one node they are all GPUs.
    """
    gpus = rings.channels[0].gpus
    if capability(graph) < nccl.NVLS_LEAST_CAPABILITY or not graph.switch_links or len(gpus) < nccl.NVLS_LEAST_RANKS:
        return None
    entries = {channel.gpus[0]: _load(graph, channel).outside for channel in rings.channels}
    heads = entries if rings.nodes > 1 else {gpu: {} for gpu in gpus}
    loads = [_HopLoad(_pulls(gpus, head), outside) for head, outside in islice(heads.items(), nccl.NVLS_MOST_HEADS)]
    intra = next((speed for speed in speeds if _subtract(loads, dict(rates), speed, speed)), None)
    if intra is None:
        return None
    inter = intra
    for speed in _higher_speeds(speeds, intra, 2 * intra):
        if not _subtract(loads, dict(rates), intra, speed):
            break
        inter = speed
    return ChannelPattern(len(loads), intra, inter)


def _pulls(gpus: Sequence[int], head: int) -> dict[str, float]:
    """Return the load of one head's reduction in NVSwitch: one in each direction for every GPU, two for the head itself."""
    weights = {gpu: 2.0 if gpu == head else 1.0 for gpu in gpus}
    return {link: weight for gpu, weight in weights.items() for link in (f"gpu{gpu}>nvswitch", f"nvswitch>gpu{gpu}")}
