"""How are the results of Stash's characterization of P2 and P3 written? As tables, JSON, CSV, and a text on the findings that reappear."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from calibration.studies.stash2022.findings import Finding, by_case, findings, observations
from calibration.studies.stash2022.study import (
    BERT,
    BERT_STACK,
    FAMILIES,
    MICRO_BATCH,
    SLICES,
    SMALL_MODELS,
    STACK,
    InstanceFamily,
    StashRow,
    StashStudy,
)
from sim import __version__
from sim.analysis import differential
from sim.report.basis import merged_by_machine
from sim.report.columns import Title, align
from sim.report.prices import price_rows
from sim.report.verdict import volume_assumption
from sim.spec.library import load_hardware, load_workload
from sim.units import show

Cell = Callable[[StashRow], float | None]


def study_document(study: StashStudy) -> dict[str, Any]:
    """Return the JSON document of the study."""
    return {
        "schema": 1,
        "study": "stash2022",
        "stack": STACK,
        "precision": "amp_fp16",
        "findings": [finding_row(finding) for finding in findings(study)],
        "observations": observations(study),
        "rows": [stall_row(row) for row in study.rows],
        "micro": [micro_row(row) for row in study.micro],
        "left_out": list(study.skipped_cases),
        "assumptions": _assumed(study),
        "warnings": [],
        "version": __version__,
        "inputs_sha256": {name: load_hardware(name).sha256 for name in _machines(study)},
        "prices": [row for name in _machines(study) for row in price_rows(load_hardware(name).spec)],
    }


def _machines(study: StashStudy) -> list[str]:
    return list(dict.fromkeys(row.case.machine for row in (*study.rows, *study.micro)))


def _assumed(study: StashStudy) -> list[str]:
    """Return the assumptions of the study on all or some of its cases."""
    workload = load_workload(SMALL_MODELS[0]).spec
    machines = [load_hardware(name).spec for name in _machines(study)]
    assumed_volumes = {machine.name: volume_assumption(machine, [group.node for group in machine.groups], workload) for machine in machines}
    return [
        f"software stack {STACK}, amp_fp16, images decoded by DALI on the GPU with the number of threads in Stash's run scripts",
        f"{BERT}: software stack {BERT_STACK}, amp_fp16, and a loader on the CPU",
        f"layers and gradients: {MICRO_BATCH} samples per GPU, synthetic data",
        *merged_by_machine(assumed_volumes),
        "the page cache is empty in the cold epoch and as full as possible in a warm one; results are for steady-state steps",
    ]


def finding_row(finding: Finding) -> dict[str, Any]:
    """Return a finding as a row of the document."""
    return {
        "check": finding.check,
        "published": finding.claim,
        "reappears": finding.verdict,
        "reached": list(finding.evidence),
        "figures": dict(finding.figures),
    }


def _machine(row: StashRow) -> dict[str, Any]:
    return {
        "hardware": row.case.machine,
        "hypothetical": row.case.machine in SLICES,
        "nodes": row.nodes,
        "gpus": row.gpus,
        "model": row.case.model,
        "batch_per_gpu": row.case.batch,
        "gradient_tensors": row.tensors,
        "gradient_bytes": row.gradient_bytes,
        "run0_step_time_s": row.times.one_gpu / row.steps,
        "run1_step_time_s": row.times.synthetic / row.steps,
    }


def stall_row(row: StashRow) -> dict[str, Any]:
    """Return the flat row of one case of the main study; only rows of one node have an interconnect stall."""
    return _machine(row) | {
        "loader_threads": row.case.threads,
        "run2_step_time_s": row.times.cold / row.steps,
        "run3_step_time_s": row.times.warm / row.steps,
        "steps_per_epoch": row.steps,
        "interconnect_stall_percent": 100 * row.interconnect if row.nodes == 1 else None,
        "network_slowdown": row.network,
        "network_stall_percent": None if row.network is None else 100 * max(0.0, row.network - 1.0),
        "prep_stall_percent": 100 * differential.prep_stall(row.times).share,
        "fetch_stall_percent": 100 * differential.fetch_stall(row.times).share,
        "price_usd_per_h": 3600 * row.price,
        "cold_epoch_time_s": row.times.cold,
        "warm_epoch_time_s": row.times.warm,
        "cold_cost_per_epoch_usd": row.price * row.times.cold,
        "warm_cost_per_epoch_usd": row.cost,
        "ingestion_cost_per_epoch_usd": row.price * row.times.synthetic,
    }


def micro_row(row: StashRow) -> dict[str, Any]:
    """Return the flat row of one network of the micro study."""
    return _machine(row) | {
        "communication_s_per_step": row.communication,
        "communication_stall_percent": 100 * row.interconnect,
        "network_slowdown": row.network,
    }


def cost_rows(study: StashStudy) -> list[dict[str, Any]]:
    """Return, for each model and batch, the machines that can be rented, ordered by the cost of a warm epoch.

    Each row has ranks by cost, time and price.
    """
    ranked = []
    for rows in by_case(study).values():
        by_time = sorted(rows, key=lambda row: row.times.warm)
        by_price = sorted(rows, key=lambda row: row.price)
        for rank, row in enumerate(sorted(rows, key=lambda row: row.cost), start=1):
            ranks = {"rank_by_cost": rank, "rank_by_time": 1 + by_time.index(row), "rank_by_price": 1 + by_price.index(row)}
            kept = ("model", "batch_per_gpu", "hardware", "gpus", "price_usd_per_h", "warm_epoch_time_s", "warm_cost_per_epoch_usd")
            ranked.append({key: stall_row(row)[key] for key in (*kept, "cold_epoch_time_s", "cold_cost_per_epoch_usd")} | ranks)
    return ranked


# --- text ------------------------------------------------------------------------------------------------------------


def study_text(study: StashStudy) -> str:
    """Return the study as text: findings, one table per stall, costs, and the micro study."""
    models, machines = ({getattr(row.case, name) for row in study.rows} for name in ("model", "machine"))
    parts = [
        f"Stash (arXiv 2208.14344), simulated: {len(study.rows)} cases of {len(models)} models on {len(machines)} machines, "
        f"{len({row.case.model for row in study.micro})} networks in the micro study",
        findings_text(findings(study)),
        "\n".join(["Beyond the abstract:", *(f"  - {line}" for line in observations(study))]),
        *(text for family in FAMILIES for text in _family(study, family)),
        _micro(study),
    ]
    if study.skipped_cases:
        parts.append("\n".join(["Cannot run:", *(f"  - {problem}" for problem in study.skipped_cases)]))
    return "\n\n".join(parts)


def findings_text(findings: Sequence[Finding]) -> str:
    """Return a text on which published findings reappear."""
    lines = ["Published findings, and whether the simulation reproduces them:"]
    for finding in findings:
        lines += [f"  {finding.check} {finding.claim}: {finding.verdict.upper()}", *(f"     - {line}" for line in finding.evidence)]
    return "\n".join(lines)


def _family(study: StashStudy, family: InstanceFamily) -> list[str]:
    batches = "; ".join(
        f"{', '.join(model for model in family.batches if family.batches[model] == sizes)} {'/'.join(map(str, sizes))}"
        for sizes in dict.fromkeys(family.batches.values())
    )
    tables: list[tuple[str, Cell, str]] = [
        ("interconnect stall, % of RUN1", lambda row: 100 * row.interconnect if row.nodes == 1 and row.gpus > 1 else None, "{:.0f}"),
        ("time over the network, relative to one machine", lambda row: row.network, "{:.1f}"),
        ("processor (prep) stall, % of RUN3", lambda row: 100 * differential.prep_stall(row.times).share, "{:.0f}"),
        ("disk (fetch) stall, % of RUN2", lambda row: 100 * differential.fetch_stall(row.times).share, "{:.0f}"),
        ("cost of a warm epoch, USD", lambda row: row.cost, "{:.2f}"),
        ("cost of a cold epoch, USD", lambda row: row.price * row.times.cold, "{:.2f}"),
    ]
    heads = [f"{family.name}: {title}; from the smallest to the largest batch ({batches})" for title, _, _ in tables]
    return [f"{head}\n{_table(study, family, cell, form)}" for head, (_, cell, form) in zip(heads, tables, strict=True)]


def _table(study: StashStudy, family: InstanceFamily, cell: Cell, form: str) -> str:
    models = list(family.batches)
    lines = []
    for machine in family.machines:
        rows = study.rows_on(machine)
        cells = [_range([cell(row) for row in rows if row.case.model == model], form) for model in models]
        if any(cells):
            lines.append([machine, *cells])
    return align([Title("", True), *(Title(model) for model in models)], lines)


def _range(values: Sequence[float | None], form: str) -> str:
    """Return the values at the smallest and the largest batch."""
    texts = [form.format(value) for value in values if value is not None]
    return "" if not texts else texts[0] if len(texts) == 1 else f"{texts[0]} .. {texts[-1]}"


def _micro(study: StashStudy) -> str:
    apart = {row.case.model: row for row in study.micro if row.nodes > 1}
    lines = [
        [
            row.case.model,
            str(row.tensors),
            f"{row.gradient_bytes / 1e6:.1f}",
            show(row.communication, "time"),
            f"{100 * row.interconnect:.1f}%",
            show(apart[row.case.model].communication, "time"),
            f"{row.network or 0:.1f}",
        ]
        for row in study.micro
        if row.nodes == 1 and row.case.model in apart
    ]
    words = ("tensors", "MB", "one machine adds", "of RUN1", "two add", "slower")
    titles = [Title("network", True), *map(Title, words)]
    batch = study.micro[0].case.batch if study.micro else 0
    return f"Layers and gradients, {batch} samples per GPU: time that communication adds to a step\n{align(titles, lines)}"
