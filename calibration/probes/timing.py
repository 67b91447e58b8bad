"""How long does one call take on this device? Repetitions in seconds, after a warm-up, as many as a given time allows.

On a CPU each repetition is one reading of the clock around `inner` calls; on CUDA, events around `inner` calls in one stream, so that
launches run ahead of the device (NVIDIA, CUDA C++ Best Practices Guide, "Timing").
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final

SHORTEST: Final = 1e-3
"""Seconds of one repetition; shorter calls are repeated inside it, as the clock and its reading take up to a microsecond."""
LEAST, MOST = 3, 20
"""Repetitions."""

Call = Callable[[], object]


def repeated(call: Call, device: str, seconds: float) -> list[float]:
    """Return the seconds of one *call*, once for each repetition."""
    clock = _cuda_time if device == "cuda" else wall_time
    clock(call, 1)
    once = clock(call, 1)
    inner = max(1, round(SHORTEST / max(once, 1e-9)))
    count = min(MOST, max(LEAST, int(seconds / max(once * inner, 1e-9))))
    return [clock(call, inner) / inner for _ in range(count)]


def wall_time(call: Call, inner: int) -> float:
    """Return the seconds by the wall clock that *inner* calls take."""
    start = time.perf_counter()
    for _ in range(inner):
        call()
    return time.perf_counter() - start


def _cuda_time(call: Call, inner: int) -> float:
    import torch

    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
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
