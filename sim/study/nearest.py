"""Which machine can run a job that none of the requested machines can? The smallest of the catalog that passes every check, if any.

Machines are ordered by GPU memory, because that is what workloads exceed, then by price. If none will do, the answer is what is missing.
Nothing is simulated. In data parallelism, the least sufficient memory is found by bisection, because less is never enough; the memory
that a layout needs per GPU depends on the number of GPUs. Where no machine is enough for data parallelism, layouts are searched as in
`compare`, by bisection over the memory of all GPUs together.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Sequence
from dataclasses import replace
from itertools import groupby

from sim.spec.hardware import Hardware
from sim.spec.library import load_hardware, load_workload
from sim.spec.listing import Row, hardware_rows
from sim.spec.yaml import SpecError
from sim.study.infeasible import Infeasible
from sim.study.layout import checked_hardware
from sim.study.plan.machines import is_planned, layout_fits, no_fit
from sim.study.power_cap import require_measured
from sim.study.scenario import Scenario, has_layout, loaded_hardware, prepare, sorted_overrides
from sim.units import show


def nearest_that_runs(scenario: Scenario, tried: Collection[str]) -> str:
    """Return a sentence on which machine of the catalog, besides those *tried*, *scenario* could run on, or else on what is missing."""
    rows = [row for row in hardware_rows()[0] if row["gpus"]]
    rows.sort(key=lambda row: (_memory(row), float(row["price"] or 1e9), str(row["name"])))
    sizes = [list(rows_of_size) for _, rows_of_size in groupby(rows, _memory)]
    problem = ""
    with_layout = has_layout(scenario)
    for rows_of_size in sizes[
        0 if with_layout else bisect_left(sizes, True, key=lambda rows_of_size: not _lacks_memory(scenario, rows_of_size[0])) :
    ]:
        for row in rows_of_size:
            name = str(row["name"])
            try:
                moved = replace(scenario, hardware=name)
                machine = checked_hardware(moved) if with_layout else prepare(moved).hardware
                _require_measured(moved, machine)
            except SpecError as error:
                problem = error.problems[0]
                continue
            if name not in tried and not machine.hypothetical:
                return f"nearest that can: {name}, {_gpus(row)}"
    if is_planned(scenario):
        if (smallest := _smallest_with_layout(scenario, rows, tried)) is not None:
            return f"nearest that can: {smallest['name']}, {_gpus(smallest)}, in a layout; 'python -m sim plan' searches for the best one"
        problem = no_fit(replace(scenario, hardware=str(rows[-1]["name"]))) or problem
    if not problem and rows:
        problem = _problem(scenario, rows[-1])
    return f"the catalog machine with the largest GPUs cannot either: {problem}" if problem else "no other catalog machine can"


def _memory(row: Row) -> float:
    return float(row["gpu_memory"] or 0)


def _gpus(row: Row) -> str:
    return f"{row['gpus']} x {row['gpu']} of {show(_memory(row), 'binary size')}"


def _smallest_with_layout(scenario: Scenario, rows: Sequence[Row], tried: Collection[str]) -> Row | None:
    """Return the row of a machine on which a layout fits, although not on the next smaller one; None if none is found."""
    candidates = [row for row in rows if row["name"] not in tried and _is_one_real_kind(load_hardware(str(row["name"])).spec)]
    candidates.sort(key=lambda row: (_memory(row) * float(row["gpus"] or 0), float(row["price"] or 1e9), str(row["name"])))

    def fits(row: Row) -> bool:
        moved = replace(scenario, hardware=str(row["name"]))
        try:
            _require_measured(moved, loaded_hardware(moved).spec)
            return layout_fits(moved)
        except SpecError:
            return False

    return next(iter(candidates[bisect_left(candidates, True, key=fits) :]), None)


def _is_one_real_kind(hardware: Hardware) -> bool:
    return not hardware.hypothetical and len(hardware.worker_groups) == 1


def _require_measured(scenario: Scenario, hardware: Hardware) -> None:
    """Raise SpecError if *scenario* has a power cap whose effect on *hardware* nobody measured."""
    if scenario.power_cap is not None:
        workload = load_workload(scenario.workload, sorted_overrides(scenario)[1]).spec
        require_measured(hardware.first_workers.node, workload, scenario.power_cap)


def _problem(scenario: Scenario, row: Row) -> str:
    """Return why *scenario* cannot run on the machine of *row*; empty if it can."""
    try:
        prepare(replace(scenario, hardware=str(row["name"])))
    except SpecError as error:
        return error.problems[0]
    return ""


def _lacks_memory(scenario: Scenario, row: Row) -> bool:
    """Return whether *scenario* needs more GPU memory than the machine of *row* has."""
    try:
        prepare(replace(scenario, hardware=str(row["name"])))
    except Infeasible as error:
        return error.shortage is not None
    except SpecError:
        return False
    return False
