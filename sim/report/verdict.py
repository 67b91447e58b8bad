"""What does a run say in one sentence, what does it assume, and what should its reader beware of?"""

from __future__ import annotations

from sim.events import Cause
from sim.simulate import JobRun, Run
from sim.units import show

NOTEWORTHY = 0.04
"""Share of the step below which a stall is not worth a sentence: the noise of repeated measurements is 2-4 %."""


def verdict(run: Run, number: int = 0) -> str:
    """Return one sentence that names the largest stall and the link or resource behind it."""
    job = run.jobs[number]
    stalls = {cause: seconds for cause, seconds in job.warm.stalls.items() if cause is not Cause.COMPUTE}
    worst = max(stalls, key=lambda cause: stalls[cause])
    if stalls[worst] < NOTEWORTHY * job.warm.step_time:
        busy = share(job.warm.stalls[Cause.COMPUTE], job)
        return f"Compute-bound: the GPUs work {busy} of the step; no stall reaches {100 * NOTEWORTHY:.0f} %."
    resource = next(row.resource for row in job.warm.resources if row.cause is worst)  # largest first
    return f"{_sentence(worst, resource, job)} ({share(stalls[worst], job)} of the step)."


def share(seconds: float, job: JobRun) -> str:
    """Return *seconds* as a percentage of the warm step."""
    return f"{100 * seconds / job.warm.step_time:.0f} %"


def _sentence(cause: Cause, resource: str, job: JobRun) -> str:
    workload = job.job.workload
    delivered = f"{job.throughput:,.0f} samples/s".replace(",", " ")
    if cause is Cause.PREP:
        loader = workload.input
        hands = {
            "pytorch": f"{loader.num_workers * job.job.ranks} workers",
            "dali_cpu": f"{loader.num_threads * job.job.ranks} DALI threads",
        }
        could = f"{job.throughput * job.warm.step_time / (job.warm.step_time - job.warm.stalls[cause]):,.0f}".replace(",", " ")
        if loader.loader not in hands:
            return f"Prep: {resource} and the DALI threads deliver {delivered}, the GPUs could take {could}"
        return f"CPU prep: {hands[loader.loader]} deliver {delivered}, the GPUs could take {could}"
    if cause is Cause.FETCH:
        return f"Disk fetch: the disk, with {100 * job.hit_ratio:.0f} % of the reads cached, feeds {delivered}"
    if cause in (Cause.INTERCONNECT, Cause.NETWORK):
        return f"Gradient exchange waits on {resource}"
    if cause is Cause.COPY:
        return f"The copy to the GPU ({show(workload.training.batch * workload.dataset.prepared, 'size')} a step) is not overlapped"
    if cause is Cause.LAUNCH:
        return "The host launches kernels more slowly than the GPU runs them"
    return "Ranks wait for the slowest one"


def assumptions(run: Run, number: int = 0) -> list[str]:
    """Return what the user did not say and the simulation took for granted."""
    job = run.jobs[number]
    workload, node = job.job.workload, run.node(number)
    found = [f"software stack {workload.training.stack.name}, {workload.training.precision}, {workload.training.batch} samples per GPU"]
    if workload.input.loader != "synthetic" and node.storage is not None and node.storage.volume.assumed:
        volume = node.storage.volume
        size = show(volume.size, "binary size")
        found.append(f"{run.hardware.name} comes without a volume: one {volume.name} of {size} (--set node.storage.volume=...)")
    if workload.input.loader != "synthetic":
        found.append(f"warm epochs find {100 * job.hit_ratio:.0f} % of the data set in the page cache")
    found.append("the host waits for the GPU at the end of each step")
    return found


def warnings(run: Run, number: int = 0) -> list[str]:
    """Return what makes this run's figures less certain than usual."""
    job = run.jobs[number]
    loose = [name for name, epoch in (("first", job.first), ("warm", job.warm)) if not epoch.exact]
    return [f"the {name} epoch shows no exact period; its figures are means over the steps that were simulated" for name in loose]
