"""How is a plan shown in a terminal? The best layouts, what limits each, the best simulated on each size, and what is proven."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sim.report.energy import kwh_text, power_cap_text
from sim.report.expected_error import error_sentence
from sim.report.plan import NOT_VALIDATED, PRICED, measured_tie
from sim.report.plan_changes import flip_lines, turn_text
from sim.report.table import basis_lines
from sim.report.whole_job import job_time, long_time, tokens_text
from sim.study.goodput import DAY
from sim.units import any_of, pluralized, rate_text, rounded, rounded_dollars, show


def plan_text(document: Mapping[str, Any], shown: int = 10) -> str:
    """Return *document* as text for a terminal, with at most *shown* layouts."""
    gpus, nodes = (any_of([f"{count:,}" for count in document[key]]) for key in ("gpus", "nodes"))
    lines = [
        f"{document['workload']} on {document['hardware']}: {gpus} GPU{'s' * (gpus != '1')}, {nodes} node{'s' * (nodes != '1')}, "
        f"global batch {document['global_batch']:,}",
        f"  {document['verdict']}",
        "",
        f"  {pluralized(document['candidates'], 'layout')}: {document['infeasible']:,} cannot fit, "
        + (f"{document['excluded_by_bound']:,} excluded by their bound" if document["complete"] else f"{document['open']:,} left open")
        + f", {document['simulated']:,} simulated",
        "",
        *_table(document, document["layouts"][:shown]),
    ]
    lines += _sizes(document, shown)
    if document["tokens"] is not None and document["layouts"][0]["job_time_s"] is not None:
        best = document["layouts"][0]
        energy = "" if best["job_energy_kwh"] is None else f", {kwh_text(best['job_energy_kwh'])}, {show(best['job_co2_kg'], 'mass')} CO2"
        job = f"{tokens_text(document['tokens'])}: {_job(best)}{energy} with the best layout"
        lines += ["", f"  {job}, in steps alone ('run' and 'goodput' add startup and checkpoints)"]
    if document["with_failures"] is not None:
        lines += [f"  {_failures_text(document['with_failures'])}"]
    if document["power_cap"] is not None:
        lines += [f"  With the best layout: {power_cap_text(document['power_cap'])}"]
    front = [
        str(place + 1) if place < shown else f"{place + 1} ({row['name']})"
        for place, row in enumerate(document["layouts"]) if row["pareto"]
    ]  # fmt: skip
    priced = document["layouts"][0]["cost_per_step_usd"] is not None
    of = "time, free memory and cost" if priced else f"time and free memory (no price; set one with {PRICED})"
    lines += ["", f"  Pareto-optimal in {of}: {', '.join(front[:12])}"]
    for turn in document["sensitivity"]:
        lines += [f"  {turn_text(turn)}", *(f"    {line}" for line in flip_lines(turn))]
    lines += ["", f"  Run the best: {document['layouts'][0]['command']}"]
    if document["layouts"][0]["extrapolated"] and (place := measured_tie(document["layouts"])) is not None:
        lines += [f"  Run row {place + 1}, which is like measured runs: {document['layouts'][place]['command']}"]
    lines += [f"  {error_sentence(document['expected_error'])}"]
    lines += ["", *basis_lines(document)]
    return "\n".join(lines)


def _job(row: Mapping[str, Any]) -> str:
    """Return time and cost of the whole job with the layout of *row*."""
    money = "" if row["job_cost_usd"] is None else f", ${rounded_dollars(row['job_cost_usd'])}"
    return f"{long_time(row['job_time_s'])}{money}"


def _sizes(document: Mapping[str, Any], shown: int) -> list[str]:
    """Return the best layout on each number of nodes, if there are several. What a size without any means is among the assumptions."""
    if len(document["nodes"]) == 1:
        return []
    lines = ["", "  Best simulated layout on each number of nodes:"]
    for nodes in document["nodes"]:
        best = next(((place, row) for place, row in enumerate(document["layouts"], start=1) if row["nodes"] == nodes), None)
        if best is None:
            lines.append(f"    {pluralized(nodes, 'node'):>9}: none")
            continue
        place, row = best
        job = "" if row["job_time_s"] is None else f", {_job(row)}"
        lines.append(
            f"    {pluralized(nodes, 'node'):>9}: {show(row['step_time_s'], 'time')} per step{job}; "
            + (f"row {place}" if place <= shown else f"{row['name']} [{row['stack']}]")
        )
    return lines


def _failures_text(weeks: Mapping[str, Any]) -> str:
    """Return a sentence on the job with failures."""
    low, high = weeks["interval95"]["days"]
    return (
        f"With failures: {long_time(DAY * weeks['days'])}, {job_time(DAY * low)} to {job_time(DAY * high)} in 95% of simulated runs; "
        f"{100 * weeks['effective_share']:.1f}% effective, {rounded(weeks['interruptions'])} interruptions; failure rate "
        f"'{weeks['reliability']['level']}' (--reliability), {pluralized(weeks['spares'], 'spare node')} (--spares)"
    )


_FigureColumn = tuple[str, str, Callable[[float], str]]
"""Title, key in a row, and the function that formats the figure."""


def _columns(document: Mapping[str, Any]) -> list[_FigureColumn]:
    """Return the columns of the table: rates per token if samples are sequences, else per sample."""
    unit, word, million = ("sample", "samples", "Msamples") if document["sequence"] is None else ("token", "tok", "Mtok")
    columns: list[_FigureColumn] = [
        ("step", "step_time_s", lambda seconds: show(seconds, "time")),
        (f"{word}/s/GPU", f"{unit}s_per_s_per_gpu", rate_text),
        ("MFU", "model_flops_utilization", lambda share: f"{100 * share:.1f}%"),
        ("free", "memory_headroom_bytes", lambda nbytes: f"{nbytes / 2**30:.1f} GiB"),
    ]
    if document["objective"] == "energy":
        return [*columns, (f"J/{'sample' if unit == 'sample' else word}", f"energy_per_{unit}_j", lambda joules: f"{joules:.3g}")]
    return [*columns, (f"USD/{million}", f"cost_per_{unit}_usd", lambda usd: f"{1e6 * usd:.3g}")]


def _table(document: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the table of *rows*, two lines each, without columns that are empty in all rows."""
    columns = [column for column in _columns(document) if any(row[column[1]] is not None for row in rows)]
    widths = [max(len(head) + 1, 10) for head, _, _ in columns]
    lines = [f"  {'':2}{''.join(f'{head:>{width}}' for (head, _, _), width in zip(columns, widths, strict=True))}  layout"]
    for place, row in enumerate(rows, start=1):
        figures = ["-" if row[key] is None else write(row[key]) for _, key, write in columns]
        cells = "".join(f"{figure:>{width}}" for figure, width in zip(figures, widths, strict=True))
        mark = "~" if row["tie"] and place > 1 else " "
        on = f"{pluralized(row['nodes'], 'node')}: " if len(document["nodes"]) > 1 else ""
        lines.append(f"  {place:>2}{mark}{cells[1:]}  {on}{row['name']} [{row['stack']}]{NOT_VALIDATED if row['not_validated'] else ''}")
        lines.append(f"     {row['limit']}" + ("" if place == 1 else f"; {row['why']}"))
    if any(row["tie"] for row in rows[1:]):
        lines.append("  ~ within the expected errors of the best")
    return lines
