"""Between which factors does the measured step lie? A scale known before the run, and a factor that covers a new source.

This is normalized split conformal prediction (Lei and others, JASA 2018) with groups of runs as units: each family of models of a source,
because runs of one family on one source err together. The log error of a run has a Laplace distribution whose scale depends on its
`TRAITS`: ``log scale = c + sum of effects``, fitted with one vote per unit. A unit's errors relative to scales that other units predict are
its *ratios*; their mean says how much harder it is than expected. The factor on the scale contains `COVERAGE` of the ratios of a new unit,
whose mean ratio is drawn like those of the others (log-normal, so Student's t for the next one). Without this assumption, some fifteen
units do not suffice for 95% (Lee, Barber and Willett, JRSS B 2025: of n, the level would be n / (n + 1)).
Other traits did not help to predict the errors of sources left out: kind of layout, GPUs, nodes, seconds of a step, 8 bits, and how far
the two predictors are apart.
Limits: intervals are symmetric in the logarithm; a kind of run that no other source has is covered no better than its traits say.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from calibration.llm.case import Case
from sim.report.layouts.layout_error import FEW_SAMPLES, TRAITS, IntervalLaw

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

COVERAGE: Final = 0.95
"""Share of the runs of a new unit that intervals contain."""
POINTS_NEEDED: Final = 10
"""Rows below which units, and sources in tables of errors, are pooled."""
VOTE: Final = 10.0
"""Rows as which each unit counts against the prior (estimate): rows of one unit are alike, so more of them do not say more."""
EFFECT: Final = 1.0
"""Standard deviation of an effect before the fit. Of 0.25, 0.5, 1 and 2, it predicts the errors of sources left out best (chosen on these
errors, not on coverage)."""
COMPUTE_PARTS: Final = ("products", "attention", "elementwise", "recompute", "ends")
"""Parts of the closed form's step in which a rank computes."""
STEPS: Final = 200
"""Points at which the distribution of a new unit's mean ratio is evaluated."""


@dataclass(frozen=True)
class KnownRuns:
    """What other sources used: software families, generations of GPUs, and GPUs of the largest run."""

    families: frozenset[str] = frozenset()
    generations: frozenset[str] = frozenset()
    most_gpus: int = 0

    def has(self, case: Case) -> bool:
        """Return whether *case* is within what was used."""
        of_software = case.is_known_software and case.family in self.families
        return of_software and case.chip.generation in self.generations and case.gpus <= self.most_gpus


NOTHING_KNOWN: Final = KnownRuns()


UNKNOWN: Final = IntervalLaw(math.log(math.log(2.0)), (0.0,) * len(TRAITS), 1.0)
"""The law if no source was measured: half to twice the prediction."""


def traits_of(case: Case, seconds: float, parts: Mapping[str, float], earlier_runs: KnownRuns) -> tuple[float, ...]:
    """Return the `TRAITS` of *case*, whose step the closed form predicts to take *seconds* with *parts*, if others ran *earlier_runs*."""
    exposed = 1.0 - sum(parts[name] for name in COMPUTE_PARTS) / seconds
    few = case.micro_batch <= FEW_SAMPLES
    return float(case.shape.experts > 0), float(few), min(1.0, max(0.0, exposed)), float(not earlier_runs.has(case))


def pooled(units: Sequence[str]) -> list[str]:
    """Return the groups that *units*, one for each row, count as; units with too few rows are pooled."""
    counts = Counter(units)
    return [unit if counts[unit] >= POINTS_NEEDED else "" for unit in units]


def fit_law(
    errors: Sequence[float], traits_without: Callable[[frozenset[str]], Sequence[Sequence[float]]], groups: Sequence[str]
) -> IntervalLaw:
    """Return the law of *errors*, log(measured / predicted), each predicted without its own source.

    *groups* has the unit of each error. *traits_without* returns the traits of every row if the sources of the given units were not
    measured, because what is novel depends on them. `UNKNOWN` is returned for fewer than three units.
    """
    import numpy as np

    names = sorted(set(groups))
    if len(names) < 3:
        return UNKNOWN
    size, of = np.abs(np.array(errors)), np.array(groups)
    weight = np.array([1.0 / count for count in (Counter(groups)[name] for name in groups)])
    own = {name: np.array(traits_without(frozenset({name})), dtype=float) for name in names}
    design = np.zeros((len(size), 1 + own[names[0]].shape[1]))
    design[:, 0] = 1.0
    for name in names:
        design[of == name, 1:] = own[name][of == name]
    ratios = []
    for name in names:
        others = of != name
        fitted = _fit_scale(design[others], size[others], weight[others])
        ratios.append(size[~others] * np.exp(-design[~others] @ fitted))
    fitted = _fit_scale(design, size, weight)
    return IntervalLaw(float(fitted[0]), tuple(fitted[1:].tolist()), covering_factor(ratios))


def covering_factor(ratios: Sequence[NDArray[np.float64]], share: float = COVERAGE) -> float:
    """Return the factor that contains *share* of the ratios of a new unit, given those of at least two others, one array each."""
    import numpy as np
    from scipy.special import stdtrit

    means = np.log([own.mean() for own in ratios])
    count = len(means)
    quantiles = stdtrit(count - 1, (np.arange(STEPS) + 0.5) / STEPS)
    new_means = np.exp(means.mean() + quantiles * means.std(ddof=1) * math.sqrt(1.0 + 1.0 / count))
    relative = np.concatenate([own / own.mean() for own in ratios])
    votes = np.concatenate([np.full(len(own), 1.0 / (count * len(own))) for own in ratios])
    order = np.argsort(relative)
    passed = np.concatenate([[0.0], np.cumsum(votes[order])])

    def covered(factor: float) -> float:
        return float(passed[np.searchsorted(relative[order], factor / new_means, side="right")].mean())

    low, high = 1e-3, 1e6
    while high / low > 1.0001:
        middle = math.sqrt(low * high)
        low, high = (middle, high) if covered(middle) < share else (low, middle)
    return high


def _fit_scale(design: NDArray[np.float64], size: NDArray[np.float64], weight: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the coefficients of the log scale of Laplace errors of *size* that are most probable, by Newton's method.

    *design* has a column of ones, then the traits; *weight* adds up to one for each unit.
    """
    import numpy as np

    prior = np.diag([0.0] + [EFFECT**-2] * (design.shape[1] - 1))
    fitted = np.zeros(design.shape[1])
    fitted[0] = math.log(np.average(size, weights=weight))
    for _ in range(100):
        relative = VOTE * weight * size * np.exp(-design @ fitted)
        slope = design.T @ (VOTE * weight - relative) + prior @ fitted
        move = np.linalg.solve(design.T @ (relative[:, None] * design) + prior, -slope)
        fitted += np.clip(move, -0.5, 0.5)
        if np.max(np.abs(move)) < 1e-9:
            return fitted
    raise ValueError("the scale of errors does not converge")
