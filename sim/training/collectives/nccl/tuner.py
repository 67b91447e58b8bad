"""Which algorithm, protocol and number of channels does NCCL choose for a collective? The fastest pair in its own cost model.

Every algorithm and protocol that can run on the machine gets an estimated time (`cost`, with the constants of its release from
`constants`). The shortest time wins; among equal times, the first in NCCL's order (NVIDIA/nccl `src/graph/tuning.cc`, `src/enqueue.cc`).
2.3 and 2.4 had no tuner (`threshold`). `search` derives the channels of a node from its link graph. NCCL_ALGO and NCCL_PROTO restrict the
choice by name.
The times only choose; they do not predict. Not modeled: aggregated operations, mixed GPUs, POWER, MNNVL, C2C, tuner plug-ins, CUDA
11.8's rule against LL128 between two H100s, and the channels that CollNet adds.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from functools import lru_cache
from typing import NamedTuple, get_args

from sim.spec import extensions
from sim.spec.algorithms import OTHER_ALGORITHMS
from sim.spec.yaml import SpecError
from sim.training.collectives.nccl import constants as nccl
from sim.training.collectives.nccl import threshold
from sim.training.collectives.nccl.constants import PROTOCOLS, TunerConstants, constants_of
from sim.training.collectives.nccl.cost import GATHERS, ChannelPattern, Collective, TunerCase, TunerMachine

__all__ = ["ChannelPattern", "ConsideredPair", "TunerChoice", "TunerMachine", "choose"]

COLLECTIVES: tuple[Collective, ...] = get_args(Collective)


class ConsideredPair(NamedTuple):
    """A pair of algorithm and protocol that can run: its estimated time (s), latency (s) and bandwidth (bytes/s)."""

    algorithm: str
    protocol: str
    time: float
    latency: float
    bandwidth: float


class TunerChoice(NamedTuple):
    """NCCL's choice, its estimated *time* (s), and the *table* of all pairs that it considered."""

    algorithm: str
    protocol: str
    channels: int
    time: float
    table: tuple[ConsideredPair, ...]


class _AllowedNames(NamedTuple):
    """The *names* that an environment variable allows, or None if it sets no restriction."""

    variable: str
    text: str | None
    names: frozenset[str] | None

    def allows(self, name: str) -> bool:
        return self.names is None or name in self.names


@lru_cache(maxsize=4096)
def choose(
    collective: Collective,
    nbytes: float,
    machine: TunerMachine,
    version: str = "2.30",
    algorithms: str | None = None,
    protocols: str | None = None,
) -> TunerChoice:
    """Return NCCL's choice for a collective on *nbytes*: the whole vector, in gathers and scatters that of all ranks together.

    *algorithms* and *protocols* are values of NCCL_ALGO and NCCL_PROTO ("ring,tree", "^LL"; in 2.30 also "ring;allreduce:tree").
    As in NCCL, setting *protocols* lifts the rule against LL128 on untested paths, and 2.10 applies NCCL_ALGO to all_reduce only.
    Raise SpecError for names that the version does not support, for more channels than it has, and if none of the named pairs can run.
    """
    constants = constants_of(version)
    _check(collective, nbytes, machine, constants)
    case = TunerCase(collective, nbytes, machine, constants)
    if constants.name in threshold.VERSIONS:
        return _by_threshold(collective, nbytes, machine, version, algorithms, protocols)
    allowed_algorithms = _allowed_names("NCCL_ALGO", algorithms, constants.algorithms, case)
    if constants.one_list and collective != "all_reduce":
        allowed_algorithms = allowed_algorithms._replace(names=None)
    allowed_protocols = _allowed_names("NCCL_PROTO", protocols, PROTOCOLS, case)
    table = [
        _considered(case, algorithm, protocol)
        for algorithm in constants.algorithms
        if allowed_algorithms.allows(algorithm) and _refusal(case, algorithm) is None
        for protocol in _protocols(algorithm)
        if allowed_protocols.allows(protocol) and (protocol != "LL128" or allowed_protocols.names is not None or _ll128_is_safe(case))
    ]
    if not table:
        raise SpecError(_nothing_runs(case, allowed_algorithms, allowed_protocols))
    best = min(table, key=lambda row: row.time)
    return TunerChoice(best.algorithm, best.protocol, case.channels(best.algorithm, best.protocol), best.time, tuple(table))


def _by_threshold(
    collective: Collective, nbytes: float, machine: TunerMachine, version: str, algorithms: str | None, protocols: str | None
) -> TunerChoice:
    """Return the choice of a version without a tuner, with the two linear models that its threshold compares."""
    algorithm, protocol, channels = threshold.by_threshold(collective, nbytes, machine, version, algorithms, protocols)
    lines = threshold.lines(machine)
    trees = collective == "all_reduce" and threshold.has_trees(version) and machine.nodes > 1 and algorithms is None
    names = ("Tree", "Ring") if trees else (algorithm,)
    rows = tuple(ConsideredPair(name, protocol, line.latency + nbytes / line.bandwidth, *line) for name in names for line in [lines[name]])
    return TunerChoice(algorithm, protocol, channels, next(row.time for row in rows if row.algorithm == algorithm), rows)


def _considered(case: TunerCase, algorithm: str, protocol: str) -> ConsideredPair:
    latency, bandwidth = case.latency(algorithm, protocol), case.bandwidth(algorithm, protocol)
    return ConsideredPair(algorithm, protocol, latency + case.nbytes / bandwidth, latency, bandwidth)


def _check(collective: str, nbytes: float, machine: TunerMachine, constants: TunerConstants) -> None:
    if collective not in COLLECTIVES:
        raise SpecError(f"'{collective}' is not a collective that NCCL tunes; write one of {', '.join(COLLECTIVES)}")
    if not (math.isfinite(nbytes) and nbytes >= 0):
        raise SpecError(f"a collective of {nbytes} bytes is impossible; write zero or more")
    if not 1 <= machine.nodes <= machine.ranks or machine.ranks < 2:
        raise SpecError(f"NCCL needs at least two ranks, and one on each node; not {machine.ranks} on {machine.nodes} nodes")
    for pattern in (machine.ring, machine.tree, machine.nvls, machine.collnet):
        if pattern and not 1 <= pattern.channels <= constants.max_channels:
            raise SpecError(f"{pattern.channels} channels are impossible: NCCL {constants.release} has 1 to {constants.max_channels}")
        if pattern and not (pattern.intra > 0 and pattern.inter > 0):
            raise SpecError(f"channels of {pattern.intra:g} and {pattern.inter:g} bytes/s carry nothing; both must be above zero")


# --- which algorithms can run ----------------------------------------------------------------------------------------


def _protocols(algorithm: str) -> tuple[str, ...]:
    """Return the protocols that *algorithm* supports."""
    return PROTOCOLS if algorithm in ("Tree", "Ring") else ("Simple",)


def _ll128_is_safe(case: TunerCase) -> bool:
    """Return whether LL128 is on by default: only over NVLink, and only to NICs that are reached without the processor."""
    machine, tested = case.machine, case.constants.ll128_capabilities
    validated = machine.compute_capability in tested if tested else machine.compute_capability >= nccl.LL128_LEAST_CAPABILITY
    return validated and (machine.intra_path == "nvlink" or machine.ranks == machine.nodes) and (machine.nodes == 1 or machine.nic_near)


def _refusal(case: TunerCase, algorithm: str) -> str | None:
    """Return why *algorithm* cannot run, or None."""
    return next((f"needs {need}" for holds, need in _needs(case, algorithm) if not holds), None)


def _needs(case: TunerCase, algorithm: str) -> list[tuple[bool, str]]:
    """Return the requirements of *algorithm* on collective and machine, and whether each is met (tuning.cc, enqueue.cc, nvls.cc)."""
    machine, nvls, collnet = case.machine, case.machine.nvls, case.machine.collnet
    only_reduces = (case.collective == "all_reduce", "all_reduce")
    reduces_or_gathers = (case.collective in ("all_reduce", *GATHERS), "all_reduce, all_gather or reduce_scatter")
    heads = case.collective not in GATHERS or machine.nodes == 1 or (collnet is not None and collnet.channels >= machine.local_ranks)
    network = [
        (collnet is not None, "a network that reduces"),
        (machine.nodes >= nccl.COLLNET_LEAST_NODES, f"{nccl.COLLNET_LEAST_NODES} nodes or more"),
    ]
    few = (machine.local_ranks <= nccl.COLLNET_MOST_RANKS, f"at most {nccl.COLLNET_MOST_RANKS} ranks per node")
    each = (heads, "a NIC that reduces for every rank of a node")
    switch = [
        (nvls is not None, "NVSwitch and GPUs that reduce in it, from compute capability 9.0"),
        (machine.local_ranks >= nccl.NVLS_LEAST_RANKS, f"{nccl.NVLS_LEAST_RANKS} ranks or more per node"),
        (nvls is None or nvls.channels > 1, "two channels or more"),
        (
            only_reduces[0] or machine.local_ranks <= nccl.NVLS_MOST_HEADS,
            f"at most {nccl.NVLS_MOST_HEADS} ranks per node except for all_reduce",
        ),
    ]
    needs: dict[str, list[tuple[bool, str]]] = {
        "Tree": [only_reduces],
        "CollNet": [only_reduces, *network],
        "CollNetDirect": [reduces_or_gathers, *network, (machine.nvswitch, "NVSwitch"), few, each],
        "CollNetChain": [only_reduces, *network, few],
        "NVLS": [reduces_or_gathers, *switch, (machine.nodes == 1 or collnet is not None, "one node, or a network that reduces"), each],
        "NVLSTree": [only_reduces, *switch, (machine.nodes > 1, "several nodes")],
        "PAT": [
            (case.collective in GATHERS, "all_gather or reduce_scatter"),
            (machine.ranks == machine.nodes, "one rank per node"),
            (machine.compute_capability >= nccl.PAT_LEAST_CAPABILITY, "compute capability 6.0 or newer"),
        ],
    }
    return needs.get(algorithm, [])


def _nothing_runs(case: TunerCase, allowed_algorithms: _AllowedNames, allowed_protocols: _AllowedNames) -> str:
    settings = " and ".join(f"{name.variable}={name.text}" for name in (allowed_algorithms, allowed_protocols) if name.text is not None)
    allowed = [algorithm for algorithm in case.constants.algorithms if allowed_algorithms.allows(algorithm)]
    reasons = [f"{algorithm} {_refusal(case, algorithm) or _unsupported(algorithm, allowed_protocols)}" for algorithm in allowed]
    able = [algorithm for algorithm in case.constants.algorithms if _refusal(case, algorithm) is None]
    runs = ", ".join(f"{algorithm} ({', '.join(_protocols(algorithm))})" for algorithm in able)
    return f"{settings} allows no way to run {case.collective}: {'; '.join(reasons) or 'the list is empty'}. What can run here: {runs}"


def _unsupported(algorithm: str, allowed_protocols: _AllowedNames) -> str:
    return f"does not support {', '.join(sorted(allowed_protocols.names or ())) or 'any protocol'}"


# --- NCCL_ALGO and NCCL_PROTO ----------------------------------------------------------------------------------------


def _allowed_names(variable: str, text: str | None, all_names: Collection[str], case: TunerCase) -> _AllowedNames:
    """Return the names that *text* allows for the collective; a list after ``function:`` applies to that function only."""
    names = None
    for place, entry in enumerate(text.split(";") if text is not None else ()):
        function, colon, listed = entry.rpartition(":")
        if place and not colon:
            raise SpecError(f"{variable}={text}: every list except the first must name its function, as in ring;allreduce:tree")
        if colon and case.constants.one_list:
            raise SpecError(f"{variable}={text}: NCCL {case.constants.release} takes one list for all functions, as in ring,tree")
        if not colon or _parsed_function(variable, function) == case.collective:
            names = _parsed_list(variable, listed, all_names, case.constants)
    return _AllowedNames(variable, text, names)


def _parsed_function(variable: str, text: str) -> Collective:
    for collective in COLLECTIVES:
        if text.strip().lower().replace("_", "") == collective.replace("_", ""):
            return collective
    spellings = ", ".join(collective.replace("_", "") for collective in COLLECTIVES)
    raise SpecError(f"{variable}: '{text}' is not an NCCL function; write one of {spellings}")


def _parsed_list(variable: str, text: str, all_names: Collection[str], constants: TunerConstants) -> frozenset[str]:
    """Return the names in a comma-separated list, or, if it begins with ``^``, all other names."""
    spelled = {name.lower(): name for name in all_names}
    words = [name.strip() for name in text.strip().removeprefix("^").split(",")]
    for name in words:
        if name.lower() not in spelled:
            others = (
                f"; for all_reduce also one of {', '.join((*OTHER_ALGORITHMS, *extensions.names(extensions.COLLECTIVES)))}"
                if variable == "NCCL_ALGO"
                else ""
            )
            raise SpecError(f"{variable}: '{name}' is not known to NCCL {constants.release}; write any of {', '.join(all_names)}{others}")
    chosen = frozenset(spelled[name.lower()] for name in words)
    return frozenset(all_names) - chosen if text.strip().startswith("^") else chosen
