"""How much do AccPar's networks gain on an array of different boards? Every network and strategy, relative to data parallelism."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from calibration.studies.accpar.array import ArrayTimes, Board, BoardArray, Boards, array_times
from calibration.studies.accpar.network import network_of
from calibration.studies.accpar.strategies import STRATEGIES
from sim.spec.hardware import Group, Hardware
from sim.spec.library import Loaded, load_hardware, load_workload
from sim.spec.yaml import SpecError
from sim.study.pool import Progress, each

MODELS: Final = ("alexnet", "vgg11", "vgg13", "vgg16", "vgg19", "resnet18", "resnet34", "resnet50")
HARDWARE: Final = "256x-tpu-v2-v3"
BATCH: Final = 512
"""Global batch: samples per step of all boards (linghaosong/AccPar @8f28c36 src/main.cpp)."""
PUBLISHED: Final[Mapping[str, float]] = {"one weird trick": 2.98, "HyPar": 3.78, "AccPar": 6.30}
"""Mean speedups over data parallelism that the paper reports (HPCA 2020, abstract)."""
WIRES: Final = ("nic", "links")
"""Connections between boards: their NICs, or those links of the chips that the board does not use itself."""
TORUS_LINKS: Final = 4
"""Links of a chip in a two-dimensional torus; links that the board's own topology does not use lead to other boards."""


@dataclass(frozen=True)
class NetworkCase:
    """One kind of connection between boards and one model."""

    wires: str
    model: str
    array: BoardArray
    batch: int


@dataclass(frozen=True)
class StepResult:
    """The step times of one case with each strategy."""

    case: NetworkCase
    times: Mapping[str, ArrayTimes]

    def speedup(self, strategy: str) -> float:
        """Return the speedup of a step over data parallelism with equal halves."""
        return self.times["data parallel"].total / self.times[strategy].total


@dataclass(frozen=True)
class AccparStudy:
    """All results, in the order of `WIRES` and models."""

    hardware: Loaded[Hardware]
    batch: int
    results: Sequence[StepResult]
    inputs: Mapping[str, str] = field(default_factory=dict)

    @property
    def as_published(self) -> bool:
        """Return whether networks, array and batch are those of the paper's means."""
        same = (self.hardware.spec.name, self.batch) == (HARDWARE, BATCH)
        return same and {result.case.model for result in self.results} == set(MODELS)

    def results_with(self, wires: str) -> list[StepResult]:
        """Return the results for one kind of connection between boards."""
        return [result for result in self.results if result.case.wires == wires]

    def means(self, wires: str, strategy: str) -> tuple[float, float]:
        """Return the arithmetic and the geometric mean of the speedups of *strategy*."""
        gains = [result.speedup(strategy) for result in self.results_with(wires)]
        return sum(gains) / len(gains), math.exp(sum(map(math.log, gains)) / len(gains))


def accpar_study(
    hardware: str = HARDWARE,
    models: Sequence[str] = MODELS,
    batch: int = BATCH,
    overrides: Sequence[str] = (),
    processes: int | None = None,
    progress: Progress = lambda done, of: None,
) -> AccparStudy:
    """Return the step time of each of *models* on *hardware* with each strategy.

    Raise SpecError for a model with parallel paths that layer names do not identify, and for more boards than *batch* can be split over.
    """
    machine = load_hardware(hardware, list(overrides))
    inputs = {"hardware": machine.sha256} | {name: load_workload(name).sha256 for name in models}
    cases = [NetworkCase(wires, model, array_of(machine.spec, wires), batch) for wires in WIRES for model in models]
    results = []
    for result in each(solve_case, cases, processes):
        results.append(result)
        progress(len(results), len(cases))
    return AccparStudy(machine, batch, results, inputs)


def solve_case(case: NetworkCase) -> StepResult:
    """Return the step times of all strategies in *case*."""
    network = network_of(load_workload(case.model).spec.model, case.batch)
    return StepResult(case, {name: array_times(network, case.array, choose) for name, choose in STRATEGIES.items()})


def array_of(hardware: Hardware, wires: str) -> BoardArray:
    """Return the boards of *hardware*, slowest first, with each node as one board. Raise SpecError if they have no bfloat16 units."""
    groups = [group for group in hardware.groups if group.role == "worker" and group.node.gpu_count]
    boards = [Boards(_board(group, wires, hardware.name), group.count) for group in groups]
    return BoardArray(tuple(sorted(boards, key=lambda each: each.board.speed)))


def _board(group: Group, wires: str, name: str) -> Board:
    node = group.node
    if "bf16" not in node.gpu.peak:
        raise SpecError(f"{name}: {node.gpu.name} has no bf16 units, which AccPar needs; use hardware with bf16 units")
    bandwidth = node.nic.count * node.nic.bandwidth if wires == "nic" else _links_out(group, name)
    return Board(node.gpu.name, node.gpu_count * node.gpu.peak["bf16"], bandwidth)


def _links_out(group: Group, name: str) -> float:
    """Return the bandwidth (bytes/s) of the chips' links that the board does not use itself."""
    node, nvlink = group.node, group.node.nvlink
    if nvlink is None:
        return node.nic.count * node.nic.bandwidth
    free = TORUS_LINKS * node.gpu_count - 2 * sum(nvlink.pairs.values())
    if free <= 0 or nvlink.switch_links:
        raise SpecError(f"{name}: {node.gpu.name} has no links to other boards; use boards of chips in a torus, such as {HARDWARE}")
    return free * nvlink.link.bandwidth
