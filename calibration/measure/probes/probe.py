"""What is a probe? A name, the questions it would ask of this machine, and how each is answered.

A question is a few plain values (size, precision, ranks); its answer adds raw repetitions. So a record knows which questions are
answered, and a measurement that was stopped goes on where it was.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from calibration.measure.machine_record import AnswerRow
from calibration.measure.team import Team, TorchrunTeam, present


@dataclass(frozen=True)
class JobModel:
    """A model to train, as for ``stallsim extract``, and the samples per rank to begin with."""

    target: str
    inputs: tuple[str, ...]
    batch: int
    arguments: tuple[str, ...] = ()

    @property
    def asked(self) -> AnswerRow:
        """Return the part of a question that names it."""
        return {"model": self.target, "inputs": list(self.inputs), "arguments": list(self.arguments), "batch": self.batch}


@dataclass
class Bench:
    """What probes measure on."""

    device: str
    """``cpu`` or ``cuda``."""
    threads: int
    """Of one rank's kernels on the CPU."""
    cores: int
    seconds: float
    """Aim for one question."""
    folder: Path
    """Where files to be read are written."""
    team: Team
    quick: bool = False
    models: Sequence[JobModel] = ()
    memory: float = 8 * 2.0**30
    """Bytes that may be used."""
    made: ExitStack = field(default_factory=ExitStack)
    """Files and other things that last as long as one probe."""
    kept: dict[str, Any] = field(default_factory=dict)
    """Of those, what the next question asks for."""

    @property
    def neighbours(self) -> int:
        """Return the ranks of this machine."""
        return self.team.ranks // self.team.nodes

    def once(self, name: str, make: Callable[[], Any]) -> Any:
        """Return what *make* returns, made at the first question of this probe that asks for *name*."""
        if name not in self.kept:
            self.kept[name] = make()
        return self.kept[name]

    def gather(self) -> None:
        """Let ranks that other programs started know that somebody is there, before each question; one that has gone is noticed."""
        if isinstance(self.team, TorchrunTeam):
            self.team.ask(present)

    def clear(self) -> None:
        """Undo what a probe made, and let the GPU's memory go: the next one may work in processes of its own."""
        self.kept.clear()
        self.made.close()
        if self.device == "cuda":
            import torch

            torch.cuda.empty_cache()


def no_memory(error: BaseException) -> bool:
    """Tell whether *error* says that memory was too small, of the GPU or of the host, here or on a rank."""
    return isinstance(error, MemoryError) or any(words in str(error).lower() for words in _NO_MEMORY)


_NO_MEMORY = ("out of memory", "can't allocate memory", "outofmemoryerror", "cannot allocate memory")
"""As torch's allocators on CUDA and CPU, and the operating system, put it."""


def shares_processors(bench: Bench) -> bool:
    """Tell whether the ranks are shares of the processors, which slow each other down as GPUs do not."""
    return bench.device == "cpu" and bench.neighbours > 1


@dataclass(frozen=True)
class Probe:
    """One subject."""

    name: str
    about: str
    questions: Callable[[Bench], list[AnswerRow]]
    answer: Callable[[Bench, AnswerRow], AnswerRow]
    skipped: Callable[[Bench], str] = lambda bench: ""
    """Says why this machine cannot answer; empty where it can."""
    needs_torch: bool = True
