"""What if the nodes of a stage differ? Each rank is simulated individually, or one for each of `rank_classes`.

Limit: messages inside a unit (of tensor, context and expert groups) keep the prices of the stage's first rank, and load each rank's own
links equally.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from statistics import fmean
from typing import cast

from sim.parallel.mesh import GroupAxis
from sim.parallel.program import Op, Program, Receive, Send, Start, Tag, Work
from sim.training.collectives.price.traffic import CORE, FABRIC
from sim.training.layouts.account import Account
from sim.training.layouts.group_price import GroupPrice, LinkShare
from sim.training.layouts.groups import Groups
from sim.training.layouts.meetings import Meeting, MeetingKey
from sim.training.layouts.messages import Messages
from sim.training.layouts.prices import SHARED, LayoutPrices
from sim.training.layouts.rank_classes import GroupOperations, RankClasses, RankGroup, operations, rank_classes, sends
from sim.training.layouts.run import MakeStage, Simulation, Stage
from sim.training.layouts.scene import LayoutScene, PlayedLayout, StageStep
from sim.training.layouts.stage_compute import StageKernels
from sim.training.layouts.times import UnitTimes


class RankPrices(LayoutPrices):
    """Prices of individual groups and pairs of ranks, with the load on each of their own nodes."""

    rank_classes: RankClasses | None = None
    """The classes of ranks that are simulated as one, if any."""

    def of_class(self, kind: str, ranks: RankGroup, classes: RankClasses, op: Op | None, nbytes: float) -> GroupPrice:
        """Return the price of *op* (None: a send) for the class of the group *ranks*, with the load of all its groups.

        Loads are given for the links that represent their class.
        """
        first, *others = (self._price_of(each, op, nbytes) for each in classes.groups[kind, ranks])
        load: dict[str, float] = defaultdict(float)
        for price in (first, *others):
            for link, amount in price.load.items():
                if link in classes.links:
                    load[link] += amount
        return first._replace(load=load)

    def _price_of(self, ranks: RankGroup, op: Op | None, nbytes: float) -> GroupPrice:
        return self.send(ranks[0], ranks[1], nbytes) if op is None else self.of_group(ranks, op, nbytes)

    def live_loads(self, number: int, load: Iterable[LinkShare]) -> dict[str, float]:
        """Return the share of rank *number* in the *load* of its stage, by live link; with classes, the share of all ranks of its class."""
        if self.rank_classes is None:
            return self._rank_share(number, load)
        load_of: dict[str, float] = defaultdict(float)
        for (rank,) in self.rank_classes.groups["inside", (number,)]:
            for link, amount in self._rank_share(rank, load).items():
                if link in self.rank_classes.links:
                    load_of[link] += amount
        return load_of

    def _rank_share(self, rank: int, load: Iterable[LinkShare]) -> dict[str, float]:
        """Return the share of *rank* in *load*: that of its stage's ranks on the stage's first node, and of all its ranks between nodes."""
        mesh, of_stage = self.mesh, self._ranks_of[self.mesh.stage_of(rank)]
        node, _ = mesh.place(rank)
        first, _ = mesh.place(of_stage[0])
        here = sum(mesh.place(other)[0] == first for other in of_stage)
        return {self._noted(f"node{node}", each): each.amount / (len(of_stage) if self.of_machine(each.name) else here) for each in load}

    def classes(self, scene: LayoutScene, within_nodes: bool = True) -> RankClasses:
        """Return the classes of ranks with identical steps; ranks of one node share a class only if *within_nodes*."""
        mesh, boundary = self.mesh, 1e6
        kinds: list[tuple[str, list[GroupOperations]]] = []
        for axis, ops in operations(scene.programs).items():
            groups = dict.fromkeys(group for rank in range(mesh.gpus) if len(group := mesh.group(rank, axis)) > 1)
            kinds.append((axis, [_operations_of(ranks, [self.of_group(ranks, *each) for each in ops]) for ranks in groups]))
        kinds.append(("send", [_operations_of(pair, [self.send(pair[0], pair[1], boundary)]) for pair in sends(mesh, scene.programs)]))
        inside = [_loads_inside(*stage) for stage in zip(scene.programs, scene.times, strict=True)]
        shares = [[self._rank_share(rank, load) for load in inside[mesh.stage_of(rank)]] for rank in range(mesh.gpus)]
        kinds.append(("inside", [GroupOperations((rank,), loads) for rank, loads in enumerate(shares)]))
        written = {link for flow in scene.outflows for link in flow.links}
        self.rank_classes = rank_classes(mesh, kinds, self.capacity, written if within_nodes else None)
        return self.rank_classes

    def of_group(self, ranks: RankGroup, op: Op, nbytes: float) -> GroupPrice:
        """Return the price of *op* on *nbytes* for the group *ranks*."""
        plan, _ = self._plan(ranks, self.mesh.place(ranks[0])[0])
        alike, _ = self._alike(ranks)
        nodes = {f"g{index}": numbers for index, numbers in enumerate(alike.values())}
        cost = plan.cost(nbytes, op)
        load: dict[str, float] = defaultdict(float)
        for (slot, link), amount in cost.load.items():
            name, capacity, meaning = self._live(slot, link, plan)
            shared = slot == FABRIC or (slot, link) == CORE
            for live in [name] if shared else [f"node{number}.{name}" for number in nodes[slot]]:
                self.capacity[live], self.descriptions[live] = capacity, meaning
                load[live] += amount
        blocks = 0 if self.sockets else cost.channels
        return GroupPrice(cost.launch, cost.volume, cost.cap, load, 0.0, 0.0, cost.cause, cost.bottleneck, cost.algorithm, blocks)

    def send(self, source: int, target: int, nbytes: float) -> GroupPrice:
        """Return the price of a message from rank *source* to rank *target*."""
        outline = self.one_send((source, target), nbytes)
        node = {"out": self.mesh.place(source)[0], "in": self.mesh.place(target)[0]}
        load: dict[str, float] = defaultdict(float)
        for link, _, _, amount in outline.links:
            end, name = link.split(" ", 1)
            for live in self._on_node(f"node{node[end]}", node[end], name, folded=False):
                load[live] += amount
        return outline.price._replace(load=load | self._on_switches([(source, target)], nbytes))


class Unfolded(Simulation):
    """The simulation of all ranks; with *folds*, of one rank for each class with identical steps."""

    def __init__(
        self,
        scene: LayoutScene,
        steps: int,
        keep_rates: bool = False,
        starved: bool = False,
        folds: bool = False,
        make_stage: MakeStage = Stage,
    ) -> None:
        mesh = scene.layout.mesh
        stage_of = [mesh.stage_of(rank) for rank in range(mesh.gpus)]
        prices = _rank_prices(scene)
        self.classes = prices.classes(scene) if folds else None
        self.representatives: Sequence[int] = self.classes.rank if self.classes else range(mesh.gpus)
        """The representative of each rank."""
        ranks = replace(
            scene,
            programs=[_by_rank(scene.programs[stage], rank, scene, self.representatives) for rank, stage in enumerate(stage_of)],
            times=[scene.times[stage] for stage in stage_of],
            updates=[scene.updates[stage] for stage in stage_of],
            prices=prices,
        )
        self.prices = prices
        self.price_cache: dict[tuple[object, ...], GroupPrice] = {}
        super().__init__(ranks, steps, keep_rates, starved, make_stage)

    def create_stages(self) -> list[Stage]:
        """Return the simulated rank for each rank; ranks of one class share it."""
        mesh = self.scene.layout.mesh
        firsts = [mesh.rank(pipeline=stage) for stage in range(mesh.stages)]  # the log's first ranks are those of stages
        made = {rank: self.make_stage(self, mesh.stage_of(rank), rank) for rank in dict.fromkeys((*firsts, *self.representatives))}
        self.start_checkpoint_writes(dict.fromkeys(f"node{mesh.place(rank)[0]}" for rank in self.representatives))
        self._logged = [made[rank] for rank in firsts]
        return [made[rank] for rank in self.representatives]

    def close(self) -> None:
        """Break the circles of references, those of ranks that are only in the log too."""
        super().close()
        for stage in self._logged:
            stage.close()
        self._logged.clear()

    def groups(self, kernels: StageKernels, number: int) -> Groups:
        """Return the groups of rank *number*."""
        return _RankGroups(self, kernels, number)

    def messages(self, account: Account, number: int) -> Messages:
        """Return the messages of rank *number* to others."""
        return _RankMessages(self, account, number)

    def price(self, kind: str, ranks: RankGroup, op: Op | None, nbytes: float) -> GroupPrice:
        """Return the price of *op* for the group *ranks* (None: of a send between two ranks); with classes, for all groups of its class."""
        key = (kind, ranks, op, nbytes)
        if key not in self.price_cache:
            self.price_cache[key] = self._priced(kind, ranks, op, nbytes)
        return self.price_cache[key]

    def _priced(self, kind: str, ranks: RankGroup, op: Op | None, nbytes: float) -> GroupPrice:
        if self.classes is not None:
            price = self.prices.of_class(kind, ranks, self.classes, op, nbytes)
        else:
            price = self.prices.send(ranks[0], ranks[1], nbytes) if op is None else self.prices.of_group(ranks, op, nbytes)
        if op is None or self.scene.times_beside is None:
            return price
        stage = 0 if kind in SHARED else self.scene.layout.mesh.stage_of(ranks[0])
        beside = self.prices.price_without_links(
            stage, cast(GroupAxis, kind), op, nbytes
        )  # its memory rate allows for contention with equal groups
        return price._replace(memory_rate=beside.memory_rate)

    def representative(self, kind: str, ranks: RankGroup) -> RankGroup:
        """Return the representative of the group *ranks*."""
        return self.classes.groups[kind, ranks][0] if self.classes is not None else ranks

    def run(self) -> PlayedLayout:
        """Simulate all steps and return the last: the mean over the ranks of each stage, and the clock of its first rank."""
        mesh, counts = self.scene.layout.mesh, Counter(self.representatives)
        stages = {rank: self.stages[rank] for rank in counts}
        self.train(stages.values())
        steps_of = {rank: stage.last_step() for rank, stage in stages.items()}
        by_stage = [
            [(steps_of[rank], count) for rank, count in counts.items() if mesh.stage_of(rank) == stage] for stage in range(mesh.stages)
        ]
        return PlayedLayout(tuple(map(_mean, by_stage)), self.released_log(), drawn_times=self.drawn_times)


def node_classes(scene: LayoutScene) -> int:
    """Return the number of classes of ranks of *scene* if links of one node are never alike."""
    return len(set(_rank_prices(scene).classes(scene, within_nodes=False).rank))


def _rank_prices(scene: LayoutScene) -> RankPrices:
    return RankPrices(scene.prices.hardware, scene.layout.mesh, scene.prices.tuning, scene.prices.sockets, folds=False)


def _operations_of(ranks: RankGroup, prices: Sequence[GroupPrice]) -> GroupOperations:
    """Return the operations of the group *ranks*, given their *prices*."""
    alone = tuple((*map(_rounded, (price.launch, price.volume, price.cap, price.notice)), price.blocks) for price in prices)
    return GroupOperations(ranks, [price.load for price in prices], alone)


def _rounded(number: float) -> float:
    """Return *number* without rounding errors, which depend on the order of a group's links."""
    return float(f"{number:.9g}")


def _loads_inside(program: Program, times: UnitTimes) -> list[tuple[LinkShare, ...]]:
    """Return the distinct loads of messages inside the units of *program*."""
    passes = dict.fromkeys(work._replace(micro_batch=0) for work in program if isinstance(work, Work))
    return list(dict.fromkeys(each.load for work in passes for each in times.of(work).exposed_waits if each.seconds > 0))


def _by_rank(program: Program, rank: int, scene: LayoutScene, first: Sequence[int]) -> Program:
    """Return *program* with the stages in messages replaced by ranks, or by their representatives *first*."""
    along = scene.layout.mesh.group(rank, "pipeline")
    return tuple(
        each._replace(stage=first[along[each.stage]]) if isinstance(each, Send | Receive) else each  # the ranks of a pipeline, by stage
        for each in program
    )


def _mean(ranks: Sequence[tuple[StageStep, int]]) -> StageStep:
    """Return the mean step of *ranks*: pairs of a simulated rank's step and its multiplicity, for one stage, its first rank first."""
    steps, counts = [step for step, _ in ranks], [count for _, count in ranks]

    def mean(values: Iterable[float]) -> float:
        return fmean(values, counts)

    resources = dict.fromkeys(key for step in steps for key in step.resources)
    return replace(
        steps[0],
        time=mean(step.time for step in steps),
        stalls={cause: mean(step.stalls[cause] for step in steps) for cause in steps[0].stalls},
        resources={key: mean(step.resources.get(key, 0.0) for step in steps) for key in resources},
        exposed={group: mean(step.exposed[group] for step in steps) for group in steps[0].exposed},
    )


class _RankGroups(Groups):
    def __init__(self, simulation: Unfolded, kernels: StageKernels, number: int) -> None:
        super().__init__(simulation.meetings, kernels, simulation.scene.programs[number], number)
        self.simulation = simulation

    def meeting(self, start: Start) -> tuple[Meeting, MeetingKey]:
        meetings, group = self.meetings, self.meetings.scene.layout.mesh.group(self.number, start.axis)
        price = self.simulation.price(start.axis, group, start.op, start.nbytes)
        kernels = list(dict.fromkeys(meetings.kernels[rank] for rank in group))
        like, step = (start.axis, self.simulation.representative(start.axis, group)), self.account.step
        meeting = meetings.get_or_create((step, like, start.tag), start.tag, price, len(kernels), kernels)
        meetings.add_key((step, self.number, start.tag), meeting)
        return meeting, (like, start.communicator)


class _RankMessages(Messages):
    def __init__(self, simulation: Unfolded, account: Account, number: int) -> None:
        super().__init__(simulation.meetings, account, number)
        self.simulation = simulation

    def message(self, tag: Tag, source: int, target: int, nbytes: float) -> Meeting:
        mesh = self.meetings.scene.layout.mesh
        pair = (source, mesh.group(source, "pipeline")[mesh.stage_of(target)])
        price = self.simulation.price("send", pair, None, nbytes)
        return self.meetings.message((self.account.step, "message", source, target, tag), tag, price, source, target)
