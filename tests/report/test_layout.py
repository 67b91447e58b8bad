"""Slots of a pipeline are stated where the closed form m + p - 1 (arXiv 2104.04473, 2.2) holds, and only there."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from sim.events import Cause
from sim.report.layout import verdict


def run(schedule: str, busy: list[float], micro_batches: int = 8, chunks: int = 1) -> Any:
    """Return a step of 10 s, in which stages compute for *busy* seconds and wait for each other the rest."""
    stages = [SimpleNamespace(stalls={Cause.COMPUTE: time}, resources={(Cause.PIPELINE, "stages"): 10.0 - time}) for time in busy]
    return SimpleNamespace(
        step_time=10.0, stalls={Cause.COMPUTE: sum(busy) / len(busy)}, played=SimpleNamespace(stages=stages),
        mesh=SimpleNamespace(stages=len(busy), parallel=SimpleNamespace(chunks=chunks)),
        layout=SimpleNamespace(micro_batches=micro_batches, schedule=schedule),
    )  # fmt: skip


@pytest.mark.parametrize(("schedule", "chunks", "slots"), [("gpipe", 1, 11), ("1f1b", 1, 11), ("interleaved_1f1b", 2, 19)])
def test_equal_stages_fill_slots(schedule: str, chunks: int, slots: int) -> None:
    text = verdict(run(schedule, [7.3] * 4, chunks=chunks))
    assert f"takes 27% (3 of {slots} slots with 4 stages and 8 micro-batches)" in text
    assert ("virtual stages" in text) == (schedule != "gpipe")


@pytest.mark.parametrize("schedule", ["zb_h1", "zbv", "dualpipev", "mine"])
def test_other_schedules_have_a_share_and_no_slots(schedule: str) -> None:
    text = verdict(run(schedule, [9.0] * 4))
    assert "takes 10% with 4 stages and 8 micro-batches" in text and "slots" not in text and "virtual" not in text


def test_unequal_stages_name_the_longest() -> None:
    text = verdict(run("1f1b", [5.0, 5.0, 9.0, 5.0]))
    assert "takes 40%; stages are unequal: stage 2 computes 50% longer than the mean stage" in text and "slots" not in text
