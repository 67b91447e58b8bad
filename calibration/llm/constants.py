"""Which constants predict a source? Those of ``records/llm/constants.json``: of all sources, or without the one that is scored.

The file is written by ``python -m calibration.llm``. It also holds, by source and kind of layout, quantiles of the errors that predictions
without that source showed, and the efficiencies of the two simple rules that predictions are compared with.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import median, pvariance
from typing import Any, Final

from calibration.llm.case import Case
from calibration.llm.priors import defaults
from calibration.llm.shapes import RECORDS
from sim.report.layouts import layout_error

FILE: Final = RECORDS / "constants.json"
QUANTILES: Final = 11
POINTS_NEEDED: Final = 10
"""Rows below which sources are pooled."""
HELD: Final = 0.9
"""Share of a new source's rows that intervals are to hold, and of sources of which that is to be true: the least that is aimed at."""
LEAST: Final = 0.01
"""Least logarithm of an interval's ends: repeats of a run differ by as much."""


def kind_of(case: Case) -> str:
    """Return the kind of layout that shares its errors: data, tensor, pipeline or expert, the last that applies."""
    return layout_error.kind_of(case.tensor, case.context, case.pipeline, case.expert)


@dataclass(frozen=True)
class FittedConstants:
    """What rows of one source are predicted with: the constants, the simple rules' efficiencies, and the errors to expect."""

    constants: Mapping[str, float]
    rules: Mapping[str, float]
    errors: Mapping[str, Mapping[str, Sequence[float]]]
    """Quantiles of logarithms of measured over predicted time, by source and kind of layout; of other sources than the scored one."""

    families: frozenset[str] = frozenset()
    """Software families of those sources."""
    generations: frozenset[str] = frozenset()
    """Generations of GPUs of those sources."""
    most_gpus: int = 0
    """GPUs of their largest run."""
    widening: float = 1.0
    """Factor on the logarithms of intervals, as `widening` tells of those sources."""

    def interval(self, case: Case) -> tuple[float, float]:
        """Return the factors on a predicted step between which 95% of measured steps of such rows lie.

        Sources of the same kind of layout, one vote each; where fewer than three have it, all kinds. As wide as other sources needed
        it when they were left out; software or a generation of GPUs that none of them ran, or more GPUs than any,
        extrapolates, and widens the interval further.
        """
        low, high = _between(self.errors, kind_of(case))
        within = case.family in self.families and case.chip.generation in self.generations and case.gpus <= self.most_gpus
        wider = self.widening * (1.0 if within else layout_error.WIDER)
        return math.exp(wider * low), math.exp(wider * high)

    @property
    def learning(self) -> float:
        """Return how much of one known row's miss belongs to its source: the variance between sources over that of a row."""
        sources = [[value for kind in kinds.values() for value in kind[1:-1]] for kinds in self.errors.values()]
        if len(sources) < 3:
            return 0.5
        between = pvariance([median(values) for values in sources])
        within = median(pvariance(values) for values in sources)
        return between / (between + within)


def widening(errors: Mapping[str, Mapping[str, Sequence[float]]], rows: Mapping[str, Mapping[str, int]]) -> float:
    """Return the factor, at least 1, on the logarithms of intervals that holds nine in ten rows of nine in ten sources left out.

    Split conformal prediction with sources as units (Lee, Barber and Willett, JRSS B 2025): of n sources the one of rank
    0.9 (n + 1), which below ten sources is the one that needs most. *rows* are those of each source and kind of layout.
    """
    needs = sorted(_needed(errors, rows[source], source) for source in errors) if len(errors) > 3 else []
    rank = min(len(needs), math.ceil(HELD * (len(needs) + 1)))
    return max(1.0, needs[rank - 1]) if needs else 1.0


def _needed(errors: Mapping[str, Mapping[str, Sequence[float]]], rows: Mapping[str, int], source: str) -> float:
    """Return the factor with which intervals made of the others hold nine in ten of the errors of *source*."""
    others = {name: kinds for name, kinds in errors.items() if name != source}
    misses = []
    for kind, quantiles in errors[source].items():
        low, high = _between(others, kind)
        ends = (0, len(quantiles) - 1)  # the least and the largest stand for half as many rows as the quantiles between
        misses += [(value / (high if value > 0 else low), rows[kind] * (0.5 if at in ends else 1.0)) for at, value in enumerate(quantiles)]
    return _weighted(sorted(misses), HELD)


def _between(errors: Mapping[str, Mapping[str, Sequence[float]]], kind: str) -> tuple[float, float]:
    """Return the logarithms of measured over predicted time between which nearly all rows of *kind* lie."""
    alike = [quantiles for kinds in errors.values() if (quantiles := kinds.get(kind))]
    used = alike if len(alike) >= 3 else [quantiles for kinds in errors.values() for quantiles in kinds.values()]
    if not used:
        return math.log(0.5), math.log(2.0)
    votes = sorted((value, 1 / len(quantiles)) for quantiles in used for value in quantiles)
    return min(_weighted(votes, 0.02), -LEAST), max(_weighted(votes, 0.98), LEAST)


def _weighted(votes: Sequence[tuple[float, float]], share: float) -> float:
    total, passed = sum(weight for _, weight in votes), 0.0
    for value, weight in votes:
        passed += weight
        if passed >= share * total:
            return value
    return votes[-1][0]


def fitted(source: str, leave_out: bool = True) -> FittedConstants:
    """Return what rows of *source* are predicted with; nothing of it is fitted on *source* where *leave_out* is true."""
    committed = _file()
    own = committed["without"].get(source) if leave_out else None
    chosen = own or committed["all"]
    errors = {name: kinds for name, kinds in committed["errors"].items() if not (leave_out and name == source)}
    families = frozenset(family for name in errors for family in committed["families"].get(name, ()))
    generations = frozenset(name for source in errors for name in committed["generations"].get(source, ()))
    most_gpus = max((committed["most_gpus"].get(source, 0) for source in errors), default=0)
    wider = widening(errors, committed["rows"])
    return FittedConstants({**defaults(), **chosen["constants"]}, chosen["rules"], errors, families, generations, most_gpus, wider)


def sources() -> list[str]:
    """Return the sources that the constants were fitted on."""
    return sorted(_file()["without"])


@lru_cache(maxsize=1)
def _file() -> dict[str, Any]:
    if not FILE.is_file():
        return {
            "all": {"constants": {}, "rules": {}},
            "without": {},
            "errors": {},
            "families": {},
            "generations": {},
            "most_gpus": {},
            "rows": {},
        }
    content: dict[str, Any] = json.loads(FILE.read_text(encoding="utf-8"))
    return content
