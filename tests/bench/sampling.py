"""Where does the time of a call go? Sampled by a timer of CPU time: each sample counts for the innermost frame whose file is known."""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Callable, Mapping
from types import FrameType

EVERY = 0.001
"""Seconds of CPU time between samples."""

LAYERS = {
    "/simpy/": "SimPy",
    "/pandas/": "pandas",
    "/sim/cluster/network.py": "network and fair sharing",
    "/sim/cluster/fairshare.py": "network and fair sharing",
    "/sim/cluster/": "slots, routes, folding",
    "/sim/training/collectives/": "collectives: rings, prices, executors",
    "/sim/training/": "training loop, loaders, exchange",
    "/sim/events.py": "event log",
    "/sim/epoch.py": "periods and epochs",
    "/sim/analysis/": "analysis",
    "/sim/spec/": "specs",
    "/sim/check/": "checks",
    "/pydantic/": "specs",
    "/yaml/": "specs",
    "/sim/": "the rest of sim",
}
"""Whose time a file is, first match first."""


def layer_of(frame: FrameType | None) -> str:
    """Return the layer of the innermost frame that belongs to one."""
    while frame is not None:
        name = frame.f_code.co_filename
        for part, layer in LAYERS.items():
            if part in name:
                return layer
        frame = frame.f_back
    return "elsewhere"


def shares(call: Callable[[], object]) -> Mapping[str, float]:
    """Return the share of the CPU time of *call* that each layer took, largest first."""
    samples: Counter[str] = Counter()
    before = signal.signal(signal.SIGPROF, lambda _, frame: samples.update([layer_of(frame)]))
    signal.setitimer(signal.ITIMER_PROF, EVERY, EVERY)
    try:
        call()
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0.0)
        signal.signal(signal.SIGPROF, before)
    return {layer: count / samples.total() for layer, count in samples.most_common()}
