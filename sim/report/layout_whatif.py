"""How does a what-if of a layout look? A table of resources by what twice of each brings, as text, JSON and CSV rows."""

from __future__ import annotations

from typing import Any

from sim.report.layout import layout_document, layout_name
from sim.study.layout_whatif import LayoutWhatIf
from sim.units import counted, show

_SEEN = 1e-3
"""Gain below which a resource is listed as having no effect."""
_NAMES = {
    "gpu": "GPUs",
    "nvlink": "NVLink",
    "pcie": "PCIe",
    "network": "network",
    "launch": "kernel launches",
    "disk": "disk",
    "cpu": "CPU cores, at loading",
    "spread": "variation of ranks",
}


def layout_whatif_document(found: LayoutWhatIf) -> dict[str, Any]:
    """Return the JSON document: the run's own, and ``resources`` best first."""
    document = layout_document(found.answer)
    now = found.answer.run.step_time
    document["resources"] = [
        {
            "resource": upgrade.resource,
            "twice_step_time_s": upgrade.twice,
            "twice_gain": now / upgrade.twice - 1.0,
            "infinite_step_time_s": upgrade.infinite,
            "infinite_gain": now / upgrade.infinite - 1.0,
        }
        for upgrade in found.upgrades
    ]
    document["twice_micro_batches_time_per_sample"] = found.more_micro_batches
    return document


def layout_whatif_text(document: dict[str, Any]) -> str:
    """Return what a person reads of *document*."""
    lines = [
        f"{document['workload']} on {document['hardware']}, {counted(document['gpus'], 'GPU')}, {layout_name(document)}: "
        f"step {show(document['step_time_s'], 'time')}",
        "",
        f"{'resource':>20} {'2x step':>10} {'gain':>8} {'infinite':>10}",
    ]
    nothing = []
    for row in document["resources"]:
        name = _NAMES[row["resource"]]
        if row["infinite_gain"] < _SEEN:
            nothing.append(name)
            continue
        gains = f"{100 * row['twice_gain']:>+7.1f}% {100 * row['infinite_gain']:>+9.1f}%"
        lines.append(f"{name:>20} {show(row['twice_step_time_s'], 'time'):>10} {gains}")
    if nothing:
        lines += ["", f"  No effect even if infinitely fast: {', '.join(nothing)}."]
    share = document["twice_micro_batches_time_per_sample"]
    if share is not None:
        lines.append(f"  Twice the micro-batches (and twice the global batch): {100 * (1 / share - 1):+.1f}% throughput.")
    return "\n".join(lines)
