"""How are a model's layers presented? As a table of blocks or layers, and as plots of cumulative shares over depth and the roofline."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any

from sim.report.picture import Picture, figure, picture
from sim.report.table import bar
from sim.units import show

_BAR = 16
_FLOP = ("forward_flop", "backward_flop", "forward_arithmetic_flop", "backward_arithmetic_flop")
_NAME = 34
_WINOGRAD = "Winograd transforms need fewer multiplications than counted"
_NEAR = 0.022
"""Dots closer than this share of a plot's width and height share one label."""


def layers_text(document: Mapping[str, Any], every: bool = False) -> str:
    """Return the report of one workload: its blocks, or with *every* each layer, with their shares of the total."""
    lines = [*_heading(document), "", _columns(document)]
    rows = document["layers"] if every else document["blocks"]
    totals = {key: sum(row[key] for row in rows) or 1.0 for key in ("parameters", "saved_bytes")}
    totals["flop"] = sum(row["forward_flop"] + row["backward_flop"] for row in rows) or 1.0
    totals["time"] = sum(_time(row) for row in rows) or 1.0
    lines += [_line(row, totals, document) for row in rows]
    return "\n".join(lines)


def _heading(document: Mapping[str, Any]) -> list[str]:
    forward, backward = (show(document[f"{way}_flop_per_sample"], "work") for way in ("forward", "backward"))
    lines = [
        f"{document['workload']}: {document['parameters']:,} parameters, {document['gradient_tensors']} gradient tensors, "
        f"{len(document['layers'])} layers; a sample takes {forward} forward and {backward} backward and saves "
        f"{show(document['saved_bytes_per_sample'], 'size')}"
    ]
    if (roof := document["roofline"]) is not None:
        peak, bandwidth = show(roof["peak_flop_per_s"], "compute rate"), show(roof["memory_bytes_per_s"], "bandwidth")
        times = [_time(row) for row in document["layers"]]
        bound = sum(_time(row) for row in document["layers"] if row["intensity_flop_per_byte"] >= roof["ridge_flop_per_byte"])
        lines += [
            f"{document['gpu']}, {document['batch_per_gpu']} samples, {document['precision']}: {show(sum(times), 'time')} forward and "
            f"backward; {100 * bound / (sum(times) or 1.0):.0f}% of it above the ridge of {roof['ridge_flop_per_byte']:.0f} FLOP/B "
            f"({peak}, {bandwidth})"
        ]
        if above := len(_above_peak(document)):
            lines += [f"{above} convolution{'s' * (above > 1)} above that peak: {_WINOGRAD}"]
    return lines


def _above_peak(document: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the convolutions whose counted FLOP per second exceed the peak of the units."""
    rows = [row for row in document["layers"] if row["op"] == "conv" and _time(row) > 0]
    return [row for row in rows if _rate(row, document) > document["roofline"]["peak_flop_per_s"]]


def _rate(row: Mapping[str, Any], document: Mapping[str, Any]) -> float:
    return float(document["batch_per_gpu"] * sum(row[key] for key in _FLOP) / _time(row))


def _columns(document: Mapping[str, Any]) -> str:
    line = f"  {'':{_NAME}} {'op':>15} {'parameters':>12} {'FLOP':>7} {'saved':>7} {'FLOP/B':>7}"
    return line + (f" {'time':>10}" if document["roofline"] else "")


def _line(row: Mapping[str, Any], totals: Mapping[str, float], document: Mapping[str, Any]) -> str:
    name = row["name"] if len(row["name"]) <= _NAME else "..." + row["name"][3 - _NAME :]
    flop = (row["forward_flop"] + row["backward_flop"]) / totals["flop"]
    kind = row["op"] if "op" in row else f"{row['layers']} layer{'s' * (row['layers'] > 1)}"
    line = f"  {name:{_NAME}} {kind:>15} {100 * row['parameters'] / totals['parameters']:>10.1f}% {100 * flop:>5.1f}%"
    line += f" {100 * row['saved_bytes'] / totals['saved_bytes']:>5.1f}% {row['intensity_flop_per_byte']:>7.1f}"
    if document["roofline"]:
        line += f" {show(_time(row), 'time'):>10}  {bar(_time(row) / totals['time'], _BAR)}"
    return line.rstrip()


def _time(row: Mapping[str, Any]) -> float:
    return float(row.get("forward_time_s", 0.0) + row.get("backward_time_s", 0.0))


def layers_plot(document: Mapping[str, Any]) -> Picture:
    """Return a plot of cumulative shares over depth and, if a GPU is specified, of each layer in the roofline."""
    rows, roof = document["layers"], document["roofline"]
    drawn, axes = figure(2 if roof else 1, (9, 8 if roof else 4.5))
    series = {
        "FLOP": [row["forward_flop"] + row["backward_flop"] for row in rows],
        "parameters": [row["parameters"] for row in rows],
        "saved activations": [row["saved_bytes"] for row in rows],
        **({"time": [_time(row) for row in rows]} if roof else {}),
    }
    for (name, values), color in zip(series.items(), ("#4477aa", "#ee6677", "#228833", "#ccbb44"), strict=False):
        total = sum(values) or 1.0
        axes[0].plot([100 * value / total for value in accumulate(values)], label=name, color=color)
    axes[0].set_xlabel("layer, in forward order")
    axes[0].set_ylabel("% so far")
    axes[0].set_title(f"{document['workload']}: cumulative work, parameters and activations", fontsize=11, loc="left")
    axes[0].legend(frameon=False)
    axes[0].grid(alpha=0.3)
    if roof:
        _roofline(axes[1], document)
    return picture(drawn)


def _roofline(axes: Any, document: Mapping[str, Any]) -> None:
    roof = document["roofline"]
    points = [row for row in document["layers"] if row["intensity_flop_per_byte"] > 0 and _time(row) > 0]
    kinds = sorted({row["op"] for row in points}, key=lambda op: -sum(_time(row) for row in points if row["op"] == op))
    for kind, color in zip(kinds, ("#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377", "#bbbbbb"), strict=False):
        of_kind = [row for row in points if row["op"] == kind]
        rates = [_rate(row, document) for row in of_kind]
        axes.scatter([row["intensity_flop_per_byte"] for row in of_kind], rates, s=14, color=color, alpha=0.7, label=kind)
    ends = [0.1, roof["ridge_flop_per_byte"], 1e4]
    axes.plot(ends, [min(roof["peak_flop_per_s"], end * roof["memory_bytes_per_s"]) for end in ends], color="#775522")
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("FLOP per byte")
    axes.set_ylabel("FLOP/s")
    remark = f"; dots above it: {_WINOGRAD}" if _above_peak(document) else ""
    axes.set_title(f"roofline of {document['gpu']}, {document['precision']}{remark}", fontsize=11, loc="left")
    axes.legend(frameon=False)
    axes.grid(alpha=0.3)


def stall_by_gradients_text(document: Mapping[str, Any]) -> str:
    """Return the table of layers against gradients: one workload per line, sorted by number of gradient tensors."""
    lines = [
        f"{document['hardware']}: gradient stall of a step, by depth and volume",
        "",
        f"   # {'':24} {'weight layers':>13} {'tensors':>8} {'gradients':>10} {'batch':>6} {'step':>10} {'stall':>10}",
    ]
    for number, row in enumerate(document["rows"], 1):
        lines.append(
            f"{number:>4} {row['workload']:24} {row['weight_layers']:>13} {row['gradient_tensors']:>8} "
            f"{show(row['gradient_bytes'], 'size'):>10} "
            f"{row['batch_per_gpu']:>6} {show(row['step_time_s'], 'time'):>10} {show(row['stall_s'], 'time'):>10} "
            f"{100 * row['stall_share']:5.1f}%  {bar(row['stall_share'], _BAR)}".rstrip()
        )
    return "\n".join(lines)


def stall_by_gradients_plot(document: Mapping[str, Any]) -> Picture:
    """Return a plot of the stall over gradient volume, and over the number of tensors; dots are numbered as in the table."""
    rows: Sequence[Mapping[str, Any]] = document["rows"]
    drawn, axes = figure(2, (11, 9))
    for place, (key, label, scale) in zip(
        axes, (("gradient_bytes", "gradients, MB", 1e-6), ("gradient_tensors", "gradient tensors", 1.0)), strict=True
    ):
        points = [(scale * row[key], 1e3 * row["stall_s"]) for row in rows]
        place.scatter(*zip(*points, strict=True), color="#228833")
        for numbers in group_near(points, _NEAR):
            place.annotate(ranges_text(numbers), points[numbers[0] - 1], fontsize=9, xytext=(5, 4), textcoords="offset points")
        place.set_xlabel(label)
        place.set_ylabel("stall, ms per step")
        place.grid(alpha=0.3)
    axes[0].set_title(f"layers against gradients on {document['hardware']}", fontsize=11, loc="left")
    key = "\n".join(f"{number:>3} {row['workload']}" for number, row in enumerate(rows, 1))
    axes[0].text(1.02, 1.0, key, transform=axes[0].transAxes, va="top", fontsize=8, family="monospace")
    return picture(drawn)


def group_near(points: Sequence[tuple[float, float]], near: float) -> list[list[int]]:
    """Return the numbers of *points*, from 1, in groups within *near* of the group's first point, as a share of each axis's range."""
    spans = [(max(values) - min(values)) or 1.0 for values in zip(*points, strict=True)]
    groups: list[list[int]] = []
    for number, point in enumerate(points, 1):
        for group in groups:
            first = points[group[0] - 1]
            if all(abs(a - b) <= near * span for a, b, span in zip(point, first, spans, strict=True)):
                group.append(number)
                break
        else:
            groups.append([number])
    return groups


def ranges_text(numbers: Sequence[int]) -> str:
    """Return rising *numbers* as text, with three or more consecutive ones as a range: ``1-3, 7``."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ", ".join(f"{run[0]}-{run[-1]}" if len(run) > 2 else ", ".join(map(str, run)) for run in runs)
