"""Which exchange does a profile over Gloo show? The constants of its sockets, and the buckets of DistributedDataParallel.

Buckets are those of the stack if they have the sizes in the profile. With ``bucket_cap_mb`` given, torch has no smaller first bucket
(torch/nn/parallel/distributed.py, ``bucket_bytes_cap_default``); otherwise the caps are those sizes.
Limits: an all-reduce of something else in each step hides the buckets; what concurrent compute costs a collective counts with its sockets.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from calibration.traces.import_trace import ImportedJob
from calibration.traces.kineto import CPU
from calibration.traces.profiled_job import ProfiledJob, with_stack
from calibration.traces.socket_cost import fitted_sockets, seen_collectives
from sim.cluster.build import with_nodes
from sim.parallel.mesh import GroupAxis, Mesh
from sim.parallel.program import Op
from sim.spec.hardware import Hardware
from sim.spec.library import load_hardware
from sim.spec.stack import Ddp
from sim.spec.transport import Transport
from sim.spec.workload import Workload
from sim.training.job import tuning_of
from sim.training.layouts.prices import LayoutPrices
from sim.training.step_plan import plan_step

_SAME: Final = 0.01
"""Largest relative difference between equal buckets: estimate (alignment)."""


def profiled_machine(job: ProfiledJob) -> tuple[Hardware, int | None]:
    """Return as many nodes as the profiled *job* needs, and the number of GPUs that it uses of each; None: all."""
    hardware = load_hardware(job.description.hardware, library=job.description.folders.hardware).spec
    most = next(group.node.gpu_count for group in hardware.groups if group.node.gpu_count)
    return with_nodes(hardware, math.ceil(job.ranks / most)), job.ranks if job.ranks < most else None


def seen_sockets(profile: ImportedJob, base: Workload, mesh: Mesh, machine: Hardware) -> dict[str, Any]:
    """Return the fields of the Gloo transport of *base* with which the collectives of *profile* on *machine* take as long as they did."""
    library, parallel = base.training.stack.library, base.training.parallel
    seen = seen_collectives(profile)
    if not seen or library.gloo_transport is None:
        return {}
    axis: GroupAxis = "tensor" if parallel.tensor > 1 else "shard" if parallel.shard == "parameters" else "pool"

    def price(sockets: Transport, op: Op, nbytes: float) -> float:
        return LayoutPrices(machine, mesh, tuning_of(library), sockets).least_time(0, axis, op, nbytes)

    sockets = fitted_sockets(library.gloo_transport, seen, price)
    return {"launch": f"{sockets.launch:.6g} s", "total_efficiency": round(sockets.total_efficiency, 6)}


def seen_data_parallel(job: ProfiledJob, base: Workload, has_sockets: bool) -> dict[str, Any]:
    """Return the fields of the stack of *base*, with the layers of *job*, that make its exchange the one in the profile.

    *has_sockets*: the user named a stack, which says what sockets cost.
    """
    if job.profile.traces[0].gpu != CPU or job.profile.traces[0].simulated:
        return {}
    machine, per_node = profiled_machine(job)
    mesh = Mesh(base.training.parallel, job.ranks, per_node or machine.first_workers.node.gpu_count)
    sockets = {} if has_sockets else seen_sockets(job.profile, base, mesh, machine)
    return dict(_bucket_caps(job, base)) | ({"gloo_transport": sockets | {"source": dict.fromkeys(sockets, job.source)}} if sockets else {})


def _bucket_caps(job: ProfiledJob, base: Workload) -> Mapping[str, str]:
    """Return the caps with which DDP forms the buckets of the profile; nothing if those of the stack of *base* do, or none."""
    seen, exchange = _seen_buckets(job.profile), base.training.stack.exchange
    if not seen or not isinstance(exchange, Ddp):
        return {}
    for caps in _candidates(seen, exchange):
        stack = with_stack(base, **caps)
        planned = plan_step(stack, job.machine.gpu, job.machine.launch_speed, job.ranks).buckets
        if len(planned) == len(seen) and all(math.isclose(one, other, rel_tol=_SAME) for one, other in zip(planned, seen, strict=True)):
            return {name: f"{value!r} B" for name, value in caps.items()}
    return {}


def _candidates(seen: Sequence[float], exchange: Ddp) -> Iterator[dict[str, float]]:
    yield {}
    yield {"first_bucket_cap": exchange.bucket_cap}
    yield {"first_bucket_cap": seen[0], "bucket_cap": min(seen[1:-1], default=max(exchange.bucket_cap, seen[-1]))}


def _seen_buckets(profile: ImportedJob) -> Sequence[float]:
    """Return the bytes of each all-reduce of a step of the first rank, in order; none if steps differ or sizes are unknown."""
    trace = profile.traces[0]
    by_step = []
    for number in sorted(trace.steps)[-profile.windows[0].steps :]:
        step = trace.steps[number]
        spans = sorted((span for span in trace.collectives if step.t0 <= span.t0 < step.t1), key=lambda span: span.t0)
        by_step.append([float(span.nbytes) for span in spans])
    first = by_step[0]
    return first if all(sizes == first for sizes in by_step) and all(size > 0 for size in first) else ()
