"""How much did other programs work beside a measurement? What the processors did, less what this process and those it asks took."""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Collection, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

DISTURBED: Final = 0.1
"""Share of the cores from which other programs' work is to be seen in what is measured: estimate (repetitions scatter by as much)."""


@dataclass(frozen=True)
class Used:
    """A moment: its time, and core-seconds used until then by everybody, and by those who measure."""

    time: float
    everybody: float
    own: float

    @classmethod
    def now(cls, beside: float = 0.0) -> Used:
        """Return the present; own are this process, the children it has waited for, and *beside*, seconds that others took for it."""
        own = sum(usage.ru_utime + usage.ru_stime for usage in map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)))
        with suppress(OSError):
            everybody = busy_of(Path("/proc/stat").read_text(encoding="ascii"), os.sched_getaffinity(0)) / os.sysconf("SC_CLK_TCK")
            return cls(time.monotonic(), everybody, own + beside)
        return cls(time.monotonic(), own + beside, own + beside)  # an operating system that does not tell

    def others_since(self, before: Used) -> float:
        """Return the cores that other programs, and other guests of the machine, took since *before*; network interrupts are left out."""
        return max(0.0, self.everybody - before.everybody - (self.own - before.own)) / max(1e-9, self.time - before.time)


def busy_of(stat: str, cores: Collection[int]) -> int:
    """Return the ticks that *cores*, those that this process may use, were busy by the text of /proc/stat (proc(5))."""
    lines = (line.split() for line in stat.splitlines() if line.startswith("cpu"))
    return sum(busy(list(map(int, ticks))) for name, *ticks in lines if name[3:].isdigit() and int(name[3:]) in cores)


def busy(ticks: list[int]) -> int:
    """Return of one line of /proc/stat the ticks of user, nice, system, and steal."""
    return sum(ticks[:3]) + (ticks[7] if len(ticks) > 7 else 0)


def of_processes(pids: Iterable[int]) -> float:
    """Return the core-seconds that processes, and the children they have waited for, took until now; those that are gone count nothing."""
    ticks = 0
    for pid in pids:
        with suppress(OSError):
            fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
            ticks += sum(map(int, fields[11:15]))  # utime, stime, cutime, cstime (proc(5))
    return ticks / os.sysconf("SC_CLK_TCK")
