"""Which constants does NCCL's tuner use? The tables of four releases in NCCL's units and order: microseconds, GB/s, LL / LL128 / Simple.

Sources: 2.30 is NVIDIA/nccl @5067397c, 2.10 is its tag v2.10.3-1 (the generation of arXiv 2208.14344). Releases between them followed two
more sets of rules. From 2.13 to 2.17 (2.16 here; @da8152e5 is 2.15.1, @5d3ab08b is 2.17.1), latencies are those of 2.10. From 2.18 to
2.22 (2.20; @b6475625 is 2.20.3, @178b6b75 is 2.22.3), they are close to those of 2.30, but a tree's Simple is as slow as in 2.10, and LL
and NVLS have other bandwidths. 2.23 (@a6979c9f is 2.23.4) has the latencies of 2.30. Where the releases of a set differ, 2.17 and 2.20
are taken: in 2.22, LL keeps half of a ring's bandwidth, with higher limits on Hopper. Each table names its file. `cost` and `search`
convert them to seconds and bytes/s. 2.3 and 2.4 had no tuner and use the search of 2.10.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import lru_cache
from typing import Literal, NamedTuple

from sim.spec.algorithms import minor_release, not_a_release
from sim.spec.yaml import SpecError

Version = Literal["2.3", "2.4", "2.10", "2.16", "2.20", "2.30"]
Generation = Literal["volta", "ampere", "hopper", "blackwell"]
ConstantRow = tuple[float, float, float]
"""One value per protocol, or one per number of nodes: 1, 2, more."""

PROTOCOLS = ("LL", "LL128", "Simple")

GENERATIONS: tuple[Generation, ...] = ("volta", "ampere", "hopper", "blackwell")
NO_ROW: ConstantRow = (0, 0, 0)


class TunerConstants(NamedTuple):
    """Everything that differs between the tuners of NCCL's versions."""

    name: Version
    one_list: bool
    """Whether NCCL_ALGO and NCCL_PROTO are single lists for all functions. If so, NCCL_ALGO applies to all_reduce only."""
    algorithms: tuple[str, ...]
    """Algorithms in the order in which the tuner tries them: the first of equally fast ones wins."""
    startup: Mapping[str, ConstantRow]
    nvlink_hop: Mapping[str, ConstantRow]
    pcie_hop: Mapping[str, ConstantRow]
    network_hop: Mapping[str, ConstantRow]
    generations: tuple[tuple[int, Generation], ...]
    """Minimum compute capability (x 10) of each row of the limits below, newest first."""
    ll_limit: tuple[ConstantRow, ...]
    """Limit of all channels together. One node: a row per generation. Several: the first row for Intel and ARM, the second for AMD."""
    ring_ll128_limit: Mapping[Generation, ConstantRow]
    tree_ll128_limit: Mapping[Generation, ConstantRow]
    tree_limit: Mapping[Generation, ConstantRow]
    nvls_tree_limit: Mapping[Generation, ConstantRow]
    """Limits per channel, by number of nodes."""
    ll128_capabilities: frozenset[int] | None
    """Compute capabilities on which LL128 is on by default; None means all from 70."""
    ring_ll_share: float
    gather_ll_share: float
    """Share of the ring's bandwidth that LL keeps: in general, and for all-gather, reduce-scatter and broadcast on one node."""
    plain_tree_share: float
    """Share of the bandwidth that a tree keeps if it enters and leaves each node at the same GPU."""
    lone_ll128_share: float
    """Share of the ring's bandwidth that LL128 keeps with fewer than two ranks per node; otherwise RING_LL128_SHARE."""
    bus_limits: tuple[tuple[int, float], ...]
    """Limit of all channels together, by minimum compute capability, newest first."""
    ll_slowdown: float
    """Factor on the latency of an LL hop inside a node, if there are several nodes."""
    post_overhead: Mapping[str, float]
    """Minimum latency of a hop inside a node, if there are several nodes, by CPU vendor; three times as much for Simple."""
    plugin_latency: Literal["ignored", "instead", "added"]
    """What the network plug-in's own latency does to that of a network hop. If it is added, it counts twice for Simple."""
    returns: bool
    """Whether a ring all-reduce of N nodes counts 2N steps between nodes, not 2(N-1)."""
    lone_tree_hop: bool
    """Whether all algorithms use the tree's network hop latency with one rank per node."""
    arity_latency: float
    """Latency of each additional GPU of a node in CollNetDirect."""
    plateau_bytes: float | None
    """Bytes per rank from which a Simple ring all-reduce between nodes has a larger latency; None means PLATEAU_BYTES_PER_CHANNEL."""
    plateau_factors: tuple[tuple[int, float], ...]
    """Factors on that latency, by minimum compute capability, newest first."""
    collnet_threads: int
    max_channels: int
    sends_ll: bool
    """Whether small sends use LL."""
    nvls_share: float | None
    """Share of its channels' bandwidth that a reduction in NVSwitch keeps; None means NVLS_EFFICIENCY and what follows from it."""
    keeps_some: bool
    """Whether the rule of KEPT_CHANNELS, KEPT_ABOVE and KEPT_BELOW applies."""
    capability_doubled: int | None
    """Compute capability from which fast channels between nodes are doubled once more."""
    nvlink_rates: tuple[tuple[int, float], ...]
    """Rate of one NVLink, by minimum compute capability, newest first; if empty, the ``nccl_bandwidth`` of hardware/parts/links."""
    intel_link_limit: float
    amd_link: float | None
    """Assumed rate of the link between sockets: the upper limit on Intel; the rate on AMD, or None for its ``nccl_bandwidth``."""
    speeds_intra: tuple[tuple[int, tuple[float, ...]], ...]
    speeds_inter: tuple[tuple[int, tuple[float, ...]], ...]
    """Per-channel speeds that the search tries, by minimum compute capability, newest first."""
    release: str = ""
    """The release that follows these rules, as messages name it."""


RING_LL128_SHARE = 0.92
TREE_SHARE = 0.92
TREE_LL_SHARE = 1 / 3.8
TREE_LL128_SHARE = (7 / 9, 120 / 128)  # one node, several
PAT_SHARE = 0.75
COLLNET_DIRECT_SHARE = 0.85  # from compute capability 9.0
COLLNET_GATHER_SHARE = 0.9  # of the network's speed
# All from src/graph/tuning.cc, in both versions if both have the algorithm.

NVLS_EFFICIENCY: Mapping[Generation, float] = {"volta": 0, "ampere": 0, "hopper": 0.85, "blackwell": 0.74}
NVLS_LEAST_CAPABILITY = 90
NVLS_LEAST_RANKS = 3  # of a node; src/transport/nvls.cc
NVLS_MOST_HEADS = 32  # NCCL_MAX_NVLS_ARITY: src/graph/search.cc, src/enqueue.cc
NVLS_CHANNELS = {90: (16, 16), 100: (24, 32)}  # one node, several; src/transport/nvls.cc
NVLS_BETWEEN_NODES: Mapping[Generation, float] = {"hopper": 15.4 / 17.0, "blackwell": 12.8 / 19.7}
"""Throughput of a thread block of an NVSwitch reduction between two nodes, divided by its throughput on one node.

Both are GB/s per channel of an all-reduce on eight GPUs per node, from the tuner's limit of NVLSTree and from its share of the NVSwitch
bandwidth (src/graph/tuning.cc). Between nodes, the threads of a block also send, receive and store (src/device/all_reduce.h). With more
nodes the tuner's limit may be that of the network cards, so the values for two nodes are used for all.
"""
NVLS_GATHER_THREADS = 7 * 32  # of a block of 20 warps; 8 others copy to the switch and 5 reduce; src/device/all_reduce.h
PAT_LEAST_CAPABILITY = 60
LL128_LEAST_CAPABILITY = 70
PAT_LATENCY = (1 / 3.5, 2.8)  # of a network hop for each doubling of nodes; microseconds per rank
COLLNET_MOST_RANKS = 8  # of a node; src/enqueue.cc
COLLNET_LEAST_NODES = 2  # src/init.cc

SIZE_FACTORS: Mapping[str, tuple[float, ...]] = {
    "LL": (1, 1, 1, 1, 0.9, 0.8, 0.7, 0.7, 0.7, 0.7, 0.6, 0.5, 0.4, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1, 1, 1, 1, 1),
    "LL128": (1, 1, 1, 1, 1, 0.9, 0.8, 0.8, 0.8, 0.7, 0.6, 0.6, 0.6, 0.6, 0.6, 0.6, 0.8, 0.9, 0.9, 0.9, 0.9, 1, 1, 1),
    "Simple": (0.9, 0.9, 0.9, 0.9, 0.9, 0.9, 0.9, 0.8, 0.7, 0.6, 0.6, 0.5, 0.5, 0.5, 0.5, 0.6, 0.7, 0.8, 0.7, 0.7, 0.8, 0.9, 0.9, 0.9),
}
"""Share of the bandwidth that a tree all-reduce keeps from 64 B x 2^k on (src/graph/tuning.cc, both versions)."""
SIZE_FACTORS_USED = {"Tree": 23, "NVLSTree": 24}  # factors that apply; full bandwidth beyond them
NVLS_TREE_FACTOR_FROM = 100  # NVLSTree uses the factors from Blackwell on, with an Intel or AMD processor

PLATEAU_BYTES_PER_CHANNEL = 64  # per channel and rank; src/graph/tuning.cc

THREADS = {"LL": 512, "LL128": 640, "Simple": 512}
FEW_THREADS = 256  # of a Simple ring if all channels together are at most as fast as PCIE_GEN3
PCIE_GEN3 = 12.0
BYTES_PER_THREAD = {"LL": 8, "LL128": 8, "Simple": 64}  # minimum; times the number of ranks for an LL ring
COLLNET_BYTES_PER_THREAD = 512
# src/graph/tuning.cc, src/include/device.h (devcomm.h) and comm.h; how they set the number of channels: src/enqueue.cc

P2P_PARTNERS_OF_A_CHANNEL = 8  # NCCL_MAX_DEV_WORK_P2P_PER_BATCH, src/include/device.h
P2P_THREADS = 640  # of a block, half of which send and half receive; src/device/sendrecv.h
P2P_CHUNK = {"nvlink": 512 * 1024.0, "pcie": 128 * 1024.0, "network": 128 * 1024.0}  # src/init.cc
P2P_LL_BYTES = 16 * 1024.0  # of each channel; src/enqueue.cc, P2P_LL_THRESHOLD
P2P_CHANNELS = 2  # for each NVLink of a path, for PCIe, and for a NIC; src/graph/paths.cc
P2P_SENDS_OF_A_CHANNEL = 4  # between nodes a peer has one channel if two per rank would exceed this; src/graph/paths.cc
P2P_LEAST_PART = {1: 1 / 8, 2: 1 / 2}  # of a chunk, on one node and on several; src/enqueue.cc
P2P_MOST_PART = {1: 32.0, 2: 1.0}  # a message in larger parts takes more channels

RELAYS_SINCE = 12  # first minor release with PXN (NVIDIA's blog on all-to-all with NCCL 2.12); src/graph/paths.cc
READ_BACK_BELOW = 80
READ_BACK = 1 / 8  # load on the reverse path of what a NIC writes to a GPU before sm80; src/graph/search.cc
LEAST_STEP = 0.49  # a search with a result tries no speed below this share of its speed; src/graph/search.cc
# Channels of at least DOUBLED_FROM GB/s are doubled at half the speed, except in 2.30 above compute capability KEPT_ABOVE if there are more
# than KEPT_CHANNELS of them below KEPT_BELOW GB/s; src/graph/search.cc
DOUBLED_FROM = 25.0
KEPT_ABOVE = 80
KEPT_BELOW = 50.0
KEPT_CHANNELS = 4
# Between nodes, fewer than DOUBLED_AGAIN_BELOW channels above DOUBLED_AGAIN_ABOVE GB/s are doubled once more; src/graph/connect.cc
DOUBLED_AGAIN_ABOVE = 45.0
DOUBLED_AGAIN_BELOW = 16
SIMPLE_ORDER = 0.1  # speed of the single channel in plain order if the search finds none; src/graph/search.cc

_SPEEDS_SM90 = (60.0, 50.0, 40.0, 30.0, 24.0, 20.0, 15.0, 12.0, 11.0, 6.0, 3.0)
_SLOW = (3.0, 2.4, 1.2, 0.24, 0.12)

_ALL_20: ConstantRow = (20, 20, 20)
_TREE_LIMIT: Mapping[Generation, ConstantRow] = {"volta": (26.5, 18.5, 10), "ampere": (24, 23.6, 17.8)}

NCCL_2_30 = TunerConstants(
    name="2.30",
    one_list=False,
    algorithms=("Tree", "Ring", "CollNetDirect", "CollNetChain", "NVLS", "NVLSTree", "PAT"),
    # src/graph/tuning.cc, ncclTunerConstantsDefaults
    startup={"Tree": (6.8, 14, 8.4), "Ring": (6.6, 14, 8.4), "PAT": (8, 8, 8)},
    nvlink_hop={
        "Tree": (0.6, 1.25, 4), "Ring": (0.6, 1.9, 3.4), "CollNetDirect": (0, 0, 3.7), "CollNetChain": (0, 0, 2.8),
        "NVLS": (0, 0, 25), "NVLSTree": (0, 0, 25), "PAT": (0, 0, 4),
    },
    pcie_hop={
        "Tree": (1, 1.9, 4), "Ring": (1, 2.5, 5.7), "CollNetDirect": (0, 0, 3.7), "CollNetChain": (0, 0, 2.8),
        "NVLS": NO_ROW, "NVLSTree": NO_ROW, "PAT": (0, 0, 4),
    },
    network_hop={
        "Tree": (5, 8.5, 14), "Ring": (2.7, 4, 14), "CollNetDirect": (0, 0, 31), "CollNetChain": (0, 0, 30),
        "NVLS": (0, 0, 18), "NVLSTree": (0, 0, 20.9), "PAT": (0, 0, 14),
    },
    generations=((100, "blackwell"), (90, "hopper"), (80, "ampere"), (0, "volta")),
    ll_limit=((39, 39, 20.4), (87.7, 22.5, 19), (141, 45, 35), (282, 90, 70)),
    ring_ll128_limit={"volta": _ALL_20, "ampere": _ALL_20, "hopper": (36.7, 36.7, 36.7), "blackwell": (40, 40, 40)},
    tree_ll128_limit={"volta": _ALL_20, "ampere": _ALL_20, "hopper": (36.7, 36.7, 29), "blackwell": (55.6, 31.67, 20)},
    tree_limit={**_TREE_LIMIT, "hopper": (38.7, 41.4, 36), "blackwell": (70, 42.8, 24)},
    nvls_tree_limit={**_TREE_LIMIT, "hopper": (0, 57.7, 45.5), "blackwell": (0, 96, 80)},
    ll128_capabilities=None,
    ring_ll_share=1 / 2,
    gather_ll_share=1 / 2,
    plain_tree_share=0.85,
    lone_ll128_share=RING_LL128_SHARE,
    bus_limits=((0, math.inf),),
    ll_slowdown=1,
    post_overhead={"intel": 1, "amd": 2, "arm": 1},
    plugin_latency="added",
    returns=False,
    lone_tree_hop=True,
    arity_latency=0.4,
    plateau_bytes=None,
    plateau_factors=((80, 1.4), (0, 1.9)),
    collnet_threads=640,
    max_channels=64,  # src/include/device.h
    sends_ll=True,
    nvls_share=None,
    keeps_some=True,
    capability_doubled=90,
    nvlink_rates=(),
    intel_link_limit=math.inf,
    amd_link=None,
    # src/graph/search.cc
    speeds_intra=(
        (100, (90, 80, 70, 60, 50, 45, 40, 30, 24, 20, 19, 18)),
        (90, _SPEEDS_SM90),
        (0, (40, 30, 20, 18, 15, 12, 10, 9, 7, 6, 5, 4, 3)),
    ),
    speeds_inter=(
        (100, (96, 86, 80, 48, 45.1, 42, 40, 30, 24, 22, 20, 17.5, 15, 12, 6, *_SLOW)),
        (90, (48, 45, 42, 40, 30, 24, 22, 20, 17.5, 15, 12, 6, *_SLOW)),
        (0, (48, 30, 28, 24, 20, 18, 15, 12, 10, 9, 7, 6, 5, 4, *_SLOW)),
    ),
)  # fmt: skip

NCCL_2_10 = TunerConstants(
    name="2.10",
    one_list=True,
    algorithms=("Tree", "Ring", "CollNet"),
    # src/graph/tuning.cc of v2.10.3-1
    startup={"Tree": (4.4, 4.4, 0), "Ring": (3.6, 10, 8.4), "CollNet": (4.4, 4.4, 0)},
    nvlink_hop={"Tree": (0.52, 1.25, 28), "Ring": (0.47, 1.9, 3.4), "CollNet": (0.5, 1.2, 8)},
    pcie_hop={"Tree": (1, 1.9, 28), "Ring": (1, 2.5, 5.7), "CollNet": (1, 1.9, 8)},
    network_hop={"Tree": (5, 8.5, 28), "Ring": (2.7, 4, 9.6), "CollNet": (5, 5, 10.7)},
    generations=((81, "volta"), (80, "ampere"), (0, "volta")),  # only 8.0 itself has separate rows
    ll_limit=((39, 39, 20.4), (87.7, 22.5, 19)),
    ring_ll128_limit={"volta": _ALL_20, "ampere": _ALL_20},
    tree_ll128_limit={"volta": _ALL_20, "ampere": _ALL_20},
    tree_limit=_TREE_LIMIT,
    nvls_tree_limit={},
    ll128_capabilities=frozenset({70, 80}),
    ring_ll_share=1 / 4,
    gather_ll_share=1 / 3,
    plain_tree_share=1,
    lone_ll128_share=0.7,
    bus_limits=((81, math.inf), (80, 235), (0, math.inf)),  # of 8.0 itself
    ll_slowdown=1.8,
    post_overhead={"intel": 0, "amd": 0, "arm": 0},
    plugin_latency="ignored",
    returns=False,
    lone_tree_hop=False,
    arity_latency=0.5,
    plateau_bytes=64 * 1024 / 16,
    plateau_factors=((0, 1.9),),
    collnet_threads=512,
    max_channels=32,  # src/include/devcomm.h of v2.10.3-1
    sends_ll=False,  # from 2.12
    nvls_share=None,
    keeps_some=False,
    capability_doubled=None,
    # src/graph/topo.h of v2.10.3-1
    nvlink_rates=((87, 22), (86, 12), (70, 22), (60, 18)),
    intel_link_limit=9,
    amd_link=5000,
    # src/graph/search.cc of v2.10.3-1
    speeds_intra=((0, (44, 30, 22, 18, 15, 12, 10, 9, 7, 6, 5, 4, 3)),),
    speeds_inter=((0, (48, 30, 24, 22, 18, 15, 12, 10, 9, 7, 6, 5, 4, *_SLOW)),),
)

_HOPPER_LL128: ConstantRow = (36.7, 36.7, 36.7)

NCCL_2_16 = NCCL_2_10._replace(
    name="2.16",
    # src/graph/tuning.cc of 2.17.1, without its NVLS, which 2.15 and 2.16 do not have
    algorithms=("Tree", "Ring", "CollNetDirect", "CollNetChain"),
    startup={"Tree": (4.4, 4.4, 0), "Ring": (3.6, 10, 8.4), "CollNetDirect": (4.4, 4.4, 0), "CollNetChain": (4.4, 4.4, 0)},
    nvlink_hop={"Tree": (0.52, 1.25, 28), "Ring": (0.47, 1.9, 3.4), "CollNetDirect": (0, 0, 8), "CollNetChain": (0, 0, 8)},
    pcie_hop={"Tree": (1, 1.9, 28), "Ring": (1, 2.5, 5.7), "CollNetDirect": (0, 0, 8), "CollNetChain": (0, 0, 8)},
    network_hop={"Tree": (5, 8.5, 28), "Ring": (2.7, 4, 9.6), "CollNetDirect": (0, 0, 10.7), "CollNetChain": (0, 0, 10.7)},
    generations=((90, "hopper"), (80, "ampere"), (0, "volta")),
    ll_limit=((39, 39, 20.4), (87.7, 22.5, 19), (87.7, 22.5, 19)),
    ring_ll128_limit={"volta": _ALL_20, "ampere": _ALL_20, "hopper": _HOPPER_LL128},
    tree_ll128_limit={"volta": _ALL_20, "ampere": _ALL_20, "hopper": _HOPPER_LL128},
    tree_limit={**_TREE_LIMIT, "hopper": (38.7, 41.4, 33)},
    ll128_capabilities=frozenset({70, 80, 90}),
    bus_limits=((90, 370), (80, 235), (0, math.inf)),
    plateau_factors=((90, 1.5), (0, 1.9)),
    plugin_latency="instead",
    returns=True,
    sends_ll=True,
    keeps_some=True,
    nvlink_rates=((90, 20), (87, 20), (86, 12), (70, 20), (60, 18)),  # src/graph/topo.h of 2.18.1, and so is the next
    intel_link_limit=10,
    # src/graph/search.cc
    speeds_intra=NCCL_2_30.speeds_intra[1:],
    speeds_inter=NCCL_2_30.speeds_inter[1:],
)

NCCL_2_20 = NCCL_2_30._replace(
    name="2.20",
    # src/graph/tuning.cc of 2.20.3
    algorithms=("Tree", "Ring", "CollNetDirect", "CollNetChain", "NVLS", "NVLSTree"),
    startup={"Tree": (6.8, 14, 0), "Ring": (6.6, 14, 8.4)},
    nvlink_hop={**NCCL_2_30.nvlink_hop, "Tree": (0.6, 1.25, 28), "NVLS": (0, 0, 23), "NVLSTree": (0, 0, 23)},
    pcie_hop={**NCCL_2_30.pcie_hop, "Tree": (1, 1.9, 28)},
    network_hop={**NCCL_2_30.network_hop, "Tree": (5, 8.5, 28), "NVLSTree": (0, 0, 14)},
    generations=NCCL_2_16.generations,
    ll_limit=NCCL_2_16.ll_limit,
    nvls_tree_limit=dict.fromkeys(GENERATIONS, (math.inf, math.inf, math.inf)),
    ll128_capabilities=frozenset({70, 80, 90}),
    ring_ll_share=1 / 4,
    gather_ll_share=1 / 3,
    lone_ll128_share=0.7,
    returns=True,
    lone_tree_hop=False,
    max_channels=32,  # src/include/device.h of 2.22.3
    nvls_share=5 / 6,
    intel_link_limit=10,  # src/graph/topo.h of 2.22.3
    # src/graph/search.cc of 2.22.3
    speeds_intra=NCCL_2_30.speeds_intra[1:],
    speeds_inter=NCCL_2_30.speeds_inter[1:],
)

NCCL_2_4 = NCCL_2_10._replace(name="2.4", algorithms=("Tree", "Ring"), max_channels=16)  # src/include/core.h; no tuner: threshold.py
NCCL_2_3 = NCCL_2_4._replace(name="2.3", algorithms=("Ring",))

VERSIONS: Mapping[str, TunerConstants] = {each.name: each for each in (NCCL_2_3, NCCL_2_4, NCCL_2_10, NCCL_2_16, NCCL_2_20, NCCL_2_30)}


_NEWEST_OF: tuple[tuple[int, Version], ...] = ((3, "2.3"), (4, "2.4"), (12, "2.10"), (17, "2.16"), (22, "2.20"), (99, "2.30"))
"""The newest minor release of NCCL 2 that follows each set of rules."""


@lru_cache(maxsize=64)
def constants_of(release: str) -> TunerConstants:
    """Return the constants that *release* follows, those of 2.20 for 2.18.5. Raise SpecError if it is no release of NCCL 2."""
    minor = minor_release(release)
    if minor is None:
        raise SpecError(not_a_release(release))
    return VERSIONS[next(rules for newest, rules in _NEWEST_OF if minor <= newest)]._replace(release=release)


def relays_to_nics(release: str) -> bool:
    """Return whether GPUs of *release* send to NICs far from them through other GPUs."""
    return (minor_release(release) or 0) >= RELAYS_SINCE
