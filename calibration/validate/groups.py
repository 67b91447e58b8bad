"""For which runs are predictions worse? Errors by workload, nodes, GPUs, stack or precision, and by what is new about a run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from calibration.questions import RunQuestion
from calibration.validate.scores import MODELS, Scored, bias, coverage, quantile
from sim.report.expected_error import family_of
from sim.spec.yaml import SpecError

KEYS: Final[Mapping[str, Callable[[RunQuestion], str]]] = {
    "workload": lambda asked: asked.record.workload,
    "nodes": lambda asked: str(asked.nodes),
    "gpus": lambda asked: str(asked.job.ranks),
    "stack": lambda asked: asked.workload.training.stack.name,
    "precision": lambda asked: asked.workload.training.precision,
}
"""What runs can be grouped by."""
LEAST_ROWS: Final = 3
"""A group of fewer is not called the worst."""
NOVELTIES: Final = ("new stack", "new GPU", "new scale", "new model family", "nothing new")


def keys_of(text: str) -> list[str]:
    """Return the keys that *text* lists with commas between. Raise SpecError where one is unknown."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    for name in names:
        if name not in KEYS:
            raise SpecError(f"--by {text}: '{name}' is unknown; choose from {','.join(KEYS)}")
    return names


def groups(rows: Sequence[Scored], key: str) -> list[dict[str, Any]]:
    """Return the errors of *rows* (fractions, clusters weighing alike) for each value of *key*: absolute, and signed in the median."""
    of_value: dict[str, list[Scored]] = {}
    for row in rows:
        of_value.setdefault(KEYS[key](row.asked), []).append(row)
    ordered = sorted(of_value.items(), key=lambda item: (not item[0].isdigit(), int(item[0]) if item[0].isdigit() else 0, item[0]))
    return [{"key": key, "value": value, **figures(same)} for value, same in ordered]


def figures(rows: Sequence[Scored]) -> dict[str, Any]:
    """Return how many *rows* there are, and by model their median and 90th percentile error, signed median, and coverage."""
    made: dict[str, Any] = {"points": len(rows), "clusters": len({row.cluster for row in rows})}
    for name in MODELS:
        made[name] = {
            "median": quantile(rows, name, 0.5) if rows else None,
            "p90": quantile(rows, name, 0.9) if rows else None,
            "bias": bias(rows, name),
            "coverage": coverage(rows, name),
        }
    return made


def worst(rows: Sequence[Scored]) -> dict[str, Any] | None:
    """Return the group of *rows*, by any one key, that the calibrated model misses most in the median; None where none has rows enough."""
    candidates = [group for key in KEYS for group in groups(rows, key) if LEAST_ROWS <= group["points"] < len(rows)]
    return max(candidates, key=lambda group: group["calibrated"]["median"], default=None)


def novelty(question: RunQuestion, everywhere: Iterable[RunQuestion]) -> tuple[str, ...]:
    """Return what *question* has that nothing which calibrates it has; *everywhere* are all rows of the files.

    A stack, a scale (GPUs) and a model family are new where no network row of its cluster has them, a GPU where no other source has it.
    """
    questions = list(everywhere)
    network = [row for row in questions if row.record.role == "network" and row.record.hardware == question.record.hardware]
    stack, family = question.workload.training.stack.name, family_of(question.workload.model)
    new = {
        "new stack": all(row.workload.training.stack.name != stack for row in network),
        "new GPU": all(row.gpu.name != question.gpu.name for row in questions if row.record.source != question.record.source),
        "new scale": question.job.ranks > max((row.job.ranks for row in network), default=1),
        "new model family": all(family_of(row.workload.model) != family for row in network),
    }
    return tuple(name for name, is_new in new.items() if is_new) or ("nothing new",)


def by_novelty(rows: Sequence[Scored]) -> list[dict[str, Any]]:
    """Return the errors and the coverage of *rows* by what is new about them; a row may stand in several groups."""
    of_name = {name: [row for row in rows if name in row.novelty] for name in NOVELTIES}
    return [{"novelty": name, **figures(same)} for name, same in of_name.items() if same]
