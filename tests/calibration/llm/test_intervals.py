"""Oracle: sources that are drawn from known laws; a new source must be covered as often as stated."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from numpy.typing import NDArray

from calibration.llm.intervals import UNKNOWN, covering_factor, fit_law, pooled

Noise = Callable[[np.random.Generator, int], NDArray[np.float64]]
NOISES: dict[str, Noise] = {
    "laplace": lambda random, count: random.laplace(size=count),
    "normal": lambda random, count: random.normal(0.0, 1.25, count),
    "heavy": lambda random, count: random.standard_t(3, count),
}


def drawn(random: np.random.Generator, sources: int, spread: float, shared: float, noise: Noise) -> list[tuple[str, float, float]]:
    """Return (source, error, trait) of rows of *sources*, whose scales differ by *spread* and whose rows share part of their error.

    The trait doubles the scale.
    """
    rows = []
    for number in range(sources):
        count = int(random.integers(10, 100))
        trait = (random.random(count) < random.random()).astype(float)
        own = math.exp(spread * random.normal())
        errors = math.sqrt(1 - shared) * noise(random, count) + math.sqrt(shared) * random.normal(0.0, 1.25)
        rows += [(f"s{number}", error, of) for error, of in zip((0.08 * own * 2.0**trait * errors).tolist(), trait.tolist(), strict=True)]
    return rows


def covered(rows: Sequence[tuple[str, float, float]], new: str) -> float:
    """Return the share of the rows of the source *new* inside intervals from the others."""
    others = [row for row in rows if row[0] != new]
    law = fit_law([row[1] for row in others], lambda absent: [(row[2],) for row in others], [row[0] for row in others])
    return float(np.mean([abs(error) <= law.half_width((trait,)) for source, error, trait in rows if source == new]))


@pytest.mark.parametrize(("spread", "shared", "noise"), [(0.0, 0.0, "laplace"), (0.5, 0.0, "heavy"), (0.5, 0.3, "normal")])
def test_a_new_source_is_covered_as_stated(spread: float, shared: float, noise: str) -> None:
    shares = [covered(drawn(np.random.default_rng([7, seed]), 9, spread, shared, NOISES[noise]), "s8") for seed in range(50)]
    error = np.std(shares) / math.sqrt(len(shares))
    assert 0.95 - 0.01 - 2 * error <= np.mean(shares) <= 0.98 + 2 * error


def test_a_trait_that_widens_errors_is_found_and_one_that_does_not_is_left() -> None:
    random = np.random.default_rng(3)
    rows = drawn(random, 12, 0.3, 0.0, NOISES["laplace"])
    idle = (random.random(len(rows)) < 0.5).astype(float)
    traits = [(row[2], other) for row, other in zip(rows, idle.tolist(), strict=True)]
    law = fit_law([row[1] for row in rows], lambda absent: traits, [row[0] for row in rows])
    assert law.effects[0] == pytest.approx(math.log(2.0), abs=0.25)
    assert abs(law.effects[1]) < 0.2


def test_sources_that_differ_need_a_larger_factor() -> None:
    random = np.random.default_rng(1)
    alike = [np.abs(random.laplace(size=500)) for _ in range(8)]
    assert covering_factor(alike) == pytest.approx(math.log(20.0), rel=0.1)  # 95% of a Laplace distribution
    unlike = [own * scale for own, scale in zip(alike, (0.4, 0.5, 0.7, 1.0, 1.0, 1.4, 2.0, 2.5), strict=True)]
    assert covering_factor(unlike) > 1.4 * covering_factor(alike)


def test_each_source_has_one_vote_and_small_ones_are_pooled() -> None:
    names = ["a"] * 10 + ["b"] * 9 + ["c"] * 3
    assert pooled(names) == ["a"] * 10 + [""] * 12
    few, many = ([np.abs(np.random.default_rng(1).laplace(size=count)) for count in counts] for counts in ((50, 50, 50), (50, 50, 50)))
    many[2] = np.tile(many[2], 20)
    assert covering_factor(few) == pytest.approx(covering_factor(many), rel=1e-3)


def test_two_sources_tell_nothing() -> None:
    assert fit_law([0.1] * 20, lambda absent: [(0.0,)] * 20, ["a"] * 10 + ["b"] * 10) == UNKNOWN


def test_what_is_novel_depends_on_the_sources_left_out() -> None:
    """A source alone with its software is novel in the fit of the others' law, so the effect of novelty comes from such sources."""
    names = [f"s{number}" for number in range(6) for _ in range(40)]
    random = np.random.default_rng(5)
    errors = [float(random.laplace()) * (0.2 if name == "s0" else 0.1) for name in names]
    left_out = []

    def traits_without(absent: frozenset[str]) -> list[tuple[float]]:
        left_out.append(absent)
        return [(float(name == "s0" and name in absent),) for name in names]

    law = fit_law(errors, traits_without, names)
    assert sorted(left_out, key=sorted) == [frozenset({f"s{number}"}) for number in range(6)]
    assert law.effects[0] > 0.3
