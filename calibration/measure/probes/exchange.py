"""How long do collectives take, by size and ranks? All-reduce from 8 B to 256 MB, and all-gather of small messages.

If ranks are on several machines, first those of one machine exchange, then one rank per machine, then all. This separates the bandwidth of
a NIC from contention between ranks of a machine.

The method is that of nccl-tests: back-to-back calls on float32 tensors, several calls per repetition, the time of the slowest rank. An
all-gather makes half the ring steps of an all-reduce, so small all-gathers separate the latency of a step from the launch cost. Processor
time covers the whole rank, including threads of the library. One large all-reduce runs concurrently with matrix products, as during a
backward pass, to measure how much each slows down.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Final

from calibration.measure.machine_record import AnswerRow
from calibration.measure.probes.probe import Bench, Probe
from calibration.measure.probes.timing import synchronize
from calibration.measure.team import Team, TeamRank

SIZES: Final = (8, 64, 512, 4096, 2**14, 2**16, 2**18, 2**20, 2**22, 2**24, 2**26, 2**28)
"""Bytes as counted by nccl-tests: the tensor of a rank in an all-reduce, the output of a rank in an all-gather."""
SMALL_SIZES: Final = (64, 512, 4096, 2**14)
OVERLAP_BYTES: Final = {"cpu": 2**25, "cuda": 2**28}
"""Bytes of the all-reduce that overlaps with products: about a bucket of DDP (25 MiB); on GPUs, some milliseconds over NVLink."""
OVERLAP_EDGE: Final = {"cpu": 512, "cuda": 2048}
"""Size of those square products: some milliseconds on a core; on a GPU, more tiles of 128 x 128 than it has multiprocessors (at 512 only 16
multiprocessors would work, and those that the collective occupies would make no difference)."""
_REPETITIONS: Final = 11
_LEAST: Final = 3
"""Repetitions of a call that takes seconds, such as 256 MB over a slow network."""


def single_rank_reason(bench: Bench) -> str:
    """Return the reason for skipping an exchange if there is only one rank, else an empty text."""
    return "" if bench.team.ranks > 1 else "one rank: no other rank to exchange with"


def exchange_questions(bench: Bench) -> list[AnswerRow]:
    """Return one question per operation, participating ranks and size, and one of an all-reduce that overlaps with products."""
    sizes = SIZES[::2] if bench.quick else SIZES
    most = bench.memory / 8 / (1 if bench.device == "cuda" else bench.neighbors)
    reduces = [{"op": "all_reduce"} | team | {"bytes": size} for team in rank_sets(bench.team) for size in sizes if size <= most]
    gathers = [{"op": "all_gather"} | team | {"bytes": size} for team in rank_sets(bench.team) for size in SMALL_SIZES]
    size = OVERLAP_BYTES[bench.device]
    beside: list[AnswerRow] = (
        [{"op": "all_reduce"} | rank_sets(bench.team)[-1] | {"bytes": size, "beside": "products"}] if size <= 2 * most else []
    )
    return [*reduces, *gathers, *beside]


def rank_sets(team: Team) -> list[AnswerRow]:
    """Return the sets of ranks that exchange: two and all of one machine and, with several machines, one of each and all of each."""
    local = team.ranks // team.nodes
    inside = [{"ranks": ranks} for ranks in sorted({2, local}) if 1 < ranks <= local]
    across = [{"ranks": ranks, "nodes": team.nodes} for ranks in sorted({team.nodes, team.ranks})] if team.nodes > 1 else []
    return inside + across


def exchange_answer(bench: Bench, question: AnswerRow) -> AnswerRow:
    """Time one collective: time (s) per call of the slowest rank, and processor time (s) per call and rank."""
    if "beside" in question:
        return _slowest(bench.team.ask(overlap_task, question))
    by_rank = [one for one in bench.team.ask(exchange_task, question, bench.seconds) if one is not None]
    times = [max(times) for times in zip(*(times for times, _ in by_rank), strict=True)]
    return {"times_s": times, "cpu_s": sum(used for _, used in by_rank) / len(by_rank)}


def exchange_task(rank: TeamRank, question: AnswerRow, seconds: float) -> tuple[list[float], float] | None:
    """Take part in a collective and return times and processor time (s) per call; return None on ranks that do not participate."""
    import torch.distributed as dist

    members = members_of(rank, question["ranks"], question.get("nodes", 1))
    group = _group(rank, members)
    if rank.rank not in members:
        return None
    count = max(1, question["bytes"] // 4)
    device = "cuda" if rank.device == "cuda" else "cpu"
    call = _call(question["op"], members, count, device, group)
    repetitions, calls = _agreed_counts(call, device, group, seconds)
    times, used = [], time.process_time()
    for _ in range(repetitions):
        dist.barrier(group)
        start = time.perf_counter()
        for _ in range(calls):
            call()
        synchronize(device)
        times.append((time.perf_counter() - start) / calls)
    return times, (time.process_time() - used) / repetitions / calls


def _slowest(by_rank: list[dict[str, list[float]]]) -> AnswerRow:
    """Return the slowest rank's time of each repetition."""
    return {name: [max(times) for times in zip(*(one[name] for one in by_rank), strict=True)] for name in by_rank[0]}


def overlap_task(rank: TeamRank, question: AnswerRow) -> dict[str, list[float]]:
    """Time an all-reduce and matrix products, each in isolation and both concurrently, in seconds per repetition.

    The number of products is chosen to take about half of the time of the all-reduce in isolation, so that it overlaps with all of them.
    """
    import torch
    import torch.distributed as dist

    device = "cuda" if rank.device == "cuda" else "cpu"
    gradients = torch.zeros(question["bytes"] // 4, device=device)
    edge = OVERLAP_EDGE[device]
    square = torch.zeros(edge, edge, device=device)
    _elapsed(lambda: dist.all_reduce(gradients), device)
    product_time = min(_elapsed(lambda: torch.matmul(square, square), device) for _ in range(3))
    count = torch.tensor([0.5 * _elapsed(lambda: dist.all_reduce(gradients), device) / product_time])
    dist.broadcast(count, src=0)

    def products() -> None:
        for _ in range(max(1, int(count.item()))):
            torch.matmul(square, square)

    times: dict[str, list[float]] = {"exchange_s": [], "products_s": [], "beside_s": [], "times_s": []}
    for _ in range(_REPETITIONS):
        times["exchange_s"].append(_elapsed(lambda: dist.all_reduce(gradients), device))
        times["products_s"].append(_elapsed(products, device))
        dist.barrier()
        start = time.perf_counter()
        work = dist.all_reduce(gradients, async_op=True)
        products()
        if device == "cuda":
            torch.cuda.current_stream().synchronize()  # the products' stream; NCCL has one of its own
        times["beside_s"].append(time.perf_counter() - start)
        work.wait()
        synchronize(device)
        times["times_s"].append(time.perf_counter() - start)
    return times


def _elapsed(call: Any, device: str) -> float:
    """Return the time (s) of one *call* that all ranks begin together."""
    import torch.distributed as dist

    dist.barrier()
    start = time.perf_counter()
    call()
    synchronize(device)
    return time.perf_counter() - start


def members_of(rank: TeamRank, ranks: int, nodes: int) -> tuple[int, ...]:
    """Return the *ranks* members of *rank*'s team that participate: the first ones on each of the first *nodes* machines."""
    local = rank.ranks // rank.nodes
    return tuple(node * local + number for node in range(nodes) for number in range(ranks // nodes))


_groups: dict[tuple[int, ...], Any] = {}
"""Cache of this process's groups by their members, because creating a group takes a rendezvous."""


def _group(rank: TeamRank, members: tuple[int, ...]) -> Any:
    import torch.distributed as dist

    if members not in _groups:
        _groups[members] = dist.group.WORLD if len(members) == rank.ranks else dist.new_group(list(members))
    return _groups[members]


def _call(op: str, members: Sequence[int], count: int, device: str, group: Any) -> Any:
    """Return a function that calls one collective of *members* ranks; *count* elements are counted as in nccl-tests."""
    import torch
    import torch.distributed as dist

    ranks = len(members)
    tensor = torch.zeros(count, device=device)
    if op == "all_reduce":
        return lambda: dist.all_reduce(tensor, group=group)
    part = torch.zeros(max(1, count // ranks), device=device)
    target = torch.zeros(part.numel() * ranks, device=device)
    gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor  # torch 2.13's name for it, and the older one
    if op == "all_gather":
        return lambda: gather(target, part, group=group)
    if op == "reduce_scatter":
        scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
        return lambda: scatter(part, target, group=group)
    if op == "all_to_all":
        return lambda: dist.all_to_all_single(torch.empty_like(target), target, group=group)
    return _send_recv(tensor, members, group)


def _send_recv(tensor: Any, members: Sequence[int], group: Any) -> Any:
    """Return a function that sends *tensor* to the next of *members* ranks and receives an equal tensor from the previous one."""
    import torch
    import torch.distributed as dist

    place, received = members.index(dist.get_rank()), torch.empty_like(tensor)
    after, before = members[(place + 1) % len(members)], members[place - 1]

    def call() -> None:
        both = [dist.P2POp(dist.isend, tensor, after, group), dist.P2POp(dist.irecv, received, before, group)]
        for work in dist.batch_isend_irecv(both):
            work.wait()

    return call


def _agreed_counts(call: Any, device: str, group: Any, seconds: float) -> tuple[int, int]:
    """Return the number of repetitions and of calls per repetition that rank 0 chooses for all *group*."""
    import torch
    import torch.distributed as dist

    call()
    synchronize(device)
    start = time.perf_counter()
    call()
    synchronize(device)
    once = time.perf_counter() - start
    counts = torch.tensor(list(repetitions_and_calls(once, seconds)), device=device)
    dist.broadcast(counts, src=0, group=group)
    repetitions, calls = (int(value) for value in counts.tolist())
    return repetitions, calls


def repetitions_and_calls(once: float, seconds: float) -> tuple[int, int]:
    """Return the number of repetitions and of calls per repetition such that calls of *once* seconds take about *seconds* in total.

    There are at most 11 repetitions, and at least 3 even of slow calls.
    """
    repetitions = min(_REPETITIONS, max(_LEAST, int(10 * seconds / max(once, 1e-9))))
    return repetitions, min(200, max(1, int(seconds / repetitions / max(once, 1e-6))))


EXCHANGE = Probe("all_reduce", "collectives by size and ranks", exchange_questions, exchange_answer, single_rank_reason)
