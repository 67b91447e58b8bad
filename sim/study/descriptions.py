"""Which descriptions does a question read? The machines and workloads that a scenario names, with its overrides."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from sim.spec.hardware import Hardware
from sim.spec.library import load_hardware, load_workload
from sim.spec.workload import Workload
from sim.study.jobs_file import jobs_file
from sim.study.scenario import Scenario, prepare, sorted_overrides


class Descriptions(NamedTuple):
    """What was read: each machine and each workload once."""

    hardware: Sequence[Hardware]
    workloads: Sequence[Workload]


def descriptions(scenario: Scenario, machines: Sequence[str] = ()) -> Descriptions:
    """Return what *scenario* reads, on *machines* instead of its own if there are any. Raise SpecError for what cannot be read."""
    for_hardware, for_workload = sorted_overrides(scenario)
    hardware = [load_hardware(name, for_hardware).spec for name in dict.fromkeys(machines or [scenario.hardware])]
    if jobs_file(scenario.workload) is None:
        return Descriptions(hardware, [load_workload(scenario.workload, for_workload).spec])
    workloads = {job.workload.name: job.workload for job in prepare(scenario).jobs}
    return Descriptions(hardware, list(workloads.values()))
