"""How much did other programs work beside a measurement? What the processors did, less what this process and its children took."""

from __future__ import annotations

import os
import resource
import time
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Used:
    """A moment: its time, and core-seconds used until then by everybody, and by this process and the children it has waited for."""

    time: float
    everybody: float
    own: float

    @classmethod
    def now(cls) -> Used:
        """Return the present."""
        own = sum(found.ru_utime + found.ru_stime for found in map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)))
        ticks = Path("/proc/stat").read_text(encoding="ascii").split("\n", 1)[0].split()[1:]
        return cls(time.monotonic(), busy(list(map(int, ticks))) / os.sysconf("SC_CLK_TCK"), own)

    def others_since(self, before: Used) -> float:
        """Return the cores that other programs, and other guests of the machine, took since *before*; network interrupts are left out."""
        return max(0.0, self.everybody - before.everybody - (self.own - before.own)) / max(1e-9, self.time - before.time)


def busy(ticks: list[int]) -> int:
    """Return of the first line of /proc/stat (proc(5)) the ticks of user, nice, system, and steal."""
    return sum(ticks[:3]) + (ticks[7] if len(ticks) > 7 else 0)
