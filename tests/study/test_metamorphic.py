"""Does faster hardware ever slow a step? Metamorphic: each scene again with one part or all of it faster, all-reduces of growing messages.

A faster part may slow a step by 0.1% at most, unless NCCL decides otherwise for one of its messages than before, sockets take cores from
loaders that bound the step, or the loaders' work falls into another moment, of which the best is compared. No oracle but the relation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import cycle, pairwise
from typing import Any, get_args

import pytest

from sim.events import Cause
from sim.mesh import run_layout
from sim.report.nccl_choice import messages_of_step
from sim.simulate import Run, simulate
from sim.spec.catalog import catalog
from sim.spec.fields import Dimension, Spec
from sim.spec.hardware import Hardware, Link, Node
from sim.spec.library import load_hardware, load_workload
from sim.spec.yaml import SpecError
from sim.study.collective import collective_table
from sim.study.faster import faster
from sim.study.scenario import Scenario, prepare
from sim.training.collectives.nccl import cost, threshold
from sim.training.collectives.nccl import search as nccl_search
from sim.training.collectives.price.collective_plan import CollectivePlan, Tuning
from sim.training.collectives.price.table import CollectiveRow
from sim.training.job import Job

SLOWER = 1.001
MOMENTS = (0.2, 0.4, 0.6, 0.8)
WORKLOADS = ("resnet50", "bert-base-seq128", "alexnet", "vgg16", "resnet18", "gnmt-8")
SCENES = (
    ("g6e.12xlarge", "resnet50", 2),
    ("g5.12xlarge", "bert-base-seq128", 2),
    ("p2.8xlarge", "resnet18", 2),
    ("p3.16xlarge", "vgg16", 1),
    ("p3.8xlarge", "alexnet", 4),
    ("p4d.24xlarge", "bert-base-seq128", 2),
    ("nc24rs_v3", "vgg16", 2),
)
SIZES = [int(2 ** (power / 2)) for power in range(20, 61)]
"""1 KiB to 1 GiB."""

Change = Callable[[Hardware, list[Job]], tuple[Hardware, list[Job]]]


# --- what is faster ------------------------------------------------------------------------------------------------


def _nic(node: Node, factor: float) -> Node:
    return node.model_copy(update={"nic": node.nic.model_copy(update={"bandwidth": node.nic.bandwidth * factor})})


def _pcie(node: Node, factor: float) -> Node:
    topology = node.topology
    switches = tuple(each.model_copy(update={"link": _link(each.link, factor)}) if each.link else each for each in topology.switches)
    return node.model_copy(update={"topology": topology.model_copy(update={"pcie": _link(topology.pcie, factor), "switches": switches})})


def _link(link: Link, factor: float) -> Link:
    return link.model_copy(update={"bandwidth": link.bandwidth * factor, "nccl_bandwidth": link.nccl_bandwidth * factor})


def _seen_by_nccl(change: Callable[[Node, float], Node], factor: float) -> Change:
    def apply(hardware: Hardware, jobs: list[Job]) -> tuple[Hardware, list[Job]]:
        groups = tuple(group.model_copy(update={"node": change(group.node, factor)}) for group in hardware.groups)
        return hardware.model_copy(update={"groups": groups}), jobs

    return apply


def _unseen(resource: str, factor: float) -> Change:
    return lambda hardware, jobs: faster(hardware, jobs, [resource], factor)  # type: ignore[list-item]


def _changes(factors: Iterable[float]) -> Iterator[tuple[str, Change]]:
    for factor in factors:
        for name, change in (("NIC", _nic), ("PCIe", _pcie)):
            yield f"{name} x{factor:g}", _seen_by_nccl(change, factor)
        for resource in ("network", "nvlink", "pcie", "disk", "cpu", "gpu"):
            yield f"{resource} x{factor:g}", _unseen(resource, factor)


# --- what may explain a slower step --------------------------------------------------------------------------------


def _decisions(run: Run) -> list[tuple[str, str]]:
    plan = run.rings[0]
    if not isinstance(plan, CollectivePlan):
        return []
    return [plan.choice(nbytes)[:2] for nbytes in sorted(messages_of_step(run))]


def _crowds(run: Run, base: Run) -> bool:
    """Tell whether a faster network takes the cores of loaders for a shorter while, when these have none to spare, instead of idle ones."""
    takes_cores = any(node.nic.transport.cpu_time_per_byte for node in run.nodes())
    now, before = run.jobs[0].warm, base.jobs[0].warm
    return takes_cores and now.stalls[Cause.PREP] - before.stalls[Cause.PREP] >= now.step_time - before.step_time


def _slower(hardware: str, workload: str, nodes: int, factors: Iterable[float]) -> list[str]:
    """Return what slows a step of *workload* on *hardware* though it is faster, and no decision of NCCL's explains it."""
    question = prepare(Scenario(hardware, workload, ("dataset.samples=20000",), nodes=nodes))
    base = simulate(question.hardware, question.jobs, cold=False)
    step, slower = base.jobs[0].warm.step_time, []
    for name, change in _changes(factors):
        machine, jobs = change(question.hardware, list(question.jobs))
        run = simulate(machine, jobs, cold=False)
        if run.jobs[0].warm.step_time <= SLOWER * step or _decisions(run) != _decisions(base):
            continue
        if _crowds(run, base):
            continue
        others = [simulate(machine, jobs, cold=False, lags=[moment * step] * len(jobs)).jobs[0].warm.step_time for moment in MOMENTS]
        if min(others) > SLOWER * step:
            slower.append(f"{workload} on {nodes} x {hardware}, {name}: {step:.5g} s to {min(others):.5g} s")
    return slower


def test_faster_hardware_never_slows_a_step() -> None:
    """Every part by itself, as NCCL sees it and unseen, in scenes that disks, cores, links or GPUs bound."""
    failures = [text for scene in SCENES for text in _slower(*scene, factors=(1.5, 4.0))]
    assert not failures, "\n".join(failures)


@pytest.mark.nightly
@pytest.mark.slow
def test_faster_hardware_never_slows_a_step_on_any_machine() -> None:
    """Every machine of the catalog on one and two nodes, each with a workload in turn."""
    failures, seen = [], 0
    for machine, workload in zip(sorted(catalog("hardware")), cycle(WORKLOADS), strict=False):
        for nodes in (1, 2):
            try:
                failures += _slower(machine, workload, nodes, factors=(2.0,))
            except SpecError:  # a cluster of several groups, or a job that does not fit
                continue
            seen += 1
    assert seen > 100
    assert not failures, "\n".join(failures)


# --- all-reduces -----------------------------------------------------------------------------------------------------


def _shrinking(hardware: str, nodes: int, version: str) -> list[str]:
    """Return where an all-reduce takes less time for more bytes by one algorithm, protocol and number of channels.

    NCCL adds a channel wherever each has enough bytes (enqueue.cc, ``nBytes < nc * nt * threadThreshold``): 64 KiB over two take less than
    a byte less over one.
    """
    rows = _rows(hardware, nodes, version)
    shrinking = [
        f"{nodes} x {hardware}, NCCL {version}: {one.nbytes} B take {one.time:.4g} s, {other.nbytes} B {other.time:.4g} s"
        for one, other in pairwise(rows)
        if other.time < one.time / SLOWER
        and all(getattr(one, same) == getattr(other, same) for same in ("algorithm", "protocol", "channels"))
    ]
    return shrinking


def _rows(hardware: str, nodes: int, version: str) -> tuple[CollectiveRow, ...]:
    return collective_table(hardware, "all_reduce", SIZES, nodes=nodes, tuning=Tuning(version)).rows


def test_more_bytes_never_take_less_time_by_one_algorithm() -> None:
    """From 1 KiB to 1 GiB; where time falls or leaps, NCCL changes its algorithm or protocol."""
    scenes = {(machine, nodes) for machine, _, _ in SCENES for nodes in (2, 16)}
    failures = [text for machine, nodes in sorted(scenes) for text in _shrinking(machine, nodes, "2.10")]
    assert not failures, "\n".join(failures)


@pytest.mark.nightly
def test_more_bytes_never_take_less_time_on_any_machine() -> None:
    """The same of every machine of the catalog, by all sets of rules of its tuner."""
    failures = []
    for machine in sorted(catalog("hardware")):
        for nodes in (1, 2, 4, 16):
            try:
                failures += [text for version in ("2.10", "2.16", "2.20", "2.30") for text in _shrinking(machine, nodes, version)]
            except SpecError:
                continue
    assert not failures, "\n".join(failures)


# --- all rates at once ---------------------------------------------------------------------------------------------

RATES, TIMES = {"bandwidth", "compute rate", "rate", "bit rate"}, {"time", "time per byte"}
UNITLESS_RATES = {("Volume", "iops_per_gib"), ("Kernels", "exponentials"), ("Kernels", "indexed_elements")}
LAYOUTS = (
    ("hgx-h100", "llama-3.2-1b", ("training.parallel={shard: parameters}",)),
    ("hgx-h100", "llama-3.2-1b", ("training.parallel={tensor: 2}",)),
    ("p4d.24xlarge", "llama-3.2-1b", ("training.parallel={pipeline: 2}", "training.gradient_accumulation_steps=8")),
)


def _dimensions(annotation: object) -> set[str]:
    marked = getattr(annotation, "__metadata__", ())
    return {mark.name for mark in marked if isinstance(mark, Dimension)}.union(*map(_dimensions, get_args(annotation)))


def _times(value: Any, factor: float) -> Any:
    if isinstance(value, dict):
        return {key: _times(each, factor) for key, each in value.items()}
    if isinstance(value, tuple):
        return tuple(_times(each, factor) for each in value)
    return value * factor if isinstance(value, int | float) else value


def quicker(value: Any, factor: float, same: dict[int, tuple[Any, Any]]) -> Any:
    """Return the description *value* with all rates *factor* times as high and all times as short; equal parts stay the *same* object."""
    if isinstance(value, tuple):
        return tuple(quicker(each, factor, same) for each in value)
    if isinstance(value, dict):
        return {key: quicker(each, factor, same) for key, each in value.items()}
    if not isinstance(value, Spec):
        return value
    if id(value) not in same:
        changed: dict[str, Any] = {}
        for name, field in type(value).model_fields.items():
            own, key = getattr(value, name), (type(value).__name__, name)
            marks = {mark.name for mark in field.metadata if isinstance(mark, Dimension)} | _dimensions(field.annotation)
            if key == ("Gpu", "efficiency"):  # over the time that a kernel would take at peak
                changed[name] = {
                    op: {peak: tuple((time / factor, share) for time, share in curve) for peak, curve in each.items()}
                    for op, each in own.items()
                }
            elif marks & RATES or key in UNITLESS_RATES:
                changed[name] = _times(own, factor)
            else:
                changed[name] = _times(own, 1 / factor) if marks & TIMES else quicker(own, factor, same)
        same[id(value)] = value, value.model_copy(update=changed)
    return same[id(value)][1]


def _tune_for(monkeypatch: pytest.MonkeyPatch, factor: float) -> None:
    """Change the units of the constants in NCCL's tuner and search, which no description has."""
    for module in (cost, threshold):
        monkeypatch.setattr(module, "MICROSECOND", 1e-6 / factor)
    for module in (cost, nccl_search):
        monkeypatch.setattr(module, "GB", 1e9 * factor)
    monkeypatch.setattr(nccl_search, "_ROUNDING", 1e6 * factor)


def _step(hardware: Hardware, jobs: list[Job]) -> float:
    return simulate(hardware, jobs, cold=False).jobs[0].warm.step_time


@pytest.mark.parametrize(("machine", "model", "nodes"), SCENES)
def test_twice_all_rates_halve_a_step(machine: str, model: str, nodes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """By dimensions: with half of all times and twice all rates, the constants of NCCL's tuner among them, half of the step."""
    question = prepare(Scenario(machine, model, ("dataset.samples=20000",), nodes=nodes))
    before, same = _step(question.hardware, list(question.jobs)), dict[int, tuple[Any, Any]]()
    _tune_for(monkeypatch, 2.0)
    jobs = [replace(job, workload=quicker(job.workload, 2.0, same)) for job in question.jobs]
    assert 2 * _step(quicker(question.hardware, 2.0, same), jobs) == pytest.approx(before, rel=1e-5)


@pytest.mark.parametrize(("machine", "model", "fields"), LAYOUTS)
def test_twice_all_rates_halve_a_step_of_a_layout(
    machine: str, model: str, fields: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    hardware, workload = load_hardware(machine).spec, load_workload(model, list(fields)).spec
    before, same = run_layout(hardware, workload, 8).step_time, dict[int, tuple[Any, Any]]()
    _tune_for(monkeypatch, 2.0)
    after = run_layout(quicker(hardware, 2.0, same), quicker(workload, 2.0, same), 8).step_time
    assert 2 * after == pytest.approx(before, rel=1e-5)


def test_only_the_constants_of_nccl_s_tuner_keep_it_from_halving() -> None:
    """The tuner compares its own microseconds and GB/s with the machine's, so it decides otherwise on one that is faster throughout."""
    question = prepare(Scenario("p4d.24xlarge", "bert-base-seq128", ("dataset.samples=20000",), nodes=2))
    same: dict[int, tuple[Any, Any]] = {}
    base = simulate(question.hardware, question.jobs, cold=False)
    jobs = [replace(job, workload=quicker(job.workload, 4.0, same)) for job in question.jobs]
    run = simulate(quicker(question.hardware, 4.0, same), jobs, cold=False)
    assert _decisions(run) != _decisions(base)
    assert 4 * run.jobs[0].warm.step_time != pytest.approx(base.jobs[0].warm.step_time, rel=1e-3)
