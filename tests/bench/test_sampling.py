"""Whose time is it? Oracle: frames whose files are known."""

from __future__ import annotations

import sys
import time
from types import SimpleNamespace
from typing import Any

from tests.bench.sampling import layer_of, shares


def frame(*files: str) -> Any:
    """A stack of frames, innermost first."""
    innermost = None
    for name in reversed(files):
        innermost = SimpleNamespace(f_code=SimpleNamespace(co_filename=name), f_back=innermost)
    return innermost


def test_a_frame_counts_for_the_innermost_layer() -> None:
    assert layer_of(frame("/lib/python3.11/heapq.py", "/lib/simpy/core.py", "/x/sim/epoch.py")) == "SimPy"
    assert layer_of(frame("/x/sim/cluster/fairshare.py", "/lib/simpy/core.py")) == "network and fair sharing"
    assert layer_of(frame("/x/sim/cluster/build.py")) == "slots, routes, folding"
    assert layer_of(frame("/x/tests/test_a.py")) == layer_of(None) == "elsewhere"


def test_shares_add_up_and_the_timer_is_stopped() -> None:
    def work() -> None:
        end = time.process_time() + 0.05
        while time.process_time() < end:
            layer_of(sys._getframe())

    shares_by_layer = shares(work)
    assert abs(sum(shares_by_layer.values()) - 1) < 1e-9
    assert shares_by_layer["elsewhere"] > 0.5
