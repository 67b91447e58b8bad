"""How well does the simulator predict the laboratory? It is calibrated on runs on one host and one network point; the rest is predicted.

The method is that of `calibration.validate.validation`: nothing is fitted to a predicted row. To its simple rules, one more is added,
*told*: the closed form with each row's own rate, at the share of the line from the calibrating rows, and with the row's delay for every
ring step.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from calibration import RECORDS
from calibration.lab.plan import WORKLOADS
from calibration.questions import Folders
from calibration.validate.baselines import RunCompute, closed_form
from calibration.validate.scores import ScoredRow, weighted_quantile
from calibration.validate.validation import Validation, validate
from sim.spec.yaml import SpecError

COMMITTED_ROWS: Final = RECORDS / "lab.csv"
PLAN: Final = Path(__file__).parent / "plans" / "two-cores.yaml"
RULES: Final = ("free_communication", "copy_row", "told")
_HEAD: Final = (
    f"{'':24} {'points':>6}  {'median/p90%':>13} {'skill':>6}   {'free':>6} {'copy':>6} {'told':>6}\n"
    f"{'':24} {'':>6}  {'':>13} {'':>6}   {'of the rules, median %':^20}"
)


def score(path: Path) -> Validation:
    """Return the comparison of predictions with the measured rows of *path*. Raise SpecError with all problems."""
    return _comparable(path, validate([path], Folders(None, WORKLOADS), 1))


def _comparable(path: Path, validation: Validation) -> Validation:
    """Return *validation*. Raise SpecError if it has no scored rows, or rows that no calibrating row can be copied to."""
    rows = validation.scored_rows
    if not rows or any("copy_row" not in row.predictions for row in rows):
        raise SpecError(
            f"{path}: has no rows of role {'network' if rows else 'prediction'} on these machines; pass a table written by "
            "'python -m calibration lab', or score other tables with 'python -m calibration validate'"
        )
    return validation


def informed_closed_form(row: ScoredRow, fitted: Sequence[ScoredRow]) -> float:
    """Return the step (s) of the closed form with the row's rate and delay, at the share of the line that explains the *fitted* rows."""
    share = weighted_quantile([_share(other) for other in fitted], [1.0] * len(fitted), 0.5) if fitted else 1.0
    return _closed(row, share)


def _closed(row: ScoredRow, share: float) -> float:
    hardware = row.question.hardware
    rate = hardware.groups[0].node.nic.bandwidth * share
    return closed_form(
        RunCompute(row.question, row.compute), (math.log(rate), math.log(rate), math.log(max(hardware.fabric.latency, 1e-9)))
    )


def _share(row: ScoredRow) -> float:
    """Return the share of the line with which the closed form matches the measured step, by bisection."""
    low, high = 0.05, 1.5
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if _closed(row, middle) > row.question.step_time else (low, middle)
    return low


def groups(rows: Sequence[ScoredRow]) -> dict[str, list[ScoredRow]]:
    """Return *rows* grouped by what differs from the calibrating rows (rates, models, delays, hosts, disks), and all rows."""
    plain = [row for row in rows if _plain(row)]
    grouped: dict[str, list[ScoredRow]] = {}
    for name, of, key in _VIEWS:
        chosen = plain if of else rows
        for value in sorted({key(row) for row in chosen if key(row) is not None}):
            grouped[f"{name} {value:g}" if isinstance(value, float) else f"{name} {value}"] = [row for row in chosen if key(row) == value]
    return {name: same for name, same in grouped.items() if same} | {"all": list(rows)}


def _plain(row: ScoredRow) -> bool:
    return row.question.record.input != "real" and row.question.nodes == 2 and not row.question.hardware.fabric.latency


_VIEWS: Final[tuple[tuple[str, bool, Callable[[ScoredRow], Any]], ...]] = (
    ("Mbps", True, lambda row: 8e-6 * row.question.hardware.groups[0].node.nic.bandwidth),
    ("model", True, lambda row: row.question.record.workload),
    ("ms one way", False, lambda row: 1e3 * row.question.hardware.fabric.latency or None),
    ("hosts", False, lambda row: row.question.nodes if row.question.nodes > 2 else None),
    ("from a", False, lambda row: "disk" if row.question.record.input == "real" else None),
)


def score_document(validation: Validation) -> dict[str, Any]:
    """Return the scores as one JSON document; errors are fractions."""
    fitted = [row for cluster in validation.clusters for row in cluster.network_rows]
    rows = [{"group": name, **_figures(same, fitted)} for name, same in groups(validation.scored_rows).items()]
    return {"schema": 1, "rows": rows, "notes": list(validation.notes)}


def _figures(rows: Sequence[ScoredRow], fitted: Sequence[ScoredRow]) -> dict[str, Any]:
    errors = {name: [abs(row.error(name)) for row in rows] for name in ("calibrated", *RULES[:2])}
    errors["told"] = [abs(informed_closed_form(row, fitted) / row.question.step_time - 1.0) for row in rows]
    median = {name: _quantile(values, 0.5) for name, values in errors.items()}
    best = min(median[name] for name in RULES)
    figures = {"points": len(rows), "median": median["calibrated"], "p90": _quantile(errors["calibrated"], 0.9)}
    return figures | {"skill": 1.0 - median["calibrated"] / best if best else None, "rules": {name: median[name] for name in RULES}}


def _quantile(values: Sequence[float], share: float) -> float:
    return weighted_quantile(values, [1.0] * len(values), share)


def score_table(validation: Validation) -> str:
    """Return the scores as text."""
    lines = [_HEAD]
    for row in score_document(validation)["rows"]:
        rules = " ".join(f"{100 * row['rules'][name]:6.1f}" for name in RULES)
        skill = "-" if row["skill"] is None else f"{row['skill']:.2f}"
        lines.append(f"{row['group']:24} {row['points']:6}  {100 * row['median']:5.1f} / {100 * row['p90']:4.1f} {skill:>7}   {rules}")
    return "\n".join(line.rstrip() for line in "\n".join(lines).splitlines())
