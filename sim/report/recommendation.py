"""How is a recommendation presented? The answer first, how certain it is and what would change it, then the other candidates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sim.report.assumed_network import network_notes
from sim.report.basis import merged_basis
from sim.report.columns import Title, align
from sim.report.comparison import draw_error_bars, draw_front, group_by_text, scattered
from sim.report.energy import epoch_tokens, grid_words, job_energy, kwh_text, power_cap_text
from sim.report.expected_error import error_sentence
from sim.report.layouts.layout import layout_words
from sim.report.loader_workers import worker_notes
from sim.report.picture import NamedPoint, Picture, name_points, picture
from sim.report.prices import day_cell, price_lines, price_rows
from sim.report.whole_job import epochs_text, job_time, parts_text, tokens_text
from sim.study.compare import front
from sim.study.excluded import SHOWN
from sim.study.recommend import Candidate, Recommendation
from sim.units import axis_unit, dollars, pluralized, rounded_dollars, show


def recommendation_document(
    workload: str,
    answer: Recommendation,
    machine_names: Sequence[str] = (),
    bounds: Sequence[Candidate] = (),
    tried: tuple[int, int] = (0, 0),
) -> dict[str, Any]:
    """Return the JSON document of a recommendation among *machine_names*; ``best`` is null if no candidate meets the budget.

    *bounds* are lower bounds of time and cost of machines that are left out because of them. *tried* are the numbers of choices of machine
    and nodes, and of those that are not left out for any reason.
    """
    shown = [candidate.document for candidate in answer.ranked[:SHOWN]]
    bounded = {least.hardware for least in bounds}  # able to run the job on some number of nodes
    return {
        "schema": 1,
        "workload": workload,
        "job": {
            "epochs": answer.plan.epochs,
            **({"tokens": answer.plan.tokens} if answer.plan.tokens else {}),
            "time_s": answer.plan.time,
            "evaluation_share": answer.plan.evaluation,
            "checkpoints": answer.plan.checkpoints,
        },
        "budget": {"time_s": answer.budget.time, "money_usd": answer.budget.money},
        "best": _candidate(answer, answer.best),
        "runner_up": _candidate(answer, answer.runner_up),
        "nearest": _candidate(answer, answer.nearest),
        "notes": [
            *_epoch_notes(answer, shown),
            *answer.notes,
            *worker_notes(shown),
            *network_notes(shown),
            *_excluded_notes(bounds, tried),
        ],
        "candidates": [_candidate(answer, candidate) for candidate in answer.ranked],
        "excluded_by_bound": [_bound(least) for least in bounds],
        "left_out": {name: reason for name, reason in answer.left_out.items() if name not in bounded},
        "named": list(machine_names),
        "prices": [row for machine in answer.machines.values() for row in price_rows(machine, answer.markets)],
        **merged_basis([candidate.document for candidate in answer.ranked]),
    }


def _epoch_notes(answer: Recommendation, documents: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return how many tokens an epoch of the job has, if it is not set in tokens and all *documents* have the same number."""
    tokens = {epoch_tokens(document) for document in documents}
    count = tokens.pop() if len(tokens) == 1 and not answer.plan.tokens else None
    return [] if count is None else [f"an epoch is {tokens_text(count)} (--tokens N for another budget)"]


def _candidate(answer: Recommendation, candidate: Candidate | None) -> dict[str, Any] | None:
    if candidate is None:
        return None
    weeks = (candidate.document.get("weeks") or {}).get(candidate.market)
    return {
        "hardware": candidate.hardware,
        "provider": candidate.provider,
        "nodes": candidate.nodes,
        "gpus": candidate.document["gpus"],
        "market": candidate.market,
        "epochs": candidate.epochs,
        "total_time_s": candidate.job.total,
        "total_cost_usd": candidate.cost,
        "parts_s": candidate.job._asdict(),
        "spot_checkpoint_interval_s": candidate.interval,
        "within_budget": answer.budget.allows(candidate),
        "effective_share": None if weeks is None else weeks["effective_share"],
        "step_time_s": candidate.document["step_time_s"],
        "expected_error": candidate.document["expected_error"],
        "power_cap": (candidate.document.get("energy") or {}).get("power_cap"),
        "batch_per_gpu": candidate.document.get("batch_per_gpu"),
        "micro_batches": candidate.document.get("micro_batches", 1),
        "layout": layout_words(candidate.document),
        "layout_gap": candidate.document.get("layout_gap"),
        **job_energy(candidate.document.get("energy"), candidate.job.total, weeks),
    }


def _excluded_notes(bounds: Sequence[Candidate], tried: tuple[int, int]) -> list[str]:
    """Return a note on machines that are left out because of their *bounds*, and on what becomes of the other choices that were *tried*."""
    if not bounds:
        return []
    excluded, (every, ran) = len({(least.hardware, least.nodes) for least in bounds}), tried
    return [
        f"of {every:,} choices of machine and nodes, {ran:,} are compared, {every - ran - excluded:,} cannot run the job or have no price, "
        f"and {excluded:,} are left out because bounds of their time and cost show that they are neither in the table nor on its front; "
        "named machines never are"
    ]


def _bound(least: Candidate) -> dict[str, Any]:
    return {
        "hardware": least.hardware,
        "provider": least.provider,
        "nodes": least.nodes,
        "market": least.market,
        "least_time_s": least.job.total,
        "most_epochs": least.epochs,
        "least_cost_usd": least.cost,
    }


def batch_note(global_batch: int, batch: int | str | None) -> str:
    """Return a note on the global batch for which all candidates' layouts were planned, and its relation to *batch* per GPU, if given."""
    made = "" if batch is None else f", from --batch {batch} on all GPUs of the largest cluster; each layout has its own micro-batches"
    return f"each machine runs the best layout found for a global batch of {global_batch:,} samples (--global-batch){made}"


def gap_note(gaps: Sequence[float]) -> str:
    """Return a note on how far layouts may be from the best ones, from the *gaps* of their searches."""
    gap = max(gaps)
    how = "proven best under the model" if gap <= 0 else f"at most {100 * gap:.2g}% of a step slower than the best under the model"
    return f"layouts are {how}; `plan` searches the layouts of one machine further and shows the others"


def recommendation_text(document: dict[str, Any]) -> str:
    """Return *document* as text: the answer in words, and a table of the best candidates."""
    chosen = document["best"] or document["nearest"]
    lines = [_answer(document, chosen)]
    if chosen:
        lines.append(f"  {parts_text(chosen['parts_s'])}")
        lines += [f"  in the layout {chosen['layout']}"] if chosen["layout"] else []
        if chosen["micro_batches"] > 1 and not chosen["layout"]:
            lines.append(
                f"  in {chosen['micro_batches']:,} micro-batches of {pluralized(chosen['batch_per_gpu'], 'sample')} per GPU in a step"
            )
        if (chosen["expected_error"] or {"extrapolates": True})["extrapolates"]:
            lines.append(f"  {error_sentence(chosen['expected_error'])}")
        if chosen.get("energy_kwh") is not None:
            lines.append(f"  {kwh_text(chosen['energy_kwh'])} and {show(chosen['co2_kg'], 'mass')} CO2 ({grid_words(chosen['grid'])})")
        lines += [f"  {power_cap_text(chosen['power_cap'])}; the figures here include it"] if chosen["power_cap"] else []
    else:
        lines += [f"  {entry}" for entry in group_by_text(document["left_out"].items())]
    if chosen and not document["named"] and len(document["left_out"]) <= SHOWN:
        lines += [f"  - left out: {entry}" for entry in group_by_text(document["left_out"].items())]
    lines += [f"  - {note}" for note in notes_by_machine(document)]
    lines += [f"  - {line}" for line in price_lines(_paid(document, chosen))]
    by_time = document["job"]["time_s"] is not None
    days = {(row["hardware"], row["market"]): row["date"] for row in document["prices"]}
    rows = [_cells(candidate, by_time, days) for candidate in document["candidates"][:SHOWN]]
    titles = [
        Title("", True), Title("hardware", True), Title("provider", True), Title("nodes"), Title("market", True),
        Title("epochs" if by_time else "time"), Title("USD"), Title("price of", True),
    ]  # fmt: skip
    more = len(document["candidates"]) - len(rows)
    table = ["", align(titles, rows), ""]
    table += [*(["* within the budget"] if document["best"] else []), *([f"and {more} more (--json lists them)"] if more else [])]
    return "\n".join([*lines, *(table if rows else []), *(_left_out(document) if chosen else [])])


def notes_by_machine(document: Mapping[str, Any]) -> list[str]:
    """Return the notes of *document*, those on single machines last, and one for all machines of which the same is true."""
    machines = {row["hardware"] for row in document["candidates"]} | {*document["left_out"], *document["named"]}
    machine_notes = [
        (name, text) for name, colon, text in (note.partition(": ") for note in document["notes"]) if colon and name in machines
    ]
    others = [note for note in document["notes"] if tuple(note.split(": ", 1)) not in machine_notes]
    return [*others, *group_by_text(machine_notes)]


def _left_out(document: Mapping[str, Any]) -> list[str]:
    """Return why machines were left out, if the user named the machines; otherwise only how many were left out."""
    left_out = document["left_out"]
    if not left_out:
        return []
    if document["named"]:
        return ["", "Left out:", *(f"  - {line}" for line in group_by_text(left_out.items()))]
    count = len(left_out)
    return [
        "",
        f"{pluralized(count, 'machine')} left out: no price, or the job cannot run there (--json shows the reasons)",
    ]


def _paid(document: Mapping[str, Any], chosen: Mapping[str, Any] | None) -> list[Mapping[str, Any]]:
    """Return the price rows of the *chosen* machine and market."""
    return [row for row in document["prices"] if chosen and all(row[key] == chosen[key] for key in ("hardware", "market"))]


def nothing_to_rent(document: Mapping[str, Any]) -> str:
    """Return the sentence that no machine can be rented for the job, among the named ones or in the whole catalog."""
    of = "None of these machines can be rented to" if document["named"] else "No rentable machine in the catalog can"
    return f"{of} run {document['workload']}."


def _answer(document: dict[str, Any], chosen: dict[str, Any] | None) -> str:
    workload, budget = document["workload"], document["budget"]
    if chosen is None:
        return nothing_to_rent(document)
    time_and_cost = f"{job_time(chosen['total_time_s'])} and ${rounded_dollars(chosen['total_cost_usd'])}"
    tokens = document["job"].get("tokens")
    length = f"{tokens_text(tokens) if tokens else epochs_text(chosen['epochs'])} of {workload}"
    if document["best"]:
        return f"Rent {_named(chosen)}: {length} in {time_and_cost}."
    limit = show(budget["time_s"], "time") if budget["time_s"] is not None else f"${dollars(budget['money_usd'])}"
    over = chosen["total_time_s"] / budget["time_s"] if budget["time_s"] is not None else chosen["total_cost_usd"] / budget["money_usd"]
    of_time = budget["time_s"] is not None
    times = f"{over:,.{0 if over >= 10 else 1}f}x" if over >= 2 else f"{100 * (over - 1):.2g}% {'longer' if of_time else 'more'} than"
    nearest = f"The fastest option takes {times} the budget" if of_time else f"The cheapest option costs {times} the budget"
    return f"Nothing meets {limit} for {workload}. {nearest}: {_named(chosen)}, {length} in {time_and_cost}."


def candidate_words(candidate: Candidate) -> str:
    """Return what *candidate* is, and the time and cost of its job."""
    named = _named({name: getattr(candidate, name) for name in ("provider", "market", "nodes", "hardware")})
    return f"{named}, {job_time(candidate.job.total)} and ${rounded_dollars(candidate.cost)}"


def _named(candidate: dict[str, Any]) -> str:
    qualifiers = [*filter(None, [candidate["provider"]]), candidate["market"].replace("_", "-")]
    return f"{candidate['nodes']:,} x {candidate['hardware']} ({', '.join(qualifiers)})"


def _cells(candidate: dict[str, Any], by_time: bool, days: Mapping[tuple[str, str], str]) -> list[str]:
    return [
        "*" if candidate["within_budget"] else "",
        candidate["hardware"],
        candidate["provider"],
        f"{candidate['nodes']:,}",
        candidate["market"].replace("_", "-"),
        f"{candidate['epochs']:,.1f}" if by_time else job_time(candidate["total_time_s"]),
        rounded_dollars(candidate["total_cost_usd"]),
        day_cell(days.get((candidate["hardware"], candidate["market"]), "")),
    ]


def time_axis(seconds: Sequence[float]) -> tuple[str, float]:
    """Return the title of an axis for whole jobs that take *seconds*, and its unit in seconds."""
    unit, length = axis_unit(seconds)
    return f"{unit}, whole job", length


def recommendation_plot(document: dict[str, Any]) -> Picture:
    """Return a plot of cost over time of every candidate (over epochs if the job's time is given), with the budget as a dashed line.

    The names of the Pareto front come first.
    """
    by_time, budget = document["job"]["time_s"] is not None, document["budget"]
    title, scale = ("epochs done", 1.0) if by_time else time_axis([row["total_time_s"] for row in document["candidates"]])
    rows = [row for row in document["candidates"] if row["epochs"] > 0]
    across = [row["epochs"] if by_time else row["total_time_s"] / scale for row in rows]
    on_front = front((-x if by_time else x, row["total_cost_usd"]) for x, row in zip(across, rows, strict=True))
    points = [NamedPoint(x, row["total_cost_usd"], _named(row), best) for x, row, best in zip(across, rows, on_front, strict=True)]
    drawn, axes = scattered(document["workload"], points, title, "USD, whole job")
    if points:
        if budget["money_usd"] is not None:
            axes.axhline(budget["money_usd"], color="black", linestyle="--", linewidth=1, label="budget")
        elif not by_time:
            axes.axvline(budget["time_s"] / scale, color="black", linestyle="--", linewidth=1, label="budget")
        errors = [row["expected_error"] for row in rows]
        draw_error_bars(axes, [(point.x, point.y, error) for point, error in zip(points, errors, strict=True)], is_cost_certain=by_time)
        draw_front(axes, points, f"nothing {'does more and costs less' if by_time else 'is both faster and cheaper'}")
        if document["best"] is not None and document["candidates"][0]["epochs"] > 0:
            axes.scatter(points[0].x, points[0].y, s=70, color="#ee6677", zorder=4, label="to rent")
        axes.legend(frameon=False, fontsize=8)
        name_points(axes, [point for place, point in enumerate(points) if point.bold or place < SHOWN])
    return picture(drawn)
