"""How long does a step of one point take? Build its network, train on its hosts, and time each rank.

A point on one host uses the cores of one host and no network. The results of a point are raw: every step of every rank, processor time, and
the rates of a plain socket on the same network just before.
"""

from __future__ import annotations

import json
import math
import os
import platform
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

from calibration.lab.disk import Disk
from calibration.lab.network import INTERFACE, LabHosts, divide_cores, lab_network, pinning_prefix, remove_orphans
from calibration.lab.plan import LabModel, LabPlan, LabPoint
from calibration.lab.probe import SocketRates, probe_rates
from calibration.measure.ddp_steps import RankSteps, StepRequest, spawn
from calibration.measure.division import Division
from calibration.measure.layout_steps import LayoutRequest
from sim.spec.yaml import SpecError

_PORT: Final = "29500"
_MEMORY: Final = {"MALLOC_MMAP_THRESHOLD_": str(2**25), "MALLOC_TRIM_THRESHOLD_": str(2**30)}
"""glibc adapts these while a program runs (mallopt(3)), so that large tensors would cause page faults in one run and none in the next."""


@dataclass(frozen=True)
class MeasuredPoint:
    """The results of one point."""

    ranks: tuple[RankSteps, ...]
    socket_rates: SocketRates | None
    """Rates of the network; None on one host."""
    delayed_by: str
    cores: tuple[tuple[int, ...], ...]
    """Cores of each host."""

    @property
    def step_time(self) -> float:
        """Return the median step of the slowest rank, seconds."""
        return max(rank.median for rank in self.ranks)


def used_cores(plan: LabPlan, hosts: int) -> tuple[int, ...]:
    """Return the cores that *hosts* use: as many for each as the plan specifies, as far as available."""
    return tuple(sorted(os.sched_getaffinity(0))[: hosts * plan.cores_per_host])


def overcommit_warning(plan: LabPlan, hosts: int) -> str:
    """Return a warning if *hosts* need more cores than there are, else an empty string."""
    cores = len(os.sched_getaffinity(0))
    if hosts * plan.cores_per_host <= cores:
        return ""
    return (
        f"{hosts} hosts of {plan.cores_per_host} core{'s' * (plan.cores_per_host > 1)} need more than the {cores} cores available: hosts "
        "share cores and compute more slowly, which their records state"
    )


def measure(plan: LabPlan, point: LabPoint) -> MeasuredPoint:
    """Return the results of *point*. Raise SpecError if it cannot be measured. Its network is removed in any case."""
    model = plan.models[point.model]
    threads = max(1, min(plan.cores_per_host, len(used_cores(plan, point.hosts)) // point.hosts))
    request = StepRequest(
        model.model,
        model.inputs,
        point.batch,
        plan.steps,
        plan.warmup,
        arguments=model.arguments,
        threads=threads,
        seconds=plan.seconds,
        device="cpu",  # hosts are shares of processors
    )
    if point.layout is not None:
        return _measure_layout(plan, point, point.layout, request)
    program = (
        ("calibration.measure.ddp_steps",) if point.disk is None else ("calibration.lab.disk", json.dumps(asdict(_disk(model, point))))
    )
    with _network(plan, point) as (hosts, cores):
        if hosts is None:
            ranks = spawn(request, 1, lambda rank: pinning_prefix(cores[0]), _MEMORY, program=program)
            return MeasuredPoint(tuple(ranks), None, "", cores)
        rates = probe_rates(hosts, point.rate or math.inf)
        meeting = {"MASTER_ADDR": hosts.addresses[0], "MASTER_PORT": _PORT, "GLOO_SOCKET_IFNAME": INTERFACE} | _MEMORY
        ranks = spawn(request, point.hosts, hosts.command_prefix, meeting, program=program)
        return MeasuredPoint(tuple(ranks), rates, hosts.delayed_by, cores)


def _measure_layout(plan: LabPlan, point: LabPoint, layout: Division, request: StepRequest) -> MeasuredPoint:
    """Return the results of *point*, whose ranks divide the model: all ranks over its network, or each distinct one in isolation."""
    program = "calibration.measure.layout_steps"
    if point.isolated:
        remove_orphans()
        cores = divide_cores(1, used_cores(plan, point.hosts)[:1])
        ranks: list[RankSteps] = []
        for number in range(layout.pipeline):
            text = LayoutRequest(layout, point.hosts, number).text()
            (steps,) = spawn(request, 1, lambda rank: pinning_prefix(cores[0]), _MEMORY, program=(program, text))
            ranks.append(replace(steps, rank=number))
        return MeasuredPoint(tuple(ranks), None, "", cores)
    with lab_network(point.hosts, point.rate or math.inf, point.delay, used_cores(plan, point.hosts)) as hosts:
        rates = probe_rates(hosts, point.rate or math.inf)
        meeting = {"MASTER_ADDR": hosts.addresses[0], "MASTER_PORT": _PORT, "GLOO_SOCKET_IFNAME": INTERFACE} | _MEMORY
        network_ranks = spawn(
            request, point.hosts, hosts.command_prefix, meeting, program=(program, LayoutRequest(layout, point.hosts).text(), INTERFACE)
        )
        return MeasuredPoint(tuple(network_ranks), rates, hosts.delayed_by, hosts.cores)


@contextmanager
def _network(plan: LabPlan, point: LabPoint) -> Iterator[tuple[LabHosts | None, tuple[tuple[int, ...], ...]]]:
    """Yield the hosts of *point* (None if there is only one) and their cores."""
    own = used_cores(plan, point.hosts)
    if point.hosts == 1 or point.rate is None:
        remove_orphans()
        yield None, divide_cores(1, own)
        return
    with lab_network(point.hosts, point.rate, point.delay, own) as hosts:
        yield hosts, hosts.cores


def _disk(model: LabModel, point: LabPoint) -> Disk:
    from sim.extract import target

    shape = target.parse_input(model.inputs[0])
    sizes = (*shape.before, *shape.after)
    if len(model.inputs) > 1 or shape.name or shape.dtype != "float32":
        raise SpecError(
            f"lab: {model.model} has the inputs {' '.join(model.inputs)}; only one unnamed float32 input can be read from a disk"
        )
    return Disk(point.disk or math.inf, round(model.sample or math.prod(sizes)), sizes, point.batch, point.workers)


def require_torch() -> None:
    """Raise SpecError if torch is not installed."""
    try:
        import torch  # noqa: F401
    except ImportError:
        raise SpecError("lab: torch is not installed: pip install torch") from None


def environment_facts() -> dict[str, Any]:
    """Return facts about this machine and its software, without names that identify it."""
    import torch

    return {
        "kernel": platform.release().split("-")[0],
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)),
        "python": platform.python_version(),
        "torch": torch.__version__.partition("+")[0],
    }


def _processor() -> str:
    try:
        lines: Sequence[str] = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.machine()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())
