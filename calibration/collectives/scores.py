"""How large are errors of predicted collectives, by system, operation and size? Scores, and their table.

*Zero-shot* scores of a system use constants fitted without any of its rows. *Calibrated* scores also use one factor on the bandwidth of the
classes that bound its network, set by its own largest message there, which is then not scored.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import median
from typing import Any, NamedTuple

import numpy as np

from calibration import RECORDS
from calibration.collectives.fit import (
    BANDS,
    RecordBatch,
    TransportConstants,
    band_of,
    bounding_classes,
    committed_constants,
    constants_without,
    predicted_time,
)
from calibration.collectives.records import CollectiveRecord, read_collectives

ERRORS = RECORDS / "collective_errors.csv"
"""The scores of all systems when the table was last written (``python -m calibration collectives --write``)."""
AIMS: Mapping[str, Mapping[str, float]] = {
    "NVLink and InfiniBand": dict(zip((name for name, _, _ in BANDS), (0.10, 0.10, 0.04), strict=True)),
    "EFA, Slingshot, TCP": dict(zip((name for name, _, _ in BANDS), (0.20, 0.20, 0.10), strict=True)),
}
_AIMED = {name: "NVLink and InfiniBand" for name in ("nvlink", "infiniband", "roce")} | {
    name: "EFA, Slingshot, TCP" for name in ("efa", "slingshot", "tcp")
}


def aim_of(network: str, band: str) -> float | None:
    """Return the aim for the median error over *network* in *band*, or None."""
    return AIMS[_AIMED[network]][band] if network in _AIMED else None


class BandScore(NamedTuple):
    """Relative errors of one group in one band: number, median and 90th percentile of the absolute error, and signed median."""

    points: int
    median: float
    p90: float
    signed: float = 0.0


class GroupScore(NamedTuple):
    """Errors of one operation over one network of one system by band, zero-shot and calibrated."""

    system: str
    network: str
    op: str
    zero_shot: Mapping[str, BandScore]
    calibrated: Mapping[str, BandScore]


class PredictedCollective(NamedTuple):
    """One row with its zero-shot prediction, seconds."""

    record: CollectiveRecord
    seconds: float

    @property
    def error(self) -> float:
        """Return the signed relative error, above zero if the prediction is too slow."""
        return self.seconds / self.record.time - 1.0


LeftOutSystems = list[tuple[list[CollectiveRecord], TransportConstants]]
"""The rows of each system, with constants that were fitted without them."""


def leave_systems_out(records: Sequence[CollectiveRecord] | None = None, systems: Sequence[str] | None = None) -> LeftOutSystems:
    """Return the rows of each of *systems* (default: all) in *records* (default: the committed ones), with constants fitted without it."""
    all_records = read_collectives()
    chosen, base = all_records if records is None else records, committed_constants()
    left_out: LeftOutSystems = []
    for system in systems or dict.fromkeys(record.system for record in chosen):
        rows_of_system = [record for record in chosen if record.system == system]
        left_out.append((rows_of_system, constants_without(rows_of_system, all_records, base)))
    return left_out


def score_all(systems: LeftOutSystems, progress: Callable[[int, int], None] = lambda done, of: None) -> list[GroupScore]:
    """Return the scores of all *systems*; *progress* is called with the number done and their total."""
    scored = []
    for number, (rows_of_system, constants) in enumerate(systems, 1):
        scored += score(rows_of_system, constants)
        progress(number, len(systems))
    return scored


def predict_all(systems: LeftOutSystems) -> list[PredictedCollective]:
    """Return every row of *systems* with its prediction."""
    return [
        PredictedCollective(record, seconds)
        for rows_of_system, constants in systems
        for record, seconds in zip(rows_of_system, RecordBatch(rows_of_system).times(constants), strict=True)
    ]


def score(records: Sequence[CollectiveRecord], constants: TransportConstants) -> list[GroupScore]:
    """Return the errors of *constants* on one system's rows, unchanged and with one factor on the bandwidth of each network."""
    scored = []
    for network in dict.fromkeys(record.network for record in records):
        rows = [record for record in records if record.network == network]
        anchor = _anchor(rows)
        zero_shot = RecordBatch(rows).times(constants)
        calibrated = RecordBatch(rows).times(_scaled(rows[anchor], constants))
        for op in dict.fromkeys(record.op for record in rows):
            places = [place for place, record in enumerate(rows) if record.op == op]
            rest = [place for place in places if place != anchor]
            scored.append(GroupScore(rows[0].system, network, op, _bands(rows, zero_shot, places), _bands(rows, calibrated, rest)))
    return scored


def _anchor(records: Sequence[CollectiveRecord]) -> int:
    """Return the index of a system's largest message; among several, the one on the fewest GPUs."""
    sizes = [(record.nbytes, -record.nodes * record.gpus_per_node) for record in records]
    return sizes.index(max(sizes))


def _scaled(anchor: CollectiveRecord, constants: TransportConstants) -> TransportConstants:
    """Return *constants* with the bandwidth of the classes that bound *anchor* scaled until the predicted time is the measured one."""
    low, high = -2.0, 2.0
    names = bounding_classes(anchor)
    for _ in range(40):
        middle = (low + high) / 2
        if predicted_time(anchor, _faster(constants, names, middle)) > anchor.time:
            low = middle
        else:
            high = middle
    return _faster(constants, names, (low + high) / 2)


def _faster(constants: TransportConstants, names: Iterable[str], by: float) -> dict[str, dict[str, float]]:
    """Return *constants* with the bandwidths of *names* multiplied by e^*by*."""
    faster = {name: dict(values) for name, values in constants.items()}
    for name in names:
        for key in {"efficiency", "flow_cap"} & set(faster.get(name, {})):
            faster[name][key] *= math.exp(by)
    return faster


def _bands(records: Sequence[CollectiveRecord], times: Sequence[float], places: Iterable[int]) -> dict[str, BandScore]:
    errors: dict[str, list[float]] = defaultdict(list)
    for place in places:
        errors[band_of(records[place].nbytes)].append(times[place] / records[place].time - 1.0)
    return {name: _score(of_band) for name, of_band in errors.items()}


def _score(errors: Sequence[float]) -> BandScore:
    sizes = [abs(error) for error in errors]
    return BandScore(len(errors), median(sizes), float(np.quantile(sizes, 0.9)), median(errors))


# --- the table -------------------------------------------------------------------------------------------------------


def error_rows(scores: Sequence[GroupScore]) -> list[dict[str, str]]:
    """Return *scores* as rows of a table, one per system, network, operation and band."""
    return [
        {
            "system": group.system,
            "network": group.network,
            "op": group.op,
            "band": band,
            "zero_shot_points": str(score.points),
            "zero_shot_median": f"{score.median:.3f}",
            "zero_shot_p90": f"{score.p90:.3f}",
            "zero_shot_signed": f"{score.signed:.3f}",
            **_calibrated(group.calibrated.get(band)),
        }
        for group in scores
        for band, score in group.zero_shot.items()
    ]


def _calibrated(score: BandScore | None) -> dict[str, str]:
    if score is None:
        return {"calibrated_points": "0", "calibrated_median": "", "calibrated_p90": ""}
    return {"calibrated_points": str(score.points), "calibrated_median": f"{score.median:.3f}", "calibrated_p90": f"{score.p90:.3f}"}


def error_text(rows: Sequence[Mapping[str, str]]) -> str:
    """Return *rows* in aligned columns, in percent, followed by their summary by network and operation."""
    wide = max([26, *(len(row["system"]) for row in rows)])
    where = f"{'system':{wide}} {'network':10} {'op':14} {'band':8}"
    lines = [f"{where} {'rows':>4} {'zero-shot':>9} {'signed':>6} {'p90':>5} {'calibrated':>11} {'p90':>5}"]
    for row in rows:
        zero = f"{_percent(row['zero_shot_median']):>9} {_percent(row['zero_shot_signed']):>6} {_percent(row['zero_shot_p90']):>5}"
        calibrated = f"{_percent(row['calibrated_median']):>11} {_percent(row['calibrated_p90']):>5}"
        where = f"{row['system']:{wide}} {row['network']:10} {row['op']:14} {row['band']:8}"
        lines.append(f"{where} {row['zero_shot_points']:>4} {zero} {calibrated}")
    return "\n".join([*lines, "", *_summary_lines(rows)])


def _percent(fraction: str) -> str:
    return f"{100 * float(fraction):.0f}%" if fraction else "-"


def medians(rows: Sequence[Mapping[str, str]]) -> dict[tuple[str, str, str], tuple[int, float]]:
    """Return, by network, operation and band, the number of systems and the median of their zero-shot medians (one vote per system)."""
    errors: dict[tuple[str, str, str], list[float]] = defaultdict(list)
    for row in rows:
        errors[row["network"], row["op"], row["band"]].append(float(row["zero_shot_median"]))
    return {key: (len(values), median(values)) for key, values in errors.items()}


def _summary_lines(rows: Sequence[Mapping[str, str]]) -> list[str]:
    names = [name for name, _, _ in BANDS]
    lines = ["medians of systems, zero-shot, one vote per system", f"{'network':10} {'op':14} " + " ".join(f"{name:>16}" for name in names)]
    median_of = medians(rows)
    for network, op in dict.fromkeys((network, op) for network, op, _ in sorted(median_of)):
        cells = [_cell(network, name, median_of.get((network, op, name))) for name in names]
        lines.append(f"{network:10} {op:14} " + " ".join(f"{cell:>16}" for cell in cells))
    return lines


def _cell(network: str, band: str, counted: tuple[int, float] | None) -> str:
    if counted is None:
        return "-"
    systems, error = counted
    aim = aim_of(network, band)
    return f"{100 * error:.0f}%{f' (aim {100 * aim:.0f}%)' if aim else ''} of {systems}"


def prediction_rows(predictions: Sequence[PredictedCollective]) -> list[dict[str, Any]]:
    """Return each of *predictions* with what was measured; errors are above zero if it is too slow."""
    return [
        {
            **{name: getattr(record, name) for name in ("system", "network", "hardware")},
            "set": "; ".join(record.overrides),
            **{name: getattr(record, name) for name in ("nodes", "gpus_per_node", "op")},
            "bytes": int(record.nbytes),
            "measured_s": record.time,
            "predicted_s": seconds,
            "signed_error": row.error,
        }
        for row in predictions
        for record, seconds in [row]
    ]
