"""Do marks stand at the time of what they show? Oracle: the log's spans, read back from the style of every mark."""

from __future__ import annotations

import re
from itertools import pairwise

import pytest

from sim.events import Cause
from sim.report.page.timeline import MOST_LINKS, shown_span, timeline
from sim.report.page.use import uses
from sim.report.trace.excerpt import excerpt
from tests.report.page.cases import case_answer
from tests.report.page.reading import Page


def placed(style: str) -> tuple[float, float]:
    left, width = (float(value) / 100 for value in re.findall(r"(?:left|width):([\d.]+)%", style))
    return left, left + width


@pytest.mark.parametrize("case", ["exchange", "one GPU", "drawn", "servers"])
def test_waits_tile_the_steps_of_a_rank(case: str) -> None:
    """Oracle: a rank always does or waits for something, so its lane is full; and as much of it computes as the log says."""
    run = case_answer(case).run
    chosen = excerpt(run, 2)
    span = shown_span(chosen.ranks)
    page = Page(timeline(run, 0, chosen, span, list(uses(run, chosen, span.start, span.end).values()), ""))
    lanes = [lane for lane in page.all("div", class_="lane") if "tall" not in lane.attributes["class"]]
    marks = [mark for mark in lanes[0].inside if "mark" in mark.attributes.get("class", "")]
    places = [placed(mark.attributes["style"]) for mark in marks]
    assert places[0][0] == pytest.approx(0, abs=1e-5) and places[-1][1] == pytest.approx(1, abs=1e-5)
    assert all(before[1] == pytest.approx(after[0], abs=3e-6) for before, after in pairwise(places))
    duration = span.end - span.start
    computes = (
        sum(end - start for mark, (start, end) in zip(marks, places, strict=True) if "computes" in mark.attributes["data-tip"]) * duration
    )
    own = sum(
        min(wait.t1, span.end) - max(wait.t0, span.start)
        for wait in chosen.ranks[0].waits
        if wait.cause is Cause.COMPUTE and wait.t1 > span.start
    )
    assert computes == pytest.approx(own, rel=1e-3)


def test_the_lane_of_a_link_is_as_high_as_its_use() -> None:
    run = case_answer("exchange").run
    chosen = excerpt(run, 2)
    span = shown_span(chosen.ranks)
    used = list(uses(run, chosen, span.start, span.end).values())
    page = Page(timeline(run, 0, chosen, span, used, "n0.nic0>net"))
    lanes = page.all("div", class_="tall")[-len([lane for lane in page.all("div", class_="lane") if "tall" in lane.attributes["class"]]) :]
    assert 3 <= len(lanes) <= MOST_LINKS
    for lane, use in zip(lanes, used, strict=False):
        area = 0.0
        for mark in (mark for mark in lane.inside if "style" in mark.attributes):
            start, end = placed(mark.attributes["style"])
            area += (end - start) * float(re.findall(r"height:([\d.]+)%", mark.attributes["style"])[0]) / 100
        assert area == pytest.approx(use.mean, abs=2e-4)
    bound = [lane for lane in lanes if any("bound" in mark.attributes.get("class", "") for mark in lane.inside)]
    assert len(bound) == 1 and "NIC0" in bound[0].inside[0].attributes["data-tip"]


def test_all_ranks_can_be_chosen() -> None:
    page = Page(
        timeline(case_answer("exchange").run, 0, (chosen := excerpt(case_answer("exchange").run, 2)), shown_span(chosen.ranks), [], "")
    )
    classes = len(case_answer("exchange").run.log.ranks)
    assert len(page.all("option")) == classes and len(page.all("div", data_rank="0")) == 2
