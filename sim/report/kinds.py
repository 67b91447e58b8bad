"""Which GPUs does a job run on, where its nodes differ, and on which of them is memory tightest?"""

from __future__ import annotations

from collections import Counter

from sim.analysis.memory import gpu_memory
from sim.simulate import Run
from sim.spec.hardware import Gpu


def gpus_text(run: Run, number: int) -> str:
    """Return how many GPUs of each kind job *number* of *run* has: ``16 x H100-SXM5-80GB + 16 x A100-SXM4-40GB``."""
    counts: Counter[str] = Counter()
    for slot in run.cluster:
        for job, gpus in slot.lent:
            if job == number:
                counts[slot.node.gpu.name] += slot.count * len(gpus)
    return " + ".join(f"{count} x {name}" for name, count in counts.items())


def tightest(run: Run, number: int) -> Gpu:
    """Return the kind of GPU of job *number* on which the job leaves least memory free."""
    job, plan = run.jobs[number].job, run.rings[number]
    gpus = [node.gpu for node in run.nodes(number)]
    channels = plan.channels if plan else None
    return min(gpus, key=lambda gpu: gpu.memory - gpu_memory(job.workload, gpu, ranks=job.ranks, channels=channels).total)
