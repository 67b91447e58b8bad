"""Which constants predict a source? Those of ``records/llm/constants.json``: fitted to all sources, or without the one that is scored.

The file is written by ``python -m calibration.llm``. It also contains quantiles, by source and kind of layout, of the errors of predictions
without that source, and the efficiencies of the two simple rules that predictions are compared with.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

from calibration.llm.case import Case
from calibration.llm.priors import defaults
from calibration.llm.shapes import LLM_RECORDS
from calibration.llm.similar import TRAITS, shared_error
from sim.report.layouts import layout_error

FILE: Final = LLM_RECORDS / "constants.json"
QUANTILES: Final = 11
POINTS_NEEDED: Final = 10
"""Rows below which sources are pooled."""
COVERAGE: Final = 0.9
"""Minimum share of a new source's rows that intervals should contain, and of sources for which this should be true."""
LEAST_WIDTH: Final = 0.01
"""Minimum distance of an interval's ends from the prediction, as a logarithm: repeated runs differ by this much."""


def kind_of(case: Case) -> str:
    """Return the kind of layout, whose cases share expected errors: data, tensor, pipeline or expert, the last that applies."""
    return layout_error.kind_of(case.tensor, case.context, case.pipeline, case.expert)


@dataclass(frozen=True)
class FittedConstants:
    """Everything for predictions of one source's rows: the constants, the simple rules' efficiencies, and the expected errors."""

    constants: Mapping[str, float]
    rules: Mapping[str, float]
    errors: Mapping[str, Mapping[str, Sequence[float]]]
    """Quantiles of log(measured / predicted), by source and kind of layout, for sources other than the scored one."""

    families: frozenset[str] = frozenset()
    """Software families of those sources."""
    generations: frozenset[str] = frozenset()
    """Generations of GPUs of those sources."""
    most_gpus: int = 0
    """GPUs of their largest run."""
    shared_error: tuple[float, ...] = (0.0,) * (TRAITS + 1)
    """Share of a run's log error that other runs of its source have, by number of common traits, from those sources."""
    widening: float = 1.0
    """Factor on the logarithms of intervals, from `widening` for those sources."""

    def interval(self, case: Case) -> tuple[float, float]:
        """Return the factors on a predicted step between which 95% of measured steps of such rows lie.

        They come from sources with the same kind of layout, one vote each, or from all kinds if fewer than three sources have it. The
        interval is as wide as other sources required when they were left out. It is wider still for extrapolation: to software or a
        generation of GPUs that no source used, or to more GPUs than any.
        """
        low, high = _error_range(self.errors, kind_of(case))
        within = case.family in self.families and case.chip.generation in self.generations and case.gpus <= self.most_gpus
        wider = self.widening * (1.0 if within else layout_error.WIDER)
        return math.exp(wider * low), math.exp(wider * high)


def widening(errors: Mapping[str, Mapping[str, Sequence[float]]], rows: Mapping[str, Mapping[str, int]]) -> float:
    """Return the factor, at least 1, on the logarithms of intervals with which they contain 9 in 10 rows of 9 in 10 left-out sources.

    This is split conformal prediction with sources as units (Lee, Barber and Willett, JRSS B 2025): of the factors that n sources require,
    the one of rank 0.9 (n + 1), or the largest below ten sources. *rows* has the number of rows by source and kind of layout.
    """
    needs = sorted(_required_widening(errors, rows[source], source) for source in errors) if len(errors) > 3 else []
    rank = min(len(needs), math.ceil(COVERAGE * (len(needs) + 1)))
    return max(1.0, needs[rank - 1]) if needs else 1.0


def _required_widening(errors: Mapping[str, Mapping[str, Sequence[float]]], rows: Mapping[str, int], source: str) -> float:
    """Return the factor with which intervals built from the other sources contain nine in ten of the errors of *source*."""
    others = {name: kinds for name, kinds in errors.items() if name != source}
    misses = []
    for kind, quantiles in errors[source].items():
        low, high = _error_range(others, kind)
        misses += [(value / (high if value > 0 else low), rows[kind] * share) for value, share in _shares(quantiles)]
    return _weighted(sorted(misses), COVERAGE)


def _error_range(errors: Mapping[str, Mapping[str, Sequence[float]]], kind: str) -> tuple[float, float]:
    """Return the values of log(measured / predicted) between which nearly all rows of *kind* lie."""
    same_kind = [quantiles for kinds in errors.values() if (quantiles := kinds.get(kind))]
    used = same_kind if len(same_kind) >= 3 else [quantiles for kinds in errors.values() for quantiles in kinds.values()]
    if not used:
        return math.log(0.5), math.log(2.0)
    votes = sorted(vote for quantiles in used for vote in _shares(quantiles))
    return min(_weighted(votes, 0.02), -LEAST_WIDTH), max(_weighted(votes, 0.98), LEAST_WIDTH)


def _shares(quantiles: Sequence[float]) -> list[tuple[float, float]]:
    """Return each of *quantiles* with the share of rows that it represents: the first and the last half as many as the others."""
    share = 1 / (len(quantiles) - 1)
    return [(value, share / 2 if at in (0, len(quantiles) - 1) else share) for at, value in enumerate(quantiles)]


def _weighted(votes: Sequence[tuple[float, float]], share: float) -> float:
    total, passed = sum(weight for _, weight in votes), 0.0
    for value, weight in votes:
        passed += weight
        if passed >= share * total:
            return value
    return votes[-1][0]


def fitted_constants(source: str, leave_out: bool = True) -> FittedConstants:
    """Return the constants for predictions of *source*; if *leave_out* is true, none of them were fitted to *source*."""
    committed = _file()
    own = committed["without"].get(source) if leave_out else None
    chosen = own or committed["all"]
    errors = {name: kinds for name, kinds in committed["errors"].items() if not (leave_out and name == source)}
    families = frozenset(family for name in errors for family in committed["families"].get(name, ()))
    generations = frozenset(name for source in errors for name in committed["generations"].get(source, ()))
    most_gpus = max((committed["most_gpus"].get(source, 0) for source in errors), default=0)
    shared = shared_error(committed["pairs"][name] for name in errors)
    wider = widening(errors, committed["rows"])
    return FittedConstants({**defaults(), **chosen["constants"]}, chosen["rules"], errors, families, generations, most_gpus, shared, wider)


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
            "pairs": {},
        }
    content: dict[str, Any] = json.loads(FILE.read_text(encoding="utf-8"))
    return content
