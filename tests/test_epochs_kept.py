"""Is an epoch that was found in the cache the one that would be simulated? Oracle: the same run without a cache, to the last digit."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, replace

import pytest
from hypothesis import given

import sim.epoch
from sim.cluster import topology
from sim.cluster.build import place
from sim.events import EventLog
from sim.simulate import Run, simulate
from sim.spec.fields import Spec
from sim.spec.library import load_hardware, load_workload
from sim.spec.memo import caching
from sim.spec.sections import blocks, file_values
from sim.spec.yaml import SpecError
from sim.study.sensitivity import _with_factor
from sim.training.job import Job
from tests.test_simulate import setups


def contents_of(run: Run) -> list[object]:
    """Return all that a run says, with its logs."""
    contents: list[object] = [run.credits_end]
    for job in run.jobs:
        for epoch in (job.first, job.warm):
            contents += [getattr(epoch, field.name) for field in fields(epoch) if field.name != "log"]
            contents += [getattr(epoch.log, field.name) for field in fields(EventLog) if field.name != "clock"]
    return contents


def numbers(spec: Spec) -> Iterator[list[str]]:
    """Yield the path of every number of a description."""
    for key, block in blocks(spec):
        for name, value in file_values(block).items():
            if isinstance(value, float) and value:
                yield [*map(str, key), name]


@given(setups())
def test_what_is_found_is_what_would_be_simulated(setup) -> None:
    """All examples share one cache, so that one that is taken for another shows."""
    fresh = setup.run()
    with caching("examples"):
        assert contents_of(setup.run()) == contents_of(fresh) == contents_of(setup.run())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("hardware", "workload", "keys"),
    [
        ("p3.8xlarge", "resnet18", {"lags": [0.01], "cold": False}),
        ("p2.xlarge", "alexnet", {"keep_rates": True}),
        pytest.param("g4dn.xlarge", "resnet18", {}, marks=pytest.mark.nightly),
    ],
)
def test_every_number_of_a_description_is_seen_where_it_matters(hardware: str, workload: str, keys: dict[str, float]) -> None:
    """Each number by itself is raised by a tenth, after the description as it is; without a cache no link graph is known either."""
    nodes = 2 if hardware.startswith("g4dn") else 1
    machine, task = load_hardware(hardware).spec, load_workload(workload, ["dataset.samples=6400"]).spec
    groups = tuple(group.model_copy(update={"count": nodes}) for group in machine.groups)
    machine = machine.model_copy(update={"groups": groups})
    job = Job(task, place(machine))
    wiring = topology.node_graph(machine.groups[0].node)
    with caching(f"{hardware} {workload}"):
        simulate(machine, [job], **keys)  # type: ignore[arg-type]
    paths = [(machine, path) for path in numbers(machine)] + [(task, path) for path in numbers(task) if path[:2] != ["model", "layers"]]
    for spec, path in paths:
        changed = _with_factor(spec, path, 1.1)
        arguments = (changed, [job]) if spec is machine else (machine, [replace(job, workload=changed)])
        topology._cached_graph.cache_clear()
        try:
            fresh = contents_of(simulate(*arguments, **keys))  # type: ignore[arg-type]
        except (SpecError, ValueError):
            continue
        topology._cached_graph.cache_clear()
        assert topology.node_graph(wiring.node).node is wiring.node  # known before, to be shared with what is wired alike
        with caching(f"{hardware} {workload}"):
            assert contents_of(simulate(*arguments, **keys)) == fresh, ".".join(path)  # type: ignore[arg-type]


def test_what_changes_nothing_is_not_simulated_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A faster NIC beside a job on one node, and another price."""
    machine, task = load_hardware("p3.8xlarge").spec, load_workload("resnet18").spec
    simulated = []
    simulated_by = sim.epoch.EpochRun._simulated
    monkeypatch.setattr(sim.epoch.EpochRun, "_simulated", lambda epoch: simulated.append(epoch) or simulated_by(epoch))
    with caching("nothing"):
        for path, factor in ((["node", "nic", "bandwidth"], 2.0), (["node", "nic", "bandwidth"], 3.0)):
            changed = _with_factor(machine, ["groups", "0", *path], factor)
            simulate(changed, [Job(task, place(changed))])
    assert len(simulated) == 2  # the cold and the warm epoch of the first


def test_a_run_without_its_log_says_the_same_and_is_not_taken_for_one_with_it() -> None:
    """A study of figures keeps thousands of runs, and their waits and work take most of the memory."""
    machine, task = load_hardware("p3.16xlarge").spec, load_workload("vgg16").spec
    arguments = (machine, [Job(task, place(machine))])
    with caching("with and without"):
        brief = simulate(*arguments, keep_log=False)
        full = simulate(*arguments)
    for one, other in zip(brief.jobs, full.jobs, strict=True):
        for less, more in ((one.first, other.first), (one.warm, other.warm)):
            assert [getattr(less, field.name) for field in fields(less) if field.name != "log"] == [
                getattr(more, field.name) for field in fields(more) if field.name != "log"
            ]
            assert (less.log.waits, less.log.work) == ([], [])
            assert more.log.waits and more.log.work
            assert (less.log.steps, less.log.links, less.log.decisions) == (more.log.steps, more.log.links, more.log.decisions)
