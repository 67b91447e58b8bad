"""What does ``python -m calibration.llm`` do? It refits the constants to the committed runs, publishes errors, or ranks layouts."""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from calibration.llm.case import Case
from calibration.llm.choice import choice_document, choice_text, rank_runs, sample_sweeps
from calibration.llm.closed_form import step
from calibration.llm.constants import FILE, known_runs
from calibration.llm.describe import describe
from calibration.llm.fit import fit, thin
from calibration.llm.intervals import fit_law, pooled, traits_of
from calibration.llm.prediction import LlmPrediction
from calibration.llm.priors import defaults
from calibration.llm.rules import efficiencies
from calibration.llm.score import is_scorable
from calibration.llm.shapes import LLM_RECORDS
from calibration.llm.similar import pair_sums
from calibration.llm.table import read_table
from sim.spec.yaml import SpecError
from sim.terminal import messages


def main() -> None:
    """Fit the constants; with ``--published``, simulate all scored runs instead and write the errors of predictions.

    With ``--sweeps N``, simulate N runs of each measured sweep and show which layout is chosen; ``--failed`` also reads runs that failed.
    """
    parser = argparse.ArgumentParser(prog="python -m calibration.llm", description=main.__doc__)
    parser.add_argument("--published", action="store_true", help="simulate all scored runs, and write the prediction errors")
    parser.add_argument(
        "--keep-steps",
        action="store_true",
        help="with --published, take steps of unchanged machines and workloads from predictions.csv (only if the simulator is unchanged)",
    )
    parser.add_argument("--sweeps", type=int, metavar="N", help="simulate this many runs of each measured sweep, and show what is chosen")
    parser.add_argument("--failed", type=Path, metavar="FILE.csv", help="also show which of these failed runs would be proposed")
    parser.add_argument("--json", action="store_true", help="print the choices as one JSON document")
    options = parser.parse_args()
    if options.keep_steps and not options.published:
        parser.error("--keep-steps belongs to --published")
    failed_only = options.failed and not options.sweeps  # without the committed runs, which take a while to describe
    described = [] if failed_only else [describe(row) for row in read_table(LLM_RECORDS / "training.csv")]
    cases = [case for case in described if isinstance(case, Case) and is_scorable(case)]
    if options.published:
        from calibration.llm.published import publish

        used = publish([case for case in described if isinstance(case, Case)], _progress, keep_steps=options.keep_steps)
        messages.progress("")
        sys.stdout.write(", ".join(f"{count:,} runs {what}" for what, count in used.items()) + "\n")
        return
    if options.sweeps or options.failed:
        scores = choices(cases, options.sweeps or 0, options.failed)
        sys.stdout.write(f"{json.dumps(scores, indent=1) if options.json else choice_text(scores)}\n")
        return
    fit_all([case for case in cases if case.shape.pattern is None])  # no constant is fitted to hybrids: their rows test scans blindly


def _progress(done: int, total: int) -> None:
    messages.progress(f"{done:,} of {total:,} runs simulated")


def choices(cases: Sequence[Case], most: int, failed: Path | None) -> dict[str, Any]:
    """Return which of *most* runs of each sweep among *cases* the simulator chooses, and its verdicts on the runs in *failed*."""
    from calibration.llm.engine import memory_of, predict

    taken = sample_sweeps(cases, most) if most else {}
    done, total = 0, sum(map(len, taken.values()))

    def progress() -> None:
        nonlocal done
        done += 1
        _progress(done, total)

    sweeps = {key: list(rank_runs(own, predict, progress)) for key, own in taken.items()}
    messages.progress("")
    described = [describe(row) for row in read_table(failed)] if failed else []
    runs = []
    for case in described:
        if isinstance(case, Case):
            with suppress(SpecError, ValueError):
                need = memory_of(case)
                runs.append((case, LlmPrediction(math.nan, need.nbytes, need.verdict)))
    return choice_document(sweeps, runs)


def fit_all(cases: Sequence[Case]) -> None:
    """Fit the constants of the closed form to *cases*, also with each source left out in turn, and write them."""
    everything, without = fit(cases)
    names = sorted({case.row.source for case in cases})
    document = {
        "all": {"constants": _changed(everything), "rules": _rounded(efficiencies(cases))},
        "without": {
            name: {
                "constants": _changed(without.get(name, everything)),
                "rules": _rounded(efficiencies([case for case in cases if case.row.source != name])),
            }
            for name in names
        },
        "pairs": {name: _pairs([case for case in cases if case.row.source == name], without.get(name, everything)) for name in names},
        "families": {name: sorted({case.family for case in cases if case.row.source == name}) for name in names},
        "generations": {name: sorted({case.chip.generation for case in cases if case.row.source == name}) for name in names},
        "most_gpus": {name: max(case.gpus for case in cases if case.row.source == name) for name in names},
    }
    add_laws(document, cases, lambda case: without.get(case.row.source, everything))
    FILE.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    sys.stdout.write(f"{len(cases)} runs of {len(names)} sources: wrote {FILE.name}\n")


def _changed(constants: Mapping[str, float]) -> dict[str, float]:
    return {name: float(f"{value:.4g}") for name, value in constants.items() if abs(value / defaults()[name] - 1) > 1e-3}


def _rounded(values: Mapping[str, float]) -> dict[str, float]:
    return {name: float(f"{value:.4g}") for name, value in values.items()}


def _logarithm(case: Case, constants: Mapping[str, float]) -> float:
    return math.log((case.measured or 1.0) / step(case, constants)[0])


def add_laws(document: dict[str, Any], cases: Sequence[Case], constants_of: Callable[[Case], Mapping[str, float]]) -> None:
    """Add to *document* the law of the errors of *cases*, also with each source left out; *constants_of* has those of each case.

    Its units are the families of models of each source, because runs of one family on one source err together.
    """
    steps = [step(case, constants_of(case)) for case in cases]
    sources = [case.row.source for case in cases]
    groups = pooled([f"{case.model_family} of {case.row.source}" for case in cases])
    members = {group: {source for source, own in zip(sources, groups, strict=True) if own == group} for group in groups}
    for left_out in (None, *document["without"]):
        kept = [at for at, source in enumerate(sources) if source != left_out]

        def traits_without(absent: frozenset[str], kept: Sequence[int] = kept, left_out: str | None = left_out) -> list[tuple[float, ...]]:
            unknown = {left_out}.union(*(members[group] for group in absent))
            earlier_runs = known_runs(document, set(sources) - unknown)
            return [traits_of(cases[at], *steps[at], earlier_runs) for at in kept]

        errors = [math.log((cases[at].measured or 1.0) / steps[at][0]) for at in kept]
        law = fit_law(errors, traits_without, [groups[at] for at in kept])
        target = document["all"] if left_out is None else document["without"][left_out]
        target["law"] = law.document()


def _pairs(cases: Sequence[Case], constants: Mapping[str, float]) -> list[list[float]]:
    return [[float(f"{value:.3g}") for value in sums] for sums in pair_sums([(case, _logarithm(case, constants)) for case in thin(cases)])]


if __name__ == "__main__":
    main()
