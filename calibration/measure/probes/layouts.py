"""How long are training steps of ranks that divide a small transformer? With torch's FSDP2, tensor parallelism and pipelining.

Each layout uses all ranks for its single axis. Communication uses NCCL between GPUs and Gloo otherwise. Limits: losses and optimizer as
in `calibration.measure.layout_steps`; fp32 only.
"""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import Any, Final, NamedTuple

from calibration.measure.ddp_steps import StepRequest
from calibration.measure.division import HEAD_DIM, Division
from calibration.measure.layout_steps import LayoutRequest, run_rank
from calibration.measure.machine_record import AnswerRow
from calibration.measure.probes.probe import Bench, Probe
from calibration.measure.probes.training import QUICK_STEPS, STEPS
from calibration.measure.team import TeamRank

DECODER: Final = "calibration.measure.decoder:decoder"


class _LeastSize(NamedTuple):
    """Least size of the decoder; values that are not divisible by the number of ranks are rounded up."""

    width: int
    depth: int
    vocabulary: int
    tokens: int
    batch: int


SIZES: Final = {"cpu": _LeastSize(256, 4, 2048, 64, 8), "cuda": _LeastSize(2048, 8, 32_000, 1024, 4)}
QUICK_SIZE: Final = _LeastSize(128, 2, 512, 32, 2)
_PER_STAGE: Final = 2
"""Micro-batches per pipeline stage."""


def divisions(ranks: int) -> list[Division]:
    """Return the layouts in which *ranks* ranks divide the model, each along one axis."""
    return [
        Division(shard="parameters"),
        Division(tensor=ranks, sequence=False),
        Division(tensor=ranks, sequence=True),
        Division(pipeline=ranks, schedule="1f1b", micro_batches=_PER_STAGE * ranks),
    ]


def layout_questions(bench: Bench) -> list[AnswerRow]:
    """Return one question per layout, for a decoder with heads, vocabulary and blocks divisible by the number of ranks."""
    ranks, size = bench.team.ranks, QUICK_SIZE if bench.quick else SIZES[bench.device]
    shape = {
        "width": round_up(size.width, HEAD_DIM * ranks),
        "depth": round_up(size.depth, ranks),
        "vocabulary": round_up(size.vocabulary, ranks),
    }
    arguments = [f"{name}={value}" for name, value in shape.items()]
    named = {"model": DECODER, "inputs": [f"{round_up(size.tokens, ranks)}:int64"], "arguments": arguments}
    return [named | {"batch": size.batch, "ranks": ranks, "layout": layout.model_dump()} for layout in divisions(ranks)]


def round_up(number: int, of: int) -> int:
    """Return *number* rounded up to a multiple of *of*."""
    return -(-number // of) * of


def layout_answer(bench: Bench, question: AnswerRow) -> AnswerRow:
    """Time whole steps: step times (s) by rank, and processor time (s) per step and rank."""
    steps = QUICK_STEPS if bench.quick else STEPS
    request = StepRequest(
        question["model"],
        tuple(question["inputs"]),
        question["batch"],
        steps,
        2,
        arguments=tuple(question["arguments"]),
        threads=bench.threads,
    )
    request = request if bench.device == "cuda" else replace(request, device="cpu")
    by_rank = bench.team.ask(layout_task, request, LayoutRequest(Division.model_validate(question["layout"]), question["ranks"]).text())
    return {"cpu_s": [one.cpu_time for one in by_rank], "times_by_rank_s": [one.times for one in by_rank]}


def layout_task(rank: TeamRank, request: StepRequest, layout_request: str) -> Any:
    """Run the steps of one rank."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return run_rank(request, LayoutRequest.read(layout_request))


def _single(bench: Bench) -> str:
    return "" if bench.team.ranks > 1 else "one rank: no other rank to share the model with"


LAYOUTS: Final = Probe(
    "layouts", "training steps of a small decoder by FSDP2, tensor parallelism and a pipeline", layout_questions, layout_answer, _single
)
