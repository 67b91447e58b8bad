"""How good are predictions? Median and 90th percentile of relative errors, one vote per cluster, skill over the best simple rule.

Every cluster has the same weight in what is overall, so that large sets do not drown small ones; inside a cluster every row has. A
row is *exposed* where at least a tenth of its measured step is not compute. The error of the exposed part is the miss over that part.
Kendall's tau ranks the configurations of each job of each cluster by samples per second.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

from calibration.baselines import NAMES as BASELINES
from calibration.questions import Question

EXPOSED: Final = 0.1
"""Share of the measured step from which a row says something about communication or input."""
MODELS: Final = ("zero_shot", "calibrated")


@dataclass(frozen=True)
class Scored:
    """One prediction row: the measured step (s), what each model and rule says (s), and the standard deviations of logarithms."""

    asked: Question
    compute: float
    """Seconds of the step that are no wait for other ranks, as far as known."""
    said: Mapping[str, float]
    spread: Mapping[str, float]

    @property
    def cluster(self) -> str:
        """Return the name of the machine or cluster."""
        return self.asked.record.hardware

    @property
    def exposed(self) -> float:
        """Return the measured seconds that are not compute."""
        return self.asked.step_time - self.compute

    def error(self, name: str) -> float:
        """Return the relative error of what *name* says."""
        return self.said[name] / self.asked.step_time - 1.0

    def inside(self, name: str) -> bool:
        """Tell whether the measured step lies in the 95% interval of what *name* says."""
        import math

        return abs(math.log(self.said[name] / self.asked.step_time)) <= 1.96 * self.spread[name]


def scores(rows: Sequence[Scored]) -> dict[str, dict[str, Any]]:
    """Return the scores of *rows* by model and rule, errors as fractions; null where there is nothing to score."""
    exposed = [row for row in rows if row.exposed >= EXPOSED * row.asked.step_time]
    whole, part = _errors(rows), _errors(exposed)
    return {name: _score(name, rows, exposed, whole, part) for name in (*MODELS, *BASELINES)}


def _score(
    name: str,
    rows: Sequence[Scored],
    exposed: Sequence[Scored],
    whole: Mapping[str, tuple[float, float]],
    part: Mapping[str, tuple[float, float]],
) -> dict[str, Any]:
    median, p90 = whole.get(name, (None, None))
    found: dict[str, Any] = {"points": len(rows), "median": median, "p90": p90, "skill": _skill(name, whole)}
    median, p90 = part.get(name, (None, None))
    found["exposed"] = {"points": len(exposed), "median": median, "p90": p90, "skill": _skill(name, part)}
    found["exposed"]["part_median"] = _quantile(exposed, lambda row: abs(row.said[name] - row.asked.step_time) / row.exposed, 0.5)
    found["kendall_tau"] = kendall(rows, name)
    if name in MODELS:
        weights = _weights(rows)
        inside = sum(weight for row, weight in zip(rows, weights, strict=True) if row.inside(name))
        found["coverage"] = inside / sum(weights) if rows else None
    return found


def _errors(rows: Sequence[Scored]) -> dict[str, tuple[float, float]]:
    """Return the median and 90th percentile of absolute errors by model and rule."""
    if not rows:
        return {}
    return {name: (quantile(rows, name, 0.5), quantile(rows, name, 0.9)) for name in (*MODELS, *BASELINES)}


def quantile(rows: Sequence[Scored], name: str, share: float) -> float:
    """Return the quantile *share* of absolute errors of *name*, clusters weighing alike."""
    found = _quantile(rows, lambda row: abs(row.error(name)), share)
    if found is None:
        raise ValueError("a quantile of no rows")
    return found


def _quantile(rows: Sequence[Scored], value: Callable[[Scored], float], share: float) -> float | None:
    if not rows:
        return None
    return weighted_quantile([value(row) for row in rows], _weights(rows), share)


def weighted_quantile(values: Sequence[float], weights: Sequence[float], share: float) -> float:
    """Return the quantile *share* of *values*: linear between the middles of their weights, so equal weights give Hazen's."""
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


def _weights(rows: Sequence[Scored]) -> list[float]:
    counts = Counter(row.cluster for row in rows)
    return [1.0 / counts[row.cluster] for row in rows]


def _skill(name: str, errors: Mapping[str, tuple[float, float]]) -> float | None:
    """Return 1 - error over that of the best rule; null for the rules themselves."""
    if name in BASELINES or not errors:
        return None
    best = min(errors[rule][0] for rule in BASELINES)
    return 1.0 - errors[name][0] / best if best > 0 else None


def kendall(rows: Sequence[Scored], name: str) -> float | None:
    """Return Kendall's tau between measured and predicted samples per second, mean over jobs of at least three rows, by their rows."""
    from scipy.stats import kendalltau

    jobs: dict[tuple[str, str, str], list[Scored]] = defaultdict(list)
    for row in rows:
        jobs[row.cluster, row.asked.record.workload, row.asked.workload.training.stack.name].append(row)
    found: list[tuple[float, int]] = []
    for same in jobs.values():
        if len(same) < 3:
            continue
        tau = float(
            kendalltau([row.asked.samples / row.asked.step_time for row in same], [row.asked.samples / row.said[name] for row in same])[0]
        )
        if tau == tau:  # not a number where all are equal
            found.append((tau, len(same)))
    total = sum(count for _, count in found)
    return sum(tau * count for tau, count in found) / total if total else None
