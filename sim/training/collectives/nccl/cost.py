"""How long does NCCL estimate that an algorithm takes with a protocol? From its latency and bandwidth; also its number of channels.

    time = latency * plateau + bytes / (bandwidth * size factor)

A ring all-reduce of n ranks on N nodes takes 2(n-1) steps, 2(N-1) of them between nodes. A tree goes up and down once: 2 ((n/N - 1) hops
inside a node + log2 N hops between nodes). The bandwidth is channels x per-channel bandwidth of the pattern that NCCL's search found; each
protocol keeps a share of it, up to limits (NVIDIA/nccl `src/graph/tuning.cc`). The number of channels is reduced until each thread has a
minimum of bytes (`src/enqueue.cc`); this does not change the bandwidth. These times only choose
(`sim.training.collectives.nccl.tuner`); they do not predict. Latencies here are in microseconds and bandwidths in GB/s, as in the tables.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Literal, NamedTuple

from sim.training.collectives.nccl import constants as nccl
from sim.training.collectives.nccl.constants import PROTOCOLS, ConstantRow, Generation, TunerConstants

Collective = Literal["all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce"]

MICROSECOND, GB = 1e-6, 1e9

GATHERS = ("all_gather", "reduce_scatter")
_PIPELINES = ("broadcast", "reduce")
_COLLNET = ("CollNet", "CollNetDirect", "CollNetChain")


class ChannelPattern(NamedTuple):
    """The result of NCCL's search for one pattern: the number of *channels*, and the bytes/s of one inside a node and between nodes."""

    channels: int
    intra: float
    inter: float


class TunerMachine(NamedTuple):
    """The tuner's input for a job: *ranks* on *nodes* nodes, the results of the search, and broad classes of the hardware."""

    ranks: int
    nodes: int
    ring: ChannelPattern
    tree: ChannelPattern
    compute_capability: int
    """Ten times CUDA's: 70 for a V100."""
    intra_path: Literal["nvlink", "pcie"]
    """``nvlink`` only if the rings use no other paths inside a node."""
    cpu_vendor: Literal["intel", "amd", "arm"]
    nic_near: bool = False
    """Whether GPUs and NICs reach each other without the processor (NCCL's PXB; from sm90 PXN)."""
    plugin_latency: float = 0.0
    """Latency (s) that the network plug-in reports."""
    same_channels: bool = False
    """Whether all rings visit the GPUs in the same order."""
    plain_tree: bool = False
    """Whether trees enter and leave a node at one GPU, as they do with one rank per node."""
    nvswitch: bool = False
    nvls: ChannelPattern | None = None
    """Reduction in NVSwitch, if GPUs and switches support it."""
    collnet: ChannelPattern | None = None
    """Reduction in the network, if it supports this."""

    @property
    def local_ranks(self) -> float:
        """Return the mean number of ranks per node, which may be fractional."""
        return self.ranks / self.nodes


class TunerCase(NamedTuple):
    """One collective of one size on one machine, under one version."""

    collective: Collective
    nbytes: float
    machine: TunerMachine
    constants: TunerConstants

    def latency(self, algorithm: str, protocol: str) -> float:
        """Return the latency (s) of *algorithm*."""
        place = PROTOCOLS.index(protocol)
        startup = self.constants.startup.get(algorithm, nccl.NO_ROW)[place]
        return (startup + _LATENCIES[algorithm](self, place)) * self._plateau(algorithm, protocol) * MICROSECOND

    def bandwidth(self, algorithm: str, protocol: str) -> float:
        """Return the bandwidth of *algorithm*, in bytes of the collective per second."""
        return _BANDWIDTHS[algorithm](self, PROTOCOLS.index(protocol)) * self._size_factor(algorithm, protocol) * GB

    def channels(self, algorithm: str, protocol: str) -> int:
        """Return the number of channels over which the bytes are spread."""
        if algorithm in ("NVLS", "NVLSTree"):
            count = nccl.NVLS_CHANNELS[100 if self.machine.compute_capability >= 100 else 90][self.machine.nodes > 1]
            return min(count, self.all_channels) if self.machine.nodes > 1 and algorithm == "NVLS" else count
        if algorithm in ("CollNet", "CollNetDirect"):
            return self._collnet_channels()
        return max(1, min(self.all_channels, int(self.nbytes / self._bytes_per_channel(algorithm, protocol))))

    @property
    def all_channels(self) -> int:
        """Return the number of parallel channels: NCCL connects each channel that its search found twice."""
        ring, most = self.machine.ring, self.constants.max_channels
        count = min(most, 2 * min(ring.channels, self.machine.tree.channels))
        newer = self.constants.capability_doubled and self.machine.compute_capability >= self.constants.capability_doubled
        doubled = newer and self.machine.nodes > 1 and ring.intra > nccl.DOUBLED_AGAIN_ABOVE * GB and count < nccl.DOUBLED_AGAIN_BELOW
        return 2 * count if doubled else count

    # --- values of the tables for this machine

    @property
    def steps(self) -> int:
        """Return the number of steps of a ring."""
        ranks = self.machine.ranks
        return 2 * (ranks - 1) if self.collective == "all_reduce" else ranks - 1 if self.collective in GATHERS else ranks

    @property
    def network_steps(self) -> int:
        """Return how many steps of a ring cross between nodes."""
        nodes = self.machine.nodes
        if self.collective != "all_reduce":
            return nodes - 1
        return 2 * nodes if self.constants.returns and nodes > 1 else 2 * (nodes - 1)

    @property
    def doublings(self) -> int:
        """Return log2 of the number of nodes, rounded down."""
        return self.machine.nodes.bit_length() - 1

    @property
    def peers(self) -> int:
        """Return the number of other ranks on a node."""
        return self.machine.ranks // self.machine.nodes - 1

    def local_hop(self, algorithm: str, place: int) -> float:
        """Return the latency of a hop inside a node. With one GPU per node there is no NVLink path, so it is that of PCIe."""
        nvlink = self.machine.intra_path == "nvlink" and self.machine.local_ranks > 1
        slow = self.constants.ll_slowdown if self.machine.nodes > 1 and PROTOCOLS[place] == "LL" else 1.0
        return (self.constants.nvlink_hop if nvlink else self.constants.pcie_hop)[algorithm][place] * slow

    def network_hop(self, algorithm: str, place: int) -> float:
        """Return the latency of a hop between nodes, including the plug-in's own latency: twice for Simple, which flushes."""
        lone = self.constants.lone_tree_hop and self.machine.local_ranks == 1
        own = self.constants.network_hop["Tree" if lone else algorithm][place]
        plugin = self.machine.plugin_latency / MICROSECOND
        if self.constants.plugin_latency == "added":
            return own + plugin * (2 if PROTOCOLS[place] == "Simple" else 1)
        return plugin if plugin and self.constants.plugin_latency == "instead" else own

    def total_bandwidth(self, pattern: ChannelPattern, algorithm: str) -> float:
        """Return the bandwidth of all channels of *pattern*. Up to two nodes, NCCL uses the speed inside a node."""
        each = pattern.intra if self.machine.nodes <= 2 or algorithm in _COLLNET else pattern.inter
        return min(pattern.channels * each / GB, self._of_capability(self.constants.bus_limits))

    def _of_capability(self, rows: Sequence[tuple[int, float]]) -> float:
        """Return the value of *rows* for this machine's compute capability."""
        return next(value for least, value in rows if self.machine.compute_capability >= least)

    @property
    def generation(self) -> Generation:
        """Return the generation of GPUs, which selects the row of the limits."""
        return next(name for least, name in self.constants.generations if self.machine.compute_capability >= least)

    def limit(self, rows: Mapping[Generation, ConstantRow]) -> float:
        """Return the limit of one channel."""
        return rows[self.generation][min(self.machine.nodes, 3) - 1]

    @property
    def ll_limit(self) -> float:
        """Return the limit of LL, which depends on the GPU on one node, and on the processor on several."""
        row = nccl.GENERATIONS.index(self.generation) if self.machine.nodes == 1 else int(self.machine.cpu_vendor == "amd")
        return self.constants.ll_limit[row][min(self.machine.nodes, 3) - 1]

    # --- values that depend on the size

    def _size_factor(self, algorithm: str, protocol: str) -> float:
        doublings = int(self.nbytes).bit_length() - 7  # of 64 B
        if self.collective != "all_reduce" or not 0 <= doublings < nccl.SIZE_FACTORS_USED.get(algorithm, 0):
            return 1.0
        heeded = self.machine.compute_capability >= nccl.NVLS_TREE_FACTOR_FROM and self.machine.cpu_vendor != "arm"
        return nccl.SIZE_FACTORS[protocol][doublings] if algorithm == "Tree" or heeded else 1.0

    def _plateau(self, algorithm: str, protocol: str) -> float:
        machine = self.machine
        if (algorithm, protocol, self.collective) != ("Ring", "Simple", "all_reduce") or machine.nodes == 1:
            return 1.0
        per_rank = self.constants.plateau_bytes or nccl.PLATEAU_BYTES_PER_CHANNEL * self.all_channels
        return self._of_capability(self.constants.plateau_factors) if self.nbytes >= machine.ranks * per_rank else 1.0

    def _bytes_per_channel(self, algorithm: str, protocol: str) -> int:
        if algorithm == "CollNetChain":
            return self.constants.collnet_threads * nccl.COLLNET_BYTES_PER_THREAD
        ring = self.machine.ring
        few = (algorithm, protocol) == ("Ring", "Simple") and ring.channels * ring.intra <= nccl.PCIE_GEN3 * GB
        each = nccl.BYTES_PER_THREAD[protocol] * (self.machine.ranks if (algorithm, protocol) == ("Ring", "LL") else 1)
        return (nccl.FEW_THREADS if few else nccl.THREADS[protocol]) * each

    def _collnet_channels(self) -> int:
        """Return the number of channels, which NCCL lowers to 16, 8, .. for few bytes; midway it halves the minimum bytes per channel."""
        heads = self.machine.collnet.channels if self.machine.collnet else 1
        per_channel, count, floor = self.constants.collnet_threads * heads * nccl.COLLNET_BYTES_PER_THREAD, self.all_channels, 16
        while floor and self.nbytes < count * per_channel:
            while self.nbytes < count * per_channel and count > floor:
                per_channel = per_channel // 2 if count == floor + floor // 2 else per_channel
                count -= 1
            floor //= 2
        return count


# --- latency, microseconds -------------------------------------------------------------------------------------------


def _ring_latency(case: TunerCase, place: int) -> float:
    if case.collective in _PIPELINES:
        row = "Tree" if PROTOCOLS[place] == "Simple" and not case.machine.same_channels else "Ring"
        hop = case.constants.network_hop[row][place] if case.machine.nodes > 1 else case.local_hop(row, place)
        return hop if case.machine.same_channels else case.steps * hop
    post = case.constants.post_overhead[case.machine.cpu_vendor] * (3 if PROTOCOLS[place] == "Simple" else 1)
    local = max(case.local_hop("Ring", place), post if case.machine.nodes > 1 else 0.0)
    return (case.steps - case.network_steps) * local + case.network_steps * case.network_hop("Ring", place)


def _tree_latency(case: TunerCase, place: int) -> float:
    return 2 * (case.peers * case.local_hop("Tree", place) + case.doublings * case.network_hop("Tree", place))


def _collnet_latency(algorithm: str) -> Callable[[TunerCase, int], float]:
    def latency(case: TunerCase, place: int) -> float:
        local = min(1, case.peers) * case.local_hop(algorithm, place) + case.peers * case.constants.arity_latency
        return 2 * local + case.network_hop(algorithm, place)

    return latency


def _chain_latency(case: TunerCase, place: int) -> float:
    return 2 * case.peers * case.local_hop("CollNetChain", place) + case.network_hop("CollNetChain", place)


def _nvls_latency(case: TunerCase, place: int) -> float:
    return case.local_hop("NVLS", place) + (case.network_hop("NVLS", place) if case.machine.nodes > 1 else 0.0)


def _nvls_tree_latency(case: TunerCase, place: int) -> float:
    return case.local_hop("NVLSTree", place) + 2 * case.doublings * case.network_hop("NVLSTree", place)


def _pat_latency(case: TunerCase, place: int) -> float:
    hop, rank = nccl.PAT_LATENCY
    return case.doublings * case.network_hop("PAT", place) * hop + case.machine.ranks * rank


_LATENCIES: Mapping[str, Callable[[TunerCase, int], float]] = {
    "Tree": _tree_latency,
    "Ring": _ring_latency,
    "CollNet": _collnet_latency("CollNet"),
    "CollNetDirect": _collnet_latency("CollNetDirect"),
    "CollNetChain": _chain_latency,
    "NVLS": _nvls_latency,
    "NVLSTree": _nvls_tree_latency,
    "PAT": _pat_latency,
}


# --- bandwidth, GB/s of the collective's bytes -----------------------------------------------------------------------


def _ring_bandwidth(case: TunerCase, place: int) -> float:
    ring, constants = case.machine.ring, case.constants
    bus = case.total_bandwidth(ring, "Ring")
    if PROTOCOLS[place] == "LL":
        gathers = case.machine.nodes == 1 and case.collective not in ("all_reduce", "reduce")
        bus = min(case.ll_limit, bus * (constants.gather_ll_share if gathers else constants.ring_ll_share))
    elif PROTOCOLS[place] == "LL128":
        share = constants.lone_ll128_share if case.machine.local_ranks < 2 else nccl.RING_LL128_SHARE
        bus = min(bus * share, ring.channels * case.limit(constants.ring_ll128_limit))
    return bus * case.machine.ranks / case.steps


def _tree_bandwidth(case: TunerCase, place: int) -> float:
    tree, constants = case.machine.tree, case.constants
    bus = min(case.total_bandwidth(tree, "Tree") * nccl.TREE_SHARE, tree.channels * case.limit(constants.tree_limit))
    if PROTOCOLS[place] == "LL":
        bus = min(bus * nccl.TREE_LL_SHARE, case.ll_limit)
    elif PROTOCOLS[place] == "LL128":
        share = nccl.TREE_LL128_SHARE[case.machine.nodes > 1]
        bus = min(bus * share, tree.channels * case.limit(constants.tree_ll128_limit))
    plain = case.machine.plain_tree or case.machine.local_ranks == 1
    return bus * (constants.plain_tree_share if plain else 1.0) / 2


def _collnet_bandwidth(case: TunerCase, place: int) -> float:
    return case.total_bandwidth(case.machine.collnet, "CollNet") / 2 if case.machine.collnet else 0.0


def _collnet_direct_bandwidth(case: TunerCase, place: int) -> float:
    collnet, machine = case.machine.collnet, case.machine
    if collnet is None:
        return 0.0
    if case.collective in GATHERS:
        return machine.local_ranks * min(collnet.intra, nccl.COLLNET_GATHER_SHARE * collnet.inter) / GB
    per_channel = machine.local_ranks / collnet.channels  # GPUs for each NIC
    share = nccl.COLLNET_DIRECT_SHARE if machine.compute_capability >= 90 else 1.0
    return case.total_bandwidth(collnet, "CollNetDirect") / (per_channel - (per_channel - 1) / 2) * share / 2


def _nvls_bandwidth(algorithm: str) -> Callable[[TunerCase, int], float]:
    def bandwidth(case: TunerCase, place: int) -> float:
        nvls, machine = case.machine.nvls, case.machine
        if nvls is None:
            return 0.0
        reduces, tree = case.collective == "all_reduce", algorithm == "NVLSTree"
        if (share := case.constants.nvls_share) is not None:
            outward = nvls.inter / (2 if tree and machine.nodes > 2 else 1)
            return nvls.channels * min(nvls.intra, outward) / GB * share
        pipelined = 2.0 if reduces else (machine.local_ranks - 1) / machine.local_ranks
        intra = nvls.intra * nccl.NVLS_EFFICIENCY[case.generation] * (nvls.channels - 1) / nvls.channels * pipelined
        inter = nvls.inter * (2 if tree and machine.nodes <= 2 else 1)
        limit = case.limit(case.constants.nvls_tree_limit) if tree else math.inf
        bus = nvls.channels * min(intra / GB, inter / GB, limit)
        return bus * machine.ranks / case.steps if reduces else bus

    return bandwidth


def _pat_bandwidth(case: TunerCase, place: int) -> float:
    return case.total_bandwidth(case.machine.tree, "PAT") * nccl.PAT_SHARE


_BANDWIDTHS: Mapping[str, Callable[[TunerCase, int], float]] = {
    "Tree": _tree_bandwidth,
    "Ring": _ring_bandwidth,
    "CollNet": _collnet_bandwidth,
    "CollNetDirect": _collnet_direct_bandwidth,
    "CollNetChain": _collnet_bandwidth,
    "NVLS": _nvls_bandwidth("NVLS"),
    "NVLSTree": _nvls_bandwidth("NVLSTree"),
    "PAT": _pat_bandwidth,
}
