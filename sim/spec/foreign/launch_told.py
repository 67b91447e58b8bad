"""What may launch files of other programs tell of a run, in our words? One record for all of them, and how their blocks are read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sim.spec.yaml import SpecError
from sim.units import shorten


@dataclass
class Told:
    """What one or several files tell; fields of a Transformer and of Training as plain data."""

    shape: dict[str, Any] = field(default_factory=dict)
    model: str = ""
    """A model of the catalogue, in place of ``shape``."""
    sequence: int | None = None
    training: dict[str, Any] = field(default_factory=dict)
    parallel: dict[str, Any] = field(default_factory=dict)
    global_batch: int | None = None
    gpus: int | None = None
    """Of all nodes."""
    notes: list[str] = field(default_factory=list)
    """What the description does not hold, for its comments."""

    def joined(self, other: Told) -> Told:
        """Return this with what *other* tells on top."""
        return Told(
            {**self.shape, **other.shape},
            other.model or self.model,
            other.sequence or self.sequence,
            {**self.training, **other.training},
            {**self.parallel, **other.parallel},
            other.global_batch or self.global_batch,
            other.gpus or self.gpus,
            self.notes + other.notes,
        )


def block_of(said: Mapping[str, Any], name: str, place: str) -> Mapping[str, Any]:
    """Return the block *name* of a file, empty where it is left out. Raise SpecError for a single value."""
    value = said.get(name) or {}
    if not isinstance(value, Mapping):
        raise SpecError(f"{place}: {name} is a single value; write a block of keys")
    return value


def exchange_of(block: Mapping[str, Any], key: str, place: str) -> dict[str, Any]:
    """Return how context ranks exchange keys and values, by torch's names of it."""
    kind = block.get(key, "allgather")
    if kind not in ("allgather", "alltoall"):
        raise SpecError(f"{place}: {key} {shorten(str(kind))}: write allgather or alltoall")
    return {"context_exchange": "all_gather"} if kind == "allgather" else {}


def note_offloading(option: str, device: object, told: Told) -> None:
    """Say that *option*, which keeps something in host memory or on a disk, is left out: states then lie on the GPU and move nowhere."""
    if device not in (None, False, "none", "None", "auto"):
        where = "cpu" if device is True else device
        told.notes.append(f"{option} ({where}) is not modeled: what it offloads is counted in GPU memory, and takes no time to come and go")
