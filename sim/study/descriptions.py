"""Which descriptions does a question read? The machines and workloads that a scenario names, with its overrides."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from sim.spec.hardware import Hardware
from sim.spec.library import load_hardware, load_workload
from sim.spec.workload import Workload
from sim.study.jobs_file import jobs_file
from sim.study.scenario import Scenario, prepare, sorted_overrides


class Descriptions(NamedTuple):
    """The descriptions that were read: each machine and each workload once."""

    hardware: Sequence[Hardware]
    workloads: Sequence[Workload]
    inputs: Mapping[str, str] = {}
    """SHA-256 of each machine's description by its name, and of the workload's."""


def descriptions(scenario: Scenario, machines: Sequence[str] = ()) -> Descriptions:
    """Return the descriptions of *scenario*, with *machines* instead of its own if given. Raise SpecError if one cannot be read."""
    for_hardware, for_workload = sorted_overrides(scenario)
    loaded = [load_hardware(name, for_hardware) for name in dict.fromkeys(machines or [scenario.hardware])]
    hardware, fingerprints = [machine.spec for machine in loaded], {machine.spec.name: machine.sha256 for machine in loaded}
    if jobs_file(scenario.workload) is None:
        workload = load_workload(scenario.workload, for_workload)
        return Descriptions(hardware, [workload.spec], fingerprints | {"workload": workload.sha256})
    question = prepare(scenario)
    workloads = {job.workload.name: job.workload for job in question.jobs}
    return Descriptions(hardware, list(workloads.values()), fingerprints | {"workload": question.inputs["workload"]})
