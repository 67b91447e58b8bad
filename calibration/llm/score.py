"""How good are predictions of measured training runs? Errors of time and memory, intervals, ranking inside sweeps, and feasibility.

A source is a repository; it has one vote, and sources with fewer than ten rows are pooled. Signed errors are predicted / measured - 1. A
*sweep* is five or more rows with equal source, set, model, GPUs, sequence, global batch and precision; its *regret* is how much longer the
run predicted to be best takes than the measured best.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import exp, isnan, log
from statistics import fmean, median
from typing import Any, Final

from calibration.llm.case import Case
from calibration.llm.intervals import POINTS_NEEDED
from calibration.llm.prediction import LlmPrediction
from calibration.llm.similar import common_traits, cut, scale_of, traits
from calibration.llm.what_fits import NOT_STATED, RECOMPUTED_TO_FIT, SHARDED_TO_FIT

LEAST_SWEEP: Final = 5
PREDICTIONS: Final = ("predicted", "zero_shot", "constant_mfu", "six_pd")
GROUPS: Final[Mapping[str, Callable[[Case], str]]] = {
    "model_family": lambda case: case.model_family,
    "axes": lambda case: case.axes,
    "scale": scale_of,
    "gpu": lambda case: case.chip.name,
    "precision": lambda case: case.precision,
    "software": lambda case: case.family,
    "practice": lambda case: "assumed" if case.assumptions else "stated",
}


@dataclass(frozen=True)
class ScoredRun:
    """One row: its case, its prediction, the seconds of a step by every predictor and rule, and the 95% interval of the step (s)."""

    case: Case
    prediction: LlmPrediction
    step_times: Mapping[str, float]
    low: float
    high: float
    shared_error: Sequence[float] = ()
    """Share of one measured row's log error that other rows of its source have, by number of common traits."""

    @property
    def measured(self) -> float:
        """Return the measured seconds of a step."""
        return self.case.measured or 0.0

    def error(self, name: str = "predicted") -> float:
        """Return the relative signed error of the prediction *name*."""
        return self.step_times[name] / self.measured - 1.0

    @property
    def is_inside(self) -> bool:
        """Return whether the measured step lies in the interval."""
        return self.low <= self.measured <= self.high


def reason_unscored(case: Case) -> str:
    """Return why a described row is not scored, or an empty text: its status is not ok, no measured time, or beyond its source's limits."""
    if case.row.status != "ok":
        return f"status is {case.row.status!r}; only rows with status ok are scored"
    if not case.measured:
        return "step_time_s is not a number above 0, and cannot be derived from tokens_per_s_per_gpu"
    if not case.is_within(limits := case.scored_within):
        return f"runs of this source beyond {limits.text} are scored for memory only, because their speed differs"
    return ""


def is_scorable(case: Case) -> bool:
    """Return whether a row is scored, according to `reason_unscored`."""
    return not reason_unscored(case)


def quantile(values: Sequence[float], share: float) -> float:
    """Return the quantile *share* of *values*, with linear interpolation."""
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def pool_sources(rows: Sequence[ScoredRun]) -> dict[str, list[ScoredRun]]:
    """Return *rows* by source; sources with too few rows are pooled under ``others``."""
    by_source: dict[str, list[ScoredRun]] = defaultdict(list)
    for row in rows:
        by_source[row.case.row.source].append(row)
    small = [source for source, group in by_source.items() if len(group) < POINTS_NEEDED]
    if len(by_source) > 1 and small:
        others = [row for source in small for row in by_source.pop(source)]
        by_source["others"] = others
    return dict(by_source)


def errors_of(rows: Sequence[ScoredRun], name: str = "predicted") -> dict[str, Any]:
    """Return points, median and 90th percentile of absolute errors, and the median signed error, of *rows*; None if there are none."""
    if not rows:
        return {"points": 0, "median": None, "p90": None, "bias": None}
    absolute = [abs(row.error(name)) for row in rows]
    return {
        "points": len(rows),
        "median": median(absolute),
        "p90": quantile(absolute, 0.9),
        "bias": median(row.error(name) for row in rows),
    }


def vote_by_source(rows: Sequence[ScoredRun], name: str) -> dict[str, Any]:
    """Return the same figures with one vote per source: means over the sources."""
    sources = [errors_of(group, name) for group in pool_sources(rows).values()]
    if not sources:
        return errors_of((), name)
    means = {key: fmean(source[key] for source in sources) for key in ("median", "p90", "bias")}
    return {"points": len(rows), **means, "median_source": median(source["median"] for source in sources)}


def errors_with_one_row(rows: Sequence[ScoredRun], name: str = "predicted") -> dict[str, Any]:
    """Return the median and 90th percentile of errors if one measured row corrects the others of its source: means over its choice."""
    medians, high = [], []
    traits_of = [traits(row.case) for row in rows]
    for at, row_known in enumerate(rows if len(rows) > 1 else ()):
        error = cut(log(row_known.measured / row_known.step_times[name]))
        ratios = [exp(share * error) for share in row_known.shared_error]
        rest = [
            abs(ratios[common_traits(traits_of[at], others)] * row.step_times[name] / row.measured - 1.0)
            for row, others in zip(rows, traits_of, strict=True)
            if row is not row_known
        ]
        medians.append(median(rest))
        high.append(quantile(rest, 0.9))
    return {"points": len(rows), "median": fmean(medians) if medians else None, "p90": fmean(high) if high else None}


def groups(rows: Sequence[ScoredRun]) -> dict[str, list[dict[str, Any]]]:
    """Return errors and coverage by model family, axes, scale, GPU, precision, software, and whether missing values were assumed."""
    grouped: dict[str, list[dict[str, Any]]] = {}
    for kind, name_of in GROUPS.items():
        parts: dict[str, list[ScoredRun]] = defaultdict(list)
        for row in rows:
            parts[name_of(row.case)].append(row)
        grouped[kind] = [{"name": name, **errors_of(part), "coverage": coverage(part)} for name, part in sorted(parts.items())]
    plain = [row for row in rows if row.case.tensor * row.case.pipeline * row.case.context == 1 and row.case.node_span == 1]
    grouped["one_node_data_parallel"] = [{"name": "one node, data parallel only", **errors_of(plain), "coverage": coverage(plain)}]
    return grouped


def coverage(rows: Sequence[ScoredRun]) -> float | None:
    """Return the share of *rows* inside their intervals."""
    return fmean(float(row.is_inside) for row in rows) if rows else None


def sweep_of(case: Case) -> tuple[object, ...]:
    """Return the values that the runs of the sweep of *case* have in common."""
    text = case.row.text
    return (case.row.source, text["set"], text["model"], case.gpus, case.seq, round(case.global_batch), text["precision"])


def sweeps(rows: Sequence[ScoredRun], name: str = "predicted") -> list[dict[str, Any]]:
    """Return Kendall's tau and regret of each sweep among *rows*, for the prediction *name*."""
    by_sweep: dict[tuple[object, ...], list[ScoredRun]] = defaultdict(list)
    for row in rows:
        by_sweep[sweep_of(row.case)].append(row)
    return [
        {
            "sweep": ", ".join(str(part) for part in key),
            "points": len(runs),
            "kendall_tau": kendall_tau([row.step_times[name] for row in runs], [row.measured for row in runs]),
            "regret": min(runs, key=lambda row: row.step_times[name]).measured / min(row.measured for row in runs) - 1.0,
        }
        for key, runs in by_sweep.items()
        if len(runs) >= LEAST_SWEEP
    ]


def ranking(rows: Sequence[ScoredRun], name: str = "predicted") -> dict[str, Any]:
    """Return the sweeps and their summary: median tau, median and 90th percentile of regret."""
    each = sweeps(rows, name)
    taus = [sweep["kendall_tau"] for sweep in each if sweep["kendall_tau"] is not None]
    regrets = [sweep["regret"] for sweep in each]
    return {
        "sweeps": len(each),
        "kendall_tau_median": median(taus) if taus else None,
        "regret_median": median(regrets) if regrets else None,
        "regret_p90": quantile(regrets, 0.9) if regrets else None,
        "each": each,
    }


def kendall_tau(first: Sequence[float], second: Sequence[float]) -> float | None:
    """Return Kendall's tau-b; None if one side is all ties."""
    agree = tied_first = tied_second = 0
    pairs = len(first) * (len(first) - 1) // 2
    for index in range(len(first)):
        for other in range(index):
            one, two = first[index] - first[other], second[index] - second[other]
            tied_first += one == 0
            tied_second += two == 0
            agree += (one * two > 0) - (one * two < 0)
    scale = ((pairs - tied_first) * (pairs - tied_second)) ** 0.5
    return agree / scale if scale else None


def memory_scores(rows: Sequence[tuple[Case, LlmPrediction]]) -> dict[str, Any]:
    """Return errors of peak memory by source, and how well runs at the memory limit are distinguished from those that fit."""
    errors: dict[str, list[float]] = defaultdict(list)
    fitted = refused = edge = recalled = alarms = roomy = 0
    for case, prediction in rows:
        if not {NOT_STATED, RECOMPUTED_TO_FIT, SHARDED_TO_FIT} & set(case.assumptions):  # memory decided what these are assumed to do
            fitted += 1
            refused += prediction.verdict == "does_not_fit"
        if case.measured_memory is None or isnan(prediction.memory):
            continue
        errors[case.row.source].append(prediction.memory / case.measured_memory - 1.0)
        at_edge = case.measured_memory >= 0.875 * case.chip.memory
        edge += at_edge
        recalled += at_edge and prediction.verdict != "fits"
        roomy += not at_edge
        alarms += not at_edge and prediction.verdict == "thrashes"
    sources = [
        {
            "source": source,
            "points": len(relative),
            "median": median(map(abs, relative)),
            "p90": quantile([abs(x) for x in relative], 0.9),
            "bias": median(relative),
        }
        for source, relative in sorted(errors.items())
    ]
    return {
        "sources": sources,
        "fitted": {"points": fitted, "called_does_not_fit": refused / fitted if fitted else None},
        "thrashes": {
            "points": edge,
            "recalled": recalled / edge if edge else None,
            "false_alarms": alarms / roomy if roomy else None,
        },
    }


def feasibility(rows: Sequence[tuple[Case, LlmPrediction]]) -> dict[str, Any]:
    """Return the share of failed runs that are predicted not to fit, and a list of the others by line."""
    missed = [(case, prediction) for case, prediction in rows if prediction.verdict != "does_not_fit"]
    return {
        "failed": len(rows),
        "called_does_not_fit": 1 - len(missed) / len(rows) if rows else None,
        "called_thrashes_or_worse": fmean(float(prediction.verdict != "fits") for _, prediction in rows) if rows else None,
        "missed": [
            {
                "line": case.row.line,
                "model": case.row.text["model"],
                "memory_bytes": None if isnan(prediction.memory) else prediction.memory,
                "verdict": prediction.verdict,
            }
            for case, prediction in missed
        ],
    }
