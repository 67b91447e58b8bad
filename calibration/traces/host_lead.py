"""How many launches make the GPU wait for the host as long as measured? Found by bisection, because waits never fall with more launches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from sim.training.step_plan import StepClocks

_HALVINGS: Final = 60
_MOST_SCALE: Final = 1e6


def find_scale(wanted: float, waits: Callable[[float], float], least: float = 0.0) -> float:
    """Return the scale, at least *least*, at which the non-decreasing function *waits* reaches *wanted*; 1 if it does so there."""
    if abs(waits(1.0) - wanted) <= 1e-9 + 1e-6 * wanted:
        return 1.0
    low, high = least, 1.0
    while waits(high) < wanted and high < _MOST_SCALE:
        high *= 2.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if waits(middle) <= wanted else (low, middle)
    return low


def launches_scale(kernels: Sequence[tuple[float, float]], stall: float, timeline: StepClocks) -> float:
    """Return the factor on the launches of *kernels* (seconds, launches) with which the GPU waits for the host for *stall* seconds.

    *timeline* is the state of host and GPU before; it is not changed.
    """

    def waits(scale: float) -> float:
        clock = StepClocks(timeline.launch_cpu)
        clock.host, clock.gpu = timeline.host, timeline.gpu
        return sum(clock.run(seconds, launches * scale) for seconds, launches in kernels)

    if timeline.launch_cpu <= 0 or not any(launches for _, launches in kernels):
        return 1.0
    return find_scale(stall, waits)
