"""Oracle: what is written beside the drawing, by hand from the description."""

from __future__ import annotations

import pytest

from sim.report.fabric_plot import fabric_plot
from sim.spec.library import load_hardware
from tests.cluster.test_fabric import leaves


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("128x-hgx-h100-oversubscribed", ["32 leaves, 4 nodes each", "400 GB/s, 4 to 1", "1.6 TB/s, 2 to 1", "between halves: 3.2 TB/s"]),
        ("128x-hgx-h100-rails", ["4 leaves for each of 8 rails, 32 nodes each", "uplinks of a leaf: 1.6 TB/s"]),
        ("144x-hgx-h100-dragonfly", ["9 groups of 8 routers", "4 global links per pair, 100 GB/s each", "between halves: 8 TB/s"]),
        ("64x-dgx-a100-torus", ["torus of 4 x 4 x 4", "drawn: a sheet of 4 x 4", "between halves: 800 GB/s"]),
    ],
)
def test_a_fabric_is_drawn_and_said(name: str, words: list[str]) -> None:
    drawn = fabric_plot(load_hardware(name, ()).spec)
    assert drawn is not None
    assert drawn.png.startswith(b"\x89PNG")
    for said in words:
        assert said in drawn.svg.decode()


def test_one_pod_is_drawn_as_one() -> None:
    drawn = fabric_plot(leaves(4, 2, 1, pods={"leaves": 2, "oversubscription": 2}))
    assert drawn is not None
    assert drawn.svg.decode().count("spines of a pod") == 1


def test_what_has_no_structure_is_not_drawn() -> None:
    assert fabric_plot(load_hardware("2x-p3.8xlarge", ()).spec) is None
