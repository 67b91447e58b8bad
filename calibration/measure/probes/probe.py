"""What is a probe? A name, the questions that it asks of this machine, and a function that answers one question by measuring.

A question is one measurement point, given by a few plain values (size, precision, ranks). Its answer adds the times of the repetitions. A
record holds questions with their answers, so a measurement that was stopped can continue with the unanswered ones.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from calibration.measure.machine_record import AnswerRow
from calibration.measure.team import Team, TorchrunTeam, ping


@dataclass(frozen=True)
class JobModel:
    """A model to train, written as for ``stallsim extract``, and the samples per rank."""

    target: str
    inputs: tuple[str, ...]
    batch: int
    arguments: tuple[str, ...] = ()

    @property
    def question(self) -> AnswerRow:
        """Return the part of a question that identifies the model."""
        return {"model": self.target, "inputs": list(self.inputs), "arguments": list(self.arguments), "batch": self.batch}


@dataclass
class Bench:
    """The device, ranks and limits with which probes measure."""

    device: str
    """``cpu`` or ``cuda``."""
    threads: int
    """CPU threads for the kernels of one rank."""
    cores: int
    seconds: float
    """Target time for one question."""
    folder: Path
    """Folder in which probes write the files that they read."""
    team: Team
    quick: bool = False
    models: Sequence[JobModel] = ()
    memory: float = 8 * 2.0**30
    """Bytes that may be used."""
    resources: ExitStack = field(default_factory=ExitStack)
    """Files and other resources that exist until the probe ends."""
    cache: dict[str, Any] = field(default_factory=dict)
    """Cache for `once`, by name."""

    @property
    def neighbors(self) -> int:
        """Return the number of ranks on this machine."""
        return self.team.ranks // self.team.nodes

    def once(self, name: str, make: Callable[[], Any]) -> Any:
        """Return the result of *make*, which is called only the first time that this probe requests *name*."""
        if name not in self.cache:
            self.cache[name] = make()
        return self.cache[name]

    def gather(self) -> None:
        """Contact the ranks that torchrun started before each question: this keeps them from timing out and detects ranks that died."""
        if isinstance(self.team, TorchrunTeam):
            self.team.ask(ping)

    def clear(self) -> None:
        """Release the resources of a probe and free GPU memory, which the next probe may need in other processes."""
        self.cache.clear()
        self.resources.close()
        if self.device == "cuda":
            import torch

            torch.cuda.empty_cache()


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether *error* means that memory of the GPU or the host was too small, in this process or on a rank."""
    return isinstance(error, MemoryError) or any(words in str(error).lower() for words in _NO_MEMORY)


_NO_MEMORY = ("out of memory", "can't allocate memory", "outofmemoryerror", "cannot allocate memory")
"""Messages of torch's allocators on CUDA and CPU, and of the operating system."""


def shares_processors(bench: Bench) -> bool:
    """Return whether the ranks share processors and so slow each other down, unlike GPUs."""
    return bench.device == "cpu" and bench.neighbors > 1


@dataclass(frozen=True)
class Probe:
    """One subject to measure."""

    name: str
    about: str
    questions: Callable[[Bench], list[AnswerRow]]
    answer: Callable[[Bench, AnswerRow], AnswerRow]
    skip_reason: Callable[[Bench], str] = lambda bench: ""
    """Returns why this machine cannot run the probe; empty if it can."""
    needs_torch: bool = True
