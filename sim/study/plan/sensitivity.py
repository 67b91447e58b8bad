"""Does another layout win if conditions change? NICs at half their speed, twice the sequence, half the batch.

Each change is a separate search, proven as far as the plan is. In addition, `flips` searches from a quarter to four times each value for
the point at which another layout takes the lead.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from sim.spec.yaml import SpecError
from sim.study.faster import faster
from sim.study.plan.ahead import Workers, refiner
from sim.study.plan.flips import Flips, Knob, filter_layouts, flips, same_but_micro_batches
from sim.study.plan.floor import Setting
from sim.study.plan.question import LayoutPlan, prepare_plan
from sim.study.plan.refine import LocalRefiner
from sim.study.plan.search import EQUAL, Outcome, PlacedCandidates, search
from sim.study.pool import Progress
from sim.study.scenario import Scenario
from sim.training.layouts.prices import PriceBook

SLOWER, DOUBLED, HALVED = "NICs half as fast", "sequence doubled", "global batch halved"
SHARE: Final = "of the NICs' speed"
"""Unit of relative speeds."""
NOT_SEARCHED: Final = "not searched: interrupted"
NIC_STEPS, STEPS = 32, 8
"""Values per octave: speeds within 3 %, and whole numbers of tokens and samples that most layouts divide."""


@dataclass(frozen=True)
class ChangeEffect:
    """The effect of one change."""

    change: str
    best: Outcome | None
    """None if nothing fits any more, or if the change makes no sense here; ``problem`` states why."""
    same: bool
    """Whether the plan's layout still wins."""
    of_plan: Outcome | None
    """The plan's layout under the change, with its best micro-batch; None if it does not fit."""
    unit: str
    """Unit of the values of ``flips``."""
    flips: Flips | None = None
    """Where another layout takes the lead; None if that was not searched."""
    problem: str = ""

    @property
    def flips_at(self) -> float | None:
        """Return the factor of its value at which another layout takes the lead, on the side of the change; None if none does."""
        if self.flips is None:
            return None
        up = self.change == DOUBLED
        middles = [(flip.holding_value + flip.losing_value) / 2 / self.flips.planned_value for flip in self.flips.flips]
        return next((middle for middle in middles if (middle > 1) == up), None)


class _KnobChange(NamedTuple):
    """A knob, and the factor by which its value is changed."""

    name: str
    unit: str
    factor: float
    knob: Knob


def sensitivity(layout_plan: LayoutPlan, progress: Progress | None = None, crew: Workers | None = None) -> list[ChangeEffect]:
    """Return the effect of each change on the best layout of *layout_plan*. After Ctrl-C, changes not searched are marked so."""
    best = layout_plan.tally.best
    if best is None:
        return []
    turns: list[ChangeEffect] = []
    changes = _changes(layout_plan)
    try:
        for change in changes:
            turns.append(_turn(layout_plan, best, change, crew))
            if progress is not None:
                progress(len(turns), len(changes))
    except KeyboardInterrupt:
        turns += [ChangeEffect(change.name, None, False, None, change.unit, problem=NOT_SEARCHED) for change in changes[len(turns) :]]
    return turns


def _changes(made: LayoutPlan) -> list[_KnobChange]:
    scenario = replace(made.question.scenario, global_batch=made.global_batch)

    def ways_of(changed: Scenario) -> PlacedCandidates:
        return prepare_plan(replace(made.question, scenario=changed)).layouts

    def slower(speed: float) -> PlacedCandidates:
        return [(_slower(setting, speed), every) for setting, every in made.layouts]

    changes = []
    if max(setting.nodes for setting, _ in made.layouts) > 1:
        changes.append(_KnobChange(SLOWER, SHARE, 0.5, Knob(1.0, NIC_STEPS, slower, is_integer=False)))
    if (sequence := made.layouts[0][0].workload.model.sequence) is not None:
        knob = Knob(sequence, STEPS, lambda tokens: ways_of(replace(scenario, sequence=int(tokens))))
        changes.append(_KnobChange(DOUBLED, "tokens", 2.0, knob))
    if made.global_batch > 1:
        knob = Knob(made.global_batch, STEPS, lambda samples: ways_of(replace(scenario, global_batch=int(samples))))
        changes.append(_KnobChange(HALVED, "samples", 0.5, knob))
    return changes


def _turn(made: LayoutPlan, best: Outcome, change: _KnobChange, crew: Workers | None) -> ChangeEffect:
    limits, own, value = replace(made.question.limits, shown=1), best.placed_layout.candidate, _changed(change)

    def searched(layouts: PlacedCandidates) -> Outcome | None:
        tally = search(layouts, limits, refine=refiner(LocalRefiner(limits.objective, limits.memory), crew))
        if tally.interrupted:
            raise KeyboardInterrupt
        equal = [each for each in tally.outcomes if each.value <= tally.least_value * (1.0 + EQUAL)]
        return next((each for each in equal if same_but_micro_batches(own, each.placed_layout.candidate)), tally.best)

    layouts: PlacedCandidates = []
    problem, winner = "no layout fits", None
    try:
        layouts = change.knob.layouts_at(value)
        winner = searched(layouts)
    except SpecError as error:
        problem = error.problems[0]
    leaders = {value: None if winner is None else winner.placed_layout.candidate}
    where = flips(change.knob, own, limits, leaders)
    if winner is None:
        return ChangeEffect(change.name, None, False, None, change.unit, where, problem)
    same = same_but_micro_batches(own, winner.placed_layout.candidate)
    return ChangeEffect(change.name, winner, same, winner if same else searched(filter_layouts(layouts, own)), change.unit, where)


def _changed(change: _KnobChange) -> float:
    value = change.factor * change.knob.planned_value
    return float(int(value)) if change.knob.is_integer else value


def _slower(setting: Setting, factor: float) -> Setting:
    """Return *setting* with NICs at *factor* times their speed."""
    hardware, _ = faster(setting.hardware, [], ["network"], factor)
    return replace(setting, hardware=hardware, book=PriceBook())
