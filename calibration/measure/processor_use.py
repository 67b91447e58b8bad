"""How busy were other programs during a measurement? The busy time of the processors minus that of the measuring processes."""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Collection, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

DISTURBANCE: Final = 0.1
"""Share of the cores from which other programs affect measurements: estimate (repetitions scatter by as much)."""


@dataclass(frozen=True)
class ProcessorUse:
    """A point in time, with the core-seconds used so far by all processes and by the measuring processes."""

    time: float
    all_processes: float
    own_processes: float

    @classmethod
    def now(cls, rank_time: float = 0.0) -> ProcessorUse:
        """Return the current values; *rank_time* is the core-seconds of ranks that are not children this process has waited for."""
        own = rank_time + sum(
            usage.ru_utime + usage.ru_stime for usage in map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
        )
        with suppress(OSError):
            ticks = busy_core_ticks(Path("/proc/stat").read_text(encoding="ascii"), os.sched_getaffinity(0))
            return cls(time.monotonic(), ticks / os.sysconf("SC_CLK_TCK"), own)
        return cls(time.monotonic(), own, own)  # the operating system does not provide the ticks

    def others_since(self, before: ProcessorUse) -> float:
        """Return the mean number of cores that other programs and other virtual machines used since *before*, without interrupts."""
        others = self.all_processes - before.all_processes - (self.own_processes - before.own_processes)
        return max(0.0, others) / max(1e-9, self.time - before.time)


def busy_core_ticks(stat: str, cores: Collection[int]) -> int:
    """Return the ticks for which *cores* were busy, from the text *stat* of /proc/stat (proc(5))."""
    lines = (line.split() for line in stat.splitlines() if line.startswith("cpu"))
    return sum(busy_ticks(list(map(int, ticks))) for name, *ticks in lines if name[3:].isdigit() and int(name[3:]) in cores)


def busy_ticks(ticks: list[int]) -> int:
    """Return the sum of user, nice, system and steal ticks of one line of /proc/stat."""
    return sum(ticks[:3]) + (ticks[7] if len(ticks) > 7 else 0)


def process_time(pids: Iterable[int]) -> float:
    """Return the core-seconds used so far by processes and the children they have waited for; processes that are gone count as 0."""
    ticks = 0
    for pid in pids:
        with suppress(OSError):
            fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
            ticks += sum(map(int, fields[11:15]))  # utime, stime, cutime, cstime (proc(5))
    return ticks / os.sysconf("SC_CLK_TCK")
