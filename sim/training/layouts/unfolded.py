"""What if the nodes of a stage are not alike? Every rank, group and node of a layout simulated by itself: none stands for others like it.

Limit: what is inside a unit (messages of tensor, context and expert groups) stays as the scene prices it, that of the stage's first rank.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean

from sim.parallel.program import Op, Program, Receive, Send, Start, Tag
from sim.training.collectives.traffic import CORE, FABRIC
from sim.training.layouts.prices import Price, Prices
from sim.training.layouts.run import Operation, Simulation, Stage
from sim.training.layouts.scene import Played, Scene, StageStep

Group = tuple[int, ...]


class RankPrices(Prices):
    """What one group or one pair of ranks pays, with its load on each of its own nodes."""

    def of_group(self, ranks: Group, op: Op, nbytes: float) -> Price:
        """Return what *op* on *nbytes* costs the group of *ranks*."""
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
        return Price(cost.launch, cost.volume, cost.cap, load, 0.0, 0.0, cost.cause, cost.bottleneck, cost.algorithm)

    def send(self, source: int, target: int, nbytes: float) -> Price:
        """Return what a message from rank *source* to rank *target* costs."""
        outline = self._send_outline([(source, target)], nbytes)
        node = {"out": self.mesh.place(source)[0], "in": self.mesh.place(target)[0]}
        load: dict[str, float] = defaultdict(float)
        for link, _, _, amount in outline.links:
            end, name = link.split(" ", 1)
            for live in self._on_node(f"node{node[end]}", node[end], name, folded=False):
                load[live] += amount
        return outline.price._replace(load=dict(load))


class Unfolded(Simulation):
    """All ranks while they train."""

    def __init__(self, scene: Scene, steps: int, keep_rates: bool = False, starved: bool = False) -> None:
        mesh = scene.layout.mesh
        of = [mesh.stage_of(rank) for rank in range(mesh.gpus)]
        prices = RankPrices(scene.prices.hardware, mesh, scene.prices.tuning, scene.prices.sockets, folds=False)
        ranks = replace(
            scene,
            programs=[_by_rank(scene.programs[stage], rank, scene) for rank, stage in enumerate(of)],
            times=[scene.times[stage] for stage in of],
            updates=[scene.updates[stage] for stage in of],
            prices=prices,
        )
        super().__init__(replace(ranks, programs=()), steps, keep_rates, starved)
        self.scene, self.prices = ranks, prices
        firsts = [mesh.rank(pipeline=stage) for stage in range(mesh.stages)]
        made = {
            rank: _Rank(self, rank) for rank in dict.fromkeys((*firsts, *range(mesh.gpus)))
        }  # the log's first ranks are those of stages
        self.stages: list[Stage] = [made[rank] for rank in range(mesh.gpus)]

    def run(self) -> Played:
        """Return the last step, of each stage the mean of its ranks and the clock of its first."""
        mesh, done = self.scene.layout.mesh, super().run()
        of = [[step for rank, step in enumerate(done.stages) if mesh.stage_of(rank) == stage] for stage in range(mesh.stages)]
        return Played(tuple(map(_mean, of)), done.log)


def _by_rank(program: Program, rank: int, scene: Scene) -> Program:
    """Return *program* with the ranks that messages go to and come from instead of their stages."""
    mesh = scene.layout.mesh
    along = mesh.group(rank, "pipeline")
    return tuple(
        each._replace(stage=along[each.stage]) if isinstance(each, Send | Receive) else each  # the ranks of a pipeline, by stage
        for each in program
    )


def _mean(ranks: Sequence[StageStep]) -> StageStep:
    """Return the mean of *ranks*, which are of one stage, first one first."""
    resources = dict.fromkeys(key for rank in ranks for key in rank.resources)
    return replace(
        ranks[0],
        time=fmean(rank.time for rank in ranks),
        stalls={cause: fmean(rank.stalls[cause] for rank in ranks) for cause in ranks[0].stalls},
        resources={key: fmean(rank.resources.get(key, 0.0) for rank in ranks) for key in resources},
        exposed={group: fmean(rank.exposed[group] for rank in ranks) for group in ranks[0].exposed},
    )


class _Rank(Stage):
    simulation: Unfolded

    def __init__(self, simulation: Unfolded, number: int) -> None:
        super().__init__(simulation, simulation.scene.layout.mesh.stage_of(number))
        self.number = number
        self.times = simulation.scene.times[number]

    def _meeting(self, start: Start) -> tuple[Operation, tuple[object, ...], Sequence[Stage]]:
        simulation, group = self.simulation, self.simulation.scene.layout.mesh.group(self.number, start.axis)
        price = simulation.prices.of_group(group, start.op, start.nbytes)
        operation = simulation.operation((self.step, group, start.tag), start.tag, price, len(group))
        simulation.operations[self.step, self.number, start.tag] = operation
        return operation, (group, start.communicator), [simulation.stages[rank] for rank in group]

    def _message(self, tag: Tag, source: int, target: int, nbytes: float) -> Operation:
        price = self.simulation.prices.send(source, target, nbytes)
        members = 2 if self.simulation.meets else 1
        message = self.simulation.operation((self.step, "message", source, target, tag), tag, price, members)
        message.target = target
        return message
