"""Oracle: by hand."""

from __future__ import annotations

import pytest

from sim.cluster.build import Placement
from sim.report.placement import placement_text


@pytest.mark.parametrize(
    ("placed", "text"),
    [
        ([(0, (0,))], "node 0, GPU 0"),
        ([(0, (0, 1, 2)), (1, (0, 1, 2)), (5, (0, 1, 2))], "nodes 0..1+5, GPUs 0..2"),
        ([(0, (3, 0, 2)), (1, (4,)), (2, (0, 2, 3))], "nodes 0+2, GPUs 0+2..3; node 1, GPU 4"),
        ([(node, (0,)) for node in range(100) if node % 3], "nodes 1..2+4..5+... 97..98 (66 in all), GPU 0"),
    ],
)
def test_a_placement_in_words(placed: list[tuple[int, tuple[int, ...]]], text: str) -> None:
    assert placement_text([Placement(*part) for part in placed]) == text
