"""Which ranks of a layout step alike, though the nodes of a stage differ? Classes by what each sends, with whom, over which links.

Groups and messages between stages are activities, links of nodes and ranks what they cross: the coarsest equitable partition of these
(`sim.cluster.symmetry`) puts ranks together whose groups lie alike, all the way round. Members of a class arrive, start and wait alike,
so one simulated rank stands for each; on a link that stands for its class the loads of all groups that cross it add up.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from sim.cluster.symmetry import refine
from sim.parallel.mesh import GroupAxis, Mesh
from sim.parallel.program import Op, Program, Send, Start

RankGroup = tuple[int, ...]
Loads = Mapping[str, float]
"""Bytes on each live link per unit of an operation."""


@dataclass(frozen=True)
class Alike:
    """Classes of ranks, groups and links of one layout."""

    rank: Sequence[int]
    """The first rank of the class of each rank."""
    groups: Mapping[tuple[str, RankGroup], Sequence[RankGroup]]
    """By kind ("send" or an axis) and members: all groups of its class."""
    links: frozenset[str]
    """The first link of each class."""

    def size(self, rank: int) -> int:
        """Return how many ranks *rank* stands for."""
        return self.rank.count(rank)


def alike(mesh: Mesh, kinds: Iterable[tuple[str, Sequence[tuple[RankGroup, Sequence[Loads]]]]], capacity: Mapping[str, float]) -> Alike:
    """Return the classes of ranks of *mesh*; *kinds* gives every group of each kind with what its operations load.

    *capacity* is that of every link loaded.
    """
    names: list[tuple[str, RankGroup]] = []
    activities: list[tuple[Hashable, Mapping[str, Hashable]]] = []
    for kind, groups in kinds:
        for members, loads in groups:
            crossed: dict[str, Hashable] = {f"rank{rank}": kind != "send" or place for place, rank in enumerate(members)}
            for link in dict.fromkeys(link for load in loads for link in load):
                crossed[link] = tuple(load.get(link, 0.0) for load in loads)
            names.append((kind, members))
            activities.append((kind, crossed))
    of_rank: dict[str, Hashable] = {f"rank{rank}": ("stage", mesh.stage_of(rank)) for rank in range(mesh.gpus)}
    of_link = {link: (link.partition(".")[2], rate) for link, rate in capacity.items()}
    activity_class, link_class = refine(activities, of_rank | of_link)
    first: dict[int, str] = {}
    for link, number in link_class.items():
        first.setdefault(number, link)
    together: dict[int, list[RankGroup]] = defaultdict(list)
    for (_, members), number in zip(names, activity_class, strict=True):
        together[number].append(members)
    ranks = [int(first[link_class[f"rank{rank}"]].removeprefix("rank")) for rank in range(mesh.gpus)]
    groups_of = {name: together[number] for name, number in zip(names, activity_class, strict=True)}
    return Alike(ranks, groups_of, frozenset(first.values()))


def operations(programs: Iterable[Program]) -> dict[GroupAxis, list[tuple[Op, float]]]:
    """Return the smallest and the largest message of each operation that *programs* start among the ranks of each axis."""
    sizes: dict[tuple[GroupAxis, Op], set[float]] = defaultdict(set)
    for program in programs:
        for each in program:
            if isinstance(each, Start):
                sizes[each.axis, each.op].add(each.nbytes)
    messages_of: dict[GroupAxis, list[tuple[Op, float]]] = defaultdict(list)
    for (axis, op), of in sizes.items():
        messages_of[axis] += [(op, nbytes) for nbytes in sorted({min(of), max(of)})]
    return messages_of


def sends(mesh: Mesh, programs: Sequence[Program]) -> list[RankGroup]:
    """Return the pairs of ranks between which messages of a pipeline go, *programs* being those of its stages."""
    targets = [sorted({each.stage for each in program if isinstance(each, Send)}) for program in programs]
    return [(rank, mesh.group(rank, "pipeline")[target]) for rank in range(mesh.gpus) for target in targets[mesh.stage_of(rank)]]
