"""Does what the user says of a profiled job agree with what its trace says?

A trace that stallsim wrote names its job: another machine, model, stack, batch or precision contradicts it. Names that the catalogue does
not know, and the name that a driver gives a GPU, leave doubts, which are said.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

from calibration.traces.asked import JobDescription
from calibration.traces.import_trace import Imported
from calibration.traces.kineto import CPU
from sim.spec.hardware import Hardware
from sim.spec.library import load_hardware, load_part, load_workload
from sim.spec.stack import Stack
from sim.spec.workload import Workload
from sim.spec.yaml import SpecError

_TOLD: Final = {"hardware": "hardware", "workload": "workload", "stack": "stack", "batch": "batch_per_gpu", "precision": "precision"}
"""Where a simulated trace says what an option says."""
_MODEL_OF_GPU: Final = re.compile(r"\b(?!SXM|GB)(?=[A-Z]*\d)[A-Z]{1,3}\d{1,4}[A-Z]?\b|\b\d{4}\b")
"""What tells one GPU from another in its name: V100, A100, L40S, 3090."""


def agreed(profile: Imported, job: JobDescription) -> tuple[JobDescription, list[str]]:
    """Return *job* with what the trace tells beside it, and the doubts that remain. Raise SpecError where they contradict each other."""
    first = profile.traces[0]
    if not first.simulated:
        return job, _of_gpu(first.gpu, first.file, job)
    told = {name: first.described.get(key) for name, key in _TOLD.items()}
    said = {name: getattr(job, name) for name, value in told.items() if value and getattr(job, name)}
    verdicts = {name: _same(name, said[name], told[name], job) for name in said}
    other = [f"{name} {told[name]} (--{name} {said[name]})" for name, same in verdicts.items() if same is False]
    if other:
        raise SpecError(
            f"{first.file}: shows a different job: {', '.join(other)}; leave out the options that differ, or pass the trace of that job"
        )
    doubts = [
        f"{first.file}: shows {name} {told[name]}, which is unknown; assuming that it is {said[name]}"
        for name, same in verdicts.items()
        if same is None
    ]
    return replace(job, **{name: value for name, value in told.items() if value and not getattr(job, name)}), doubts


def _same(name: str, said: Any, told: Any, job: JobDescription) -> bool | None:
    """Return whether what is *said* is what the trace *told*; None where nobody knows what that is."""
    if said == told or name not in _ALIKE:
        return bool(said == told)
    load, alike = _ALIKE[name]
    mine = load(str(said), job)
    if told in (mine.name, *getattr(mine, "aliases", ())) or (isinstance(mine, Workload) and told == mine.model.name):
        return True
    try:
        theirs = load(str(told), job)
    except SpecError:
        return None
    return alike(mine, theirs)


def _hardware(name: str, job: JobDescription) -> Hardware:
    return load_hardware(name, library=job.folders.hardware).spec


def _workload(name: str, job: JobDescription) -> Workload:
    return load_workload(name, (), job.folders.workloads).spec


def _stack(name: str, job: JobDescription) -> Any:
    return load_part(Stack, name, "workloads/stacks")


def _same_gpus(mine: Hardware, theirs: Hardware) -> bool:
    return [(group.node.gpu.name, group.node.gpu_count) for group in mine.groups if group.node.gpu_count] == [
        (group.node.gpu.name, group.node.gpu_count) for group in theirs.groups if group.node.gpu_count
    ]


def _same_model(mine: Workload, theirs: Workload) -> bool:
    return [layer.gradients for layer in mine.model.layers] == [layer.gradients for layer in theirs.model.layers]


_ALIKE: Final[dict[str, tuple[Callable[[str, JobDescription], Any], Callable[[Any, Any], bool]]]] = {
    "hardware": (_hardware, _same_gpus),
    "workload": (_workload, _same_model),
    "stack": (_stack, lambda mine, theirs: bool(mine == theirs)),
}
"""How what a name stands for is loaded, and when two of them are alike as far as a trace can tell."""


def _of_gpu(device: str, file: str, job: JobDescription) -> list[str]:
    """Return the doubt whether *device*, as its driver calls it, is the GPU of the machine that is said."""
    shown = set(_MODEL_OF_GPU.findall(device.upper()))
    if device == CPU or not shown or not job.hardware:
        return []
    try:
        names = [group.node.gpu.name for group in _hardware(job.hardware, job).groups if group.node.gpu_count]
    except SpecError:  # told of by whoever needs the machine
        return []
    if any(shown & set(_MODEL_OF_GPU.findall(name.upper())) for name in names):
        return []
    return [
        f"{file}: was recorded on {device}, but {job.hardware} has {' and '.join(dict.fromkeys(names))}; check that this is the "
        "machine of the trace"
    ]
