"""How is a profile of a layout reported? The runs and stalls of Stash's method, compared with the direct waits of ranks."""

from __future__ import annotations

from typing import Any, Final

from sim.events import Cause
from sim.mesh import LayoutRun
from sim.report.columns import Title, align
from sim.report.layouts.layout import layout_document, layout_name
from sim.report.stash import SMALLEST_CAUSE
from sim.study.layout_profile import DIFFERENCES, FULL, RUN0, RUN1, RUN2, RUN3, LayoutProfile
from sim.units import pluralized, show

RUNS: Final = {
    RUN0: "RUN0  synthetic data, infinitely fast links",
    RUN1: "RUN1  synthetic data, infinitely fast network",
    FULL: "RUN1  synthetic data, over the network",
    RUN3: "RUN3  real data, in memory",
    RUN2: "RUN2  real data, as they are read",
}
"""Titles of the runs of the document."""


def layout_profile_document(profile: LayoutProfile) -> dict[str, Any]:
    """Return the JSON document: that of the run itself, ``runs``, and the stalls by subtraction and directly (seconds of a step)."""
    document = layout_document(profile.answer)
    document["runs"] = {
        name: {"step_time_s": run.step_time, "stalls_s": {cause.value: seconds for cause, seconds in run.stalls.items()}}
        for name, run in profile.runs.items()
    }
    document["stash"] = {
        name: {
            "time_s": stall.time,
            "percent": 100 * stall.share,
            "of": DIFFERENCES[name].share_of,
            "direct_s": profile.comparisons[name].direct,
            "made_of_s": {cause.value: seconds for cause, seconds in profile.stall_causes(name).items()},
        }
        for name, stall in profile.stalls.items()
    }
    document["method"] = method(profile)
    return document


def method(profile: LayoutProfile) -> list[str]:
    """Return a sentence for each difference between the method for a layout and Stash's for data parallelism."""
    run = profile.answer.run
    idle, step = profile.runs[RUN0].stalls[Cause.PIPELINE], profile.runs[RUN0].step_time
    bubble = (
        f"; the pipeline leaves GPUs idle for {show(idle, 'time')} of RUN0 ({100 * idle / step:.0f}%), which the method counts as compute"
        if run.mesh.stages > 1
        else ""
    )
    return [
        f"RUN0: one GPU cannot run its part of the model alone, so all {run.gpus} run, with infinitely fast links{bubble}",
        "network: the twin, two nodes of half the GPUs, would place groups differently; instead, RUN1 has an infinitely fast network",
        f"fetch: a layout has no cold epoch; {_reading(run)}",
    ]


def _reading(run: LayoutRun) -> str:
    """Return what RUN2 and RUN3 read, in words."""
    options = run.workload.input
    if options.loader == "synthetic" or run.node.storage is None:
        return "no data is read, so RUN2 and RUN3 take as long as RUN1"
    if options.stream is not None:
        return "RUN3 reads samples from memory, RUN2 streams them from the store"
    if run.workload.dataset.sequence is not None:
        return "RUN3 reads tokens from memory, RUN2 reads each from disk once"
    return "RUN3 reads all samples from memory, RUN2 only those in the page cache of a warm epoch"


def layout_profile_text(document: dict[str, Any]) -> str:
    """Return *document* as text for a terminal."""
    runs = [[title, show(document["runs"][name]["step_time_s"], "time")] for name, title in RUNS.items()]
    stalls = [
        [
            name, show(stall["time_s"], "time"), f"{stall['percent']:.1f}% of {RUNS[stall['of']][:4]}", show(stall["direct_s"], "time"),
            causes_text(document, name),
        ]
        for name, stall in document["stash"].items()
    ]  # fmt: skip
    head = [Title("stall", True), Title("per step"), Title("share"), Title("waits"), Title("direct attribution", True)]
    lines = [
        f"Stash's method, simulated: {document['workload']} on {document['hardware']}, {pluralized(document['gpus'], 'GPU')}, "
        f"{layout_name(document)}, {document['stack']}",
        "",
        align([Title("run", True), Title("step")], runs),
        "",
        align(head, stalls),
        "",
        *(f"  {sentence}." for sentence in document["method"]),
        f"  {document['verdict']}",
    ]
    if document["warnings"]:
        lines += ["  Warnings:", *(f"    - {warning}" for warning in document["warnings"])]
    return "\n".join(lines)


def causes_text(document: dict[str, Any], name: str) -> str:
    """Return the causes of the stall *name* that are large enough to report, largest first."""
    least = SMALLEST_CAUSE * document["step_time_s"]
    causes = document["stash"][name]["made_of_s"]
    named = sorted(((cause, seconds) for cause, seconds in causes.items() if abs(seconds) > least), key=lambda pair: -abs(pair[1]))
    return ", ".join(f"{cause} {'+' if seconds > 0 else '-'}{show(abs(seconds), 'time')}" for cause, seconds in named) or "-"


def profile_rows(document: dict[str, Any]) -> list[dict[str, Any]]:
    """Return a row for each run of *document*."""
    return [{"run": name, **run} for name, run in document["runs"].items()]
