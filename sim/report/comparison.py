"""How do machines compare? A table with the Pareto front marked, JSON, CSV, and a plot of time against cost."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from math import inf
from typing import TYPE_CHECKING, Any, NamedTuple

from sim.report.assumed_network import network_notes
from sim.report.basis import merged_basis, merged_by_machine
from sim.report.columns import Title, align
from sim.report.energy import brief_energy, epoch_tokens, grid_words, power_cap_text
from sim.report.layouts.layout import layout_words
from sim.report.loader_workers import worker_notes
from sim.report.picture import ERROR_BARS, NamedPoint, Picture, figure, name_points, picture, plain_logarithm
from sim.report.prices import price_lines, prices_of_runs
from sim.report.validated import ExpectedError
from sim.report.whole_job import job_time, tokens_text
from sim.spec.precision import PRECISION_TRAITS
from sim.spec.yaml import SpecError
from sim.study.compare import ComparedMachine, front
from sim.units import all_of, any_of, axis_unit, pluralized, rate_text, rounded, rounded_dollars, show

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SORTS = {"time": "epoch_time_s", "cost": "cost_per_epoch_usd", "name": "hardware", "step": "step_time_s"}
"""Maps each sort order of a comparison to its key in the document."""


_RATES = {"tokens_per_s": "tokens/s", "throughput_samples_per_s": "samples/s"}
_JOB, _EPOCHS = "whole job", "epochs done"
_BEYOND = "^ extrapolated: outside the measured sizes, models or machines; 'run' shows the details"
_ERROR = "error: median and 90th percentile of the errors of similar predictions; ? not measured"
_APART = 5e-4
"""Relative difference below which two machines are reported as equal."""
NAMED = 3
"""Number of machines listed by name if the same text applies to many."""
MOST_ROWS = 30
"""Number of rows of a table that shows only what matters of many machines: more if the front and the providers need more."""
_NODES = ", "
"""What separates a machine's name from its number of nodes."""
_FRONT = "* Pareto-optimal: nothing else is both faster and cheaper"


def require_sort(sort: str) -> None:
    """Raise SpecError if *sort* is not one of `SORTS`."""
    if sort not in SORTS:
        raise SpecError(f"--sort {sort}: write one of {', '.join(SORTS)}")


def comparison_document(workload: str, rows: Sequence[ComparedMachine], sort: str = "time", note: str = "") -> dict[str, Any]:
    """Return the JSON document of a comparison, sorted by *sort*; machines that cannot run the workload come last, with the reason.

    *note* tells which machine could run it if none of these can.
    """
    require_sort(sort)
    ran = [dict(row.document) | {"provider": row.provider} for row in rows if row.document is not None]
    best = front(objectives(document) for document in ran)
    shown = [{**_figures(document), "pareto": on_front} for document, on_front in zip(ran, best, strict=True)]
    shown.sort(key=lambda row: _place(row, sort))
    failed = [{"hardware": row.hardware, "nodes": row.nodes, "problem": row.problem} for row in rows if row.document is None]
    return {
        "schema": 1,
        "workload": workload,
        "rows": shown,
        "left_out": failed,
        "note": note or _without_price(shown),
        "prices": prices_of_runs(shown),
        **merged_basis(ran),
    }


def _without_price(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return a sentence that lists the machines of *rows* without a price; empty if there are none, or if none has one on demand."""
    lacking = dict.fromkeys(row["hardware"] for row in rows if (row["price"] or {}).get("usd_per_h") is None)
    if not lacking:
        return ""
    listed = ", ".join(lacking)
    if any((row["price"] or {}).get("market") == "spot" for row in rows):
        return f"no spot price for {listed}; set one with --set price.spot='1.50 USD/h', or use --market on-demand"
    if len(lacking) == len({row["hardware"] for row in rows}):
        return ""
    return f"no price for {listed}; --price {next(iter(lacking))}='10 USD/h' sets one"


def objectives(document: Mapping[str, Any]) -> tuple[float, float | None]:
    """Return the two objectives to minimize: time and cost of an epoch; with a whole job, its time per epoch and its cost."""
    job = document["whole_job"]
    if job is None:
        return document["epoch_time_s"], document["cost_per_epoch_usd"]
    return (job["time_s"] / job["epochs"] if job["epochs"] else inf), job["cost_usd"]


def _place(row: Mapping[str, Any], sort: str) -> tuple[bool, Any]:
    time, cost = objectives(row)
    key = {"time": time, "cost": cost}.get(sort, row[SORTS[sort]])
    return key is None, 0.0 if key is None else key


_KEPT = (
    "hardware", "provider", "nodes", "gpus", "batch_per_gpu", "precision", "stack", "step_time_s", "throughput_samples_per_s",
    "epoch_time_s",
    "cost_per_epoch_usd", "price", "stalls_s", "expected_error", "whole_job",
)  # fmt: skip
_NOTED = ("loader_workers", "assumed_network")
"""Keys of documents that have something to note, which others lack."""


def _figures(document: dict[str, Any]) -> dict[str, Any]:
    first = document["first_epoch"]
    return (
        {key: document[key] for key in _KEPT}
        | {
            "tokens_per_s": document.get("tokens_per_s"),
            "first_epoch_time_s": first["epoch_time_s"],
            "first_cost_usd": first["cost_usd"],
            "energy": brief_energy(document.get("energy")),
            "gpu_memory_bytes": document["gpu_memory_bytes"]["total"],
            "power_cap": (document.get("energy") or {}).get("power_cap"),
            "layout": layout_words(document),
            "layout_gap": document.get("layout_gap"),
        }
        | {key: document[key] for key in _NOTED if key in document}
    )


def rate_of(rows: Sequence[Mapping[str, Any]]) -> tuple[str, str]:
    """Return the key of *rows* that holds their throughput, and its title: tokens if all rows have them, else samples."""
    key = "tokens_per_s" if rows and all(row["tokens_per_s"] is not None for row in rows) else "throughput_samples_per_s"
    return key, _RATES[key]


def rows_that_matter(rows: Sequence[dict[str, Any]], most: float) -> list[dict[str, Any]]:
    """Return *rows* if they are at most *most*; else the front, the best of each provider, and the first others up to `MOST_ROWS`.

    The best are the first of *rows* and the fastest. The two fastest and the two cheapest are always shown, because their difference is.
    """
    if len(rows) <= most:
        return list(rows)
    places = range(len(rows))
    kept = {place for place in places if rows[place]["pareto"]}
    for objective in (0, 1):
        valued = [(value, place) for place in places if (value := objectives(rows[place])[objective]) is not None]
        kept |= {place for _, place in sorted(valued)[:2]}
    by_time = sorted(places, key=lambda place: objectives(rows[place])[0])
    for order in (places, by_time):
        first: dict[str, int] = {}
        for place in order:
            first.setdefault(rows[place]["provider"], place)
        kept |= {place for provider, place in first.items() if provider}
    kept |= set([place for place in places if place not in kept][: max(0, MOST_ROWS - len(kept))])
    return [rows[place] for place in sorted(kept)]


def comparison_text(document: dict[str, Any], most: float = inf) -> str:
    """Return a comparison's *document* as a table; ``*`` marks the machines that no other beats in both time and cost.

    Of more than *most* machines, only those that matter are shown (`rows_that_matter`).
    """
    every = document["rows"]
    rows = rows_that_matter(every, most)
    of_job, in_tokens = _job_titles(rows), any(row["whole_job"] and row["whole_job"]["given"] == "tokens" for row in rows)
    rate, of_rate = rate_of(rows)
    of_epoch = () if in_tokens else ("epoch", "USD/epoch", "kWh/epoch", "first")
    titles = [
        Title("", True), Title("hardware", True), Title("provider", True), Title("nodes"), Title("GPUs"), Title(of_rate),
        *map(Title, (*of_epoch, *of_job)), Title("memory"), Title("compute"), Title("largest stall", True), Title("error"),
    ]  # fmt: skip
    lines = [f"No machine can run {document['workload']}."]
    if rows:
        folded = len(every) - len(rows)
        names = {row["hardware"] for row in rows}
        lines = [
            f"{document['workload']}: {machine_count(every)}",
            "",
            align(titles, [_cells(row, of_epoch, of_job, rate) for row in rows]),
            *([f"{pluralized(folded, 'more row' if _has_sizes(every) else 'more machine')}: --all shows them"] if folded else []),
            "",
            _FRONT,
            *(_epoch_lines(rows) if of_epoch else []),
            *([_ERROR] if any(row["expected_error"] for row in rows) else []),
            *([_BEYOND] if any((row["expected_error"] or {}).get("extrapolates") for row in rows) else []),
            *ambiguity_notes(every),
            *note_lines(rows),
            *group_by_text((_at(row), f"CO2 at {grid_words(row['energy']['grid'])}.") for row in rows if row["energy"]),
            *price_lines(row for row in document["prices"] if row["hardware"] in names),
        ]
    if document["left_out"]:
        lines += [*(["", "Cannot run it:"] if rows else []), *(f"  - {line}" for line in failure_lines(document["left_out"]))]
    return "\n".join([*lines, *(["", _sentence(document["note"])] if document["note"] else [])])


def note_lines(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return sentences without which the figures of *rows* could mislead: what does not run as described, or was never measured."""
    return [
        *laid_out_lines(rows),
        *not_validated_lines(rows),
        *(f"{note}." for note in worker_notes(rows)),
        *map(_sentence, network_notes(rows)),
        *(f"{_at(row)}: {power_cap_text(row['power_cap'])}." for row in rows if row["power_cap"]),
    ]


def page_notes(document: Mapping[str, Any]) -> list[str]:
    """Return the notes on all rows of a comparison's *document*, with its own note, as items of one list."""
    rows = document["rows"]
    lines = [line.removeprefix("  - ") for line in (*ambiguity_notes(rows), *note_lines(rows))]
    return [*lines, *([_sentence(document["note"])] if document["note"] else [])]


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}."


def machine_count(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return how many machines *rows* have, and how many choices of machine and number of nodes if these are more."""
    machines = pluralized(len({row["hardware"] for row in rows}), "machine")
    return f"{machines}, {pluralized(len(rows), 'choice')} of machine and nodes" if _has_sizes(rows) else machines


def _has_sizes(rows: Sequence[Mapping[str, Any]]) -> bool:
    return len({row["hardware"] for row in rows}) < len(rows)


def _epoch_lines(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a line with the number of tokens per epoch, if it is the same for all *rows*."""
    tokens = {epoch_tokens(row) for row in rows}
    count = tokens.pop() if len(tokens) == 1 else None
    return [] if count is None else [f"an epoch is {tokens_text(count)} (--tokens N for another budget)"]


def _job_titles(rows: Sequence[Mapping[str, Any]]) -> Sequence[str]:
    """Return the titles of the columns in which the whole jobs of *rows* differ."""
    jobs = [row["whole_job"] for row in rows if row["whole_job"]]
    if not jobs:
        return ()
    return (_JOB if time_differs(jobs[0]) else _EPOCHS), "USD"


def time_differs(job: Mapping[str, Any]) -> bool:
    """Return whether machines differ in how long *job* takes; they do not if its length is specified in hours."""
    return bool(job["given"] != "time")


def failure_lines(failed: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return one line per reason why machines of *failed* cannot run the workload, with the machines that share it."""
    problems = [cannot_run(row) for row in failed]
    parted = [(line, *line.partition(": ")) for line in problems]
    ungrouped = [line for line, name, _, text in parted if not text or " " in name.partition(",")[0]]
    return [*ungrouped, *group_by_text(((name, text) for line, name, _, text in parted if line not in ungrouped), len(problems))]


def group_by_text(texts: Iterable[tuple[str, str]], most: int = NAMED) -> list[str]:
    """Return one line per distinct text in *texts* (pairs of machine and text), with its machines; long lists are cut to *most* names.

    HW replaces the machine's name in a text that applies to several. The number of nodes may follow the name after a comma.
    """
    statements: dict[str, list[tuple[str, str]]] = {}
    for name, text in texts:
        text = text.removeprefix(f"{name}: ")
        machine = re.escape(name.partition(_NODES)[0])
        statements.setdefault(re.sub(rf"(?<![\w.-]){machine}(?![\w.-])", "HW", text), []).append((name, text))
    lines = []
    for text, each in statements.items():
        names = [name for name, _ in each]
        more = f" and {len(names) - most} more" if len(names) > most + 1 else ""
        nodes = {name.partition(_NODES)[2] for name in names}
        alike = f", {nodes.pop()} each" if len(names) > 1 and len(nodes) == 1 and all(nodes) else ""
        shown = [name.partition(_NODES)[0] if alike else name for name in (names[:most] if more else names)]
        lines.append(f"{', '.join(shown)}{more}{alike}: {each[0][1] if len(each) == 1 else text}")
    return lines


def cannot_run(failed: Mapping[str, Any]) -> str:
    """Return why a machine cannot run the workload, with its name, and its number of nodes if it is more than one."""
    problem = str(failed["problem"])
    machine = failed["hardware"] + (f", {failed['nodes']:,} nodes" if (failed["nodes"] or 1) > 1 else "")
    named = problem.startswith((f"{machine}:", f"{machine} "))
    return problem if named else f"{machine}: {problem.removeprefix(failed['hardware'] + ': ')}"


def _cells(row: dict[str, Any], of_epoch: Sequence[str], of_job: Sequence[str], rate: str) -> list[str]:
    stalls = {name: seconds for name, seconds in row["stalls_s"].items() if name != "compute"}
    worst = max(stalls, key=lambda name: stalls[name])
    cost = row["cost_per_epoch_usd"]
    epoch = (
        show(row["epoch_time_s"], "time"),
        "-" if cost is None else rounded_dollars(cost),
        "-" if row["energy"] is None else rounded(row["energy"]["kwh_per_epoch"]),
        show(row["first_epoch_time_s"], "time"),
    )
    return [
        "*" if row["pareto"] else "",
        row["hardware"],
        row["provider"],
        f"{row['nodes']:,}",
        f"{row['gpus']:,}",
        rate_text(row[rate]),
        *(epoch if of_epoch else ()),
        *(_job_cells(row["whole_job"], of_job[0]) if of_job else ()),
        f"{row['gpu_memory_bytes'] / 2**30:.1f} GiB",
        f"{100 * row['stalls_s']['compute'] / row['step_time_s']:.0f}%",
        f"{worst} {100 * stalls[worst] / row['step_time_s']:.0f}%",
        _error(row["expected_error"]),
    ]


def _error(error: ExpectedError | None) -> str:
    mark = "^" if error and error.get("extrapolates") else ""
    return f"{100 * error['median']:.0f}-{100 * error['p90']:.0f}%{mark}" if error else "?"


def laid_out_lines(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return lines on machines whose GPUs are too small for the whole model: the layout they run, and its proven gap to the best."""
    planned = [row for row in rows if row["layout_gap"] is not None]
    if not planned:
        return []
    return [
        "The job as described does not fit: the whole model with the batch of a GPU. These run the best layout that a short search found, "
        "with micro-batches that fit (N x B: N micro-batches of B samples):",
        *(f"  - {_at(row)}: {row['layout']}{_above(row['layout_gap'])}" for row in planned),
        *(f"{note}." for note in (width_note(rows),) if note),
    ]


def width_note(documents: Sequence[Mapping[str, Any]]) -> str:
    """Return a note if the machines of *documents* that replicate the model keep narrower optimizer states than planned layouts do.

    Both run the workload's precision, but with the stack of each; what a stack keeps in 32 bits costs memory, and is another training.
    """
    plain = [each for each in documents if each.get("layout_gap") is None and PRECISION_TRAITS[each["precision"]].state == 2]
    same = {each["stack"] for each in plain}  # of these, layouts replicate the model in the same precision
    planned = [each for each in documents if each.get("layout_gap") is not None and each["stack"] not in same]
    if not plain or not planned:
        return ""
    own, others = (any_of(sorted({each["stack"] for each in rows})) for rows in (plain, planned))
    machines = sorted({each["hardware"] for each in plain})
    listed = ", ".join(machines[:3]) + (f" and {len(machines) - 3:,} more" if len(machines) > 3 else "")
    return (
        f"{plain[0]['precision']} differs between machines: on {listed}, whose GPUs hold the whole model, weights and optimizer states "
        f"have 16 bits ({own}); the layouts of the others keep 32-bit states ({others}); --stack torchtitan-2.x compares all with 32-bit "
        "states"
    )


def not_validated_lines(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return sentences on features of the layouts of *rows* that no measured run has, with the machines if only some use them."""
    features = merged_by_machine({_at(row): (row["expected_error"] or {}).get("not_validated", ()) for row in rows})
    return [_sentence(text) for text in features]


def _above(gap: float) -> str:
    return ", proven under the model" if gap <= 0 else f", at most {100 * gap:.2g}% above the best (`plan` searches further)"


def ambiguity_notes(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a sentence if others equal the fastest machine or differ by less than the expected error, and another for the cheapest."""
    sentences = []
    for place, adjective in enumerate(("fast", "cheap")):
        valued = [(value, row) for row in rows if (value := objectives(row)[place]) is not None and 0 < value < inf]
        if not valued:
            continue
        (least, best), *others = sorted(valued, key=lambda pair: pair[0])
        equals = [_at(row) for value, row in others if value / least - 1.0 < _APART]
        errors = [max(_median_error(best), _median_error(row)) for _, row in others]
        close = [(value, row, error) for (value, row), error in zip(others, errors, strict=True) if value / least - 1.0 < error]
        if len(equals) < 2 and len(close) == 1:
            second, other, error = close[0]
            apart = second / least - 1 if adjective == "fast" else 1 - least / second
            margin = "no" if equals else f"only {100 * apart:.1f}%"
            sentences.append(f"{_at(best)} is {margin} {adjective}er than {_at(other)}; the expected error is {100 * error:.0f}%.")
            continue
        further = [(_at(row), error) for value, row, error in close if value / least - 1.0 >= _APART]
        if equals:
            first = f"{all_of([_at(best), *equals], NAMED)} are equally {adjective}"
            sentences.append(f"{first}; {_within(further)}." if further else f"{first}.")
        elif further:
            sentences.append(f"{_at(best)} is the {adjective}est, but {_within(further)}.")
    return sentences


def _within(further: Sequence[tuple[str, float]]) -> str:
    """Return that the machines of *further*, which have their expected errors behind their names, are within these errors."""
    names, errors = [name for name, _ in further], [error for _, error in further]
    more = f" and {len(names) - NAMED:,} more" if len(names) > NAMED else ""
    most = f"of {'up to ' if len({round(error, 2) for error in errors}) > 1 else ''}{100 * max(errors):.0f}%"
    count = "1 other is" if len(names) == 1 else f"{len(names):,} others are"
    return f"{count} within the expected error {most}: {', '.join(names[:NAMED])}{more}"


def _median_error(row: Mapping[str, Any]) -> float:
    return float((row["expected_error"] or {}).get("median", 0.0))


def _at(row: Mapping[str, Any]) -> str:
    return str(row["hardware"]) if row["nodes"] == 1 else f"{row['hardware']} on {row['nodes']:,} nodes"


def _job_cells(job: Mapping[str, Any], title: str) -> tuple[str, str]:
    cost = job["cost_usd"]
    return job_time(job["time_s"]) if title == _JOB else f"{job['epochs']:,.1f}", "-" if cost is None else rounded_dollars(cost)


class AxisQuantity(NamedTuple):
    """A quantity on an axis: its path in the row of a machine, its title, and the number to divide it by for the axis's unit."""

    path: str
    title: str
    scale: float = 1.0

    def of(self, row: Mapping[str, Any]) -> float | None:
        """Return the value of *row* in the unit of the axis; None if it is missing or zero."""
        value: Any = row
        for part in self.path.split("/"):
            value = value[part]
        return value / self.scale if value else None


def comparison_axes(rows: Sequence[Mapping[str, Any]]) -> tuple[AxisQuantity, AxisQuantity]:
    """Return what *rows* are compared by: time and cost of an epoch or of the whole job; if the job's time is given, epochs and cost."""
    job = next((row["whole_job"] for row in rows if row["whole_job"]), None)
    if job is None:
        return _time("epoch_time_s", " per epoch", rows), AxisQuantity("cost_per_epoch_usd", "USD per epoch")
    time = _time("whole_job/time_s", ", whole job", rows) if time_differs(job) else AxisQuantity("whole_job/epochs", _EPOCHS)
    return time, AxisQuantity("whole_job/cost_usd", "USD, whole job")


def _time(path: str, of: str, rows: Sequence[Mapping[str, Any]]) -> AxisQuantity:
    """Return the column of the times at *path*, in a unit that suits *rows*; its title is the unit followed by *of*."""
    unit, length = axis_unit([seconds for row in rows if (seconds := AxisQuantity(path, of).of(row)) is not None])
    return AxisQuantity(path, f"{unit}{of}", length)


def comparison_plot(document: dict[str, Any]) -> Picture:
    """Return a plot of cost over time of every machine with a price, with the Pareto front as a line."""
    time, cost = comparison_axes(document["rows"])
    points = [
        NamedPoint(x, y, row["hardware"], row["pareto"])
        for row in document["rows"] if (x := time.of(row)) is not None and (y := cost.of(row)) is not None
    ]  # fmt: skip
    drawn, axes = scattered(document["workload"], points, time.title, cost.title)
    draw_error_bars(axes, [(time.of(row), cost.of(row), row["expected_error"]) for row in document["rows"]])
    if draw_front(axes, points, "nothing is both faster and cheaper"):
        axes.legend(frameon=False, fontsize=8)
    name_points(axes, points)
    return picture(drawn)


def draw_error_bars(
    axes: Axes, rows: Sequence[tuple[float | None, float | None, ExpectedError | None]], is_cost_certain: bool = False
) -> None:
    """Draw the 90th percentile of the expected error as error bars, for time and, in proportion, for cost unless *is_cost_certain*."""
    drawn = [(x, y, error) for x, y, error in rows if x is not None and y is not None and error]
    if drawn:
        axes.set_xlabel(f"{axes.get_xlabel()}; {ERROR_BARS}")
    for x, y, error in drawn:
        off = min(error["p90"], 0.95)
        up = None if is_cost_certain else [[y * off], [y * off]]
        axes.errorbar(x, y, xerr=[[x * off], [x * off]], yerr=up, color="#4477aa", alpha=0.35, linewidth=1, zorder=2)


def draw_front(axes: Axes, points: Sequence[NamedPoint], meaning: str) -> bool:
    """Draw the Pareto front, the bold *points*, as a line with its *meaning* in the legend; return whether there is one."""
    best = sorted(point[:2] for point in points if point.bold)
    if best:
        axes.plot(*zip(*best, strict=True), color="#ee6677", label=meaning)
    return bool(best)


def scattered(title: str, points: Sequence[NamedPoint], across: str, up: str) -> tuple[Figure, Axes]:
    """Return a figure of *points* on two logarithmic axes titled *across* and *up*; without points it says that there are no prices."""
    drawn, (axes,) = figure(1, (9, 6))
    axes.set_title(title, fontsize=11, loc="left")
    if not points:
        axes.text(0.5, 0.5, "None of these machines has a price.", ha="center")
        axes.set_axis_off()
        return drawn, axes
    axes.scatter([point.x for point in points], [point.y for point in points], color="#4477aa", zorder=3)
    axes.set_xscale("log")
    axes.set_yscale("log")
    plain_logarithm(axes.xaxis)
    plain_logarithm(axes.yaxis)
    axes.set_xlabel(across)
    axes.set_ylabel(up)
    axes.grid(alpha=0.3, which="both")
    return drawn, axes
