"""What does one call of ``calibration profile`` do? Find device and ranks, open the record, measure, show progress, report failures."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from calibration.measure.machine import machine_facts, neutral_name, version_facts
from calibration.measure.machine_record import AnswerRow, MachineRecord, ProbeRecord, read_record
from calibration.measure.probes.catalog import select_probes
from calibration.measure.probes.probe import Bench, JobModel, Probe
from calibration.measure.probes.stash import stalls
from calibration.measure.profiling import MeasuringPlan, ProfileProgress, measure, open_record
from calibration.measure.team import SpawnedTeam, Team, TeamRank, TorchrunTeam, join, serve, under_torchrun
from sim.spec.yaml import SpecError
from sim.study.pool import cores
from sim.terminal import Console
from sim.units import pluralized

SECONDS, QUICK_SECONDS = 0.25, 0.04
"""Target time for one question; there are about 150."""
MEMORY_SHARE = 0.25
"""Share of DRAM, or of a GPU's free memory, that probes may use."""


@dataclass(frozen=True)
class MeasureOptions:
    """The options of ``calibration profile``: the file of the record, what is measured, and where."""

    path: Path
    only: str | None = None
    again: bool = False
    quick: bool = False
    device: str | None = None
    ranks: int | None = None
    folder: Path | None = None
    name: str | None = None
    model: JobModel | None = None


def profile(options: MeasureOptions, talk: Console) -> MachineRecord | None:
    """Measure this machine as *options* specify and return its record; return None on ranks that only take part.

    Raise SpecError if the measurement cannot start, or if a probe failed; in the latter case the record is partial.
    """
    probes = select_probes(options.only)
    device = _device(options.device, any(probe.needs_torch for probe in probes))
    if options.model is not None:
        _check_model(options.model)
    with _ending_by_signal(options.path), _team(options, device) as team:
        if team is None:
            return None
        facts = _facts(team, device)
        fresh = MachineRecord(options.name or neutral_name(facts), facts, version_facts())
        record = open_record(options.path, fresh)
        failures = measure(
            MeasuringPlan(options.path, probes, options.again), record, _bench(options, device, team, facts), TerminalProgress(talk)
        )
        if failures:
            raise SpecError([*failures, f"{options.path}: has the other results, marked partial"])
        return record


def _facts(team: Team, device: str) -> dict[str, Any]:
    """Return the facts of this machine. Raise SpecError if the machines of the ranks differ."""
    facts = machine_facts(device, team.ranks, _backend(team.ranks, device), team.nodes)
    if team.nodes > 1:
        for number, there in enumerate(team.ask(facts_task)):
            for name in ("cpu", "vcpus", "gpus"):
                if there[name] != facts[name]:
                    raise SpecError(
                        f"rank {number}: {name} {there[name]}, but rank 0 has {facts[name]}; a record needs identical machines, so start "
                        "torchrun on machines of one kind"
                    )
    return facts


def facts_task(rank: TeamRank) -> dict[str, Any]:
    """Return the facts of the machine of one rank."""
    return machine_facts(rank.device, rank.ranks, "")


def _check_model(model: JobModel) -> None:
    """Raise SpecError, before anything is measured, if the user's model does not exist or its inputs are invalid."""
    from sim.extract import target

    target.load_target(model.target)
    target.parse_arguments(model.arguments)
    for text in model.inputs:
        target.load_target(text[1:]) if text.startswith("@") else target.parse_input(text)


def _device(wanted: str | None, needs_torch: bool) -> str:
    if wanted not in (None, "cpu", "cuda"):
        raise SpecError(f"--device {wanted}: write cpu or cuda")
    try:
        import torch
    except ImportError:
        if needs_torch:
            raise SpecError("torch is not installed; run pip install torch, or measure without it: --only disk") from None
        return "cpu"
    if wanted == "cuda" and not torch.cuda.is_available():
        raise SpecError("--device cuda: torch finds no GPU; leave it out to measure the CPU")
    return wanted or ("cuda" if torch.cuda.is_available() else "cpu")


def _backend(ranks: int, device: str) -> str:
    return "none" if ranks == 1 else "nccl" if device == "cuda" else "gloo"


@contextmanager
def _team(options: MeasureOptions, device: str) -> Iterator[Team | None]:
    """Yield the team that this process leads; yield None after it has served as a rank of another process's team."""
    if under_torchrun():
        if options.ranks is not None:
            raise SpecError("--ranks: torchrun has already started the ranks; leave it out")
        local, ranks = int(os.environ.get("LOCAL_WORLD_SIZE", os.environ["WORLD_SIZE"])), int(os.environ["WORLD_SIZE"])
        if ranks % local:
            raise SpecError(
                f"{ranks} ranks, {local} of them on this machine; start torchrun with the same --nproc-per-node on each machine"
            )
        rank = TeamRank(int(os.environ["RANK"]), ranks, device, max(1, cores() // local), ranks // local)
        _check_ranks(local, device)
        join(rank, "env://")
        if rank.rank > 0:
            serve(rank)
            yield None
            return
        team: Team = TorchrunTeam(rank)
    else:
        ranks = options.ranks or _usual_ranks(device)
        _check_ranks(ranks, device)
        team = SpawnedTeam(ranks, device, max(1, cores() // ranks))
    try:
        yield team
    finally:
        team.close()


def _check_ranks(ranks: int, device: str) -> None:
    """Raise SpecError if there are more ranks than GPUs, because NCCL needs one GPU per rank."""
    if device == "cuda" and ranks > _usual_ranks(device):
        raise SpecError(
            f"{ranks} ranks for {_usual_ranks(device)} GPU(s): NCCL supports one rank per GPU; start fewer, or write --device cpu"
        )


def _usual_ranks(device: str) -> int:
    """Return the default number of ranks: one per GPU; on a CPU two, the least that can exchange."""
    if device == "cpu":
        return 2
    import torch

    return int(torch.cuda.device_count())


def _bench(options: MeasureOptions, device: str, team: Team, facts: dict[str, Any]) -> Bench:
    folder = options.folder or options.path.absolute().parent
    if not folder.is_dir():
        raise SpecError(f"{folder}: no such folder; use --folder to name one on the disk to measure")
    threads = max(1, cores() // (team.ranks // team.nodes))
    memory = _free(facts["gpus"][0]["memory_bytes"]) if device == "cuda" else facts["memory_bytes"]
    bench = Bench(device, threads, cores(), QUICK_SECONDS if options.quick else SECONDS, folder, team, options.quick)
    bench.memory = MEMORY_SHARE * memory
    bench.models = (options.model,) if options.model else ()
    if sys.modules.get("torch") is not None:
        import torch

        torch.set_num_threads(threads)
    return bench


def _free(memory: int) -> float:
    """Return the free bytes of a GPU with *memory* bytes."""
    import torch

    return float(min(memory, torch.cuda.mem_get_info()[0]))


class _Terminated(SpecError):
    """Another program, such as torchrun, told this one to end."""


@contextmanager
def _ending_by_signal(path: Path) -> Iterator[None]:
    """Turn SIGTERM and SIGHUP (a closed terminal) into a SpecError, so that cleanup runs and the record at *path* is kept."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise SystemExit(_TOLD_TO_END)

    before = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    except SystemExit as stopped:
        if stopped.code != _TOLD_TO_END:
            raise
        message = "terminated (SIGTERM or SIGHUP); torchrun does this after another rank has died"
        leads = os.environ.get("RANK", "0") == "0"  # the other ranks of torchrun write no record
        raise _Terminated([message, interruption_text(path)] if leads else message) from None
    finally:
        for number, action in before.items():
            signal.signal(number, action)


_TOLD_TO_END = "terminated by a signal"


class TerminalProgress(ProfileProgress):
    """Progress on stderr: a bar if it is a terminal, and always a line for each probe that has ended."""

    def __init__(self, talk: Console) -> None:
        self._talk = talk
        self._start = time.monotonic()
        self._count = self._done = 0
        self._name = ""

    def begin(self, probe: Probe, count: int) -> None:
        """Show that *probe* begins and will ask *count* questions."""
        self._name, self._count, self._done = probe.name, count, 0

    def step(self, question: AnswerRow) -> None:
        """Show the next question."""
        filled = 20 * self._done // max(1, self._count)
        self._done += 1
        values = " ".join(str(value) for value in question.values())[:50]
        self._talk.progress(f"{self._name:12} {'█' * filled}{'░' * (20 - filled)} {self._done}/{self._count}  {values}")

    def end(self, probe: Probe, record: ProbeRecord) -> None:
        """Show how *probe* ended."""
        self._talk.progress("")
        outcome = f"{pluralized(len(record.rows), 'answer')}" if record.state == "done" else f"{record.state}: {record.reason}"
        self._talk(f"{time.monotonic() - self._start:6.0f} s  {probe.name:12} {outcome}")


def probe_list() -> str:
    """Return a list of the probes, one per line."""
    return "\n".join(f"{probe.name:12} {probe.about}" for probe in select_probes(None))


def summary(path: Path, record: MachineRecord) -> str:
    """Return a summary of *record*, with one line per probe."""
    lines = [f"{path}: {record.name}, {record.state}"]
    for name, probe in record.probes.items():
        line = f"  {name:12} {probe.state:8} {len(probe.rows):4} answers  {probe.duration_s:6.1f} s  {probe.reason}"
        lines.append(line.rstrip())
    texts = [
        f"{name} {1e3 * stall.time:.1f} ms per step ({100 * stall.share:.0f}%)" for name, stall in stalls(record.rows("stash")).items()
    ]
    lines += [f"  {record.disturbed()}"] if record.disturbed() else []
    return "\n".join([*lines, *([f"  stalls by Stash's method: {', '.join(texts)}"] if texts else [])])


def interruption_text(path: Path) -> str:
    """Return a sentence on the answers that an interrupted run leaves at *path*."""
    try:
        count = sum(len(probe.rows) for probe in read_record(path).probes.values())
    except SpecError:
        return "stopped before anything was measured"
    return f"stopped; {path} has {pluralized(count, 'answer')}, marked partial: repeat the command to continue"
