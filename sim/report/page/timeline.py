"""What happens in a step, moment by moment? Lanes for the work of a rank, its streams and its loader, and for the load of each link.

Marks are positioned in percent of the time shown, so that zooming only stretches the canvas. A wait for a batch or for gradients is
hatched; the lanes below show what it waits for.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from sim.causes import MEANINGS
from sim.events import Cause, WaitSpan, WorkSpan
from sim.report.page.colors import fill
from sim.report.page.markup import Child, Html, join, tag
from sim.report.page.use import Use, coarsen
from sim.report.page.words import as_percent, as_time
from sim.report.trace.excerpt import Excerpt, RankExcerpt
from sim.simulate import Run
from sim.units import show

STEPS = 2
"""Number of steps shown, so that work ahead for the next step is visible."""
MOST_WORKERS = 8
LEAST_LINKS, MOST_LINKS = 3, 14
NOTICED = 0.02
"""Smallest peak of a link that gets a lane, as a share of its capacity."""
MOST_PIECES = 240
"""Maximum number of pieces in one link's lane."""
RANKS = 8
"""Maximum number of classes of ranks to choose from."""
_NAMED = 0.05
_TICKS = 6
_WAITS = {Cause.INPUT: "waits for a batch", Cause.GRADIENT: "waits for gradients"}


class TimelineSpan(NamedTuple):
    """The time (s) that is shown, and the ends of its steps."""

    start: float
    end: float
    ends: Sequence[float]

    def place(self, t0: float, t1: float) -> str:
        """Return the style that positions a mark from *t0* to *t1*."""
        length = self.end - self.start
        left, width = (max(t0, self.start) - self.start) / length, (min(t1, self.end) - max(t0, self.start)) / length
        return f"left:{100 * left:.4f}%;width:{100 * width:.4f}%"


def shown_span(ranks: Sequence[RankExcerpt]) -> TimelineSpan:
    """Return the time of the last `STEPS` steps of the first of *ranks*."""
    ends = list(ranks[0].boundaries)[-STEPS - 1 :]
    return TimelineSpan(ends[0], ends[-1], ends[1:])


def timeline(run: Run, number: int, chosen: Excerpt, span: TimelineSpan, used: Sequence[Use], bound: str) -> Html:
    """Return the lanes of job *number* of *run* during *span*, with the use of links; *bound* is the recorded name of its slowest link."""
    ranks = [rank for rank in chosen.ranks if run.log.ranks[rank.index].job == number][:RANKS]
    names, lanes = [], []
    for place, rank in enumerate(ranks):
        rows = _rows(rank, span)
        names.append(tag("div", *(tag("div", name, class_="lane-name") for name, _ in rows), data_rank=place, hidden=place > 0))
        lanes.append(tag("div", *(tag("div", *marks, class_="lane") for _, marks in rows), data_rank=place, hidden=place > 0))
    kept = [use for place, use in enumerate(used) if use.peak >= NOTICED or place < LEAST_LINKS][:MOST_LINKS]
    head = join(tag("div", class_="axis"), *names, tag("div", "link utilization", class_="lane-name title"))
    links = [tag("div", use.label, class_="lane-name tall", title=use.description) for use in kept]
    axis = tag("div", *_ticks(span), class_="axis", aria_hidden="true")
    title = tag("div", class_="title")
    canvas = tag(
        "div", axis, tag("div", *_edges(span), class_="grid"), *lanes, title, *(_link_lane(use, span, bound) for use in kept),
        class_="canvas marks", data_span=repr(span.end - span.start), tabindex="0", role="group",
        aria_label="Timeline: arrow keys step through it, plus and minus zoom, 0 shows all",
    )  # fmt: skip
    grid = tag("div", tag("div", head, *links, class_="lane-names"), tag("div", canvas, class_="scroller"), class_="lanes")
    return tag("figure", _tools(run, ranks), grid, _caption(chosen, span, len(used) - len(kept)), class_="timeline")


def lanes_of(names: Sequence[Html], lanes: Sequence[Html], span: TimelineSpan, label: str) -> Html:
    """Return *lanes* against time during *span*, with their *names* next to them; *label* is for screen readers."""
    head = tag("div", tag("div", class_="axis"), *names, class_="lane-names")
    canvas = tag(
        "div", tag("div", class_="axis", aria_hidden="true"), *lanes, class_="canvas marks", data_span=repr(span.end - span.start),
        tabindex="0", role="group", aria_label=label,
    )  # fmt: skip
    return tag("figure", tag("div", head, tag("div", canvas, class_="scroller"), class_="lanes"), class_="timeline")


def _tools(run: Run, ranks: Sequence[RankExcerpt]) -> Html:
    buttons = [
        tag("button", text, type="button", data_zoom=how, aria_label=says)
        for text, how, says in (("+", "in", "Zoom in"), ("-", "out", "Zoom out"), ("Whole", "all", "Show the whole time"))
    ]
    options = [tag("option", _rank_name(run, rank), value=str(place)) for place, rank in enumerate(ranks)]
    choice = tag("label", "Rank ", tag("select", *options, data_ranks=True)) if len(ranks) > 1 else tag("label", _rank_name(run, ranks[0]))
    return tag("div", choice, *buttons, class_="tools", role="toolbar", aria_label="Timeline")


def _rank_name(run: Run, rank: RankExcerpt) -> str:
    of_log = run.log.ranks[rank.index]
    number = of_log.node.removeprefix("n")
    first = f"GPU {of_log.gpus[0]} on node {number if number.isdigit() else of_log.node}"
    return first if of_log.size == 1 else f"{first} (represents {of_log.size} identical GPUs)"


def _caption(chosen: Excerpt, span: TimelineSpan, left_out: int) -> Html:
    more = f" {left_out} less-used link{'s are' if left_out > 1 else ' is'} omitted." if left_out > 0 else ""
    steps = f"{('No', 'One', 'Two', 'Three', 'Four')[len(span.ends)] if len(span.ends) < 5 else len(span.ends)}"
    kind = f" steady-state step{'s' * (len(span.ends) != 1)}" if "steady-state" in chosen.note else f" steps: {chosen.note}"
    few = f" {chosen.left_out[0].upper()}{chosen.left_out[1:]}." if chosen.left_out and chosen.left_out not in kind else ""
    text = f"{steps}{kind}; dashed lines end a step.{few} Drag to zoom in, or use the buttons.{more}"
    return tag("figcaption", text)


def _ticks(span: TimelineSpan) -> list[Html]:
    length = span.end - span.start
    step = _round_step(length / _TICKS)
    return [
        tag("span", as_time(place * step) if place else "0", style=f"left:{100 * place * step / length:.4f}%")
        for place in range(math.floor(length / step * 0.97) + 1)
    ]


def _round_step(rough_step: float) -> float:
    """Return the smallest of 1, 2 and 5 times a power of ten that is at least *rough_step*."""
    power = 10.0 ** math.floor(math.log10(rough_step))
    return next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough_step * (1 - 1e-9))


def _edges(span: TimelineSpan) -> list[Html]:
    length = span.end - span.start
    return [tag("i", class_="step", style=f"left:{100 * (end - span.start) / length:.4f}%") for end in span.ends[:-1]]


# --- lanes of a rank -------------------------------------------------------------------------------------------------


def _rows(rank: RankExcerpt, span: TimelineSpan) -> list[tuple[str, list[Html]]]:
    rows = [
        ("training loop", [_wait(wait, span) for wait in rank.waits if _seen(wait, span)]),
        ("GPU", [_work(work, span) for work in rank.compute if _seen(work, span)]),
        ("exchange", [_bound(work, span) for work in rank.bounds if _seen(work, span)]),
        ("copy to GPU", [_work(work, span, "copy") for work in rank.copies if _seen(work, span)]),
    ]
    streams: dict[str, list[Html]] = {}
    for work in rank.loader:
        if _seen(work, span):
            streams.setdefault(work.stream, []).append(_work(work, span))
    workers = sorted((name for name in streams if name.startswith("worker")), key=lambda name: int(name.split()[1]))
    others = [name for name in streams if name not in workers]
    rows += [("pin thread" if name == "pin" else name, streams[name]) for name in (*others, *workers[:MOST_WORKERS])]
    return [row for row in rows if row[1]]


def _seen(span: WaitSpan | WorkSpan, shown: TimelineSpan) -> bool:
    return span.t1 > shown.start and span.t0 < shown.end


def _wait(wait: WaitSpan, span: TimelineSpan) -> Html:
    words = _WAITS.get(wait.cause) or ("computes" if wait.cause is Cause.COMPUTE else f"waits: {wait.cause.value}")
    says = f"{words}\n{_when(wait.t0, wait.t1, span)}"
    return _mark(words, says, None if wait.cause in _WAITS else wait.cause, wait.t0, wait.t1, span)


def _work(work: WorkSpan, span: TimelineSpan, name: str = "") -> Html:
    name = name or work.name
    bucket = f"\nfills bucket {work.ident}" if work.name == "backward" and work.ident >= 0 else ""
    moved = f"\n{show(work.nbytes, 'size')}" if work.nbytes else ""
    says = f"{name}: {MEANINGS.get(work.cause, work.resource)}\n{_when(work.t0, work.t1, span)}{bucket}{moved}"
    return _mark(name, says, work.cause, work.t0, work.t1, span)


def _bound(work: WorkSpan, span: TimelineSpan) -> Html:
    says = f"{work.name}\nbound by {work.resource}\n{_when(work.t0, work.t1, span)}"
    return _mark(work.resource, says, work.cause, work.t0, work.t1, span)


def _when(t0: float, t1: float, span: TimelineSpan) -> str:
    return f"{as_time(t1 - t0)}, from {as_time(max(0.0, t0 - span.start))}"


def _mark(name: str, says: str, cause: Cause | None, t0: float, t1: float, span: TimelineSpan) -> Html:
    wide = (t1 - t0) / (span.end - span.start) >= _NAMED
    look = f";{fill(cause.value)}" if cause is not None else ""
    label: Child = tag("span", name) if wide else None
    return tag("div", label, class_="mark" if cause is not None else "mark waiting", style=span.place(t0, t1) + look, data_tip=says)


# --- lanes of links --------------------------------------------------------------------------------------------------


def _link_lane(use: Use, span: TimelineSpan, bound: str) -> Html:
    marks = [
        tag(
            "div", class_="mark bound" if use.name == bound else "mark", style=f"{span.place(t0, t1)};height:{100 * min(1.0, share):.2f}%",
            data_tip=f"{use.description}\n{as_percent(share)} of {use.capacity_in_words}\n{_when(t0, t1, span)}",
        )
        for t0, t1, share in coarsen(use.shares, MOST_PIECES)
        if share > 0
    ]  # fmt: skip
    return tag("div", *marks, class_="lane tall")
