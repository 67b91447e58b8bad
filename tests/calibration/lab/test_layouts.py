"""Are steps of divided models foreseen? Oracles: measured steps over namespaces, and bytes that left each host's interface."""

from __future__ import annotations

from functools import cache

import pytest

from calibration.lab.layout_score import LayoutPoint, layout_rows, score_layouts, sent_bytes


@cache
def scored() -> tuple[LayoutPoint, ...]:
    """Return the committed points with their predictions."""
    return tuple(score_layouts())


def test_steps_are_foreseen() -> None:
    """Bands as reached, and half as much again; no point is fitted."""
    rows = {row["group"]: row for row in layout_rows(scored())}
    assert rows["all"]["points"] >= 20
    assert rows["all"]["median"] < 0.05
    assert rows["all"]["p90"] < 0.12


@pytest.mark.parametrize("kind", ["FSDP2", "tensor", "pipeline"])
def test_a_rank_sends_the_bytes_that_its_program_says(kind: str) -> None:
    """The interface counts headers too: frames of up to 64 KiB, acknowledgements, and what ranks say to each other before the first step."""
    for point in scored():
        if point.kind == kind:
            for number, rank in enumerate(point.line["ranks"]):
                stage = number if kind == "pipeline" else 0
                assert rank["sent_bytes"] == pytest.approx(sent_bytes(point.run, stage), rel=0.015)
