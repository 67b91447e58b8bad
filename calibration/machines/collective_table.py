"""Which description makes `run` and `collective` predict with constants fitted to measured collectives of one machine?

The rows of a table are fitted as the collectives of a machine record are (`calibration.machines.nccl_fit`): factors on the efficiency and
latency of each transport class that they cross and on launches, near what systems of such classes usually differ by. The description
written extends the machine of the rows and replaces the constants that they determine. A machine whose rows cover one node only says
nothing about its network, and keeps that of its description.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np

from calibration import HARDWARE
from calibration.collectives.records import CollectiveRecord
from calibration.machines.fit_run import drafts_of, file_reference, fit_table, write_hardware
from calibration.machines.machine_fit import Fit
from calibration.machines.nccl_fit import MeasuredCollective, PredictedTimes, fit_factors, transport_blocks
from sim.spec.library import load_hardware
from sim.spec.whole_file import write_file
from sim.spec.yaml import SpecError
from sim.units import pluralized


class FittedMachine(NamedTuple):
    """The fit of a machine's transport classes, and the errors (fractions) of the same rows without and with it."""

    fit: Fit
    before: Sequence[float]
    after: Sequence[float]
    nodes: int
    """The most nodes of a row."""


def write_machine(records: Sequence[CollectiveRecord], table: Path, output: Path) -> FittedMachine:
    """Fit the machine of *records*, the rows of *table*, and write its description to *output*.

    Raise SpecError if they are of several machines, or determine no constant, or if *output* is not a YAML file.
    """
    if output.suffix not in (".yaml", ".yml"):
        raise SpecError(f"--hardware-out {output}: the name of the file must end in .yaml")
    names = list(dict.fromkeys(record.hardware for record in records))
    if len(names) > 1:
        raise SpecError(f"--hardware-out {output}: {table} has rows of {', '.join(names)}; fit a table of one machine")
    if overrides := next((record.overrides for record in records if record.overrides), ()):
        raise SpecError(
            f"--hardware-out {output}: {table} describes its machine in words ({names[0]} with {'; '.join(overrides)}); describe it in a "
            "file, and name this in a column hardware"
        )
    hardware = load_hardware(names[0], library=HARDWARE).spec
    measured, times = [_measured(record) for record in records], [record.time for record in records]
    fit = fit_factors(hardware, measured, times)
    blocks = transport_blocks(fit, measured, hardware, f"{table.name}, {pluralized(len(records), 'row')}") if fit else {}
    if not fit or not blocks:
        raise SpecError(
            f"{table}: {pluralized(len(records), 'row')} of {names[0]} determine no constant; measure more sizes, from 1 KiB to 1 GiB"
        )
    block = {"name": output.stem, "extends": file_reference(names[0], output) or names[0], "node": blocks}
    with drafts_of(output) as (draft, _):
        written = write_hardware(block, draft, HARDWARE)
        write_file(output, draft.read_text(encoding="utf-8"))
    before, after = (_errors(PredictedTimes(machine, measured).times({}), times) for machine in (hardware, written))
    return FittedMachine(fit, before, after, max(record.nodes for record in records))


def _measured(record: CollectiveRecord) -> MeasuredCollective:
    ranks = record.nodes * record.gpus_per_node
    return MeasuredCollective(ranks, record.nodes, record.op, int(record.nbytes), record.tuning, record.gpus_per_process, record.waits)


def _errors(predicted: Sequence[float], times: Sequence[float]) -> list[float]:
    return [float(error) for error in np.array(predicted) / np.array(times) - 1.0]


def machine_text(fitted: FittedMachine) -> str:
    """Return the fitted factors with their intervals, and the errors of the rows without and with them."""
    before, after = (
        f"{100 * median(map(abs, errors)):.0f}% ({100 * max(map(abs, errors)):.0f}%)" for errors in (fitted.before, fitted.after)
    )
    table = fit_table({fitted.fit.subject: fitted.fit})
    return f"{table}\n\nmedian (largest) error of these rows: {before} as described, {after} fitted"


def machine_document(fitted: FittedMachine) -> list[dict[str, Any]]:
    """Return the fitted factors for JSON."""
    return [
        {"factor": one.name, "value": one.value, "low": one.low, "high": one.high, "identified": one.identified}
        for one in fitted.fit.posterior.estimates
    ]
