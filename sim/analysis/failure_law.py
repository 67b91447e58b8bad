"""How do the times between failures scatter? Exponential, Weibull, or a law of the user's own; how often is the rate's business.

A law draws times in units of their mean, so that one law serves every fleet: the rate of a course stretches them. Schroeder and Gibson
(DSN 2006) fit times between failures of whole clusters by a Weibull law of shape 0.7 to 0.8: failures come in crowds.
A job begins as behind a failure. Limit: repeats, events that take several nodes and planned stops keep laws of their own.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Final, Protocol, cast

import numpy as np
from numpy.typing import NDArray

from sim.spec.extensions import FAILURE_LAWS, called, extension
from sim.spec.yaml import SpecError

EXAMINED: Final = 20_000
"""Draws that the mean of a law of the user's own is checked on."""
_TOLERANCE: Final = 5.0
"""Standard errors that the mean of these draws may be off; a law of mean 1 is beyond once in a million."""
SHAPES: Final = (0.2, 20.0)
BUILT_IN: Final = ("exponential", "weibull:SHAPE")


class FailureLaw(Protocol):
    """How times between failures scatter; docs/develop/own-failure-law.md has one as an example."""

    @property
    def name(self) -> str:
        """What ``--failure-law`` says."""

    def gaps(self, count: int, random: np.random.Generator) -> Any:
        """Return an array of *count* times between failures, relative to their mean: drawn with *random*, with a mean of 1."""


class Exponential:
    """Failures that know nothing of each other."""

    name = "exponential"

    def gaps(self, count: int, random: np.random.Generator) -> NDArray[np.float64]:
        """Return *count* draws of mean 1."""
        return random.exponential(size=count)


@dataclass(frozen=True)
class Weibull:
    """Weibull's law: a shape below 1 lets failures come in crowds, above 1 in even steps; 1 is exponential."""

    shape: float

    @property
    def name(self) -> str:
        """Return what ``--failure-law`` says."""
        return f"weibull:{self.shape:g}"

    def gaps(self, count: int, random: np.random.Generator) -> NDArray[np.float64]:
        """Return *count* draws of mean 1."""
        return np.asarray(random.weibull(self.shape, count) / math.gamma(1 + 1 / self.shape))


EXPONENTIAL: Final = Exponential()


@dataclass(frozen=True)
class Own:
    """A law of the user's, each draw of which is checked."""

    law: FailureLaw
    name: str

    def gaps(self, count: int, random: np.random.Generator) -> NDArray[np.float64]:
        """Return *count* draws. Raise SpecError for what are no times."""
        given: Any = called(FAILURE_LAWS, self.name, lambda: self.law.gaps(count, random))
        try:
            drawn = np.asarray(given, dtype=np.float64)
        except (TypeError, ValueError):
            raise SpecError(f"failure law {self.name}: does not return an array of numbers; return {count} times") from None
        if drawn.shape != (count,):
            raise SpecError(f"failure law {self.name}: returns an array of shape {drawn.shape}; return {count} times")
        if not (np.isfinite(drawn).all() and (drawn >= 0).all()):
            wrong = drawn[~(np.isfinite(drawn) & (drawn >= 0))][0]
            raise SpecError(f"failure law {self.name}: returns a time of {wrong:g}; return times of 0 or more")
        return drawn


def failure_law(text: str) -> FailureLaw:
    """Return the law that *text* names: ``exponential``, ``weibull:0.7``, or one of the user's. Raise SpecError for what is none.

    The mean of a law of the user's is checked on draws.
    """
    if text == EXPONENTIAL.name:
        return EXPONENTIAL
    kind, _, shape = text.partition(":")
    if kind == "weibull":
        return Weibull(_shape(text, shape))
    try:
        law = extension(FAILURE_LAWS, text, BUILT_IN)
    except SpecError as error:
        raise SpecError(f"--failure-law {text}: {error}") from None
    own = Own(cast(FailureLaw, law), text)
    drawn = own.gaps(EXAMINED, np.random.default_rng(0))
    mean, off = float(drawn.mean()), float(drawn.std()) / math.sqrt(EXAMINED)
    if abs(mean - 1) > _TOLERANCE * off + 1e-3:
        raise SpecError(
            f"--failure-law {text}: the mean of {EXAMINED} times is {mean:.3g}, not 1; divide them by their mean (the failure rate "
            "scales them)"
        )
    return own


def _shape(text: str, shape: str) -> float:
    try:
        value = float(shape)
    except ValueError:
        value = math.nan
    if not SHAPES[0] <= value <= SHAPES[1]:
        raise SpecError(f"--failure-law {text}: write weibull:SHAPE with a shape from {SHAPES[0]:g} to {SHAPES[1]:g}, such as weibull:0.7")
    return value
