"""How far off are predictions of the committed runs of transformers? Writes docs/trust/transformers.md and errors that runs quote.

Every scored run is asked of both predictors, by constants fitted without its source. The simulator's stacks of layouts carry one factor on
compute that was fitted to these runs (``compute_factor``), kernels of Ampere and Blackwell another (``whole_steps``); here each source is
predicted with what the others ask for.
"""

from __future__ import annotations

import json
import math
import re
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from math import sqrt
from pathlib import Path
from statistics import fmean, median
from typing import Any, Final, NamedTuple

from calibration import FOLDER
from calibration.llm import closed_form, engine
from calibration.llm.case import Case
from calibration.llm.constants import fitted, kind_of
from calibration.llm.fit import thinned
from calibration.llm.prediction import LlmPrediction
from calibration.llm.rules import rule_times
from calibration.llm.score import (
    ScoredRun,
    coverage,
    errors_of,
    groups,
    memory_scores,
    one_row_known,
    pooled,
    quantile,
    ranking,
    scorable,
    voted,
)
from calibration.validate.validation_report import number, pair, percent
from sim.events import Cause
from sim.report.layouts.layout_error import SUMMARY, family_of, group_names
from sim.spec.whole_file import write_file
from sim.spec.yaml import SpecError
from sim.study.pool import each

PAGE: Final = "docs/trust/transformers.md"
BLOCK: Final = re.compile(r"<!-- validated -->\n.*?<!-- end -->", re.DOTALL)
PREDICTORS: Final = ("closed form", "simulator", "both")
QUOTED: Final = 24
"""Runs of a source that count in errors to expect, evenly taken: one source has as many runs as all others."""
SOURCES: Final = 2
"""Other sources with GPUs of a generation, below which all generations say how long compute takes: one may be an exception (estimate)."""
LEAST: Final = 6
"""Runs that a group of expected errors needs."""

Asking = tuple[str, str]
"""A source, and a generation of GPUs."""


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

    def step_with(self, factor: float) -> float:
        """Return the predicted seconds of a step with compute *factor* times as long."""
        return self.step + (factor - 1.0) * self.compute

    def error(self, factor: float) -> float:
        """Return the logarithm of measured over predicted time, with compute *factor* times as long."""
        return math.log((self.case.measured or 1.0) / self.step_with(factor))


def simulated_runs(cases: Sequence[Case], progress: Callable[[int, int], None], processes: int | None = None) -> list[Simulated]:
    """Return those of *cases* that the simulator does not refuse, as it has them; *progress* hears how many are done."""
    made = []
    for done, run in enumerate(each(_simulated, cases, processes), 1):
        progress(done, len(cases))
        if run is not None:
            made.append(run)
    return made


def _simulated(case: Case) -> Simulated | None:
    try:
        run = engine.simulated(case, fitted(case.row.source).constants)
    except (SpecError, ValueError):
        return None
    return Simulated(case, run.step_time, run.stalls[Cause.COMPUTE])


def factors_asked(runs: Sequence[Simulated]) -> dict[Asking, list[float]]:
    """Return by source and generation of GPUs the factors on compute that runs of dense models ask for; under no generation those of all.

    Mixtures of experts would tell of their dispatch.
    """
    asked_for: dict[Asking, list[float]] = defaultdict(list)
    for run in (run for run in runs if not run.case.shape.experts):
        source, generation = asking(run.case)
        asked_for[source, generation].append(run.factor)
        asked_for[source, ""].append(run.factor)
    return dict(asked_for)


def factors_without(runs: Sequence[Simulated]) -> dict[Asking, float]:
    """Return by source and generation of GPUs the factor on compute that the other sources ask for, one vote each.

    Where fewer than `SOURCES` others have GPUs of the generation, those of all generations.
    """
    medians = {key: median(factors) for key, factors in factors_asked(runs).items()}
    return {asking(run.case): _of_others(medians, *asking(run.case)) for run in runs}


def asking(case: Case) -> Asking:
    """Return the source and the generation of GPUs of *case*."""
    return case.row.source, case.chip.generation


def _of_others(medians: Mapping[Asking, float], source: str, generation: str) -> float:
    alike, every = ([value for key, value in medians.items() if key[0] != source and key[1] == name] for name in (generation, ""))
    return median(alike if len(alike) >= SOURCES else every or [1.0])


def scored_runs(runs: Sequence[Simulated]) -> list[ScoredRun]:
    """Return *runs* with what each of `PREDICTORS` and the simple rules say; the interval is that of both together."""
    factors = factors_without(runs)
    return [_scored(run, factors[asking(run.case)]) for run in runs]


def _scored(run: Simulated, factor: float) -> ScoredRun:
    constants = fitted(run.case.row.source)
    closed = closed_form.predict(run.case, constants.constants)
    simulated = run.step_with(factor)
    both = sqrt(closed.step_time * simulated)
    said = {"closed form": closed.step_time, "simulator": simulated, "both": both, "predicted": both}
    low, high = constants.interval(run.case)
    said |= rule_times(run.case, constants.rules)
    prediction = LlmPrediction(both, closed.memory, closed.verdict)
    return ScoredRun(run.case, prediction, said, low * both, high * both, constants.learning)


def step_table(rows: Sequence[ScoredRun]) -> str:
    """Return errors of step time by source and predictor, then one vote a source, then one known row, simple rules and rankings."""
    lines = [_line("", "rows", PREDICTORS, "", "within"), _line("source", "", ["median / p90"] * len(PREDICTORS), "bias", "95%")]
    for source, of in sorted(pooled(rows).items()):
        errors = [pair(errors_of(of, name)) for name in PREDICTORS]
        lines.append(_line(source, f"{len(of):,}", errors, percent(errors_of(of, "both")["bias"]), percent(coverage(of))))
    votes = [voted(rows, name) for name in PREDICTORS]
    lines.append(_line("one vote per source", f"{len(rows):,}", [pair(one) for one in votes], percent(votes[-1]["bias"])))
    lines.append(_line("one row per source known", "", [pair(_one_known(rows, name)) for name in PREDICTORS]))
    orders = [ranking(rows, name) for name in PREDICTORS]
    lines += [
        "",
        _line(f"order within {orders[0]['sweeps']} sweeps", "", PREDICTORS),
        _line("Kendall's tau, median sweep", "", [number(one["kendall_tau_median"]) for one in orders]),
        _line("chosen layout slower than best", "", [pair({"median": o["regret_median"], "p90": o["regret_p90"]}) for o in orders]),
        "",
        f"Simple rules, median errors: constant utilization {percent(voted(rows, 'constant_mfu')['median'])}%, six FLOP per parameter "
        f"and token {percent(voted(rows, 'six_pd')['median'])}%.",
    ]
    return "\n".join(line.rstrip() for line in lines)


def _line(name: str, count: str, figures: Sequence[str], bias: str = "", within: str = "") -> str:
    return f"{name[-34:]:34} {count:>6} {' '.join(f'{figure:>14}' for figure in figures)} {bias:>7} {within:>7}"


def _one_known(rows: Sequence[ScoredRun], name: str) -> dict[str, float]:
    moved = [one_row_known(of, name) for of in pooled(rows).values() if len(of) > 1]
    return {key: fmean(one[key] for one in moved) for key in ("median", "p90")}


def factor_table(runs: Sequence[Simulated]) -> str:
    """Return by source and generation the factor on the simulator's compute that dense models ask for, and the one they are scored with."""
    asked_for, others = factors_asked(runs), factors_without(runs)
    lines = [f"{'compute of dense models':34} {'rows':>6} {'asked':>6} {'others':>6}"]
    for (source, generation), factors in sorted(asked_for.items()):
        if generation:
            name = f"{source.split('/')[-1][: 33 - len(generation)]} {generation}"
            lines.append(f"{name:34} {len(factors):6,} {median(factors):6.2f} {others[source, generation]:6.2f}")
    return "\n".join(lines)


def group_table(rows: Sequence[ScoredRun]) -> str:
    """Return errors of both predictors together by what a run has, with signs: model family, axes, scale, GPU, precision."""
    lines = []
    for kind, of in groups(rows).items():
        lines += ["", _row(kind.replace("_", " "), "rows", "median / p90", "bias", "within")]
        lines += [_row(one["name"], f"{one['points']:,}", pair(one), percent(one["bias"]), percent(one["coverage"])) for one in of]
    return "\n".join(lines[1:])


def memory_table(described: Sequence[Case]) -> str:
    """Return errors of peak memory by source of the runs that ended well, and how runs at the memory's edge are told."""
    ended = [case for case in described if case.row.status in ("ok", "suspect")]
    scores = memory_scores([(case, closed_form.predict(case, fitted(case.row.source).constants)) for case in ended])
    fits, edge = scores["fitted"], scores["thrashes"]
    told = f"{percent(edge['recalled'])}% are detected, with {percent(edge['false_alarms'])}% false alarms"
    return "\n".join(
        [
            _row("peak memory", "rows", "median / p90", "bias"),
            *(_row(one["source"], f"{one['points']:,}", pair(one), percent(one["bias"])) for one in scores["sources"]),
            f"of {fits['points']:,} runs that fit {percent(fits['called_does_not_fit'])}% are predicted as does_not_fit",
            f"of {edge['points']:,} runs near the memory limit {told}",
        ]
    )


def _row(name: str, count: str, error: str, bias: str, within: str = "") -> str:
    return f"{name[-34:]:34} {count:>6} {error:>14} {bias:>7} {within:>7}".rstrip()


def expected(errors: Sequence[tuple[float, Case]]) -> dict[str, Any]:
    """Return the table of expected errors that ``sim run`` reads: by groups of runs, what its predictions of them missed."""
    by_group: dict[str, list[tuple[float, Case]]] = defaultdict(list)
    for error, case in errors:
        for name in group_names(kind_of(case), family_of(case.shape), case.chip.name):
            by_group[name].append((error, case))
    named = {name: _group(of) for name, of in sorted(by_group.items()) if len(of) >= LEAST}
    return {
        "source": "calibration/records/llm/training.csv, simulated from descriptions, compute_factor from the other sources",
        "groups": named,
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


def block(described: Sequence[Case], runs: Sequence[Simulated]) -> str:
    """Return the page's block: steps, factors on compute, groups, memory."""
    rows = scored_runs(runs)
    parts = [step_table(rows), factor_table(runs), group_table(rows), memory_table(described)]
    return "<!-- validated -->\n```\n" + "\n\n".join(parts) + "\n```\n<!-- end -->"


def publish(
    described: Sequence[Case], progress: Callable[[int, int], None], processes: int | None = None, root: Path = FOLDER.parent
) -> Mapping[str, int]:
    """Simulate the scored runs among *described*; write the block of `PAGE` and the errors to expect below *root*.

    Return how many runs were simulated, refused, and count in the errors to expect.
    """
    scored = [case for case in described if scorable(case)]
    runs = simulated_runs(scored, progress, processes)
    factors = factors_without(runs)
    quoted = {id(case) for case in thinned([run.case for run in runs], QUOTED)}
    errors = [(run.error(factors[asking(run.case)]), run.case) for run in runs if id(run.case) in quoted]
    write_file(root / SUMMARY, json.dumps(expected(errors), indent=1) + "\n")
    text = (root / PAGE).read_text(encoding="utf-8")
    write_file(root / PAGE, BLOCK.sub(lambda _: block(described, runs), text))
    return {"simulated": len(runs), "refused": len(scored) - len(runs), "quoted": len(errors)}
