"""Up to where are runs of a source used? Oracles: the limits as they are written, and one run on each side of each."""

from __future__ import annotations

import pytest

from calibration.llm.chips import chip_named
from calibration.llm.limits import RunLimits, limits_of
from sim.spec.yaml import SpecError


def test_each_limit_excludes_what_is_beyond_it() -> None:
    limits = RunLimits(tensor=8, memory=70.0, pipeline_nodes=1)
    assert limits.include(8, 69.9, 1)
    assert not any((limits.include(16, 0.0, 1), limits.include(8, 70.0, 1), limits.include(8, 0.0, 2)))
    assert RunLimits().include(10**6, 1e30, 10**6)


def test_the_lower_of_two_limits_of_memory_holds() -> None:
    named = chip_named("H100")
    assert named is not None
    chip = named.chip
    assert limits_of({"memory_GiB": 70, "memory_share": 0.5}, chip).memory == 0.5 * chip.memory
    assert limits_of({"memory_GiB": 10, "memory_share": 0.5}, chip).memory == 10 * 2.0**30


def test_limits_that_are_not_set_are_not_named() -> None:
    assert RunLimits(tensor=8, memory=70 * 2.0**30).text == "8 tensor ranks or 70 GiB"
    assert RunLimits(pipeline_nodes=1).text == "pipelines of 1 node"


def test_a_misspelled_limit_is_refused() -> None:
    named = chip_named("H100")
    assert named is not None
    with pytest.raises(SpecError, match="unknown limit 'memory_gib'"):
        limits_of({"memory_gib": 70}, named.chip)
