"""What does a whole process use? Its CPU time and peak memory."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from typing import NamedTuple

STARTER = """
import json, os, resource, subprocess, sys
code = subprocess.call(sys.argv[1:], stdout=subprocess.DEVNULL)
used = resource.getrusage(resource.RUSAGE_CHILDREN)
print(json.dumps([code, used.ru_utime + used.ru_stime, used.ru_maxrss * 1024]))
"""
"""A child's peak memory counts what its parent held when it was started, so that a bare interpreter starts it (KiB on Linux)."""


class Used(NamedTuple):
    """What a process used."""

    seconds: float
    """CPU time."""
    peak: int
    """Bytes."""


def process(command: Sequence[str]) -> Used:
    """Run *command* to its end and return what it used; it must succeed."""
    answer = subprocess.run([sys.executable, "-I", "-S", "-c", STARTER, *command], stdout=subprocess.PIPE, check=True)
    code, seconds, peak = json.loads(answer.stdout)
    assert code == 0
    return Used(seconds, peak)
