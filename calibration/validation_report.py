"""How is a validation seen? One JSON document, a table, a CSV of every prediction, and a scatter plot."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from calibration.cluster_fit import Model
from calibration.scores import EXPOSED, Scored, scores
from calibration.validation import Cluster, Validation

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLUMNS: Final = (
    "source", "hardware", "workload", "stack", "placement", "batch_per_gpu", "step_time_s", "compute_s", "zero_shot_s", "calibrated_s",
    "calibrated_low_s", "calibrated_high_s", "free_communication_s", "closed_form_s", "copy_row_s",
)  # fmt: skip
"""Of the CSV of predictions."""
_MARKS: Final = "osD^vP"
"""Each of ten clusters, which differ by colour."""
_NAMES: Final = 32
"""Clusters in a column of names beside the plot."""
_MARGIN: Final = 1.15
"""From the outermost points to the ends of the axes, a factor: so that axes around one point have a length."""


def validation_document(found: Validation) -> dict[str, Any]:
    """Return the document of ``validate --json``; errors are fractions."""
    return {
        "schema": 1,
        "overall": scores(found.scored),
        "sources": [entry for cluster in found.clusters for entry in _sources(cluster)],
        "whole_sources": _whole_sources(found),
        "clusters": [_parameters(cluster) for cluster in found.clusters],
        "notes": list(found.notes),
    }


def _sources(cluster: Cluster) -> list[dict[str, Any]]:
    entries = []
    for role, rows in (("prediction", cluster.scored), ("network", cluster.fitted)):
        for source in dict.fromkeys(row.asked.record.source for row in rows):
            same = [row for row in rows if row.asked.record.source == source]
            entries.append({"source": source, "cluster": cluster.name, "role": role, **scores(same)})
    return entries


def _whole_sources(found: Validation) -> list[dict[str, Any]]:
    """Return the scores of each source over all its clusters, one vote per cluster."""
    rows = found.scored
    entries = []
    for source in dict.fromkeys(row.asked.record.source for row in rows):
        same = [row for row in rows if row.asked.record.source == source]
        entries.append({"source": source, "clusters": len({row.cluster for row in same}), **scores(same)})
    return entries


def _parameters(cluster: Cluster) -> dict[str, Any]:
    """Return what was fitted: factors on the description's constants, with 95% intervals."""
    model = cluster.calibrated
    return {
        "cluster": cluster.name,
        "network_rows": len(cluster.fitted),
        "noise": model.noise.relative,
        "noise_s": model.noise.seconds,
        "traffic_in_node": model.way or "as described",
        "factors": _factors(model),
    }


def _factors(model: Model) -> list[dict[str, Any]]:
    made = []
    for number, (parameter, value) in enumerate(zip(model.parameters, model.values, strict=True)):
        half = 1.96 * math.sqrt(model.covariance[number][number])
        made.append({"parameter": parameter.name, "factor": math.exp(value), "low": math.exp(value - half), "high": math.exp(value + half)})
    return made


def validation_table(found: Validation) -> str:
    """Return the scores as text: one line per source and cluster, then per source with several, then overall."""
    head = (
        f"{'':38} {'rows':>5}  {'zero-shot':>13}  {'calibrated':>13} {'skill':>6}  {'free':>6} {'closed':>6} {'copy':>6}"
        f"  {'exposed rows':>12} {'calibrated':>13} {'skill':>6}  {'within':>6}\n"
        f"{'':38} {'':>5}  {'median/p90%':>13}  {'median/p90%':>13} {'':>6}  {'median %':^20}  {'':>12} {'median/p90%':>13} {'':>6}"
        f"  {'95%':>6}"
    )
    lines = [head]
    for entry in (entry for cluster in found.clusters for entry in _sources(cluster) if entry["role"] == "prediction"):
        lines.append(_line(f"{entry['source'][:14]} {entry['cluster']}", entry))
    lines += [
        _line(f"{entry['source'][:24]}, {entry['clusters']} clusters", entry) for entry in _whole_sources(found) if entry["clusters"] > 1
    ]
    lines.append(_line("overall, one vote per cluster", scores(found.scored)))
    return "\n".join(line.rstrip() for line in "\n".join(lines).splitlines())


def _line(name: str, found: Mapping[str, Any]) -> str:
    after = found["calibrated"]
    rules = " ".join(f"{percent(found[rule]['median']):>6}" for rule in ("free_communication", "closed_form", "copy_row"))
    exposed = after["exposed"]
    return (
        f"{name[:38]:38} {after['points']:5}  {pair(found['zero_shot']):>13}  {pair(after):>13} {number(after['skill']):>6}  {rules}"
        f"  {exposed['points']:>12} {pair(exposed):>13} {number(exposed['skill']):>6}  {percent(after['coverage']):>6}"
    )


def pair(score: Mapping[str, Any]) -> str:
    """Return the median and 90th percentile of *score*, in percent."""
    return f"{percent(score['median'])} / {percent(score['p90'])}"


def percent(value: float | None) -> str:
    """Return *value* in percent; a dash for none."""
    return "-" if value is None else f"{100 * value:.1f}"


def number(value: float | None) -> str:
    """Return *value* with two digits; a dash for none."""
    return "-" if value is None else f"{value:.2f}"


def predictions_csv(found: Validation) -> str:
    """Return every scored row with what was measured and what each model and rule says, and the 95% interval."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(COLUMNS)
    for row in found.scored:
        writer.writerow(_cells(row))
    return out.getvalue()


def _cells(row: Scored) -> list[object]:
    asked, said = row.asked, row.said
    half = math.exp(1.96 * row.spread["calibrated"])
    placement = "+".join(str(len(part.gpus)) for part in asked.job.placement)
    figures = [asked.step_time, row.compute, said["zero_shot"], said["calibrated"], said["calibrated"] / half, said["calibrated"] * half]
    figures += [said["free_communication"], said["closed_form"], said["copy_row"]]
    record = asked.record
    named = [record.source, record.hardware, record.workload, asked.workload.training.stack.name, placement, asked.batch]
    return [*named, *(f"{figure:.6g}" for figure in figures)]


def validation_plot(found: Validation) -> bytes:
    """Return the PNG of `validation_figure`."""
    out = io.BytesIO()
    validation_figure(found).savefig(out, format="png", dpi=120, bbox_inches="tight", metadata={"Software": None})
    return out.getvalue()


def validation_figure(found: Validation) -> Figure:
    """Return predicted over measured step time, one colour and mark per cluster; both axes reach equally far."""
    from matplotlib.figure import Figure

    from sim.report.picture import plain_logarithm

    shown = [cluster for cluster in found.clusters if cluster.scored]
    columns = -(-len(shown) // _NAMES)
    figure = Figure(figsize=(6 + 2.2 * columns, 6), layout="constrained")
    axes = figure.subplots()
    for number, cluster in enumerate(shown):
        steps = [row.asked.step_time for row in cluster.scored], [row.said["calibrated"] for row in cluster.scored]
        mark, colour = _MARKS[number // 10 % len(_MARKS)], f"C{number % 10}"
        axes.scatter(*steps, s=10, alpha=0.6, label=cluster.name, marker=mark, color=colour, linewidths=0)
    times = [time for row in found.scored for time in (row.asked.step_time, row.said["calibrated"])] or [0.1, 1.0]
    ends = [min(times) / _MARGIN, max(times) * _MARGIN]
    axes.plot(ends, ends, color="black", linewidth=0.8)
    for factor in (1 - EXPOSED, 1 + EXPOSED):
        axes.plot(ends, [factor * end for end in ends], color="grey", linewidth=0.6, linestyle="--")
    axes.set(xscale="log", yscale="log", xlim=ends, ylim=ends, aspect="equal", title="calibrated predictions, dashed: 10%")
    axes.set(xlabel="measured step", ylabel="predicted step")
    for axis in (axes.xaxis, axes.yaxis):
        plain_logarithm(axis, "s")
    if shown:
        figure.legend(fontsize=7, ncols=columns, loc="outside right upper", frameon=False)
    return figure


def named_files(found: Validation, document_text: str) -> dict[str, str | bytes]:
    """Return the files of ``-o DIR`` by name."""
    return {
        "validation.json": document_text,
        "validation.txt": validation_table(found) + "\n",
        "predictions.csv": predictions_csv(found),
        "validation.png": validation_plot(found),
    }
