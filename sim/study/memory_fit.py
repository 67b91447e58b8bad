"""Does a job's step fit into a GPU's memory, and if not, what would?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from sim.analysis.memory import gpu_memory, largest_batch
from sim.spec.hardware import Gpu
from sim.spec.stack import AsyncParameterServer
from sim.spec.workload import Workload
from sim.units import show


class Shortage(NamedTuple):
    """A step that does not fit into the memory of a GPU."""

    sentence: str
    """What does not fit, and what would."""
    brief: str
    """The same in a few words, for a cell of a table."""
    remedy: str
    """The options with which a batch fits, such as ``batch 16 fits with --precision amp_fp16``; empty if none of the usual ones helps."""


def memory_problem(
    gpu: Gpu, workload: Workload, ranks: int, channels: int | None = None, plan: str = "", of_global: bool = False
) -> str | None:
    """Return the sentence of `memory_shortage`; None if everything fits."""
    shortage = memory_shortage(gpu, workload, ranks, channels, plan, of_global)
    return None if shortage is None else shortage.sentence


def memory_shortage(
    gpu: Gpu, workload: Workload, ranks: int, channels: int | None = None, plan: str = "", of_global: bool = False
) -> Shortage | None:
    """Return what does not fit into the GPU's memory, and what would; None if everything fits.

    *plan* is the command that looks for a layout of this job, suggested if no smaller change helps. *of_global*: whether the user set
    the global batch.
    """
    needed = gpu_memory(workload, gpu, ranks=ranks, channels=channels).total
    if needed <= gpu.memory:
        return None
    most = largest_batch(workload, gpu, ranks=ranks, channels=channels)
    if most:
        total = most * ranks * workload.training.gradient_accumulation_steps
        would = f"; the largest batch that fits is {most}{f' per GPU: write {total}' if of_global else ''}"
        would += _accumulated(gpu, workload, ranks, channels, of_global)
    else:
        single = workload.with_training(batch=1)
        least = show(gpu_memory(single, gpu, ranks=ranks, channels=channels).total, "binary size")
        would = "" if workload.training.batch == 1 else f"; even batch 1 needs {least}"
    sizes = show(needed, "binary size"), show(gpu.memory, "binary size")
    remedy = _remedy(gpu, workload, ranks, channels, of_global)
    hint = f"; {remedy}" if remedy else _sharding(gpu, workload, ranks, channels, plan)
    return Shortage(
        f"batch {workload.training.batch} per GPU needs {sizes[0]} of GPU memory, {gpu.name} has {sizes[1]}{would}{hint}",
        f"does not fit: needs {sizes[0]} of {sizes[1]}",
        remedy,
    )


def _accumulated(gpu: Gpu, workload: Workload, ranks: int, channels: int | None, of_global: bool) -> str:
    """Return the fewest micro-batches with which a step of as many samples fits, as a hint; empty if none divides them."""
    training = workload.training
    samples = training.batch * training.gradient_accumulation_steps
    if isinstance(training.stack.exchange, AsyncParameterServer):
        return ""
    for steps in range(training.gradient_accumulation_steps + 1, samples + 1):
        if samples % steps:
            continue
        parts = workload.with_training(batch=samples // steps, gradient_accumulation_steps=steps)
        if gpu_memory(parts, gpu, ranks=ranks, channels=channels).total <= gpu.memory:
            if of_global:
                return f"; --micro-batches {steps} keeps {samples * ranks}"
            accumulated = (
                f"--batch {samples // steps} --set training.gradient_accumulation_steps={steps}"  # not every command has --micro-batches
            )
            return f"; {accumulated} keeps {samples} samples per GPU and step"
    return ""


_BLOCKS: Final = {"activation_checkpointing": "blocks"}
_HALF: Final = {"precision": "amp_fp16"}
_REMEDIES: Final[tuple[tuple[str, dict[str, str]], ...]] = (
    ("--set training.activation_checkpointing=blocks", _BLOCKS),
    ("--precision amp_fp16", _HALF),
    ("--precision amp_fp16 --set training.activation_checkpointing=blocks", _BLOCKS | _HALF),
)
"""Changes that reduce a step's memory and (nearly) keep its result, smallest change first."""


def _remedy(gpu: Gpu, workload: Workload, ranks: int, channels: int | None, of_global: bool) -> str:
    """Return the first remedy with which the requested batch fits, else the largest that fits with blocks recomputed, if any does."""
    full = workload.training.precision in ("fp32", "tf32")
    for options, changes in _REMEDIES:
        smaller = workload.with_training(**changes)
        if (full or "precision" not in changes) and gpu_memory(smaller, gpu, ranks=ranks, channels=channels).total <= gpu.memory:
            return f"batch {workload.training.batch} fits with {options}"
    if of_global or largest_batch(workload, gpu, ranks=ranks, channels=channels):
        return ""
    most = largest_batch(workload.with_training(**_BLOCKS), gpu, ranks=ranks, channels=channels)
    return f"batch {most} fits with --batch {most} {_REMEDIES[0][0]}" if most else ""


def _sharding(gpu: Gpu, workload: Workload, ranks: int, channels: int | None, plan: str) -> str:
    """Return a hint to shard a decoder over its *ranks*, or to look for a layout with *plan*; empty for other models."""
    use = gpu_memory(workload, gpu, ranks=ranks, channels=channels)
    states = use.weights + use.gradients + use.optimizer_state + use.communication_buffers
    if workload.model.transformer is None:
        return ""
    if ranks < 2 or use.total - states * (1.0 - 1.0 / ranks) > gpu.memory:
        return f"; '{plan}' looks for a layout that fits" if plan else ""
    return f"; --shard parameters spreads weights, gradients and optimizer state over the {ranks} GPUs"


def largest_fitting_batch(gpus: Sequence[Gpu], workload: Workload, ranks: int, channels: int | None = None) -> int:
    """Return the largest batch per GPU that fits every one of *gpus*; 1 if not even that fits, for a later check to refuse."""
    return max(1, min((largest_batch(workload, gpu, ranks=ranks, channels=channels) for gpu in gpus), default=1))
