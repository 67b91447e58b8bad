"""Which processes measure together, and how are tasks run on them? One rank per GPU, or per share of the cores.

Under ``torchrun``, its processes are the ranks and rank 0 leads. Otherwise the ranks are children of this process that rendezvous over a
file. In both cases `Team.ask` runs one function on every rank and returns the results. If a rank raises, dies or does not answer for
`LIMIT` seconds, the question ends with a SpecError that names it.
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

from calibration.measure.processor_use import process_time
from sim.spec.yaml import SpecError

LIMIT: Final = 180.0
"""Time (s) without an answer after which a rank counts as failed; the longest question takes less than a minute."""


class TeamRank(NamedTuple):
    """One of the processes: its rank, the threads that its kernels may use, and the number of machines with equal shares of the ranks."""

    rank: int
    ranks: int
    device: str
    threads: int
    nodes: int = 1


TeamTask = Callable[..., Any]
"""Called with the `TeamRank` and the arguments of the question; it must be a module-level function so that it can be pickled."""
RankAnswer = tuple[bool, Any]
"""Whether a rank succeeded, and its result or the reason for its failure."""


class Team(Protocol):
    """The ranks."""

    ranks: int
    nodes: int
    """Number of machines; each has the same number of ranks."""

    def ask(self, task: TeamTask, *arguments: Any) -> list[Any]:
        """Run *task* on each rank and return the results. Raise SpecError if one failed."""
        ...

    def processor_time(self) -> float:
        """Return the core-seconds used so far by the ranks on this machine, without this process."""
        ...

    def close(self) -> None:
        """Release the ranks."""
        ...


def ping(rank: TeamRank) -> None:
    """Answer at once, as a task: it keeps ranks that wait for a question from timing out while one rank measures on its own."""


def processor_time_task(rank: TeamRank) -> float:
    """Return the core-seconds of this process and of the children that it has waited for."""
    return sum(os.times()[:4])


def under_torchrun() -> bool:
    """Return whether ``torchrun`` started this process together with others."""
    return int(os.environ.get("WORLD_SIZE", "1")) > 1 and "RANK" in os.environ


def attempt(task: TeamTask, rank: TeamRank, arguments: tuple[Any, ...]) -> RankAnswer:
    """Run *task* on *rank*; return whether it succeeded, and its result or error."""
    try:
        return True, task(rank, *arguments)
    except Exception as error:
        return False, str(error) if isinstance(error, SpecError) else f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"


def results(answers: list[RankAnswer]) -> list[Any]:
    """Return the results of the ranks. Raise SpecError with the first failure and its rank."""
    for rank, (fine, value) in enumerate(answers):
        if not fine:
            raise SpecError(f"rank {rank} of {len(answers)}: {value}")
    return [value for _, value in answers]


def join(rank: TeamRank, meeting: str) -> None:
    """Join the process group at the URL *meeting* as *rank*; tensors of a GPU use NCCL, all others Gloo."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(rank.threads)
    if rank.device == "cuda":
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", rank.rank)) % torch.cuda.device_count())
    backend = "cpu:gloo,cuda:nccl" if rank.device == "cuda" else "gloo"
    timeout = datetime.timedelta(seconds=LIMIT)
    dist.init_process_group(backend, init_method=meeting, rank=rank.rank, world_size=rank.ranks, timeout=timeout)


def join_alone(device: str) -> None:
    """Start a process group of this process alone for *device* (``cuda`` or ``cpu``), unless it is in one."""
    import torch.distributed as dist

    if dist.is_initialized():
        return
    with tempfile.NamedTemporaryFile() as meeting:
        backend = "nccl" if device == "cuda" else "gloo"
        dist.init_process_group(backend, init_method=f"file://{meeting.name}.ranks", rank=0, world_size=1)


class SpawnedTeam:
    """Ranks that are children of this process, started at the first question."""

    nodes = 1

    def __init__(self, ranks: int, device: str, threads: int, limit: float = LIMIT) -> None:
        self.ranks = ranks
        self._limit = limit
        self._device, self._threads = device, threads
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._children: list[tuple[multiprocessing.process.BaseProcess, Connection]] = []

    def ask(self, task: TeamTask, *arguments: Any) -> list[Any]:
        """Run *task* on each rank and return the results; if a rank fails, all of them end and the next question starts new ones."""
        try:
            if not self._children:
                self._start()
            for _, line in self._children:
                line.send((task, arguments))
            return results(self._answers())
        except BaseException:
            self.close()
            raise

    def processor_time(self) -> float:
        """Return the core-seconds of the children that are alive."""
        return process_time(child.pid for child, _ in self._children if child.pid is not None)

    def close(self) -> None:
        """End the children and any loader processes that they started."""
        for child, line in self._children:
            if child.pid is not None:
                with suppress(ProcessLookupError):  # it does not lead a process group yet, or is gone
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
        """Return the answers in order of rank. Raise SpecError as soon as a rank has died or failed."""
        answers: dict[int, RankAnswer] = {}
        numbers = {line: number for number, (_, line) in enumerate(self._children)}
        while len(answers) < self.ranks:
            ready = wait([line for line, number in numbers.items() if number not in answers], timeout=self._limit)
            if not ready:
                missing = min(set(numbers.values()) - set(answers))
                raise SpecError(f"rank {missing} of {self.ranks} has not responded for {self._limit:g} s")
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
        """Return which rank has ended and how, because errors of the others only follow from that; empty if all are alive."""
        for number, (child, _) in enumerate(self._children):
            child.join(timeout=1.0 if number == rank else 0.1)
            if (code := child.exitcode) is not None:
                how = f"was killed by signal {-code}" if code < 0 else f"exited with code {code}"
                return f"rank {number} of {self.ranks} {how}"
        return ""


def serve_line(rank: TeamRank, meeting: str, line: Connection) -> None:
    """Serve as *rank* of a spawned team: answer the questions that arrive on *line* until it closes."""
    os.setpgid(0, 0)  # Ctrl-C reaches only the parent, which ends this rank and any loaders that it started
    os.environ |= {"RANK": str(rank.rank), "LOCAL_RANK": str(rank.rank), "WORLD_SIZE": str(rank.ranks)}
    sys.stdout = sys.stderr  # stdout is reserved for the result of the parent
    joined = attempt(join_task, rank, (meeting,))
    with suppress(EOFError, BrokenPipeError):
        while True:
            task, arguments = line.recv()
            line.send(attempt(task, rank, arguments) if joined[0] else joined)


def join_task(rank: TeamRank, meeting: str) -> None:
    """Join the group, as a task, so that a failure is reported like any other."""
    join(rank, meeting)


class TorchrunTeam:
    """Ranks that ``torchrun`` started; this process is rank 0, the others run `serve`."""

    def __init__(self, rank: TeamRank) -> None:
        self.ranks, self.nodes = rank.ranks, rank.nodes
        self._rank = rank

    def ask(self, task: TeamTask, *arguments: Any) -> list[Any]:
        """Run *task* on each rank and return the results."""
        import torch.distributed as dist

        try:
            dist.broadcast_object_list([(task, arguments)], src=0)
            answers: list[Any] = [None] * self.ranks
            dist.gather_object(attempt(task, self._rank, arguments), answers, dst=0)
        except RuntimeError as error:
            raise SpecError(f"a rank has died; see torchrun's output for which one: {' '.join(str(error).split())[:120]}") from None
        return results(answers)

    def processor_time(self) -> float:
        """Return the core-seconds of the other ranks on this machine."""
        seconds: list[float] = self.ask(processor_time_task)[1 : self.ranks // self.nodes]
        return sum(seconds)

    def close(self) -> None:
        """Tell the other ranks to end."""
        import torch.distributed as dist

        with suppress(RuntimeError):
            dist.broadcast_object_list([None], src=0)


def serve(rank: TeamRank) -> None:
    """Serve as *rank* of a team under ``torchrun``: answer the questions of rank 0 until it closes the team.

    Ranks do not leave the process group: Gloo's threads may abort a process that does, or that ends with destructors
    (`calibration.__main__`).
    """
    import torch.distributed as dist

    while True:
        message: list[Any] = [None]
        dist.broadcast_object_list(message, src=0)
        if message[0] is None:
            break
        task, arguments = message[0]
        dist.gather_object(attempt(task, rank, arguments), None, dst=0)
