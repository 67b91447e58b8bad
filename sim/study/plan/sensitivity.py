"""Does another layout win where the world is a little different? NICs at half their speed, twice the sequence, half the batch.

Each change is a search of its own, proven as far as the plan is. Where another layout wins, the speed of the NICs at which the two are
equal is searched for by halving, with the bounds of both.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from sim.mesh import prepare, scene_of
from sim.spec.yaml import SpecError
from sim.study.faster import faster
from sim.study.plan.ahead import Workers, refiner
from sim.study.plan.floor import Setting
from sim.study.plan.question import LayoutPlan, PlanQuestion, prepare_plan
from sim.study.plan.refine import Alone, LayoutWay
from sim.study.plan.search import Outcome, search
from sim.study.plan.space import LayoutCandidate
from sim.training.layouts.bound import least_time
from sim.training.layouts.prices import PriceBook

HALVINGS: Final = 6
"""Steps of the search for where two layouts are equal: the answer is within 1 % of the speed of the NICs."""


@dataclass(frozen=True)
class Turn:
    """What one change does."""

    change: str
    best: Outcome | None
    """None where nothing fits any more, or the change makes no sense here; ``problem`` says why."""
    same: bool
    """Whether the plan's layout still wins."""
    of_plan: Outcome | None
    """The plan's layout under the change, with the micro-batch that suits it; None where it does not fit."""
    flips_at: float | None = None
    """Share of the NICs' speed at which the two layouts are equal by their bounds; None where these do not cross."""
    problem: str = ""


def sensitivity(made: LayoutPlan, progress: Callable[[int, int], None] | None = None, crew: Workers | None = None) -> list[Turn]:
    """Return what each change does to the best layout of *made*."""
    best = made.tally.best
    if best is None:
        return []
    turns = []
    changes = _changes(made)
    for change, question in changes:
        turns.append(_turn(made, best, change, question, crew))
        if progress is not None:
            progress(len(turns), len(changes))
    return turns


def _changes(made: LayoutPlan) -> list[tuple[str, PlanQuestion]]:
    question = replace(made.question, limits=replace(made.question.limits, shown=1))
    scenario = replace(question.scenario, global_batch=made.global_batch)
    changes = []
    if max(setting.nodes for setting, _ in made.ways) > 1:
        changes.append(("NICs half as fast", replace(question, scenario=scenario)))
    if made.sequence is not None:
        changes.append(("sequence doubled", replace(question, scenario=replace(scenario, sequence=2 * made.sequence))))
    if made.global_batch > 1:
        changes.append(("global batch halved", replace(question, scenario=replace(scenario, global_batch=made.global_batch // 2))))
    return changes


def _turn(made: LayoutPlan, best: Outcome, change: str, question: PlanQuestion, crew: Workers | None) -> Turn:
    try:
        changed = prepare_plan(question)
    except SpecError as error:
        return Turn(change, None, False, None, problem=error.problems[0])
    ways = changed.ways
    if change.startswith("NICs"):
        ways = [(_slower(setting, 0.5), each) for setting, each in ways]
    limits = question.limits
    winner = search(ways, limits, refine=refiner(Alone(limits.objective, limits.memory), crew)).best
    if winner is None:
        return Turn(change, None, False, None, problem="no layout fits")
    if _alike(best.way.candidate, winner.way.candidate):
        return Turn(change, winner, True, winner)
    own = [(setting, [each for each in every if _alike(best.way.candidate, each)]) for setting, every in ways]
    of_plan = search(own, limits, refine=refiner(Alone(limits.objective, limits.memory), crew)).best
    flips = None
    if change.startswith("NICs") and of_plan is not None:
        flips = _flip(best.way, LayoutWay(_of_nodes(made.ways, winner.way), winner.way.candidate))
    return Turn(change, winner, False, of_plan, flips)


def _slower(setting: Setting, factor: float) -> Setting:
    """Return *setting* with NICs at *factor* times their speed."""
    hardware, _ = faster(setting.hardware, [], ["network"], factor)
    return replace(setting, hardware=hardware, book=PriceBook())


def _alike(one: LayoutCandidate, other: LayoutCandidate) -> bool:
    """Tell whether two layouts differ in micro-batches alone."""
    return one._replace(micro_batches=1, batch=1) == other._replace(micro_batches=1, batch=1)


def _of_nodes(ways: Sequence[tuple[Setting, Sequence[LayoutCandidate]]], way: LayoutWay) -> Setting:
    """Return the setting of the plan that *way* belongs to but for its change."""
    return next(
        setting for setting, _ in ways if setting.nodes == way.setting.nodes and setting.workload.training.stack.name == way.candidate.stack
    )


def _least(way: LayoutWay) -> float:
    setting, workload = way.setting, way.setting.laid(way.candidate)
    return least_time(
        scene_of(setting.hardware, workload, prepare(setting.hardware, workload, setting.gpus_per_node, ends=False), setting.book)
    )


def _flip(one: LayoutWay, other: LayoutWay) -> float | None:
    """Return the share of the NICs' speed, from a half to 1, at which both take equally long; None where they do not cross."""

    def ahead(speed: float) -> bool:
        times = [_least(LayoutWay(_slower(way.setting, speed), way.candidate)) for way in (one, other)]
        return times[0] <= times[1]

    low, high = 0.5, 1.0
    if ahead(low) or not ahead(high):
        return None
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (low, middle) if ahead(middle) else (middle, high)
    return (low + high) / 2
