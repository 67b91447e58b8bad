"""Which kinds of GPU does a job run on, and on which of them is memory tightest?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from sim.analysis.memory import MemoryUse, gpu_memory
from sim.cluster.build import Slot
from sim.simulate import Run
from sim.spec.hardware import Gpu
from sim.units import pluralized


def gpus_text(run: Run, number: int) -> str:
    """Return how many GPUs of each kind job *number* of *run* has: ``16 x H100-SXM5-80GB + 16 x A100-SXM4-40GB``."""
    counts: Counter[str] = Counter()
    for slot in run.cluster:
        for job, gpus in slot.lent_gpus:
            if job == number:
                counts[slot.node.gpu.name] += slot.count * len(gpus)
    return " + ".join(f"{count:,} x {name}" for name, count in counts.items())


def batch_text(document: Mapping[str, Any]) -> str:
    """Return the micro-batches of a step and their samples per GPU as text, with the tokens of a sample, from the *document* of a run."""
    own, count = document.get("batches_per_gpu"), document.get("micro_batches", 1)
    samples = f"{' and '.join(map(str, own))} samples" if own else pluralized(document["batch_per_gpu"], "sample")
    tokens = f" of {pluralized(tokens, 'token')}" if (tokens := sample_tokens(document)) else ""
    return f"{f'{count:,} micro-batches of ' if count > 1 else ''}{samples}{tokens} per GPU"


def sample_tokens(document: Mapping[str, Any]) -> int | None:
    """Return the tokens of a sample, as tokens/s counts them, from the *document* of a run; None for models without sequences."""
    tokens = document.get("tokens_per_s")
    return None if tokens is None else round(tokens / document["throughput_samples_per_s"])


def tightest_gpu(run: Run, number: int) -> Gpu:
    """Return the kind of GPU on which job *number* leaves the least memory free."""
    return _tightest(run, number).node.gpu


def fullest_memory(run: Run, number: int) -> MemoryUse:
    """Return the memory use of job *number* on the GPU on which it leaves the least memory free."""
    return _memory(run, number, _tightest(run, number))


def _tightest(run: Run, number: int) -> Slot:
    lent = [slot for slot in run.cluster if any(job == number for job, _ in slot.lent_gpus)]
    return min(lent, key=lambda slot: slot.node.gpu.memory - _memory(run, number, slot).total)


def _memory(run: Run, number: int, slot: Slot) -> MemoryUse:
    job, plan = run.jobs[number].job, run.rings[number]
    return gpu_memory(job.workload_in(slot), slot.node.gpu, ranks=job.ranks, channels=plan.channels if plan else None)
