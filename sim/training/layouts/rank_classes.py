"""Which ranks of a layout have identical steps, even if the nodes of a stage differ? Classes by what each sends, to whom, over which links.

Groups and messages between stages are activities; the links of nodes, and ranks, are the resources they use. The coarsest equitable
partition of these (`sim.cluster.symmetry`) puts ranks into one class if their groups are placed equally, transitively. Members of a class
arrive, start and wait at the same times, so one simulated rank represents all of them. On the link that represents its class, the loads of
all groups that use it add up. Ranks of one node may be alike, too, for example those of equal trays in a rack.
Limit: a wait names the link that represents its class, for example NIC 0 for all NICs.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import NamedTuple

from sim.cluster.symmetry import refine
from sim.parallel.mesh import GroupAxis, Mesh
from sim.parallel.program import Op, Program, Send, Start

RankGroup = tuple[int, ...]
Loads = Mapping[str, float]
"""Bytes on each live link per unit of an operation's volume."""


class GroupOperations(NamedTuple):
    """What a group does: a key that is equal for operations that take as long without contention, and the loads of each operation."""

    ranks: RankGroup
    loads: Sequence[Loads]
    alone: Hashable = None


@dataclass(frozen=True)
class RankClasses:
    """Classes of ranks, groups and links of one layout."""

    rank: Sequence[int]
    """The first rank of the class of each rank."""
    groups: Mapping[tuple[str, RankGroup], Sequence[RankGroup]]
    """All groups of the class of each group, which is identified by its kind ("send" or an axis) and its members."""
    links: frozenset[str]
    """The first link of each class."""

    def size(self, rank: int) -> int:
        """Return how many ranks *rank* represents."""
        return self.rank.count(rank)


def rank_classes(
    mesh: Mesh, kinds: Iterable[tuple[str, Sequence[GroupOperations]]], capacity: Mapping[str, float], unlike: Set[str] | None = None
) -> RankClasses:
    """Return the classes of the ranks of *mesh*.

    *kinds* lists every group of each kind with its operations; *capacity* has the capacity of every loaded link. Links of equal capacity
    between the same kinds of devices may be alike, except those of a node named in *unlike*, which carry more than the groups. If it is
    None, links of one node are never alike.
    """
    names: list[tuple[str, RankGroup]] = []
    activities: list[tuple[Hashable, Mapping[str, Hashable]]] = []
    for kind, groups in kinds:
        for members, loads, alone in groups:
            crossed: dict[str, Hashable] = {f"rank{rank}": kind != "send" or place for place, rank in enumerate(members)}
            for link in dict.fromkeys(link for load in loads for link in load):
                crossed[link] = tuple(load.get(link, 0.0) for load in loads)
            names.append((kind, members))
            activities.append(((kind, alone), crossed))
    of_rank: dict[str, Hashable] = {f"rank{rank}": ("stage", mesh.stage_of(rank)) for rank in range(mesh.gpus)}
    of_link = {link: (_device_kinds(link, unlike), rate) for link, rate in capacity.items()}
    activity_class, link_class = refine(activities, of_rank | of_link)
    first: dict[int, str] = {}
    for link, number in link_class.items():
        first.setdefault(number, link)
    together: dict[int, list[RankGroup]] = defaultdict(list)
    for (_, members), number in zip(names, activity_class, strict=True):
        together[number].append(members)
    ranks = [int(first[link_class[f"rank{rank}"]].removeprefix("rank")) for rank in range(mesh.gpus)]
    groups_of = {name: together[number] for name, number in zip(names, activity_class, strict=True)}
    return RankClasses(ranks, groups_of, frozenset(first.values()))


def _device_kinds(link: str, unlike: Set[str] | None) -> str:
    """Return the name of *link* without its node, and without the numbers of its devices if links of one node may be alike."""
    name = link.partition(".")[2]
    return name if unlike is None or name in unlike else re.sub(r"\d+", "", name)


def operations(programs: Iterable[Program]) -> dict[GroupAxis, list[tuple[Op, float]]]:
    """Return the operations that *programs* start along each axis, each with its smallest and its largest message."""
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
    """Return the pairs of ranks that exchange pipeline messages, given the *programs* of all stages."""
    targets = [sorted({each.stage for each in program if isinstance(each, Send)}) for program in programs]
    return [(rank, mesh.group(rank, "pipeline")[target]) for rank in range(mesh.gpus) for target in targets[mesh.stage_of(rank)]]
