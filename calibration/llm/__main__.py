"""``python -m calibration.llm``: fit the constants anew on the committed runs, write the errors to expect of simulated layouts, or rank."""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from statistics import median
from typing import Any, Final, NamedTuple

from calibration import FOLDER
from calibration.llm.case import Case, describe
from calibration.llm.choice import choice_document, choice_text, ranked, sampled
from calibration.llm.closed_form import step
from calibration.llm.constants import FILE, QUANTILES, fitted, kind_of
from calibration.llm.fit import fit, thinned
from calibration.llm.prediction import LlmPrediction
from calibration.llm.priors import defaults
from calibration.llm.rules import efficiencies
from calibration.llm.score import quantile, scorable
from calibration.llm.shapes import RECORDS
from calibration.llm.table import read_table
from sim.report.layouts.layout_error import family_of, group_names
from sim.spec.yaml import SpecError
from sim.terminal import talk

EXPECTED = FOLDER.parent / "hardware" / "validated_llm.json"
LEAST: Final = 6
"""Runs that a group of expected errors needs."""


def main() -> None:
    """Fit the constants; with ``--expected N`` simulate N runs of each source, and write the errors to expect of ``sim run``.

    With ``--sweeps N`` simulate N runs of each measured sweep, and show which layout is chosen; ``--failed`` also reads runs that failed.
    """
    parser = argparse.ArgumentParser(prog="python -m calibration.llm", description=main.__doc__)
    parser.add_argument("--expected", type=int, metavar="N", help="simulate so many runs of each source instead of fitting")
    parser.add_argument("--sweeps", type=int, metavar="N", help="simulate so many runs of each measured sweep, and show what is chosen")
    parser.add_argument("--failed", type=Path, metavar="FILE.csv", help="also ask which of these failed runs would be proposed")
    parser.add_argument("--json", action="store_true", help="print what is chosen as one JSON document")
    options = parser.parse_args()
    alone = options.failed and not (options.expected or options.sweeps)  # asks nothing of the committed runs, of which each takes a while
    described = [] if alone else [describe(row) for row in read_table(RECORDS / "training.csv")]
    cases = [case for case in described if isinstance(case, Case) and scorable(case)]
    if options.expected:
        runs, refused = simulated_runs(thinned(cases, options.expected))
        factors = factors_without(runs)
        errors = [(run.error(factors[run.case.row.source]), run.case) for run in runs]
        EXPECTED.write_text(json.dumps(expected(errors), indent=1) + "\n", encoding="utf-8")
        sys.stdout.write(f"{report(errors, factors)}\n{len(errors)} runs simulated, {refused} refused: wrote {EXPECTED.name}\n")
        return
    if options.sweeps or options.failed:
        scores = choices(cases, options.sweeps or 0, options.failed)
        sys.stdout.write(f"{json.dumps(scores, indent=1) if options.json else choice_text(scores)}\n")
        return
    fit_all(cases)


def choices(cases: Sequence[Case], most: int, failed: Path | None) -> dict[str, Any]:
    """Return which of *most* runs of each sweep among *cases* the simulator chooses, and what it says of the runs in *failed*."""
    from calibration.llm.engine import memory_of, predict

    taken = sampled(cases, most) if most else {}
    done, of = 0, sum(map(len, taken.values()))

    def progress() -> None:
        nonlocal done
        done += 1
        talk.progress(f"{done:,} of {of:,} runs simulated")

    sweeps = {key: list(ranked(own, predict, progress)) for key, own in taken.items()}
    talk.progress("")
    described = [describe(row) for row in read_table(failed)] if failed else []
    runs = []
    for case in described:
        if isinstance(case, Case):
            with suppress(SpecError, ValueError):
                need = memory_of(case)
                runs.append((case, LlmPrediction(math.nan, need.nbytes, need.verdict)))
    return choice_document(sweeps, runs)


def fit_all(cases: Sequence[Case]) -> None:
    """Fit the constants of the closed form on *cases*, each source left out in turn, and write them."""
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
        "rows": {name: dict(sorted(Counter(kind_of(case) for case in cases if case.row.source == name).items())) for name in names},
        "families": {name: sorted({case.family for case in cases if case.row.source == name}) for name in names},
        "generations": {name: sorted({case.chip.generation for case in cases if case.row.source == name}) for name in names},
        "most_gpus": {name: max(case.gpus for case in cases if case.row.source == name) for name in names},
    }
    FILE.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    sys.stdout.write(f"{len(cases)} runs of {len(names)} sources: wrote {FILE.name}\n")


def _changed(constants: Mapping[str, float]) -> dict[str, float]:
    return {name: float(f"{value:.4g}") for name, value in constants.items() if abs(value / defaults()[name] - 1) > 1e-3}


def _rounded(values: Mapping[str, float]) -> dict[str, float]:
    return {name: float(f"{value:.4g}") for name, value in values.items()}


def _logarithm(case: Case, constants: Mapping[str, float]) -> float:
    return math.log((case.measured or 1.0) / step(case, constants)[0])


def _errors(cases: Sequence[Case], constants: Mapping[str, float]) -> dict[str, list[float]]:
    """Return quantiles of logarithms of measured over predicted, by kind of layout."""
    by_kind: dict[str, list[float]] = defaultdict(list)
    for case in cases:
        by_kind[kind_of(case)].append(_logarithm(case, constants))
    return {kind: [round(quantile(of, step / (QUANTILES - 1)), 3) for step in range(QUANTILES)] for kind, of in sorted(by_kind.items())}


class Simulated(NamedTuple):
    """One measured run as the simulator has it."""

    case: Case
    step: float
    """Predicted seconds of a step."""
    compute: float
    """Of those, what ranks compute."""

    @property
    def factor(self) -> float:
        """Return the factor on compute with which the prediction would be right."""
        return ((self.case.measured or 1.0) - self.step + self.compute) / self.compute

    def error(self, factor: float) -> float:
        """Return the logarithm of measured over predicted time, with compute *factor* times as long."""
        return math.log((self.case.measured or 1.0) / (self.step + (factor - 1.0) * self.compute))


def simulated_runs(cases: Sequence[Case]) -> tuple[list[Simulated], int]:
    """Return *cases* as the simulator has them, and how many it refuses."""
    from calibration.llm.engine import simulated
    from sim.events import Cause

    made = []
    for case in cases:
        try:
            run = simulated(case, fitted(case.row.source).constants)
        except (SpecError, ValueError):
            continue
        made.append(Simulated(case, run.step_time, run.stalls[Cause.COMPUTE]))
    return made, len(cases) - len(made)


def factors_without(runs: Sequence[Simulated]) -> dict[str, float]:
    """Return by source the factor on compute that the other sources ask for, one vote each.

    Stacks of layouts carry such a factor (``compute_factor``); each source is predicted with that of the others.
    """
    by_source: dict[str, list[float]] = defaultdict(list)
    for run in runs:
        by_source[run.case.row.source].append(run.factor)
    asked_for = {source: median(factors) for source, factors in by_source.items()}
    return {source: median(value for other, value in asked_for.items() if other != source) for source in asked_for}


def report(errors: Sequence[tuple[float, Case]], factors: Mapping[str, float]) -> str:
    """Return a line a source: rows, median and 90th percentile of absolute errors, and the factor of the other sources; then all."""
    by_source: dict[str, list[float]] = defaultdict(list)
    for error, case in errors:
        by_source[case.row.source].append(abs(error))
    scores = {source: (quantile(of, 0.5), quantile(of, 0.9)) for source, of in by_source.items()}
    lines = [
        f"{source:40} {len(by_source[source]):4}  {100 * middle:5.1f} / {100 * high:5.1f}%  compute x {factors[source]:.2f}"
        for source, (middle, high) in scores.items()
    ]
    middles, highs = zip(*scores.values(), strict=True)
    return "\n".join([*lines, f"{'one vote a source':40} {len(errors):4}  {100 * median(middles):5.1f} / {100 * median(highs):5.1f}%"])


def expected(errors: Sequence[tuple[float, Case]]) -> dict[str, Any]:
    """Return the table of expected errors that ``sim run`` reads: by groups of runs, what its predictions of them missed."""
    by_group: dict[str, list[tuple[float, Case]]] = defaultdict(list)
    for error, case in errors:
        for name in group_names(kind_of(case), family_of(case.shape), case.chip.name):
            by_group[name].append((error, case))
    groups = {name: _group(of) for name, of in sorted(by_group.items()) if len(of) >= LEAST}
    return {
        "source": "calibration/records/llm/training.csv, simulated from descriptions, compute_factor from the other sources",
        "groups": groups,
    }


def _group(of: Sequence[tuple[float, Case]]) -> dict[str, Any]:
    errors = [error for error, _ in of]
    absolute = [abs(math.exp(-error) - 1) for error in errors]
    return {
        "points": len(of),
        "median": round(quantile(absolute, 0.5), 3),
        "p90": round(quantile(absolute, 0.9), 3),
        "low": round(math.exp(quantile(errors, 0.025)), 3),
        "high": round(math.exp(quantile(errors, 0.975)), 3),
        "most_gpus": max(case.gpus for _, case in of),
        "sources": sorted({case.row.source.split("/")[-1] for _, case in of}),
    }


if __name__ == "__main__":
    main()
