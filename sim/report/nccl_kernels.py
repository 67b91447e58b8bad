"""Which kernel does a profiler show for a collective? NCCL's name for it, by operation, element type and algorithm.

NCCL compiles few kernels: for each operation and type one for rings and one for trees, both with the protocol LL in their name. Every
other algorithm and protocol is called from inside one of them (NVIDIA/nccl src/device/generate.py ``best_kernel``; until 2.18
src/collectives/device/common.h, which also compiled one for CollNet). So a trace shows ``RING_LL`` for a large message over Simple as
well; the event's arguments contain the actual choice. Gathers and broadcasts move bytes, whatever the element type.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, NamedTuple

from sim.parallel.lower.exchange_plan import gradient_tensors, plan_exchange, sent_width
from sim.parallel.program import Op
from sim.simulate import Run
from sim.spec.algorithms import minor_release
from sim.spec.workload import Workload
from sim.training.collectives.play.gloo import GlooPlan
from sim.training.server_plan import ServerPlan

_OPS: Mapping[Op, str] = {
    "all_reduce": "AllReduce", "all_gather": "AllGather", "broadcast": "Broadcast", "reduce_scatter": "ReduceScatter",
    "reduce": "Reduce", "all_to_all": "SendRecv", "send_recv": "SendRecv", "gather": "SendRecv", "scatter": "SendRecv",
}  # fmt: skip
_OLD_TYPES = {"f32": "float", "f16": "half", "bf16": "__nv_bfloat16"}
"""Names of types in NCCL before 2.19: those of CUDA."""


class Kernel(NamedTuple):
    """A kernel as a profiler shows it: its name, and the event arguments that other kernels do not have."""

    name: str
    arguments: dict[str, Any]


def collective_kernel(run: Run, number: int, operation: str, nbytes: float) -> Kernel:
    """Return the kernel that is shown for *operation* (its name in the log) of job *number* on *nbytes*."""
    plan, workload = run.rings[number], run.jobs[number].job.workload
    if plan is None or isinstance(plan, ServerPlan):
        return Kernel(f"parameter server: {operation}", {})
    op = operation_of(operation, nbytes, workload, plan.ranks)
    chosen = plan.choice(nbytes, op)
    arguments = {"algorithm": chosen.algorithm, "protocol": chosen.protocol, "channels": chosen.channels}
    if isinstance(plan, GlooPlan):
        return Kernel(f"gloo:{op}", arguments)
    return Kernel(nccl_kernel(op, element(workload), chosen.algorithm, workload.training.stack.library.nccl), arguments)


def nccl_kernel(op: Op, kind: str, algorithm: str, version: str) -> str:
    """Return NCCL's kernel for *op* on elements of *kind* (f32, f16, bf16) by *algorithm* in *version*."""
    reduces, sends = op in ("all_reduce", "reduce_scatter", "reduce"), _OPS[op] == "SendRecv"
    tree = reduces and algorithm == "Tree"
    path = "TREE_LL" if tree else "RING_LL"
    if (minor_release(version) or 0) < 19:
        path = "COLLNET_LL" if reduces and algorithm.startswith("CollNet") else "RING_SIMPLE" if sends else path
        return f"ncclKernel_{_OPS[op]}_{path}_Sum_{_OLD_TYPES[kind] if reduces else 'int8_t'}(ncclWorkElem)"
    if sends:
        return "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"
    return f"ncclDevKernel_{_OPS[op]}{f'_Sum_{kind}' if reduces else ''}_{path}(ncclDevKernelArgsStorage<4096ul>)"


def element(workload: Workload) -> str:
    """Return the type of a gradient on the wire: f32, f16 or bf16."""
    if sent_width(workload) > 2:
        return "f32"
    wire, precision = workload.training.stack.exchange.wire_dtype, workload.training.precision
    return "bf16" if wire == "bf16" or (wire != "fp16" and precision in ("bf16", "amp_bf16", "fp8", "nvfp4")) else "f16"


def operation_of(name: str, nbytes: float, workload: Workload, ranks: int) -> Op:
    """Return the operation of the collective *name* of the log on *nbytes*: compressed and sparse gradients are gathered."""
    if name.startswith("broadcast"):
        return "broadcast"
    if name.startswith("batch norm forward") or (name.startswith("bucket") and round(nbytes) in _gathered(_ByIdentity(workload), ranks)):
        return "all_gather"
    return "all_reduce"


class _ByIdentity:
    """A workload as a cache key, compared by identity."""

    def __init__(self, workload: Workload) -> None:
        self.workload = workload

    def __hash__(self) -> int:
        return id(self.workload)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _ByIdentity) and other.workload is self.workload


@lru_cache(maxsize=16)
def _gathered(of: _ByIdentity, ranks: int) -> frozenset[int]:
    """Return the sizes in bytes of the all-gathers that carry gradients."""
    stack = of.workload.training.stack
    if stack.exchange.compression is None and not stack.exchange.sparse_embeddings:
        return frozenset()
    plan = plan_exchange(of.workload, [float(place) for place in range(len(gradient_tensors(of.workload)))], ranks)
    return frozenset(round(message.nbytes) for bucket in plan.buckets for message in bucket.start.messages if message.op == "all_gather")
