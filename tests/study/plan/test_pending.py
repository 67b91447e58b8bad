"""Are only those layouts priced that compute alone does not exclude, and does that change nothing? Against bounds of all layouts."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy
import pytest

from sim.report.plan import plan_document
from sim.spec.memo import caching_inside
from sim.study.plan import floor, search
from sim.study.plan.floor import CandidatePlaces, Floors, Setting, floors
from sim.study.plan.pending import BATCH, QUICK, SLOW, USUAL, Pending
from sim.study.plan.progress import progress_text
from sim.study.plan.question import PlanQuestion, plan, prepare_plan
from sim.study.plan.refine import FLOOR, LEAST, PlacedLayout, bounds
from sim.study.plan.search import Limits, Tally
from sim.study.plan.space import LayoutCandidate
from sim.study.scenario import Scenario
from sim.training.layouts.prices import PriceBook

QUESTION = PlanQuestion(Scenario("hgx-h100", "gpt2", global_batch=8), (1,), 4)
EVERY_SCHEDULE = frozenset({"zero_bubble", "gpipe", "fp8"})
QUESTIONS = [
    PlanQuestion(Scenario("hgx-h100", "llama-3.1-8b", global_batch=32), (2,), allowed=EVERY_SCHEDULE),
    PlanQuestion(Scenario("hgx-h100", "mixtral-8x7b", stack="megatron-core", global_batch=16), (2,), allowed=frozenset({"fp8"})),
    PlanQuestion(Scenario("p4d.24xlarge", "gpt2", ("fabric.leaf_spine={nodes_per_leaf: 2, oversubscription: 4}",), global_batch=64), (4,)),
    PlanQuestion(
        Scenario("hgx-h100", "gpt2", ("training.activation_checkpointing=blocks", "training.recompute_blocks=4"), stack="megatron-core",
                 global_batch=16), (1,)
    ),
    PlanQuestion(Scenario("p3.16xlarge", "vgg16", stack="torchtitan-2.x", global_batch=64), (1,)),
    PlanQuestion(Scenario("gpu_4x_a6000", "mixtral-8x7b", ("training.parallel.expert_imbalance=1.5",), stack="megatron-core",
                          global_batch=32), (4,)),  # groups of a node share PCIe and one NIC
]  # fmt: skip


@pytest.mark.parametrize(
    "question",
    [
        pytest.param(question, marks=pytest.mark.nightly if question.scenario.workload == "mixtral-8x7b" or question.nodes == (4,) else ())
        for question in QUESTIONS
    ],
    ids=lambda question: f"{question.scenario.hardware} {question.scenario.workload}",
)
def test_compute_alone_is_never_above_a_bound_with_messages(question: PlanQuestion) -> None:
    """Each layout's compute equals that of a floor on its own, whose shares no other layout has used."""
    met = 0
    for setting, every in prepare_plan(question).layouts:
        chosen = every[:: max(1, len(every) // 300)]
        lazy = floors(setting, chosen)
        least = lazy.time_of(numpy.arange(len(chosen)))
        assert (lazy.compute < least).all()
        assert lazy.sketch_of is not None
        sketched = floors(replace(setting, book=PriceBook()), chosen).sketch_of
        assert sketched is not None
        sketches = sketched(numpy.arange(len(chosen)))  # before and after the messages of all groups are priced
        assert lazy.sketch_of(numpy.arange(len(chosen))) == pytest.approx(sketches, rel=1e-12)
        assert (lazy.compute <= sketches * (1 + 1e-12)).all() and (sketches <= least).all()
        met += int((lazy.compute > 0.3 * least).sum())
        for place in range(0, len(chosen), 10):
            alone = floors(replace(setting, book=PriceBook()), [chosen[place]])
            assert lazy.compute[place] == pytest.approx(float(alone.compute[0]), rel=1e-12)
            assert least[place] == pytest.approx(float(alone.time_of(numpy.array([0]))[0]), rel=1e-12)
    assert met > 20


class Recorder:
    """Bounds as the search requests them, with the value of the compute of every layout that is priced."""

    def __init__(self, lazily: bool) -> None:
        self.lazily, self.computes, self.priced, self.wrong = lazily, list[float](), list[float](), list[float]()
        self.tally: Tally | None = None

    def hear(self, tally: Tally) -> None:
        """Remember the tally of the search."""
        self.tally = tally

    def __call__(self, setting: Setting, candidates: Sequence[LayoutCandidate], most: float) -> Floors:
        lazy = bounds(setting, candidates, most)
        self.computes += lazy.compute.tolist()
        if not self.lazily:
            times = floors(setting, candidates, most).time
            return Floors(lazy.memory, times, lazy.work, lambda places: times[places])

        def time_of(places: CandidatePlaces) -> floor.FloatRow:
            self.priced += lazy.compute[places].tolist()
            if self.tally is not None:
                self.wrong += [value for value in lazy.compute[places] if value >= self.tally.least_value]
            return lazy.time_of(places)

        return Floors(lazy.memory, lazy.compute, lazy.work, time_of, lazy.sketch_of)


@pytest.mark.parametrize(
    "limits",
    [
        pytest.param(Limits(), marks=pytest.mark.nightly),
        Limits(simulations=4),
        Limits(gap=0.2),
        pytest.param(Limits(objective="cost"), marks=pytest.mark.nightly),
        pytest.param(Limits(objective="energy"), marks=pytest.mark.nightly),
        Limits(shown=1),
    ],
    ids=str,
)
def test_a_search_that_prices_few_layouts_answers_as_one_that_prices_all(limits: Limits, monkeypatch: pytest.MonkeyPatch) -> None:
    """Against a search whose bounds of compute are those with messages: the same document, and the same order of layouts."""
    question = replace(QUESTION, limits=limits)
    monkeypatch.setattr(search, "bounds", Recorder(lazily=False))
    eager = plan(question)
    few = Recorder(lazily=True)
    monkeypatch.setattr(search, "bounds", few)
    lazy = plan(question)
    assert plan_document(lazy) == plan_document(eager)
    assert [each.placed_layout.candidate for each in lazy.tally.outcomes] == [each.placed_layout.candidate for each in eager.tally.outcomes]
    assert lazy.tally.bounded == eager.tally.bounded
    assert lazy.tally.gap == eager.tally.gap and lazy.tally.complete == eager.tally.complete
    assert len(few.priced) < sum(len(every) for _, every in lazy.layouts)


def test_what_compute_alone_excludes_is_never_priced() -> None:
    """Of every layout that is priced, compute alone is below the best value at that time."""
    few = Recorder(lazily=True)
    question = PlanQuestion(Scenario("hgx-h100", "llama-3.1-8b", global_batch=32), (1,), limits=Limits(shown=1))
    layouts = prepare_plan(question).layouts
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(search, "bounds", few)
        tally = search.search(layouts, question.limits, few.hear)
    assert tally.complete and tally.best is not None
    every = [value for setting, each in layouts for value in bounds(setting, each, math.inf).compute.tolist()]
    assert 0 < len(few.priced) < 0.6 * len(every)
    assert few.tally is tally and not few.wrong
    assert sum(value >= tally.best.value for value in every) > 0.4 * len(every)


def made(compute: Sequence[float], messages: Sequence[float], count: Callable[[int], None] = lambda number: None) -> Pending:
    """Layouts with the bounds *compute* and, in addition, *messages*; *count* gets the number of each that is priced."""

    def time_of(places: CandidatePlaces) -> floor.FloatRow:
        for place in places:
            count(int(place))
        return numpy.array(compute)[places] + numpy.array(messages)[places]

    every = Pending()
    lazy = Floors(numpy.zeros(len(compute)), numpy.array(compute), numpy.zeros(len(compute)), time_of)
    every.add(((place, PlacedLayout(None, None)) for place in range(len(compute))), lazy, 1.0)  # type: ignore[arg-type]
    return every


def test_few_layouts_of_a_rack_are_priced_with_the_messages_of_all_its_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compute does not exclude 30 of 2,077, and most have dozens of groups to price; a sketch has one of each kind."""
    scenario = Scenario("coreweave-gb200-nvl72", "mixtral-8x7b", ("trays=8",), stack="megatron-core", global_batch=32)
    recorder = Recorder(lazily=True)
    monkeypatch.setattr(search, "bounds", recorder)
    limits = Limits(shown=1, gap=0.03, early=False)
    best = plan(PlanQuestion(scenario, (1,), fixed={"batch": "1", "recompute": "none"}, limits=limits)).tally.best
    assert best is not None
    below = sum(compute < (1 - limits.gap) * best.value for compute in recorder.computes)
    assert below > 3 * len(recorder.priced) > 0


def test_layouts_come_in_the_order_of_their_bounds_with_messages() -> None:
    """Against sorting, with layouts of equal compute; a batch at most is priced beyond those that may come first."""
    draw = numpy.random.default_rng(5)
    compute, messages = draw.integers(1, 100, 1000).astype(float), draw.random(1000) + 0.01
    counted: list[int] = []
    every = made(list(compute), list(messages), counted.append)
    order = sorted((float(value), number) for number, value in enumerate(compute + messages))
    assert [(value, number) for value, number, _ in every.leading(20, math.inf)] == order[:20]
    for place, (value, number) in enumerate(order[:500]):
        every.settle()
        assert every.first == (value, number, FLOOR) and every.least == value
        assert len(set(counted)) == len(counted) <= max(place + 20, sum(compute < value)) + 2 * BATCH
        every.remove(every.first)
    assert len(every) == 500


def test_the_limit_of_a_search_keeps_layouts_unpriced() -> None:
    counted: list[int] = []
    every = made([1.0, 2.0, 3.0], [5.0, 0.5, 0.1], counted.append)
    every.settle(1.0)
    assert not counted and every.least == 1.0 and len(every) == 3
    every.settle(2.0)
    assert counted == [0] and every.least == 2.0
    every.evaluate(every.first, 7.0)
    assert every.estimates() == [(7.0, 0, LEAST), (18.0, 2, FLOOR), (12.0, 1, FLOOR)]
    every.settle()
    assert every.first == (2.5, 1, FLOOR)
    every.remove(every.first)
    every.settle()
    assert every.first == (3.1, 2, FLOOR)
    every.remove(every.first)
    assert every.first == (7.0, 0, LEAST) and len(every) == 1 and every.least == 7.0
    every.remove(every.first)
    assert not every and every.least == math.inf


def test_quick_layouts_are_told_apart_and_slow_ones_come_last() -> None:
    every = made([1.0, 1.95, 3.0], [0.5, 0.05, 0.1])
    every.settle()
    assert every.first == (1.5, 0, FLOOR) and every.first_quick is None
    every.evaluate(every.first, 2.2, QUICK)
    every.settle()
    assert every.first == (2.0, 1, FLOOR) and every.first_quick == (2.2, 0, LEAST) and every.least == every.least_in_turn == 2.0
    every.evaluate(every.first, 2.1, SLOW)
    every.settle()
    assert every.first == every.first_quick == (2.2, 0, LEAST) and every.first_slow == (2.1, 1, LEAST)
    assert (every.least, every.least_in_turn, len(every)) == (2.1, 2.2, 3)
    assert every.leading(9, math.inf) == [(2.2, 0, LEAST), (3.1, 2, FLOOR)]
    for entry in (every.first_quick, every.first_slow):
        every.remove(entry)
    assert every.first == (3.1, 2, FLOOR) and every.least == 3.1 and len(every) == 1


def test_slow_simulations_are_part_of_the_gap_unless_nothing_else_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Oracle: the search in which no simulation is slow. Slow is what the search would simulate, then every layout."""
    question = replace(QUESTION, limits=Limits(shown=1, gap=0.01, early=False))
    usual = plan(question).tally
    assert usual.best is not None and usual.gap <= 0.01
    best = usual.best.placed_layout.candidate
    monkeypatch.setattr(search, "_effort", lambda placed_layout: SLOW if placed_layout.candidate.pipeline == best.pipeline else USUAL)
    others = plan(question).tally
    assert others.best is not None and {each.placed_layout.candidate.pipeline for each in others.outcomes}.isdisjoint({best.pipeline})
    assert usual.best.value * (1.0 - usual.gap) <= others.best.value
    assert others.best.value * (1.0 - others.gap) <= usual.best.value
    monkeypatch.setattr(search, "_effort", lambda placed_layout: SLOW)
    alone = plan(question).tally
    assert alone.best is not None and alone.best.value * (1.0 - alone.gap) <= usual.best.value and len(alone.outcomes) == 1


def test_layouts_on_equal_gpus_share_bounds_without_messages() -> None:
    """Oracle: bounds of that machine alone. The machines differ in their network, host and price."""
    machines = ("bm.gpu.b200.8", "coreweave-hgx-b200")
    with caching_inside():
        layouts = [prepare_plan(PlanQuestion(Scenario(name, "llama-3.2-1b", global_batch=16), (2,))).layouts for name in machines]
        both = [[floors(setting, each) for setting, each in of_machine] for of_machine in layouts]
    for (setting, each), first, second in zip(layouts[1], *both, strict=True):
        assert second.compute is first.compute and second.memory is first.memory
        alone, places = floors(setting, each), numpy.arange(0, len(each), 97)
        assert (alone.compute == second.compute).all() and (alone.memory == second.memory).all()
        assert (alone.time_of(places) == second.time_of(places)).all()


@pytest.mark.parametrize("gap", [pytest.param(0.05, marks=pytest.mark.nightly), 0.2])
def test_a_search_with_a_gap_ends_within_it_and_compares_fewer_layouts(gap: float) -> None:
    """Oracle: the search of the best layout, which has no gap."""
    question = replace(QUESTIONS[0], nodes=(1,), allowed=frozenset[str]())
    best, near = (plan(replace(question, limits=Limits(shown=1, gap=own, early=False))).tally for own in (0.0, gap))
    assert best.best is not None and near.best is not None
    assert best.gap == 0.0 and best.complete
    assert best.best.value <= near.best.value <= best.best.value / (1.0 - gap) * (1 + 1e-12)
    assert near.gap <= gap and best.best.value >= near.best.value * (1.0 - near.gap) * (1 - 1e-12)
    assert near.bounded < 0.7 * best.bounded


@pytest.mark.parametrize("most", [3, pytest.param(40, marks=pytest.mark.nightly)])
def test_the_first_of_a_sample_changes_no_row_of_the_table(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Oracle: the plan whose first layout is chosen from all; the first of a sample counts once."""
    everything = plan(QUESTION).tally
    monkeypatch.setattr(search, "SAMPLE", most)
    seen: list[int] = []
    tally = plan(QUESTION, lambda tally: seen.append(len(tally.outcomes))).tally
    assert seen[0] == 1 and tally.complete and tally.gap == 0.0
    table, rows = ([(each.placed_layout.candidate, each.value) for each in one.outcomes] for one in (tally, everything))
    assert table[:10] == rows[:10]
    assert len(set(table)) == len(table)
    assert tally.excluded + tally.infeasible + len(table) == tally.candidates == everything.candidates


def test_nothing_is_proven_if_a_search_is_stopped_before_all_layouts_are_bounded() -> None:
    """The first layout is kept; the others may take any time."""

    def stop(tally: Tally) -> None:
        assert progress_text(tally).startswith("first layout simulated, ")
        raise KeyboardInterrupt

    tally = plan(QUESTION, stop).tally
    assert tally.interrupted and len(tally.outcomes) == 1
    assert not tally.complete and tally.gap == 1.0 and tally.excluded == tally.candidates - 1


def test_a_search_stopped_after_its_best_is_proven_says_so() -> None:
    """Ctrl-C may come while the layouts below the best are still in doubt."""

    def stop(tally: Tally) -> None:
        if len(tally.outcomes) > 1:
            raise KeyboardInterrupt

    made = plan(replace(QUESTION, limits=Limits(early=False)), stop)
    made.tally.open_bound = made.tally.least_value
    assert made.tally.interrupted and made.tally.complete
    (warning,) = [text for text in plan_document(made)["warnings"] if "interrupted" in text]
    assert warning.endswith("layouts simulated so far; none of the others is better, but the next best may be missing")
