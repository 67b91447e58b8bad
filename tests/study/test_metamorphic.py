"""Does faster hardware ever slow a step? Metamorphic: each scene again with one part faster, all-reduces of growing messages.

A faster part may slow a step by 0.1% at most, unless NCCL decides otherwise for one of its messages than before, sockets take cores from
loaders that bound the step, or the loaders' work falls into another moment, of which the best is compared. No oracle but the relation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import cycle, pairwise

import pytest

from sim.events import Cause
from sim.report.nccl_choice import messages_of_step
from sim.simulate import Run, simulate
from sim.spec.catalogue import catalogue
from sim.spec.hardware import Hardware, Link, Node
from sim.spec.yaml import SpecError
from sim.study.collective import collective_table
from sim.study.faster import faster
from sim.study.scenario import Scenario, prepare
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
        others = [simulate(machine, jobs, cold=False, lag=moment * step).jobs[0].warm.step_time for moment in MOMENTS]
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
    """Every machine of the catalogue on one and two nodes, each with a workload in turn."""
    failures, seen = [], 0
    for machine, workload in zip(sorted(catalogue("hardware")), cycle(WORKLOADS), strict=False):
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
    """The same of every machine of the catalogue, by both versions."""
    failures = []
    for machine in sorted(catalogue("hardware")):
        for nodes in (1, 2, 4, 16):
            try:
                failures += [text for version in ("2.10", "2.30") for text in _shrinking(machine, nodes, version)]
            except SpecError:
                continue
    assert not failures, "\n".join(failures)
