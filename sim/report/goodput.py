"""How do weeks of training turn out? Effective share, interruptions, days, cost, energy with intervals, and where time is lost."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sim import __version__
from sim.analysis.energy import KWH
from sim.analysis.energy_error import INTERVALS
from sim.analysis.expected_share import first_start
from sim.analysis.long_run import LOST_CATEGORIES, Courses
from sim.analysis.whole_job import JobPlan
from sim.report.columns import Title, align
from sim.report.energy import power_cap_figures, power_cap_text
from sim.report.expected_error import error_sentence
from sim.report.limited import steps_to_limit
from sim.report.picture import Picture, figure, picture
from sim.report.prices import paid_text
from sim.report.waiting import waiting_notes
from sim.report.weeks_energy import energy_error_text, energy_notes, energy_of_courses, energy_with_errors
from sim.spec.hardware import Hardware
from sim.spec.workload import Workload
from sim.spec.yaml import SpecError
from sim.study.goodput import DAY, Change, Goodput, overall_share, simulate_weeks, time_of_changes
from sim.study.options import Weeks
from sim.study.pool import Progress
from sim.study.power_cap import SlowerRuns
from sim.study.weeks import Slowed, Steps, check_weeks, rents_another, with_reliability
from sim.units import pluralized, rounded_dollars, show

QUANTILES = 40
"""Steps of the distribution in the document, which is of one run more."""
EVENTS = 400
"""Maximum number of interruptions in the document's timeline, which is that of the course with the median failure rate."""
NAMES = {
    "detection": "detecting and locating faults", "restart": "restarting and loading", "rework": "redoing lost work",
    "checkpoint": "saving checkpoints", "spare_wait": "waiting for spares", "degraded": "slow or missing nodes",
    "planned": "planned stops",
}  # fmt: skip
_SHOWN_SLOWDOWN = 1e-3
"""Least part of what a checkpoint costs training that slower steps are mentioned for."""


def goodput_of(
    document: Mapping[str, Any], machine: Hardware, workload: Workload, weeks: Weeks, changes: bool = True,
    progress: Progress = lambda done, of: None, slowed: Slowed = lambda store: 0.0, slower: SlowerRuns | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Return the document of *weeks* of the run of *workload* on *machine*, from the run's *document*. Raise SpecError.

    *changes* adds the effect of other set-ups. *progress* is called with the number of parts drawn and their total. *slowed* returns the
    seconds that concurrent steps lose while a checkpoint is written, *slower* the run with slower GPUs, for a power limit.
    """
    answer = simulate_weeks(steps_to_limit(document, machine, workload, slower), weeks, changes, progress, slowed)
    shown = goodput_document(answer) | {"stack": document["stack"], "stalls_s": dict(answer.steps.stalls)}
    return shown | {key: document[key] for key in ("price", "assumptions", "warnings", "inputs_sha256")}


def goodput_of_run(
    document: Mapping[str, Any], machine: Hardware, workload: Workload, plan: JobPlan, slowed: Slowed, store: str | None = None,
    power_cap: str | None = None, mean_lifetime: str | None = None, spares: int | None = None, reliability: str | None = None,
    slower: SlowerRuns | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Return the document of the job of *plan* with failures, from a run's *document*.

    *reliability* is a level of failure rates (None: the middle one). *mean_lifetime* is that of spot machines. *slower* simulates the
    run with slower GPUs, for *power_cap*.
    """
    if "jobs" in document:
        raise SpecError("--with-failures: takes one workload, not several jobs")
    weeks = Weeks(days=plan.time / DAY) if plan.time is not None else Weeks(tokens=plan.tokens, epochs=plan.epochs)
    weeks = replace(weeks, store=store or weeks.store, power_cap=power_cap, mean_lifetime=mean_lifetime, spares=spares)
    weeks = with_reliability(weeks, reliability)
    check_weeks(weeks)
    shown = goodput_of(document, machine, workload, weeks, changes=False, slowed=slowed, slower=slower)
    return shown | {"notes": [*shown["notes"], *_differences(plan)]}


def _differences(plan: JobPlan) -> list[str]:
    """Return what makes the whole job of *plan* without failures longer than these weeks, if anything does."""
    saves = ["waits for a checkpoint on the node's disk after each epoch"] if plan.checkpoints else []
    evaluates = ["evaluates after each epoch, which these figures leave out"] if plan.evaluation else []
    both = " and ".join([*saves, *evaluates])
    return [f"the whole job without failures {both}, so it can take longer than with them"] if both else []


def goodput_document(answer: Goodput) -> dict[str, Any]:
    """Return the JSON document of *answer*: means over the drawn courses that finish, and intervals of single courses.

    Shares and the energy per sample are ratios of totals over these courses, such as all work kept over all time elapsed. Shares count
    the other courses as zero from their death on, or throughout if they never end.
    """
    drawn, steps = answer.courses, answer.steps
    courses = drawn.only(drawn.finished)
    figures = _figures(answer, courses) | _shares_of_all(answer)
    means = {name: None if values is None else float(values.mean()) for name, values in figures.items()}
    means |= _mean_shares(answer)
    elapsed, work = float(courses.elapsed.mean()), float(courses.work.mean())
    lost = {name: _without_rounding(float(courses.lost[name].mean()), elapsed) for name in LOST_CATEGORIES}
    joules = None if means["energy_kwh"] is None else means["energy_kwh"] * KWH
    limit = None if answer.limit is None else power_cap_figures(answer.limit)
    scheduled = max(1 - lost["spare_wait"] / elapsed, 1e-9)
    return {
        "schema": 1,
        "hardware": steps.hardware,
        "workload": steps.workload.name,
        "nodes": steps.nodes,
        "gpus": steps.gpus,
        "spares": answer.run.spares,
        "rents_another": rents_another(answer.weeks, answer.steps),
        "step_time_s": steps.step_time,
        "expected_error": steps.expected_error,
        "model_flops_utilization": steps.model_flops_utilization,
        **means,
        "energy_per_sample_j": _per_item(joules, means["samples"]),
        "energy_per_token_j": _per_item(joules, means["tokens"]),
        "goodput_parts": {"scheduling": scheduled, "runtime": (means["goodput"] or 0.0) / scheduled},
        "elapsed_s": elapsed,
        "work_s": work,
        "lost_s": lost,
        **{
            name: {key: None if values is None else np.quantile(values, ends).tolist() for key, values in figures.items()}
            for name, ends in INTERVALS.items()
        },
        "median": {key: None if values is None else float(np.median(values)) for key, values in figures.items()},
        "trials": drawn.elapsed.size,
        "died": _died(answer),
        "endless_share": float(np.isinf(drawn.elapsed).mean()),
        "closed_form": {"effective_share": answer.expected, "meta_ettr": answer.meta, "first_start_s": first_start(answer.run)},
        "checkpoint": _checkpoint(answer),
        "reliability": _reliability(answer),
        "sensitivities": [_changed(one, answer.changes[0]) for one in answer.changes],
        "sensitivities_over_s": time_of_changes(answer.run),
        "energy": {
            "pue": answer.pue,
            "grid": answer.grid.figures,
            "node_power_w": {name: power and power.total for name, power in answer.power.items()},
            "power_cap": limit,
            "with_errors": energy_with_errors(answer, courses),
        },
        "timeline": [{"time_s": time, "what": what, "recovery_s": took} for time, what, took in courses.events[:EVENTS]],
        "distribution": _distribution(answer),
        "notes": [*answer.notes, *waiting_notes(answer, courses), *([f"{power_cap_text(limit)}, without failures"] if limit else [])],
        "seed": answer.weeks.seed,
        "version": __version__,
    }  # fmt: skip


def _without_rounding(seconds: float, elapsed: float) -> float:
    """Return *seconds*, or zero if they are only floating-point rounding relative to *elapsed*."""
    return seconds if abs(seconds) > 1e-12 * elapsed else 0.0


def _per_item(joules: float | None, count: float | None) -> float | None:
    """Return *joules* per item of *count*, including failures, checkpoints and spares; None if either is unknown or nothing was kept."""
    return joules / count if joules is not None and count else None


def _died(answer: Goodput) -> dict[str, Any] | None:
    """Return the share of courses that die because spares run out, and when; None if nodes return, so that no course can die."""
    if answer.run.repairs:
        return None
    died = answer.courses.death_times
    days = died[np.isfinite(died)] / DAY
    spread = {name: np.quantile(days, ends).tolist() if days.size else None for name, ends in INTERVALS.items()}
    return {"share": days.size / died.size, "median_days": float(np.median(days)) if days.size else None, **spread}


def _shares_of_all(answer: Goodput) -> dict[str, NDArray[np.float64]]:
    """Return the shares of every course, also of those that die or never end: no time counts as useful from then on."""
    courses = answer.courses
    times = np.where(courses.finished, courses.elapsed, answer.run.horizon)  # no end: a share of zero
    productive = (courses.work + courses.lost["degraded"]) / times
    return {"effective_share": courses.work / times, "ettr": productive, "goodput": productive}


def _mean_shares(answer: Goodput) -> dict[str, float]:
    """Return the shares of all courses together. In a given time, these are means; otherwise, ratios of totals of those that finish.

    The latter are multiplied by the part of the courses that finish.
    """
    courses = answer.courses
    useful, productive = (overall_share(work, courses, answer.run)[0] for work in (courses.work, courses.work + courses.lost["degraded"]))
    return {"effective_share": useful, "ettr": productive, "goodput": productive}


def _figures(answer: Goodput, courses: Courses) -> dict[str, NDArray[np.float64] | None]:
    """Return the figures of each of the *courses*, which all finish."""
    steps, elapsed = answer.steps, courses.elapsed
    joules = energy_of_courses(answer, courses)
    rented = courses.node_seconds + answer.run.spares * elapsed
    return {
        "days": elapsed / DAY,
        "interruptions": courses.interruptions,
        "planned_stops": courses.stops,
        "replaced_nodes": courses.replaced_nodes,
        "cost_usd": None if steps.usd_per_s is None else rented * steps.usd_per_s + elapsed * steps.servers_usd_per_s,
        "energy_kwh": None if joules is None else joules / KWH,
        "co2_kg": None if joules is None else joules * answer.grid.intensity,
        **_trained_on(courses.work / steps.step_time, steps),
    }


def _trained_on(own_steps: NDArray[np.float64], steps: Steps) -> dict[str, NDArray[np.float64] | None]:
    """Return the samples and tokens trained in *own_steps* steps of the run."""
    if not steps.parts:
        ends = [epoch * steps.workload.dataset.samples for epoch in range(len(steps.cold) + 1)]
        times = list(map(steps.time_of, ends))
        work = own_steps * steps.step_time
        samples = np.interp(work, times, ends) + np.maximum(work - times[-1], 0.0) * steps.pace
        return {"samples": samples, "tokens": None if steps.tokens is None else samples * steps.tokens}
    parts, samples, tokens = (np.cumsum([0.0, *column]) for column in zip(*steps.parts, strict=True))
    return {"samples": np.interp(own_steps, parts, samples), "tokens": np.interp(own_steps, parts, tokens)}


def _changed(change: Change, base: Change) -> dict[str, Any]:
    """Return the effect of one *change* compared with *base*, the unchanged set-up.

    Both have the same faults, which are those of the main result unless they use fewer courses or only the first part of the job.
    """
    return {
        "change": change.name,
        "effective_share": change.share,
        "closed_form": change.expected,
        "effective_share_standard_error": change.error,
        "gain_points": 100 * (change.share - base.share),
        "gain_standard_error_points": None if change.gain_error is None else 100 * change.gain_error,
        "closed_form_gain_points": 100 * (change.expected - base.expected),
    }


def gain_text(change: Mapping[str, Any]) -> str:
    """Return the gain of one *change* of a document with its standard error, and whether it is smaller than that."""
    gain, error = change["gain_points"], change["gain_standard_error_points"]
    within = f" ± {as_points(error)}" if error is not None else ""
    return f"{signed_points(gain):>6}{within}" + (
        ", less than its standard error" if error and round(error, 2) and abs(gain) < error else ""
    )


def base_text(document: Mapping[str, Any]) -> str:
    """Return what the changes of *document* are compared with; empty if it is the outcome itself."""
    base = document["sensitivities"][0]
    if base["effective_share"] == document["effective_share"]:
        return ""
    error = base["effective_share_standard_error"]
    within = "" if error is None else f" ± {100 * error:.2f}"
    return f"compared with {100 * base['effective_share']:.2f}{within}% as it is, over the same time with the same faults"


def as_points(points: float) -> str:
    """Return a size in percentage points as text."""
    return f"{points:.2f}"


def signed_points(points: float) -> str:
    """Return a difference of shares, in percentage points, as text with its sign; none is negative zero."""
    return f"{round(points, 2) + 0.0:+.2f}"


def _reliability(answer: Goodput) -> dict[str, Any]:
    """Return how often the job's nodes fail, with the source of the data and the laws of fleets and of the times between failures."""
    low, value, high = (DAY * rate / answer.run.nodes for rate in answer.run.rate)
    return {
        "level": answer.reliability.name,
        "law": answer.run.law.name,
        "interruptions_per_node_day": {"low": low, "value": value, "high": high},
        "degrees_of_freedom": answer.reliability.rate.degrees_of_freedom if low < high else None,
        "source": answer.reliability.rate.source,
    }


def rate_words(reliability: Mapping[str, Any]) -> str:
    """Return which failure rate a closed form takes: the middle one of the *reliability* of a document, or the only one."""
    rates = reliability["interruptions_per_node_day"]
    return "the middle rate" if rates["low"] < rates["high"] else "the given rate"


def _checkpoint(answer: Goodput) -> dict[str, Any]:
    saving, intervals = answer.run.saving, answer.intervals
    return {
        "mode": answer.weeks.mode,
        "store": answer.weeks.store,
        "bytes": answer.nbytes,
        "writers": answer.writers,
        "blocking_s": saving.blocking,
        "slowed_s": answer.slower.store if answer.weeks.mode != "sync" else 0.0,
        "persist_s": saving.persist,
        "load_s": saving.load,
        "write_limit_bytes_per_s": answer.write_limits[0],
        "memory_interval_s": saving.memory_interval,
        "memory": None if saving.memory_interval is None else {
            "blocking_s": saving.memory_blocking, "slowed_s": answer.slower.peers, "persist_s": saving.memory_persist,
            "load_s": saving.memory_load, "load_from_peer_s": saving.peer_load, "write_limit_bytes_per_s": answer.write_limits[1],
        },
        "traffic_share": answer.checkpoint.traffic_share,
        "interval_s": {
            "used": intervals.used, "exact": intervals.exact, "young": intervals.young, "daly": intervals.daly,
            "shortest": intervals.shortest if answer.weeks.interval == "auto" else None,
        },
    }  # fmt: skip


def _distribution(answer: Goodput) -> list[dict[str, float | None]]:
    """Return simulated runs at even steps of the distribution of the effective share (``share``), the lowest first.

    Runs that die before the end are among them. The days of a run that never ends are None.
    """
    courses, shares = answer.courses, _shares_of_all(answer)["effective_share"]
    order, levels = np.argsort(shares, kind="stable"), np.linspace(0.0, 1.0, QUANTILES + 1)
    runs = [int(order[round(level * (order.size - 1))]) for level in levels]
    return [
        {
            "share": float(level),
            "effective_share": float(shares[run]),
            "days": float(courses.elapsed[run]) / DAY if math.isfinite(courses.elapsed[run]) else None,
            "interruptions": float(courses.interruptions[run]),
        }
        for level, run in zip(levels, runs, strict=True)
    ]


def goodput_text(document: Mapping[str, Any]) -> str:
    """Return *document* as text: the outcome, where time goes, checkpoints, and what would help."""
    size = ", ".join([pluralized(document["gpus"], "GPU"), pluralized(document["nodes"], "node"), pluralized(document["spares"], "spare")])
    lines = [f"{document['workload']} on {document['hardware']}: {size}", ""]
    lines += [align([Title("", True), Title("mean"), Title("50% interval"), Title("95% interval")], _rows(document)), ""]
    sentences = died_text(document), _per_step(document), error_sentence(document["expected_error"]), energy_error_text(document)
    lines += [*(f"  {sentence}" for sentence in sentences if sentence), "", "  Where the time goes (mean):"]
    elapsed = document["elapsed_s"]
    parts = {"kept work": document["work_s"], **{NAMES[name]: seconds for name, seconds in document["lost_s"].items()}}
    unit, span = ("d", DAY) if document["days"] >= 1 else ("h", 3600.0)
    lines += [f"    {name:30} {seconds / span:8,.2f} {unit}  {100 * seconds / elapsed:5.1f}%" for name, seconds in parts.items()]
    lines += ["", *_on_checkpoints(document["checkpoint"], document["step_time_s"]), *_on_closed_form(document)]
    if document["sensitivities"]:
        over, dead = document["sensitivities_over_s"], "" if document["died"] is None else "; a run that dies counts as zero from then on"
        first = f" over the first {over / DAY:,.1f} days" if over < 0.99 * document["work_s"] else ""
        lines += ["", f"  Effect of one change (percentage points of effective share ± standard error{first}{dead}):"]
        lines += [f"    {one['change']:30} {gain_text(one)}" for one in document["sensitivities"][1:]]
        lines += [f"    {base}" for base in [base_text(document)] if base]
    return "\n".join(
        [*lines, "", *(f"  - {note}" for note in [*document["notes"], *paid_text(document.get("price")), *energy_notes(document)])]
    )


def died_text(document: Mapping[str, Any]) -> str:
    """Return a sentence on the share of courses that die because spares run out, and when, or that never end; empty if none can."""
    died, trials = document["died"], document["trials"]
    if document["endless_share"]:
        return (
            f"{100 * document['endless_share']:.3g}% of {trials:,} simulated runs never end, because they are interrupted before they save "
            "work, or wait for spares. The shares count them as zero; the other figures are for the others."
        )
    if died is None:
        return ""
    if not died["share"]:
        return f"Failed nodes do not return; none of {trials:,} simulated runs runs out of spares."
    low, high = died["interval95"]
    return (
        f"{100 * died['share']:.3g}% of {trials:,} simulated runs run out of spares and die, half of them within "
        f"{died['median_days']:.3g} d (95% between {low:.3g} and {high:.3g} d). The shares count them as zero, with --days from then on; "
        "the other figures are for the others."
    )


def _per_step(document: Mapping[str, Any]) -> str:
    used = document.get("model_flops_utilization")
    of_mfu = f" at {100 * used:.1f}% MFU; MFU is not part of the shares above" if used else ""
    return f"A step takes {show(document['step_time_s'], 'time')}{of_mfu}."


def _on_closed_form(document: Mapping[str, Any]) -> list[str]:
    """Return lines with the results of closed forms, and what they omit that the drawn courses include."""
    closed, lost, elapsed = document["closed_form"], document["lost_s"], document["elapsed_s"]
    meta = (
        f"{100 * closed['meta_ettr']:.1f}%{_before_first_start(document)}"
        if closed["meta_ettr"] > 0
        else "does not hold where a failure costs more than the time to the next"
    )
    parts = ", ".join(f"{NAMES[name]} ({100 * lost[name] / elapsed:.1f}%)" for name in ("spare_wait", "degraded", "planned"))
    return [
        f"  Closed form at {rate_words(document['reliability'])}: {100 * closed['effective_share']:.1f}%; "
        f"Meta's formula{':' if closed['meta_ettr'] > 0 else ''} {meta}.",
        f"  Neither includes {parts}, repeated or multi-node faults, or differences between fleets.",
    ]


def _before_first_start(document: Mapping[str, Any]) -> str:
    """Return how much longer than Meta's formula a job takes because it starts; empty below 0.1% of its time."""
    share = min(document["closed_form"]["first_start_s"] / document["elapsed_s"], 1.0)
    return f", without the first start ({100 * share:.1f}%)" if share >= 0.001 else ""


def _rows(document: Mapping[str, Any]) -> list[list[str]]:
    """Return the rows of the table of outcomes."""
    shown: Sequence[tuple[str, str, float, str]] = (
        ("effective_share", "effective share, %", 100.0, ".1f"), ("ettr", "ETTR (Meta) = goodput (Google), %", 100.0, ".1f"),
        _length(document), ("interruptions", "interruptions", 1.0, ",.0f" if document["interruptions"] >= 10 else ".2g"),
        ("cost_usd", "cost, USD", 1.0, ""),
        _sized(document, "energy_kwh", "energy", ("kWh", "MWh")), _sized(document, "co2_kg", "CO2", ("kg", "t")),
    )  # fmt: skip
    rows = []
    for key, name, scale, form in shown:
        if document[key] is None:
            continue
        write = rounded_dollars if key == "cost_usd" else partial(_formatted, scale, form)
        ends = [[write(value) for value in document[interval][key]] for interval in INTERVALS]
        rows.append([name, write(document[key]), *(f"{low} .. {high}" for low, high in ends)])
    for key, name in (("energy_per_token_j", "energy per token"), ("energy_per_sample_j", "energy per sample")):
        if document[key] is not None:
            rows.append([name, show(document[key], "energy"), "", ""])
    return rows


def _formatted(scale: float, form: str, value: float) -> str:
    return format(scale * value, form)


def _length(document: Mapping[str, Any]) -> tuple[str, str, float, str]:
    return ("days", "days", 1.0, ",.2f") if document["days"] >= 1 else ("days", "hours", 24.0, ",.2f")


def _sized(document: Mapping[str, Any], key: str, name: str, units: tuple[str, str]) -> tuple[str, str, float, str]:
    """Return a row of outcomes in the larger of *units* (1,000 times the other) if the mean is at least 10 of it."""
    value = document[key] or 0.0
    large = value >= 1e4
    shown = value / 1e3 if large else value
    return key, f"{name}, {units[large]}", 1e-3 if large else 1.0, ",.0f" if shown >= 1e3 else ",.1f" if shown >= 1 else ".2g"


def _on_checkpoints(saved: Mapping[str, Any], step: float) -> list[str]:
    times = {name: show(saved[f"{name}_s"], "time") for name in ("blocking", "persist", "load", "slowed")}
    counts = saved["slowed_s"] >= _SHOWN_SLOWDOWN * saved["blocking_s"] > 0
    slower = f" ({times['slowed']} of it from slower steps)" if counts else ""
    every = {name: show(seconds, "time") for name, seconds in saved["interval_s"].items() if seconds is not None}
    shortest = f"; shortest interval used: {every['shortest']}, --checkpoint-interval takes any" if "shortest" in every else ""
    parts = f"{pluralized(saved['writers'], 'part')}{_at_most(saved)}"
    often = pluralized(round(saved["interval_s"]["used"] / step), "step")
    return [
        f"  Checkpoints of {show(saved['bytes'], 'size')} in {parts}, {saved['mode']} to {saved['store']}: each costs "
        f"training {times['blocking']}{slower}, is complete after {times['persist']}, and loads in {times['load']};",
        f"  one every {every['used']} of work, or {often} (best {every['exact']}, Young {every['young']}, Daly {every['daly']}{shortest}).",
        *_on_copies(saved),
    ]


def _at_most(writes: Mapping[str, Any]) -> str:
    """Return at which rate each part is written, if that is below full speed."""
    return f", each part at {show(limit, 'bandwidth')} to spare the steps" if (limit := writes["write_limit_bytes_per_s"]) else ""


def _on_copies(saved: Mapping[str, Any]) -> list[str]:
    """Return a line on the checkpoint copies in the memory of peers, if there are any."""
    if saved["memory"] is None:
        return []
    copy = {name: show(saved["memory"][f"{name}_s"], "time") for name in ("blocking", "persist", "load", "load_from_peer")}
    every = f"{show(saved['memory_interval_s'], 'time')} of work{_at_most(saved['memory'])}"
    return [
        f"  Copies to peer memory every {every}: each costs training {copy['blocking']}, is sent after {copy['persist']}, and loads in "
        f"{copy['load']}, from a peer in {copy['load_from_peer']}."
    ]


def goodput_plot(document: Mapping[str, Any]) -> Picture:
    """Return a plot of the distribution of the effective share over the drawn courses, and of where time is lost on average."""
    drawn, axes = figure(2, (8, 6.5))
    axes[0].plot(
        [100 * step["effective_share"] for step in document["distribution"]], [100 * step["share"] for step in document["distribution"]]
    )
    axes[0].set_xlabel("effective share, %")
    axes[0].set_ylabel("% of runs below")
    axes[0].grid(alpha=0.3)
    names = [name for name in LOST_CATEGORIES if document["lost_s"][name] > 0]
    axes[1].barh(
        [NAMES[name] for name in names], [100 * document["lost_s"][name] / document["elapsed_s"] for name in names], color="#4477aa"
    )
    axes[1].set_xlabel("% of the time")
    axes[0].set_title(f"{document['workload']} on {document['nodes']} x {document['hardware']}", fontsize=11, loc="left")
    return picture(drawn)
