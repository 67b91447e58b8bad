"""How long does one call take on this device? Repetitions in seconds, after a warm-up, as many as a given time allows.

On a CPU each repetition is one reading of the clock around `inner` calls; on CUDA, events around `inner` calls in one stream (NVIDIA, CUDA
C++ Best Practices Guide, "Timing"). A kernel of two microseconds takes the host more than that to launch, so where calls are short the
device first spins until the host is done launching: what lies between the events is then the device's time, not the host's. Idle GPUs
clock down; calls go on until `WARM` before the first is timed.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final

SHORTEST: Final = 1e-3
"""Seconds of one repetition; shorter calls are repeated inside it, as the clock and its reading take up to a microsecond."""
LEAST, MOST = 3, 20
"""Repetitions."""
WARM: Final = 0.05
"""Seconds of calls before the first repetition on CUDA: clocks rise from idle within tens of milliseconds (NVML reports them)."""
QUEUE: Final = 512
"""Calls that are launched ahead of the device: its queue holds about a thousand, beyond which a launch waits."""
_SPIN: Final = 2.2e9
"""Cycles a second of the fastest GPUs' clocks: a slower one spins longer than asked, which only waits a little more."""

Call = Callable[[], object]


def repeated(call: Call, device: str, seconds: float) -> list[float]:
    """Return the seconds of one *call*, once for each repetition."""
    if device == "cuda":
        return _repeated_on_cuda(call, seconds)
    wall_time(call, 1)
    once = wall_time(call, 1)
    inner = max(1, round(SHORTEST / max(once, 1e-9)))
    return [wall_time(call, inner) / inner for _ in range(_count(once * inner, seconds))]


def _repeated_on_cuda(call: Call, seconds: float) -> list[float]:
    """Return the device's seconds of one *call*; a call that waits for the device itself has nothing to be launched ahead."""
    once = _warmed(call)
    inner = min(QUEUE, max(1, round(SHORTEST / max(once, 1e-9))))
    launching = inner * once if inner > 1 else 0.0
    return [_cuda_time(call, inner, 1.5 * launching) / inner for _ in range(_count(once * inner, seconds))]


def _count(one: float, seconds: float) -> int:
    """Return how many repetitions of *one* seconds each fit."""
    return min(MOST, max(LEAST, int(seconds / max(one, 1e-9))))


def wall_time(call: Call, inner: int) -> float:
    """Return the seconds by the wall clock that *inner* calls take."""
    start = time.perf_counter()
    for _ in range(inner):
        call()
    return time.perf_counter() - start


def _warmed(call: Call) -> float:
    """Make calls until the GPU's clocks have risen, and return the wall-clock seconds of one: the host's or the device's, the longer."""
    call()  # libraries begin, algorithms are chosen, memory is taken
    synchronize("cuda")
    made, start = 0, time.perf_counter()
    while made < 1 or (made < QUEUE and time.perf_counter() - start < WARM):
        call()
        made += 1
    synchronize("cuda")
    return (time.perf_counter() - start) / made


def _cuda_time(call: Call, inner: int, ahead: float) -> float:
    """Return the device's seconds of *inner* calls, launched while it spins for *ahead* seconds."""
    import torch

    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    if ahead > 0:
        torch.cuda._sleep(round(ahead * _SPIN))
    begin.record()
    for _ in range(inner):
        call()
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end)) * 1e-3


def synchronize(device: Any) -> None:
    """Wait until *device* has done all it was given; nothing to wait for on a CPU."""
    import torch

    if str(device).startswith("cuda"):
        torch.cuda.synchronize()
