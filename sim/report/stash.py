"""How is a profile presented? Stash's runs and stalls in a table, with the direct attribution of the same differences."""

from __future__ import annotations

from typing import Any

from sim.analysis import differential
from sim.analysis.differential import Stall
from sim.causes import COLORS
from sim.events import STALLS, Cause
from sim.report.attribution import gaps_document, gaps_lines
from sim.report.basis import run_basis
from sim.report.columns import Title, align
from sim.report.document import burst_credits_end, run_credits_end
from sim.report.picture import Picture, figure, picture
from sim.report.prices import price_lines, price_rows
from sim.simulate import Run
from sim.study.profile import Profile
from sim.units import pluralized, rounded_dollars, show

SMALLEST_CAUSE = 0.005
"""Smallest cause that is named, as a share of a step."""


def profile_document(profile: Profile, literal: bool = False) -> dict[str, Any]:
    """Return the JSON document of a profile; *literal* uses the bases of percentages and the fetch formula of the upstream code."""
    times, job = profile.times, profile.real.jobs[0]
    return {
        "schema": 1,
        "hardware": profile.real.hardware.name,
        "workload": job.job.workload.name,
        "stack": job.job.workload.training.stack.name,
        "nodes": len(job.job.placement),
        "gpus": job.job.ranks,
        "batch_per_gpu": job.job.workload.training.batch,
        "steps_per_epoch": job.warm.steps,
        "formulas": "literal" if literal else "corrected",
        "runs": {
            "run0_synthetic_one_gpu": _run(profile.one_gpu, times.one_gpu),
            "run1_synthetic": _run(profile.synthetic, times.synthetic),
            "run2_cold": _run(profile.real, times.cold, cold=True),
            "run3_warm": _run(profile.real, times.warm),
            "twin_synthetic": _run(profile.twin, times.twin) if profile.twin and times.twin else None,
        },
        "stash": {name: _stall(stall) for name, stall in _stalls(profile, literal).items()},
        "made_of_s_per_step": {
            name: {cause.value: seconds for cause, seconds in causes.items()} for name, causes in profile.stall_causes.items()
        },
        "apart": gaps_document(profile),
        "direct_stalls_s": {
            "warm": {cause.value: job.warm.stalls[cause] for cause in STALLS},
            "cold": {cause.value: job.first.stalls[cause] for cause in STALLS},
        },
        "rates_samples_per_s": profile.rates._asdict(),
        "needs": {
            "disk_bytes_per_s": profile.needs.disk_bandwidth,
            "cached_fraction": profile.needs.cached_fraction,
            "cores_per_node": profile.needs.cores,
        },
        "cost_per_epoch_usd": dict(profile.costs),
        "prices": price_rows(profile.real.hardware),
        "burst_credits_end": burst_credits_end(profile.real),
        **run_basis(profile.real, profile.inputs, run_credits_end(profile.real)),
    }


def _stalls(profile: Profile, literal: bool) -> dict[str, Stall | None]:
    return {
        "interconnect": differential.interconnect_stall(profile.times),
        "network": differential.network_stall(profile.times),
        "prep": differential.prep_stall(profile.times, literal),
        "fetch": differential.fetch_stall(profile.times, literal),
    }


def _stall(stall: Stall | None) -> dict[str, float] | None:
    return None if stall is None else {"time_s_per_epoch": stall.time, "percent": 100 * stall.share}


def _run(run: Run, epoch: float, cold: bool = False) -> dict[str, Any]:
    job = run.jobs[0]
    return {
        "hardware": run.hardware.name,
        "nodes": len(job.job.placement),
        "gpus": job.job.ranks,
        "step_time_s": (job.first if cold else job.warm).step_time,
        "epoch_time_s": epoch,
    }


RUNS = {
    "run0_synthetic_one_gpu": "RUN0  synthetic data, one GPU",
    "run1_synthetic": "RUN1  synthetic data, all GPUs",
    "run2_cold": "RUN2  real data, cold page cache",
    "run3_warm": "RUN3  real data, warm page cache",
    "twin_synthetic": "RUN1  on two nodes of half the GPUs",
}
"""Titles of the runs of the document."""
AGAINST = {"interconnect": "RUN1", "network": "RUN1", "prep": "RUN3", "fetch": "RUN2"}
"""The run that each stall is a share of."""


RATES = {
    "ingestion": "samples / RUN1: data in GPU memory",
    "prep": "samples / RUN3: data in the page cache",
    "fetch": "samples / (RUN2 - RUN3): time added by reading",
}
"""How DS-Analyzer's rates follow from its runs."""
FORMULAS = {
    "literal": "Formulas: literal, as in upstream's code: prep and fetch from half of an epoch, fetch including the time of RUN1.",
    "corrected": "Formulas: corrected, as Stash and DS-Analyzer define the stalls; --literal uses those of upstream's code.",
}
"""Explanations of the values of the document's ``formulas``."""


def profile_rows(document: dict[str, Any]) -> list[dict[str, Any]]:
    """Return a row for each run of *document*."""
    return [{"run": name, **run} for name, run in document["runs"].items() if run is not None]


def profile_plot(document: dict[str, Any]) -> Picture:
    """Return a plot of the step of each run, and of the composition of each stall by direct attribution."""
    from matplotlib.patches import Rectangle

    runs = {title: run for name, title in RUNS.items() if (run := document["runs"][name]) is not None}
    drawn, axes = figure(2, (9, 6))
    axes[0].barh(list(runs)[::-1], [1e3 * run["step_time_s"] for run in reversed(runs.values())], color="#4477aa")
    axes[0].set_title(f"{document['workload']} on {document['hardware']}, {pluralized(document['gpus'], 'GPU')}", fontsize=11, loc="left")
    axes[0].set_xlabel("milliseconds per step")
    stalls = [name for name, stall in document["stash"].items() if stall is not None]
    for place, name in enumerate(reversed(stalls)):
        edges = {True: 0.0, False: 0.0}  # increases extend to the right, decreases to the left
        for cause, seconds in document["made_of_s_per_step"][name].items():
            axes[1].barh(place, 1e3 * seconds, left=edges[seconds > 0], color=COLORS[Cause(cause)])
            edges[seconds > 0] += 1e3 * seconds
    axes[1].set_yticks(range(len(stalls)), [f"{name} stall" for name in reversed(stalls)])
    axes[1].axvline(0.0, color="black", linewidth=0.8)
    axes[1].set_xlabel("milliseconds per step added by each cause")
    handles = [Rectangle((0, 0), 1, 1, color=color) for color in COLORS.values()]
    drawn.legend(handles, [cause.value for cause in COLORS], loc="outside lower center", ncols=8, fontsize=8, frameon=False)
    for place_of in axes:
        place_of.spines[["top", "right"]].set_visible(False)
    return picture(drawn)


def profile_text(profile: Profile, document: dict[str, Any]) -> str:
    """Return *document* of *profile* as tables of text."""
    gpus = pluralized(document["gpus"], "GPU")
    head = (
        f"Stash's procedure, simulated: {document['workload']} on {document['hardware']}, {gpus}, "
        f"{pluralized(document['batch_per_gpu'], 'sample')} per GPU, {document['stack']}, "
        f"{pluralized(document['steps_per_epoch'], 'step')} per epoch"
    )
    runs = [
        [title, f"{run['nodes']:,} x {run['hardware']}", show(run["step_time_s"], "time"), show(run["epoch_time_s"], "time")]
        for key, title in RUNS.items()
        if (run := document["runs"][key]) is not None
    ]
    stalls = [
        [name, show(stall["time_s_per_epoch"], "time"), f"{stall['percent']:.1f}% of {AGAINST[name]}", _causes_text(document, name)]
        for name, stall in document["stash"].items()
        if stall is not None
    ]
    return "\n".join(
        [
            head,
            "",
            align([Title("run", True), Title("machine", True), Title("step"), Title("epoch")], runs),
            "",
            align([Title("stall", True), Title("per epoch"), Title("share", True), Title("causes, by direct attribution", True)], stalls),
            f"  {FORMULAS[document['formulas']]}",
            "",
            *gaps_lines(document["apart"]),
            "",
            *_rates(document),
            *_needs(profile),
            *_costs(document),
            *price_lines(document["prices"]),
        ]
    )


def _causes_text(document: dict[str, Any], name: str) -> str:
    causes = document["made_of_s_per_step"][name]
    least = SMALLEST_CAUSE * document["runs"]["run1_synthetic"]["step_time_s"]
    named = sorted(((cause, seconds) for cause, seconds in causes.items() if abs(seconds) > least), key=lambda pair: -abs(pair[1]))
    return ", ".join(f"{cause} {'+' if seconds > 0 else '-'}{show(abs(seconds), 'time')} per step" for cause, seconds in named) or "-"


def _rates(document: dict[str, Any]) -> list[str]:
    rates = document["rates_samples_per_s"]
    shown = [[name, f"{value:,.0f}", RATES[name]] for name, value in rates.items() if value is not None]
    return [align([Title("rate", True), Title("samples/s"), Title("", True)], shown), ""]


def _needs(profile: Profile) -> list[str]:
    needs, cores = profile.needs, sorted({node.host.physical_cores for node in profile.real.nodes()})
    lines = []
    if needs.cores is not None:
        available = " to ".join(str(count) for count in dict.fromkeys((cores[0], cores[-1])))
        lines.append(f"to hide preparation: {needs.cores:.0f} cores on each node, with loader workers for them; a node has {available}")
    if needs.disk_bandwidth is not None:
        lines.append(f"to hide the cold epoch's reads: a disk of {show(needs.disk_bandwidth, 'bandwidth')} on each node")
    if needs.cached_fraction is not None:
        lines.append(f"to hide later reads: {100 * needs.cached_fraction:.0f}% of the data set in each node's page cache")
    return lines


def _costs(document: dict[str, Any]) -> list[str]:
    costs = {name: value for name, value in document["cost_per_epoch_usd"].items() if value is not None}
    return [f"cost of an epoch (USD): {', '.join(f'{name} {rounded_dollars(value)}' for name, value in costs.items())}"] if costs else []
