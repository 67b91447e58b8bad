"""Oracle: intervals of sources that are drawn, some unlike the others."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from calibration.llm.constants import QUANTILES, FittedConstants, fitted_constants, widening
from calibration.llm.score import quantile
from sim.report.layouts.layout_error import WIDER
from tests.calibration.llm.test_case import one

Errors = dict[str, dict[str, list[float]]]


def drawn(deviations: list[float], rows: int = 400, seed: int = 0) -> tuple[Errors, dict[str, dict[str, int]]]:
    """Return the errors of sources whose rows spread by *deviations*, as the file of constants holds them."""
    errors: Errors = {}
    for number, deviation in enumerate(deviations):
        values = np.random.default_rng([seed, number]).normal(0, deviation, rows).tolist()
        errors[f"s{number}"] = {"data": [quantile(values, step / (QUANTILES - 1)) for step in range(QUANTILES)]}
    return errors, {name: {"data": rows} for name in errors}


def test_sources_that_are_alike_need_no_widening() -> None:
    assert widening(*drawn([0.1] * 8)) == 1.0


@pytest.mark.parametrize("times", [3.0, 6.0])
def test_one_source_that_spreads_more_widens_for_all(times: float) -> None:
    """Nine in ten of its rows lie within 1.28 to 1.64 of its deviations, in steps of ten; nearly all others' within 2 to 3.3 of theirs."""
    factor = widening(*drawn([0.1] * 7 + [0.1 * times]))
    assert 1.28 * times / 3.3 < factor < 1.64 * times / 2


def test_three_sources_tell_nothing() -> None:
    assert widening(*drawn([0.1, 0.1, 2.0])) == 1.0
    assert widening({}, {}) == 1.0


def test_a_new_source_is_covered_nine_times_in_ten() -> None:
    """Sources whose deviations are drawn: intervals made of ten hold nine in ten rows of the eleventh in nine of ten draws."""
    covered = []
    for seed in range(60):
        deviations = np.random.default_rng(seed).lognormal(np.log(0.1), 0.5, 11).tolist()
        errors, rows = drawn(deviations, seed=seed)
        new = errors.pop("s10")["data"]
        rows.pop("s10")
        votes = sorted(value for kinds in errors.values() for value in kinds["data"])
        wider = widening(errors, rows)
        low, high = (wider * quantile(votes, share) for share in (0.02, 0.98))
        covered.append(low <= (new[0] + new[1]) / 2 and (new[-2] + new[-1]) / 2 <= high)
    assert np.mean(covered) >= 0.85


def test_one_run_far_off_in_two_of_eight_sources_does_not_widen(tmp_path: Path) -> None:
    """A source's largest error is half of a step between its quantiles: two of them in eight sources are 1.25% of all rows, below 2%."""
    errors, rows = drawn([0.1] * 8)
    plain = FittedConstants({}, {}, errors).interval(one(tmp_path))
    for source in ("s0", "s1"):
        errors[source]["data"][-1] = 2.0
    low, high = FittedConstants({}, {}, errors).interval(one(tmp_path))
    assert low == plain[0]
    assert high == pytest.approx(plain[1], rel=0.2)
    assert widening(errors, rows) == 1.0


@pytest.mark.parametrize(
    ("unlike", "wider"),
    [({}, False), ({"gpu": "MI355X"}, True), ({"gpus": "4096", "nodes": "512", "dp": "4096", "global_batch": "8192"}, True)],
    ids=("like others", "a generation that nobody ran", "more GPUs than any run"),
)
def test_intervals_widen_beyond_what_others_ran(tmp_path: Path, unlike: dict[str, str], wider: bool) -> None:
    constants = fitted_constants("someone/new")
    (low, high), (plain_low, plain_high) = constants.interval(one(tmp_path, **unlike)), constants.interval(one(tmp_path))
    assert (math.log(high) / math.log(plain_high)) == pytest.approx(WIDER if wider else 1.0)
    assert (math.log(low) / math.log(plain_low)) == pytest.approx(WIDER if wider else 1.0)
