"""Which fields of a workload do layout options set? The one table from ``--tp 8`` or ``tp=8`` to ``training.parallel.tensor``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from sim.spec.extensions import SCHEDULES, register
from sim.spec.parallel import SCHEDULES as BUILT_IN
from sim.spec.strict import whole_number
from sim.spec.yaml import SpecError

_LISTS = ("order", "layers_per_stage")
_PATHS: Final = ("wrap", "cuts")
"""Keys that take module paths, as a list or joined by ``+``."""
_SHORT = {"tp": "tensor", "pp": "pipeline", "cp": "context", "ep": "expert", "sp": "sequence", "vp": "virtual_stages"}
FIELDS = {name: f"training.parallel.{key}" for name, key in _SHORT.items()} | {"micro_batches": "training.gradient_accumulation_steps"}
"""Fields of a workload by their short names in options."""
_REMAINING: Final = "data-parallel ranks are the GPUs that tensor, pipeline and context ranks leave; leave it out"
_SHARDED: Final = "set shard to parameters (ZeRO-3, FSDP), gradients (ZeRO-2) or optimizer (ZeRO-1)"
_OTHERS: Final[Mapping[str, str]] = {
    **dict.fromkeys(("dp", "data", "data_parallel", "ddp"), _REMAINING), **dict.fromkeys(("fsdp", "zero", "zero_stage"), _SHARDED)
}  # fmt: skip
"""Keys of other programs, and what to write instead."""
LAYOUT_KEYS: Final = frozenset({*_SHORT, "replicate", "shard", "wrap", "schedule", "virtual_stages"})
"""Keys of ``parallel`` in Python that name nothing else: those that are options of commands, and short names."""


def texts_of(parallel: Mapping[str, object]) -> list[str]:
    """Return the layout *parallel* as `layout_of` reads it; a schedule may be the user's object, which is then registered by its name.

    Module paths may be a list. Raise SpecError for an object that is no schedule, and for a layout that is no mapping.
    """
    if not isinstance(parallel, Mapping):
        raise SpecError(f"parallel={parallel!r}: expected a mapping, such as {{'tensor': 8, 'shard': 'optimizer'}}")
    return [f"{name}={_text(name, value)}" for name, value in parallel.items()]


def _text(name: str, value: object) -> object:
    if name in _PATHS and isinstance(value, list | tuple):
        return "+".join(map(str, value))
    if name == "wrap" and isinstance(value, Mapping):
        return "+".join(f"{key}={least}" for key, least in value.items())
    return schedule_name(value) if name == "schedule" else value


def schedule_name(value: object) -> object:
    """Return the name of a schedule, which may be the user's object; None stays None. Raise SpecError for an object that is no schedule."""
    return value if value is None or isinstance(value, str) else register(SCHEDULES, value, BUILT_IN)


def layout_of(
    parallel: Sequence[str],
    tensor: int | None = None,
    pipeline: int | None = None,
    context: int | None = None,
    expert: int | None = None,
    replicate: int | None = None,
    shard: str | None = None,
    micro_batches: int | None = None,
    schedule: str | None = None,
    wrap: str | None = None,
) -> tuple[tuple[str, str, str | int], ...]:
    """Return the fields of ``training`` that layout options set: (option, key, value). Raise SpecError for a text that is not KEY=VALUE."""
    given: list[tuple[str, str, str | int]] = []
    for text in parallel:
        for part in filter(None, map(str.strip, text.split(","))):
            name, equals, value = (piece.strip() for piece in part.partition("="))
            if name in _LISTS:
                raise SpecError(f"--parallel {name}: is a list; write --set training.parallel.{name}='[...]'")
            if not equals or not name or not value:
                raise SpecError(f"--parallel {text}: write names and values, for example tp=8,pp=4,shard=optimizer")
            if name in _OTHERS:
                raise SpecError(f"--parallel {name}: {_OTHERS[name]}")
            key = "gradient_accumulation_steps" if name == "micro_batches" else f"parallel.{_SHORT.get(name, name)}"
            given.append((f"--parallel {name}=", key, value if (number := whole_number(value)) is None else number))
    named: list[tuple[str, str, str | int | None]] = [
        ("--tp", "parallel.tensor", tensor),
        ("--pp", "parallel.pipeline", pipeline),
        ("--cp", "parallel.context", context),
        ("--ep", "parallel.expert", expert),
        ("--replicate", "parallel.replicate", replicate),
        ("--shard", "parallel.shard", shard),
        ("--micro-batches", "gradient_accumulation_steps", micro_batches),
        ("--schedule", "parallel.schedule", schedule),
        ("--wrap", "parallel.wrap", wrap),
    ]
    return (*given, *((option, key, value) for option, key, value in named if value is not None))
