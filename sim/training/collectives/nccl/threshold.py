"""Which algorithm and protocol did NCCL choose before it had a tuner? Trees up to one size, LL up to another (2.4; 2.3 had no trees).

An all-reduce uses trees up to the size at which two linear cost models cross. Their constants are the same for all machines
(``ncclTreeThreshold``, NCCL 2.4 `src/init.cc`). The threshold is infinite with NVLink on two nodes and zero inside one node. LL is
used while each thread of the channels that it would fill has few bytes (``getKernelInfo``, `src/misc/enqueue.cc`). There is no LL128.
The NCCL_ALGO and NCCL_PROTO of later versions represent an NCCL_TREE_THRESHOLD and NCCL_LL_THRESHOLD of zero or infinity.
Not modeled: these versions' own search for rings; the simulator's search is used.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from sim.spec.algorithms import minor_release
from sim.spec.yaml import SpecError
from sim.training.collectives.nccl.cost import MICROSECOND, TunerMachine

VERSIONS = ("2.3", "2.4")

RING_BANDWIDTH, RING_HOP, TREE_HOP_INSIDE, TREE_HOP = 5e9, 6.0, 4.0, 15.0
"""Bytes/s (of one channel over NVLink, or of all channels over PCIe) and latencies in microseconds (src/init.cc, ``ncclTreeThreshold``)."""
PCIE_TREE_SHARE, NVLINK_TREE_SHARE = 2 / 3, 3 / 4
LL_THREADS = (64, 256)
LL_BYTES_PER_THREAD = 8
THREAD_THRESHOLD = {False: 32, True: 64}
"""Bytes per thread up to which LL is used: False before Volta, True from Volta on. Twice that on several nodes, four times that in trees
(src/include/enqueue.h, ``ncclThreadThreshold``)."""


class TunerLine(NamedTuple):
    """NCCL's linear cost model of an algorithm: latency (s) and bandwidth (bytes/s)."""

    latency: float
    bandwidth: float


def lines(machine: TunerMachine) -> dict[str, TunerLine]:
    """Return NCCL's cost models of rings and trees on *machine*."""
    nvlink = machine.intra_path == "nvlink"
    ring = RING_BANDWIDTH * machine.ring.channels if nvlink else RING_BANDWIDTH
    tree = ring * (NVLINK_TREE_SHARE * (2 if machine.nodes == 2 else 1) if nvlink else PCIE_TREE_SHARE)
    levels = machine.nodes.bit_length() - 1
    inside = machine.ranks // machine.nodes - 1
    return {
        "Ring": TunerLine(RING_HOP * (machine.ranks - 1) * MICROSECOND, ring),
        "Tree": TunerLine((TREE_HOP * levels + TREE_HOP_INSIDE * inside) * MICROSECOND, tree),
    }


def tree_threshold(machine: TunerMachine) -> float:
    """Return the size (bytes) up to which an all-reduce uses trees: the default of NCCL_TREE_THRESHOLD."""
    ring, tree = lines(machine).values()
    if machine.nodes < 2 or ring.latency <= tree.latency:
        return 0.0
    if tree.bandwidth > ring.bandwidth:
        return math.inf
    return ring.bandwidth * tree.bandwidth / (ring.bandwidth - tree.bandwidth) * (ring.latency - tree.latency)


def ll_channels(nbytes: float, machine: TunerMachine, algorithm: str, pieces: int) -> tuple[float, int]:
    """Return the size (bytes) up to which LL is used, and the number of channels it fills with *nbytes*; a loop has *pieces* pieces."""
    threads, most = LL_THREADS
    while math.ceil(nbytes / (threads * pieces)) > LL_BYTES_PER_THREAD and 2 * threads <= most:
        threads *= 2
    channels = min(max(1, math.ceil(nbytes / (threads * pieces * LL_BYTES_PER_THREAD))), machine.ring.channels)
    each = THREAD_THRESHOLD[machine.compute_capability >= 70] * (2 if machine.nodes > 1 else 1) * (4 if algorithm == "Tree" else 1)
    return float(channels * threads * pieces * each), channels


def has_trees(release: str) -> bool:
    """Return whether *release*, which has no tuner, has trees: 2.4 and its patches."""
    return minor_release(release) == 4


def by_threshold(
    collective: str, nbytes: float, machine: TunerMachine, version: str, algorithms: str | None, protocols: str | None
) -> tuple[str, str, int]:
    """Return the algorithm, protocol and channels that NCCL *version* chooses. Raise SpecError for names that it does not support."""
    allowed_algorithms = _allowed_names("NCCL_ALGO", algorithms, ("Ring", "Tree") if has_trees(version) else ("Ring",), version)
    allowed_protocols = _allowed_names("NCCL_PROTO", protocols, ("LL", "Simple"), version)
    reduces = collective == "all_reduce" and has_trees(version)
    tree = reduces and "Tree" in allowed_algorithms and ("Ring" not in allowed_algorithms or nbytes <= tree_threshold(machine))
    algorithm = "Tree" if tree else "Ring"
    pieces = machine.ranks if algorithm == "Ring" and collective not in ("broadcast", "reduce") else 1
    most, channels = ll_channels(nbytes, machine, algorithm, pieces)
    low = "LL" in allowed_protocols and ("Simple" not in allowed_protocols or nbytes <= most)
    return algorithm, "LL" if low else "Simple", channels if low else machine.ring.channels


def _allowed_names(variable: str, text: str | None, all_names: tuple[str, ...], version: str) -> tuple[str, ...]:
    """Return the names in *all_names* that *text* allows: those it lists, or after ``^`` all others."""
    if text is None:
        return all_names
    listed = {name.strip().lower() for name in text.strip().removeprefix("^").split(",")}
    if unknown := sorted(listed - {name.lower() for name in all_names}):
        raise SpecError(f"{variable}: '{unknown[0]}' is not known to NCCL {version}; write any of {', '.join(all_names)}")
    allowed = tuple(name for name in all_names if (name.lower() in listed) != text.strip().startswith("^"))
    if not allowed:
        raise SpecError(f"{variable}={text} allows NCCL {version} nothing; write any of {', '.join(all_names)}")
    return allowed
