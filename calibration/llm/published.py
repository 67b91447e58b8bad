"""How large are the errors for the committed runs of transformers? Writes docs/trust/transformers.md and the errors that runs quote.

Both predictors predict every scored run, with constants fitted without its source. The simulator's stacks of layouts have a factor on
compute that was fitted to these runs (``compute_factor``), and kernels of Ampere and Blackwell another (``whole_steps``). Here, each source
is predicted with the factor that the other sources require.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from math import sqrt
from pathlib import Path
from statistics import fmean, median
from typing import Any, Final

from calibration import FOLDER
from calibration.llm import closed_form
from calibration.llm.case import Case
from calibration.llm.constants import fitted_constants, kind_of
from calibration.llm.engine import memory_need
from calibration.llm.fit import thin
from calibration.llm.prediction import LlmPrediction
from calibration.llm.published_runs import PREDICTIONS, kept_steps, predictions_csv
from calibration.llm.rules import rule_times
from calibration.llm.score import (
    ScoredRun,
    coverage,
    errors_of,
    errors_with_one_row,
    groups,
    is_scorable,
    memory_scores,
    pool_sources,
    quantile,
    ranking,
    vote_by_source,
)
from calibration.llm.simulated import NONE_KEPT, SimulatedRun, simulated_runs
from calibration.validate.published import BLOCK
from calibration.validate.validation_report import number, pair, percent
from sim.report.layouts.layout_error import SUMMARY, decoder_family, group_names
from sim.spec.whole_file import write_file
from sim.study.pool import Progress

PAGE: Final = "docs/trust/transformers.md"
PREDICTORS: Final = ("closed form", "simulator", "both")
MOST_QUOTED: Final = 24
"""Maximum number of runs of a source in expected errors, sampled evenly: one source has as many runs as all others together."""
LEAST_SOURCES: Final = 2
"""Minimum number of other sources for a factor by GPU generation. With fewer, the factor comes from all generations, because a single
source may be an exception (estimate)."""
LEAST_RUNS: Final = 6
"""Minimum number of runs in a group of expected errors."""

FactorKey = tuple[str, str]
"""A source, and a generation of GPUs."""


def required_factors(runs: Sequence[SimulatedRun]) -> dict[FactorKey, list[float]]:
    """Return the factors on compute that runs of dense models require, by source and GPU generation; an empty generation means all.

    Mixtures of experts are left out, because their factors would include errors of dispatch, and hybrids, because of scans.
    """
    required: dict[FactorKey, list[float]] = defaultdict(list)
    for run in (run for run in runs if not run.case.shape.experts and run.case.shape.pattern is None):
        source, generation = factor_key(run.case)
        required[source, generation].append(run.factor)
        required[source, ""].append(run.factor)
    return dict(required)


def factors_of_others(runs: Sequence[SimulatedRun]) -> dict[FactorKey, float]:
    """Return, by source and GPU generation, the factor on compute that the other sources require, one vote each.

    If fewer than `LEAST_SOURCES` others have GPUs of the generation, the factors of all generations are used.
    """
    medians = {key: median(factors) for key, factors in required_factors(runs).items()}
    return {factor_key(run.case): _median_of_others(medians, *factor_key(run.case)) for run in runs}


def factor_key(case: Case) -> FactorKey:
    """Return the source and the generation of GPUs of *case*."""
    return case.row.source, case.chip.generation


def _median_of_others(medians: Mapping[FactorKey, float], source: str, generation: str) -> float:
    same, every = ([value for key, value in medians.items() if key[0] != source and key[1] == name] for name in (generation, ""))
    return median(same if len(same) >= LEAST_SOURCES else every or [1.0])


def scored_runs(runs: Sequence[SimulatedRun]) -> list[ScoredRun]:
    """Return *runs* with the predictions of each of `PREDICTORS` and of the simple rules.

    The interval is around the closed form, from whose errors the law of intervals is fitted.
    """
    factors = factors_of_others(runs)
    return [_scored(run, factors[factor_key(run.case)]) for run in runs]


def _scored(run: SimulatedRun, factor: float) -> ScoredRun:
    constants = fitted_constants(run.case.row.source)
    closed = closed_form.predict(run.case, constants.constants)
    simulated = run.step_with(factor)
    both = sqrt(closed.step_time * simulated)
    step_times = {"closed form": closed.step_time, "simulator": simulated, "both": both, "predicted": both}
    low, high = (ratio * closed.step_time for ratio in constants.interval(run.case))
    step_times |= rule_times(run.case, constants.rules)
    prediction = LlmPrediction(both, closed.memory, closed.verdict)
    return ScoredRun(run.case, prediction, step_times, low, high, constants.shared_error)


def step_table(rows: Sequence[ScoredRun]) -> str:
    """Return step-time errors by source and predictor, then with one vote a source, with one measured row, of simple rules; rankings."""
    lines = [_line("", "rows", PREDICTORS, "", "within"), _line("source", "", ["median / p90"] * len(PREDICTORS), "bias", "95%")]
    for source, group in sorted(pool_sources(rows).items()):
        errors = [pair(errors_of(group, name)) for name in PREDICTORS]
        lines.append(_line(source, f"{len(group):,}", errors, percent(errors_of(group, "both")["bias"]), percent(coverage(group))))
    votes = [vote_by_source(rows, name) for name in PREDICTORS]
    lines.append(_line("one vote per source", f"{len(rows):,}", [pair(one) for one in votes], percent(votes[-1]["bias"])))
    lines.append(_line("one row per source known", "", [pair(_with_one_row(rows, name)) for name in PREDICTORS]))
    orders = [ranking(rows, name) for name in PREDICTORS]
    utilization, six_pd = (percent(vote_by_source(rows, name)["median"]) for name in ("constant_mfu", "six_pd"))
    lines += [
        "",
        _line(f"order within {orders[0]['sweeps']} sweeps", "", PREDICTORS),
        _line("Kendall's tau, median sweep", "", [number(one["kendall_tau_median"]) for one in orders]),
        _line("chosen layout slower than best", "", [pair({"median": o["regret_median"], "p90": o["regret_p90"]}) for o in orders]),
        "",
        f"Simple rules, median errors: constant utilization {utilization}%, six FLOP per parameter and token {six_pd}%.",
    ]
    return "\n".join(line.rstrip() for line in lines)


def _line(name: str, count: str, figures: Sequence[str], bias: str = "", within: str = "") -> str:
    return f"{name[-34:]:34} {count:>6} {' '.join(f'{figure:>14}' for figure in figures)} {bias:>7} {within:>7}"


def _with_one_row(rows: Sequence[ScoredRun], name: str) -> dict[str, float]:
    errors = [errors_with_one_row(group, name) for group in pool_sources(rows).values() if len(group) > 1]
    return {key: fmean(one[key] for one in errors) for key in ("median", "p90")}


def factor_table(runs: Sequence[SimulatedRun]) -> str:
    """Return, by source and generation, the factor on simulated compute that dense models require, and the one they are scored with."""
    required, others = required_factors(runs), factors_of_others(runs)
    lines = [f"{'compute of dense models':34} {'rows':>6} {'needed':>6} {'others':>6}"]
    for (source, generation), factors in sorted(required.items()):
        if generation:
            name = f"{source.split('/')[-1][: 33 - len(generation)]} {generation}"
            lines.append(f"{name:34} {len(factors):6,} {median(factors):6.2f} {others[source, generation]:6.2f}")
    return "\n".join(lines)


def group_table(rows: Sequence[ScoredRun]) -> str:
    """Return errors and biases of ``both`` by groups of runs: model family, axes, scale, GPU, precision and others."""
    lines = []
    for kind, parts in groups(rows).items():
        lines += ["", _row(kind.replace("_", " "), "rows", "median / p90", "bias", "within")]
        lines += [_row(one["name"], f"{one['points']:,}", pair(one), percent(one["bias"]), percent(one["coverage"])) for one in parts]
    return "\n".join(lines[1:])


def memory_table(described: Sequence[Case]) -> str:
    """Return errors of peak memory of finished runs by source, and how well runs at the memory limit are recognized."""
    ended = [case for case in described if case.row.status in ("ok", "suspect")]
    scores = memory_scores([(case, closed_form.predict(case, fitted_constants(case.row.source).constants)) for case in ended])
    fits, edge = scores["fitted"], scores["thrashes"]
    recognized = f"{percent(edge['recalled'])}% are detected, with {percent(edge['false_alarms'])}% false alarms"
    return "\n".join(
        [
            _row("peak memory", "rows", "median / p90", "bias"),
            *(_row(one["source"], f"{one['points']:,}", pair(one), percent(one["bias"])) for one in scores["sources"]),
            f"of {fits['points']:,} runs that fit {percent(fits['called_does_not_fit'])}% are predicted as does_not_fit",
            f"of {edge['points']:,} runs near the memory limit {recognized}",
        ]
    )


def _row(name: str, count: str, error: str, bias: str, within: str = "") -> str:
    return f"{name[-34:]:34} {count:>6} {error:>14} {bias:>7} {within:>7}".rstrip()


def expected_errors(errors: Sequence[tuple[float, Case]]) -> dict[str, Any]:
    """Return the table of expected errors that ``sim run`` reads: the errors of its predictions, by groups of runs."""
    by_group: dict[str, list[tuple[float, Case]]] = defaultdict(list)
    for error, case in errors:
        for name in group_names(kind_of(case), decoder_family(case.shape), case.chip.name):
            by_group[name].append((error, case))
    named = {name: _group(group) for name, group in sorted(by_group.items()) if len(group) >= LEAST_RUNS}
    return {
        "source": "calibration/records/llm/training.csv, simulated from descriptions, compute_factor from the other sources",
        "law": fitted_constants("").law.document(),
        "groups": named,
    }


def _group(runs: Sequence[tuple[float, Case]]) -> dict[str, Any]:
    errors = [error for error, _ in runs]
    absolute = [abs(math.exp(-error) - 1) for error in errors]
    return {
        "points": len(runs),
        "median": round(quantile(absolute, 0.5), 3),
        "p90": round(quantile(absolute, 0.9), 3),
        "low": round(math.exp(quantile(errors, 0.025)), 3),
        "high": round(math.exp(quantile(errors, 0.975)), 3),
        "most_gpus": max(case.gpus for _, case in runs),
        "most_sequence": max(case.seq for _, case in runs),
        "most_context": max(case.context for _, case in runs),
        "least_context_tokens": min((case.seq // case.context for _, case in runs if case.context > 1), default=None),
        "least_network": min((case.nic for _, case in runs if case.node_span > 1), default=None),
        "sources": sorted({case.row.source.split("/")[-1] for _, case in runs}),
    }


def memory_errors(described: Sequence[Case]) -> dict[str, Any]:
    """Return the errors of predicted peak memory of finished runs by framework, which `sim run` quotes."""
    by_framework: dict[str, list[tuple[float, Case]]] = defaultdict(list)
    for case in described:
        measured, predicted = case.measured_memory, memory_need(case).nbytes
        if case.row.status in ("ok", "suspect") and measured is not None and not math.isnan(predicted):
            by_framework[case.family].append((abs(predicted / measured - 1.0), case))
    return {
        framework: {
            "points": len(runs),
            "median": round(quantile([error for error, _ in runs], 0.5), 3),
            "p90": round(quantile([error for error, _ in runs], 0.9), 3),
            "worst": round(max(error for error, _ in runs), 3),
            "sources": sorted({case.row.source.split("/")[-1] for _, case in runs}),
        }
        for framework, runs in sorted(by_framework.items())
        if len(runs) >= LEAST_RUNS
    }


def block(described: Sequence[Case], runs: Sequence[SimulatedRun], rows: Sequence[ScoredRun]) -> str:
    """Return the generated block of `PAGE`: steps, factors on compute, groups, memory; *rows* are the predictions of *runs*."""
    parts = [step_table(rows), factor_table(runs), group_table(rows), memory_table(described)]
    return "<!-- validated -->\n```\n" + "\n\n".join(parts) + "\n```\n<!-- end -->"


def publish(
    described: Sequence[Case],
    progress: Progress,
    processes: int | None = None,
    root: Path = FOLDER.parent,
    keep_steps: bool = False,
) -> Mapping[str, int]:
    """Simulate the scored runs among *described*; write the block of `PAGE`, `PREDICTIONS` and the expected errors below *root*.

    With *keep_steps*, steps in `PREDICTIONS` whose machine and workload have not changed are taken from there. Return how many runs were
    predicted, were refused, and are in the expected errors.
    """
    scored = [case for case in described if is_scorable(case)]
    runs = simulated_runs(scored, progress, processes, kept_steps(root / PREDICTIONS) if keep_steps else NONE_KEPT)
    factors = factors_of_others(runs)
    hybrids = [[run.case for run in runs if (run.case.shape.pattern is not None) is own] for own in (False, True)]
    quoted = {id(case) for cases in hybrids for case in thin(cases, MOST_QUOTED)}  # more hybrids leave the other quoted runs as they are
    errors = [(run.error(factors[factor_key(run.case)]), run.case) for run in runs if id(run.case) in quoted]
    write_file(root / SUMMARY, json.dumps(expected_errors(errors) | {"memory": memory_errors(described)}, indent=1) + "\n")
    rows = scored_runs(runs)
    write_file(root / PREDICTIONS, predictions_csv(runs, rows))
    text = (root / PAGE).read_text(encoding="utf-8")
    write_file(root / PAGE, BLOCK.sub(lambda _: block(described, runs, rows), text))
    return {"predicted": len(runs), "refused": len(scored) - len(runs), "quoted": len(errors)}
