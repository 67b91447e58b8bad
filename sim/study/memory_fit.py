"""Does a job's step fit into a GPU's memory, and if not, what would?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from sim.analysis.memory import gpu_memory, largest_batch
from sim.spec.hardware import Gpu
from sim.spec.workload import Workload
from sim.units import show

_NEEDS: Final = "of GPU memory"


def is_shortage(problem: str) -> bool:
    """Tell whether *problem* is one of `memory_problem`."""
    return _NEEDS in problem


def memory_problem(gpu: Gpu, workload: Workload, ranks: int, channels: int | None = None, plan: str = "") -> str | None:
    """Return in a sentence what does not fit into the GPU's memory, and what would; None where all fits.

    *plan* is the command that looks for a layout of this job, suggested where nothing smaller helps.
    """
    needed = gpu_memory(workload, gpu, ranks=ranks, channels=channels).total
    if needed <= gpu.memory:
        return None
    most = largest_batch(workload, gpu, ranks=ranks, channels=channels)
    if most:
        would = f"; the largest batch that fits is {most}"
    else:
        single = workload.model_copy(update={"training": workload.training.model_copy(update={"batch": 1})})
        least = show(gpu_memory(single, gpu, ranks=ranks, channels=channels).total, "binary size")
        would = "" if workload.training.batch == 1 else f"; even batch 1 needs {least}"
    return (
        f"batch {workload.training.batch} per GPU needs {show(needed, 'binary size')} {_NEEDS}, "
        f"{gpu.name} has {show(gpu.memory, 'binary size')}{would}{_remedy(gpu, workload, ranks, channels, plan)}"
    )


_BLOCKS: Final = {"activation_checkpointing": "blocks"}
_HALF: Final = {"precision": "amp_fp16"}
_REMEDIES: Final[tuple[tuple[str, dict[str, str]], ...]] = (
    ("--set training.activation_checkpointing=blocks", _BLOCKS),
    ("--precision amp_fp16", _HALF),
    ("--precision amp_fp16 --set training.activation_checkpointing=blocks", _BLOCKS | _HALF),
)
"""What makes a step smaller and leaves its result (nearly) as it is, the least change first."""


def _remedy(gpu: Gpu, workload: Workload, ranks: int, channels: int | None, plan: str) -> str:
    """Return the first remedy with which the batch that is asked for would fit; nothing where none helps."""
    full = workload.training.precision in ("fp32", "tf32")
    for options, changes in _REMEDIES:
        training = workload.training.model_copy(update=changes)
        smaller = workload.model_copy(update={"training": training})
        if (full or "precision" not in changes) and gpu_memory(smaller, gpu, ranks=ranks, channels=channels).total <= gpu.memory:
            return f"; batch {workload.training.batch} fits with {options}"
    return _sharding(gpu, workload, ranks, channels, plan)


def _sharding(gpu: Gpu, workload: Workload, ranks: int, channels: int | None, plan: str) -> str:
    """Return that sharding a decoder over its *ranks* would do, or that *plan* looks for a layout; nothing for other models."""
    use = gpu_memory(workload, gpu, ranks=ranks, channels=channels)
    states = use.weights + use.gradients + use.optimizer_state + use.communication_buffers
    if workload.model.transformer is None:
        return ""
    if ranks < 2 or use.total - states * (1.0 - 1.0 / ranks) > gpu.memory:
        return f"; '{plan}' looks for a layout that fits" if plan else ""
    return f"; --shard parameters spreads weights, gradients and optimizer state over the {ranks} GPUs"


def most_that_fits(gpus: Sequence[Gpu], workload: Workload, ranks: int, channels: int | None = None) -> int:
    """Return the largest batch per GPU that fits every one of *gpus*; 1 where not even that fits, for the check that follows to refuse."""
    return max(1, min((largest_batch(workload, gpu, ranks=ranks, channels=channels) for gpu in gpus), default=1))


def shortage(gpu: Gpu, workload: Workload, ranks: int, channels: int | None = None) -> str:
    """Return the same in a few words, for a cell of a table."""
    needed = gpu_memory(workload, gpu, ranks=ranks, channels=channels).total
    return f"does not fit: needs {show(needed, 'binary size')} of {show(gpu.memory, 'binary size')}"
