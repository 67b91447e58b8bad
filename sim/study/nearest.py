"""Which machine could run what none of those asked for can? The smallest of the catalogue that passes every check, or how much is missing.

Small means GPU memory first, as that is what workloads do not fit into, then the price. Nothing is simulated.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from sim.spec.listing import hardware_rows
from sim.spec.yaml import SpecError
from sim.study.scenario import Scenario, prepare
from sim.units import show


def nearest_that_runs(scenario: Scenario, tried: Collection[str]) -> str:
    """Return in a sentence which machine of the catalogue, besides those *tried*, *scenario* could run on; else what is missing."""
    rows = [row for row in hardware_rows()[0] if row["gpus"]]
    rows.sort(key=lambda row: (float(row["gpu_memory"] or 0), float(row["price"] or 1e9), str(row["name"])))
    problem = ""
    for row in rows:
        name = str(row["name"])
        try:
            found = prepare(replace(scenario, hardware=name)).hardware
        except SpecError as error:
            problem = error.problems[0]
            continue
        if name not in tried and not found.hypothetical:
            return f"nearest that can: {name}, {row['gpus']} x {row['gpu']} of {show(float(row['gpu_memory'] or 0), 'binary size')}"
    return f"nor can the machine with the largest GPUs of the catalogue: {problem}" if problem else "nothing else of the catalogue can"
