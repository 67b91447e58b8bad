"""How fast is memory, and how long does a minimal kernel take? Copies, scaled sums and additions of one element.

Bytes are counted as in STREAM (McCalpin, 1995): a copy reads one array and writes one; a scaled sum (``a + s * b`` into a third array)
reads two arrays and writes one. Ranks that share a processor also make passes concurrently. The launch probe times an operator on one
element. On CUDA, the device's clock gives the least time of a kernel within a stream, and the host's clock, without synchronization, gives
the host's cost per launch. On a CPU both time the same call.
"""

from __future__ import annotations

import time
from typing import Any, Final

from calibration.measure.machine_record import AnswerRow
from calibration.measure.probes.probe import Bench, Probe, shares_processors
from calibration.measure.probes.timing import repetition_times, synchronize
from calibration.measure.team import TeamRank

SIZES: Final = tuple(2**power for power in range(14, 31, 2))
"""Bytes of one array."""
_LAUNCHES: Final = 2000


def memory_questions(bench: Bench) -> list[AnswerRow]:
    """Return one question per size and kind of pass, up to 1/20 of memory and at most 256 MiB (CPU) or 1 GiB (GPU) per array."""
    most = min(bench.memory / 20, 2.0**28 if bench.device == "cpu" else 2.0**30)
    together = [{"pass": "scaled sum", "bytes": 3 * 2**26, "together": bench.neighbors}] if shares_processors(bench) else []
    return together + [
        {"pass": kind, "bytes": size * arrays} for size in SIZES if size <= most for kind, arrays in (("copy", 2), ("scaled sum", 3))
    ]


def memory_answer(bench: Bench, question: AnswerRow) -> AnswerRow:
    """Time one pass that moves ``bytes`` in total, on one rank or on all ranks concurrently."""
    if "together" in question:
        return {"times_by_rank_s": bench.team.ask(pass_task, question, bench.seconds)}
    return {"times_s": pass_times(question, bench.device, bench.seconds)}


def pass_times(question: AnswerRow, device: str, seconds: float) -> list[float]:
    """Return the times (s) of a pass over arrays of this process."""
    import torch

    arrays = 2 if question["pass"] == "copy" else 3
    count = question["bytes"] // arrays // 4
    source, other, target = (torch.ones(count if index < arrays else 1, device=device) for index in range(3))
    if question["pass"] == "copy":
        return repetition_times(lambda: other.copy_(source), device, seconds)
    return repetition_times(lambda: torch.add(source, other, alpha=2.0, out=target), device, seconds)


def pass_task(rank: TeamRank, question: AnswerRow, seconds: float) -> list[float]:
    """Make the passes on this rank, concurrently with the others."""
    import torch.distributed as dist

    dist.barrier()
    return pass_times(question, rank.device, 4 * seconds)


def launch_answer(bench: Bench, question: AnswerRow) -> AnswerRow:
    """Time an addition of one element."""
    import torch

    one = torch.ones(1, device=bench.device)
    with torch.no_grad():
        if question["clock"] == "device":
            return {"times_s": repetition_times(lambda: one.add_(1.0), bench.device, bench.seconds)}
        return {"times_s": [_host_time(one, bench.device) for _ in range(7)]}


def _host_time(one: Any, device: str) -> float:
    """Return the time (s) that the host spends per launch while the device's queue has room."""
    synchronize(device)
    start = time.perf_counter()
    for _ in range(_LAUNCHES // 10):
        one.add_(1.0)
    taken = (time.perf_counter() - start) / (_LAUNCHES // 10)
    synchronize(device)
    return taken


MEMORY = Probe("memory", "memory bandwidth of the device", memory_questions, memory_answer)
LAUNCH = Probe("launch", "cost of starting a kernel", lambda bench: [{"clock": "device"}, {"clock": "host"}], launch_answer)
