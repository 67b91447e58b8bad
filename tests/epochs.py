"""Are two epochs the same? For tests of what is left out of a simulation."""

from __future__ import annotations

import pytest

from sim.epoch import Epoch


def assert_same_times(short: Epoch, full: Epoch, rel: float = 1e-9) -> None:
    """Fail unless times and stalls of *short* are those of *full*."""
    assert short.time == pytest.approx(full.time, rel=rel)
    assert short.step_time == pytest.approx(full.step_time, rel=rel)
    assert dict(short.stalls) == pytest.approx(dict(full.stalls), abs=rel * full.step_time)
