"""How is a job on spot machines reported? Time and cost with their spread, compared with the same job on demand, and assumptions."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from sim.report.columns import Title, align
from sim.report.picture import Picture, figure, picture
from sim.report.prices import price_lines, price_rows
from sim.study.spot import SpotAnswer
from sim.study.transient import DrawnCourse, Spread, spread, undisturbed_time
from sim.units import pluralized, rounded_dollars, show

QUANTILES = 40
"""Steps of the distribution in the document: the middle 95% lie between its second value and its last but one."""


def spot_document(answer: SpotAnswer) -> dict[str, Any]:
    """Return the JSON document of a job on spot machines."""
    job, outcomes = answer.job, answer.outcomes
    speed = job.speeds[-1]
    time, cost = spread(outcomes, lambda outcome: outcome.time), spread(outcomes, lambda outcome: outcome.cost)
    return {
        "schema": 1,
        "hardware": answer.machine.name,
        "workload": answer.document["workload"],
        "stack": answer.document["stack"],
        "workers": len(job.speeds),
        "gpus": answer.document["gpus"],
        "policy": job.policy,
        "trials": len(outcomes),
        "work_samples": job.work,
        "throughput_samples_per_s": answer.document["throughput_samples_per_s"],
        "checkpoint": {
            "interval_s": min(answer.interval, job.work) / speed,
            "interval_samples": min(answer.interval, job.work),
            "count": max(1, math.ceil(job.work / answer.interval)),
            "write_s": job.checkpoint,
            "read_s": job.restore,
        },
        "start_up_s": job.start_up,
        "replacement_s": job.replacement,
        "spot": {
            "time_s": _figures(time),
            "cost_usd": _figures(cost),
            "undisturbed_time_s": undisturbed_time(job, answer.interval),
            "revocations": spread(outcomes, lambda outcome: outcome.revocations).mean,
            "lost_s": spread(outcomes, lambda outcome: outcome.lost).mean / speed,
        },
        "on_demand": {"time_s": answer.on_demand_time, "cost_usd": answer.on_demand_cost},
        "distribution": _distribution(outcomes),
        "saving": None if not answer.on_demand_cost else 1 - cost.mean / answer.on_demand_cost,
        "notes": list(answer.notes),
        "prices": price_rows(answer.machine, ("on_demand", "spot")),
        **{key: answer.document[key] for key in ("assumptions", "warnings", "seed", "version", "inputs_sha256")},
    }


def _distribution(outcomes: Sequence[DrawnCourse]) -> list[dict[str, float]]:
    """Return quantiles of time and cost, each independently, in increasing order."""
    times, costs = (sorted(getattr(outcome, name) for outcome in outcomes) for name in ("time", "cost"))
    places = [round(step * (len(outcomes) - 1) / QUANTILES) for step in range(QUANTILES + 1)]
    return [
        {"share": step / QUANTILES, "time_s": times[place], "cost_usd": costs[place]} for step, place in enumerate(places)
    ]  # fmt: skip


def _figures(spread: Spread) -> dict[str, float | None]:
    error = None if math.isnan(spread.error) else spread.error
    return {"mean": spread.mean, "p50": spread.p50, "p90": spread.p90, "low_95": spread.low, "high_95": spread.high, "error_of_mean": error}


def spot_text(document: dict[str, Any]) -> str:
    """Return *document* as a table and a few sentences."""
    spot, on_demand, checkpoint = document["spot"], document["on_demand"], document["checkpoint"]
    time, cost = spot["time_s"], spot["cost_usd"]
    gpus = pluralized(document["gpus"], "GPU")
    head = f"{document['workload']} on {document['workers']:,} spot {document['hardware']} ({gpus}), {document['stack']}"
    rows = [
        ["spot, mean", show(time["mean"], "time"), rounded_dollars(cost["mean"])],
        ["  median", show(time["p50"], "time"), rounded_dollars(cost["p50"])],
        ["  90% within", show(time["p90"], "time"), rounded_dollars(cost["p90"])],
        ["  95% between", _range(time, "time"), _range(cost)],
        ["on demand", show(on_demand["time_s"], "time"), "-" if on_demand["cost_usd"] is None else rounded_dollars(on_demand["cost_usd"])],
    ]
    lines = [head, "", align([Title("", True), Title("time"), Title("USD")], rows), ""]
    if document["saving"] is not None:
        share = f"{100 * abs(document['saving']):.0f}%"
        money = f"saves {share} of the cost" if document["saving"] >= 0 else f"costs {share} more"
        lines.append(f"  Spot {money} and takes {slowdown_text(time['mean'], on_demand['time_s'])}.")
    lost = show(spot["lost_s"], "time")
    count = f"{spot['revocations']:.2g}"
    expected = f"{count} interruption{' is' if count == '1' else 's are'} expected"
    lines.append(f"  {expected}; {lost} of work is repeated. {policy_in_words(document)}")
    each = show(checkpoint["write_s"], "time")
    lines.append(f"  Checkpoint every {show(checkpoint['interval_s'], 'time')} ({checkpoint['count']:,} in total, {each} each).")
    return "\n".join([*lines, *(f"  - {note}" for note in [*document["notes"], *price_lines(document["prices"])])])


def _range(figures: dict[str, float], dimension: str = "") -> str:
    low, high = figures["low_95"], figures["high_95"]
    return f"{show(low, dimension)} .. {show(high, dimension)}" if dimension else f"{low:,.2f} .. {high:,.2f}"


def slowdown_text(time: float, other: float) -> str:
    """Return text on how *time* compares with *other*."""
    if round(100 * (time / other - 1)) == 0:
        return "as long"
    return f"{100 * (time / other - 1):.0f}% longer" if time >= other else f"{100 * (1 - time / other):.0f}% less time"


def policy_in_words(document: Mapping[str, Any]) -> str:
    """Return a sentence on what the other workers do after a revocation."""
    return {
        "wait": "All workers wait for the replacement.",
        "shrink": "The other workers continue without it.",
        "replace": "The other workers continue until its replacement joins.",
    }[document["policy"]]


def spot_plot(document: Mapping[str, Any]) -> Picture:
    """Return a plot of the share of drawn courses that stay within a time, and within a cost, compared with on demand."""
    drawn, axes = figure(2, (8, 6.5))
    shares = [100 * quantile["share"] for quantile in document["distribution"]]
    for place, key, scale, words in ((axes[0], "time_s", 3600.0, "hours"), (axes[1], "cost_usd", 1.0, "USD")):
        place.plot([quantile[key] / scale for quantile in document["distribution"]], shares, color="#4477aa", label="spot")
        if (demand := document["on_demand"][key]) is not None:
            place.axvline(demand / scale, color="black", linestyle="--", linewidth=1, label="on demand")
        place.set_xlabel(words)
        place.set_ylabel("% of simulated runs within")
        place.grid(alpha=0.3)
        place.legend(frameon=False, fontsize=8)
    axes[0].set_title(f"{document['workload']} on {document['workers']} spot {document['hardware']}", fontsize=11, loc="left")
    return picture(drawn)
