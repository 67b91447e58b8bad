"""How long does one call take on this device? Repetitions in seconds after a warm-up, as many as the specified time allows.

On a CPU each repetition is timed by the clock around `inner` calls; on CUDA, by events around `inner` calls in one stream (NVIDIA, CUDA
C++ Best Practices Guide, "Timing"). The host needs longer to launch a kernel of two microseconds than the kernel runs. So if calls are
short, the device first spins until the host has launched all of them; the time between the events is then the device's, not the host's.
Idle GPUs lower their clocks, so warm-up calls are made for up to `WARM_UP` seconds.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final

LEAST_REPETITION_TIME: Final = 1e-3
"""Least time (s) of one repetition; it contains several calls if they are shorter, because reading the clock costs up to a microsecond."""
LEAST_REPETITIONS, MOST_REPETITIONS = 3, 20
"""Least and largest number of repetitions."""
WARM_UP: Final = 0.05
"""Warm-up time (s) on CUDA: clocks rise from idle within tens of milliseconds (NVML reports them)."""
MOST_QUEUED_CALLS: Final = 512
"""Most calls launched ahead of the device; its queue holds about a thousand launches, beyond which a launch blocks."""
_SPIN: Final = 2.2e9
"""Clock rate (Hz) of the fastest GPUs; slower ones spin longer than requested, which only adds a short wait."""

Call = Callable[[], object]


def repetition_times(call: Call, device: str, seconds: float) -> list[float]:
    """Return the time (s) of one *call* for each repetition."""
    if device == "cuda":
        return _repeated_on_cuda(call, seconds)
    wall_time(call, 1)
    once = wall_time(call, 1)
    inner = max(1, round(LEAST_REPETITION_TIME / max(once, 1e-9)))
    return [wall_time(call, inner) / inner for _ in range(_count(once * inner, seconds))]


def _repeated_on_cuda(call: Call, seconds: float) -> list[float]:
    """Return the device time (s) of one *call* for each repetition; calls long enough for a repetition are not launched ahead."""
    once = _warmed(call)
    inner = min(MOST_QUEUED_CALLS, max(1, round(LEAST_REPETITION_TIME / max(once, 1e-9))))
    launching = inner * once if inner > 1 else 0.0
    return [_cuda_time(call, inner, 1.5 * launching) / inner for _ in range(_count(once * inner, seconds))]


def _count(one: float, seconds: float) -> int:
    """Return the number of repetitions that fit into *seconds* if each takes *one* seconds."""
    return min(MOST_REPETITIONS, max(LEAST_REPETITIONS, int(seconds / max(one, 1e-9))))


def wall_time(call: Call, inner: int) -> float:
    """Return the wall-clock time (s) of *inner* calls."""
    start = time.perf_counter()
    for _ in range(inner):
        call()
    return time.perf_counter() - start


def _warmed(call: Call) -> float:
    """Make calls until the GPU's clocks have risen, and return the wall-clock time (s) per call: the longer of host and device time."""
    call()  # initializes libraries, selects algorithms and allocates memory
    synchronize("cuda")
    count, start = 0, time.perf_counter()
    while count < 1 or (count < MOST_QUEUED_CALLS and time.perf_counter() - start < WARM_UP):
        call()
        count += 1
    synchronize("cuda")
    return (time.perf_counter() - start) / count


def _cuda_time(call: Call, inner: int, ahead: float) -> float:
    """Return the device time (s) of *inner* calls, launched while the device spins for *ahead* seconds."""
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
    """Wait until *device* has finished all its work; return at once for a CPU."""
    import torch

    if str(device).startswith("cuda"):
        torch.cuda.synchronize()
