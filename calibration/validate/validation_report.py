"""How is a validation reported? As a JSON document, a table, a CSV of all predictions, and a scatter plot."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from calibration.clusters.cluster_fit import ClusterModel
from calibration.validate.baselines import RULES as BASELINES
from calibration.validate.carry_over import FAR, NEAR
from calibration.validate.each_run import EachRun, each_run_lines
from calibration.validate.groups import by_novelty, groups, worst_group
from calibration.validate.scores import LEAST_EXPOSED_SHARE, ScoredRow, scores
from calibration.validate.validation import ClusterOutcome, Validation, reason_lines
from sim.units import pluralized

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLUMNS: Final = (
    "record", "line", "role", "source", "hardware", "workload", "stack", "software", "precision", "nodes", "placement", "gpu",
    "batch_per_gpu", "fitted_rows", "measured_s", "compute_s", "zero_shot_s", "calibrated_s", "signed_error", "calibrated_low_s",
    "calibrated_high_s", "free_communication_s", "closed_form_s", "copy_row_s",
)  # fmt: skip
"""Columns of the CSV of predictions."""
UNEXPLAINED_DEVIATIONS: Final = 3.0
"""Error, in standard deviations of the noise, beyond which a network row is reported as unexplained."""
MOST_UNEXPLAINED: Final = 20
"""Most unexplained rows shown; the rest are counted."""
_LEFT_OUT: Final = {
    "source": "source left out",
    "nodes": "3+ nodes left out",
    "large-batches": "large batches left out",
    "small-batches": "small batches left out",
}
_MARKS: Final = "osD^vP"
"""Markers; each is used for ten clusters, which differ in color."""
_NAMES: Final = 32
"""Clusters per column of the legend."""
_MARGIN: Final = 1.15
"""Factor from the outermost points to the ends of the axes, so that axes around a single point have a length."""


def validation_document(validation: Validation, by: Sequence[str] = ()) -> dict[str, Any]:
    """Return the document of ``validate --json``, with rows grouped *by* keys of runs; errors are fractions."""
    rows = validation.scored_rows
    return {
        "schema": 1,
        "overall": scores(rows),
        "sources": [entry for cluster in validation.clusters for entry in _sources(cluster)],
        "whole_sources": _whole_sources(rows),
        "left_out": {kind: _left_out(same) for kind, same in validation.left_out.items()},
        "novelty": by_novelty(rows),
        "groups": [entry for key in by for entry in groups(rows, key)],
        "clusters": [_parameters(cluster) for cluster in validation.clusters],
        "notes": list(validation.notes),
        "not_described": [vars(one) for one in validation.not_described],
    }


def _left_out(rows: Sequence[ScoredRow]) -> dict[str, Any]:
    """Return the scores of *rows*, which were predicted with something left out; for a split, the scores of each side."""
    far, near = ([row for row in rows if side in row.novelty] for side in (FAR, NEAR))
    if far:
        return {"overall": scores(far), "within": scores(near), "sources": _whole_sources(far)}
    return {"overall": scores(rows), "sources": _whole_sources(rows), "novelty": by_novelty(rows)}


def _sources(cluster: ClusterOutcome) -> list[dict[str, Any]]:
    entries = []
    for role, rows in (("prediction", cluster.scored_rows), ("network", cluster.network_rows)):
        for source in dict.fromkeys(row.question.record.source for row in rows):
            same = [row for row in rows if row.question.record.source == source]
            entries.append({"source": source, "cluster": cluster.name, "role": role, **scores(same)})
    return entries


def _whole_sources(rows: Sequence[ScoredRow]) -> list[dict[str, Any]]:
    """Return the scores of each source over all its clusters, with equal weight per cluster, and its worst group."""
    entries = []
    for source in dict.fromkeys(row.question.record.source for row in rows):
        same = [row for row in rows if row.question.record.source == source]
        entries.append({"source": source, "clusters": len({row.cluster for row in same}), **scores(same), "worst_group": worst_group(same)})
    return entries


def _parameters(cluster: ClusterOutcome) -> dict[str, Any]:
    """Return the fitted factors on the description's constants with 95% intervals, and the noise of the fit."""
    model = cluster.calibrated
    return {
        "cluster": cluster.name,
        "network_rows": len(cluster.network_rows),
        "noise": model.noise.relative,
        "noise_s": model.noise.seconds,
        "traffic_in_node": model.path or "as described",
        "beyond_noise": [
            {"record": row.question.record.where, "error": row.error("calibrated"), "noise_widths": row.noise_widths}
            for row in unexplained_rows(cluster)
        ],
        "factors": _factors(model),
    }


def _factors(model: ClusterModel) -> list[dict[str, Any]]:
    rows = []
    for number, (parameter, value) in enumerate(zip(model.parameters, model.values, strict=True)):
        half = 1.96 * math.sqrt(model.covariance[number][number])
        rows.append({"parameter": parameter.name, "factor": math.exp(value), "low": math.exp(value - half), "high": math.exp(value + half)})
    return rows


def unexplained_rows(cluster: ClusterOutcome) -> list[ScoredRow]:
    """Return the network rows of *cluster* with an error of the fit above `UNEXPLAINED_DEVIATIONS` standard deviations of the noise."""
    return [row for row in cluster.network_rows if abs(row.noise_widths) > UNEXPLAINED_DEVIATIONS]


def validation_table(validation: Validation, by: Sequence[str] = ()) -> str:
    """Return the scores as text.

    There is a line for each run if they are few, one for each source and cluster, one for each source with several
    clusters, and one overall; then scores with something left out, and groups *by* keys.
    """
    head = (
        f"{'':38} {'rows':>5}  {'zero-shot':>13}  {'calibrated':>13} {'skill':>6} {'tau':>6}  {'free':>6} {'closed':>6} {'copy':>6}"
        f"  {'exposed rows':>12} {'calibrated':>13} {'skill':>6}  {'within':>6}\n"
        f"{'':38} {'':>5}  {'median/p90%':>13}  {'median/p90%':>13} {'':>6} {'':>6}  {'median %':^20}  {'':>12} {'median/p90%':>13} {'':>6}"
        f"  {'95%':>6}"
    )
    lines = [*each_run_lines([_each(row) for row in validation.scored_rows]), head]
    for entry in (entry for cluster in validation.clusters for entry in _sources(cluster) if entry["role"] == "prediction"):
        lines.append(_line(f"{entry['source'][:14]} {entry['cluster']}".strip(), entry))
    by_source = _whole_sources(validation.scored_rows)
    lines += [_line(f"{_source(entry)[:24]}, {entry['clusters']} clusters", entry) for entry in by_source if entry["clusters"] > 1]
    lines.append(_line("overall, one vote per cluster", scores(validation.scored_rows)))
    for kind, rows in validation.left_out.items():
        lines += ["", *(_left_out_lines(kind, _left_out(rows)) if rows else [f"{_LEFT_OUT[kind]}: no cluster has rows on both sides"])]
    lines += _worst_lines(by_source) + _novelty_lines(validation)
    for key in by:
        lines += ["", group_table(validation.scored_rows, key, key)]
    lines += _traffic_lines(validation)
    if validation.not_described:
        lines += [
            "",
            f"{pluralized(len(validation.not_described), 'row')} that cannot be predicted:",
            *reason_lines(validation.not_described),
        ]
    return "\n".join(line.rstrip() for line in "\n".join(lines).splitlines())


def _source(entry: Mapping[str, Any]) -> str:
    return str(entry["source"] or "no source given")


def explanation(validation: Validation) -> str:
    """Return an explanation of the columns, and of the rows that changed nothing, for users who validate their own table."""
    return "\n".join(["", *_unmoved_lines(validation), "", *legend_lines(_LEGEND)])


def legend_lines(columns: Mapping[str, str]) -> list[str]:
    """Return a line for each of the *columns* of a table with its meaning, and where to read more."""
    widest = max(map(len, columns))
    return ["columns:", *(f"  {name:{widest}}  {meaning}" for name, meaning in columns.items()), _MORE]


_MORE: Final = "docs/how-to/calibrate.md tells how to read them"
_LEGEND: Final = {
    "zero-shot": "error (percent of the measured step) from descriptions and how fast each job computes (rows of role compute)",
    "calibrated": "error if the rows of role network calibrate the network as well",
    "signed": "median error with its sign: above zero if predicted too slow",
    "skill": "share of the best simple rule's error that is avoided: 1 is all of it, below 0 the rule is better",
    "tau": "Kendall's rank correlation of predicted and measured rates of a job: 1 is the right order, -1 the reverse",
    "free, closed, copy": "errors of the simple rules: no communication; rings in closed form; the nearest measured row, scaled",
    "exposed rows": "rows in which communication takes part of the step, and their errors and skill",
    "within 95%": "percent of rows inside the 95% interval of their prediction",
}
"""What the columns of `validation_table` mean."""


MOST_UNMOVED: Final = 4
"""Most network rows without effect whose errors are shown, of each cluster."""
_UNMOVED: Final = (
    "network rows without effect, because no other row confirms them (add rows of jobs that wait for the network, on other numbers of "
    "nodes):"
)


def _unmoved_lines(validation: Validation) -> list[str]:
    """Return lines on clusters with network rows that change nothing, because constants change only if that improves cross-validation.

    What contradicts the other rows widens their common noise, so that no row need be many noise widths off. So errors are shown.
    """
    unmoved = [each for each in validation.clusters if each.network_rows and not any(each.calibrated.values)]
    if not unmoved:
        return []
    return ["", _UNMOVED, *(f"  {each.name}: {_unmoved(each.network_rows)}" for each in unmoved)]


def _unmoved(rows: Sequence[ScoredRow]) -> str:
    """Return how many *rows* there are, and the line and error of those that are farthest off."""
    farthest = sorted(rows, key=lambda row: -abs(math.log1p(row.error("calibrated"))))[:MOST_UNMOVED]
    errors = [
        f"{Path(record.file).name}:{record.line} {signed(row.error('calibrated'))}%"
        for row in sorted(farthest, key=lambda row: row.question.record.line)
        for record in [row.question.record]
    ]
    return f"{pluralized(len(rows), 'network row')}, {'off by' if len(rows) == len(farthest) else 'the farthest off'}: {', '.join(errors)}"


def group_table(rows: Sequence[ScoredRow], key: str, name: str) -> str:
    """Return a table with a line of errors for each value of *key* among *rows*; *name* is the first column's title."""
    return "\n".join([_group_head(name), *(_group_line(entry["value"], entry) for entry in groups(rows, key))])


def _each(row: ScoredRow) -> EachRun:
    question, predicted = row.question, row.predictions["calibrated"]
    half = math.exp(1.96 * row.deviations["calibrated"])
    gpus = sum(len(part.gpus) for part in question.job.placement)
    record = question.record
    other = f" with {question.gpu.name}" if "node.gpu=" in record.overrides else ""
    what = f"{record.workload} on {record.hardware}{other}, {pluralized(gpus, 'GPU')}"
    return EachRun(f"{Path(record.file).name}:{record.line}", what, question.step_time, predicted, predicted / half, predicted * half)


def _left_out_lines(kind: str, score: Mapping[str, Any]) -> list[str]:
    """Return the lines of scores with one *kind* left out, for each source and overall."""
    lines = [_line(f"{_LEFT_OUT[kind]}: {_source(entry)}", entry) for entry in score["sources"]]
    if "within" in score:
        lines.append(_line(f"{_LEFT_OUT[kind]}: rows within", score["within"]))
    return [*lines, _line(f"{_LEFT_OUT[kind]}: overall", score["overall"])]


def _group_head(name: str) -> str:
    return f"{name:38} {'rows':>5}  {'zero-shot':>13} {'signed':>7}  {'calibrated':>13} {'signed':>7}  {'within 95%':>10}"


def _group_line(name: str, score: Mapping[str, Any]) -> str:
    before, after = score["zero_shot"], score["calibrated"]
    return (
        f"{name[:38]:38} {score['points']:5,}  {pair(before):>13} {signed(before['bias']):>7}  {pair(after):>13} {signed(after['bias']):>7}"
        f"  {percent(after['coverage']):>10}"
    )


def _worst_lines(by_source: Sequence[Mapping[str, Any]]) -> list[str]:
    worst_groups = [(_source(entry), entry["worst_group"]) for entry in by_source if entry["worst_group"]]
    lines = [_group_line(f"{source}, {group['key']} {group['value']}", group) for source, group in worst_groups]
    return ["", _group_head("worst group of each source"), *lines] if lines else []


def _novelty_lines(validation: Validation) -> list[str]:
    """Return lines of coverage and errors by what is new about rows, also for rows predicted without their source if there are any."""
    lines = []
    for text, rows in (("", validation.scored_rows), (", source left out", validation.left_out.get("source", ()))):
        if entries := by_novelty(rows):
            lines += ["", _group_head(f"by novelty{text}"), *(_group_line(entry["novelty"], entry) for entry in entries)]
    return lines


def _traffic_lines(validation: Validation) -> list[str]:
    """Return lines on fitted traffic paths that differ from the descriptions, and on network rows that the fits do not explain."""
    ways = [f"  {cluster.name}: {cluster.calibrated.path}" for cluster in validation.clusters if cluster.calibrated.path]
    rows = [row for cluster in validation.clusters for row in unexplained_rows(cluster)]
    rows.sort(key=lambda row: -abs(row.noise_widths))
    left = [f"  {_unexplained(row)}" for row in rows[:MOST_UNEXPLAINED]]
    more = [f"  and {len(rows) - MOST_UNEXPLAINED} more"] if len(rows) > MOST_UNEXPLAINED else []
    lines = ["", "traffic inside a node that differs from the description:", *ways] if ways else []
    return lines + (
        ["", f"network rows that are more than {UNEXPLAINED_DEVIATIONS:g} noise widths off after the fit:", *left, *more] if left else []
    )


def _unexplained(row: ScoredRow) -> str:
    record = row.question.record
    where = f"{Path(record.file).name}:{record.line}"
    return f"{where}: {row.cluster} {record.workload}: {signed(row.error('calibrated'))}%, {abs(row.noise_widths):.1f} widths"


def _line(name: str, score: Mapping[str, Any]) -> str:
    after = score["calibrated"]
    rules = " ".join(f"{percent(score[rule]['median']):>6}" for rule in BASELINES)
    exposed = after["exposed"]
    return (
        f"{name[:38]:38} {after['points']:5,}  {pair(score['zero_shot']):>13}  {pair(after):>13} {number(after['skill']):>6}"
        f" {number(after['kendall_tau']):>6}  {rules}"
        f"  {exposed['points']:>12,} {pair(exposed):>13} {number(exposed['skill']):>6}  {percent(after['coverage']):>6}"
    )


def pair(score: Mapping[str, Any]) -> str:
    """Return the median and 90th percentile of *score*, in percent."""
    return f"{percent(score['median'])} / {percent(score['p90'])}"


def percent(value: float | None) -> str:
    """Return *value* in percent; a dash for None."""
    return "-" if value is None else f"{100 * value:.1f}"


def counted(share: float | None, rows: int) -> str:
    """Return the number of *rows* that a *share* of them is, with the share in percent: ``2 of 18 (11.1%)``."""
    return f"0 of {rows}" if share is None else f"{round(share * rows)} of {rows} ({percent(share)}%)"


def signed(value: float | None) -> str:
    """Return *value* in percent with its sign; a dash for None."""
    return "-" if value is None else f"{100 * value:+.1f}"


def number(value: float | None) -> str:
    """Return *value* with two decimals; a dash for None."""
    return "-" if value is None else f"{value:.2f}"


def predictions_csv(validation: Validation) -> str:
    """Return a CSV of all scored and fitted rows with the measured step, the predictions of all models and rules, and the 95% interval.

    *signed_error* is calibrated over measured, minus one; *fitted_rows* is the number of network rows in the fit of the row's cluster.
    """
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(COLUMNS)
    for cluster in validation.clusters:
        for row in (*cluster.scored_rows, *cluster.network_rows):
            writer.writerow(_cells(row))
    return out.getvalue()


def _cells(row: ScoredRow) -> list[object]:
    question, predictions = row.question, row.predictions
    half = math.exp(1.96 * row.deviations["calibrated"])
    placement = "+".join(str(len(part.gpus)) for part in question.job.placement)
    times = [question.step_time, row.compute, predictions["zero_shot"], predictions["calibrated"]]
    ends = [predictions["calibrated"] / half, predictions["calibrated"] * half]
    rules = [predictions.get(rule) for rule in BASELINES]
    record, training = question.record, question.workload.training
    named = [record.file, record.line, record.role, record.source, record.hardware, record.workload, training.stack.name, record.software]
    named += [training.precision, question.nodes, placement, question.gpu.name, question.batch, row.fitted_row_count]
    figures = [*times, row.error("calibrated"), *ends, *rules]
    return [*named, *("" if figure is None else f"{figure:.6g}" for figure in figures)]


def validation_plot(validation: Validation) -> bytes:
    """Return the PNG of `validation_figure`."""
    out = io.BytesIO()
    validation_figure(validation).savefig(out, format="png", dpi=120, bbox_inches="tight", metadata={"Software": None})
    return out.getvalue()


def validation_figure(validation: Validation) -> Figure:
    """Return a plot of predicted over measured step time, with a color and marker per cluster and equal ranges of both axes."""
    from matplotlib.figure import Figure

    from sim.report.picture import plain_logarithm

    shown = [cluster for cluster in validation.clusters if cluster.scored_rows]
    columns = -(-len(shown) // _NAMES)
    figure = Figure(figsize=(6 + 2.2 * columns, 6), layout="constrained")
    axes = figure.subplots()
    for number, cluster in enumerate(shown):
        steps = [row.question.step_time for row in cluster.scored_rows], [row.predictions["calibrated"] for row in cluster.scored_rows]
        mark, color = _MARKS[number // 10 % len(_MARKS)], f"C{number % 10}"
        axes.scatter(*steps, s=10, alpha=0.6, label=cluster.name, marker=mark, color=color, linewidths=0)
    times = [time for row in validation.scored_rows for time in (row.question.step_time, row.predictions["calibrated"])] or [0.1, 1.0]
    ends = [min(times) / _MARGIN, max(times) * _MARGIN]
    axes.plot(ends, ends, color="black", linewidth=0.8)
    for factor in (1 - LEAST_EXPOSED_SHARE, 1 + LEAST_EXPOSED_SHARE):
        axes.plot(ends, [factor * end for end in ends], color="gray", linewidth=0.6, linestyle="--")
    axes.set(xscale="log", yscale="log", xlim=ends, ylim=ends, aspect="equal", title="calibrated predictions, dashed: 10%")
    axes.set(xlabel="measured step", ylabel="predicted step")
    for axis in (axes.xaxis, axes.yaxis):
        plain_logarithm(axis, "s")
    if shown:
        figure.legend(fontsize=7, ncols=columns, loc="outside right upper", frameon=False)
    return figure


def named_files(validation: Validation, by: Sequence[str], document_text: str) -> dict[str, str | bytes]:
    """Return the files of ``-o DIR`` by name."""
    return {
        "validation.json": document_text,
        "validation.txt": validation_table(validation, by) + explanation(validation) + "\n",
        "predictions.csv": predictions_csv(validation),
        "validation.png": validation_plot(validation),
    }
