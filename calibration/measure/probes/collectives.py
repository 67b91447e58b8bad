"""How long do collectives of sharded, expert-parallel and pipelined jobs take? All-gather, reduce-scatter, all-to-all, send and receive.

Sizes are per rank as in nccl-tests: the output of an all-gather, the input of a reduce-scatter, the total sent in an all-to-all, and the
message that each rank sends to the next one while it receives from the previous one. They are timed as in
`calibration.measure.probes.exchange`.
"""

from __future__ import annotations

from typing import Final

from calibration.measure.machine_record import AnswerRow
from calibration.measure.probes.exchange import exchange_answer, rank_sets, single_rank_reason
from calibration.measure.probes.probe import Bench, Probe

OPERATIONS: Final = ("all_gather", "reduce_scatter", "all_to_all", "send_recv")
SIZES: Final = tuple(2**power for power in range(12, 27, 2))
"""Bytes: 4 KiB to 64 MiB."""


def collective_questions(bench: Bench) -> list[AnswerRow]:
    """Return one question per operation, participating ranks and size."""
    sizes = SIZES[::3] if bench.quick else SIZES
    most = bench.memory / 8 / (1 if bench.device == "cuda" else bench.neighbors)
    return [
        {"op": op} | team | {"bytes": size} for op in OPERATIONS for team in rank_sets(bench.team) for size in sizes if size <= most
    ]  # fmt: skip


COLLECTIVES = Probe(
    "collectives",
    "all-gather, reduce-scatter, all-to-all, send and receive by size and ranks",
    collective_questions,
    exchange_answer,
    single_rank_reason,
)
