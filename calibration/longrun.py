"""How well does `sim goodput` predict published long runs? Interruption counts, causes, effective shares, and faults of single nodes.

Counts and shares are those of the program itself (`simulate_weeks`, `long_run`, `draw`): means as it prints them, with its intervals. A
fleet is predicted from the other fleets of the pool (`failures.csv`): rates are log-Student-t around the geometric mean of theirs
(`calibration.fleets`), and planned stops are those of the other jobs, with the same spread. Effective shares are predicted twice: at the
row's own rate, so that only stages, checkpoints and spares are predicted, and at the rates of the other fleets. Node faults are scored out
of sample: fitted to one half of the nodes, scored on the other.
"""

from __future__ import annotations

import csv
import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from calibration import RECORDS
from calibration.fleets import next_fleet
from sim.analysis.course import draw
from sim.analysis.long_run import Courses, Saving, cause_key, other_rates
from sim.report.goodput import goodput_document
from sim.report.layouts.layout import layout_document
from sim.report.limited import steps_to_limit
from sim.spec.library import load_part
from sim.spec.reliability import Reliability
from sim.study.goodput import simulate_weeks
from sim.study.layout import layout_answer
from sim.study.options import Weeks
from sim.study.saving import slowdown_by_store
from sim.study.scenario import Scenario
from sim.study.weeks import Slowed, Steps, long_run

FOLDER = RECORDS / "longrun"
DAY = 86400.0
TRIALS = 20_000
COURSES = 400
FLEETS = 4000
"""Drawn fleets for each count."""
SCORED_BY_CAUSE = "llama3"
"""The fleet whose causes of interruptions are scored."""


class ScoredCount(NamedTuple):
    """A count of interruptions: observed and predicted, with the interval that contains 95% of comparable fleets."""

    fleet: str
    kind: str
    nodes: int
    days: float
    observed: float
    predicted: float
    low: float
    high: float
    median: float
    """Median of the drawn fleets; *predicted* is their mean, which is above it."""

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
    return load_part(Reliability, name)


# --- counts ------------------------------------------------------------------------------------------------------------


def rates_of_others(fleet: str) -> list[float]:
    """Return the failure rates (1/s per node of 8 GPUs) of all fleets of the pool except *fleet*."""
    rows = [row for row in read_rows("failures") if row["pool"] == "1" and row["fleet"] != fleet]
    return [float(row["events"]) / float(row["nodes"]) / float(row["days"]) / DAY for row in rows]


def held_out(fleet: str) -> Reliability:
    """Return the reliability data of the middle level with the failure rate and planned stops of all fleets except *fleet*."""
    data, rates = reliability_level(), rates_of_others(fleet)
    failures, stops = next_fleet(rates), next_fleet([often / DAY for name, often in planned_stops().items() if name != fleet], rates)
    low, high = (failures.quantile(share) for share in (0.025, 0.975))
    rate = {"low": low, "value": failures.middle, "high": high, "degrees_of_freedom": failures.degrees_of_freedom}
    interval = stops.quantile(0.025), stops.quantile(0.975)
    planned = {"rate": stops.middle, "interval": interval, "degrees_of_freedom": stops.degrees_of_freedom}
    return data.model_copy(update={"rate": data.rate.model_copy(update=rate), "planned": data.planned.model_copy(update=planned)})


def planned_stops() -> dict[str, float]:
    """Return the planned stops a day of each job of ``goodput.csv`` that tells them apart from failures."""
    return {row["fleet"]: float(row["stops"]) / float(row["days"]) for row in read_rows("goodput") if float(row["stops"] or 0)}


@cache
def _drawn(fleet: str, nodes: int, days: float, new_fleet: bool, seed: int) -> Courses:
    """Draw fleets that are like the others and have *nodes* nodes and *days* days, as a job on all nodes."""
    steps = row_steps(read_rows("goodput")[0])[0]._replace(nodes=nodes, gpus=nodes * reliability_level().gpus_per_node)
    run = long_run(steps, Weeks(days=days, new_fleet=new_fleet), held_out(fleet))
    return draw(replace(run, saving=Saving(DAY, 0.0, 0.0, 0.0)), FLEETS, seed)  # counts do not depend on checkpoints


def draw_counts(row: Mapping[str, str], seed: int = 0) -> NDArray[np.float64]:
    """Draw counts of fleets like the others with the nodes and days of *row*."""
    courses = _drawn(row["fleet"], int(row["nodes"]), float(row["days"]), row["new_fleet"] == "1", seed)
    if row["kind"] == "all":
        return courses.interruptions + courses.stops
    if row["kind"] == "hardware":
        share = sum(cause.share for cause in reliability_level().causes if cause.name in ("gpu", "network", "host"))
        return np.random.default_rng(seed).binomial(courses.interruptions.astype(int), share).astype(float)
    return courses.interruptions


def score_counts(seed: int = 0) -> list[ScoredCount]:
    """Return every recorded count with its prediction from other fleets."""
    scored = []
    fleets = list(dict.fromkeys(row["fleet"] for row in read_rows("failures")))
    for row in read_rows("failures"):
        counts = draw_counts(row, len(fleets) * seed + fleets.index(row["fleet"]))
        low, middle, high = (float(value) for value in np.quantile(counts, [0.025, 0.5, 0.975]))
        figures = float(row["days"]), float(row["events"]), float(counts.mean())
        scored.append(ScoredCount(row["fleet"], row["kind"], int(row["nodes"]), *figures, low, high, middle))
    return scored


def score_causes(seed: int) -> list[ScoredShare]:
    """Return the shares of causes of `SCORED_BY_CAUSE`, predicted by those of the middle level, which come from other fleets."""
    rows = [row for row in read_rows("causes") if row["fleet"] == SCORED_BY_CAUSE]
    total = sum(float(row["count"]) for row in rows)
    data = reliability_level()
    run = long_run(row_steps(read_rows("goodput")[0])[0], Weeks(days=1.0), data)
    factors = other_rates(run, TRIALS, np.random.SeedSequence(seed))
    drawn = np.stack([cause.share * factors[cause_key(cause.name)] for cause in data.causes], axis=1)
    drawn /= drawn.sum(axis=1, keepdims=True)
    counts = np.random.default_rng(seed).multinomial(int(total), drawn) / total
    scored = []
    for row in rows:
        place = [cause.name for cause in data.causes].index(row["cause"])
        low, high = np.quantile(counts[:, place], [0.025, 0.975])
        mean = float(counts[:, place].mean())
        scored.append(ScoredShare(f"{SCORED_BY_CAUSE}: {row['cause']}", float(row["count"]) / total, mean, float(low), float(high)))
    return scored


# --- effective shares ---------------------------------------------------------------------------------------------------


@cache
def _simulated(hardware: str, workload: str, settings: str, nodes: int, batch: str, stack: str) -> tuple[Steps, Slowed]:
    sets = tuple(f"training.parallel.{one}" for one in settings.split())
    scenario = Scenario(
        hardware, workload, (*sets, "training.activation_checkpointing=blocks"), nodes=nodes, global_batch=int(batch) if batch else None,
        stack=stack or None,
    )  # fmt: skip
    laid_out = layout_answer(scenario)
    run = laid_out.run
    return steps_to_limit(layout_document(laid_out), run.hardware, run.workload, None), slowdown_by_store(run)


def row_steps(row: Mapping[str, str]) -> tuple[Steps, Slowed]:
    """Return the simulated steps of the run in *row* of ``goodput.csv``, and what writing checkpoints costs them."""
    nodes = int(row["gpus"]) // reliability_level().gpus_per_node
    return _simulated(row["hardware"], row["workload"], row["settings"], nodes, row["global_batch"], row["stack"])


def weeks_of(row: Mapping[str, str], rate: bool = True) -> Weeks:
    """Return the weeks of *row*, at its own *rate* of failures or at that of its level."""
    nodes, days = int(row["gpus"]) // reliability_level().gpus_per_node, float(row["days"])
    return Weeks(
        days=days, rate=f"{float(row['events']) / days / nodes!r} /d" if rate else None, mode=row["mode"], store=row["store"],
        interval=row["interval"], spares=int(row["spares"]) if row["spares"] else None, trials=COURSES,
    )  # fmt: skip


def goodput_of_row(row: Mapping[str, str], weeks: Weeks, data: Reliability, seed: int = 0) -> dict[str, Any]:
    """Return what `goodput` says of *weeks* of the run of *row* with the failures of *data*.

    Checkpoints are simulated, unless the row has their times.
    """
    steps, slowed = row_steps(row)
    answer = simulate_weeks(steps, replace(weeks, seed=seed), changes=False, slowed=slowed, reliability=data)
    if row["blocking_s"]:
        saving = Saving(_MINUTE, float(row["blocking_s"]), float(row["persist_s"]), float(row["load_s"]))
        run = replace(answer.run, saving=saving)
        answer = replace(answer, run=run, courses=draw(run, COURSES, seed))
    return goodput_document(answer)


_MINUTE = 60.0
"""Work between the checkpoints of a job that saves each step, and whose saves take up to 51 s to be complete."""


def own_level(row: Mapping[str, str]) -> Reliability:
    """Return the reliability data of the level of *row*, without the cause *unseen*, to which its own fleet contributes.

    BLOOM's hangs set the detection of hangs at the high level; left out, collective timeouts end them, after 10 to 30 min. Planned stops
    are the row's own, if it has them.
    """
    data = reliability_level(row["level"])
    if row["stops"]:
        own = {"rate": float(row["stops"]) / float(row["days"]) / DAY, "interval": None, "degrees_of_freedom": None}
        data = data.model_copy(update={"planned": data.planned.model_copy(update=own)})
    causes = [cause.model_copy(update={"detection": _TIMEOUTS}) if cause.name == row["unseen"] else cause for cause in data.causes]
    return data.model_copy(update={"causes": tuple(causes)})


_TIMEOUTS = (600.0, 1800.0)
"""Timeouts of collectives (s): 10 min with NCCL, 30 min with other back ends (pytorch/pytorch @38ad7b35)."""


def score_shares(seed: int = 0) -> list[ScoredShare]:
    """Return the recorded effective shares, predicted at each row's own failure rate."""
    return [_score_share(row, goodput_of_row(row, weeks_of(row), own_level(row), seed)) for row in read_rows("goodput")]


def score_shares_of_others(seed: int = 0) -> list[ScoredShare]:
    """Return the recorded effective shares, predicted with the stages of the middle level at the failure rates of the other fleets.

    A new fleet also has early failures.
    """
    new = {row["fleet"] for row in read_rows("failures") if row["new_fleet"] == "1"}
    return [
        _score_share(
            row, goodput_of_row(row, replace(weeks_of(row, rate=False), new_fleet=row["fleet"] in new), held_out(row["fleet"]), seed)
        )
        for row in read_rows("goodput")
    ]


def _score_share(row: Mapping[str, str], document: Mapping[str, Any]) -> ScoredShare:
    low, high = document["interval95"]["effective_share"]
    return ScoredShare(row["fleet"], float(row["share"]), document["effective_share"], low, high, row["bound"] == "1")


_OTHERWISE: Sequence[tuple[str, str, Mapping[str, str]]] = (
    ("llama3", "replicas are not sharded, and each reads its own checkpoint", {"settings": "tensor=8 pipeline=16 micro_batches=16"}),
    ("byterobust", "level high, whose detection is not ByteRobust's", {"level": "high"}),
    ("opt", "4 spare nodes, as at first", {"spares": "4"}),
    ("opt", "18 spare nodes, as in between", {"spares": "18"}),
    ("bloom", "hangs last as long as BLOOM's own", {"unseen": ""}),
    ("bloom", "GPUs cause 48% of its faults, as elsewhere", {"events": "32.5"}),
    ("bloom", "both", {"events": "32.5", "unseen": ""}),
)
"""Rows with one input changed: fleet, what is different, and the changed columns."""


def vary_shares(seed: int = 0) -> list[tuple[str, str, float]]:
    """Return the effective share at a row's own rate with one input changed, which is not scored: fleet, change, share."""
    rows = {row["fleet"]: row for row in reversed(read_rows("goodput"))}
    varied = [(fleet, what, {**rows[fleet], **changed}) for fleet, what, changed in _OTHERWISE]
    return [(fleet, what, goodput_of_row(row, weeks_of(row), own_level(row), seed)["effective_share"]) for fleet, what, row in varied]


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
    counts, causes, shares, nodes = score_counts(seed), score_causes(seed), score_shares(seed), score_nodes()
    others = score_shares_of_others(seed)
    groups: dict[str, list[bool]] = {
        "counts": [one.inside for one in counts],
        "causes": [one.inside for one in causes],
        "effective_shares": [one.inside for one in others if not one.bound],
    }
    judged = [inside for group in groups.values() for inside in group]
    fleets = {one.fleet: all(other.inside for other in counts if other.fleet == one.fleet) for one in counts}
    measured = [one for one in shares if not one.bound]
    return {
        "schema": 1,
        "counts": [{**one._asdict(), "inside": one.inside, "error": one.predicted / one.observed - 1} for one in counts],
        "causes": [{**one._asdict(), "inside": one.inside} for one in causes],
        "effective_shares": [{**one._asdict(), "inside": one.inside, "error": one.predicted - one.observed} for one in shares],
        "effective_shares_varied": [{"name": name, "what": what, "predicted": share} for name, what, share in vary_shares(seed)],
        "effective_shares_of_others": [{**one._asdict(), "inside": one.inside, "error": one.predicted - one.observed} for one in others],
        "nodes": [one._asdict() for one in nodes],
        "inside_95": sum(judged) / len(judged),
        "inside_of": {name: [sum(group), len(group)] for name, group in groups.items()},
        "fleets_inside_of": [sum(fleets.values()), len(fleets)],
        "median_width": float(np.median([one.high / max(one.low, 1.0) for one in counts])),
        "shares_within_3_points": sum(abs(one.predicted - one.observed) <= 0.03 for one in measured) / len(measured),
        "bounds_kept": all(one.inside for one in shares if one.bound),
    }


def longrun_text(document: Mapping[str, Any]) -> str:
    """Return *document* as Markdown tables."""
    lines = ["| fleet | counted | nodes | days | observed | predicted | error | 95% between | inside |"]
    lines.append("|---|---|--:|--:|--:|--:|--:|---|---|")
    lines += [
        f"| {row['fleet']} | {row['kind']} | {row['nodes']:,} | {row['days']:g} | {row['observed']:.0f} | {row['predicted']:.0f} | "
        f"{100 * row['error']:+.0f}% | {row['low']:.0f} to {row['high']:.0f} | {_yes(row['inside'])} |"
        for row in document["counts"]
    ]
    lines += ["", "| share of causes | observed | predicted | 95% between | inside |", "|---|--:|--:|---|---|"]
    lines += [
        f"| {row['name']} | {100 * row['observed']:.1f}% | {_predicted_between(row)} | {_yes(row['inside'])} |"
        for row in document["causes"]
    ]
    lines += ["", "| effective share, own rate | published | predicted | points |", "|---|--:|--:|--:|"]
    lines += [
        f"| {row['name']} | {_published(row)} | {100 * row['predicted']:.1f}% | "
        f"{_kept(row) if row['bound'] else format(100 * row['error'], '+.1f')} |"
        for row in document["effective_shares"]
    ]
    lines += ["", "| with one input changed (not scored) | | predicted |", "|---|---|--:|"]
    lines += [f"| {row['name']} | {row['what']} | {100 * row['predicted']:.1f}% |" for row in document["effective_shares_varied"]]
    lines += ["", "| effective share, rates of other fleets | published | predicted | 95% between | inside |", "|---|--:|--:|---|---|"]
    lines += [
        f"| {row['name']} | {_published(row)} | {_predicted_between(row)} | {_kept(row) if row['bound'] else _yes(row['inside'])} |"
        for row in document["effective_shares_of_others"]
    ]
    lines += ["", "| held-out log-likelihood | rows | ours | plain model |", "|---|--:|--:|--:|"]
    for row in document["nodes"]:
        lines.append(f"| {row['what']} | {row['rows']} | {row['ours']:.0f} | {row['plain']:.0f} ({row['model']}) |")
    inside = ", ".join(f"{ours} of {all_rows} {name.replace('_', ' ')}" for name, (ours, all_rows) in document["inside_of"].items())
    fleets, of_fleets = document["fleets_inside_of"]
    lines += [
        "",
        f"Inside the 95% interval: {100 * document['inside_95']:.0f}% ({inside}). The counts overlap: they are of {of_fleets} fleets, "
        f"of which {fleets} have all their counts inside. In the median, the upper end of the interval of a count is "
        f"{document['median_width']:.1f} times its lower end. Effective shares within 3 points: "
        f"{100 * document['shares_within_3_points']:.0f}% of those that are not bounds.",
    ]
    return "\n".join(lines)


def _yes(inside: bool) -> str:
    return "yes" if inside else "no"


def _kept(row: Mapping[str, Any]) -> str:
    return f"bound {'kept' if row['inside'] else 'broken'}"


def _published(row: Mapping[str, Any]) -> str:
    return f"{'> ' * row['bound']}{100 * row['observed']:.1f}%"


def _predicted_between(row: Mapping[str, Any]) -> str:
    return f"{100 * row['predicted']:.1f}% | {100 * row['low']:.1f} to {100 * row['high']:.1f}%"
