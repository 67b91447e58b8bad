"""How is a division of loader workers shown on a page? Each policy's gain over an even division, and when each job runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sim.report.page.bars import named_bars
from sim.report.page.basis import basis
from sim.report.page.frame import PagePart, outcome, page
from sim.report.page.markup import Child, Figures, Html, section, table, tag, tiles
from sim.report.page.words import as_number, as_plain, as_rate, as_time
from sim.report.share import workers_of
from sim.study.descriptions import Descriptions
from sim.units import pluralized, rate_text, signed_percent

_GAIN = 5e-4
"""Smallest gain that is mentioned, as a share."""
_NAMED = 0.2
"""Share of the whole time above which a job's bar has a label."""


def share_page(document: Mapping[str, Any], descriptions: Descriptions | None = None) -> str:
    """Return the page of a division's *document*, with its inputs from *descriptions*."""
    figures = Figures(document, "share")
    jobs = len(document["policies"][0]["jobs"])
    title = f"{workers_of(document)} loader workers per node of {document['hardware']} among {pluralized(jobs, 'job')}"
    hero = outcome(title, verdict_of(document), "", _tiles(figures))
    return page(title, "share", hero, [_courses(figures), _table(figures), *basis(figures, descriptions)], {"share": document})


def verdict_of(document: Mapping[str, Any]) -> str:
    """Return a sentence on the policy that gains most over an even division."""
    best = max(document["policies"], key=lambda policy: policy["throughput_gain"])
    gain, sooner = best["throughput_gain"], best["makespan_gain"]
    if gain < _GAIN:
        return "No policy is faster than an even division."
    last = "" if abs(sooner) < _GAIN else f"; the last job ends {100 * abs(sooner):.0f}% {'earlier' if sooner > 0 else 'later'}"
    return f"With the policy {best['policy']}, jobs run {100 * gain:.0f}% faster on average than with an even division{last}."


def _tiles(figures: Figures) -> Html:
    rows: list[tuple[str, Child, Child]] = [
        (
            f"Last job ends, {policy['policy']}",
            figures.format(f"policies/{place}/makespan_s", as_time),
            f"throughput {signed_percent(policy['throughput_gain'])}" if place else "baseline",
        )
        for place, policy in enumerate(figures.value("policies"))
    ]
    return tiles(rows)


def _courses(figures: Figures) -> PagePart:
    longest = max(policy["makespan_s"] for policy in figures.value("policies"))
    drawn: list[Child] = []
    for place, policy in enumerate(figures.value("policies")):
        rows: list[tuple[Child, Html, Child]] = [
            (
                job["workload"],
                _job(figures.subfigures(f"policies/{place}/jobs/{number}"), longest, figures.value("policies/0/makespan_s")),
                figures.format(f"policies/{place}/jobs/{number}/end_s", as_time),
            )
            for number, job in enumerate(policy["jobs"])
        ]
        bars = tag("figure", tag("div", named_bars(rows, f"When each job runs, with the policy {policy['policy']}"), class_="short"))
        drawn += [tag("h3", policy["policy"]), bars]
    lead = "From start to end; end time at right. Dashed: end of the last job with an even division."
    return PagePart("courses", "Jobs", section("courses", "When each job runs", *drawn, lead=lead))


def _job(job: Figures, longest: float, even: float) -> Html:
    start, end, workers = (job.value(key) for key in ("start_s", "end_s", "workers_per_gpu"))
    rate = as_rate(job.value("throughput_samples_per_s"))
    each = f"{pluralized(workers, 'worker')} per GPU"
    says = f"{job.value('workload')}\n{each} while most jobs run\n{rate}\nfrom {as_time(start)} to {as_time(end)}"
    share = (end - start) / longest
    label = tag("span", each) if share > _NAMED else None
    before = tag("div", style=f"width:{100 * start / longest:.4f}%") if start > 0 else None
    mark = tag(
        "div", label, class_="mark piece", style=f"width:{100 * share:.4f}%;background:var(--busy);color:var(--paper)",
        data_at=job.place("end_s"), data_value=repr(end), data_tip=says,
    )  # fmt: skip
    line = tag("i", class_="line-at", style=f"left:{100 * even / longest:.4f}%")
    return tag("div", tag("div", before, mark, class_="stack"), line, class_="whole")


def _table(figures: Figures) -> PagePart:
    rows: list[list[Child]] = []
    for place, policy in enumerate(figures.value("policies")):
        for number, job in enumerate(policy["jobs"]):
            own = figures.subfigures(f"policies/{place}/jobs/{number}")
            rows.append([
                policy["policy"], job["workload"], own.format("gpus", as_number), own.format("workers_per_gpu", as_number),
                own.format("throughput_samples_per_s", rate_text), own.format("throughput_gain", signed_percent),
                own.format("epochs", as_plain), own.format("start_s", as_time), own.format("end_s", as_time),
            ])  # fmt: skip
    titles = ["GPUs", "workers per GPU", "samples/s", "gain", "epochs", "from", "to"]
    head = [("policy", False), ("job", False), *((title, True) for title in titles)]
    lead = "Workers: while most jobs run; divided again whenever a job starts or ends. Samples/s: mean from start to end, warm caches."
    return PagePart("table", "Table", section("table", "All figures", table(head, rows, "Jobs by policy", "sortable"), lead=lead))
