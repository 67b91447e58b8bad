"""How is a run presented in a terminal? As a table with a bar for each cause, and a sentence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sim.analysis.memory import THRASHING
from sim.causes import BRIEF
from sim.events import LAYOUT_STALLS, STALLS, Cause
from sim.report.energy import energy_text, epoch_tokens
from sim.report.expected_error import interval_text
from sim.report.kinds import batch_text, gpus_text, tightest_gpu
from sim.report.prices import paid_text
from sim.report.saving import saved_text
from sim.report.validated import spread_text
from sim.report.whole_job import long_time, tokens_text, whole_job_text
from sim.simulate import Run
from sim.units import pluralized, rate_text, rounded, rounded_dollars, show

_BASIS = ("assumptions", "warnings")
BAR = 40
"""Characters of a full bar."""
NOTHING = 1e-5
"""Causes of up to this share of a step are not shown: a replayed profile copies at least 1 byte for each sample."""


def run_text(run: Run, document: Mapping[str, Any], number: int = 0, verbose: bool = False) -> str:
    """Return the report of one job of *run* from its JSON *document*; *verbose* adds the wait for every resource."""
    name = f"job {document['job']}: " if "job" in document else ""
    head = (
        f"{name}{document['workload']} on {document['hardware']}: {gpus_text(run, number)}, "
        f"{document.get('placement') or pluralized(document['nodes'], 'node')}, {batch_text(document)}, "
        f"{document['precision']}, {document['stack']}"
    )
    step, first = document["step_time_s"], document["first_epoch"]
    lines = [head, "", f"  step {show(step, 'time')}   {_rates(document)}", ""]
    lines += [f"  {'':12} {'warm epoch':>10} {'':6}  {'':{BAR}}  {'first':>11}"]
    for cause in STALLS:
        seconds, cold = document["stalls_s"][cause.value], first["stalls_s"][cause.value]
        if max(seconds, cold) <= NOTHING * step:
            continue
        lines.append(
            f"  {cause.value:12} {show(seconds, 'time'):>10} {100 * seconds / step:5.1f}%  {bar(seconds / step):{BAR}}  "
            f"{100 * cold / first['step_time_s']:10.1f}%  {BRIEF[cause]}"
        )
    lines += ["", f"  {document['verdict']}", ""]
    tokens = epoch_tokens(document)
    length = "" if tokens is None else f" of {tokens_text(tokens)}"
    job = document["whole_job"]
    if job is None or job["given"] != "tokens":  # else the job's tokens are of interest, not those of the data set
        lines.append(f"  epoch{length}: {_epoch(document['epoch_time_s'], document['cost_per_epoch_usd'])}")
        lines[-1] += f";  first: {_epoch(first['epoch_time_s'], first['cost_usd'])}"
    if job is not None:
        lines.append(f"  {whole_job_text(job)}")
    lines += [f"  {line}" for line in paid_text(document["price"], document["gpus"], _has_idle_gpus(run, number))]
    if document.get("energy") is not None:
        lines.append(f"  {energy_text(document['energy'], tokens, 'placement' in document, job)}")
    if "checkpoint" in document:
        lines.append(f"  {saved_text(document)}")
    memory = document["gpu_memory_bytes"]
    most = tightest_gpu(run, number).memory
    full = ", nearly full: the allocator frees and retries, and a step may take longer" if memory["total"] > THRASHING * most else ""
    of = f"{memory['total'] / 2**30:.1f} of {most / 2**30:.0f} GiB{_tightest_gpu_text(run, number)}{full}"
    lines.append(f"  GPU memory: {of}; error unknown: not compared with measured GPUs")
    lines += [*_exchange_lines(document), *error_lines(document)]
    if verbose:
        lines += ["", "  waited for, in a warm step:"]
        lines += [f"    {show(row.seconds, 'time'):>10}  {row.cause.value:12}  {row.resource}" for row in run.jobs[number].warm.resources]
    basis = basis_lines(document)
    return "\n".join([*lines, "", *basis] if basis else lines)


def several_text(run: Run, documents: Sequence[Mapping[str, Any]], verbose: bool = False) -> str:
    """Return the reports of several jobs of *run*; what all jobs assume, or are warned of, is listed once, at the end."""
    plain = [
        {**document, **{key: [text.removeprefix(f"jobs.{number}: ") for text in document[key]] for key in _BASIS}}
        for number, document in enumerate(documents)
    ]
    common = {key: [text for text in plain[0][key] if all(text in other[key] for other in plain)] for key in _BASIS}
    own = [{**document, **{key: [text for text in document[key] if text not in common[key]] for key in _BASIS}} for document in plain]
    texts = [run_text(run, document, number, verbose) for number, document in enumerate(own)]
    return "\n\n".join([*texts, "\n".join(["all jobs:", "", *basis_lines(common)])])


def _rates(document: Mapping[str, Any]) -> str:
    """Return samples per second, tokens per second if samples are sequences, and MFU if available."""
    rates = [f"{rate_text(document['throughput_samples_per_s'])} samples/s"]
    rates += [f"{document['tokens_per_s']:,.0f} tokens/s"] if "tokens_per_s" in document else []
    used = document.get("model_flops_utilization")
    return "   ".join([*rates, *([] if used is None else [f"MFU {100 * used:.1f}%"])])


def _has_idle_gpus(run: Run, number: int) -> bool:
    """Return whether nodes of job *number* have GPUs without a job."""
    shared = [slot for slot in run.cluster if any(job == number for job, _ in slot.lent_gpus)]
    return any(sum(len(gpus) for _, gpus in slot.lent_gpus) < slot.node.gpu_count for slot in shared)


def _tightest_gpu_text(run: Run, number: int) -> str:
    """Return the kind of GPU on which memory is tightest, if the job has several kinds."""
    several = len({node.gpu.name for node in run.nodes(number)}) > 1
    return f", on {tightest_gpu(run, number).name}" if several else ""


def bar(share: float, width: int = BAR) -> str:
    """Return a bar of *share* (0..1) of *width* characters, in eighths of a character."""
    eighths = round(max(0.0, min(1.0, share)) * width * 8)
    full, rest = divmod(eighths, 8)
    return "█" * full + ("", "▏", "▎", "▍", "▌", "▋", "▊", "▉")[rest]


def _epoch(seconds: float, cost: float | None) -> str:
    return long_time(seconds) + ("" if cost is None else f", ${rounded_dollars(cost)}")


def stall_lines(document: Mapping[str, Any], meanings: Mapping[Cause, str]) -> list[str]:
    """Return a line with a bar for each cause of a rank's step in *document*; *meanings* describe the causes."""
    lines, step = [], document["step_time_s"]
    for cause in LAYOUT_STALLS:
        seconds = document["stalls_s"][cause.value]
        if seconds > NOTHING * step:
            share = f"{show(seconds, 'time'):>10} {100 * seconds / step:5.1f}%"
            lines.append(f"  {cause.value:12} {share}  {bar(seconds / step):{BAR}}  {meanings[cause]}")
    return lines


def basis_lines(document: Mapping[str, Any]) -> list[str]:
    """Return the lines of the assumptions and warnings of *document*."""
    lines = []
    for title, key in zip(("Assumed", "Warnings"), _BASIS, strict=True):
        if document[key]:
            lines += [f"  {title}:", *(f"    - {text}" for text in document[key])]
    return lines


def _exchange_lines(document: Mapping[str, Any]) -> list[str]:
    exchange = document["collective"]
    if exchange is None:
        return []
    bus = show(exchange["busbw_bytes_per_s"], "bandwidth")
    if exchange["algorithm"].startswith("parameter_server"):
        subject = "one worker alone" if exchange["algorithm"].endswith("async") else "each of the workers"
        return [f"  parameter servers: {subject} pushes and pulls {bus}, bound by {exchange['bottleneck']}"]
    channels = f"{exchange['channels']} channel{'s' * (exchange['channels'] > 1)}"
    how = f"{exchange['algorithm']} {exchange['protocol']}, {channels}"
    return [f"  all-reduce: {how}, bus bandwidth {bus}, bound by {exchange['bottleneck']}"]


def error_lines(document: Mapping[str, Any]) -> list[str]:
    """Return lines on the error of such predictions for measured runs."""
    error = document["expected_error"]
    if error is None:
        return ["  expected error: unknown, because no run on this kind of machine was measured"]
    return [
        f"  expected error: {spread_text(error)};",
        f"    {interval_text(error, document['step_time_s'])};",
        f"    {error['basis']}".replace("; ", ";\n    "),
    ]


def scaling_text(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return a scaling table: one row per job of a run, efficiency relative to the job's first row, and the warnings of the last run.

    A row that cannot run contains the reason.
    """
    ran = [row for row in rows if "infeasible" not in row]
    several = any("job" in row for row in ran)
    base: dict[int, float] = {}
    for row in ran:
        base.setdefault(row.get("job", 0), row["throughput_samples_per_s"] / row["gpus"])
    head = f"{'nodes':>6} {'GPUs':>6} {'step':>10} {'samples/s':>12} {'efficiency':>11} {'USD/epoch':>10}  largest stall"
    if with_job := any(row["whole_job"] for row in ran):
        head = head.replace("  largest stall", f" {'whole job':>10} {'USD':>10} {'epochs':>8}  largest stall")
    lines = [("   job" if several else "") + head]
    for row in rows:
        job = f"{row.get('job', ''):>6}" if several else ""
        lines.append(job + (_scaling_row(row, base[row.get("job", 0)], with_job) if row in ran else _infeasible_row(row)))
    last = ran[-1 - ran[-1].get("job", 0) :] if ran else []
    if warned := {text: None for row in last for text in row["warnings"]}:
        lines += ["", "  Warnings, of the last run:", *(f"    - {text}" for text in warned)]
    return "\n".join(lines)


def _scaling_row(row: Mapping[str, Any], base: float, with_job: bool) -> str:
    stall = max((name for name in row["stalls_s"] if name != "compute"), key=lambda name: row["stalls_s"][name])
    cost = "-" if row["cost_per_epoch_usd"] is None else rounded_dollars(row["cost_per_epoch_usd"])
    efficiency = 100 * row["throughput_samples_per_s"] / row["gpus"] / base
    job = _job_cells(row["whole_job"]) if with_job else ""
    return (
        f"{row['nodes']:>6,} {row['gpus']:>6,} {show(row['step_time_s'], 'time'):>10} {rate_text(row['throughput_samples_per_s']):>12} "
        f"{efficiency:>9.1f}% {cost:>10}{job}  {stall} {100 * row['stalls_s'][stall] / row['step_time_s']:.0f}%"
    )


def _job_cells(job: Mapping[str, Any]) -> str:
    cost = "-" if job["cost_usd"] is None else rounded_dollars(job["cost_usd"])
    return f" {show(job['time_s'], 'time'):>10} {cost:>10} {rounded(job['epochs'], 4):>8}"


def _infeasible_row(row: Mapping[str, Any]) -> str:
    return f"{row['nodes']:>6,} {row['gpus']:>6,}  {row['infeasible_briefly']}"
