"""Which machine could run what none of those asked for can? The smallest of the catalogue that passes every check, or how much is missing.

Small means GPU memory first, as that is what workloads do not fit into, then the price. Nothing is simulated. In data parallelism the least
memory that is enough is found by bisection, since less never is; what a layout needs of a GPU depends on how many there are.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection
from dataclasses import replace
from itertools import groupby

from sim.spec.listing import Row, hardware_rows
from sim.spec.yaml import SpecError
from sim.study.layout import able_hardware
from sim.study.memory_fit import is_shortage
from sim.study.scenario import Scenario, has_layout, prepare
from sim.units import show


def nearest_that_runs(scenario: Scenario, tried: Collection[str]) -> str:
    """Return in a sentence which machine of the catalogue, besides those *tried*, *scenario* could run on; else what is missing."""
    rows = [row for row in hardware_rows()[0] if row["gpus"]]
    rows.sort(key=lambda row: (_memory(row), float(row["price"] or 1e9), str(row["name"])))
    sizes = [list(some) for _, some in groupby(rows, _memory)]
    problem = ""
    laid = has_layout(scenario)
    for some in sizes[0 if laid else bisect_left(sizes, True, key=lambda some: not _short(scenario, some[0])) :]:
        for row in some:
            name = str(row["name"])
            try:
                there = replace(scenario, hardware=name)
                machine = able_hardware(there) if laid else prepare(there).hardware
            except SpecError as error:
                problem = error.problems[0]
                continue
            if name not in tried and not machine.hypothetical:
                return f"nearest that can: {name}, {row['gpus']} x {row['gpu']} of {show(_memory(row), 'binary size')}"
    if not problem and rows:
        problem = next(iter(_problems(scenario, rows[-1])), "")
    return f"nor can the machine with the largest GPUs of the catalogue: {problem}" if problem else "nothing else of the catalogue can"


def _memory(row: Row) -> float:
    return float(row["gpu_memory"] or 0)


def _problems(scenario: Scenario, row: Row) -> list[str]:
    try:
        prepare(replace(scenario, hardware=str(row["name"])))
    except SpecError as error:
        return list(error.problems)
    return []


def _short(scenario: Scenario, row: Row) -> bool:
    """Tell whether *scenario* needs more GPU memory than the machine of *row* has."""
    return any(map(is_shortage, _problems(scenario, row)))
