"""Do failures follow the requested law? Oracles: renewal theory, SciPy's Weibull, exponential draws where the shape is 1."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import stallsim
from sim.analysis.course import draw
from sim.analysis.failure_law import EXPONENTIAL, FailureLaw, Weibull, failure_law
from sim.analysis.long_run import DrawnCause, LongRun, Saving
from sim.analysis.renewal import Uniform
from sim.spec import extensions
from sim.spec.yaml import SpecError
from tests.late import stats

HOUR, DAY = 3600.0, 86400.0
MEAN = 2 * HOUR
RESTART = 400.0
RUN = LongRun(
    100, 100, Saving(600.0, 3.0, 60.0, 20.0), [DrawnCause("gpu", 1.0, Uniform(100.0, 100.0), Uniform(0.0, 0.0), 1.0)],
    (1 / MEAN, 1 / MEAN, 1 / MEAN), restart=RESTART, restart_in_place=RESTART, horizon=40 * DAY,
)  # fmt: skip
JOB = {"days": 20, "nodes": 64, "batch": 4, "precision": "amp_bf16", "trials": 40}


@pytest.fixture(autouse=True)
def _forgotten() -> Iterator[None]:
    yield
    extensions._given[extensions.FAILURE_LAWS.group].clear()


def share_of(shape: float) -> float:
    """The effective share of `RUN` by renewal theory: the checkpoints completed in a gap are as many as their ends that it survives."""
    scale = MEAN / math.gamma(1 + 1 / shape)
    saving, recovery = RUN.saving, 100.0 + RESTART + RUN.saving.load
    ends = recovery + saving.interval + saving.persist + np.arange(200_000) * (saving.interval + saving.blocking)
    return float(saving.interval * np.exp(-((ends / scale) ** shape)).sum() / MEAN)


@pytest.mark.parametrize("shape", [pytest.param(0.5, marks=pytest.mark.nightly), 0.7, pytest.param(1.0, marks=pytest.mark.nightly), 3.0])
def test_courses_keep_what_renewal_theory_says(shape: float) -> None:
    courses = draw(replace(RUN, law=Weibull(shape)), 400, seed=2)
    assert abs(courses.share.mean() - share_of(shape)) < 4 * courses.share.std() / 20 + 5e-4
    # renewals by t come to t/mean + (cv^2 - 1)/2, up to what vanishes with t
    squared = stats.weibull_min(shape).var() / stats.weibull_min(shape).mean() ** 2
    counted = courses.interruptions
    assert abs(counted.mean() - 40 * DAY / MEAN - (squared - 1) / 2) < 4 * counted.std() / 20 + 0.2


def test_the_law_matters() -> None:
    assert share_of(0.5) > share_of(1.0) + 0.01 > share_of(3.0) + 0.015


def test_shape_one_is_exponential_to_the_last_digit() -> None:
    plain, shaped = draw(RUN, 100, seed=5), draw(replace(RUN, law=Weibull(1.0)), 100, seed=5)
    assert np.array_equal(plain.work, shaped.work)
    assert np.array_equal(plain.interruptions, shaped.interruptions)


@pytest.mark.parametrize("law", [EXPONENTIAL, Weibull(0.4), Weibull(1.7)])
def test_draws_are_of_the_law(law: FailureLaw) -> None:
    drawn = law.gaps(20_000, np.random.default_rng(3))
    shape = getattr(law, "shape", 1.0)
    assert stats.kstest(drawn, stats.weibull_min(shape, scale=1 / math.gamma(1 + 1 / shape)).cdf).pvalue > 1e-3


class Own:
    """A law of the user's: draws of *draw*."""

    name = "mine"

    def __init__(self, draw: Any) -> None:
        self.gaps = draw


def test_an_own_law_said_again_gives_every_figure_again() -> None:
    own = stallsim.goodput("hgx-h100", "gpt2-xl", failure_law=Own(lambda count, random: random.exponential(size=count)), **JOB)  # type: ignore[arg-type]
    plain = stallsim.goodput("hgx-h100", "gpt2-xl", **JOB)  # type: ignore[arg-type]
    assert own.equals(plain)
    assert own.attrs["reliability"].pop("law") == "mine" and plain.attrs["reliability"].pop("law") == "exponential"
    added_notes = [note for note in own.attrs.pop("notes") if note not in plain.attrs["notes"]]
    assert plain.attrs.pop("notes") and own.attrs == plain.attrs
    assert added_notes == [
        "times between failures follow mine, your own law, which is not validated; the closed form, the formulas and the best "
        "interval assume exponential times"
    ]


@pytest.mark.parametrize(
    ("draw", "message"),
    [
        (
            lambda count, random: 1.1 * random.exponential(size=count),
            "failure_law=mine: the mean of 20000 times is 1.09, not 1; divide them",
        ),
        (lambda count, random: random.weibull(0.7, count), "failure_law=mine: the mean of 20000 times is 1.25, not 1"),
        (lambda count, random: [0.99] * count, "failure_law=mine: the mean of 20000 times is 0.99, not 1"),
        (lambda count, random: random.exponential(), "failure law mine: returns an array of shape (); return 20000 times"),
        (lambda count, random: random.normal(1.0, 1.0, count), "failure law mine: returns a time of -"),
        (lambda count, random: [math.inf] * count, "failure law mine: returns a time of inf; return times of 0 or more"),
        (lambda count, random: ["soon"] * count, "failure law mine: does not return an array of numbers; return 20000 times"),
        (lambda count, random: random.lognormal(size=count) / 0, "failure law mine: "),
        (lambda count: [1.0] * count, "failure law mine: TypeError: "),
    ],
)
@pytest.mark.filterwarnings("ignore:divide by zero:RuntimeWarning")
def test_a_wrong_law_is_refused_in_a_sentence(draw: Any, message: str) -> None:
    with pytest.raises(SpecError) as refused:
        stallsim.goodput("hgx-h100", "gpt2-xl", failure_law=Own(draw), **JOB)  # type: ignore[arg-type]
    assert str(refused.value).startswith(message)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("law", "message"),
    [
        (
            "weibul",
            "failure_law=weibul: found 'weibul'; write one of exponential, weibull:SHAPE, or the name of one of your own (docs/",
        ),
        ("weibull", "failure_law=weibull: write weibull:SHAPE with a shape from 0.2 to 20, such as weibull:0.7"),
        ("weibull:nan", "failure_law=weibull:nan: write weibull:SHAPE"),
        ("weibull:0.1", "failure_law=weibull:0.1: write weibull:SHAPE"),
        (7, "the failure law 7: does not follow FailureLaw: it lacks name and gaps; see docs/develop/own-failure-law.md for an example"),
    ],
)
def test_what_is_no_law_is_refused_in_a_sentence(law: object, message: str) -> None:
    with pytest.raises(SpecError) as refused:
        stallsim.goodput("hgx-h100", "gpt2-xl", failure_law=law, **JOB)  # type: ignore[arg-type]
    assert str(refused.value).startswith(message)


def test_heavy_tails_of_mean_one_are_accepted() -> None:
    for shape in (0.25, 0.7):
        law = Own(lambda count, random, shape=shape: Weibull(shape).gaps(count, random))
        assert failure_law(extensions.register(extensions.FAILURE_LAWS, law)).name == "mine"
