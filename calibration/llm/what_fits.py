"""What must a run have done to fit, if it ran? What its row leaves open: shards, recomputation, micro-batch."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import replace
from typing import Final

from calibration.llm.case import Case
from calibration.llm.engine import memory_need

NOT_STATED: Final = "what is recomputed or offloaded: the run would not fit as described"
ONE_SAMPLE: Final = "micro_batch 1"
SHARDED_TO_FIT: Final = "zero_stage 1: the run would not fit otherwise"
RECOMPUTED_TO_FIT: Final = "all blocks are recomputed: the run would not fit otherwise"
_RECOMPUTE_TO_FIT: Final = frozenset({"deepspeed", "fsdp1", "fsdp2"})
"""Software whose users recompute whole blocks where a run would not fit. Megatron's also offload, or recompute what is cheap: steps of
committed runs that would not fit there are shorter than with whole blocks."""


def made_to_fit(case: Case) -> Case:
    """Return *case* with what its row does not say chosen so that it fits, if it ran: its optimizer, recomputation, the micro-batch.

    Memory is computed only where something is assumed.
    """
    if case.row.status != "ok" or not case.assumptions:
        return case
    case = _with_recomputation(_with_sharded_optimizer(case))
    return _with_largest_micro_batch(case) if ONE_SAMPLE in case.assumptions else case


def _with_sharded_optimizer(case: Case) -> Case:
    """Return *case* with Megatron's distributed optimizer if its row does not say what is sharded, and only that fits."""
    stated = case.row.text_or_number("zero_stage") or case.row.text["fsdp_mode"]
    if stated or case.zero or case.family != "megatron" or case.lora or case.data * case.context == 1:
        return case
    if memory_need(case).verdict != "does_not_fit":
        return case
    sharded = replace(case, zero=1, assumptions=(*case.assumptions, SHARDED_TO_FIT))
    return sharded if memory_need(sharded).verdict != "does_not_fit" else case


def _with_recomputation(case: Case) -> Case:
    """Return *case* with all blocks recomputed if its row does not say what is recomputed, and only that fits.

    If nothing fits, a note says so.
    """
    if case.row.text["activation_checkpointing"] or case.recompute == "full" or memory_need(case).verdict != "does_not_fit":
        return case
    if case.family in _RECOMPUTE_TO_FIT:
        checkpointed = replace(
            case,
            recompute="full",
            recomputed_layers=0,
            recomputed_modules=(),
            saved_layers=(),
            assumptions=(*case.assumptions, RECOMPUTED_TO_FIT),
        )
        if memory_need(checkpointed).verdict != "does_not_fit":
            return checkpointed
    return case if case.recompute != "none" else replace(case, assumptions=(*case.assumptions, NOT_STATED))


def _with_largest_micro_batch(case: Case) -> Case:
    """Return *case*, of one sample per micro-batch, with the largest micro-batch that fits. Pipelines keep a micro-batch for each stage.

    Interleaved pipelines take a multiple of their stages (megatron/core/pipeline_parallel/schedules.py).
    """
    samples = case.micro_batches
    counts = [samples // size for size in range(1, samples + 1) if samples % size == 0]
    possible = [
        replace(case, micro_batch=samples // count, micro_batches=count)
        for count in counts
        if count >= case.pipeline and (case.virtual_stages == 1 or count % case.pipeline == 0)
    ]
    fitting = bisect_left(possible, True, key=lambda each: memory_need(each).verdict != "fits")
    if fitting == 0:
        return case
    largest = possible[fitting - 1]
    assumptions = tuple(
        f"micro_batch {largest.micro_batch}, the largest that fits" if text == ONE_SAMPLE else text for text in case.assumptions
    )
    return replace(largest, assumptions=assumptions)
