"""Which constants predict a source? Those of ``records/llm/constants.json``: fitted to all sources, or without the one that is scored.

The file is written by ``python -m calibration.llm``. It also contains the laws of errors from which intervals follow, and the efficiencies
of the two simple rules that predictions are compared with.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

from calibration.llm.case import Case
from calibration.llm.closed_form import step
from calibration.llm.intervals import NOTHING_KNOWN, UNKNOWN, KnownRuns, traits_of
from calibration.llm.priors import defaults
from calibration.llm.shapes import LLM_RECORDS
from calibration.llm.similar import TRAITS, shared_error
from sim.report.layouts import layout_error

FILE: Final = LLM_RECORDS / "constants.json"


def kind_of(case: Case) -> str:
    """Return the kind of layout, whose cases share expected errors: data, tensor, pipeline or expert, the last that applies."""
    return layout_error.kind_of(case.tensor, case.context, case.pipeline, case.expert)


@dataclass(frozen=True)
class FittedConstants:
    """Everything for predictions of one source's rows: the constants, the simple rules' efficiencies, and the expected errors."""

    constants: Mapping[str, float]
    rules: Mapping[str, float]
    law: layout_error.IntervalLaw = UNKNOWN
    """Law of the closed form's errors, from sources other than the scored one."""
    known_runs: KnownRuns = NOTHING_KNOWN
    """What those sources used."""
    shared_error: tuple[float, ...] = (0.0,) * (TRAITS + 1)
    """Share of a run's log error that other runs of its source have, by number of common traits, from those sources."""

    def interval(self, case: Case) -> tuple[float, float]:
        """Return the factors on a predicted step between which 95% of measured steps of a new source lie."""
        half = self.law.half_width(traits_of(case, *step(case, self.constants), self.known_runs))
        return math.exp(-half), math.exp(half)


def fitted_constants(source: str, leave_out: bool = True) -> FittedConstants:
    """Return the constants for predictions of *source*; if *leave_out* is true, none of them were fitted to *source*."""
    committed = _file()
    own = committed["without"].get(source) if leave_out else None
    chosen = own or committed["all"]
    others = [name for name in committed["pairs"] if not (leave_out and name == source)]
    law = chosen.get("law")
    return FittedConstants(
        {**defaults(), **chosen["constants"]},
        chosen["rules"],
        layout_error.IntervalLaw.from_document(law) if law else UNKNOWN,
        known_runs(committed, others),
        shared_error(committed["pairs"][name] for name in others),
    )


def known_runs(committed: Mapping[str, Any], sources: Iterable[str]) -> KnownRuns:
    """Return what *sources* used, according to the document of constants *committed*."""
    named = list(sources)
    families = frozenset(one for name in named for one in committed["families"].get(name, ()))
    generations = frozenset(one for name in named for one in committed["generations"].get(name, ()))
    return KnownRuns(families, generations, max((committed["most_gpus"].get(name, 0) for name in named), default=0))


@lru_cache(maxsize=1)
def _file() -> dict[str, Any]:
    if not FILE.is_file():
        return {
            "all": {"constants": {}, "rules": {}},
            "without": {},
            "families": {},
            "generations": {},
            "most_gpus": {},
            "pairs": {},
        }
    content: dict[str, Any] = json.loads(FILE.read_text(encoding="utf-8"))
    return content
