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
from sim.report import layout_error

FILE: Final = RECORDS / "constants.json"
QUANTILES: Final = 11
POINTS_NEEDED: Final = 10
"""Rows below which sources are pooled."""


def kind_of(case: Case) -> str:
    """Return the kind of layout that shares its errors: data, tensor, pipeline or expert, the last that applies."""
    return layout_error.kind_of(case.tensor, case.context, case.pipeline, case.expert)


@dataclass(frozen=True)
class Fitted:
    """What rows of one source are predicted with: the constants, the simple rules' efficiencies, and the errors to expect."""

    constants: Mapping[str, float]
    rules: Mapping[str, float]
    errors: Mapping[str, Mapping[str, Sequence[float]]]
    """Quantiles of logarithms of measured over predicted time, by source and kind of layout; of other sources than the scored one."""

    families: frozenset[str] = frozenset()
    """Software families of those sources."""

    def interval(self, case: Case) -> tuple[float, float]:
        """Return the factors on a predicted step between which 95% of measured steps of such rows lie.

        Sources of the same kind of layout, one vote each; where fewer than three have it, all kinds. Software that none of them ran
        extrapolates, and widens the interval.
        """
        low, high = self._interval(case)
        wider = 1.0 if case.family in self.families else layout_error.WIDER
        return low**wider, high**wider

    def _interval(self, case: Case) -> tuple[float, float]:
        kind = kind_of(case)
        alike = [quantiles for kinds in self.errors.values() if (quantiles := kinds.get(kind))]
        used = alike if len(alike) >= 3 else [quantiles for kinds in self.errors.values() for quantiles in kinds.values()]
        if not used:
            return 0.5, 2.0
        votes = sorted((value, 1 / len(quantiles)) for quantiles in used for value in quantiles)
        return math.exp(_weighted(votes, 0.02)), math.exp(_weighted(votes, 0.98))

    @property
    def learning(self) -> float:
        """Return how much of one known row's miss belongs to its source: the variance between sources over that of a row."""
        sources = [[value for kind in kinds.values() for value in kind[1:-1]] for kinds in self.errors.values()]
        if len(sources) < 3:
            return 0.5
        between = pvariance([median(values) for values in sources])
        within = median(pvariance(values) for values in sources)
        return between / (between + within)


def _weighted(votes: Sequence[tuple[float, float]], share: float) -> float:
    total, passed = sum(weight for _, weight in votes), 0.0
    for value, weight in votes:
        passed += weight
        if passed >= share * total:
            return value
    return votes[-1][0]


def fitted(source: str, leave_out: bool = True) -> Fitted:
    """Return what rows of *source* are predicted with; nothing of it is fitted on *source* where *leave_out* is true."""
    known = _file()
    own = known["without"].get(source) if leave_out else None
    chosen = own or known["all"]
    errors = {name: kinds for name, kinds in known["errors"].items() if not (leave_out and name == source)}
    families = frozenset(family for name in errors for family in known["families"].get(name, ()))
    return Fitted({**defaults(), **chosen["constants"]}, chosen["rules"], errors, families)


def sources() -> list[str]:
    """Return the sources that the constants were fitted on."""
    return sorted(_file()["without"])


@lru_cache(maxsize=1)
def _file() -> dict[str, Any]:
    if not FILE.is_file():
        return {"all": {"constants": {}, "rules": {}}, "without": {}, "errors": {}, "families": {}}
    found: dict[str, Any] = json.loads(FILE.read_text(encoding="utf-8"))
    return found
