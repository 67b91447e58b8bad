"""Which processes measure together, and how are they asked? One rank a GPU, or a share of the cores, each doing what it is told.

Under ``torchrun`` its processes are the ranks and rank 0 asks; started alone, the ranks are children of this process that meet over a
file. Either way `Team.ask` runs one function on every rank and returns what each returned. A rank that raises, dies or says nothing for
`LIMIT` seconds ends the question with a SpecError that names it.
"""

from __future__ import annotations

import datetime
import multiprocessing
import os
import signal
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from typing import Any, Final, NamedTuple, Protocol

from calibration.measure.processor_use import of_processes
from sim.spec.yaml import SpecError

LIMIT: Final = 180.0
"""Seconds without an answer after which a rank is given up; the longest question takes less than a minute."""


class TeamRank(NamedTuple):
    """One of the processes: its place, the threads its kernels may use, and over how many machines the ranks are spread evenly."""

    rank: int
    ranks: int
    device: str
    threads: int
    nodes: int = 1


Task = Callable[..., Any]
"""Called with the `TeamRank` and the arguments of the question; found by name, so it stands at the top of a module."""
RankAnswer = tuple[bool, Any]
"""Whether a rank succeeded, and what it returned or why it did not."""


class Team(Protocol):
    """The ranks."""

    ranks: int
    nodes: int
    """Machines over which they are spread, the same number on each."""

    def ask(self, task: Task, *arguments: Any) -> list[Any]:
        """Return what *task* returned on each rank; raise SpecError where one failed."""
        ...

    def used(self) -> float:
        """Return the core-seconds that the ranks of this machine, this process left out, have taken until now."""
        ...

    def close(self) -> None:
        """Let the ranks go."""
        ...


def present(rank: TeamRank) -> None:
    """Answer at once, as a task: while one rank measures by itself, the others' wait for the next question must not run out."""


def used_task(rank: TeamRank) -> float:
    """Return the core-seconds of this process and of the children it has waited for."""
    return sum(os.times()[:4])


def under_torchrun() -> bool:
    """Tell whether ``torchrun`` started this process beside others."""
    return int(os.environ.get("WORLD_SIZE", "1")) > 1 and "RANK" in os.environ


def attempt(task: Task, rank: TeamRank, arguments: tuple[Any, ...]) -> RankAnswer:
    """Return whether *task* succeeded on *rank*, and what came of it."""
    try:
        return True, task(rank, *arguments)
    except Exception as error:
        return False, str(error) if isinstance(error, SpecError) else f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"


def results(answers: list[RankAnswer]) -> list[Any]:
    """Return what the ranks returned; raise SpecError with the first failure, and whose it is."""
    for rank, (fine, value) in enumerate(answers):
        if not fine:
            raise SpecError(f"rank {rank} of {len(answers)}: {value}")
    return [value for _, value in answers]


def join(rank: TeamRank, meeting: str) -> None:
    """Make this process *rank* of the group that meets at the URL *meeting*; a GPU's tensors go over NCCL, all else over Gloo."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(rank.threads)
    if rank.device == "cuda":
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", rank.rank)) % torch.cuda.device_count())
    backend = "cpu:gloo,cuda:nccl" if rank.device == "cuda" else "gloo"
    timeout = datetime.timedelta(seconds=LIMIT)
    dist.init_process_group(backend, init_method=meeting, rank=rank.rank, world_size=rank.ranks, timeout=timeout)


class SpawnedTeam:
    """Children of this process, started at the first question."""

    nodes = 1

    def __init__(self, ranks: int, device: str, threads: int) -> None:
        self.ranks = ranks
        self._device, self._threads = device, threads
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._children: list[tuple[multiprocessing.process.BaseProcess, Connection]] = []

    def ask(self, task: Task, *arguments: Any) -> list[Any]:
        """Return what *task* returned on each rank; a rank that fails ends all of them, the next question starts anew."""
        try:
            if not self._children:
                self._start()
            for _, line in self._children:
                line.send((task, arguments))
            return results(self._answers())
        except BaseException:
            self.close()
            raise

    def used(self) -> float:
        """Return the core-seconds of the children that live."""
        return of_processes(child.pid for child, _ in self._children if child.pid is not None)

    def close(self) -> None:
        """End the children, and the loaders that they may have started."""
        for child, line in self._children:
            if child.pid is not None:
                with suppress(ProcessLookupError):  # it has not come so far as to lead a group, or is gone
                    os.killpg(child.pid, signal.SIGKILL)
            child.kill()
            child.join()
            line.close()
        self._children = []
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None

    def _start(self) -> None:
        self._folder = tempfile.TemporaryDirectory()
        context = multiprocessing.get_context("spawn")
        for number in range(self.ranks):
            ours, theirs = context.Pipe()
            rank = TeamRank(number, self.ranks, self._device, self._threads)
            child = context.Process(target=serve_line, args=(rank, f"file://{self._folder.name}/ranks", theirs), daemon=False)
            child.start()
            theirs.close()
            self._children.append((child, ours))

    def _answers(self) -> list[RankAnswer]:
        """Return the ranks' answers, in order; raise SpecError as soon as one has died or failed."""
        answers: dict[int, RankAnswer] = {}
        numbers = {line: number for number, (_, line) in enumerate(self._children)}
        while len(answers) < self.ranks:
            ready = wait([line for line, number in numbers.items() if number not in answers], timeout=LIMIT)
            if not ready:
                missing = min(set(numbers.values()) - set(answers))
                raise SpecError(f"rank {missing} of {self.ranks} has not responded for {LIMIT:g} s")
            for line in ready:
                assert isinstance(line, Connection)
                answers[numbers[line]] = self._received(numbers[line], line)
                if not answers[numbers[line]][0]:
                    raise SpecError(self._dead() or f"rank {numbers[line]} of {self.ranks}: {answers[numbers[line]][1]}")
        return [answers[number] for number in range(self.ranks)]

    def _received(self, number: int, line: Connection) -> RankAnswer:
        try:
            answer: RankAnswer = line.recv()
        except (EOFError, OSError):
            raise SpecError(self._dead(number) or f"rank {number} of {self.ranks} has closed its connection") from None
        return answer

    def _dead(self, rank: int | None = None) -> str:
        """Return which rank has ended, and how: what the others say then is only that they miss it. Empty while all live."""
        for number, (child, _) in enumerate(self._children):
            child.join(timeout=1.0 if number == rank else 0.1)
            if (code := child.exitcode) is not None:
                how = f"was killed by signal {-code}" if code < 0 else f"exited with code {code}"
                return f"rank {number} of {self.ranks} {how}"
        return ""


def serve_line(rank: TeamRank, meeting: str, line: Connection) -> None:
    """Be *rank* of a spawned team: answer what comes over *line* until it closes."""
    os.setpgid(0, 0)  # Ctrl-C reaches the parent alone, which ends this rank and the loaders it may have started
    os.environ |= {"RANK": str(rank.rank), "LOCAL_RANK": str(rank.rank), "WORLD_SIZE": str(rank.ranks)}
    sys.stdout = sys.stderr  # stdout is the parent's, for its result
    joined = attempt(join_task, rank, (meeting,))
    with suppress(EOFError, BrokenPipeError):
        while True:
            task, arguments = line.recv()
            line.send(attempt(task, rank, arguments) if joined[0] else joined)


def join_task(rank: TeamRank, meeting: str) -> None:
    """Join the group, as a task, so that a failure is told like any other."""
    join(rank, meeting)


class TorchrunTeam:
    """The processes that ``torchrun`` started; this one is rank 0, the others run `serve`."""

    def __init__(self, rank: TeamRank) -> None:
        self.ranks, self.nodes = rank.ranks, rank.nodes
        self._rank = rank

    def ask(self, task: Task, *arguments: Any) -> list[Any]:
        """Return what *task* returned on each rank."""
        import torch.distributed as dist

        try:
            dist.broadcast_object_list([(task, arguments)], src=0)
            answers: list[Any] = [None] * self.ranks
            dist.gather_object(attempt(task, self._rank, arguments), answers, dst=0)
        except RuntimeError as error:
            raise SpecError(f"a rank has died; see torchrun's output for which one: {' '.join(str(error).split())[:120]}") from None
        return results(answers)

    def used(self) -> float:
        """Return the core-seconds of the other ranks of this machine."""
        seconds: list[float] = self.ask(used_task)[1 : self.ranks // self.nodes]
        return sum(seconds)

    def close(self) -> None:
        """Let the others end."""
        import torch.distributed as dist

        with suppress(RuntimeError):
            dist.broadcast_object_list([None], src=0)


def serve(rank: TeamRank) -> None:
    """Be *rank* of a team under ``torchrun``: answer what rank 0 asks until it ends the team.

    Nobody leaves the group: Gloo's threads may abort a process that does, or that ends with destructors (`calibration.__main__`).
    """
    import torch.distributed as dist

    while True:
        message: list[Any] = [None]
        dist.broadcast_object_list(message, src=0)
        if message[0] is None:
            break
        task, arguments = message[0]
        dist.gather_object(attempt(task, rank, arguments), None, dst=0)
