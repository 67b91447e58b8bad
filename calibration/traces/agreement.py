"""Does the user's description of a profiled job agree with its trace?

A trace that stallsim wrote names its job: a different machine, model, stack, batch or precision is a contradiction. In a trace of torch's,
gradients of another number of parameters are one. Names that are not in the catalog, and the name that a driver gives a GPU, leave
doubts, which are reported.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

from calibration.traces.import_trace import ImportedJob
from calibration.traces.job_description import JobDescription
from calibration.traces.kineto import CPU
from sim.spec.catalog import locate
from sim.spec.hardware import Hardware
from sim.spec.library import load, load_hardware, load_workload
from sim.spec.stack import Stack
from sim.spec.workload import Workload
from sim.spec.yaml import SpecError

_TRACE_KEYS: Final = {"hardware": "hardware", "workload": "workload", "stack": "stack", "batch": "batch_per_gpu", "precision": "precision"}
"""Key of a simulated trace that corresponds to each option."""
_MODEL_OF_GPU: Final = re.compile(r"\b(?!SXM|GB)(?=[A-Z]*\d)[A-Z]{1,3}\d{1,4}[A-Z]?\b|\b\d{4}\b")
"""The model designation in the name of a GPU: V100, A100, L40S, 3090."""
SAME_PARAMETERS: Final = 0.02
"""Largest relative difference between the parameters of a trace and those of its layer table: estimate (tied or padded tables of words)."""


def complete_description(profile: ImportedJob, job: JobDescription) -> tuple[JobDescription, list[str]]:
    """Return *job* completed with the facts of the trace, and the remaining doubts. Raise SpecError if they contradict each other."""
    first = profile.traces[0]
    if not first.simulated:
        _require_known(job)
        if job.workload and not first.layout_event:
            _require_same_parameters(profile, job)
        return job, [*_rank_doubts(profile), *_gpu_doubts(first.gpu, first.file, job)]
    shown = {name: first.job_facts.get(key) for name, key in _TRACE_KEYS.items()}
    specified = {name: getattr(job, name) for name, value in shown.items() if value and getattr(job, name)}
    verdicts = {name: _matches(name, specified[name], shown[name], job) for name in specified}
    other = [f"{name} {shown[name]} (--{name} {specified[name]})" for name, same in verdicts.items() if same is False]
    if other:
        raise SpecError(
            f"{first.file}: shows a different job: {', '.join(other)}; leave out the options that differ, or pass the trace of that job"
        )
    doubts = [
        f"{first.file}: shows {name} {shown[name]}, which is unknown; assuming that it is {specified[name]}"
        for name, same in verdicts.items()
        if same is None
    ]
    return replace(job, **{name: value for name, value in shown.items() if value and not getattr(job, name)}), doubts


def _require_known(job: JobDescription) -> None:
    """Raise SpecError for a machine, workload or stack that does not exist, which may be without any other effect."""
    for name, (load_named, _) in _EQUIVALENCE.items():
        if specified := getattr(job, name):
            try:
                load_named(specified, job)
            except SpecError as error:
                raise SpecError(f"--{name} {specified}: {error}") from None


def _require_same_parameters(profile: ImportedJob, job: JobDescription) -> None:
    """Raise SpecError if the gradients of a micro-batch in *profile* are not those of the workload that *job* names."""
    workload = _workload(job.workload, job)
    trace, window = profile.traces[0], profile.windows[0]
    kept = [span.ident for span in trace.gradients if window.start <= span.t0 < window.end]
    due = [size for layer in workload.model.layers for size in layer.gradients]
    if not kept or min(kept) < 0 or not due:
        return
    micro_batches = max(1, round(len(kept) / window.steps / len(due)))
    shown = sum(kept) / window.steps / micro_batches
    if abs(shown - sum(due)) > SAME_PARAMETERS * sum(due):
        raise SpecError(
            f"{trace.file}: has gradients of {shown:,.0f} parameters, but {job.workload} trains {sum(due):,}; "
            "name the workload that the trace shows, or leave out --workload"
        )


def _matches(name: str, specified: Any, shown: Any, job: JobDescription) -> bool | None:
    """Return whether the option *specified* is equivalent to the trace's value *shown*; None if the latter is not in the catalog."""
    if specified == shown or name not in _EQUIVALENCE:
        return bool(specified == shown)
    load_named, equivalent = _EQUIVALENCE[name]
    mine = load_named(str(specified), job)
    if shown in (mine.name, *getattr(mine, "aliases", ())) or (isinstance(mine, Workload) and shown == mine.model.name):
        return True
    try:
        theirs = load_named(str(shown), job)
    except SpecError:
        return None
    return equivalent(mine, theirs)


def _hardware(name: str, job: JobDescription) -> Hardware:
    return load_hardware(name, library=job.folders.hardware).spec


def _workload(name: str, job: JobDescription) -> Workload:
    return load_workload(name, (), job.folders.workloads).spec


def _stack(name: str, job: JobDescription) -> Any:
    return load(Stack, locate(name, "workloads/stacks", job.folders.workloads)).spec


def _same_gpus(mine: Hardware, theirs: Hardware) -> bool:
    return [(group.node.gpu.name, group.node.gpu_count) for group in mine.groups if group.node.gpu_count] == [
        (group.node.gpu.name, group.node.gpu_count) for group in theirs.groups if group.node.gpu_count
    ]


def _same_model(mine: Workload, theirs: Workload) -> bool:
    return [layer.gradients for layer in mine.model.layers] == [layer.gradients for layer in theirs.model.layers]


_EQUIVALENCE: Final[dict[str, tuple[Callable[[str, JobDescription], Any], Callable[[Any, Any], bool]]]] = {
    "hardware": (_hardware, _same_gpus),
    "workload": (_workload, _same_model),
    "stack": (_stack, lambda mine, theirs: bool(mine == theirs)),
}
"""For each option with a catalog name, how to load it, and whether two loaded objects are equivalent as far as a trace shows."""


def _rank_doubts(profile: ImportedJob) -> list[str]:
    """Return a doubt if only some ranks have a trace."""
    first, traced = profile.traces[0], profile.traced_ranks
    if traced == first.world_size:
        return []
    which = f"rank {first.rank}" if traced == 1 else f"{traced} ranks"
    return [
        f"{first.file}: only {which} of {first.world_size} given; the others are taken to be like {'it' if traced == 1 else 'them'}, and "
        "waits for ranks that are late count as exchange"
    ]


def _gpu_doubts(device: str, file: str, job: JobDescription) -> list[str]:
    """Return a doubt if *device*, the driver's name of the GPU, does not match the GPUs of the specified machine."""
    shown = set(_MODEL_OF_GPU.findall(device.upper()))
    if device == CPU or not shown or not job.hardware:
        return []
    names = [group.node.gpu.name for group in _hardware(job.hardware, job).groups if group.node.gpu_count]
    if any(shown & set(_MODEL_OF_GPU.findall(name.upper())) for name in names):
        return []
    return [
        f"{file}: was recorded on {device}, but {job.hardware} has {' and '.join(dict.fromkeys(names))}; check that this is the "
        "machine of the trace"
    ]
