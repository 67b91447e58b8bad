"""How are the parts of a whole drawn? As bars of colored pieces with tooltips, and as a table of the same figures."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from sim.causes import MEANINGS
from sim.events import LAYOUT_STALLS, STALLS, Cause, causes_of
from sim.report.page.colors import fill
from sim.report.page.markup import Child, Figures, Html, join, table, tag
from sim.report.page.words import as_percent, as_signed_time, as_time

_NAMED = 0.07
"""Smallest share of a bar at which a piece is wide enough for its name."""
ERROR_BARS = "Error bars: 90% of similar predictions were within them."
"""The explanation of error bars."""
SAME_ERROR = "Cost is time at a price, so both are off by the same share."
"""Why a cost has an error bar."""
_VISIBLE = 1e-4
"""Share of a bar up to which a piece is not drawn."""


class BarPiece(NamedTuple):
    """A piece of a bar: the path of its figure, its color token, its name, and the text of its tooltip."""

    path: str
    color: str
    name: str
    tooltip: str


def p90_error(figures: Figures) -> float:
    """Return the 90th percentile of the expected error of the job of *figures*; 0 if there is none."""
    return float((figures.value("").get("expected_error") or {}).get("p90", 0.0))


def bar_scale(rows: Iterable[Figures], key: str) -> float:
    """Return the value that fills the width of the bars of *rows*: the largest of their figures at *key*, including its error bar."""
    return max(float(row.value(key)) * (1 + p90_error(row)) for row in rows)


def bar(figures: Figures, pieces: Sequence[BarPiece], key: str, scale: float, off: float = 0.0) -> Html:
    """Return a bar of *pieces* of the figure at *key*; *scale* is the value that fills the whole width.

    *off* is the relative error of the whole, for an error bar; 0 for none.
    """
    total = figures.value(key)
    marks = []
    for piece in pieces:
        value = figures.value(piece.path)
        if value <= _VISIBLE * scale:
            continue
        share = value / total
        style = f"width:{100 * value / scale:.4f}%;{fill(piece.color)}"
        label = piece.name if value / scale >= _NAMED else ""
        marks.append(
            tag(
                "div",
                tag("span", label) if label else None,
                class_="mark piece",
                style=style,
                data_at=figures.place(piece.path),
                data_value=repr(value),
                data_tip=f"{piece.name}\n{piece.tooltip}\n{100 * share:.1f}% of the whole",
            )
        )
    stack = tag("div", *marks, class_="stack")
    return tag("div", stack, error_bar(total, scale, off), class_="whole erring") if off > 0 else stack


def error_bar(total: float, scale: float, off: float) -> Html | None:
    """Return the error bar of a bar of length *total*, cut off at *scale*; None if *off* is 0."""
    if off <= 0:
        return None
    low, high = (min(max(total * factor, 0.0), scale) for factor in (1 - off, 1 + off))
    return tag("i", class_="off", style=f"left:{100 * low / scale:.2f}%;width:{100 * (high - low) / scale:.2f}%", aria_hidden="true")


def error_tile(figures: Figures) -> list[tuple[str, Child, Child]]:
    """Return the tile of the expected error of *figures*; empty if it is unknown."""
    if not figures.value("expected_error"):
        return []
    beyond = join("median; one in ten above ", figures.format("expected_error/p90", as_percent))
    return [("Expected error", figures.format("expected_error/median", as_percent), beyond)]


def named_bars(rows: Sequence[tuple[Child, Html, Child]], label: str) -> Html:
    """Return *rows* of name, bar and the text after it, as one chart labeled *label*."""
    lines = [
        tag("div", tag("div", name, class_="name"), drawn, tag("div", behind, class_="behind"), class_="named-bar")
        for name, drawn, behind in rows
    ]
    return tag("div", *lines, class_="bars marks", tabindex="0", role="group", aria_label=label)


def stall_pieces(figures: Figures) -> list[BarPiece]:
    """Return a piece for every cause of the stall table in *figures*."""
    pieces = []
    for cause in causes_of(figures.value("stalls_s")):
        path = f"stalls_s/{cause.value}"
        pieces.append(BarPiece(path, cause.value, cause.value, f"{as_time(figures.value(path))} of each step\n{MEANINGS[cause]}"))
    return pieces


def changed_causes(figures: Figures, path: str, least: float) -> Child:
    """Return a list of the causes at *path* that changed by more than *least* seconds, largest change first."""
    causes = figures.value(path)
    named = sorted((cause for cause in causes if abs(causes[cause]) > least), key=lambda cause: -abs(causes[cause]))
    shown = [tag("li", swatch(cause), f"{cause} ", figures.format(f"{path}/{cause}", as_signed_time)) for cause in named]
    return tag("ul", *shown, class_="key") if shown else "-"


def swatch(color: str) -> Html:
    """Return a small square in *color*, to be followed by a name."""
    return tag("span", class_="swatch", style=fill(color), aria_hidden="true")


def stalls(figures: Figures) -> Html:
    """Return the stalls of a warm and of the first epoch of one job: two bars, and a table of the same figures."""
    warm, cold = figures, figures.subfigures("first_epoch")
    off = p90_error(warm)
    scale = max(warm.value("step_time_s"), cold.value("step_time_s")) * (1 + off)
    rows = [
        (name, bar(which, stall_pieces(which), "step_time_s", scale, off), which.format("step_time_s", as_time))
        for name, which in (("warm epoch", warm), ("first epoch", cold))
    ]
    chart = named_bars(rows, "Step time by cause, in a warm and in the first epoch")
    key = tag("figcaption", ERROR_BARS) if off > 0 else None
    return join(tag("figure", chart, key), stall_table(figures))


def step_stalls(figures: Figures, meanings: Mapping[Cause, str]) -> tuple[Html, Html, Html]:
    """Return a rank's step of a layout or a graph by cause: a bar, its key, and a table with the *meanings* of the causes."""
    causes = [cause for cause in LAYOUT_STALLS if figures.value(f"stalls_s/{cause.value}") > 0]
    pieces = [BarPiece(f"stalls_s/{cause.value}", cause.value, cause.value, meanings[cause]) for cause in causes]
    step, off = figures.format("step_time_s", as_time), p90_error(figures)
    drawn = named_bars([("step", bar(figures, pieces, "step_time_s", bar_scale([figures], "step_time_s"), off), step)], "Step")
    means = tag("figcaption", f"{ERROR_BARS} {_sentence(figures.value('expected_error')['basis'])}") if off > 0 else None
    key = tag("ul", *(tag("li", swatch(cause.value), cause.value) for cause in causes), class_="key")
    rows: list[list[Child]] = []
    for cause in causes:
        path = f"stalls_s/{cause.value}"
        name = join(swatch(cause.value), cause.value)
        rows.append([name, figures.format(path, as_time), figures.share(path, "step_time_s"), meanings[cause]])
    head = [("cause", False), ("time", True), ("share", True), ("meaning", False)]
    return tag("figure", drawn, means), key, table(head, rows)


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}."


def stall_table(figures: Figures) -> Html:
    """Return a table of every cause that a step of either epoch has, with its time and share."""
    cold, rows = figures.subfigures("first_epoch"), []
    for cause in STALLS:
        path = f"stalls_s/{cause.value}"
        if max(figures.value(path), cold.value(path)) <= 1e-12:
            continue
        cells: list[Child] = [join(swatch(cause.value), cause.value), figures.format(path, as_time), figures.share(path, "step_time_s")]
        rows.append([*cells, cold.format(path, as_time), cold.share(path, "step_time_s"), MEANINGS[cause]])
    head = [("cause", False), ("warm", True), ("share", True), ("first epoch", True), ("share", True), ("activity", False)]
    return table(head, rows, "Step time by cause")


def stall_key(*runs: Figures) -> Html:
    """Return the key of the colors of causes: those of every run, and any others that *runs* have."""
    causes = causes_of([cause.value for cause in STALLS], *(run.value("stalls_s") for run in runs))
    return tag("ul", *(tag("li", swatch(cause.value), cause.value) for cause in causes), class_="key")
