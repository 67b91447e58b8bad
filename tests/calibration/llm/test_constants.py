"""Oracle: what other sources ran, and the traits that make a run harder to predict."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from calibration.llm.constants import FittedConstants, fitted_constants
from tests.calibration.llm.test_case import one


def width(constants: FittedConstants, folder: Path, **cells: str) -> float:
    low, high = constants.interval(one(folder, **cells))
    assert low * high == pytest.approx(1.0)
    return math.log(high)


@pytest.mark.parametrize(
    "unlike",
    [{"gpu": "MI355X"}, {"gpus": "4096", "nodes": "512", "dp": "4096", "global_batch": "8192"}, {"model": "mixtral-8x7b"}],
    ids=("a generation that nobody ran", "more GPUs than any run", "experts"),
)
def test_intervals_are_wider_for_harder_runs(tmp_path: Path, unlike: dict[str, str]) -> None:
    constants = fitted_constants("someone/new")
    assert width(constants, tmp_path, **unlike) > 1.2 * width(constants, tmp_path)


def test_a_source_left_out_has_no_part_in_its_law() -> None:
    source = "vinjn/nanotron-ultrascale-playbook"
    with_it, without = fitted_constants(source, leave_out=False), fitted_constants(source)
    assert with_it.law != without.law
    assert "nanotron" in with_it.known_runs.families - without.known_runs.families


def test_without_a_law_intervals_are_half_to_twice_the_prediction(tmp_path: Path) -> None:
    plain = fitted_constants("someone/new").constants
    assert FittedConstants(plain, {}).interval(one(tmp_path)) == pytest.approx((0.5, 2.0))
