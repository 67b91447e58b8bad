"""How is a what-if of a layout reported? A table of resources by the gain from doubling each, as text, JSON and CSV rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sim.report.expected_error import error_sentence
from sim.report.layouts.layout import layout_document, layout_name
from sim.report.whatif import CHOSEN, NOTICEABLE, idle_lines
from sim.study.layout_whatif import LINKS, LayoutUpgrade, LayoutWhatIf
from sim.units import pluralized, show

NAMES = {
    "gpu": "GPUs",
    "nvlink": "NVLink",
    "pcie": "PCIe",
    "network": "network",
    "launch": "kernel launches",
    "disk": "disk",
    "cpu": "CPU cores of loaders",
    "copy": "copy to the GPU",
    "spread": "rank variation",
    "links": "all links at once",
}


def layout_whatif_document(answer: LayoutWhatIf) -> dict[str, Any]:
    """Return the JSON document: that of the run itself, ``resources`` best first, and all ``links`` at once."""
    document = layout_document(answer.answer)
    now = answer.answer.run.step_time
    document["resources"] = [_gains(upgrade, now) for upgrade in answer.upgrades]
    document["links"] = _gains(answer.links, now)
    document["twice_micro_batches_time_per_sample"] = answer.more_micro_batches
    return document


def _gains(upgrade: LayoutUpgrade, now: float) -> dict[str, Any]:
    return {
        "resource": upgrade.resource,
        "twice_step_time_s": upgrade.twice,
        "twice_gain": now / upgrade.twice - 1.0,
        "infinite_step_time_s": upgrade.infinite,
        "infinite_gain": now / upgrade.infinite - 1.0,
    }


def layout_whatif_text(document: dict[str, Any]) -> str:
    """Return *document* as text for a terminal."""
    lines = [
        f"{document['workload']} on {document['hardware']}, {pluralized(document['gpus'], 'GPU')}, {layout_name(document)}: "
        f"step {show(document['step_time_s'], 'time')}",
        "",
        f"{'resource':>20} {'2x step':>10} {'gain':>8} {'infinite':>10}",
    ]
    for row in effective_rows(document):
        gains = f"{100 * row['twice_gain']:>+7.1f}% {100 * row['infinite_gain']:>+9.1f}%"
        lines.append(f"{NAMES[row['resource']]:>20} {show(row['twice_step_time_s'], 'time'):>10} {gains}")
    lines += ["", *(f"  {line}" for line in notes(document))]
    lines.append(f"  {error_sentence(document['expected_error'])}")
    if document["warnings"]:
        lines += ["  Warnings:", *(f"    - {warning}" for warning in document["warnings"])]
    return "\n".join(lines)


def effective_rows(document: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the rows of resources that shorten the step, and that of all links at once if single links hide their effect."""
    links, resources = document["links"], document["resources"]
    hidden = links["infinite_gain"] - max(row["infinite_gain"] for row in resources if row["resource"] in LINKS) >= NOTICEABLE
    return [row for row in [*resources, *([links] if hidden else [])] if row["infinite_gain"] >= NOTICEABLE]


def notes(document: Mapping[str, Any]) -> list[str]:
    """Return in sentences which resources have no effect, what stays unchanged, and what more micro-batches would do."""
    idle = [(NAMES[row["resource"]], row["infinite_gain"]) for row in document["resources"] if row["infinite_gain"] < NOTICEABLE]
    lines = [*(idle_lines(idle) if idle else []), CHOSEN]
    share = document["twice_micro_batches_time_per_sample"]
    if share is not None:
        lines.append(f"Twice the micro-batches (and twice the global batch): {100 * (1 / share - 1):+.1f}% throughput.")
    return lines
