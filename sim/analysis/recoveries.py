"""What does a recovery take? The cause of each fault is drawn, and with it the times until the job can go on."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sim.analysis.long_run import Array, LongRun
from sim.analysis.renewal import Uniform


class Recoveries:
    """Draws recoveries of all courses of a run."""

    def __init__(self, run: LongRun, trials: int, random: Mapping[str, np.random.Generator]) -> None:
        self._run, self._trials, self._random = run, trials, random

    def uniform(self, span: Uniform, stream: str) -> Array:
        """Return a time within *span* for each course."""
        return np.asarray(span.low + (span.high - span.low) * self._random[stream].random(self._trials))

    def draw(self, revoked: NDArray[np.intp]) -> dict[str, Any]:
        """Draw cause and times of a recovery for every course, so that each keeps its own numbers whatever the others do.

        The cause of those *revoked* is known, and no other's where lives are drawn.
        """
        causes, random = self._run.causes, self._random["cause"]
        of_faults = causes[:-1] if self._run.lives and len(causes) > 1 else causes
        shares = np.cumsum([cause.share for cause in of_faults])
        cause = np.minimum(np.searchsorted(shares, random.random(self._trials) * shares[-1], side="right"), len(of_faults) - 1)
        cause[revoked] = len(causes) - 1
        return {
            "cause": cause,
            "replaces": (random.random(self._trials) < np.array([one.replaces for one in causes])[cause]).astype(float),
            "silent": np.array([one.silent_for for one in causes])[cause],
            "detection": self._spans([one.detection for one in causes], cause) + self._spans([one.localisation for one in causes], cause),
            "spare": self.uniform(self._run.spare, "recovery"),
            "communicators": self.uniform(self._run.communicators, "recovery"),
            "repair": self._repair(cause),
            "together": self.uniform(self._run.correlated[2], "repair"),
        }

    def _spans(self, spans: Sequence[Uniform], which: NDArray[np.intp]) -> Array:
        low, high = np.array([span.low for span in spans]), np.array([span.high for span in spans])
        return np.asarray(low[which] + (high - low)[which] * self._random["recovery"].random(self._trials))

    def _repair(self, cause: NDArray[np.intp]) -> Array:
        shares, times = zip(*self._run.repair, strict=True)
        even = self._random["repair"].random(self._trials)
        drawn = np.interp(even, shares, times)
        for number, one in enumerate(self._run.causes):
            if one.repair is not None:
                drawn = np.where(cause == number, one.repair.low + (one.repair.high - one.repair.low) * even, drawn)
        return np.asarray(drawn) if self._run.repairs else np.full(self._trials, math.inf)
