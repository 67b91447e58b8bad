"""How are the GPUs and NICs of a machine connected? The contents of a topology print, and the PCIe tree that explains its path types.

`nvidia-smi topo -m` prints no tree, only the path type of each pair of devices: PIX (below one PCIe switch), PXB (below several), PHB and
NODE (one NUMA node), SYS (across the socket link; SOC in old versions). In a tree, each type applies to whole groups: groups connected by
PIX are switches, groups connected by PIX or PXB are switches below a common one, and groups connected by anything but SYS are sockets.
NVLink (NVn) hides the PCIe path type of its pair. Such a pair shares a socket if its NUMA or CPU affinity says so or, without affinity, if
no device close to one of them is across the socket link from the other.

Does not distinguish PHB from NODE: several host bridges of one NUMA node are one root complex here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import Final, Literal

MOST_DEVICES: Final = 128
"""GPUs and NICs of one machine; files with more describe several machines, or none."""
Near = Literal["PIX", "PXB", "PHB", "SYS"]

CLASSES: Final[dict[str, Near]] = {"PIX": "PIX", "PXB": "PXB", "PHB": "PHB", "NODE": "PHB", "SYS": "SYS", "SOC": "SYS"}
"""Maps a printed path type to the path types that the link graph distinguishes."""

Pair = tuple[int, int]
"""Two devices by number, the smaller first."""


@dataclass(frozen=True)
class Lanes:
    """A PCIe link as reported by sysfs: transfer rate of one lane in GT/s, and number of lanes."""

    rate: float
    width: int


@dataclass(frozen=True)
class Card:
    """One network port; *speed* is in bytes/s. None: not in the print."""

    name: str = ""
    speed: float | None = None
    kind: Literal["", "infiniband", "ethernet"] = ""
    gpudirect: bool | None = None


@dataclass(frozen=True)
class Domain:
    """The devices attached directly to one host bridge: a socket, or a NUMA node of a socket."""

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
    """The processor as identified by CPUID; *vendor* is ``GenuineIntel``, ``AuthenticAMD``, ... or the architecture."""

    vendor: str
    family: int
    model: int


@dataclass(frozen=True)
class Wiring:
    """The contents of a topology print of one machine."""

    form: str
    """``nvidia-smi topo -m`` or ``NCCL topology file``."""
    gpus: int
    cards: tuple[Card, ...]
    domains: tuple[Domain, ...]
    branches: tuple[Branch, ...]
    nvlinks: Mapping[Pair, int] = field(default_factory=dict)
    """Number of NVLinks between two GPUs, either direct or through NVSwitches (the print does not distinguish them)."""
    switch_links: int = 0
    """Number of NVLinks from every GPU to NVSwitches; 0: none, or not in the print."""
    nvlink_known: bool = True
    """False if the print has no information on NVLink."""
    classes: Mapping[Pair, Near] = field(default_factory=dict)
    """PCIe path type of each pair of GPUs for which the print has it."""
    gpu_names: tuple[str, ...] = ()
    """GPU models listed with the matrix, each once."""
    devices: tuple[int, ...] = ()
    """PCI device numbers of the GPUs, each once."""
    compute_capability: str = ""
    vcpus: int | None = None
    """Hardware threads in the affinity of any GPU."""
    numa_nodes: int = 0
    """Number of NUMA nodes in the affinity of any GPU; 0: not in the print."""
    processor: Processor | None = None
    lanes: Lanes | None = None
    """PCIe link of the GPUs."""
    notes: tuple[str, ...] = ()
    """Remarks for the user on how the print was interpreted, as sentences."""


class WiringContradiction(ValueError):
    """Two devices, by number, whose path type contradicts those of other pairs: no tree has them all."""

    def __init__(self, pair: Pair, printed: Near, needed: str) -> None:
        super().__init__(needed)
        self.pair = pair
        self.printed = printed
        self.needed = needed


@dataclass(frozen=True)
class Tree:
    """The socket and the switches of each device."""

    domains: tuple[Domain, ...]
    branches: tuple[Branch, ...]
    torn: tuple[Pair, ...]
    """Pairs with the same affinity (NUMA node or CPUs) on different sockets, or with different affinity on the same socket."""


def tree(devices: int, gpus: int, classes: Mapping[Pair, Near], places: Sequence[str]) -> Tree:
    """Return the PCIe tree of *devices*, of which the first *gpus* are GPUs and the others NICs.

    *classes* are the path types of pairs, as far as they are known; *places* is the NUMA node or CPUs of each device (empty: unknown).
    Raise WiringContradiction if no tree has these path types.
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
    """Return for each of *count* devices the lowest-numbered device in its group of devices connected by *joined* pairs."""
    group = list(range(count))
    for one, other in joined:
        first, second = sorted((group[one], group[other]))
        if first != second:
            group = [first if place == second else place for place in group]
    return group


def _check(pair: Pair, near: Near, switch: Sequence[int], root: Sequence[int], bridge: Sequence[int]) -> None:
    one, other = pair
    if near != "PIX" and switch[one] == switch[other]:
        raise WiringContradiction(pair, near, "PIX, because a chain of PIX paths through other devices connects them")
    if near not in ("PIX", "PXB") and root[one] == root[other]:
        raise WiringContradiction(pair, near, "PXB, because a chain of PIX and PXB paths through other devices connects them")
    if near == "SYS" and bridge[one] == bridge[other]:
        raise WiringContradiction(pair, near, "NODE, because a chain of closer paths through other devices connects them")


def _sockets(bridge: Sequence[int], classes: Mapping[Pair, Near], places: Sequence[str]) -> list[int]:
    """Return the socket of each device: each group below one bridge joins the first socket that nothing contradicts."""
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
        return False  # a known path type between groups below different bridges is SYS
    mine, theirs = {places[device] for device in members} - {""}, {places[device] for device in socket} - {""}
    return not mine or not theirs or bool(mine & theirs)


def _branches(socket: str, members: Sequence[int], switch: Sequence[int], gpus: int, named: int) -> list[Branch]:
    """Return the switch above *members*; if they are below several switches, return these and one above them."""
    inner = sorted({switch[device] for device in members})
    if len(inner) == 1:
        return [Branch(f"plx{named}", socket, *_split(members, gpus))]
    branches = [Branch(f"plx{named}", socket)]
    for number, place in enumerate(inner, start=1):
        below = [device for device in members if switch[device] == place]
        branches.append(Branch(f"plx{named + number}", f"plx{named}", *_split(below, gpus)))
    return branches


def _split(devices: Iterable[int], gpus: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the GPUs and the NICs among *devices*, each kind numbered from 0."""
    numbers = list(devices)
    return tuple(device for device in numbers if device < gpus), tuple(device - gpus for device in numbers if device >= gpus)


def pairs(count: int) -> Iterable[Pair]:
    """Return every pair of *count* devices."""
    return combinations(range(count), 2)
