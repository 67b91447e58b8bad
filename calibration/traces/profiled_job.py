"""What is known of a profiled job? What its trace tells, what the user says where that does not, and the machine that it ran on."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from calibration.traces.agreement import agreed
from calibration.traces.asked import JobDescription
from calibration.traces.import_trace import Imported
from calibration.traces.kineto import CPU
from calibration.traces.trace_report import gpus, nodes
from sim.spec.catalogue import every, locate
from sim.spec.hardware import Gpu, Node
from sim.spec.library import load_hardware, load_part, load_workload
from sim.spec.measured import MeasuredOn
from sim.spec.workload import Workload
from sim.spec.yaml import SpecError


class JobMachine(NamedTuple):
    """On what the job ran."""

    gpu: Gpu
    said: Any
    """The GPU as a workload may name it: by its name in the catalogue, or all that its description says."""
    cpu_speed: float
    name: str


@dataclass(frozen=True)
class ProfiledJob:
    """A job, its profile, and the file *path* in which a workload that replays it will stand."""

    profile: Imported
    asked: JobDescription
    machine: JobMachine
    path: Path

    @property
    def ranks(self) -> int:
        """Return the number of ranks."""
        return gpus(self.profile)

    @property
    def source(self) -> str:
        """Return where measured times come from, in words."""
        steps, names = self.profile.windows[0].steps, sorted({Path(trace.file).name for trace in self.profile.traces})
        more = f" and {len(names) - 1} more" if len(names) > 1 else ""
        return f"{names[0]}{more}: {steps} steps of {self.ranks} ranks on {nodes(self.profile)} of {self.machine.name}"

    def workload(self, *overrides: str) -> Workload:
        """Return the workload that the user named, with what they said of the job and *overrides*."""
        job = self.asked
        said = [f"training.batch={job.batch}"] if job.batch else []
        said += [f"training.precision={job.precision}"] if job.precision else []
        said += [f"training.stack={job.stack}"] if job.stack else []
        return load_workload(job.workload, (*said, *overrides, "training.compute_factor=1"), job.folders.workloads).spec

    def measured_on(self, base: Workload) -> MeasuredOn:
        """Return under which conditions the times of the job's layers, *base*'s, were measured."""
        return MeasuredOn(gpu=self.machine.gpu, batch=base.training.batch, precision=base.training.precision, source=self.source)

    def reference(self, name: str, folder: str) -> str:
        """Return how the file *path* names what *name* stands for in *folder*: what is no part of the catalogue, by its place."""
        file = locate(name, folder, self.asked.folders.workloads)
        own = file not in every(folder).values()
        return os.path.relpath(file.resolve(), self.path.resolve().parent) if own else name


def job_of(profile: Imported, job: JobDescription, path: Path) -> ProfiledJob:
    """Return the job of *profile*. Raise SpecError where profile and *job* leave open what a replay takes."""
    job, _ = agreed(profile, job)
    _require(profile, job)
    machine = _machine(job)
    if profile.traces[0].gpu == CPU and isinstance(machine.said, str):
        raise SpecError(
            f"{profile.traces[0].file}: shows no kernels of a GPU, but {machine.name} has {machine.said}s; profile with "
            "activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]"
        )
    return ProfiledJob(profile, job, machine, path)


def with_stack(workload: Workload, **fields: Any) -> Workload:
    """Return *workload* with *fields* of its stack changed."""
    training = workload.training
    return workload.model_copy(update={"training": training.model_copy(update={"stack": training.stack.model_copy(update=fields)})})


def _require(profile: Imported, job: JobDescription) -> None:
    file = profile.traces[0].file
    divided = next((trace for trace in profile.traces if trace.divided), None)
    if divided is not None and not divided.simulated and not job.workload:
        raise SpecError(
            f"{divided.file}: shows {divided.divided}, so ranks share the model; add --workload with the training.parallel of the job"
        )
    if not job.hardware:
        raise SpecError(f"{file}: does not contain the machine; add --hardware with the machine that was profiled")
    if not job.workload and job.batch is None:
        raise SpecError(f"{file}: does not contain the samples per GPU; add --batch")


def _machine(job: JobDescription) -> JobMachine:
    loaded = load_hardware(job.hardware, library=job.folders.hardware)
    for index, group in enumerate(loaded.spec.groups):
        if group.role == "worker" and group.node.gpu_count:
            said = loaded.document.value["groups"][index]["node"]["gpu"]
            return JobMachine(group.node.gpu, _named(group.node) or said, group.node.host.cpu.speed, loaded.spec.name)
    raise SpecError(f"{job.hardware}: has no GPU, so the trace cannot be from it; name another --hardware")


def _named(node: Node) -> str | None:
    """Return the catalogue's name of the GPU of *node*, where that is just what the catalogue says."""
    try:
        return node.gpu.name if load_part(Gpu, node.gpu.name, "hardware/parts/gpus") == node.gpu else None
    except SpecError:
        return None
