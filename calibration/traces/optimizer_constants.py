"""Which constants of a software stack reproduce the measured time of the optimizer and its wait for the host?"""

from __future__ import annotations

from typing import Final

from calibration.traces.host_lead import find_scale
from calibration.traces.pass_times import PassTimes
from calibration.traces.profiled_job import JobMachine, with_stack
from sim.spec.hardware import Gpu
from sim.spec.layer import Layer
from sim.spec.measured import MeasuredTimes
from sim.spec.stack import ServerExchange
from sim.spec.workload import Workload
from sim.training.step_plan import optimizer_work, plan_step

_LEAST_FACTOR: Final = 1e-6


def optimizer_factor(base: Workload, gpu: Gpu, measured: PassTimes, ranks: int) -> float:
    """Return the stack's ``optimizer_factor`` that reproduces the measured time of the optimizer."""
    once, twice = (optimizer_work(with_stack(base, optimizer_factor=factor), gpu, ranks).time for factor in (1.0, 2.0))
    rate, seconds = twice - once, measured.total("optimizer").seconds
    if rate <= 0 or seconds <= 0:
        return base.training.stack.update.optimizer_factor
    return max(_LEAST_FACTOR, (seconds - _other_time(base, gpu, ranks) - (once - rate)) / rate)


def with_launch_cost(draft: Workload, machine: JobMachine, measured: PassTimes, ranks: int) -> Workload:
    """Return *draft* with the ``launch_cpu`` that reproduces the optimizer's wait for the host; the host's cost of layers is unchanged."""
    if (
        isinstance(draft.training.stack.exchange, ServerExchange)
        or draft.training.stack.kernels.cuda_graphs
        or not draft.training.stack.kernels.launch_cpu
    ):
        return draft

    def waits(scale: float) -> float:
        plan = plan_step(_with_launch_scale(draft, scale), machine.gpu, machine.launch_speed, ranks)
        before, after = measured.total("forward").rank_wait, measured.total("copies").rank_wait + measured.total("optimizer").rank_wait
        return plan.waits(before, after)[-1]

    return _with_launch_scale(draft, find_scale(measured.total("optimizer").host_wait, waits, _LEAST_FACTOR))


def _with_launch_scale(draft: Workload, scale: float) -> Workload:
    """Return *draft* with *scale* times its ``launch_cpu`` and 1/*scale* times the launches of its layers."""

    def changed(layer: Layer) -> Layer:
        times = layer.measured or MeasuredTimes()
        fewer = {"forward_launches": times.forward_launches / scale, "backward_launches": times.backward_launches / scale}
        return layer.model_copy(update={"measured": times.model_copy(update=fewer)})

    model = draft.model.model_copy(update={"layers": tuple(changed(layer) for layer in draft.model.layers)})
    return with_stack(draft.model_copy(update={"model": model}), launch_cpu=draft.training.stack.kernels.launch_cpu * scale)


def _other_time(base: Workload, gpu: Gpu, ranks: int) -> float:
    """Return the other time in the optimizer's part of a step: clipping, and the stack's overhead of distributed training."""
    plan = plan_step(base, gpu, 1.0, ranks)
    return (
        plan.optimizer.compute - optimizer_work(base, gpu, ranks).time
        if not isinstance(base.training.stack.exchange, ServerExchange)
        else 0.0
    )
