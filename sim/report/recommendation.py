"""How does a recommendation look? The answer first, how sure it is, what would change it, then the other candidates."""

from __future__ import annotations

from typing import Any

from sim.report.columns import Title, aligned
from sim.study.recommend import Candidate, Recommendation
from sim.units import show

SHOWN = 10
"""Candidates in the table; JSON has them all."""


def recommendation_document(workload: str, found: Recommendation) -> dict[str, Any]:
    """Return the JSON document of a recommendation; ``best`` is null where nothing meets the budget."""
    return {
        "schema": 1,
        "workload": workload,
        "budget": {"time_s": found.budget.time, "money_usd": found.budget.money},
        "best": _candidate(found, found.best),
        "runner_up": _candidate(found, found.runner_up),
        "nearest": _candidate(found, found.nearest),
        "notes": list(found.notes),
        "candidates": [_candidate(found, candidate) for candidate in found.ranked],
        "left_out": dict(found.left_out),
    }


def _candidate(found: Recommendation, candidate: Candidate | None) -> dict[str, Any] | None:
    if candidate is None:
        return None
    return {
        "hardware": candidate.hardware,
        "nodes": candidate.nodes,
        "gpus": candidate.document["gpus"],
        "market": candidate.market,
        "total_time_s": candidate.job.total,
        "total_cost_usd": candidate.cost,
        "parts_s": candidate.job._asdict(),
        "within_budget": found.budget.allows(candidate),
        "step_time_s": candidate.document["step_time_s"],
        "expected_error": candidate.document["expected_error"],
    }


def recommendation_text(document: dict[str, Any]) -> str:
    """Return the answer in words and a table of the best candidates."""
    best, near = document["best"], document["nearest"]
    budget = document["budget"]
    limit = show(budget["time_s"], "time") if budget["time_s"] is not None else f"{budget['money_usd']:.2f} USD"
    if best:
        lines = [
            f"Rent {_named(best)}: {document['workload']} takes {show(best['total_time_s'], 'time')} and {best['total_cost_usd']:.2f} USD."
        ]
    elif near:
        lines = [
            f"Nothing meets {limit} for {document['workload']}; nearest: {_named(near)}, {show(near['total_time_s'], 'time')} and "
            f"{near['total_cost_usd']:.2f} USD."
        ]
    else:
        lines = [f"No machine can run {document['workload']}."]
        lines += [f"  {name}: {problem.removeprefix(f'{name}: ')}" for name, problem in document["left_out"].items()]
    chosen = best or near
    if chosen:
        parts = [f"{name.replace('_', ' ')} {show(value, 'time')}" for name, value in chosen["parts_s"].items() if value]
        lines.append(f"  {', '.join(parts)}")
    lines += [f"  - {note}" for note in document["notes"]]
    rows = [_cells(candidate) for candidate in document["candidates"][:SHOWN]]
    titles = [
        Title("", True),
        Title("hardware", True),
        Title("nodes"),
        Title("market", True),
        Title("time"),
        Title("USD"),
        Title("budget", True),
    ]
    return "\n".join([*lines, "", aligned(titles, rows)]) if rows else "\n".join(lines)


def _named(candidate: dict[str, Any]) -> str:
    return f"{candidate['nodes']} x {candidate['hardware']} ({candidate['market'].replace('_', '-')})"


def _cells(candidate: dict[str, Any]) -> list[str]:
    return [
        "*" if candidate["within_budget"] else "",
        candidate["hardware"],
        str(candidate["nodes"]),
        candidate["market"].replace("_", "-"),
        show(candidate["total_time_s"], "time"),
        f"{candidate['total_cost_usd']:.2f}",
        "met" if candidate["within_budget"] else "missed",
    ]
