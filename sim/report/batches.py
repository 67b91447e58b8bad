"""How should different kinds of GPUs share a batch? The batch of each group, the time it saves, and whether a better split may exist."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sim import __version__
from sim.check import layout_stack_warnings
from sim.report.table import basis_lines
from sim.study.batches import Batches
from sim.units import rate_text, show


def batches_document(answer: Batches) -> dict[str, Any]:
    """Return the JSON document of *answer*."""
    search, best = answer.search, answer.search.best
    steps = answer.workload.training.gradient_accumulation_steps
    seconds = search.simulated_times[best]
    return {
        "schema": 1,
        "hardware": answer.hardware.name,
        "workload": answer.workload.name,
        "stack": answer.workload.training.stack.name,
        "precision": answer.workload.training.precision,
        "global_batch": search.total * steps,
        "step_time_s": seconds,
        "throughput_samples_per_s": search.total * steps / seconds,
        "groups": [
            {
                "gpu": group.node.gpu.name,
                "nodes": group.count,
                "gpus": share.gpus,
                "batch_per_gpu": batch,
                "most_that_fit": share.most,
                "work_s": search.work(number, batch),
            }
            for number, (group, share, batch) in enumerate(zip(answer.groups, search.shares, best, strict=True))
        ],
        "equal": None if answer.equal is None else {"batch_per_gpu": answer.equal[0][0], "step_time_s": answer.equal[1]},
        "by_peak": {"batches_per_gpu": list(answer.by_peak[0]), "step_time_s": answer.by_peak[1]},
        "simulated": search.simulated,
        "open": search.simulations_left,
        "complete": not search.simulations_left,
        "assumptions": [
            "each GPU's gradient is weighted by its number of samples; identical GPUs of a group get equal batches",
            "bounds: the compute of each GPU without waits, and simulated steps in which no GPU has more samples",
        ],
        "warnings": _warnings(answer),
        "version": __version__,
        "inputs_sha256": answer.inputs,
    }


def _warnings(answer: Batches) -> list[str]:
    left = answer.search.simulations_left
    unproven = [f"not proven: {left:,} divisions of the batch that may be better were not simulated (--simulate)"] if left else []
    return [*layout_stack_warnings(answer.workload), *unproven]


def batches_text(document: Mapping[str, Any]) -> str:
    """Return *document* as text for a terminal."""
    best = document["step_time_s"]
    proof = "proven best under the model" if document["complete"] else "the best of those simulated"
    lines = [
        f"{document['workload']} on {document['hardware']}: {document['global_batch']:,} samples per step, {document['precision']}, "
        f"{document['stack']}",
        f"  step {show(best, 'time')}   {rate_text(document['throughput_samples_per_s'])} samples/s, {proof} "
        f"({document['simulated']} simulated)",
        "",
        f"  {'group':<6}{'GPUs':>6}  {'kind':<24}{'samples per GPU':>16}{'at most':>9}{'work':>10}",
    ]
    for number, group in enumerate(document["groups"]):
        lines.append(
            f"  {number:<6}{group['gpus']:>6}  {group['gpu']:<24}{group['batch_per_gpu']:>16}{group['most_that_fit']:>9}"
            f"{show(group['work_s'], 'time'):>10}"
        )
    lines.append("")
    if document["equal"] is not None:
        lines.append(f"  {_compared('equal batches', [document['equal']['batch_per_gpu']], document['equal']['step_time_s'], best)}")
    peak = document["by_peak"]
    lines.append(f"  {_compared('by peak rate', peak['batches_per_gpu'], peak['step_time_s'], best)}")
    own = ",".join(str(group["batch_per_gpu"]) for group in document["groups"])
    lines += ["", f"  Run it: --set training.batches=[{own}]", "", *basis_lines(document)]
    return "\n".join(lines)


def _compared(name: str, sizes: list[int], seconds: float, best: float) -> str:
    return f"{name} ({' and '.join(map(str, sizes))}): {show(seconds, 'time')}, {100 * (seconds / best - 1):.1f}% longer"
