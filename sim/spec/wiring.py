"""How are the GPUs and NICs of a machine wired? What a topology print tells, and the PCIe tree that explains its path classes.

`nvidia-smi topo -m` tells no tree, only how near any two devices are: PIX (below one PCIe switch), PXB (below several), PHB and
NODE (one NUMA node), SYS (across the socket link; SOC in old versions). In a tree each class holds for whole groups, so the
groups joined by PIX are switches, those joined by PXB as well are switches below a common one, and those joined by PHB and NODE
are sockets. NVLink (NVn) hides the PCIe class of its pair. Such pairs share a socket if their NUMA or CPU affinity says so, or,
where it says nothing, if no device near them is across the socket link from them.

Does not tell PHB from NODE: several host bridges of one NUMA node are one root complex here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import Final, Literal

Near = Literal["PIX", "PXB", "PHB", "SYS"]

CLASSES: Final[dict[str, Near]] = {"PIX": "PIX", "PXB": "PXB", "PHB": "PHB", "NODE": "PHB", "SYS": "SYS", "SOC": "SYS"}
"""Printed class to the class that the link graph tells apart."""

Pair = tuple[int, int]
"""Two devices by number, the smaller first."""


@dataclass(frozen=True)
class Lanes:
    """A PCIe link as sysfs gives it: transfer rate of one lane in GT/s, and lanes."""

    rate: float
    width: int


@dataclass(frozen=True)
class Card:
    """One network port; *speed* in bytes/s, None where the print does not tell."""

    name: str = ""
    speed: float | None = None
    kind: Literal["", "infiniband", "ethernet"] = ""
    gpudirect: bool | None = None


@dataclass(frozen=True)
class Domain:
    """What hangs straight off one host bridge: a socket, or a NUMA node of one."""

    gpus: tuple[int, ...] = ()
    nics: tuple[int, ...] = ()


@dataclass(frozen=True)
class Branch:
    """One PCIe switch; *parent* is ``socketN`` or another switch, *lanes* its uplink."""

    name: str
    parent: str
    gpus: tuple[int, ...] = ()
    nics: tuple[int, ...] = ()
    lanes: Lanes | None = None


@dataclass(frozen=True)
class Processor:
    """The processor as CPUID numbers it; *vendor* is ``GenuineIntel``, ``AuthenticAMD``, ... or the architecture."""

    vendor: str
    family: int
    model: int


@dataclass(frozen=True)
class Wiring:
    """What a topology print tells of one machine."""

    form: str
    """``nvidia-smi topo -m`` or ``NCCL topology file``."""
    gpus: int
    cards: tuple[Card, ...]
    domains: tuple[Domain, ...]
    branches: tuple[Branch, ...]
    nvlinks: Mapping[Pair, int] = field(default_factory=dict)
    """NVLinks between two GPUs, directly or as good as that through NVSwitches: the print does not tell which."""
    switch_links: int = 0
    """NVLinks from every GPU to NVSwitches, where the print tells."""
    nvlink_known: bool = True
    """False where the print is silent on NVLink."""
    classes: Mapping[Pair, Near] = field(default_factory=dict)
    """PCIe path class of two GPUs, where the print gives it."""
    gpu_names: tuple[str, ...] = ()
    """Models that stand beside the matrix, each once."""
    devices: tuple[int, ...] = ()
    """PCI device numbers of the GPUs, each once."""
    compute_capability: str = ""
    vcpus: int | None = None
    """Hardware threads near any of the GPUs."""
    numa_nodes: int = 0
    """NUMA nodes near any of the GPUs; 0 where the print does not tell."""
    processor: Processor | None = None
    lanes: Lanes | None = None
    """PCIe link of the GPUs."""
    notes: tuple[str, ...] = ()
    """What a reader should know about this reading: sentences."""


class WiringContradiction(ValueError):
    """Two devices, by number, whose class fits no tree beside the others'."""

    def __init__(self, pair: Pair, printed: Near, needed: str) -> None:
        super().__init__(needed)
        self.pair = pair
        self.printed = printed
        self.needed = needed


@dataclass(frozen=True)
class Tree:
    """Which socket and which switches each device hangs off."""

    domains: tuple[Domain, ...]
    branches: tuple[Branch, ...]
    torn: tuple[Pair, ...]
    """Pairs of one place (NUMA node or set of CPUs) that are across the socket link, or of two that are not."""


def tree(devices: int, gpus: int, classes: Mapping[Pair, Near], places: Sequence[str]) -> Tree:
    """Return the PCIe tree of *devices*, of which the first *gpus* are GPUs and the others NICs.

    *classes* are those known, *places* the NUMA node or CPUs of each device (empty: unknown). Raise Contradiction where no tree
    has these classes.
    """
    switch = _groups(devices, (pair for pair, near in classes.items() if near == "PIX"))
    root = _groups(devices, (pair for pair, near in classes.items() if near in ("PIX", "PXB")))
    bridge = _groups(devices, (pair for pair, near in classes.items() if near != "SYS"))
    for pair, near in classes.items():
        _check(pair, near, switch, root, bridge)
    socket = _sockets(bridge, classes, places)
    branches: list[Branch] = []
    loose: list[int] = []
    for top in sorted(set(root)):
        members = [device for device in range(devices) if root[device] == top]
        if len(members) == 1:
            loose += members
        else:
            branches += _branches(f"socket{socket[top]}", members, switch, gpus, len(branches))
    domains = tuple(
        Domain(*_split([device for device in loose if socket[device] == index], gpus)) for index in range(max(socket, default=0) + 1)
    )
    torn = (pair for pair in classes if all(places[end] for end in pair) and _is_torn(pair, places, socket))
    return Tree(domains, tuple(branches), tuple(torn))


def _is_torn(pair: Pair, places: Sequence[str], socket: Sequence[int]) -> bool:
    one, other = pair
    return (places[one] == places[other]) != (socket[one] == socket[other])


def _groups(count: int, joined: Iterable[Pair]) -> list[int]:
    """Return for each of *count* devices the smallest device it is joined to, directly or through others."""
    group = list(range(count))
    for one, other in joined:
        first, second = sorted((group[one], group[other]))
        if first != second:
            group = [first if place == second else place for place in group]
    return group


def _check(pair: Pair, near: Near, switch: Sequence[int], root: Sequence[int], bridge: Sequence[int]) -> None:
    one, other = pair
    if near != "PIX" and switch[one] == switch[other]:
        raise WiringContradiction(pair, near, "PIX, since PIX leads from one to the other through further devices")
    if near not in ("PIX", "PXB") and root[one] == root[other]:
        raise WiringContradiction(pair, near, "PXB, since PIX and PXB lead from one to the other through further devices")
    if near == "SYS" and bridge[one] == bridge[other]:
        raise WiringContradiction(pair, near, "NODE, since nearer classes lead from one to the other through further devices")


def _sockets(bridge: Sequence[int], classes: Mapping[Pair, Near], places: Sequence[str]) -> list[int]:
    """Return the socket of each device: groups below one bridge join the first socket that nothing keeps them from."""
    sockets: list[list[int]] = []
    for top in sorted(set(bridge)):
        members = [device for device, place in enumerate(bridge) if place == top]
        home = next((socket for socket in sockets if _may_join(members, socket, classes, places)), None)
        if home is None:
            sockets.append(members)
        else:
            home += members
    socket_of = [0] * len(bridge)
    for index, socket in enumerate(sockets):
        for device in socket:
            socket_of[device] = index
    return socket_of


def _may_join(members: Sequence[int], socket: Sequence[int], classes: Mapping[Pair, Near], places: Sequence[str]) -> bool:
    if any((min(one, other), max(one, other)) in classes for one in members for other in socket):
        return False  # a known class between two groups below different bridges is SYS
    mine, theirs = {places[device] for device in members} - {""}, {places[device] for device in socket} - {""}
    return not mine or not theirs or bool(mine & theirs)


def _branches(socket: str, members: Sequence[int], switch: Sequence[int], gpus: int, named: int) -> list[Branch]:
    """Return the switch over *members*, or one over each of their switches and one above those."""
    inner = sorted({switch[device] for device in members})
    if len(inner) == 1:
        return [Branch(f"plx{named}", socket, *_split(members, gpus))]
    branches = [Branch(f"plx{named}", socket)]
    for number, place in enumerate(inner, start=1):
        below = [device for device in members if switch[device] == place]
        branches.append(Branch(f"plx{named + number}", f"plx{named}", *_split(below, gpus)))
    return branches


def _split(devices: Iterable[int], gpus: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return GPUs and NICs among *devices*, each by its own number."""
    numbers = list(devices)
    return tuple(device for device in numbers if device < gpus), tuple(device - gpus for device in numbers if device >= gpus)


def pairs(count: int) -> Iterable[Pair]:
    """Return every pair of *count* devices."""
    return combinations(range(count), 2)
