"""Does a schedule of the user's own run as the built-in ones do, and is a wrong one refused before it runs?

Oracles: GPipe, 1F1B, interleaved 1F1B and ZB-H1 said again as a user would, against the built-in ones, whose orders are torch's.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

import pytest

import stallsim
from sim.parallel.own_schedule import own_passes
from sim.parallel.schedule import RENDEZVOUS_SCHEDULES, actions
from sim.spec import extensions
from sim.spec.parallel import SCHEDULES as BUILT_IN
from sim.spec.yaml import SpecError
from stallsim.protocols import PipelineSchedule

Passes = Iterable[tuple[str, int, int]]


class Gpipe:
    name = "my_gpipe"
    waits_for_sends = True

    def passes(self, stage: int, stages: int, chunks: int, micro_batches: int) -> Passes:
        return [(kind, 0, number) for kind in "FB" for number in range(micro_batches)]


class OneForwardOneBackward:
    name = "my_1f1b"
    waits_for_sends = True
    warm_up = 1
    """Forward passes ahead for each stage behind."""

    def passes(self, stage: int, stages: int, chunks: int, micro_batches: int) -> Passes:
        ahead = min(self.warm_up * (stages - 1 - stage), micro_batches)
        yield from (("F", 0, number) for number in range(ahead))
        for number in range(micro_batches):
            if ahead + number < micro_batches:
                yield "F", 0, ahead + number
            yield "B", 0, number


class Again:
    """A built-in schedule under another name."""

    def __init__(self, again: str) -> None:
        self.again, self.name, self.waits_for_sends = again, f"my_{again}", again in RENDEZVOUS_SCHEDULES

    def passes(self, stage: int, stages: int, chunks: int, micro_batches: int) -> Passes:
        return actions(self.again, stages, chunks, micro_batches, stage)


class Wrong:
    """1F1B with the passes of the last stage changed."""

    name = "wrong"

    def __init__(self, change: Any, waits: bool = False) -> None:
        self.change, self.waits_for_sends = change, waits

    def passes(self, stage: int, stages: int, chunks: int, micro_batches: int) -> Any:
        right = list(OneForwardOneBackward().passes(stage, stages, chunks, micro_batches))
        return self.change(right) if stage == stages - 1 else right


@pytest.fixture(autouse=True)
def _forgotten() -> Iterator[None]:
    yield
    extensions._given[extensions.SCHEDULES.group].clear()


def figures(schedule: object, micro_batches: int = 8, nodes: int = 1, **more: Any) -> dict[str, Any]:
    """The document of a run, without the schedule's name and what depends on the name."""
    layout = {"pp": 4, "schedule": schedule, **more}
    run = stallsim.run("hgx-h100", "llama-3.2-1b", parallel=layout, micro_batches=micro_batches, nodes=nodes)
    document = {**run.document, "parallel": {**run.document["parallel"], "schedule": None}}
    document["inputs"] = {name: {k: v for k, v in each.items() if not k.endswith("schedule")} for name, each in document["inputs"].items()}
    document["energy"] = {key: value for key, value in document["energy"].items() if key != "expected_error"}  # has the step's
    return {key: value for key, value in document.items() if key not in ("warnings", "inputs_sha256", "expected_error")}


@pytest.mark.parametrize(
    ("own", "built_in", "more"),
    [
        (Gpipe(), "gpipe", {}),
        (OneForwardOneBackward(), "1f1b", {"shard": "optimizer"}),
        (OneForwardOneBackward, "1f1b", {"shard": "parameters"}),
        (Again("interleaved_1f1b"), "interleaved_1f1b", {"virtual_stages": 2}),
        (Again("zb_h1"), "zb_h1", {"tp": 2}),
    ],
)
def test_a_schedule_said_again_gives_every_figure_again(own: object, built_in: str, more: dict[str, Any]) -> None:
    assert figures(own, **more) == figures(built_in, **more)


def test_the_figures_depend_on_the_schedule() -> None:
    assert figures(Gpipe())["memory_by_stage"] != figures("1f1b")["memory_by_stage"]


def test_results_say_that_it_is_not_validated() -> None:
    run = stallsim.run("hgx-h100", "llama-3.2-1b", parallel={"pp": 2, "schedule": Gpipe()}, micro_batches=2)
    assert [text for text in run.document["warnings"] if text.startswith("schedule my_gpipe is user-defined and not validated")]


def test_the_examples_are_of_the_protocol() -> None:
    """mypy checks the types; this runs them."""
    schedules: list[PipelineSchedule] = [Gpipe(), OneForwardOneBackward(), Again("zb_h1")]
    for schedule in schedules:
        name = extensions.register(extensions.SCHEDULES, schedule, BUILT_IN)
        for stages, micro_batches in ((1, 1), (1, 4), (4, 2), (4, 9)):
            made = own_passes(name, stages, 1, micro_batches)
            assert made is not None
            assert made.programs == tuple(actions(name[3:], stages, 1, micro_batches, stage) for stage in range(stages))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda right: right[:-1], "stage 1 runs forward and no backward of chunk 0, micro-batch 3; each micro-batch"),
        (lambda right: [*right, ("B", 0, 2)], "stage 1 runs forward and backward twice of chunk 0, micro-batch 2; each"),
        (
            lambda right: [("I", 0, 1) if each == ("B", 0, 1) else each for each in right],
            "stage 1 runs forward and input gradient and no weight",
        ),
        (lambda right: [*right, ("W", 0, 0)], "stage 1 runs forward and backward and weight gradient of chunk 0, micro-batch 0; each"),
        (lambda right: right[::-1], "wrong never ends: stage 1 waits at backward of chunk 1, micro-batch 3 for the forward of chunk 1"),
        (lambda right: [*right, ("F", 0, 4)], "stage 1 runs ('F', 0, 4); write (kind, chunk, micro-batch) with a kind of F, B, I, W"),
        (lambda right: [*right, ("F", 1, 0)], "stage 1 runs ('F', 1, 0); write"),
        (lambda right: [*right, "F0"], "stage 1 runs 'F0'; write"),
        (lambda right: [*right, (["F"], 0, 0)], "stage 1 runs (['F'], 0, 0); write"),
        (lambda right: [*right, ("F", True, 0)], "stage 1 runs ('F', True, 0); write"),
        (lambda right: None, "TypeError: 'NoneType' object is not iterable"),
        (lambda right: {}[0], "KeyError: 0"),
    ],
)
def test_a_wrong_order_is_refused_in_a_sentence(change: Any, message: str) -> None:
    with pytest.raises(SpecError) as refused:
        stallsim.run("hgx-h100", "llama-3.2-1b", parallel={"pp": 2, "schedule": Wrong(change)}, micro_batches=4)
    assert str(refused.value).startswith("training.parallel: schedule wrong")
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)


class Drawn:
    """Any order in which passes that an untimed pipeline could run next are drawn."""

    name = "drawn"

    def __init__(self, seed: int, waits: bool) -> None:
        self.seed, self.waits_for_sends = seed, waits

    def passes(self, stage: int, stages: int, chunks: int, micro_batches: int) -> Passes:
        drawn = random.Random(self.seed)
        done: set[tuple[str, int, int]] = set()
        order: list[list[tuple[str, int, int]]] = [[] for _ in range(stages)]
        while len(done) < 2 * stages * micro_batches:
            ready = [
                (kind, at, number)
                for kind in "FB"
                for at in range(stages)
                for number in range(micro_batches)
                if (kind, at, number) not in done
                and (kind == "B" or at == 0 or ("F", at - 1, number) in done)
                and (kind == "F" or (("F", at, number) in done and (at == stages - 1 or ("B", at + 1, number) in done)))
            ]
            kind, at, number = drawn.choice(ready)
            done.add((kind, at, number))
            order[at].append((kind, 0, number))
        return order[stage]


@pytest.mark.parametrize("count", [16, pytest.param(30, marks=pytest.mark.nightly)])
def test_what_is_refused_is_what_would_never_end(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    """Oracle: the simulation itself, with the check left out. Sends that are not waited for always end."""
    endings = Counter[str]()
    for seed in range(count):
        try:
            own_passes(extensions.register(extensions.SCHEDULES, Drawn(seed, waits=True), BUILT_IN), 3, 1, 3, runs_ahead=True)
            refused = ""
        except SpecError as error:
            refused = str(error)
        with monkeypatch.context() as unchecked:
            unchecked.setattr("sim.parallel.own_schedule._unmet", lambda programs, chunks, runs_ahead: None)
            try:
                figures(Drawn(seed, waits=True), pp=3, micro_batches=3, nodes=3)
                ended = True
            except RuntimeError:
                ended = False
        assert ended == (not refused), (seed, refused)
        assert "never ends: stage" in refused or ended
        endings["ended" if ended else "refused"] += 1
        figures(Drawn(seed, waits=False), pp=3, micro_batches=3, nodes=3)
    assert min(endings["ended"], endings["refused"]) > 3, endings


class Listed(Gpipe):
    name = "first,second"


class Taken(Gpipe):
    name = "1f1b"


class Doubtful(Gpipe):
    waits_for_sends = "sometimes"  # type: ignore[assignment]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            3,
            "the schedule 3: does not follow PipelineSchedule: it lacks name and waits_for_sends and passes; see docs/develop/own-schedule",
        ),
        (
            Listed(),
            "object of tests.parallel.test_own_schedule.Listed: its name is 'first,second'; write letters, digits, '_', '-' and '.'",
        ),
        (Taken(), "schedule 1f1b: a built-in schedule has this name; choose another name for yours"),
        (Doubtful(), "schedule my_gpipe: waits_for_sends is 'sometimes'; write True or False"),
        (
            "my_lost",
            "parallel['schedule']=my_lost: found 'my_lost'; write one of gpipe, 1f1b, interleaved_1f1b, zb_h1, zbv, dualpipev, or the",
        ),
    ],
)
def test_what_is_no_schedule_is_refused_in_a_sentence(given: object, message: str) -> None:
    with pytest.raises(SpecError) as refused:
        stallsim.run("hgx-h100", "llama-3.2-1b", parallel={"pp": 2, "schedule": given}, micro_batches=4)
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)
