"""How fast are copies between host and GPU, and from GPU to GPU? CUDA only; pinned and pageable host memory, both directions.

Single copies use the first GPU. In concurrent copies every rank copies to or from its own GPU at the same time, which shows the bandwidth
that GPUs share at switches and host bridges.
"""

from __future__ import annotations

from typing import Final

from calibration.measure.machine_record import AnswerRow
from calibration.measure.probes.probe import Bench, Probe
from calibration.measure.probes.timing import repetition_times
from calibration.measure.team import TeamRank

SIZES: Final = tuple(4**power for power in range(5, 15))
"""Bytes: 1 KiB to 256 MiB."""
_LARGEST: Final = (SIZES[-2],)


def _no_gpu(bench: Bench) -> str:
    return "" if bench.device == "cuda" else "no GPU"


def _one_gpu(bench: Bench) -> str:
    import torch

    return _no_gpu(bench) or ("" if torch.cuda.device_count() > 1 else "one GPU: no peer")


def copy_questions(bench: Bench) -> list[AnswerRow]:
    """Return one question per direction, kind of host memory and size, and concurrent copies of all ranks for one large size."""
    alone = [
        {"way": way, "host": host, "bytes": size, "together": 1}
        for way in ("to device", "to host")
        for host in ("pinned", "pageable")
        for size in SIZES[:: 3 if bench.quick else 1]
    ]
    ranks = bench.neighbors
    together = [{"way": way, "host": "pinned", "bytes": size, "together": ranks} for way in ("to device", "to host") for size in _LARGEST]
    return alone + (together if ranks > 1 else [])


def copy_answer(bench: Bench, question: AnswerRow) -> AnswerRow:
    """Time one copy, on one GPU or on all concurrently."""
    if question["together"] == 1:
        return {"times_s": copy_times(question, bench.seconds)}
    by_rank = bench.team.ask(copy_task, question, bench.seconds)
    return {"times_by_rank_s": by_rank}


def copy_task(rank: TeamRank, question: AnswerRow, seconds: float) -> list[float]:
    """Copy on this rank, concurrently with the others."""
    import torch.distributed as dist

    dist.all_reduce(_flag())
    return copy_times(question, seconds)


def _flag() -> object:
    import torch

    return torch.zeros(1)


def copy_times(question: AnswerRow, seconds: float) -> list[float]:
    """Return the times (s) of a copy between host memory and the GPU of this process."""
    import torch

    host = torch.ones(question["bytes"], dtype=torch.uint8, pin_memory=question["host"] == "pinned")
    device = torch.empty(question["bytes"], dtype=torch.uint8, device="cuda")
    pinned = question["host"] == "pinned"
    if question["way"] == "to device":
        return repetition_times(lambda: device.copy_(host, non_blocking=pinned), "cuda", seconds)
    return repetition_times(lambda: host.copy_(device, non_blocking=pinned), "cuda", seconds)


def peer_questions(bench: Bench) -> list[AnswerRow]:
    """Return one question per size for the first two GPUs, and one large size for every other ordered pair."""
    import torch

    count = torch.cuda.device_count()
    pairs = [(source, target) for source in range(count) for target in range(count) if source != target]
    first = [{"source": 0, "target": 1, "bytes": size} for size in SIZES]
    return first + [{"source": pair[0], "target": pair[1], "bytes": size} for pair in pairs if pair != (0, 1) for size in _LARGEST]


def peer_answer(bench: Bench, question: AnswerRow) -> AnswerRow:
    """Time a copy from GPU to GPU, and record whether they have peer access."""
    import torch

    source, target = (torch.device("cuda", question[name]) for name in ("source", "target"))  # torch's copies wait for both streams
    bytes_there = torch.ones(question["bytes"], dtype=torch.uint8, device=source)
    bytes_here = torch.empty(question["bytes"], dtype=torch.uint8, device=target)
    with torch.cuda.device(source):
        times = repetition_times(lambda: bytes_here.copy_(bytes_there, non_blocking=True), "cuda", bench.seconds)
    return {"peer_access": torch.cuda.can_device_access_peer(question["source"], question["target"]), "times_s": times}


HOST_COPY = Probe("host_copy", "copies between host and GPU, pinned and pageable", copy_questions, copy_answer, _no_gpu)
PEER_COPY = Probe("peer_copy", "copies from GPU to GPU", peer_questions, peer_answer, _one_gpu)
