"""Which GPUs of which nodes does each of several jobs get? Those that it names, or the first that no earlier job has.

A job specifies ``nodes`` (numbers from 0, as in ``4..7``), ``placement`` (number of GPUs on each node in turn, as in ``1+2``; with
``nodes``, a single number applies to each of them) or ``gpus`` (by number, on each of its nodes). Without ``nodes``, ``placement`` starts
at the first node, with 0 for a node that the job skips, and ``gpus`` are on the first node. A job that specifies nothing takes every GPU.
"""

from __future__ import annotations

from collections.abc import Sequence

from sim.cluster.build import Placement, place
from sim.spec.hardware import Hardware
from sim.spec.workload import JobSpec
from sim.spec.yaml import SpecError
from sim.units import pluralized


class Places:
    """The GPUs of a cluster, which jobs take in order."""

    def __init__(self, hardware: Hardware) -> None:
        self._gpus_of = {part.node: part.gpus for part in place(hardware)}
        self._name = hardware.name
        self._one_kind = len(hardware.groups) == 1
        self._taken: dict[int, dict[int, int]] = {}

    def take(self, number: int, entry: JobSpec) -> tuple[Placement, ...]:
        """Return the placement of job *number*, and take its GPUs. Raise SpecError, without a file position, if it cannot run there."""
        nodes = self._nodes(entry)
        if entry.placement is not None:
            wanted = self._first_free(nodes, entry.placement, each=bool(entry.nodes))
        elif entry.gpus:
            wanted = [Placement(node, entry.gpus) for node in (nodes if entry.nodes else nodes[:1])]
        else:
            wanted = [Placement(node, self._gpus_of[node]) for node in nodes]
        for part in wanted:
            self._check(part)
        for part in wanted:
            self._taken.setdefault(part.node, {}).update(dict.fromkeys(part.gpus, number))
        return tuple(wanted)

    def _nodes(self, entry: JobSpec) -> list[int]:
        """Return the nodes that *entry* names, in order; all nodes if it names none."""
        if not entry.nodes:
            return list(self._gpus_of)
        beyond = next((last for _, last in entry.nodes if last not in self._gpus_of), None)
        if beyond is not None:
            more = f"; --nodes {beyond + 1} adds identical ones" if self._one_kind else ""
            raise SpecError(f"nodes: there is no node {beyond}; {self._name} has {_numbered(len(self._gpus_of), 'node')}{more}")
        numbers = [node for first, last in entry.nodes for node in range(first, last + 1)]
        if twice := next((node for node in numbers if numbers.count(node) > 1), None) if len(set(numbers)) < len(numbers) else None:
            raise SpecError(f"nodes: node {twice} appears twice; name each node once")
        return sorted(numbers)

    def _first_free(self, nodes: Sequence[int], placement: str, each: bool) -> list[Placement]:
        try:
            counts = [int(part) for part in placement.split("+")]
        except ValueError:
            raise SpecError(f"placement {placement or repr('')}: write the GPUs of each node joined by '+', for example 1+2") from None
        if each and len(counts) == 1:
            counts *= len(nodes)
        if len(counts) > len(nodes) or (each and len(counts) < len(nodes)):
            more = f"; --nodes {len(counts)} adds identical ones" if self._one_kind else ""
            there = f"nodes names {len(nodes)}" if each else f"there {_are(len(nodes))}{more}"
            raise SpecError(f"placement {placement}: names {len(counts)} nodes, but {there}")
        if not any(counts):
            raise SpecError(f"placement {placement}: a job needs a GPU; write 1 or more for at least one node")
        return [self._free(node, count, placement) for node, count in zip(nodes, counts, strict=False) if count]

    def _free(self, node: int, count: int, placement: str) -> Placement:
        """Return the first *count* GPUs of *node* that no job has."""
        if not 0 < count <= len(self._gpus_of[node]):
            raise SpecError(
                f"placement {placement}: cannot take {count} GPUs of node {node}, which has {_numbered(len(self._gpus_of[node]), 'GPU')}"
            )
        free = tuple(gpu for gpu in self._gpus_of[node] if gpu not in self._taken.get(node, {}))
        if count > len(free):
            raise SpecError(f"placement {placement} needs {pluralized(count, 'free GPU')} on node {node}, which has {len(free)}")
        return Placement(node, free[:count])

    def _check(self, part: Placement) -> None:
        """Raise SpecError unless all GPUs of *part* exist, occur once, and are free."""
        gpus, taken = self._gpus_of[part.node], self._taken.get(part.node, {})
        for index, gpu in enumerate(part.gpus):
            if gpu not in gpus:
                raise SpecError(f"there is no GPU {gpu} on node {part.node}; it has {_numbered(len(gpus), 'GPU')}")
            if gpu in part.gpus[:index]:
                raise SpecError(f"gpus: GPU {gpu} appears twice; name each GPU once")
            if gpu in taken:
                raise SpecError(
                    f"GPU {gpu} of node {part.node} belongs to an earlier job, jobs.{taken[gpu]}; give each job its own 'nodes', "
                    "'placement' or 'gpus'"
                )


def nodes_of(hardware: Hardware, placement: Sequence[Placement]) -> Hardware:
    """Return *hardware* with only the nodes that *placement* uses, counted in each group."""
    numbers, first, groups = {part.node for part in placement}, 0, []
    for group in hardware.groups:
        used = group.count
        if group.role == "worker" and group.node.gpu_count:
            used = sum(node in numbers for node in range(first, first + group.count))
            first += group.count
        groups.append(group.model_copy(update={"count": used}))
    return hardware.model_copy(update={"groups": tuple(groups)})


def _numbered(count: int, what: str) -> str:
    """Return the numbers of *count* things, as in 'GPUs 0 to 7'."""
    return f"only {what} 0" if count == 1 else f"{what}s 0 to {count - 1}"


def _are(count: int) -> str:
    return "is 1" if count == 1 else f"are {count}"
