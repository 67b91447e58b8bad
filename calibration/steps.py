"""How long do the steps of your own training script take? A context manager around its loop that adds them to a machine's record.

    from calibration.steps import StepTimes

    with StepTimes("record.json", batch=32) as steps:
        for images, labels in steps(loader):
            train(images, labels)

The time of a step is from asking the loader for its batch to the end of what the loop does with it, the device's work included; the part
spent waiting for the batch is kept beside it. Every rank of a process group takes part, and rank 0 writes, at the end of the block; what
an error or Ctrl-C cuts short is written as partial, with the steps of rank 0 alone.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Final, TypeVar

from calibration.measure.machine import machine_facts, neutral_name, version_facts
from calibration.measure.machine_record import AnswerRow, MachineRecord, ProbeRecord, write_record
from calibration.measure.profiling import now, opened_record
from sim.spec.yaml import SpecError

Batch = TypeVar("Batch")
PROBE: Final = "script"
"""Under which name a record keeps them."""
MOST: Final = 500
"""Steps that are kept; later ones run without being timed."""


class StepTimes:
    """Times the steps of a loop into the record at *path*.

    *batch* is the samples per rank, *name* tells several scripts in one record apart, *warmup* steps are left out. Raise SpecError, before
    anything runs, where the record cannot be gone on with.
    """

    def __init__(self, path: str | Path, batch: int, name: str = "training", warmup: int = 3) -> None:
        if batch < 1 or warmup < 0:
            raise SpecError(f"StepTimes: batch is {batch} and warmup {warmup}; batch must be 1 or more, and warmup 0 or more")
        self._path, self._asked, self._warmup = Path(path), {"name": name, "batch": batch}, warmup
        self._waits: list[float] = []
        self._times: list[float] = []

    def __enter__(self) -> StepTimes:
        """Look whether the record can be gone on with."""
        if _rank() == 0:
            self._record()
        return self

    def __call__(self, batches: Iterable[Batch]) -> Iterator[Batch]:
        """Yield *batches*, and time the steps between them."""
        iterator, seen = iter(batches), 0
        while True:
            _synchronize()
            start = time.perf_counter()
            try:
                batch = next(iterator)
            except StopIteration:
                return
            waited = time.perf_counter() - start
            yield batch
            _synchronize()
            seen += 1
            if seen > self._warmup and len(self._times) < MOST:
                self._waits.append(waited)
                self._times.append(time.perf_counter() - start)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Write what was timed; after an error the other ranks are not asked."""
        own = (self._waits, self._times)
        by_rank = _of_all_ranks(own) if error is None else [own]
        if _rank() == 0 and (self._times or error is None):
            record = self._record()
            record.probes[PROBE] = self._added(record, by_rank, "" if error is None else f"stopped: {type(error).__name__}")
            record.state = "partial" if any(probe.state in ("partial", "failed") for probe in record.probes.values()) else "complete"
            write_record(self._path, record)

    def _record(self) -> MachineRecord:
        device = "cuda" if _cuda() else "cpu"
        facts = machine_facts(device, _ranks(), "none" if _ranks() == 1 else "nccl" if device == "cuda" else "gloo")
        return opened_record(self._path, MachineRecord(neutral_name(facts), facts, version_facts()), but=("ranks", "backend"))

    def _added(self, record: MachineRecord, by_rank: list[tuple[list[float], list[float]]], reason: str) -> ProbeRecord:
        row: AnswerRow = self._asked | {
            "ranks": _ranks(),
            "wait_by_rank_s": [waits for waits, _ in by_rank],
            "times_by_rank_s": [own for _, own in by_rank],
        }
        same = [old for old in record.rows(PROBE) if any(old.get(name) != row[name] for name in ("name", "batch", "ranks"))]
        enough = all(times for _, times in by_rank)
        reason = reason or ("" if enough else f"only the {self._warmup} warm-up steps ran")
        return ProbeRecord("partial" if reason else "done", now(), reason, rows=[*same, row])


def _cuda() -> bool:
    try:
        import torch
    except ImportError:
        return False
    return bool(torch.cuda.is_available())


def _synchronize() -> None:
    if _cuda():
        import torch

        torch.cuda.synchronize()


def _group() -> Any:
    """Return torch.distributed where this process is in a group, else None."""
    try:
        import torch.distributed as dist
    except ImportError:
        return None
    return dist if dist.is_available() and dist.is_initialized() else None


def _rank() -> int:
    group = _group()
    return int(group.get_rank()) if group else 0


def _ranks() -> int:
    group = _group()
    return int(group.get_world_size()) if group else 1


def _of_all_ranks(own: tuple[list[float], list[float]]) -> list[tuple[list[float], list[float]]]:
    group = _group()
    if not group:
        return [own]
    by_rank: list[Any] = [None] * _ranks()
    group.all_gather_object(by_rank, own)
    return by_rank
