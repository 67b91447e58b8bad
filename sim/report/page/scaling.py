"""How are runs of growing size shown on a page? Throughput compared with ideal scaling, and where a step goes at each size."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sim.report.basis import merged_basis
from sim.report.page.bars import ERROR_BARS, bar, bar_scale, named_bars, p90_error, stall_key, stall_pieces
from sim.report.page.basis import basis
from sim.report.page.chart import ChartPoint, axis, chart
from sim.report.page.frame import PagePart, outcome, page
from sim.report.page.markup import Child, Figures, Html, bullets, section, table, tag
from sim.report.page.words import as_money, as_number, as_percent, as_plain, as_rate, as_time
from sim.report.prices import prices_of_runs
from sim.study.descriptions import Descriptions
from sim.units import pluralized, rate_text


def scaling_page(document: Mapping[str, Any], descriptions: Descriptions | None = None) -> str:
    """Return the page of a scaling table's *document*; some of its ``runs`` may have several ``jobs``, and some may be infeasible.

    *descriptions* are the inputs of all runs.
    """
    figures = Figures(document, "run")
    places = [
        (f"runs/{place}/jobs/{job}", job) if "jobs" in run else (f"runs/{place}", 0)
        for place, run in enumerate(document["runs"])
        for job in range(len(run.get("jobs", [run])))
    ]
    jobs = sorted({job for _, job in places})
    ran = {job: [figures.subfigures(path) for path, own in places if own == job and "step_time_s" in figures.value(path)] for job in jobs}
    failed = [(run["nodes"], run["gpus"], run["infeasible"]) for run in document["runs"] if "infeasible" in run]
    parts = [part for job, of_job in ran.items() if of_job for part in _parts(of_job, job, len(jobs) > 1)]
    parts += [_left_out(failed)] if failed else []
    documents = [of_job.value("") for sizes in ran.values() for of_job in sizes]
    rests_on = {**merged_basis(documents), "prices": prices_of_runs(documents)}
    parts += basis(Figures(rests_on, "basis"), descriptions)
    name = document["runs"][0].get("workload") or "several jobs"
    hardware = next((of_job.value("hardware") for sizes in ran.values() for of_job in sizes), document["runs"][0].get("hardware", ""))
    sizes = next((of_job for of_job in ran.values() if of_job), [])
    hero = outcome(f"{name} on {hardware}, at {len(document['runs'])} sizes", verdict_of(sizes), "")
    return page(f"{name} on {hardware}, scaling", "scaling", hero, parts, {"run": document, "basis": rests_on})


def verdict_of(sizes: Sequence[Figures]) -> str:
    """Return a sentence on the scaling efficiency from the first to the last of *sizes*, and on the last one's largest stall."""
    if not sizes:
        return "None of the sizes can run the job."
    first, last = sizes[0], sizes[-1]
    share_kept = efficiency(last, first)
    stalls = {cause: seconds for cause, seconds in last.value("stalls_s").items() if cause != "compute"}
    worst = max(stalls, key=lambda cause: stalls[cause])
    share = as_percent(stalls[worst] / last.value("step_time_s"))
    stall = {"straggler": "stragglers"}.get(worst, worst)
    largest = f"the largest stall is {stall} ({share})" if stalls[worst] > 0 else "nothing stalls"
    return f"{as_percent(share_kept)} scaling efficiency from {first.value('gpus')} to {last.value('gpus')} GPUs; {largest}."


def efficiency(size: Figures, first: Figures) -> float:
    """Return the throughput per GPU at *size* divided by that at *first*."""
    own, reference = (float(figures.value("throughput_samples_per_s") / figures.value("gpus")) for figures in (size, first))
    return own / reference


def _parts(sizes: Sequence[Figures], job: int, several: bool) -> list[PagePart]:
    name = f"Job {job}: " if several else ""
    suffix = f"-{job}" if several else ""
    speed = section(
        f"speed{suffix}",
        f"{name}Speed",
        _speed(sizes),
        lead="Samples per second of all GPUs. Dashed: ideal linear scaling.",
    )
    steps = section(f"time{suffix}", f"{name}Step time by cause", _steps(sizes), stall_key(), lead="Warm steps, at each size.")
    return [
        PagePart(f"speed{suffix}", f"{name}Speed", speed), PagePart(f"time{suffix}", f"{name}Step time", steps),
        PagePart(f"table{suffix}", f"{name}Table", section(f"table{suffix}", f"{name}Table", _table(sizes))),
    ]  # fmt: skip


def _speed(sizes: Sequence[Figures]) -> Html:
    rates = [(float(figures.value("gpus")), figures.value("throughput_samples_per_s")) for figures in sizes]
    ideal = [(gpus, rates[0][1] * gpus / rates[0][0]) for gpus, _ in rates]
    across = axis("GPUs", [gpus for gpus, _ in rates], as_number, own=True)
    off = [p90_error(figures) for figures in sizes]
    ends = [rate * factor for (_, rate), each in zip(rates, off, strict=True) for factor in (1 - each, 1 + each) if factor > 0]
    up = axis("samples per second", [*(rate for _, rate in (*rates, *ideal)), *ends], as_plain)
    points = [
        ChartPoint(
            gpus, rate, as_percent(efficiency(figures, sizes[0])),
            f"{gpus:.0f} GPUs\n{as_rate(rate)}\nefficiency {as_percent(efficiency(figures, sizes[0]))}",
            (figures.marked("gpus"), figures.marked("throughput_samples_per_s")), True, True, error_up=each,
        )
        for figures, (gpus, rate), each in zip(sizes, rates, off, strict=True)
    ]  # fmt: skip
    lines = [("ideal", ideal), ("front", rates)] if len(rates) > 1 else []
    key = tag("figcaption", ERROR_BARS) if any(off) else None
    return tag("figure", chart(points, across, up, "Samples per second by GPUs", lines), key)


def _steps(sizes: Sequence[Figures]) -> Html:
    scale = bar_scale(sizes, "step_time_s")
    rows: list[tuple[Child, Html, Child]] = [
        (
            pluralized(figures.value("gpus"), "GPU"),
            bar(figures, stall_pieces(figures), "step_time_s", scale, p90_error(figures)),
            figures.format("step_time_s", as_time),
        )
        for figures in sizes
    ]
    key = tag("figcaption", ERROR_BARS) if any(p90_error(figures) for figures in sizes) else None
    return tag("figure", named_bars(rows, "Step time by cause, at each size"), key)


def _table(sizes: Sequence[Figures]) -> Html:
    rows: list[list[Child]] = [
        [
            figures.format("gpus", as_number), figures.format("nodes", as_number), figures.format("step_time_s", as_time),
            figures.format("throughput_samples_per_s", rate_text), as_percent(efficiency(figures, sizes[0])),
            figures.format("epoch_time_s", as_time), figures.format("cost_per_epoch_usd", as_money),
        ]
        for figures in sizes
    ]  # fmt: skip
    titles = [
        "GPUs", "nodes", "step", "samples/s", "efficiency", "epoch", "cost per epoch",
    ]  # fmt: skip
    return table([(title, True) for title in titles], rows, "Sizes", "sortable")


def _left_out(failed: Sequence[tuple[int, int, str]]) -> PagePart:
    listed = bullets(f"{pluralized(nodes, 'node')}, {pluralized(gpus, 'GPU')}: {problem}" for nodes, gpus, problem in failed)
    return PagePart("left-out", "Cannot run", section("left-out", "Sizes that cannot run it", listed))
