"""How is a whole job reported? Its length, cost and parts, in a document and in a line of text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sim.analysis.whole_job import JobPlan
from sim.spec.hardware import Hardware
from sim.spec.workload import Workload
from sim.study.whole_job import Course, course
from sim.units import rounded_dollars, show, three_digits


def job_of_run(plan: JobPlan | None, document: Mapping[str, Any], machine: Hardware, workload: Workload) -> dict[str, Any] | None:
    """Return the figures of the whole job of *plan*, given the *document* of its run of *workload* on *machine*; None without a plan."""
    return None if plan is None else whole_job_document(plan, course(plan, document, machine, workload), document["price"]["usd_per_h"])


def whole_job_document(plan: JobPlan, course: Course, usd_per_h: float | None) -> dict[str, Any]:
    """Return the figures of the whole job of *plan*; *usd_per_h* is its price (None if unknown)."""
    time = course.parts.total
    return {
        "given": "tokens" if plan.tokens else "epochs" if plan.time is None else "time",
        **({"tokens": plan.tokens} if plan.tokens else {}),
        "epochs": course.epochs,
        "time_s": time,
        "cost_usd": None if usd_per_h is None else usd_per_h * time / 3600,
        "parts_s": course.parts._asdict(),
    }


def whole_job_text(job: Mapping[str, Any]) -> str:
    """Return a line on the *job* of a document: length, time, cost and parts."""
    cost = "" if job["cost_usd"] is None else f", ${rounded_dollars(job['cost_usd'])}"
    unpriced = "; no price is known: --set price.on_demand='10 USD/h' gives one" if job["cost_usd"] is None else ""
    parts = _without_epochs(job["parts_s"]) if "tokens" in job else job["parts_s"]
    return f"whole job, {length_text(job)}: {long_time(job['time_s'])}{cost} ({parts_text(parts)}){unpriced}"


def _without_epochs(parts: Mapping[str, float]) -> dict[str, float]:
    """Return *parts* with all epochs as one: a job with a number of tokens does not end with an epoch of its data set."""
    rest = dict(parts)
    return {"start_up": rest.pop("start_up"), "training": rest.pop("first_epoch") + rest.pop("later_epochs"), **rest}


def length_text(job: Mapping[str, Any]) -> str:
    """Return the length of the *job* of a document: in tokens if that was requested, else in epochs."""
    if "tokens" in job:
        return tokens_text(job["tokens"])
    return epochs_text(job["epochs"]) if job["epochs"] else "0 epochs, because it ends before training begins"


def long_time(seconds: float) -> str:
    """Return the *seconds* of a whole job as text, from two days on in hours and days."""
    days = seconds / 86400
    in_days = three_digits(days) if days >= 99.95 else f"{days:.1f}"
    return job_time(seconds) if days < 2 else f"{job_time(seconds)} ({in_days} days)"


def days_text(days: float, decimals: int = 1) -> str:
    """Return the length of a long run as text: in days from one day on, else as other times."""
    return f"{days:,.{decimals}f} days" if days >= 1 else show(86400 * days, "time")


def job_time(seconds: float) -> str:
    """Return the *seconds* of a job or a part of it as text, with three digits, and separators in thousands of hours."""
    return show(seconds, "time") if seconds < 999.5 * 3600 else f"{three_digits(seconds / 3600)} h"


def tokens_text(tokens: float) -> str:
    """Return a number of tokens as text."""
    unit, name = next(((unit, name) for unit, name in _THOUSANDS if tokens >= unit), (1.0, ""))
    return f"{tokens / unit:,.6g} {name}tokens"


_THOUSANDS = ((1e12, "trillion "), (1e9, "billion "), (1e6, "million "))


def epochs_text(epochs: float) -> str:
    """Return a number of epochs as text: whole numbers without decimals, others with one, or two digits if below 1."""
    number = f"{epochs:,.0f}" if abs(epochs - round(epochs)) < 1e-9 else f"{epochs:,.1f}" if epochs >= 1 else f"{epochs:.2g}"
    return f"{number} epoch{'s' * (number != '1')}"


def part_name(name: str) -> str:
    """Return the *name* of a part of a whole job as shown in text."""
    return "startup" if name == "start_up" else name.replace("_", " ")


def parts_text(parts: Mapping[str, float]) -> str:
    """Return the parts of a whole job that take at least a millisecond as text, in their order."""
    return ", ".join(f"{part_name(name)} {job_time(value)}" for name, value in parts.items() if value >= 1e-3)
