"""How are the parts of pre-training reported? Batch, sequence, steps, time and cost of each part, and the totals."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from sim.report.whole_job import tokens_text
from sim.study.pretraining import PretrainingPart
from sim.units import rounded_dollars, show

MOST_ROWS = 12
"""Maximum number of rows of the table; if there are more parts, it has the first and the last."""


def pretraining_document(parts: Sequence[PretrainingPart], price: float | None) -> dict[str, Any] | None:
    """Return *parts* at *price* (USD/s; None if unknown) and their totals; None if there are no parts."""
    if not parts:
        return None
    time = math.fsum(part.time for part in parts)
    return {
        "tokens": math.fsum(part.tokens for part in parts),
        "steps": sum(part.steps for part in parts),
        "time_s": time,
        "cost_usd": None if price is None else price * time,
        "parts": [
            {
                "tokens": part.tokens,
                "global_batch": part.global_batch,
                "sequence": part.sequence,
                "changes": list(part.changes),
                "steps": part.steps,
                "step_time_s": part.step_time,
                "tokens_per_s": part.global_batch * part.tokens_per_sample / part.step_time,
                "time_s": part.time,
                "cost_usd": None if price is None else price * part.time,
            }
            for part in parts
        ],
    }


def pretraining_lines(document: Mapping[str, Any]) -> list[str]:
    """Return the lines of the table of *document*."""
    cost = "" if document["cost_usd"] is None else f", ${rounded_dollars(document['cost_usd'])}"
    parts = document["parts"]
    total = f"{document['steps']:,} steps, {show(document['time_s'], 'time')}{cost}"
    lines = [
        f"  pre-training, {tokens_text(document['tokens'])} in {len(parts)} parts: {total}",
        f"    {'global batch':>12} {'sequence':>9} {'tokens':>20} {'steps':>10} {'step':>10} {'tokens/s':>12} {'time':>10}",
    ]
    shown = [*parts[: MOST_ROWS // 2], None, *parts[-MOST_ROWS // 2 :]] if len(parts) > MOST_ROWS else parts
    for part in shown:
        if part is None:
            lines.append(f"    ... {len(parts) - MOST_ROWS} more (--json lists them)")
            continue
        lines.append(
            f"    {part['global_batch']:>12,} {part['sequence']:>9,} {tokens_text(part['tokens']):>20} {part['steps']:>10,} "
            f"{show(part['step_time_s'], 'time'):>10} {part['tokens_per_s']:>12,.0f} {show(part['time_s'], 'time'):>10}"
            + (f"  {', '.join(part['changes'])}" if part["changes"] else "")
        )
    return lines
