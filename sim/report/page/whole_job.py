"""How is a whole job shown on a page? Its parts as a bar, from the start of the machines to the last checkpoint."""

from __future__ import annotations

from sim.report.page.bars import ERROR_BARS, BarPiece, bar, named_bars, swatch
from sim.report.page.markup import Child, Figures, Html, join, table, tag
from sim.report.page.words import as_money, as_time
from sim.report.whole_job import length_text, part_name


def parts_bar(job: Figures, key: str, scale: float, off: float = 0.0) -> Html:
    """Return the bar of the parts of *job*, under ``parts_s``, which sum to the figure at *key*; *scale* (s) fills the width.

    *off* is the relative error of the whole, for an error bar; 0 for none.
    """
    pieces = [BarPiece(f"parts_s/{name}", name, part_name(name), as_time(seconds)) for name, seconds in job.value("parts_s").items()]
    return bar(job, pieces, key, scale, off)


def parts_key(jobs: list[Figures]) -> Html:
    """Return the key of the colors of all parts that any of *jobs* has."""
    names = [name for name in jobs[0].value("parts_s") if any(job.value(f"parts_s/{name}") > 0 for job in jobs)]
    return tag("ul", *(tag("li", swatch(name), part_name(name)) for name in names), class_="key")


def whole_job(job: Figures, off: float = 0.0) -> Html:
    """Return the bar and the table of the ``whole_job`` of a run; its time has the relative error *off* (0: unknown) unless it is given."""
    off = 0.0 if job.value("given") == "time" else off
    filled = parts_bar(job, "time_s", (1 + off) * job.value("time_s"), off)
    drawn = named_bars([(length_text(job.value("")), filled, job.format("time_s", as_time))], "Seconds of the whole job by part")
    key = tag("figcaption", ERROR_BARS) if off > 0 else None
    rows: list[list[Child]] = [
        [join(swatch(name), part_name(name)), job.format(f"parts_s/{name}", as_time), job.share(f"parts_s/{name}", "time_s")]
        for name, seconds in job.value("parts_s").items()
        if seconds > 0
    ]
    rows.append(["total", job.format("time_s", as_time), job.format("cost_usd", as_money)])
    return join(tag("figure", drawn, key), table([("part", False), ("time", True), ("", True)], rows, "The whole job by part", "narrow"))
