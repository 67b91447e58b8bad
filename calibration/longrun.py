"""How well does `sim goodput` predict published long runs? Interruption counts, causes, effective shares, and faults of single nodes.

A fleet's count is predicted from the other fleets of the pool (`failures.csv`). The rate is log-normal around the geometric mean of their
rates, with their spread. Added to it are repeated faults, early failures if the fleet is new, and planned stops if the row counts all
restarts. Effective shares are predicted twice: at the row's own rate, so that only stages, checkpoints and spares are predicted, and at
the rates of the other fleets. Node faults are scored out of sample: fitted to one half of the nodes, scored on the other.
"""

from __future__ import annotations

import csv
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from calibration import RECORDS
from sim.analysis.course import draw
from sim.analysis.long_run import DrawnCause, LongRun, Saving
from sim.analysis.renewal import Uniform, best_interval
from sim.spec.library import load_part
from sim.spec.reliability import Reliability
from sim.study.weeks import SPARES, restart_time

FOLDER = RECORDS / "longrun"
DAY = 86400.0
TRIALS = 20_000
COURSES = 400
_SPREAD_OF_SHARES = 0.55
"""Standard deviation between fleets of the logarithm of a cause's share: StepFun (calibration/records/longrun/causes.csv: 52, 24, 24% GPU,
network, host) compared with a cluster of H200 GPUs with 61, 34, 5% in paper notes of grade S."""


class ScoredCount(NamedTuple):
    """A count of interruptions: observed and predicted, with the interval that contains 95% of comparable fleets."""

    fleet: str
    kind: str
    days: float
    observed: float
    predicted: float
    low: float
    high: float

    @property
    def inside(self) -> bool:
        """Return whether the observed count lies in the interval."""
        return self.low <= self.observed <= self.high


class ScoredShare(NamedTuple):
    """A share: observed and predicted, with its interval. *bound*: it was published as a lower bound ("more than")."""

    name: str
    observed: float
    predicted: float
    low: float
    high: float
    bound: bool = False

    @property
    def inside(self) -> bool:
        """Return whether the observed share lies in the interval or, for a bound, whether the prediction reaches it."""
        return self.predicted >= self.observed if self.bound else self.low <= self.observed <= self.high


class Likelihood(NamedTuple):
    """Log-likelihood of held-out data under our model (*ours*) and under the baseline *model* (*plain*)."""

    what: str
    rows: int
    ours: float
    plain: float
    model: str


def read_rows(name: str) -> list[dict[str, str]]:
    """Return the rows of the record *name*."""
    with (FOLDER / f"{name}.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def reliability_level(name: str = "middle") -> Reliability:
    """Return the reliability data of the level *name*."""
    return load_part(Reliability, name, "hardware/parts/reliability")


# --- counts ------------------------------------------------------------------------------------------------------------


def rates_of_others(fleet: str) -> list[float]:
    """Return the failure rates (1/s per node of 8 GPUs) of all fleets of the pool except *fleet*."""
    rows = [row for row in read_rows("failures") if row["pool"] == "1" and row["fleet"] != fleet]
    return [float(row["events"]) / float(row["nodes"]) / float(row["days"]) / DAY for row in rows]


def draw_rates(rates: Sequence[float], size: int, random: np.random.Generator) -> NDArray[np.float64]:
    """Draw *size* rates of fleets like those with *rates*: log-normal, including the uncertainty of the mean."""
    logs = np.log(rates)
    spread = float(np.std(logs, ddof=1)) * math.sqrt(1 + 1 / len(rates))
    return np.asarray(np.exp(np.mean(logs) + spread * random.standard_normal(size)))


def draw_counts(row: Mapping[str, str], random: np.random.Generator) -> NDArray[np.float64]:
    """Draw counts of a fleet that is like the others and has the nodes and days of *row*."""
    data, nodes, days = reliability_level(), float(row["nodes"]), float(row["days"])
    rate = draw_rates(rates_of_others(row["fleet"]), TRIALS, random)
    if math.isfinite(data.spread_of_nodes):
        rate = rate * random.gamma(data.spread_of_nodes * nodes, 1 / (data.spread_of_nodes * nodes), TRIALS)
    share = data.repeats.share
    mean = rate * nodes * days * DAY * (1 - share)
    if row["kind"] == "hardware":
        mean = mean * sum(cause.share for cause in data.causes if cause.name in ("gpu", "network", "host"))
    if row["new_fleet"] == "1":
        early = np.exp(np.log(math.sqrt(0.03 * 0.10)) + math.log(math.sqrt(0.10 / 0.03)) / 1.96 * random.standard_normal(TRIALS))
        mean = mean + early * data.gpus_per_node * nodes * -math.expm1(-days * DAY / data.new_fleet.within) * (1 - share)
    first = random.poisson(mean)
    counts = first + random.negative_binomial(np.maximum(first, 1), 1 - share) * (first > 0)
    if row["kind"] == "all":
        planned = np.exp(np.log(_planned_rate_of_others(row["fleet"])) + random.standard_normal(TRIALS) * _PLANNED_SPREAD)
        counts = counts + random.poisson(planned * days)
    return np.asarray(counts, dtype=float)


_PLANNED = {"llama3": 47 / 54, "byterobust": 20 / 90}
"""Planned stops of a job per day: arXiv 2407.21783 sec 3.3.4 and arXiv 2509.16293v4 Table 4."""
_PLANNED_SPREAD = abs(math.log(_PLANNED["llama3"] / _PLANNED["byterobust"])) / math.sqrt(2)


def _planned_rate_of_others(fleet: str) -> float:
    """Return the geometric mean of the planned stops per day of all fleets except *fleet*."""
    rates = [rate for name, rate in _PLANNED.items() if name != fleet]
    return math.exp(sum(map(math.log, rates)) / len(rates))


def score_counts(seed: int = 0) -> list[ScoredCount]:
    """Return every recorded count with its prediction from other fleets."""
    scored = []
    for number, row in enumerate(read_rows("failures")):
        counts = draw_counts(row, np.random.default_rng([seed, number]))
        low, middle, high = np.quantile(counts, [0.025, 0.5, 0.975])
        scored.append(
            ScoredCount(row["fleet"], row["kind"], float(row["days"]), float(row["events"]), float(middle), float(low), float(high))
        )
    return scored


def score_causes(fleet: str = "llama3", seed: int = 0) -> list[ScoredShare]:
    """Return the shares of causes of *fleet*, predicted by those of the middle level, which come from other fleets."""
    rows = [row for row in read_rows("causes") if row["fleet"] == fleet]
    total = sum(float(row["count"]) for row in rows)
    data, random = reliability_level(), np.random.default_rng(seed)
    shares = np.array([cause.share for cause in data.causes])
    drawn = shares * np.exp(_SPREAD_OF_SHARES * random.standard_normal((TRIALS, shares.size)))
    drawn /= drawn.sum(axis=1, keepdims=True)
    counts = random.multinomial(int(total), drawn) / total
    scored = []
    for row in rows:
        place = [cause.name for cause in data.causes].index(row["cause"])
        low, high = np.quantile(counts[:, place], [0.025, 0.975])
        scored.append(ScoredShare(f"{fleet}: {row['cause']}", float(row["count"]) / total, float(shares[place]), float(low), float(high)))
    return scored


# --- effective shares ---------------------------------------------------------------------------------------------------


def run_of(row: Mapping[str, str]) -> LongRun:
    """Return the long run that *row* describes, at its own failure rate; values that are not published come from its level."""
    data, gpus, seconds = reliability_level(row["level"]), int(row["gpus"]), float(row["days"]) * DAY
    nodes, rate = gpus // data.gpus_per_node, float(row["events"]) / seconds
    blocking, persist, load = (float(row[name]) for name in ("blocking_s", "persist_s", "load_s"))
    interval = float(row["interval_s"]) if row["interval_s"] else best_interval(1 / rate, blocking, persist)
    causes = [
        DrawnCause(cause.name, cause.share, Uniform(*cause.detection), Uniform(*cause.localisation), cause.replaces, cause.silent_for)
        for cause in data.causes
    ]
    spares = int(row["spares"] or math.ceil(SPARES * nodes))
    return LongRun(
        nodes, spares, Saving(interval, blocking, max(persist, blocking), load), causes, (rate, rate, rate),
        [(step.share, step.time) for step in data.repair], Uniform(*data.spare), restart_time(data.requeue, gpus),
        restart_time(data.in_place, gpus), Uniform(*data.communicators), horizon=seconds, shape=data.spread_of_nodes,
        repeats=(data.repeats.share, data.repeats.after), slow=(data.slow.rate * nodes, data.slow.factor, data.slow.duration),
    )  # fmt: skip


def run_at_other_rates(row: Mapping[str, str], seed: int = 0) -> LongRun:
    """Return the long run of *row* with the stages of the middle level, at the failure rates of the pool's other fleets.

    A new fleet also has early failures.
    """
    run, data = run_of({**row, "level": "middle"}), reliability_level()
    rates = draw_rates(rates_of_others(row["fleet"]), TRIALS, np.random.default_rng(seed)) * run.nodes
    low, middle, high = (float(rate) for rate in np.quantile(rates, [0.025, 0.5, 0.975]))
    new = any(other["new_fleet"] == "1" for other in read_rows("failures") if other["fleet"] == row["fleet"])
    early = data.new_fleet.share * data.gpus_per_node * run.nodes if new else 0.0
    saving = run.saving
    if not row["interval_s"]:
        saving = replace(saving, interval=best_interval(1 / middle, saving.blocking, saving.persist))
    return replace(run, rate=(low, middle, high), saving=saving, new_fleet=(early, data.new_fleet.within))


def score_shares_of_others(seed: int = 0) -> list[ScoredShare]:
    """Return the recorded effective shares, predicted by medians of drawn ones at the failure rates of the other fleets."""
    return [_score_share(row, run_at_other_rates(row, seed), np.median, seed) for row in read_rows("goodput")]


def score_shares(seed: int = 0) -> list[ScoredShare]:
    """Return the recorded effective shares, predicted by means of drawn ones at each row's own failure rate."""
    return [_score_share(row, run_of(row), np.mean, seed) for row in read_rows("goodput")]


def _score_share(row: Mapping[str, str], run: LongRun, middle: Callable[[NDArray[np.float64]], Any], seed: int) -> ScoredShare:
    drawn = draw(run, COURSES, seed).share
    low, high = np.quantile(drawn, [0.025, 0.975])
    return ScoredShare(row["fleet"], float(row["share"]), float(middle(drawn)), float(low), float(high), row["bound"] == "1")


# --- faults of single nodes ----------------------------------------------------------------------------------------------


def score_nodes(nodes: int = 260) -> list[Likelihood]:
    """Return the log-likelihood of fault counts and repair times of StepFun's nodes, each half predicted from the other.

    *nodes* is the number of nodes observed; the trace names only those that failed.
    """
    rows = read_rows("node_faults")
    counts = Counter(row["node"] for row in rows)
    all_counts = np.array([*counts.values(), *[0] * (nodes - len(counts))])
    halves = all_counts[0::2], all_counts[1::2]
    ours = sum(_gamma_poisson(test, fit) for test, fit in (halves, halves[::-1]))
    plain = sum(_poisson(test, float(fit.mean())) for test, fit in (halves, halves[::-1]))
    repairs: dict[int, list[float]] = defaultdict(list)
    for row in rows:
        repairs[int(row["node"][1:]) % 2].append(max(float(row["down_days"]), 60 / DAY))
    even, odd = np.array(repairs[0]), np.array(repairs[1])
    by_quantile = sum(_stepwise(test, fit) for test, fit in ((even, odd), (odd, even)))
    exponential = sum(float(np.sum(-np.log(fit.mean()) - test / fit.mean())) for test, fit in ((even, odd), (odd, even)))
    return [
        Likelihood("faults of a node", nodes, ours, plain, "Poisson"),
        Likelihood("repair times", len(rows), by_quantile, exponential, "exponential"),
    ]


def _poisson(counts: NDArray[np.int_], mean: float) -> float:
    return float(sum(count * math.log(mean) - mean - math.lgamma(count + 1) for count in counts.tolist()))


def _gamma_poisson(counts: NDArray[np.int_], fitted: NDArray[np.int_]) -> float:
    """Return the log-likelihood of a negative binomial with the moments of *fitted*."""
    mean, variance = float(fitted.mean()), float(fitted.var())
    shape = mean * mean / max(variance - mean, 1e-9)
    share = shape / (shape + mean)
    return float(
        sum(
            math.lgamma(count + shape) - math.lgamma(shape) - math.lgamma(count + 1) + shape * math.log(share) + count * math.log(1 - share)
            for count in counts.tolist()
        )
    )


def _stepwise(times: NDArray[np.float64], fitted: NDArray[np.float64]) -> float:
    """Return the log-likelihood of *times* under a density that is constant between neighboring quantiles of *fitted*.

    The range of the density extends to at most a minute at the lower end and to 366 days at the upper end.
    """
    levels = np.array([0.0, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 1.0])
    ends = np.quantile(fitted, levels)
    ends[0], ends[-1] = min(ends[0], 60 / DAY) * 0.999, 366.0
    ends = np.maximum.accumulate(ends + np.arange(ends.size) * 1e-9)
    place = np.clip(np.searchsorted(ends, times, side="right") - 1, 0, levels.size - 2)
    return float(np.sum(np.log((levels[place + 1] - levels[place]) / (ends[place + 1] - ends[place]))))


# --- report ---------------------------------------------------------------------------------------------------------------


def longrun_document(seed: int = 0) -> dict[str, Any]:
    """Return all scores as one document."""
    counts, causes, shares, nodes = score_counts(seed), score_causes(seed=seed), score_shares(seed), score_nodes()
    others = score_shares_of_others(seed)
    judged = [*(one.inside for one in counts), *(one.inside for one in causes), *(one.inside for one in others if not one.bound)]
    measured = [one for one in shares if not one.bound]
    return {
        "schema": 1,
        "counts": [{**one._asdict(), "inside": one.inside, "error": one.predicted / one.observed - 1} for one in counts],
        "causes": [{**one._asdict(), "inside": one.inside} for one in causes],
        "effective_shares": [{**one._asdict(), "inside": one.inside, "error": one.predicted - one.observed} for one in shares],
        "effective_shares_of_others": [{**one._asdict(), "inside": one.inside, "error": one.predicted - one.observed} for one in others],
        "nodes": [one._asdict() for one in nodes],
        "inside_95": sum(judged) / len(judged),
        "median_width": float(np.median([one.high / max(one.low, 1e-9) for one in counts])),
        "shares_within_3_points": sum(abs(one.predicted - one.observed) <= 0.03 for one in measured) / len(measured),
        "bounds_kept": all(one.inside for one in shares if one.bound),
    }


def longrun_text(document: Mapping[str, Any]) -> str:
    """Return *document* as Markdown tables."""
    lines = ["| fleet | counted | days | observed | predicted | error | 95% between | inside |", "|---|---|--:|--:|--:|--:|---|---|"]
    lines += [
        f"| {row['fleet']} | {row['kind']} | {row['days']:g} | {row['observed']:.0f} | {row['predicted']:.0f} | "
        f"{100 * row['error']:+.0f}% | {row['low']:.0f} to {row['high']:.0f} | {'yes' if row['inside'] else 'no'} |"
        for row in document["counts"]
    ]
    lines += ["", "| share of causes | observed | predicted | 95% between | inside |", "|---|--:|--:|---|---|"]
    lines += [
        f"| {row['name']} | {100 * row['observed']:.1f}% | {100 * row['predicted']:.1f}% | "
        f"{100 * row['low']:.1f} to {100 * row['high']:.1f}% | {'yes' if row['inside'] else 'no'} |"
        for row in document["causes"]
    ]
    lines += ["", "| effective share, own rate | published | predicted | points |", "|---|--:|--:|--:|"]
    lines += [
        f"| {row['name']} | {'> ' * row['bound']}{100 * row['observed']:.1f}% | {100 * row['predicted']:.1f}% | "
        f"{'bound ' + ('kept' if row['inside'] else 'broken') if row['bound'] else format(100 * row['error'], '+.1f')} |"
        for row in document["effective_shares"]
    ]
    lines += ["", "| effective share, rates of other fleets | published | predicted | 95% between | inside |", "|---|--:|--:|---|---|"]
    lines += [
        f"| {row['name']} | {'> ' * row['bound']}{100 * row['observed']:.1f}% | {100 * row['predicted']:.1f}% | "
        f"{100 * row['low']:.1f} to {100 * row['high']:.1f}% | "
        f"{'bound ' + ('kept' if row['inside'] else 'broken') if row['bound'] else 'yes' if row['inside'] else 'no'} |"
        for row in document["effective_shares_of_others"]
    ]
    lines += ["", "| held-out log-likelihood | rows | ours | plain model |", "|---|--:|--:|--:|"]
    for row in document["nodes"]:
        lines.append(f"| {row['what']} | {row['rows']} | {row['ours']:.0f} | {row['plain']:.0f} ({row['model']}) |")
    lines += [
        "",
        f"Inside the 95% interval: {100 * document['inside_95']:.0f}% of counts and shares; in the median, the upper end of the interval "
        f"of a count is {document['median_width']:.1f} times its lower end. Effective shares within 3 points: "
        f"{100 * document['shares_within_3_points']:.0f}% of those that are not bounds.",
    ]
    return "\n".join(lines)
