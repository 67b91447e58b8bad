"""Which numbers of a row contradict each other, though it is described? `contradictions` names them, and the one that is used."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from calibration.llm.case import Case
from calibration.llm.shapes import OTHER_SIZE
from sim.spec.decoder import parameter_count

LEAST_PARAMETERS: Final = 1e6
"""Smaller numbers of parameters are in thousands, millions or billions: estimate."""


def contradictions(cases: Sequence[Case]) -> list[str]:
    """Return a note on each kind of contradiction with the lines of *cases* that have it."""
    notes = []
    for kind, holds in _KINDS.items():
        if lines := [case.row.line for case in cases if holds(case)]:
            notes.append(f"{lines_text(lines)}: {kind}")
    return notes


def lines_text(lines: Sequence[int], most: int = 5) -> str:
    """Return *lines* in words, the first *most* by number."""
    named = ", ".join(str(line) for line in sorted(lines)[:most])
    more = f" and {len(lines) - most} more" if len(lines) > most else ""
    return f"line{'s' * (len(lines) > 1)} {named}{more}"


def _batches(case: Case) -> bool:
    number = case.row.number
    micro, accumulated, batch = (number.get(name, 0.0) for name in ("micro_batch", "grad_accum", "global_batch"))
    return micro * accumulated * batch > 0 and micro * accumulated * case.data != batch


def _nodes(case: Case) -> bool:
    nodes, gpus = case.row.number.get("nodes", 0.0), case.row.number.get("gpus", 0.0)
    return nodes * gpus > 0 and gpus % nodes != 0


def _parameters(case: Case) -> bool:
    """Return whether the row's parameters are neither all of the shape's nor those that a token uses, nor those of its blocks alone."""
    stated, shape = case.row.number.get("params", 0.0), case.shape
    if stated < LEAST_PARAMETERS:
        return False
    used = shape.model_copy(update={"experts": shape.experts_per_token}) if shape.experts else shape
    return min(abs(math.log(parameter_count(each) / stated)) for each in (shape, used)) > math.log(OTHER_SIZE)


_KINDS: Final[Mapping[str, Callable[[Case], bool]]] = {
    "micro_batch x grad_accum x data-parallel ranks is not global_batch, which is used": _batches,
    "nodes do not divide gpus, which are used": _nodes,
    "params are not those of layers, hidden, ffn_hidden and vocab, which are used": _parameters,
}
