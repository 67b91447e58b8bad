"""What may launch files of other programs specify about a run? A record for all of them, and helpers to read their blocks."""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from sim.spec.yaml import SpecError
from sim.units import shorten


class JobLength(NamedTuple):
    """The length of a job as an *option* sets it: one of the others, or none of them if its value cannot be read."""

    option: str
    """With its value, as in the file."""
    steps: int | None = None
    """Of the optimizer."""
    samples: int | None = None
    epochs: float | None = None


@dataclass
class LaunchSettings:
    """The contents of one or several launch files, with fields of a Transformer and of Training as plain data."""

    shape: dict[str, Any] = field(default_factory=dict)
    model: str = ""
    """Name of a model in the catalog, instead of ``shape``."""
    sequence: int | None = None
    training: dict[str, Any] = field(default_factory=dict)
    parallel: dict[str, Any] = field(default_factory=dict)
    global_batch: int | None = None
    gpus: int | None = None
    """Total number over all nodes."""
    gpu: str = ""
    """Name of the GPU that the job asks its cluster for; empty if it names none."""
    gpus_per_node: int | None = None
    released: str = ""
    """Name on the hub of the model that a script trains, where no file describes another one."""
    lora_rank: int | None = None
    """Rank of low-rank adapters next to frozen weights; None if all weights are trained."""
    defaults: dict[str, Any] = field(default_factory=dict)
    """What the program uses for fields of ``training`` that no file sets."""
    default_notes: dict[str, str] = field(default_factory=dict)
    """Notes on such fields, where they are not a Trainer's or are left to one."""
    sharded_by: dict[str, str] = field(default_factory=dict)
    """The files that turn on sharding, by the library that does it."""
    length: JobLength | None = None
    """The length of the job; None if no file sets it."""
    notes: list[str] = field(default_factory=list)
    """Notes on settings that the description cannot represent, written as comments into it."""
    keys: Mapping[str, str] = field(default_factory=dict, compare=False)
    """What the file calls the fields of ``shape``: ``hidden_size`` or ``--hidden-size`` for ``hidden``."""
    gpus_assumed: str = ""
    """A note if ``gpus`` is an assumption; empty if a file says so many."""
    ranks: int | None = None
    """Total number of GPUs to which the degrees of a layout multiply, if a file sets all of them."""
    wide_weights: str = ""
    """The program that trains weights of 32 bits under autocast unless they are sharded; empty: none."""

    def joined(self, other: LaunchSettings) -> LaunchSettings:
        """Return this record updated with *other*."""
        counted = next((each for each in (other, self) if each.gpus and not each.gpus_assumed), other if other.gpus else self)
        return LaunchSettings(
            {**self.shape, **other.shape},
            other.model or self.model,
            other.sequence or self.sequence,
            {**self.training, **other.training, **({"stack": self.training["stack"]} if "stack" in self.training else {})},
            {**self.parallel, **other.parallel},
            other.global_batch or self.global_batch,
            counted.gpus,
            other.gpu or self.gpu,
            other.gpus_per_node or self.gpus_per_node,
            other.released or self.released,
            other.lora_rank or self.lora_rank,
            {**self.defaults, **other.defaults},
            {**self.default_notes, **other.default_notes},
            {**self.sharded_by, **other.sharded_by},
            other.length or self.length,
            self.notes + other.notes,
            {**self.keys, **other.keys},
            counted.gpus_assumed,
            other.ranks or self.ranks,
            other.wide_weights or self.wide_weights,
        )

    def in_words_of_file(self, sentence: str) -> str:
        """Return *sentence*, which is about fields of ``shape``, with the names of the file."""
        names = "|".join(sorted(self.keys, key=len, reverse=True))
        after = "|".join(f"(?<={word} )" for word in ("write", "need", "needs", "above", "of", "add", "or"))
        # elsewhere "layers" or "heads" is the thing, not the field; after a dot, the field of a part of the model
        pattern = rf"(?:^|{after})(?:{names})\b|(?<!\.)\b(?:{names})(?=:| \()"
        return re.sub(pattern, lambda match: self.keys[match[0]], sentence) if names else sentence


def block_of(config: Mapping[str, Any], name: str, place: str) -> Mapping[str, Any]:
    """Return the block *name* of a file; empty if it is left out. Raise SpecError for a single value."""
    value = config.get(name) or {}
    if not isinstance(value, Mapping):
        raise SpecError(f"{place}: {name} is a single value; expected a block of keys")
    return value


ALIKE_KEYS: Final = 0.88
"""Similarity (difflib's ratio) from which an unknown key is a typo; ``stge`` for ``stage`` is at 0.89."""


def refuse_misspelled(said: Mapping[str, Any], read: Collection[str], inside: str, place: str) -> None:
    """Raise SpecError for a key of *said* that is not in *read*, but spelled almost like one of them; both are *inside* a block."""
    for key in said:
        if key not in read and (near := difflib.get_close_matches(key, read, n=1, cutoff=ALIKE_KEYS)):
            raise SpecError(f"{place}: unknown key {inside}{key[:80]}; did you mean {near[0]}?")


def exchange_of(block: Mapping[str, Any], key: str, place: str) -> dict[str, Any]:
    """Return how context ranks exchange keys and values, from torch's name for it in *key*."""
    kind = block.get(key, "allgather")
    if kind not in ("allgather", "alltoall"):
        raise SpecError(f"{place}: {key} {shorten(str(kind))}: write allgather or alltoall")
    return {"context_exchange": "all_gather"} if kind == "allgather" else {}


def note_offloading(option: str, device: object, told: LaunchSettings) -> None:
    """Add a note to *told* if *option* offloads data to *device*: offloading is not modeled, so the data are counted in GPU memory."""
    if device not in (None, False, "none", "None", "auto"):
        where = "cpu" if device is True else device
        told.notes.append(f"{option} ({where}) is not modeled: offloaded data count as GPU memory, and their transfers take no time")
