"""How is a what-if reported? Resources ranked by the gain from more of each, in time and cost, as a table, JSON, CSV and a plot."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from sim.causes import Resource
from sim.report.basis import run_basis
from sim.report.columns import Title, align
from sim.report.document import job_settings
from sim.report.expected_error import error_sentence, expected_error
from sim.report.kinds import batch_text
from sim.report.picture import ERROR_BARS, Picture, figure, picture
from sim.report.prices import price_lines, price_rows
from sim.report.resources import describe_resource
from sim.report.verdict import first_is_longer
from sim.simulate import Run
from sim.study.faster_machines import FasterMachine
from sim.study.rent import price_of_job
from sim.study.whatif import Crowding, StepOutcome, Upgrade, WhatIf, break_even
from sim.units import dollars, pluralized, rounded_dollars, show

NOTICEABLE = 1e-3
"""Smallest gain that gets a line of the table, as a share of the throughput."""
_ROUNDING = 1e-9
"""Changes of the throughput up to this share are rounding, not a gain."""
NAMES = {
    "disk": "disk", "cpu": "CPU", "decode": "decoding on the GPU", "copy": "copy to the GPU", "nvlink": "NVLink", "network": "network",
    "pcie": "PCIe", "launch": "kernel launches", "spread": "step-time variation between ranks (halved)", "gpu": "GPUs",
}  # fmt: skip
"""Names of the resources in reports."""
LABELS = {"twice": "twice as fast", "infinite": "infinitely fast"}


def whatif_document(answer: WhatIf) -> dict[str, Any]:
    """Return the JSON document of *answer*, with its resources in ranked order."""
    job, now = answer.job, answer.now
    rate = price_of_job(answer.run)
    return {
        "schema": 1,
        "hardware": answer.run.hardware.name,
        **job_settings(job.job),
        "step_time_s": now.step_time,
        "throughput_samples_per_s": job.throughput,
        "epoch_time_s": now.epoch_time,
        "first_epoch_time_s": answer.first_epoch_time,
        "cost_per_epoch_usd": None if rate is None else rate * now.epoch_time,
        "price_usd_per_h": None if rate is None else 3600 * rate,
        "expected_error": expected_error(answer.run, 0),
        "resources": [_resource(answer, upgrade) for upgrade in answer.upgrades],
        "faster_machines": [_machine(one, now) for one in answer.machines],
        "prices": price_rows(answer.run.hardware),
        **run_basis(answer.run, answer.inputs, _warnings(answer)),
    }


def _machine(one: FasterMachine, now: StepOutcome) -> dict[str, Any]:
    return {
        "hardware": one.hardware,
        "gpu": one.gpu,
        "gpus": one.gpus,
        "step_time_s": one.step_time,
        "epoch_time_s": one.epoch_time,
        "throughput_gain_percent": 100 * (now.step_time / one.step_time - 1),
        "price_usd_per_h": one.usd_per_h,
        "cost_per_epoch_usd": one.cost,
    }


def _resource(answer: WhatIf, upgrade: Upgrade) -> dict[str, Any]:
    unit = upgrade.unit
    return {
        "resource": upgrade.resource,
        "twice": _outcome(answer, upgrade.twice),
        "infinite": _outcome(answer, upgrade.infinite),
        "shadow_price_s_per_percent": upgrade.shadow_price,
        "critical_path_s": upgrade.on_path,
        "unit": unit.name if unit else None,
        "units_per_node": unit.amount if unit else None,
        "shadow_price_s_per_unit": unit.shadow_price if unit else None,
        "enough_factor": upgrade.enough,
        "step_time_5_percent_slower_s": upgrade.less,
        "step_time_5_percent_faster_s": upgrade.more,
        "knife_edge": upgrade.on_edge(answer.now.step_time),
    }


def _outcome(answer: WhatIf, then: StepOutcome) -> dict[str, Any]:
    rise, rate = break_even(answer.now, then), price_of_job(answer.run)
    return {
        "step_time_s": then.step_time,
        "throughput_gain_percent": 100 * (answer.now.step_time / then.step_time - 1.0),
        "epoch_time_s": then.epoch_time,
        "cost_per_epoch_usd": None if rate is None else rate * then.epoch_time,
        "break_even_price_rise_percent": 100 * rise,
        "break_even_price_usd_per_h": None if rate is None else 3600 * rate * (1.0 + rise),
    }


def _warnings(answer: WhatIf) -> list[str]:
    now = answer.now.step_time
    edges = [_edge(upgrade, now) for upgrade in answer.upgrades if upgrade.on_edge(now)]
    return edges + [_crowd(answer.run, upgrade.resource, upgrade.crowded) for upgrade in answer.upgrades if upgrade.crowded]


def _crowd(run: Run, resource: Resource, crowded: Crowding) -> str:
    where = f", limited by the {describe_resource(run, crowded.at)[0]}" if crowded.at else ""
    longer = show(crowded.longer, "time")
    why = f"{crowded.cause.value} takes {longer} more of a step{where}"
    return f"{NAMES[resource]}: infinitely fast gains less than twice as fast, because {why}"


def _edge(upgrade: Upgrade, now: float) -> str:
    longer, shorter = 100 * (upgrade.less / now - 1), 100 * (1 - upgrade.more / now)
    return (
        f"{NAMES[upgrade.resource]}: close to the limit of what overlap hides: 5% slower makes the step {longer:.1f}% longer, 5% faster "
        f"{shorter:.1f}% shorter; a small error in the description changes the answer"
    )


# --- text ------------------------------------------------------------------------------------------------------------


def whatif_text(document: dict[str, Any]) -> str:
    """Return *document* of a what-if as text: the ranked table, and the warnings."""
    shown = [row for row in document["resources"] if has_effect(row)]
    titles = [
        Title("", True), Title("2x step"), Title("gain"), Title("USD/epoch"), Title("breaks even at"), Title("infinite"),
        Title("on critical path"), Title("saved per +1%"), Title("saved per extra unit"), Title("enough at"),
    ]  # fmt: skip
    lines = [_head(document), "", align(titles, [_cells(row) for row in shown]), ""]
    lines += [f"  {line}" for line in machine_lines(document)]
    lines += [f"  {line}" for line in ineffective_lines(document["resources"])]
    lines.append("  On critical path: time per step that is not overlapped. Speeding it up by 1% saves about 1% of it.")
    lines.append("  Enough at: beyond this factor further upgrades gain <1%, in a warm epoch.")
    lines.append(f"  {CHOSEN}")
    lines.append(f"  {error_sentence(document['expected_error'])}")
    lines += [f"  {line}." for line in price_lines(document["prices"])]
    if document["warnings"]:
        lines += ["  Warnings:", *(f"    - {warning}" for warning in document["warnings"])]
    return "\n".join(lines)


def _head(document: dict[str, Any]) -> str:
    cost, nodes, gpus = document["cost_per_epoch_usd"], document["nodes"], document["gpus"]
    first = longer_first_epoch(document)
    money = "" if cost is None else f", ${rounded_dollars(cost)} at ${dollars(document['price_usd_per_h'])}/h"
    return (
        f"{document['workload']} on {document['hardware']}, {pluralized(nodes, 'node')}, {pluralized(gpus, 'GPU')}, "
        f"{batch_text(document)}: step {show(document['step_time_s'], 'time')}, "
        f"epoch {show(document['epoch_time_s'], 'time')}{money}{f'; first epoch: {first}' if first else ''}"
    )


def longer_first_epoch(document: Mapping[str, Any]) -> str:
    """Return the time of the first epoch as text if it is much longer than a warm one, to which all figures refer; else empty."""
    first = document["first_epoch_time_s"]
    return show(first, "time") if first_is_longer(first, document["epoch_time_s"]) else ""


def machine_lines(document: Mapping[str, Any]) -> list[str]:
    """Return lines on the machines with faster GPUs, with the step time and the cost per epoch there."""
    machines = [
        f"{one['hardware']} ({one['gpus']:,} x {one['gpu']}): step {show(one['step_time_s'], 'time')}, "
        f"{one['throughput_gain_percent']:+.0f}%, ${rounded_dollars(one['cost_per_epoch_usd'])} per epoch "
        f"at ${dollars(one['price_usd_per_h'])}/h"
        for one in document["faster_machines"]
    ]
    return ["Faster GPUs that can be rented:", *(f"  {line}" for line in machines)] if machines else []


def has_effect(row: Mapping[str, Any]) -> bool:
    """Return whether more of the resource of *row* gains enough to be listed."""
    return _best(row) > 100 * NOTICEABLE


def ineffective_lines(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return sentences on the resources of *rows* that do not matter: those that gain little, gain nothing, or lose."""
    return idle_lines([(NAMES[row["resource"]], _best(row) / 100) for row in rows if not has_effect(row)])


CHOSEN: Final = (
    "Each resource is changed alone, and collectives keep their algorithms and channels; "
    "'run --set node.nic.bandwidth=...' lets NCCL choose again."
)
"""What a what-if keeps unchanged, so that it may differ from a run on other hardware."""


def idle_lines(gains: Sequence[tuple[str, float]]) -> list[str]:
    """Return a sentence for each kind of *gains* (pairs of name and throughput share below `NOTICEABLE`): small, none, and losses."""
    kinds: tuple[tuple[str, Callable[[float], bool]], ...] = (
        ("Less than 0.1% even if infinitely fast", lambda gain: gain > _ROUNDING),
        ("No effect even if infinitely fast", lambda gain: abs(gain) <= _ROUNDING),
        ("A step gets longer with more of", lambda gain: gain < -_ROUNDING),
    )
    named = [(words, [_loss(*gain) for gain in gains if belongs(gain[1])]) for words, belongs in kinds]
    return [f"{words}: {', '.join(names)}." for words, names in named if names]


def _loss(name: str, gain: float) -> str:
    """Return *name*, with the throughput lost with more of it, if any."""
    return f"{name} ({100 * gain:.2g}% throughput)" if gain < -_ROUNDING else name


def _best(row: Mapping[str, Any]) -> float:
    """Return the larger throughput gain (percent) of twice as fast and infinitely fast; if neither gains, the larger loss."""
    gains = [float(row[kind]["throughput_gain_percent"]) for kind in LABELS]
    return max(gains) if max(gains) > 100 * _ROUNDING else min(gains)


def _cells(row: dict[str, Any]) -> list[str]:
    twice, each, enough = row["twice"], row["shadow_price_s_per_unit"], row["enough_factor"]
    cost, rate = twice["cost_per_epoch_usd"], twice["break_even_price_usd_per_h"]
    return [
        NAMES[row["resource"]],
        show(twice["step_time_s"], "time"),
        f"{twice['throughput_gain_percent']:+.1f}%",
        "-" if cost is None else rounded_dollars(cost),
        f"{twice['break_even_price_rise_percent']:+.1f}%" if rate is None else f"${dollars(rate)}/h",
        f"{row['infinite']['throughput_gain_percent']:+.1f}%",
        show(row["critical_path_s"], "time") if row["critical_path_s"] > 0 else "-",
        show(row["shadow_price_s_per_percent"], "time") if row["shadow_price_s_per_percent"] > 0 else "-",
        "-" if not each or each < 0 else f"{show(each, 'time')} per {row['unit']}",
        "never" if enough is None else "now" if enough == 1.0 else f"{enough:.2f}x",
    ]


def whatif_plot(document: dict[str, Any]) -> Picture:
    """Return a plot of the step with each resource twice as fast and infinitely fast, compared with the step as it is."""
    rows = [row for row in document["resources"] if has_effect(row)][::-1]
    drawn, (axes,) = figure(1, (9, 1.8 + 0.5 * len(rows)))
    for shift, kind, color in ((0.2, "twice", "#4477aa"), (-0.2, "infinite", "#ee6677")):
        places = [place + shift for place in range(len(rows))]
        steps = [1e3 * row[kind]["step_time_s"] for row in rows]
        off = (document["expected_error"] or {}).get("p90", 0.0)
        axes.barh(places, steps, 0.36, color=color, label=LABELS[kind])
        if off:
            axes.errorbar(steps, places, xerr=[off * step for step in steps], fmt="none", ecolor="black", elinewidth=1, capsize=2)
    axes.axvline(1e3 * document["step_time_s"], color="black", linestyle="--", linewidth=1, label="current")
    axes.set_yticks(range(len(rows)), [NAMES[row["resource"]] for row in rows])
    axes.set_xlabel(f"milliseconds per step{f'; {ERROR_BARS}' if (document['expected_error'] or {}).get('p90') else ''}")
    axes.set_title(f"{document['workload']} on {document['hardware']}, {pluralized(document['gpus'], 'GPU')}", fontsize=11, loc="left")
    drawn.legend(loc="outside lower center", ncols=3, fontsize=8, frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    return picture(drawn)
