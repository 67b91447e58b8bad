"""``python -m calibration.llm``: fit the constants anew on the committed runs, and write what predictions and expected errors need."""

from __future__ import annotations

import json
import math
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from calibration.llm.case import RECORDS, Case, describe
from calibration.llm.closed_form import defaults, predict
from calibration.llm.constants import FILE, QUANTILES, kind_of
from calibration.llm.fit import fit
from calibration.llm.rules import efficiencies
from calibration.llm.score import quantile, scorable
from calibration.llm.table import read_table

EXPECTED = Path(__file__).parent.parent.parent / "hardware" / "validated_llm.json"


def main() -> None:
    """Fit, write both files, and say how many rows they rest on."""
    described = [describe(row) for row in read_table(RECORDS / "training.csv")]
    cases = [case for case in described if isinstance(case, Case) and scorable(case)]
    everything, without = fit(cases)
    names = sorted({case.row.source for case in cases})
    errors = {name: _errors([case for case in cases if case.row.source == name], without.get(name, everything)) for name in names}
    document = {
        "all": {"constants": _changed(everything), "rules": _rounded(efficiencies(cases))},
        "without": {
            name: {
                "constants": _changed(without.get(name, everything)),
                "rules": _rounded(efficiencies([case for case in cases if case.row.source != name])),
            }
            for name in names
        },
        "errors": errors,
    }
    FILE.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    EXPECTED.write_text(json.dumps(expected(cases, without), indent=1) + "\n", encoding="utf-8")
    sys.stdout.write(f"{len(cases)} runs of {len(names)} sources: wrote {FILE.name} and {EXPECTED.name}\n")


def _changed(constants: Mapping[str, float]) -> dict[str, float]:
    return {name: float(f"{value:.4g}") for name, value in constants.items() if abs(value / defaults()[name] - 1) > 1e-3}


def _rounded(values: Mapping[str, float]) -> dict[str, float]:
    return {name: float(f"{value:.4g}") for name, value in values.items()}


def _logarithm(case: Case, constants: Mapping[str, float]) -> float:
    return math.log((case.measured or 1.0) / predict(case, constants).step_time)


def _errors(cases: Sequence[Case], constants: Mapping[str, float]) -> dict[str, list[float]]:
    """Return quantiles of logarithms of measured over predicted, by kind of layout."""
    found: dict[str, list[float]] = defaultdict(list)
    for case in cases:
        found[kind_of(case)].append(_logarithm(case, constants))
    return {kind: [round(quantile(of, step / (QUANTILES - 1)), 3) for step in range(QUANTILES)] for kind, of in sorted(found.items())}


def expected(cases: Sequence[Case], without: Mapping[str, Mapping[str, float]]) -> dict[str, Any]:
    """Return the table of expected errors that ``sim`` reads: by groups of runs, the nearest first, what predictions without a source missed."""
    found: dict[str, list[tuple[float, Case]]] = defaultdict(list)
    for case in cases:
        error = _logarithm(case, without.get(case.row.source, defaults()))
        kind = kind_of(case)
        for name in (f"{kind}, {case.chip.name}, {case.model_family}", f"{kind}, {case.chip.name}", kind, "all runs"):
            found[name].append((error, case))
    groups = {}
    for name, of in sorted(found.items()):
        if len(of) < 5:
            continue
        errors = [error for error, _ in of]
        absolute = [abs(math.exp(-error) - 1) for error in errors]
        groups[name] = {
            "points": len(of),
            "median": round(quantile(absolute, 0.5), 3),
            "p90": round(quantile(absolute, 0.9), 3),
            "low": round(math.exp(quantile(errors, 0.025)), 3),
            "high": round(math.exp(quantile(errors, 0.975)), 3),
            "most_gpus": max(case.gpus for _, case in of),
            "sources": sorted({case.row.source.split("/")[-1] for _, case in of}),
        }
    return {"predictor": "closed form", "groups": groups}


if __name__ == "__main__":
    main()
