"""How accurate are predictions? Median and 90th percentile of relative errors, and skill relative to the best simple rule.

Every cluster has the same weight in overall scores, so that clusters with many rows do not dominate; within a cluster every row has the
same weight. A row is *exposed* if at least a tenth of its measured step is not compute. The error of the exposed part is the error of the
step over the time of that part. Kendall's tau compares the ranking of a job's configurations on a cluster by samples per second.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

from calibration.questions import RunQuestion
from calibration.validate.baselines import RULES as BASELINES

LEAST_EXPOSED_SHARE: Final = 0.1
"""Least share of the measured step that is not compute for a row to count as exposed."""
MODELS: Final = ("zero_shot", "calibrated")


@dataclass(frozen=True)
class ScoredRow:
    """One row with its predictions."""

    question: RunQuestion
    compute: float
    """Compute time (s) of the step as the compute rows measured it, without waits for other ranks or for input."""
    predictions: Mapping[str, float]
    """Step times (s) predicted by models and rules; a rule is missing if no calibrating row applies to this row."""
    deviations: Mapping[str, float]
    """Standard deviations of the logarithms of the models' predictions."""
    fitted_row_count: int = 0
    """Number of network rows to which the calibrated model of the cluster was fitted."""
    wait_share: float = 0.0
    """Share of the calibrated step spent waiting for other ranks."""
    is_unseen_job: bool = False
    """Whether compute was measured only on one GPU, and no network row has the same job."""
    log_slowdown: float | None = None
    """Logarithm of the measured step over the step predicted from one GPU, which is the slowdown of compute by other GPUs; None if compute
    was not measured on one GPU, or on several as well, or communication is exposed."""
    noise_widths: float = 0.0
    """Logarithm of the calibrated over the measured step, in standard deviations of the noise of the cluster's rows."""
    widening: float = 1.0
    """Factor by which the calibrated standard deviation was widened beyond the model's (`calibration.clusters.cluster_fit`)."""
    novelty: tuple[str, ...] = ()
    """Properties of the row that no calibrating row has (`calibration.validate.groups`)."""

    @property
    def cluster(self) -> str:
        """Return the name of the machine or cluster."""
        return self.question.record.hardware

    @property
    def exposed(self) -> float:
        """Return the time (s) of the measured step that is not compute."""
        return self.question.step_time - self.compute

    def error(self, name: str) -> float:
        """Return the relative error of the prediction of *name*."""
        return self.predictions[name] / self.question.step_time - 1.0

    def inside(self, name: str) -> bool:
        """Return whether the measured step is in the 95% interval of the prediction of *name*."""
        import math

        return abs(math.log(self.predictions[name] / self.question.step_time)) <= 1.96 * self.deviations[name]


def scores(rows: Sequence[ScoredRow]) -> dict[str, dict[str, Any]]:
    """Return the scores of *rows* by model and rule, with errors as fractions and None if there is nothing to score."""
    exposed = [row for row in rows if row.exposed >= LEAST_EXPOSED_SHARE * row.question.step_time]
    of_all, part = _errors(rows), _errors(exposed)
    return {name: _score(name, rows, exposed, of_all, part) for name in (*MODELS, *BASELINES)}


def _score(
    name: str,
    rows: Sequence[ScoredRow],
    exposed: Sequence[ScoredRow],
    of_all: Mapping[str, tuple[float, float]],
    part: Mapping[str, tuple[float, float]],
) -> dict[str, Any]:
    median, p90 = of_all.get(name, (None, None))
    predicted = [row for row in rows if name in row.predictions]
    score: dict[str, Any] = {
        "points": len(predicted),
        "median": median,
        "p90": p90,
        "bias": bias(predicted, name),
        "skill": _skill(name, rows, of_all),
    }
    median, p90 = part.get(name, (None, None))
    score["exposed"] = {"points": len(exposed), "median": median, "p90": p90, "skill": _skill(name, exposed, part)}
    predicted = [row for row in exposed if name in row.predictions]
    score["exposed"]["part_median"] = _quantile(
        predicted, lambda row: abs(row.predictions[name] - row.question.step_time) / row.exposed, 0.5
    )
    score["kendall_tau"] = kendall([row for row in rows if name in row.predictions], name)
    if name in MODELS:
        score["coverage"] = coverage(rows, name)
    return score


def _errors(rows: Sequence[ScoredRow]) -> dict[str, tuple[float, float]]:
    """Return the median and 90th percentile of absolute errors by model and rule, over the rows that it predicts."""
    predicted = {name: [row for row in rows if name in row.predictions] for name in (*MODELS, *BASELINES)}
    return {name: (quantile(have, name, 0.5), quantile(have, name, 0.9)) for name, have in predicted.items() if have}


def quantile(rows: Sequence[ScoredRow], name: str, share: float) -> float:
    """Return the quantile *share* of absolute errors of *name*, with equal weight per cluster. Raise ValueError if there are no rows."""
    error = _quantile(rows, lambda row: abs(row.error(name)), share)
    if error is None:
        raise ValueError("a quantile of no rows")
    return error


def bias(rows: Sequence[ScoredRow], name: str) -> float | None:
    """Return the median signed error of *name*, with equal weight per cluster; None if there are no rows."""
    return _quantile(rows, lambda row: row.error(name), 0.5)


def coverage(rows: Sequence[ScoredRow], name: str) -> float | None:
    """Return the share of *rows* inside the 95% interval of *name*, with equal weight per cluster; None if there are no rows."""
    weights = _weights(rows)
    return sum(weight for row, weight in zip(rows, weights, strict=True) if row.inside(name)) / sum(weights) if rows else None


def _quantile(rows: Sequence[ScoredRow], value: Callable[[ScoredRow], float], share: float) -> float | None:
    if not rows:
        return None
    return weighted_quantile([value(row) for row in rows], _weights(rows), share)


def weighted_quantile(values: Sequence[float], weights: Sequence[float], share: float) -> float:
    """Return the quantile *share* of *values*, interpolated between the midpoints of their weights; equal weights give Hazen's quantile."""
    ordered = sorted(zip(values, weights, strict=True))
    total = sum(weights)
    passed, places = 0.0, []
    for value, weight in ordered:
        places.append(((passed + weight / 2) / total, value))
        passed += weight
    for (low, first), (high, last) in pairwise(places):
        if low <= share <= high:
            return first + (last - first) * (share - low) / (high - low)
    return places[0][1] if share < places[0][0] else places[-1][1]


def _weights(rows: Sequence[ScoredRow]) -> list[float]:
    counts = Counter(row.cluster for row in rows)
    return [1.0 / counts[row.cluster] for row in rows]


def _skill(name: str, rows: Sequence[ScoredRow], errors: Mapping[str, tuple[float, float]]) -> float | None:
    """Return 1 minus the error of *name* over that of the best rule; None for the rules themselves.

    For rows that a rule does not predict it uses free communication.
    """
    if name in BASELINES or not rows:
        return None
    rule_errors = [
        [abs(row.predictions.get(rule, row.predictions[BASELINES[0]]) / row.question.step_time - 1.0) for row in rows] for rule in BASELINES
    ]
    best = min(weighted_quantile(errors_of, _weights(rows), 0.5) for errors_of in rule_errors)
    return 1.0 - errors[name][0] / best if best > 0 else None


def kendall(rows: Sequence[ScoredRow], name: str) -> float | None:
    """Return Kendall's tau between measured and predicted samples per second: the mean over jobs with at least three rows.

    Jobs are weighted by their number of rows.
    """
    from scipy.stats import kendalltau

    jobs: dict[tuple[str, str, str], list[ScoredRow]] = defaultdict(list)
    for row in rows:
        jobs[row.cluster, row.question.record.workload, row.question.workload.training.stack.name].append(row)
    taus: list[tuple[float, int]] = []
    for same in jobs.values():
        if len(same) < 3:
            continue
        tau = float(
            kendalltau(
                [row.question.samples / row.question.step_time for row in same],
                [row.question.samples / row.predictions[name] for row in same],
            )[0]
        )
        if tau == tau:  # NaN if all values are equal
            taus.append((tau, len(same)))
    total = sum(count for _, count in taus)
    return sum(tau * count for tau, count in taus) / total if total else None
