"""How is the difference of two runs shown on a page? What changed in words, both steps side by side, and the inputs that differ."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sim.causes import MEANINGS
from sim.events import causes_of
from sim.report.difference import FIGURES, input_lines, sentences
from sim.report.page.bars import bar, named_bars, stall_key, stall_pieces, swatch
from sim.report.page.frame import PagePart, outcome, page
from sim.report.page.markup import Child, Figures, Html, bullets, join, section, table, tag, tiles
from sim.report.page.words import as_memory, as_money, as_time, unbroken

_EPOCHS = {"warm": "", "first": "first_epoch"}
"""Maps epochs to the path of their figures in the document of a run."""
_WRITE = {"time": as_time, "binary size": as_memory, "": as_money}


def difference_page(document: Mapping[str, Any], before: Mapping[str, Any], after: Mapping[str, Any]) -> str:
    """Return the page of the difference *document* of two runs, with the documents of both."""
    figures, old, new = Figures(document, "diff"), Figures(before, "before"), Figures(after, "after")
    title = f"{_named(before)}, before and after" if _named(before) == _named(after) else f"{_named(before)} against {_named(after)}"
    first, *rest = sentences(document)
    paragraphs = (tag("p", unbroken(line), class_="set-up") for line in rest)
    hero = outcome(title, first, "", *paragraphs, _tiles(old, new))
    parts = [_steps(old, new), _causes(figures, old, new), _figures(figures), _inputs(document)]
    return page(title, "difference", hero, parts, {"diff": document, "before": before, "after": after})


def _named(document: Mapping[str, Any]) -> str:
    return f"{document['workload']} on {document['hardware']}"


def _tiles(old: Figures, new: Figures) -> Html:
    rows: list[tuple[str, Child, Child]] = [
        (title, new.format(path, write), join("before ", old.format(path, write)))
        for title, path, write in (
            ("Step", "step_time_s", as_time), ("Epoch", "epoch_time_s", as_time), ("First epoch", "first_epoch/epoch_time_s", as_time),
            ("Cost per epoch", "cost_per_epoch_usd", as_money), ("GPU memory", "gpu_memory_bytes/total", as_memory),
        )
    ]  # fmt: skip
    return tiles(rows)


def _steps(old: Figures, new: Figures) -> PagePart:
    shown: list[Child] = []
    for epoch, below in _EPOCHS.items():
        pair = [("before", old.subfigures(below)), ("after", new.subfigures(below))]
        scale = max(run.value("step_time_s") for _, run in pair)
        drawn: list[tuple[Child, Html, Child]] = [
            (name, bar(run, stall_pieces(run), "step_time_s", scale), run.format("step_time_s", as_time)) for name, run in pair
        ]
        shown += [tag("h3", f"{epoch} epoch"), tag("figure", named_bars(drawn, f"Step time by cause, {epoch} epoch"))]
    return PagePart("steps", "Steps", section("steps", "Step time by cause", *shown, stall_key(old, new)))


def _causes(figures: Figures, old: Figures, new: Figures) -> PagePart:
    rows: list[list[Child]] = [
        [
            join(swatch(cause.value), cause.value), *(_spent(run, cause.value) for run in (old, new)),
            figures.format(f"stalls_s/{cause.value}", _signed), MEANINGS[cause],
        ]
        for cause in causes_of(figures.value("stalls_s"))
        if any(run.value("stalls_s").get(cause.value) for run in (old, new))
    ]  # fmt: skip
    head = [("cause", False), ("before", True), ("after", True), ("change", True), ("activity", False)]
    lead = "The causes add up to the step time, and their changes to its change."
    return PagePart("causes", "Causes", section("causes", "What changed in a warm step", table(head, rows, "Causes"), lead=lead))


def _spent(run: Figures, cause: str) -> Html:
    """Return the seconds of *cause* in a step of *run*; a dash if the run does not have this cause."""
    return run.format(f"stalls_s/{cause}", as_time) if cause in run.value("stalls_s") else Html("-")


def _signed(seconds: float) -> str:
    return "0 s" if not seconds else f"{'+' if seconds > 0 else '-'}{as_time(abs(seconds))}"


def _figures(figures: Figures) -> PagePart:
    rows: list[list[Child]] = [
        [
            title,
            *(figures.format(f"{key}/{place}", _WRITE[unit]) for place in (0, 1)),
            "changed" if key in figures.value("changed") else "same",
        ]
        for title, key, _, unit in FIGURES
        if figures.value(key) != [None, None]
    ]
    head = [("figure", False), ("before", True), ("after", True), ("", False)]
    return PagePart("figures", "Figures", section("figures", "Figures", table(head, rows, "Figures")))


def _inputs(document: Mapping[str, Any]) -> PagePart:
    lines = input_lines(document["inputs"])
    shown = bullets(lines) if lines else tag("p", "All inputs in the documents are the same.")
    return PagePart("inputs", "Inputs", section("inputs", "Inputs that differ", shown, lead="Before -> after."))
