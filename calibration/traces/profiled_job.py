"""What is a profiled job? The facts of its trace, the user's description for facts that are not in it, and the machine that it ran on."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

from calibration.traces.agreement import complete_description
from calibration.traces.import_trace import ImportedJob
from calibration.traces.job_description import JobDescription
from calibration.traces.kineto import CPU
from calibration.traces.trace_report import gpus, nodes
from sim.spec.catalog import all_files, locate
from sim.spec.hardware import Gpu, Node
from sim.spec.library import is_model, load_hardware, load_part, load_workload
from sim.spec.measured import MeasuredOn
from sim.spec.sections import with_fields
from sim.spec.workload import Workload
from sim.spec.yaml import SpecError

OPTIMIZERS: Final = {"SGD": "momentum", "Adam": "adam", "AdamW": "adam", "Adafactor": "adafactor", "Muon": "muon", "LAMB": "lamb"}
"""Update rules by the class of torch's optimizer."""


class JobMachine(NamedTuple):
    """The machine on which the job ran."""

    gpu: Gpu
    gpu_reference: Any
    """The GPU as written in a workload: its name in the catalog, or its full description."""
    cpu_speed: float
    launch_speed: float
    name: str


@dataclass(frozen=True)
class ProfiledJob:
    """A job, its profile, and the *path* to which a workload that replays it will be written."""

    profile: ImportedJob
    description: JobDescription
    machine: JobMachine
    path: Path

    @property
    def ranks(self) -> int:
        """Return the number of ranks."""
        return gpus(self.profile)

    @property
    def source(self) -> str:
        """Return a text on the source of the measured times."""
        steps, names = self.profile.windows[0].steps, sorted({Path(trace.file).name for trace in self.profile.traces})
        more = f" and {len(names) - 1} more" if len(names) > 1 else ""
        return f"{names[0]}{more}: {steps} steps of {self.ranks} ranks on {nodes(self.profile)} of {self.machine.name}"

    def workload(self, *overrides: str) -> Workload:
        """Return the workload that the user named, with the user's description of the job and *overrides* applied.

        A layer table says nothing about the optimizer, which is then that of the trace.
        """
        job = self.description
        seen = next((OPTIMIZERS[span.name] for span in self.profile.traces[0].optimizer if span.name in OPTIMIZERS), None)
        specified = [f"training.batch={job.batch}"] if job.batch else []
        specified += [f"training.precision={job.precision}"] if job.precision else []
        specified += [f"training.stack={job.stack}"] if job.stack else []
        specified += [f"training.{key}={value}" for _, key, value in job.layout]
        specified += [f"training.optimizer.name={seen}"] if seen and is_model(job.workload, job.folders.workloads) else []
        return load_workload(job.workload, (*specified, *overrides, "training.compute_factor=1"), job.folders.workloads).spec

    def measured_on(self, base: Workload) -> MeasuredOn:
        """Return the conditions under which the times of the job's layers were measured: the machine, and batch and precision of *base*."""
        return MeasuredOn(gpu=self.machine.gpu, batch=base.training.batch, precision=base.training.precision, source=self.source)

    def reference(self, name: str, folder: str) -> str:
        """Return the reference to *name* in *folder* for the file at `path`: a relative path unless it is part of the catalog."""
        file = locate(name, folder, self.description.folders.workloads)
        own = file not in all_files(folder).values()
        return os.path.relpath(file.resolve(), self.path.resolve().parent) if own else name


def job_of(profile: ImportedJob, job: JobDescription, path: Path) -> ProfiledJob:
    """Return the job of *profile*. Raise SpecError if *profile* and *job* lack facts that a replay needs."""
    job, _ = complete_description(profile, job)
    _require(profile, job)
    machine = _machine(job)
    if profile.traces[0].gpu == CPU and isinstance(machine.gpu_reference, str):
        raise SpecError(
            f"{profile.traces[0].file}: shows no kernels of a GPU, but {machine.name} has {machine.gpu_reference}s; profile with "
            "activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA], or, if the job ran on CPUs, name their machine, described by "
            "'calibration profile' and 'calibration fit'"
        )
    return ProfiledJob(profile, job, machine, path)


def with_stack(workload: Workload, **fields: Any) -> Workload:
    """Return *workload* with *fields* of its stack changed."""
    training = workload.training
    return workload.with_training(stack=with_fields(training.stack, **fields))


def _require(profile: ImportedJob, job: JobDescription) -> None:
    file = profile.traces[0].file
    divided = next((trace for trace in profile.traces if trace.layout_event), None)
    if divided is not None and not divided.simulated and not job.workload:
        raise SpecError(
            f"{divided.file}: shows {divided.layout_event}, so ranks share the model; add --workload with its layer table (sim extract), "
            "and how they share it: --shard parameters, --tp 2 or --pp 2, for example"
        )
    if job.layout and divided is None:
        raise SpecError(f"{job.layout[0][0]}: {file} shows no collective of ranks that share the model; leave it out")
    if job.layout and not job.workload:
        raise SpecError(f"{job.layout[0][0]}: needs --workload, the model whose layers the ranks share")
    if not job.hardware:
        raise SpecError(f"{file}: does not contain the machine; add --hardware with the machine that was profiled")
    if not job.workload and job.batch is None:
        raise SpecError(f"{file}: does not contain the samples per GPU; add --batch")


def _machine(job: JobDescription) -> JobMachine:
    loaded = load_hardware(job.hardware, library=job.folders.hardware)
    for index, group in enumerate(loaded.spec.groups):
        if group.role == "worker" and group.node.gpu_count:
            said = loaded.document.value["groups"][index]["node"]["gpu"]
            cpu = group.node.host.cpu
            return JobMachine(group.node.gpu, _catalog_name(group.node) or said, cpu.speed, cpu.launching, loaded.spec.name)
    raise SpecError(f"{job.hardware}: has no GPU, so the trace cannot be from it; name another --hardware")


def _catalog_name(node: Node) -> str | None:
    """Return the catalog's name of the GPU of *node* if it is equal to that GPU of the catalog, else None."""
    try:
        return node.gpu.name if load_part(Gpu, node.gpu.name) == node.gpu else None
    except SpecError:
        return None
