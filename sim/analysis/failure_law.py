"""How are the times between failures distributed? By an exponential law, a Weibull law, or a law supplied by the user.

A law draws times in units of their mean; the failure rate of a course scales them, so one law serves every fleet. Schroeder and Gibson
(DSN 2006) fit the times between failures of whole clusters with Weibull shapes of 0.7 to 0.8: failures cluster. A job begins as if a
failure had just occurred. Limit: repeats, events that take down several nodes, and planned stops have distributions of their own.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Final, Protocol, cast

import numpy as np
from numpy.typing import NDArray

from sim.spec.extensions import FAILURE_LAWS, call_extension, extension
from sim.spec.yaml import SpecError

EXAMINED: Final = 20_000
"""Number of draws used to check the mean of a user's law."""
_TOLERANCE: Final = 5.0
"""Maximum deviation of the mean of these draws, in standard errors; a law of mean 1 exceeds it about once in a million checks."""
SHAPES: Final = (0.2, 20.0)
BUILT_IN: Final = ("exponential", "weibull:SHAPE")


class FailureLaw(Protocol):
    """The distribution of the times between failures; docs/develop/own-failure-law.md has an example."""

    @property
    def name(self) -> str:
        """Return the name of the law for ``--failure-law``."""

    def gaps(self, count: int, random: np.random.Generator) -> Any:
        """Return an array of *count* times between failures, relative to their mean: drawn with *random*, with a mean of 1."""


class Exponential:
    """Failures that are independent of each other."""

    name = "exponential"

    def gaps(self, count: int, random: np.random.Generator) -> NDArray[np.float64]:
        """Return *count* draws of mean 1."""
        return random.exponential(size=count)


@dataclass(frozen=True)
class Weibull:
    """Weibull distribution: with a shape below 1 failures cluster, above 1 they are more evenly spaced; 1 is exponential."""

    shape: float

    @property
    def name(self) -> str:
        """Return the name of the law for ``--failure-law``."""
        return f"weibull:{self.shape:g}"

    def gaps(self, count: int, random: np.random.Generator) -> NDArray[np.float64]:
        """Return *count* draws of mean 1."""
        return np.asarray(random.weibull(self.shape, count) / math.gamma(1 + 1 / self.shape))


EXPONENTIAL: Final = Exponential()


@dataclass(frozen=True)
class UserLaw:
    """A law supplied by the user; every draw is checked."""

    law: FailureLaw
    name: str

    def gaps(self, count: int, random: np.random.Generator) -> NDArray[np.float64]:
        """Return *count* draws. Raise SpecError if they are not valid times."""
        returned: Any = call_extension(FAILURE_LAWS, self.name, lambda: self.law.gaps(count, random))
        try:
            drawn = np.asarray(returned, dtype=np.float64)
        except (TypeError, ValueError):
            raise SpecError(f"failure law {self.name}: does not return an array of numbers; return {count} times") from None
        if drawn.shape != (count,):
            raise SpecError(f"failure law {self.name}: returns an array of shape {drawn.shape}; return {count} times")
        if not (np.isfinite(drawn).all() and (drawn >= 0).all()):
            wrong = drawn[~(np.isfinite(drawn) & (drawn >= 0))][0]
            raise SpecError(f"failure law {self.name}: returns a time of {wrong:g}; return times of 0 or more")
        return drawn


def failure_law(text: str) -> FailureLaw:
    """Return the law that *text* names: ``exponential``, ``weibull:0.7``, or a user's law. Raise SpecError for any other text.

    The mean of a user's law is checked with draws.
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
    own = UserLaw(cast(FailureLaw, law), text)
    drawn = own.gaps(EXAMINED, np.random.default_rng(0))
    mean, standard_error = float(drawn.mean()), float(drawn.std()) / math.sqrt(EXAMINED)
    if abs(mean - 1) > _TOLERANCE * standard_error + 1e-3:
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
