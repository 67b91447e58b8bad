"""Which errors does `sim collective` quote, and do they hold for a system that was never measured?

The 90th percentile of other systems' errors is too narrow for a new one, because systems differ. So it is widened by one factor: the
smallest with which 90% of the rows of a system, in the mean of systems, are within what the others imply.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Sequence
from statistics import median
from typing import Any, Final, NamedTuple

import numpy as np

from calibration import FOLDER
from calibration.collectives.fit import BANDS, band_of, layout_of
from calibration.collectives.scores import (
    ERRORS,
    PredictedCollective,
    error_rows,
    leave_systems_out,
    predict_all,
    score_all,
)
from sim.report.collective_error import SUMMARY
from sim.report.figures import figures_csv
from sim.spec.whole_file import write_file

COVERED: Final = 0.9
"""Share of the rows of a new system that the quoted 90th percentile contains."""


class Coverage(NamedTuple):
    """How many rows of new systems, over one kind of link, are within what would be quoted for them."""

    carrier: str
    systems: int
    points: int
    quoted: int
    """Rows over links on which another system was measured; nothing can be quoted for the others."""
    within: float | None
    """Share of the quoted rows whose error is at most the quoted 90th percentile, with equal weight for each system."""


class _QuotedRow(NamedTuple):
    """A row's absolute error as a multiple of the 90th percentile of other systems' errors; None if there are no others."""

    carrier: str
    system: str
    multiple: float | None


def summary(predictions: Sequence[PredictedCollective]) -> dict[str, Any]:
    """Return errors of zero-shot predictions by carrier of the bytes, operation and band, and for all operations together."""
    groups: dict[str, list[PredictedCollective]] = defaultdict(list)
    for row in predictions:
        for key in _quoted_from(row, _carrier(row)):
            groups[", ".join(key)].append(row)
    factor = widening(predictions)
    bands = [{"name": name, "to": high if math.isfinite(high) else None} for name, _, high in BANDS]
    figures = {name: _figures(rows, factor) for name, rows in sorted(groups.items())}
    return {"schema": 1, "bands": bands, "widening": round(factor, 2), "groups": figures}


def widening(predictions: Sequence[PredictedCollective]) -> float:
    """Return by what the 90th percentile of other systems' errors is multiplied for a new one; 1 if there are no other systems."""
    multiples: dict[str, list[float]] = defaultdict(list)
    for row in _quoted_rows(predictions):
        if row.multiple is not None:
            multiples[row.system].append(row.multiple)
    weighted = sorted((multiple, 1 / len(of_system)) for of_system in multiples.values() for multiple in of_system)
    within = 0.0
    for multiple, weight in weighted:
        within += weight
        if within >= COVERED * len(multiples):
            return max(1.0, multiple)
    return 1.0


def coverage(predictions: Sequence[PredictedCollective], factor: float) -> list[Coverage]:
    """Return the coverage of each kind of link, if a system is quoted *factor* times the 90th percentile of the others' errors."""
    by_carrier: dict[str, list[_QuotedRow]] = defaultdict(list)
    for row in _quoted_rows(predictions):
        by_carrier[row.carrier].append(row)
    return [_coverage(carrier, rows, factor) for carrier, rows in sorted(by_carrier.items())]


def _coverage(carrier: str, rows: Sequence[_QuotedRow], factor: float) -> Coverage:
    held: dict[str, list[bool]] = defaultdict(list)
    for row in rows:
        if row.multiple is not None:
            held[row.system].append(row.multiple <= factor)
    shares = [sum(of_system) / len(of_system) for of_system in held.values()]
    quoted = sum(map(len, held.values()))
    return Coverage(carrier, len({row.system for row in rows}), len(rows), quoted, sum(shares) / len(shares) if shares else None)


def _quoted_rows(predictions: Sequence[PredictedCollective]) -> list[_QuotedRow]:
    errors: dict[tuple[str, ...], dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    carriers = [_carrier(row) for row in predictions]
    for row, carrier in zip(predictions, carriers, strict=True):
        for key in _quoted_from(row, carrier):
            errors[key][row.record.system].append(abs(row.error))
    limits: dict[tuple[str, tuple[str, ...]], float] = {}
    for key, of_systems in errors.items():
        for system in of_systems if len(of_systems) > 1 else ():
            others = [error for other, of_other in of_systems.items() if other != system for error in of_other]
            limits[system, key] = float(np.quantile(others, 0.9))
    quoted = []
    for row, carrier in zip(predictions, carriers, strict=True):
        keys = ((row.record.system, key) for key in _quoted_from(row, carrier))
        limit = next((limits[key] for key in keys if key in limits), None)
        quoted.append(_QuotedRow(carrier, row.record.system, None if limit is None else abs(row.error) / limit))
    return quoted


def _carrier(row: PredictedCollective) -> str:
    return layout_of(row.record).carrier(row.record.op)


def _quoted_from(row: PredictedCollective, carrier: str) -> tuple[tuple[str, ...], ...]:
    """Return the groups whose errors are quoted for *row*, as in `sim.report.collective_error`: its operation's, or any operation's."""
    band = band_of(row.record.nbytes)
    return (carrier, row.record.op, band), (carrier, "any operation", band)


def _figures(rows: Sequence[PredictedCollective], factor: float) -> dict[str, Any]:
    errors = [abs(row.error) for row in rows]
    return {
        "points": len(rows),
        "median": round(median(errors), 3),
        "p90": round(factor * float(np.quantile(errors, 0.9)), 3),
        "systems": sorted({row.record.system for row in rows}),
        "architectures": sorted({part.slot.node.gpu.architecture for row in rows for part in layout_of(row.record).parts}),
        "most_nodes": max(row.record.nodes for row in rows),
        "most_gpus": max(row.record.nodes * row.record.gpus_per_node for row in rows),
        "most_bytes": max(row.record.nbytes for row in rows),
    }


def publish() -> list[dict[str, str]]:
    """Score all committed rows, write the table and the summary that `sim collective` quotes, and return the table's rows."""
    systems = leave_systems_out()
    rows = error_rows(score_all(systems))
    write_file(ERRORS, figures_csv(rows))
    write_file(FOLDER.parent / SUMMARY, json.dumps(summary(predict_all(systems)), indent=1) + "\n")
    return rows
