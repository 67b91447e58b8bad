"""How long do the steps of your own training script take? A context manager around its loop adds them to a machine's record.

    from calibration.steps import StepTimes

    with StepTimes("record.json", batch=32) as steps:
        for images, labels in steps(loader):
            train(images, labels)

A step lasts from the request for its batch until the loop's body is done with it, including the work of the device; the time spent waiting
for the batch is recorded as well. Every rank of a process group takes part, and rank 0 writes the record at the end of the block. If an
error or Ctrl-C ends the block early, the record is marked as partial and has the steps of rank 0 only.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Final, TypeVar

from calibration.measure.machine import machine_facts, neutral_name, version_facts
from calibration.measure.machine_record import AnswerRow, MachineRecord, ProbeRecord, write_record
from calibration.measure.profiling import now, open_record
from sim.spec.yaml import SpecError

Batch = TypeVar("Batch")
PROBE: Final = "script"
"""Name of the probe under which a record keeps the steps."""
MOST_STEPS: Final = 500
"""Maximum number of steps that are kept; later ones are not recorded."""


class StepTimes:
    """Times the steps of a loop into the record at *path*.

    *batch* is the number of samples per rank, *name* distinguishes several scripts in one record, and the first *warmup* steps are not
    recorded. Raise SpecError, before anything runs, if the existing record cannot be continued.
    """

    def __init__(self, path: str | Path, batch: int, name: str = "training", warmup: int = 3) -> None:
        if batch < 1 or warmup < 0:
            raise SpecError(f"StepTimes: batch is {batch} and warmup {warmup}; batch must be 1 or more, and warmup 0 or more")
        self._path, self._request, self._warmup = Path(path), {"name": name, "batch": batch}, warmup
        self._waits: list[float] = []
        self._times: list[float] = []

    def __enter__(self) -> StepTimes:
        """Check that the existing record can be continued."""
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
            if seen > self._warmup and len(self._times) < MOST_STEPS:
                self._waits.append(waited)
                self._times.append(time.perf_counter() - start)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Write the recorded steps; after an error, without those of the other ranks."""
        own = (self._waits, self._times)
        by_rank = _gather_times(own) if error is None else [own]
        if _rank() == 0 and (self._times or error is None):
            record = self._record()
            record.probes[PROBE] = self._probe_record(record, by_rank, "" if error is None else f"stopped: {type(error).__name__}")
            record.state = "partial" if any(probe.state in ("partial", "failed") for probe in record.probes.values()) else "complete"
            write_record(self._path, record)

    def _record(self) -> MachineRecord:
        device = "cuda" if _cuda() else "cpu"
        facts = machine_facts(device, _ranks(), "none" if _ranks() == 1 else "nccl" if device == "cuda" else "gloo")
        return open_record(self._path, MachineRecord(neutral_name(facts), facts, version_facts()), ignored=("ranks", "backend"))

    def _probe_record(self, record: MachineRecord, by_rank: list[tuple[list[float], list[float]]], reason: str) -> ProbeRecord:
        row: AnswerRow = self._request | {
            "ranks": _ranks(),
            "wait_by_rank_s": [waits for waits, _ in by_rank],
            "times_by_rank_s": [own for _, own in by_rank],
        }
        other_rows = [old for old in record.rows(PROBE) if any(old.get(name) != row[name] for name in ("name", "batch", "ranks"))]
        enough = all(times for _, times in by_rank)
        reason = reason or ("" if enough else f"only the {self._warmup} warm-up steps ran")
        return ProbeRecord("partial" if reason else "done", now(), reason, rows=[*other_rows, row])


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
    """Return torch.distributed if this process is in a process group, else None."""
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


def _gather_times(own: tuple[list[float], list[float]]) -> list[tuple[list[float], list[float]]]:
    group = _group()
    if not group:
        return [own]
    by_rank: list[Any] = [None] * _ranks()
    group.all_gather_object(by_rank, own)
    return by_rank
