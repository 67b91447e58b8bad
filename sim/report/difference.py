"""What changed between two runs? Their inputs, figures and causes next to each other, and a summary in words.

All inputs are compared: names, options, market, seed, version, and every value of both descriptions (`sim.report.inputs`). A step is
the sum of its causes, so the change of a cause is the amount by which it made the step longer or shorter. Figures that differ by less
than a millionth count as equal, because that much is rounding.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, NotRequired

from pydantic import Field
from typing_extensions import TypedDict

from sim.events import STALLS, causes_of
from sim.report.columns import Title, align
from sim.spec.strict import check_type, read_json
from sim.spec.yaml import SpecError
from sim.units import rounded_dollars, show

SAME = 1e-6
"""Relative difference of a figure (for a cause, share of the step) up to which two runs agree: periods repeat within 1e-9 of a step."""
SHOWN = 12
"""Maximum number of inputs in the text; JSON has them all."""
_NAMED = 0.05
"""Smallest change of a cause that the text mentions, as a share of all changes in a step."""
_LONG = 40
"""Maximum characters of a value in the text; for longer values, such as curves, it only reports that they differ."""

_NAMES = ("hardware", "workload", "stack", "nodes", "gpus", "batch_per_gpu", "precision", "seed", "version")
_TWICE = frozenset({"name", "training.stack.name", "training.batch", "training.precision", "groups.0.count"})
"""Values of the descriptions that `_NAMES` already covers."""
FIGURES = (
    ("step", "step_time_s", ("step_time_s",), "time"),
    ("epoch", "epoch_time_s", ("epoch_time_s",), "time"),
    ("first epoch", "first_epoch_time_s", ("first_epoch", "epoch_time_s"), "time"),
    ("USD/epoch", "cost_per_epoch_usd", ("cost_per_epoch_usd",), ""),
    ("GPU memory", "gpu_memory_bytes", ("gpu_memory_bytes", "total"), "binary size"),
    ("whole job", "whole_job_time_s", ("whole_job", "time_s"), "time"),
    ("USD, whole job", "whole_job_cost_usd", ("whole_job", "cost_usd"), ""),
)
"""Title, key of the difference, path in a document, dimension."""


_Bounded = Annotated[float, Field(ge=0, le=1e30, allow_inf_nan=False)]
_Positive = Annotated[float, Field(gt=0, le=1e30, allow_inf_nan=False)]


class _EpochFigures(TypedDict):
    step_time_s: _Positive
    epoch_time_s: _Bounded
    stalls_s: dict[str, _Bounded]


class _MemoryFigures(TypedDict):
    total: _Bounded


class _JobFigures(TypedDict):
    time_s: _Bounded
    epochs: _Bounded
    given: NotRequired[str]
    cost_usd: NotRequired[_Bounded | None]


class _PriceFigures(TypedDict):
    market: NotRequired[str | None]


class _RunFigures(_EpochFigures):
    """The fields that a comparison needs from a document; other fields are kept but not read."""

    hardware: str
    workload: str
    throughput_samples_per_s: _Bounded
    first_epoch: _EpochFigures
    gpu_memory_bytes: _MemoryFigures
    cost_per_epoch_usd: NotRequired[_Bounded | None]
    whole_job: NotRequired[_JobFigures | None]
    price: NotRequired[_PriceFigures | None]
    inputs: NotRequired[dict[Literal["hardware", "workload"], dict[str, Any]] | None]
    inputs_sha256: NotRequired[dict[str, str] | None]


def read_document(path: Path) -> dict[str, Any]:
    """Return the document of one run that ``sim run --json`` wrote to *path*, or ``-o`` into it. Raise SpecError if there is none."""
    if path.is_dir():
        if not (path / "run.json").exists():
            raise SpecError(f"{path}: has no run.json; write one with: python -m sim run HW WL -o {shlex.quote(str(path))}")
        path /= "run.json"
    hint = f"write one with: python -m sim run HW WL --json > {shlex.quote(path.name) if path.suffix == '.json' else 'run.json'}"
    if not path.exists():
        raise SpecError(f"{path}: no such file; diff compares the documents of two runs: {hint}")
    document = read_json(path, hint)
    try:
        check_type(_RunFigures, document, str(path))
        for stalls in (document["stalls_s"], document["first_epoch"]["stalls_s"]):
            if missing := [cause.value for cause in STALLS if cause.value not in stalls]:
                raise SpecError(f"stalls_s.{missing[0]} is missing")
        return {"cost_per_epoch_usd": None, **document}
    except SpecError as error:
        raise SpecError(f"{path}: is not a document of a single run ({str(error).removeprefix(f'{path}: ')}); {hint}") from None


def _at(document: Mapping[str, Any], path: Sequence[str]) -> Any:
    value: Any = document
    for key in path:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


# --- the difference --------------------------------------------------------------------------------------------------


def difference(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any]:
    """Return the differences between the documents of two runs: inputs, figures, and seconds per step by cause (after - before)."""
    stalls = _stalls(before, after)
    figures = {key: [_at(document, path) for document in (before, after)] for _, key, path, _ in FIGURES}
    return {
        "schema": 1,
        "inputs": _inputs(before, after),
        **figures,
        "speedup": before["throughput_samples_per_s"] and after["throughput_samples_per_s"] / before["throughput_samples_per_s"],
        "stalls_s": stalls,
        "first_epoch_stalls_s": _stalls(before["first_epoch"], after["first_epoch"]),
        "cause": max(stalls, key=lambda name: abs(stalls[name])) if any(stalls.values()) else None,
        "changed": [key for key, (old, new) in figures.items() if not _agree(old, new)],
    }


def _stalls(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, float]:
    """Return the change of each cause in a step; a change that is only rounding is 0."""
    noise = SAME * max(before["step_time_s"], after["step_time_s"])
    old, new = before["stalls_s"], after["stalls_s"]
    changes = {cause.value: new.get(cause.value, 0.0) - old.get(cause.value, 0.0) for cause in causes_of(old, new)}
    return {name: change if abs(change) > noise else 0.0 for name, change in changes.items()}


def _agree(old: Any, new: Any) -> bool:
    if _is_number(old) and _is_number(new):
        return bool(abs(new - old) <= SAME * max(abs(old), abs(new)))
    return bool(old == new)


def _inputs(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, list[Any]]:
    """Return the inputs that differ, [before, after] by key: names first, then values, less deeply nested keys first."""
    pairs = {key: [before.get(key), after.get(key)] for key in _NAMES}
    pairs |= {key: [_requested_length(document, key) for document in (before, after)] for key in ("epochs", "hours")}
    pairs["market"] = [_at(document, ("price", "market")) for document in (before, after)]
    for kind in ("hardware", "workload"):
        old, new = (_at(document, ("inputs", kind)) for document in (before, after))
        values = {key: [old.get(key), new.get(key)] for key in (*old, *(key for key in new if key not in old))} if old and new else {}
        pairs |= {key: values[key] for key in sorted(values, key=lambda key: key.count(".")) if key not in _TWICE}
        if not _differing(values):
            pairs[f"inputs_sha256.{kind}"] = [_at(document, ("inputs_sha256", kind)) for document in (before, after)]
    return _differing(pairs)


def _requested_length(document: Mapping[str, Any], key: str) -> Any:
    """Return the requested length of the whole job in *key* (epochs or hours); None if it was not requested that way."""
    job = document.get("whole_job") or {}
    if job.get("given") != {"epochs": "epochs", "hours": "time"}[key]:
        return None
    return round(job["epochs"] if key == "epochs" else job["time_s"] / 3600, 9)


def _differing(pairs: Mapping[str, list[Any]]) -> dict[str, list[Any]]:
    return {key: pair for key, pair in pairs.items() if not _agree(*pair)}


# --- text ------------------------------------------------------------------------------------------------------------


def difference_text(difference: Mapping[str, Any], before: Mapping[str, Any], after: Mapping[str, Any]) -> str:
    """Return *difference* between *before* and *after* as text: the inputs that differ, a table, and a summary."""
    rows = [
        [title, _shown(difference[key][0], unit), _shown(difference[key][1], unit), _change(difference[key], unit)]
        for title, key, _, unit in FIGURES
        if key in ("step_time_s", "epoch_time_s") or key in difference["changed"]
    ]
    rows += [
        [name, *(show(seconds, "time") for seconds in pair), _signed(change)]
        for name, change in difference["stalls_s"].items()
        if any(pair := [document["stalls_s"].get(name, 0.0) for document in (before, after)])
    ]
    table = align([Title("", True), Title("before"), Title("after"), Title("change")], rows)
    lines = input_lines(difference["inputs"], SHOWN)
    return "\n".join([*lines, *([""] if lines else []), table, "", *sentences(difference)])


def input_lines(inputs: Mapping[str, list[Any]], most: int | None = None) -> list[str]:
    """Return a line for each of the *inputs* of a difference, for at most the first *most*."""
    lines = [_input_line(key, *pair) for key, pair in list(inputs.items())[:most]]
    more = len(inputs) - len(lines)
    return [*lines, f"and {more} more inputs (--json lists them)"] if more else lines


def _input_line(key: str, old: Any, new: Any) -> str:
    if key.startswith("inputs_sha256."):
        return f"{key.partition('.')[2]}: the file differs only in its layer table, sources or text, not in values"
    if max(len(str(old)), len(str(new))) > _LONG:
        return f"{key}: differs"
    return f"{key}: {'-' if old is None else old} -> {'-' if new is None else new}"


def sentences(difference: Mapping[str, Any]) -> list[str]:
    """Return a summary of *difference* in sentences, the step first."""
    inputs, changed = len(difference["inputs"]), difference["changed"]
    moved = any(difference["stalls_s"].values())
    if not changed and not moved:
        return ["The two runs are identical." if not inputs else f"{_count(inputs)}, but the results are the same."]
    lines = [_step_sentence(difference)]
    if "first_epoch_time_s" in changed and _change_differently(difference["first_epoch_stalls_s"], difference["stalls_s"]):
        lines.append(_first_sentence(difference))
    if "cost_per_epoch_usd" in changed:
        lines.append(_cost_sentence(difference["cost_per_epoch_usd"], same_time="epoch_time_s" not in changed))
    if {"whole_job_time_s", "whole_job_cost_usd"} & {*changed}:
        lines += _job_sentence(difference["whole_job_time_s"], difference["whole_job_cost_usd"])
    return [*lines, *([] if inputs else ["All inputs in the documents are the same."])]


def _count(inputs: int) -> str:
    return "1 input differs" if inputs == 1 else f"{inputs} inputs differ"


def _step_sentence(difference: Mapping[str, Any]) -> str:
    causes = _causes(difference["stalls_s"])
    if "step_time_s" not in difference["changed"]:
        return f"The step time is the same{', but its causes changed: ' + causes if causes else ''}."
    old, new = difference["step_time_s"]
    speedup = difference["speedup"]
    rate = "" if abs(speedup * new / old - 1.0) < 1e-3 else f"; samples per second change by {100 * (speedup - 1):+.1f}%"
    return f"A step is {_by(old, new)}: {causes}{rate}."


def _change_differently(first: Mapping[str, float], warm: Mapping[str, float]) -> bool:
    """Return whether the causes changed differently in the first epoch than in a warm one."""
    return any(abs(first[name] - warm[name]) > _NAMED * max(map(abs, (*first.values(), *warm.values()))) for name in warm)


def _first_sentence(difference: Mapping[str, Any]) -> str:
    old, new = difference["first_epoch_time_s"]
    causes = _causes(difference["first_epoch_stalls_s"])
    return f"The first epoch is {_by(old, new)}{'; per step: ' + causes if causes else ''}."


def _job_sentence(times: Sequence[float | None], costs: Sequence[float | None]) -> list[str]:
    (old_time, new_time), (old_cost, new_cost) = times, costs
    if old_time is None or new_time is None:
        return []
    how = "takes equally long" if _agree(old_time, new_time) else f"is {_by(old_time, new_time)}"
    money = (
        ""
        if old_cost is None or new_cost is None
        else f" and costs ${rounded_dollars(abs(new_cost - old_cost))} {'more' if new_cost > old_cost else 'less'}"
    )
    return [f"The whole job {how}{money}."]


def _by(old: float, new: float) -> str:
    share = f" ({100 * (new / old - 1):+.1f}%)" if old else ""
    return f"{show(abs(new - old), 'time')} {'longer' if new > old else 'shorter'}{share}"


def _cost_sentence(pair: Sequence[float | None], same_time: bool) -> str:
    old, new = pair
    if old is None or new is None:
        return f"The cost of an epoch is available only {'before' if new is None else 'after'}."
    way = "more" if new > old else "less"
    share = f" ({100 * (new / old - 1):+.1f}%)" if old else ""
    return f"An epoch costs ${rounded_dollars(abs(new - old))} {way}{share}{', only because of the price' if same_time else ''}."


def _causes(changes: Mapping[str, float]) -> str:
    """Return the causes that changed noticeably, largest first, with their signs."""
    total = sum(abs(seconds) for seconds in changes.values())
    named = [name for name, seconds in changes.items() if abs(seconds) > _NAMED * total]
    return ", ".join(f"{name} {_signed(changes[name])}" for name in sorted(named, key=lambda name: -abs(changes[name])))


def _shown(value: float | None, unit: str) -> str:
    return "-" if value is None else show(value, unit) if unit else f"{value:.2f}"


def _change(pair: Sequence[float | None], unit: str) -> str:
    old, new = pair
    if old is None or new is None:
        return "-"
    if _agree(old, new):
        return "0 s" if unit == "time" else "0"
    return f"{'+' if new > old else '-'}{_shown(abs(new - old), unit)}"


def _signed(seconds: float) -> str:
    return "0 s" if not seconds else f"{'+' if seconds > 0 else '-'}{show(abs(seconds), 'time')}"
