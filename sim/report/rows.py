"""How is a run written to a spreadsheet? One row per job of a run, one column per figure, units in the column names.

A point that cannot run has a row as well: it contains only names, its size and, in the last column, the reason.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from typing import Any

from sim.report.energy import energy_columns
from sim.report.figures import safe_cells

_PLAIN = (
    "hardware", "workload", "stack", "nodes", "gpus", "batch_per_gpu", "precision", "step_time_s", "throughput_samples_per_s",
    "epoch_time_s", "cost_per_epoch_usd",
)  # fmt: skip


def run_row(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return one job's *document* as a flat row."""
    row = {name: document[name] for name in _PLAIN}
    row |= {f"{name}_s": seconds for name, seconds in document["stalls_s"].items()}
    first = document["first_epoch"]
    row |= {f"first_{name}": first[name] for name in ("step_time_s", "epoch_time_s", "cost_usd")}
    row |= {f"first_{name}_s": seconds for name, seconds in first["stalls_s"].items()}
    job = document.get("whole_job") or {}
    row |= {f"job_{name}": job[name] for name in ("epochs", "time_s", "cost_usd") if job}
    row |= energy_columns(document.get("energy"))
    error = document.get("expected_error") or {}
    row |= {f"expected_error_{name}": error.get(name) for name in ("median", "p90")}
    row |= {"not_validated": "; ".join(error["not_validated"])} if "not_validated" in error else {}
    return row | {"gpu_memory_bytes": document["gpu_memory_bytes"]["total"]}


def run_csv(documents: Sequence[Mapping[str, Any]]) -> str:
    """Return *documents* as CSV text with a header."""
    rows = [_row(document) for document in documents]
    text = io.StringIO()
    writer = csv.DictWriter(text, max(map(list, rows), key=len), lineterminator="\n")
    writer.writeheader()
    writer.writerows(map(safe_cells, rows))
    return text.getvalue()


def _row(document: Mapping[str, Any]) -> dict[str, Any]:
    if "infeasible" not in document:
        return {"job": document.get("job", 0), **run_row(document), "infeasible": None}
    return {"job": 0, **{name: document.get(name) for name in _PLAIN}, "infeasible": document["infeasible"]}
