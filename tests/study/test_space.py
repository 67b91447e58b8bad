"""Oracle: values written out by hand; every Sobol point inside its range; the same seed, the same points."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.spec.yaml import SpecError
from sim.study.space import axis, grid, sobol


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("k=10..40 Gbps:4", ("10 Gbps", "20 Gbps", "30 Gbps", "40 Gbps")),
        ("k=10Gbps..40Gbps:3", ("10 Gbps", "25 Gbps", "40 Gbps")),
        ("k=64..512", ("64", "128", "256", "512")),
        ("k=1..100:log3", ("1", "10", "100")),
        ("k=0..3:4", ("0", "1", "2", "3")),
        ("k=0.5..1.5:3", ("0.5", "1", "1.5")),
        ("k=25,50,100 Gbps", ("25 Gbps", "50 Gbps", "100 Gbps")),
        ("k=lru,linux", ("lru", "linux")),
        ("k=32", ("32",)),
    ],
)
def test_values(text: str, values: tuple[str, ...]) -> None:
    assert axis(text).values == values


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("k", "write KEY=VALUES"),
        ("k=", "write KEY=VALUES"),
        ("k=5..1:2", "goes up; write 1..5"),
        ("k=1 Gbps..2 GB/s:2", "mixes the units"),
        ("k=1 Gbps,2 GB/s", "mixes the units"),
        ("k=1..4:1", "2 or more values"),
        ("k=0..4", "start above 0"),
        ("k=1..x:3", "write a range as two numbers"),
        ("k=16..64..2", "write a range as two numbers"),
        ("k=1,,2", "between two commas"),
    ],
)
def test_what_cannot_be_read(text: str, said: str) -> None:
    with pytest.raises(SpecError, match=said):
        axis(text)


def test_a_grid_has_every_combination_once() -> None:
    points = grid([axis("a=1,2"), axis("b=x,y,z")])
    assert len(points) == len(set(points)) == 6
    assert points[0] == (("a", "1"), ("b", "x"))
    with pytest.raises(SpecError, match="appears twice"):
        grid([axis("a=1"), axis("a=2")])
    with pytest.raises(SpecError, match="name at least one field"):
        grid([])


@given(st.integers(1, 20), st.integers(0, 5))
def test_sobol_points_stay_inside_and_repeat(count: int, seed: int) -> None:
    axes = [axis("a=10..400 Gbps:2"), axis("b=1..8:2"), axis("c=x,y")]
    points = sobol(axes, count, seed)
    assert len(points) == count
    assert points == sobol(axes, count, seed)
    for (_, a), (_, b), (_, c) in points:
        assert 10 <= float(a.removesuffix(" Gbps")) <= 400
        assert int(b) in range(1, 9)
        assert c in ("x", "y")
