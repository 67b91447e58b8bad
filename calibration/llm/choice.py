"""Does the simulator choose the layout that was measured best, and propose none that failed? Measured sweeps, ranked as by `sim plan`.

Runs of each sweep (`calibration.llm.score`) are sampled evenly, whatever their time. The *regret* is how much longer the run predicted to
be best took than the best sampled run. Runs are ranked by the step alone, and as a search ranks them: a layout that thrashes counts as
`THRASH` times its step, and one that does not fit is excluded. Failed runs are only checked for memory, as a search does before it
simulates.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from statistics import median
from typing import Any, Final, NamedTuple

from calibration.llm import closed_form
from calibration.llm.case import Case
from calibration.llm.constants import fitted_constants
from calibration.llm.prediction import LlmPrediction
from calibration.llm.priors import Constants
from calibration.llm.score import LEAST_SWEEP, kendall_tau, quantile, sweep_of
from calibration.validate.validation_report import number
from sim.spec.yaml import SpecError
from sim.study.plan.search import THRASH

CRASH_MEMORY: Final = 30 * 2.0**30
"""Memory (bytes) below which a failed run surely did not run out of memory: the README of the failed runs counts such runs as crashes."""

CHOICES: Final = ("simulator", "as_searched", "closed_form", "both", "chance")
"""Ways to choose: by the simulated step, by it with memory as a search counts it, by the closed form's step, by the geometric mean of the
two steps, and the median run of a sweep."""


class RankedRun(NamedTuple):
    """A measured run of a sweep, as predicted by the simulator and by the closed form."""

    case: Case
    simulated: LlmPrediction
    closed: LlmPrediction


def sample_sweeps(cases: Sequence[Case], most: int) -> dict[tuple[object, ...], list[Case]]:
    """Return each sweep among *cases*, with at most *most* of its runs, sampled evenly in the order of the table."""
    sweeps: dict[tuple[object, ...], list[Case]] = defaultdict(list)
    for case in cases:
        sweeps[sweep_of(case)].append(case)
    return {key: _evenly(runs, most) for key, runs in sweeps.items() if len(runs) >= LEAST_SWEEP}


def _evenly(runs: list[Case], most: int) -> list[Case]:
    return runs if len(runs) <= most else [runs[math.floor(place * len(runs) / most)] for place in range(most)]


def search_time(prediction: LlmPrediction) -> float:
    """Return the seconds that a search counts for a layout."""
    if prediction.verdict == "does_not_fit":
        return math.inf
    return prediction.step_time * (THRASH if prediction.verdict == "thrashes" else 1.0)


def rank_runs(
    cases: Sequence[Case], predict: Callable[[Case, Constants], LlmPrediction], progress: Callable[[], None]
) -> Iterator[RankedRun]:
    """Yield *cases* as predicted by *predict* and by the closed form; those that *predict* refuses are left out."""
    for case in cases:
        constants = fitted_constants(case.row.source).constants
        progress()
        try:
            prediction = predict(case, constants)
        except (SpecError, ValueError):
            continue
        yield RankedRun(case, prediction, closed_form.predict(case, constants))


def choice_document(sweeps: dict[tuple[object, ...], list[RankedRun]], failed: Sequence[tuple[Case, LlmPrediction]] = ()) -> dict[str, Any]:
    """Return the document of the *sweeps*, and of runs that *failed* with the memory that the simulator predicts for them."""
    each = [_sweep(key, runs) for key, runs in sweeps.items() if len(runs) >= LEAST_SWEEP]
    return {
        "schema": 1,
        "runs": sum(sweep["points"] for sweep in each),
        **{name: _summary([sweep[name] for sweep in each]) for name in CHOICES},
        "each": each,
        "failed": _failures(failed),
    }


def _sweep(key: tuple[object, ...], runs: Sequence[RankedRun]) -> dict[str, Any]:
    measured = [one.case.measured or 0.0 for one in runs]
    best = min(measured)
    return {
        "sweep": ", ".join(map(str, key)),
        "points": len(runs),
        "simulator": _choice([one.simulated.step_time for one in runs], measured),
        "as_searched": _choice([search_time(one.simulated) for one in runs], measured),
        "closed_form": _choice([one.closed.step_time for one in runs], measured),
        "both": _choice([math.sqrt(one.simulated.step_time * one.closed.step_time) for one in runs], measured),
        "chance": {"kendall_tau": 0.0, "regret": median(measured) / best - 1.0},
    }


def _choice(predicted: Sequence[float], measured: Sequence[float]) -> dict[str, Any]:
    """Return Kendall's tau of the *predicted* times, and the regret of the run that they prefer; among ties, the slowest."""
    least = min(predicted)
    taken = max(time for value, time in zip(predicted, measured, strict=True) if value == least)
    return {"kendall_tau": kendall_tau(predicted, measured), "regret": taken / min(measured) - 1.0}


def _summary(each: Sequence[dict[str, Any]]) -> dict[str, Any]:
    taus = [one["kendall_tau"] for one in each if one["kendall_tau"] is not None]
    regrets = [one["regret"] for one in each]
    return {
        "sweeps": len(each),
        "kendall_tau_median": median(taus) if taus else None,
        "regret_median": median(regrets) if regrets else None,
        "regret_p90": quantile(regrets, 0.9) if regrets else None,
        "above_10_percent": sum(regret > 0.10 for regret in regrets),
    }


def _failures(failed: Sequence[tuple[Case, LlmPrediction]]) -> dict[str, Any]:
    verdicts = [prediction.verdict for _, prediction in failed]
    proposed = [(case, prediction) for case, prediction in failed if prediction.verdict == "fits"]
    crashed = [case for case, prediction in proposed if prediction.memory < CRASH_MEMORY]
    return {
        "runs": len(failed),
        **{name: verdicts.count(name) for name in ("does_not_fit", "thrashes", "fits")},
        "fit_below_30_GiB": len(crashed),
        "proposed": [
            {
                "line": case.row.line,
                "model": case.row.text["model"],
                "gpus": case.gpus,
                "layout": case.axes,
                "memory_bytes": prediction.memory,
            }
            for case, prediction in proposed
        ],
    }


def choice_text(document: dict[str, Any]) -> str:
    """Return *document* as text: each sweep, all sweeps, and the failed runs."""
    lines = [f"{'sweep':60} {'runs':>4}" + "".join(f"{name.replace('_', ' '):>17}" for name in CHOICES)]
    lines += [
        f"{sweep['sweep'][-60:]:60} {sweep['points']:4}" + "".join(_pair(sweep[name]) for name in CHOICES) for sweep in document["each"]
    ]  # fmt: skip
    for name in CHOICES:
        row = document[name]
        if row["sweeps"]:
            lines.append(
                f"{name.replace('_', ' ')}: {row['sweeps']} sweeps, Kendall's tau {number(row['kendall_tau_median'])} in the median; "
                f"regret median {100 * row['regret_median']:.1f}%, p90 {100 * row['regret_p90']:.1f}%; above 10%: {row['above_10_percent']}"
            )
    failed = document["failed"]
    if failed["runs"]:
        lines.append(
            f"{failed['runs']} failed runs: {failed['does_not_fit']} do not fit, {failed['thrashes']} thrash (3 times their step), "
            f"{failed['fits']} fit, of these {failed['fit_below_30_GiB']} below 30 GiB"
        )
    return "\n".join(lines)


def _pair(one: dict[str, Any]) -> str:
    tau = "-" if one["kendall_tau"] is None else f"{one['kendall_tau']:.2f}"
    return f"{tau:>8}{100 * one['regret']:8.1f}%"
