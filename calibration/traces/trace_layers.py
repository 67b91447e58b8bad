"""Which layer table can be built from a trace only? One layer per gradient and class of kernels, in the ready order of gradients."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from calibration.traces.host_lead import launches_scale
from calibration.traces.pass_times import Gradient, PassSeconds, PassTimes
from calibration.traces.table_times import measured_times
from sim.spec.fields import Dtype, OperatorClass
from sim.spec.layer import Layer
from sim.training.step_plan import StepClocks

_DTYPES: Final[Mapping[str, Dtype]] = {"float": "fp32", "double": "fp64", "c10::Half": "fp16", "c10::BFloat16": "bf16"}


def build_layers(measured: PassTimes, timeline: StepClocks) -> tuple[Layer, ...]:
    """Return a table of the passes *measured*, in forward order: one layer for each class of kernels that leads to each gradient."""
    none = PassSeconds()
    ahead = measured.parts.get(("forward", -1), none)
    launched = _launches(ahead, timeline)
    behind = [measured.parts.get(("backward", place), none) for place in range(len(measured.gradients))]
    segments_launched = [_launches(part, timeline) for part in behind]
    rest = measured.parts.get(("backward", -1), none)
    rest_launched = _launches(rest, timeline)
    layers = []
    for place in reversed(range(len(measured.gradients))):
        layers += _segment(place, measured.gradients[place], behind[place], segments_launched[place])
    first = []
    for op in sorted({*ahead.by_class, *rest.by_class}):
        seconds = ahead.by_class.get(op, 0.0), rest.by_class.get(op, 0.0)
        times = measured_times(*seconds, launched * _share(ahead, op), rest_launched * _share(rest, op))
        first.append(Layer(name=f"forward {op}", op=op, measured=times))
    return tuple([*first, *layers])


def _segment(place: int, gradient: Gradient, part: PassSeconds, launches: float) -> list[Layer]:
    """Return the layers of backward that lead to one gradient; the first of them runs last in backward and so holds the gradient."""
    classes: list[OperatorClass] = sorted(part.by_class) or ["elementwise"]
    kind = _DTYPES.get(gradient.dtype, "fp32")
    layers = []
    for number, op in enumerate(classes):
        own_launches = launches * (_share(part, op) if part.by_class else 1.0)
        times = measured_times(0.0, part.by_class.get(op, 0.0), 0.0, own_launches, 0.0 if number else part.upkeep)
        own: dict[str, Any] = {} if number else {"gradients": (gradient.elements,), "dtypes": () if kind == "fp32" else (kind,)}
        layers.append(Layer(name=f"gradient {place} {op}", op=op, measured=times, **own))
    return layers


def _share(part: PassSeconds, op: OperatorClass) -> float:
    total = sum(part.by_class.values())
    return part.by_class.get(op, 0.0) / total if total else 0.0


def _launches(part: PassSeconds, timeline: StepClocks) -> float:
    """Return the number of launches of *part* with which the GPU waits for the host as measured, and advance *timeline*."""
    if timeline.launch_cpu <= 0:
        return 0.0
    count = max(part.host, part.host_wait) / timeline.launch_cpu
    count *= launches_scale([(part.seconds, count)], part.host_wait, timeline)
    timeline.run(part.seconds, count)
    return count
