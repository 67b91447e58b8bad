"""For which runs are predictions less accurate? Errors by workload, nodes, GPUs, stack or precision, and by what is new about a run."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Final

from calibration.questions import RunQuestion
from calibration.validate.scores import MODELS, ScoredRow, bias, coverage, quantile
from sim.report.expected_error import family_of
from sim.report.validated import validated_groups
from sim.spec.yaml import SpecError

KEYS: Final[Mapping[str, Callable[[RunQuestion], str]]] = {
    "workload": lambda question: question.record.workload,
    "nodes": lambda question: str(question.nodes),
    "gpus": lambda question: str(question.job.ranks),
    "stack": lambda question: question.workload.training.stack.name,
    "precision": lambda question: question.workload.training.precision,
}
"""Keys by which runs can be grouped."""
LEAST_ROWS: Final = 3
"""Least number of rows of a group to be considered as the worst."""
NOVELTIES: Final = ("new stack", "new GPU", "new scale", "new model family", "nothing new")


def listed_names(option: str, text: str, choices: Collection[str]) -> list[str]:
    """Return the names in *text*, the comma-separated value of *option*. Raise SpecError for one that is not in *choices*."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    for name in names:
        if name not in choices:
            raise SpecError(f"{option} {text}: '{name}' is unknown; choose from {','.join(choices)}")
    return names


def groups(rows: Sequence[ScoredRow], key: str) -> list[dict[str, Any]]:
    """Return the errors of *rows* for each value of *key*, as fractions and with equal weight per cluster."""
    of_value: dict[str, list[ScoredRow]] = {}
    for row in rows:
        of_value.setdefault(KEYS[key](row.question), []).append(row)
    ordered = sorted(of_value.items(), key=lambda item: (not item[0].isdigit(), int(item[0]) if item[0].isdigit() else 0, item[0]))
    return [{"key": key, "value": value, **figures(same)} for value, same in ordered]


def figures(rows: Sequence[ScoredRow]) -> dict[str, Any]:
    """Return the number of *rows* and, by model, their median and 90th percentile error, signed median error, and coverage."""
    result: dict[str, Any] = {"points": len(rows), "clusters": len({row.cluster for row in rows})}
    for name in MODELS:
        result[name] = {
            "median": quantile(rows, name, 0.5) if rows else None,
            "p90": quantile(rows, name, 0.9) if rows else None,
            "bias": bias(rows, name),
            "coverage": coverage(rows, name),
        }
    return result


def worst_group(rows: Sequence[ScoredRow]) -> dict[str, Any] | None:
    """Return the group of *rows*, by any one key, with the largest median error of the calibrated model; None if none has enough rows."""
    candidates = [group for key in KEYS for group in groups(rows, key) if LEAST_ROWS <= group["points"] < len(rows)]
    return max(candidates, key=lambda group: group["calibrated"]["median"], default=None)


def novelty(question: RunQuestion, everywhere: Iterable[RunQuestion]) -> tuple[str, ...]:
    """Return in what *question* differs from all rows that calibrate it; *everywhere* are all rows of the files.

    A stack, a scale (number of GPUs) or a model family is new if no network row of the cluster has it, and a GPU if no other source has it,
    among these rows or the committed runs.
    """
    questions = list(everywhere)
    network = [row for row in questions if row.record.role == "network" and row.record.hardware == question.record.hardware]
    stack, family = question.workload.training.stack.name, family_of(question.workload.model)
    new = {
        "new stack": all(row.workload.training.stack.name != stack for row in network),
        "new GPU": all(row.gpu.name != question.gpu.name for row in questions if row.record.source != question.record.source)
        and not measured_by(question.gpu.name) - {question.record.source},
        "new scale": question.job.ranks > max((row.job.ranks for row in network), default=1),
        "new model family": all(family_of(row.workload.model) != family for row in network),
    }
    return tuple(name for name, is_new in new.items() if is_new) or ("nothing new",)


def measured_by(gpu: str) -> set[str]:
    """Return the sources of the committed runs on *gpu*."""
    return {source for name, errors in validated_groups().items() if name.startswith(f"{gpu}, ") for source in errors["sources"]}


def by_novelty(rows: Sequence[ScoredRow]) -> list[dict[str, Any]]:
    """Return the errors and the coverage of *rows* by what is new about them; a row may be in several groups."""
    of_name = {name: [row for row in rows if name in row.novelty] for name in NOVELTIES}
    return [{"novelty": name, **figures(same)} for name, same in of_name.items() if same]
