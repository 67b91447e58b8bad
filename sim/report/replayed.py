"""What of a replayed profile does not carry over? Scaled times, memory that a trace does not show, and costs that would count twice.

``calibration import-trace --workload-out`` writes layers with measured times (`sim.cluster.measured` scales them).
"""

from __future__ import annotations

from collections.abc import Sequence

from sim.spec.defaults import PARALLEL_STACK, REPLICATED_STACK
from sim.spec.hardware import Node
from sim.spec.workload import Workload
from sim.units import pluralized


def replay_assumptions(nodes: Sequence[Node], workload: Workload) -> list[str]:
    """Return what a run of measured layers on *nodes* assumes: empty if all times are modeled."""
    on, training = workload.model.measured, workload.training
    if on is None:
        return []
    gpus = [name for name in dict.fromkeys(node.gpu.name for node in nodes) if name != on.gpu.name]
    batches = [pluralized(batch, "sample") for batch in dict.fromkeys(training.batches or (training.batch,)) if batch != on.batch]
    changed = [*gpus, *batches, *([training.precision] if training.precision != on.precision else [])]
    measured = f"layer times were measured on {on.gpu.name} with {pluralized(on.batch, 'sample')} in {on.precision}"
    scaled = [f"{measured}, and are scaled to {', '.join(changed)} by modeled times"] if changed else []
    return (
        scaled
        + _sockets(nodes, workload)
        + (["GPU memory without activations, which the trace does not show"] if _is_only_traced(workload) else [])
    )


def replay_warnings(workload: Workload) -> list[str]:
    """Return a warning if the stack of a job that was only traced adds copies of gradients that the measured layers contain."""
    stack = workload.training.stack
    if not _is_only_traced(workload) or not stack.exchange.gradient_copy_passes:
        return []
    return [
        f"the measured layers contain the copies of gradients and the optimizer's time, to which stack {stack.name} adds its own; "
        f"to replay with it, import the trace again with --stack {stack.name}"
    ]


def _sockets(nodes: Sequence[Node], workload: Workload) -> list[str]:
    """Return that ranks use Gloo, as they did on CPUs, if *nodes* have GPUs, whose frameworks use NCCL."""
    training = workload.training
    if training.stack.library.backend != "gloo" or any(node.gpu.host_cores for node in nodes):
        return []
    stack = REPLICATED_STACK if training.parallel.is_trivial else PARALLEL_STACK
    return [f"ranks exchange over sockets (Gloo), as in the profile of CPUs; jobs on GPUs use NCCL: --stack {stack}"]


def _is_only_traced(workload: Workload) -> bool:
    """Return whether the layers have measured times and nothing else."""
    return workload.model.measured is not None and not any(layer.forward or layer.read or layer.write for layer in workload.model.layers)
