"""How is a run plotted? The stalls of a step, the timeline of one step, and scaling."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from sim.analysis.bottleneck import Bottleneck
from sim.causes import COLORS
from sim.events import STALLS, Cause
from sim.report.expected_error import expected_error
from sim.report.page.words import unbroken
from sim.report.picture import ERROR_BARS, Picture, figure, picture
from sim.report.verdict import verdict
from sim.simulate import Run
from sim.units import pluralized

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_STREAMS = ("gpu", "comm", "copy", "pin", "pipeline", "pipeline gpu")
"""Order of the timeline's rows, before those of loader workers."""
_MOST_WORKERS = 8
LINE = 110
"""Maximum characters on a line of a picture's title."""


def stall_plot(run: Run, number: int = 0, bottleneck: Bottleneck | None = None) -> Picture:
    """Return a plot of a step's time by cause in a warm and in the first epoch, and the timeline of one warm step."""
    drawn, axes = figure(2, (10, 6.5))
    job = run.jobs[number]
    workload = job.job.workload
    draw_stacked(axes[0], ["first epoch", "warm epoch"], [job.first.stalls, job.warm.stalls], [_relative_error(run, number)] * 2)
    says = textwrap.fill(unbroken(verdict(run, number, bottleneck)), LINE)
    title = f"{workload.name} on {run.hardware.name}, {pluralized(job.job.ranks, 'GPU')}\n{says}"
    axes[0].set_title(title, fontsize=11, loc="left")
    shown = _timeline(axes[1], run, number)
    _key(drawn, [cause for cause in STALLS if cause in shown or is_visible(cause, [job.first.stalls, job.warm.stalls])])
    return picture(drawn)


def pictures(runs: Sequence[Run], scaling: bool, bottlenecks: Sequence[Bottleneck] = ()) -> dict[str, bytes]:
    """Return pictures by file name, one per job: of its stalls in the first run, or with *scaling* of its scaling over *runs*.

    *bottlenecks* are those of each job, if they were computed.
    """
    jobs = len(runs[0].jobs) if runs else 0
    of_jobs = [*bottlenecks, *[None] * jobs]
    drawn = [scaling_plot(runs, number) if scaling else stall_plot(runs[0], number, of_jobs[number]) for number in range(jobs)]
    names = ["stalls"] if jobs == 1 else [f"stalls-{number}" for number in range(jobs)]
    return {name: content for title, plot in zip(names, drawn, strict=True) for name, content in plot.files(title).items()}


def scaling_plot(runs: Sequence[Run], number: int = 0) -> Picture:
    """Return a plot of the time per step of one job by cause, with a bar for each of *runs*."""
    drawn, axes = figure(1, (10, 1.5 + 0.5 * len(runs)))
    jobs = [run.jobs[number] for run in runs]
    names = [f"{job.job.ranks} GPUs" for job in jobs]
    draw_stacked(
        axes[0], names[::-1], [job.warm.stalls for job in reversed(jobs)], [_relative_error(run, number) for run in reversed(runs)]
    )
    axes[0].set_title(f"{jobs[0].job.workload.name} on {runs[0].hardware.name}", fontsize=11, loc="left")
    _key(drawn, [cause for cause in STALLS if is_visible(cause, [job.warm.stalls for job in jobs])])
    return picture(drawn)


def _relative_error(run: Run, number: int) -> float:
    """Return the 90th percentile of the expected error of job *number*; 0 if there is none."""
    error = expected_error(run, number)
    return error["p90"] if error else 0.0


def draw_stacked(
    axes: Axes, names: Sequence[str], tables: Sequence[Any], errors: Sequence[float], causes: Sequence[Cause] = STALLS
) -> None:
    """Draw a bar of *causes* for each of *tables*, with an error bar of the relative size *errors* at its end."""
    left = [0.0] * len(tables)
    for cause in causes:
        widths = [1e3 * table[cause] for table in tables]
        if is_visible(cause, tables):
            axes.barh(names, widths, left=left, color=COLORS[cause], edgecolor="white", linewidth=0.5)
        left = [start + width for start, width in zip(left, widths, strict=True)]
    for name, total, off in zip(names, left, errors, strict=True):
        if off > 0:
            axes.errorbar(total, name, xerr=[[total * min(off, 1.0)], [total * off]], color="black", capsize=3, linewidth=1)
    axes.set_xlim(left=0)
    axes.set_xlabel(f"milliseconds per step{f'; {ERROR_BARS}' if any(errors) else ''}")
    axes.spines[["top", "right"]].set_visible(False)


def is_visible(cause: Cause, tables: Sequence[Any]) -> bool:
    """Return whether *cause* is large enough to be visible in the bars of *tables*."""
    return bool(max(table[cause] for table in tables) > 1e-3 * max(sum(table.values()) for table in tables))


def _key(drawn: Figure, causes: Sequence[Cause]) -> None:
    from matplotlib.patches import Patch

    patches = [Patch(color=COLORS[cause], label=cause.value) for cause in causes]
    drawn.legend(handles=patches, loc="outside lower center", ncols=8, fontsize=8, frameon=False)


def _timeline(axes: Axes, run: Run, number: int) -> set[Cause]:
    """Draw the streams of the job's first rank during its last simulated step. Return the causes that occur."""
    epoch = run.jobs[number].warm
    rank = next(index for index, each in enumerate(epoch.log.ranks) if each.job == number)
    end = max(window.end for window in epoch.windows)
    start = end - epoch.step_time
    rows = _rows(run, number, rank, start, end)
    for place, (name, spans) in enumerate(rows):
        for cause, t0, t1 in spans:
            begin, stop = max(t0, start), min(t1, end)
            axes.barh(place, 1e3 * (stop - begin), left=1e3 * (begin - start), color=COLORS[cause], height=0.7)
        axes.text(-0.005, place, name, transform=axes.get_yaxis_transform(), ha="right", va="center", fontsize=8)
    axes.set_yticks([])
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set_xlim(0, 1e3 * (end - start))
    axes.set_xlabel("milliseconds of one warm step, first rank")
    axes.spines[["top", "right", "left"]].set_visible(False)
    return {cause for _, spans in rows for cause, _, _ in spans}


def _rows(run: Run, number: int, rank: int, start: float, end: float) -> list[tuple[str, list[tuple[Cause, float, float]]]]:
    log = run.jobs[number].warm.log
    streams: dict[str, list[tuple[Cause, float, float]]] = {}
    for span in log.work:
        if span.rank == rank and span.t1 > start and span.t0 < end:
            streams.setdefault(span.stream, []).append((span.cause, span.t0, span.t1))
    workers = sorted((name for name in streams if name.startswith("worker")), key=lambda name: int(name.split()[1]))
    return [(name, streams[name]) for name in (*_STREAMS, *workers[:_MOST_WORKERS]) if name in streams]
