"""Which constants of a software stack make the optimizer take, and wait for the host, as long as it did?"""

from __future__ import annotations

from typing import Final

from calibration.traces.host_lead import scale_reaching
from calibration.traces.passes_seen import Seen
from calibration.traces.profiled_job import Machine
from sim.spec.hardware import Gpu
from sim.spec.measured import MeasuredTimes
from sim.spec.workload import Layer, Workload
from sim.training.step_plan import optimizer_work, plan_step

_LEAST_FACTOR: Final = 1e-6


def optimizer_factor(base: Workload, gpu: Gpu, seen: Seen, ranks: int) -> float:
    """Return the stack's ``optimizer_factor`` with which the optimizer takes as long as seen."""
    stack = base.training.stack
    plain_stack = stack.model_copy(update={"optimizer_factor": 1.0})
    bare = base.model_copy(update={"training": base.training.model_copy(update={"stack": plain_stack})})
    part = seen.total("optimizer")
    once, twice = (
        optimizer_work(bare.model_copy(update={"training": bare.training.model_copy(update={"stack": changed})}), gpu, ranks).time
        for changed in (plain_stack, plain_stack.model_copy(update={"optimizer_factor": 2.0}))
    )
    rate = twice - once
    plan_extra = _extra(base, gpu, ranks)
    return (
        max(_LEAST_FACTOR, (part.seconds - plan_extra - (once - rate)) / rate) if rate > 0 and part.seconds > 0 else stack.optimizer_factor
    )


def launching(draft: Workload, machine: Machine, seen: Seen, ranks: int) -> Workload:
    """Return *draft* with the ``launch_cpu`` for which the optimizer waits for the host as long as was seen; what layers cost it stays."""
    if draft.training.stack.uses_servers or draft.training.stack.cuda_graphs or not draft.training.stack.launch_cpu:
        return draft

    def waits(scale: float) -> float:
        return plan_step(_relaunched(draft, scale), machine.gpu, machine.cpu_speed, ranks).optimizer.launch

    return _relaunched(draft, scale_reaching(seen.total("optimizer").stall, waits, _LEAST_FACTOR))


def _relaunched(draft: Workload, scale: float) -> Workload:
    """Return *draft* with *scale* times its ``launch_cpu``, and as many launches less in its layers."""

    def changed(layer: Layer) -> Layer:
        times = layer.measured or MeasuredTimes()
        fewer = {"forward_launches": times.forward_launches / scale, "backward_launches": times.backward_launches / scale}
        return layer.model_copy(update={"measured": times.model_copy(update=fewer)})

    stack = draft.training.stack.model_copy(update={"launch_cpu": draft.training.stack.launch_cpu * scale})
    model = draft.model.model_copy(update={"layers": tuple(changed(layer) for layer in draft.model.layers)})
    return draft.model_copy(update={"model": model, "training": draft.training.model_copy(update={"stack": stack})})


def _extra(base: Workload, gpu: Gpu, ranks: int) -> float:
    """Return what the optimizer's part of a step holds beside the optimizer: the stack's overhead of going distributed, clipping."""
    plan = plan_step(base, gpu, 1.0, ranks)
    return plan.optimizer.compute - optimizer_work(base, gpu, ranks).time if not base.training.stack.uses_servers else 0.0
